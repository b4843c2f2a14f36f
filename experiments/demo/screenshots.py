"""Takes the README's pictures of a search: MLflow's run table, the report, an elite's source.

Needs chromium and chromedriver (apt-get install chromium chromium-driver) and the dev extra. From
the repository's root: `python -m experiments.demo.screenshots RUN_DIR [TRACKING_URI]`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from tests.integration import browser
from tests.integration.browser import CREATED, DURATION, RUN_NAME, MlflowPage

# Column of the run table: pixels.
COLUMNS = {
    RUN_NAME: 200,
    CREATED: 132,
    DURATION: 76,
    "params.`template`": 112,
    "params.`cell.memory`": 150,
    "params.`cell.compute`": 106,
    "params.`cell.parallelism`": 114,
    "metrics.`speedup`": 80,
    "metrics.`speedup_low`": 100,
    "metrics.`confirm/speedup_low`": 152,
}


def elites_of(client: MlflowClient, experiment_id: str, run_id: str) -> list[Any]:
    """The child runs, best first as the search wrote them."""
    return list(
        client.search_runs(
            [experiment_id],
            filter_string=f"tags.mlflow.parentRunId = '{run_id}'",
            order_by=["attributes.start_time ASC"],
            max_results=1000,
        )
    )


def take(run_dir: Path, tracking_uri: str | None, folder: Path) -> list[Path]:
    """Takes all pictures.

    Args:
        run_dir: A finished run that was tracked with MLflow.
        tracking_uri: Its database; None is the one that the run names.
        folder: Where the pictures go.
    """
    record = run_dir / "mlflow_run.json"
    if not record.is_file():
        raise SystemExit(f"{record}: not found; the run was not tracked with MLflow")
    state = json.loads(record.read_text(encoding="utf-8"))
    uri = tracking_uri or state["tracking_uri"]
    run_id, experiment_id = state["run_id"], state["experiment_id"]
    elites = elites_of(MlflowClient(tracking_uri=uri), experiment_id, run_id)
    if not elites:
        raise SystemExit(f"run {run_id} in {uri}: no elites; has the search ended?")
    best = max(elites, key=lambda item: item.data.metrics.get("confirm/speedup_low", 0.0))

    folder.mkdir(parents=True, exist_ok=True)
    pictures = [folder / f"mlflow_{name}.png" for name in ("runs", "report", "elite")]
    with (
        tempfile.TemporaryDirectory() as scratch,
        browser.mlflow_server(uri, Path(scratch)) as address,
        browser.chromium(Path(scratch)) as driver,
    ):
        page = MlflowPage(driver=driver, address=address, experiment_id=experiment_id)
        page.choose_columns(COLUMNS)
        page.open_runs()
        page.fold_sidebar()
        page.expand(run_id, children=min(len(elites), 10))
        page.picture(pictures[0])
        page.open_file(run_id, "report.html")
        page.enter_frame()
        page.see("css selector", "h1")
        page.leave_frame()
        page.picture(pictures[1])
        page.open_file(best.info.run_id, "kernel.cl.txt")
        page.read("__kernel")
        page.picture(pictures[2])
    heatmap = folder / "heatmap.png"
    shutil.copyfile(run_dir / "heatmap.png", heatmap)
    return [*pictures, heatmap]


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("tracking_uri", nargs="?", help="default: the one that the run names")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images")
    options = parser.parse_args()
    if absent := browser.missing():
        parser.error(absent)
    for path in take(options.run_dir, options.tracking_uri, options.out):
        print(path)


if __name__ == "__main__":
    main()

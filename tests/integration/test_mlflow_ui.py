"""A search as a person sees it in MLflow's page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.integration.harness import alive, run, wait_until

pytest.importorskip("mlflow")
pytest.importorskip("selenium")

from tests.integration import browser
from tests.integration.browser import RUN_NAME, MlflowPage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

needs_browser = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "found")


def mentioning(folder: Path) -> list[str]:
    """Command lines of living processes that were given this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if process.pid != psutil.Process().pid and any(str(folder) in word for word in words):
            found.append(" ".join(words[:6]))
    return found


@dataclass(frozen=True)
class Searched:
    page: MlflowPage
    run_id: str
    children: dict[str, str]  # candidate -> run, best first
    sources: dict[str, str]


@pytest.fixture
def searched(tmp_path: Path) -> Iterator[Searched]:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_dir = tmp_path / "run"
    done = run(
        "kelites",
        *("workers=simulated", "budget.evaluations=60", "confirm.top=2", "display=none"),
        *(f"tracking.tracking_uri={uri}", f"hydra.run.dir={run_dir}"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    state = json.loads((run_dir / "mlflow_run.json").read_text())

    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=uri).search_runs(
        [state["experiment_id"]],
        filter_string=f"tags.mlflow.parentRunId = '{state['run_id']}'",
        order_by=["attributes.start_time ASC"],
    )
    assert len(found) >= 5
    profile = tmp_path / "browser"
    profile.mkdir()
    with browser.mlflow_server(uri, tmp_path) as address, browser.chromium(profile) as driver:
        yield Searched(
            page=MlflowPage(driver=driver, address=address, experiment_id=state["experiment_id"]),
            run_id=state["run_id"],
            children={item.data.tags["kelites.candidate"]: item.info.run_id for item in found},
            sources={path.stem: path.read_text() for path in run_dir.glob("elites/*.cl")},
        )
    wait_until(lambda: not mentioning(tmp_path), timeout_s=30)


@needs_browser
def test_search_elites_sources_and_report_are_seen(searched: Searched) -> None:
    page, (best, *others) = searched.page, searched.children
    page.choose_columns({"metrics.`speedup`": 100, "params.`template`": 100})

    # The run table: the search, and under it its elites, best first.
    page.open_runs()
    assert page.run_ids() == [searched.run_id]
    assert page.cell(searched.run_id, RUN_NAME).endswith("softmax-opencl-run")
    page.expand(searched.run_id, children=min(8, len(searched.children)))
    shown = page.run_ids()  # rows far out of sight are not made
    assert shown == [searched.run_id, *searched.children.values()][: len(shown)]
    child = searched.children[best]
    assert f"{best} cell " in page.cell(child, RUN_NAME)
    assert page.cell(child, "params.`template`").startswith("opencl_")
    assert float(page.cell(child, "metrics.`speedup`")) > 1

    # An elite: its source, whole.
    page.open_file(child, "kernel.cl.txt")
    shown = page.read("__kernel void softmax")
    for line in searched.sources[best].splitlines():
        assert " ".join(line.split()) in " ".join(shown.split())

    # The report, alive inside MLflow's frame: a click on an elite shows its source.
    page.open_file(searched.run_id, "report.html")
    page.enter_frame()
    assert page.see("css selector", "h1").text.startswith("softmax on opencl")
    other = others[-1]
    article = f"article[data-detail='{other}']"
    assert not page.driver.find_element("css selector", article).is_displayed()
    page.see("css selector", f"#elites tr[data-elite='{other}']").click()
    detail = page.see("css selector", article)
    assert "".join(searched.sources[other].split()) in "".join(detail.text.split())


@needs_browser
def test_nothing_is_left_when_something_fails(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)  # left to earlier tests' fixtures
    started: list[psutil.Process] = []

    def fail() -> None:
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        with browser.mlflow_server(uri, tmp_path), browser.chromium(tmp_path) as driver:
            now = psutil.Process().children(recursive=True)
            started.extend(process for process in now if process not in before)
            driver.service.process.kill()  # so that nobody is there to close the browser
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(started) >= 5  # server, its worker, chromedriver, browser, its children
    wait_until(lambda: not alive(started) and not mentioning(tmp_path), timeout_s=30)

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ConfigError
from evo.tracking.base import SafeTracker
from evo.tracking.mlflow_tracker import STATE_FILE, MlflowTracker, metric_names
from tests.evo.fakes import SOURCE, demo_archive, make_run_info, make_summary

pytest.importorskip("mlflow")


def client_of(run_dir: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{run_dir}/mlflow.db")


def artifacts(client: Any, run_id: str, path: str = "") -> set[str]:
    found: set[str] = set()
    for item in client.list_artifacts(run_id, path or None):
        found |= artifacts(client, run_id, item.path) if item.is_dir else {item.path}
    return found


def read_text(client: Any, run_id: str, path: str, folder: Path) -> str:
    return Path(client.download_artifacts(run_id, path, str(folder))).read_text()


def test_a_run_and_its_resume_in_a_real_database(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = tmp_path / "run dir"  # a space, as people have
    run_dir.mkdir()
    monkeypatch.chdir(tmp_path)
    config = {f"group.key{number}": number for number in range(130)} | {
        "search.long": "x" * 9000,
        "workers.addresses[0]": "a:1",
    }
    info = make_run_info(run_dir, config=config)
    archive = demo_archive(fill=0.2)

    # First session: stopped by hand after four steps, without a summary.
    tracker = MlflowTracker(heatmap_every=2)
    safe = SafeTracker(tracker)
    safe.start(info)
    first_id = tracker.run_id
    for step in range(1, 5):
        row = {"step": step, "evaluations": 20 * step, "coverage": step / 10}
        safe.step(step, row | {"valid_rate": float("inf")}, archive)
    safe.step(5, {"step": 5, "evaluations": 87, "coverage": 0.45}, archive)  # cut short
    safe.close()
    safe.close()

    client = client_of(run_dir)
    run = client.get_run(first_id)
    assert run.info.status == "KILLED"
    assert len(run.data.params) == 132
    assert run.data.params["workers.addresses_0_"] == "a:1"
    assert len(run.data.params["search.long"]) == 6000
    assert run.data.tags["kelites.device_kind"] == "cpu"
    assert "eval/valid_rate" not in run.data.metrics
    assert json.loads((run_dir / STATE_FILE).read_text())["run_id"] == first_id

    # Second session: same run; steps told again are not recorded twice.
    tracker = MlflowTracker(heatmap_every=2, max_children=5)
    safe = SafeTracker(tracker)
    safe.start(info)
    assert tracker.run_id == first_id
    for step in range(1, 7):
        row = {"step": step, "evaluations": 20 * step, "coverage": step / 10}
        safe.step(step, row | {"best_mean": 0.0}, archive)
    safe.finish(make_summary(archive))
    safe.close()

    run = client.get_run(first_id)
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(first_id, "qd/coverage")
    assert [(metric.step, metric.value) for metric in history] == [
        (step, pytest.approx(coverage))
        for step, coverage in (
            (1, 0.1),
            (2, 0.2),
            (3, 0.3),
            (4, 0.4),
            (5, 0.45),
            (5, 0.5),
            (6, 0.6),
        )
    ]
    assert run.data.metrics["qd/best_speedup"] == 1.0
    files = artifacts(client, first_id)
    assert {
        "report.html",
        "archive/archive.csv",
        "archive/archive.json",
        "config/resolved.yaml",
        "confirm/confirm.json",
    } <= files
    pictures = [name for name in files if name.endswith(".png")]
    assert sum("archive~heatmap" in name for name in pictures) == 3
    assert sum("archive~final" in name for name in pictures) == 1
    assert sum(name.startswith("elites/") for name in files) == len(archive)
    assert "not bold" in read_text(client, first_id, "report.html", tmp_path)
    assert "budget of 300 evaluations used" in run.data.tags["mlflow.note.content"]

    children = client.search_runs(
        [run.info.experiment_id],
        filter_string=f"tags.mlflow.parentRunId = '{first_id}'",
        order_by=["metrics.speedup_low DESC"],
    )
    assert len(children) == 5
    best = archive.best()
    assert best is not None
    child = children[0]
    assert child.info.status == "FINISHED"
    assert child.data.tags["kelites.candidate"] == best.candidate.id
    assert child.data.tags["kelites.confirm"] == "failed: incorrect"
    assert child.data.params["param.vec"] == str(best.candidate.genome.params["vec"])
    assert child.data.params["template"] == best.candidate.genome.template
    assert child.data.params["cell"] == "-".join(map(str, best.cell))
    assert {"speedup", "speedup_low", "speedup_high", "latency_us/square"} <= set(
        child.data.metrics
    )
    assert read_text(client, child.info.run_id, "kernel.cl.txt", tmp_path) == SOURCE
    assert read_text(client, child.info.run_id, "lineage.txt", tmp_path).startswith(
        best.candidate.id
    )
    confirmed = next(item for item in children if item.data.tags["kelites.confirm"] == "faster")
    assert confirmed.data.metrics["confirm/speedup_low"] > 1

    # A third session replaces the children instead of adding to them.
    tracker = MlflowTracker(max_children=2)
    safe = SafeTracker(tracker)
    safe.start(info)
    safe.finish(make_summary(archive, status="stopped"))
    safe.close()
    children = client.search_runs(
        [run.info.experiment_id], filter_string=f"tags.mlflow.parentRunId = '{first_id}'"
    )
    assert len(children) == 2
    assert client.get_run(first_id).info.status == "KILLED"

    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "mlruns").exists()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_rows_are_grouped_and_speedups_are_factors() -> None:
    row = {"step": 3, "evaluations": 60, "best_low": math.log(2.0), "status_timeout": 4, "a/b": 1}
    assert metric_names(row | {"qd_score": 7.5, "compile_s_mean": 0.2}) == {
        "eval/count": 60.0,
        "qd/best_speedup_low": pytest.approx(2.0),
        "eval/timeout": 4.0,
        "a/b": 1.0,
        "qd/qd_score": 7.5,
        "eval/compile_s_mean": 0.2,
    }


def test_a_database_destroyed_under_the_run_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    safe = SafeTracker(MlflowTracker(heatmap_every=1))
    safe.start(make_run_info(tmp_path))
    for path in tmp_path.glob("mlflow.db*"):
        path.write_bytes(b"not a database any more" * 1000)
    archive = demo_archive(fill=0.1)
    for step in range(1, 4):
        safe.step(step, {"x": 1.0}, archive)
    safe.finish(make_summary(archive))
    safe.close()
    ours = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(ours) == 1
    assert "MLflow failed, the search goes on" in ours[0].getMessage()
    assert "\n" not in ours[0].getMessage()


def test_what_cannot_work_is_said_before_the_search(tmp_path: Path) -> None:
    info = make_run_info(tmp_path)
    with pytest.raises(ConfigError, match="unknown scheme 'nosuch'"):
        SafeTracker(MlflowTracker(tracking_uri="nosuch://x")).start(info)
    with pytest.raises(ConfigError, match="no MLflow server there"):
        SafeTracker(MlflowTracker(tracking_uri="http://127.0.0.1:9")).start(info)
    with pytest.raises(ConfigError, match="heatmap_every=0"):
        MlflowTracker(heatmap_every=0)
    with pytest.raises(ConfigError, match="max_children=-1"):
        MlflowTracker(max_children=-1)


def test_a_database_of_something_else_is_a_config_error(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("create table experiments (other text)")
        database.execute("create table alembic_version (version_num text)")
        database.execute("insert into alembic_version values ('0123456789ab')")
    with pytest.raises(ConfigError, match="MLflow cannot use it") as caught:
        MlflowTracker().start(make_run_info(tmp_path))
    assert "\n" not in str(caught.value)

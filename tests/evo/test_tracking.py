from __future__ import annotations

import csv
import io
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from evo.archives.base import Archive
from evo.errors import ConfigError
from evo.tracking.base import RunInfo, RunSummary, SafeTracker
from evo.tracking.mlflow_uri import redact, resolve_tracking_uri
from evo.tracking.null_tracker import NullTracker
from evo.tracking.tables import elites_csv, kernel_file
from evo.tracking.writer import Writer
from tests.evo.fakes import demo_archive, make_elite, make_run_info, make_summary


class BrokenTracker:
    """Raises in the methods named."""

    def __init__(self, *broken: str, error: Exception | None = None) -> None:
        self.broken = broken
        self.error = error or RuntimeError("the disk\nis on fire")
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.broken:
            raise self.error

    def start(self, info: RunInfo) -> None:
        self._call("start")

    def step(self, step: int, metrics: Mapping[str, float], archive: Archive) -> None:
        self._call("step")

    def finish(self, summary: RunSummary) -> None:
        self._call("finish")

    def close(self) -> None:
        self._call("close")


def run_all(tracker: SafeTracker, tmp_path: Path) -> None:
    tracker.start(make_run_info(tmp_path))
    for step in (1, 2, 3):
        tracker.step(step, {"x": 1.0}, demo_archive())
    tracker.finish(make_summary())
    tracker.close()


def test_failures_cost_one_line_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = BrokenTracker("step", "finish", "close")
    run_all(SafeTracker(inner), tmp_path)
    assert inner.calls == ["start", "step", "step", "step", "finish", "close"]
    assert [record.getMessage() for record in caplog.records] == [
        f"tracking: {method} failed, the search goes on: the disk is on fire"
        for method in ("step", "finish", "close")
    ]


def test_a_tracker_that_never_started_is_not_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = BrokenTracker("start")
    run_all(SafeTracker(inner), tmp_path)
    assert inner.calls == ["start", "close"]
    assert len(caplog.records) == 1


def test_wrong_settings_stop_the_run_before_it_starts(tmp_path: Path) -> None:
    inner = BrokenTracker("start", error=ConfigError("tracking_uri='x': no"))
    with pytest.raises(ConfigError, match="tracking_uri='x': no"):
        run_all(SafeTracker(inner), tmp_path)


def test_null_tracker_leaves_nothing_behind(tmp_path: Path) -> None:
    run_all(SafeTracker(NullTracker()), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="'done' is none of finished, stopped, failed"):
        make_summary(status="done")


# --- the writer thread ---------------------------------------------------------------------------


def test_writer_keeps_order_and_finishes_before_close_returns() -> None:
    done: list[int] = []
    writer = Writer("test")
    for number in range(50):
        writer.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    writer.close(10.0)
    assert done == list(range(50))


def fail(calls: list[str]) -> Callable[[], None]:
    def job() -> None:
        calls.append("bad")
        raise OSError("no space left")

    return job


def test_writer_goes_on_after_a_failure_and_gives_up_after_three(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []
    writer = Writer("test")
    for _ in range(2):
        writer.submit(fail(calls))
    writer.submit(lambda: calls.append("good"))
    for _ in range(5):
        writer.submit(fail(calls))
    writer.submit(lambda: calls.append("too late"))
    writer.close(10.0)
    assert calls == ["bad", "bad", "good", "bad", "bad", "bad"]
    assert writer.gave_up
    assert [record.getMessage() for record in caplog.records] == [
        "tracking: test failed, the search goes on: no space left"
    ]


def test_full_queue_drops_instead_of_waiting(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    started = threading.Event()
    done: list[int] = []

    def block() -> None:
        started.set()
        release.wait(10.0)

    writer = Writer("test", capacity=2)
    writer.submit(block)
    assert started.wait(10.0)
    for number in range(5):
        writer.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    release.set()
    writer.submit(lambda: done.append(99), droppable=False)
    writer.close(10.0)
    assert done == [0, 1, 99]
    assert len(caplog.records) == 1
    assert "too slow" in caplog.records[0].getMessage()


def test_close_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    writer = Writer("test")

    def block() -> None:
        release.wait(30.0)

    writer.submit(block)
    writer.close(0.05)
    release.set()
    assert "did not finish within 0.05 s" in caplog.text


# --- tracking URIs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("sqllite:///x.db", "unknown scheme 'sqllite'; allowed are sqlite, http, https"),
        ("./mlruns", "no longer writes plain folders; use sqlite:///PATH/mlflow.db"),
        ("file:///tmp/mlruns", "no longer writes plain folders"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("http://127.0.0.1:9", "no MLflow server there"),
        ("http://me:secret@127.0.0.1:9", r"tracking_uri='http://me:\*\*\*@127.0.0.1:9'"),
    ],
)
def test_wrong_uris_are_one_line(
    uri: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_tracking_uri(uri)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_sqlite_paths_that_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other.db").write_text("this is a text file, not a database")
    for name, message in (
        ("file/mlflow.db", "cannot use"),
        ("other.db", "is not a sqlite database"),
        ("", "is a folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_tracking_uri(f"sqlite:///{tmp_path}/{name}")


def test_relative_sqlite_path_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_tracking_uri("sqlite:///a/mlflow.db") == f"sqlite:///{tmp_path}/a/mlflow.db"
    assert (tmp_path / "a").is_dir()


def test_uris_of_other_databases_pass_through() -> None:
    uri = "postgresql+psycopg2://u:p@db/mlflow"
    assert resolve_tracking_uri(uri) == uri
    assert redact(uri) == "postgresql+psycopg2://u:***@db/mlflow"


# --- tables --------------------------------------------------------------------------------------


def test_csv_holds_every_elite_best_first() -> None:
    archive = demo_archive()
    rows = list(csv.DictReader(io.StringIO(elites_csv(archive, ["memory", "compute"]))))
    lows = [float(row["speedup_low"]) for row in rows]
    assert len(rows) == len(archive)
    assert lows == sorted(lows, reverse=True)
    assert {"memory", "compute", "axis2", "param_wg", "square_us"} <= set(rows[0])


def test_csv_with_unequal_parameters_leaves_gaps() -> None:
    from tests.evo.fakes import make_candidate

    odd = make_elite(2, candidate=make_candidate(2, params={"tile": 8}))
    rows = list(csv.DictReader(io.StringIO(elites_csv([make_elite(1), odd]))))
    assert {(row["param_wg"], row["param_tile"]) for row in rows} == {("64", ""), ("", "8")}
    assert elites_csv([]) == "\n"


def test_kernel_files_can_be_previewed() -> None:
    assert kernel_file("c000001", "opencl") == "c000001.cl.txt"
    assert kernel_file("c000001", "new-backend") == "c000001.txt"

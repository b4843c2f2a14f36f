"""Whatever is killed, a search goes on and loses nothing (experiments/survival does it at length).

With one slot the same seed gives the same candidates, so a run that was killed and resumed must
end with the archive of one that was not.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from evo.rebuild import rebuild_archive
from tests.integration.harness import (
    Daemon,
    alive,
    audit,
    count,
    daemon,
    elites,
    lines,
    run,
    shared_memory,
    start,
    wait_until,
)

EVALUATIONS = 70
SIMULATED = (
    "workers=simulated",
    "workers.delay_s=0.02",
    "tracking=none",
    f"budget.evaluations={EVALUATIONS}",
    "confirm.top=0",
    "seed=7",
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    ended = run("kelites", *SIMULATED, "workers.delay_s=0", "run_dir=run", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return folder / "run"


def assert_complete(run_dir: Path, evaluations: int) -> None:
    found = audit(run_dir)
    assert found.each_answered_once
    assert found.evaluations == evaluations
    rebuilt = json.loads(rebuild_archive(run_dir).to_json())
    assert rebuilt == json.loads((run_dir / "archive.json").read_text())


def test_controller_killed_at_random_points_ends_as_if_it_had_not_been(
    tmp_path: Path, uninterrupted: Path
):
    rng = random.Random(20)
    run_dir = tmp_path / "run"
    arguments = (*SIMULATED, "run_dir=run")
    kept: list[dict] = []
    for _ in range(3):
        target = len(kept) + rng.randrange(3, 40)
        process = start("kelites", *arguments, cwd=tmp_path)
        wait_until(lambda n=target: len(lines(run_dir)) >= n)
        process.kill()
        process.communicate()
        now = lines(run_dir)
        assert now[: len(kept)] == kept  # what was recorded stays as it was
        kept = now
        arguments = ("resume=run",)
    assert count(run_dir, "tell") < EVALUATIONS  # the kills came before the end
    ended = run("kelites", "resume=run", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert lines(run_dir)[: len(kept)] == kept
    assert_complete(run_dir, EVALUATIONS)
    assert elites(run_dir) == elites(uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_says_how_to_go_on_and_does(
    tmp_path: Path, uninterrupted: Path, number: signal.Signals
):
    run_dir = tmp_path / "run"
    process = start("kelites", *SIMULATED, "run_dir=run", cwd=tmp_path)
    wait_until(lambda: count(run_dir, "tell") >= 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    told = out.strip().splitlines()[-1]
    assert told == f"nothing is lost; continue with: kelites resume={run_dir}"
    assert count(run_dir, "tell") < EVALUATIONS
    assert (run_dir / "report.html").is_file()  # what there is can be looked at meanwhile
    ended = run("kelites", told.rpartition(" ")[2], cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert_complete(run_dir, EVALUATIONS)
    assert elites(run_dir) == elites(uninterrupted)


def limit_files(size_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))


@pytest.mark.parametrize("size_bytes", [300, 60_000])
def test_full_disk_is_one_line_and_nothing_is_lost(
    tmp_path: Path, uninterrupted: Path, size_bytes: int
):
    """A limit on file sizes stands in for the disk: no room for the settings, then mid-run."""
    process = start(
        *("kelites", *SIMULATED, "run_dir=run"),
        cwd=tmp_path,
        preexec_fn=lambda: limit_files(size_bytes),
        # Coverage would want to write a file of its own and say that it cannot.
        env={name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")},
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith("kelites: error: ")
    assert err.count("\n") == 1
    assert "too large" in err
    again = ("resume=run",) if lines(tmp_path / "run") else (*SIMULATED, "run_dir=run")
    assert (again == ("resume=run",)) == (size_bytes == 60_000)
    ended = run("kelites", *again, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert_complete(tmp_path / "run", EVALUATIONS)
    assert elites(tmp_path / "run") == elites(uninterrupted)


def executors(worker: Daemon) -> list[psutil.Process]:
    found = []
    for item in worker.descendants():
        with suppress(psutil.Error):  # it has ended meanwhile
            if "workers.child" in " ".join(item.cmdline()):
                found.append(item)
    return found


def test_executor_and_daemon_killed_under_a_real_search(tmp_path: Path):
    evaluations = 14
    before = shared_memory()
    seen: list[psutil.Process] = []
    with daemon(tmp_path / "daemon") as worker:
        search = start(
            *("kelites", f"workers=[{worker.address}]", "evaluation=quick", "tracking=none"),
            *(f"budget.evaluations={evaluations}", "confirm.top=0", "task=reduce_sum"),
            *("run_dir=run",),
            cwd=tmp_path,
        )
        run_dir = tmp_path / "run"
        try:
            wait_until(lambda: count(run_dir, "tell") >= 2)
            seen += worker.descendants()
            for child in executors(worker):
                child.kill()
            reached = count(run_dir, "tell")
            wait_until(lambda: count(run_dir, "tell") >= reached + 3)
            seen += worker.descendants()
            worker.kill()
            worker.restart()
            out, err = search.communicate(timeout=90)
        finally:
            if search.poll() is None:
                search.kill()
                search.communicate()
        assert search.returncode == 0, err
        seen += worker.descendants()
    assert_complete(run_dir, evaluations)
    found = audit(run_dir)
    assert found.statuses["runtime_error"] == 0, found.messages
    assert found.statuses["compile_error"] == 0, found.messages
    assert found.statuses["ok"] >= evaluations // 2
    wait_until(lambda: not alive(seen), timeout_s=20)
    assert shared_memory() <= before
    assert "finished" in out


def test_killed_controller_of_a_local_worker_leaves_no_process(tmp_path: Path):
    process = start(
        *("kelites", "workers=local", "evaluation=quick", "tracking=none", "confirm.top=0"),
        *("budget.evaluations=50", "task=reduce_sum", "run_dir=run"),
        cwd=tmp_path,
    )
    wait_until(lambda: count(tmp_path / "run", "tell") >= 1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(children), timeout_s=20)
    resumed = start("kelites", "resume=run", "budget.evaluations=4", cwd=tmp_path)
    _, err = resumed.communicate(timeout=90)
    assert (resumed.returncode, err) == (0, "")
    assert audit(tmp_path / "run").each_answered_once

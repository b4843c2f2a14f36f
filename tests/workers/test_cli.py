from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from evo.evaluation import EvaluationStatus
from evo.job import EvaluationRequest, EvaluationSettings
from tests.workers.fake_worker import ROOT, Daemon, daemons, run
from tests.workers.test_client import free_port
from workers import cli, corpus
from workers.doctor import Finding, table
from workers.pool import WorkerPool
from workers.security import TOKEN_VARIABLE

QUICK = EvaluationSettings(min_blocks=2, max_blocks=3, block_us=500.0)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers.cli", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def job(case: corpus.Case, job_id: str) -> EvaluationRequest:
    return EvaluationRequest(
        job_id=job_id,
        task_hash=corpus.bundle().task_hash,
        candidate=case.program(),
        baseline=corpus.HONEST_CASE.program(),
        settings=QUICK,
    )


def executors(daemon: Daemon) -> list[psutil.Process]:
    return psutil.Process(daemon.process.pid).children(recursive=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--backend", "vulkan"], "unknown backend 'vulkan'; there are: .*opencl"),
        (["selftest", "--backend", "vulkan"], "unknown backend 'vulkan'; there are: .*opencl"),
        (["serve", "--device", "x"], "--device 'x' is not a number"),
        (["serve", "--device", "0,0"], "names a device twice"),
        (["serve", "--host", "0.0.0.0"], r"refusing to listen on 0\.0\.0\.0 without --tls-cert"),
        (["serve", "--token-file", "/no/such"], "cannot read token file /no/such"),
        (["serve", "--tls-cert", "/no/such"], "--tls-cert and --tls-key go together"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_two(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("kelites-worker: ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(shown.err)


@pytest.mark.parametrize(
    "arguments", [[], ["serve", "--port", "65536"], ["serve", "--drain-grace", "-1"], ["dance"]]
)
def test_argparse_refuses_with_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: kelites-worker" in capsys.readouterr().err


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]):
    from workers.convert import distribution_version

    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == distribution_version()


def test_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = command("serve", "--port", str(port))
    line = f"kelites-worker: cannot listen on 127.0.0.1:{port}: address already in use\n"
    assert (ended.returncode, ended.stderr, ended.stdout) == (2, line, "")


def test_machine_without_opencl_is_told_what_to_install(tmp_path: Path):
    nothing = {"OCL_ICD_VENDORS": str(tmp_path / "nowhere")}
    served = command("serve", "--port", "0", **nothing)
    assert served.returncode == 1
    assert served.stderr.count("\n") == 1
    assert "pocl" in served.stderr
    examined = command("doctor", **nothing)
    assert examined.returncode == 1
    assert "pocl" in examined.stdout


def test_doctor_shows_every_backend_of_this_machine(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["doctor"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:3] == ["backend", "state", "device"]
    states = {row[0]: row[1] for row in rows[1:]}
    assert states["opencl"] == "run"
    assert {"cuda", "hip", "sycl", "triton"} <= set(states)


def test_doctor_table_is_aligned():
    lines = table(
        [
            Finding(backend="opencl", state="run", index=0, device="A CPU", version="3.0"),
            Finding(backend="cuda", state="missing", advice="not in this version"),
        ]
    ).splitlines()
    assert lines[1].index("3.0") == lines[2].index("not in this") == lines[0].index("version")
    assert "0: A CPU" in lines[1]


@dataclass
class Outcome:
    name: str
    passed: bool
    detail: str


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_selftest_prints_every_check_and_fails_if_one_does(
    passed: bool, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def run_selftest(backend: str, device_index: int) -> list[Outcome]:
        asked.append((backend, device_index))
        return [Outcome("A/A", True, "covers 1"), Outcome("copy", passed, "12 GB/s")]

    stand_in = ModuleType("workers.selftest")
    stand_in.run_selftest = run_selftest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workers.selftest", stand_in)
    assert cli.main(["selftest", "--device", "1"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert asked == [("opencl", 1)]
    assert lines[0] == "ok    A/A: covers 1"
    assert lines[1].startswith("ok    copy" if passed else "FAIL  copy")


def test_worker_imports_none_of_the_controllers_libraries():
    code = (
        "import sys, workers.cli, workers.server, workers.client, workers.pool, workers.doctor\n"
        "heavy = {'hydra', 'mlflow', 'deap', 'omegaconf', 'rich', 'matplotlib', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_real_daemon_evaluates_on_pocl_and_leaves_nothing_behind(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("secret")
    serve = ["serve", "--port", "0", "--name", "box", "--token-file", str(token)]
    with daemons(tmp_path) as started:
        started.append(Daemon(tmp_path, *serve, module="workers.cli"))
        daemon = started[0]
        address = daemon.address()
        children = executors(daemon)
        assert children

        async def scenario():
            pool = WorkerPool([address], token_file=str(token))
            await pool.start(corpus.bundle())
            hang = corpus.Case(
                name="hang",
                status=EvaluationStatus.TIMEOUT,
                source=corpus.HONEST.replace("float sum", "while (rows > 0) {} float sum"),
            )
            good = await pool.evaluate(job(corpus.HONEST_CASE, "good"))
            broken = await pool.evaluate(
                job(corpus.Case(name="b", status=good.status, source="kernel void"), "broken")
            )
            hanging = asyncio.create_task(pool.evaluate(job(hang, "hang")))
            await asyncio.sleep(1.0)
            hanging.cancel()
            await asyncio.wait([hanging])
            after = await pool.evaluate(job(corpus.HONEST_CASES[0], "after"))
            await pool.close()
            return good, broken, after

        good, broken, after = run(scenario())
        children += executors(daemon)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(30) == 0
        left = [child for child in children if child.is_running()]
    assert (good.status, good.message) == (EvaluationStatus.OK, "")
    assert good.environment.worker == "box"
    assert broken.status is EvaluationStatus.COMPILE_ERROR
    assert broken.log
    assert after.status is EvaluationStatus.OK
    assert left == []


def test_real_daemon_killed_and_restarted_finishes_the_job(tmp_path: Path):
    serve = ["serve", "--port", str(free_port())]
    with daemons(tmp_path) as started:
        started.append(Daemon(tmp_path, *serve, module="workers.cli"))
        address = started[0].address()
        children = executors(started[0])

        async def scenario():
            pool = WorkerPool([address])
            await pool.start(corpus.bundle())
            evaluation = asyncio.create_task(pool.evaluate(job(corpus.HONEST_CASE, "j")))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(started[0].kill)
            started.append(Daemon(tmp_path, *serve, module="workers.cli"))
            result = await evaluation
            await pool.close()
            return result

        result = run(scenario())
        left = [child for child in children if child.is_running()]
    assert (result.job_id, result.status) == ("j", EvaluationStatus.OK)
    assert left == []

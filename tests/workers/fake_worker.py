"""A worker whose device is make-believe: what a candidate does is written in its template's name.

    sleep:SECONDS   works that long, then OK; gives way to a cancel
    hang            works until it is cancelled
    deaf            works for ever and ignores cancels
    die             takes the whole daemon down (only in a subprocess)
    raise           an exception escapes the service
    infra           INFRA_ERROR
    infra-once      INFRA_ERROR the first time, then OK
    log:CHARACTERS  a compile error with a log of that length

Run as a program (`python -m tests.workers.fake_worker`), it is a daemon for tests that kill it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from evo.errors import TaskError
from evo.evaluation import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Timing,
    WorkloadTiming,
)
from evo.job import DeviceInfo, EvaluationRequest, Launch, Program, TaskBundle, WorkloadProgram
from workers.security import ServerSecurity
from workers.server import ServerSettings, WorkerServer, run_daemon

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0

BUNDLE = TaskBundle(name="toy", task_hash="toyhash", files={"task.yaml": "name: toy\n"})


def program(template: str) -> Program:
    launch = Launch(entry="k", args=("x",), grid=(1, 1, 1), block=(1, 1, 1))
    on = WorkloadProgram(workload="w", source=f"// {template}", launches=(launch,))
    return Program(backend="fake", template=template, workloads=(on,))


def request(behaviour: str, job_id: str | None = None, **fields: Any) -> EvaluationRequest:
    return EvaluationRequest(
        job_id=job_id or f"job-{behaviour}",
        task_hash=BUNDLE.task_hash,
        candidate=program(behaviour),
        baseline=program("baseline"),
        **fields,
    )


class FakeService:
    """Implements `workers.jobs.Service`."""

    def __init__(self, *, name: str = "fake", device_name: str = "FakeDevice") -> None:
        self.name = name
        self.device_name = device_name
        self.started: list[str] = []
        self.tasks: dict[str, TaskBundle] = {}
        self.cancelled: list[str] = []
        self.closed = False
        self.most_at_once = 0
        self._at_once = 0
        self._cancels: dict[str, threading.Event] = {}
        self._released = threading.Event()

    def start(self) -> DeviceInfo:
        return DeviceInfo(backend="fake", name=self.device_name, kind="cpu", driver="1.0")

    def put_task(self, bundle: TaskBundle) -> None:
        if bundle.name == "bad":
            raise TaskError("task bad: its own check accepts a constant")
        self.tasks[bundle.task_hash] = bundle

    def has_task(self, task_hash: str) -> bool:
        return task_hash in self.tasks

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        if job_id in self._cancels:
            self._cancels[job_id].set()

    def close(self) -> None:
        self.closed = True
        self._released.set()
        for event in list(self._cancels.values()):
            event.set()

    def evaluate(
        self, request: EvaluationRequest, on_stage: Callable[[str], None] | None = None
    ) -> Evaluation:
        self.started.append(request.job_id)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self._cancels[request.job_id] = threading.Event()
        try:
            return self._evaluate(request, on_stage or (lambda stage: None))
        finally:
            self._at_once -= 1
            del self._cancels[request.job_id]

    def _evaluate(self, request: EvaluationRequest, on_stage: Callable[[str], None]) -> Evaluation:
        behaviour, _, argument = request.candidate.template.partition(":")
        on_stage("validate")
        on_stage("compile")
        cancelled = self._cancels[request.job_id]
        if behaviour == "sleep":
            if cancelled.wait(float(argument)):
                return self._spoiled(request, "cancelled")
        elif behaviour == "hang":
            cancelled.wait()
            return self._spoiled(request, "cancelled")
        elif behaviour == "deaf":
            self._released.wait()
            return self._spoiled(request, "released")
        elif behaviour == "die":
            time.sleep(0.1)  # The stage travels first: a strike needs a job seen running.
            os.kill(os.getpid(), signal.SIGKILL)
        elif behaviour == "raise":
            raise ValueError("a bug in the service")
        elif behaviour == "infra" or (behaviour == "infra-once" and len(self.started) == 1):
            return self._spoiled(request, "the driver is upset")
        elif behaviour == "log":
            return Evaluation(
                job_id=request.job_id,
                status=EvaluationStatus.COMPILE_ERROR,
                log="x" * int(argument),
                measured=False,
            )
        on_stage("check")
        on_stage("time")
        timing = Timing(
            log_speedups=(0.5, 0.6),
            workloads=(WorkloadTiming(workload="w", latency_us=1.0, baseline_us=2.0),),
        )
        return Evaluation(
            job_id=request.job_id,
            status=EvaluationStatus.OK,
            correctness=Correctness(passed=True, checks=1),
            timing=timing,
            environment=Environment(worker=self.name),
            stage="done",
        )

    def _spoiled(self, request: EvaluationRequest, message: str) -> Evaluation:
        return Evaluation(
            job_id=request.job_id,
            status=EvaluationStatus.INFRA_ERROR,
            message=message,
            measured=False,
        )


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a test's coroutine, never for longer than `TIMEOUT_S`."""

    async def limited() -> T:
        async with asyncio.timeout(TIMEOUT_S):
            return await work

    return asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    """Waits until something has become true (the test's time limit applies)."""
    while not condition():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    *services: FakeService, security: ServerSecurity | None = None, **settings: Any
) -> AsyncIterator[tuple[WorkerServer, str]]:
    """A server in this process, on a free loopback port unless told otherwise."""
    settings = {"port": 0, "heartbeat_s": 0.2, "orphan_grace_s": 5.0} | settings
    server = WorkerServer(
        services or (FakeService(),), settings=ServerSettings(**settings), security=security
    )
    address = await server.start()
    try:
        yield server, address
    finally:
        await server.stop()


class Daemon:
    """A daemon in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, module: str = "tests.workers.fake_worker"):
        self.address_file = folder / f"address-{time.monotonic_ns()}"
        command = [sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(
            [*command, "--address-file", str(self.address_file)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def address(self) -> str:
        """Waits until it serves."""
        while True:
            if self.address_file.exists():
                return self.address_file.read_text().strip()
            if self.process.poll() is not None:
                raise AssertionError(f"daemon ended: {self.process.communicate()}")
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def daemons(folder: Path, *argument_lists: Sequence[str]) -> Iterator[list[Daemon]]:
    """Starts daemons side by side and leaves none behind."""
    running = [Daemon(folder, *arguments) for arguments in argument_lists]
    try:
        yield running
    finally:
        for daemon in running:
            daemon.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--address-file")
    parser.add_argument("--name", default="fake")
    parser.add_argument("--device-name", default="FakeDevice")
    parser.add_argument("--drain-grace", type=float, default=10.0)
    arguments = parser.parse_args()

    async def serve() -> None:
        service = FakeService(name=arguments.name, device_name=arguments.device_name)
        settings = ServerSettings(
            port=arguments.port, heartbeat_s=0.2, drain_grace_s=arguments.drain_grace
        )
        await run_daemon(
            WorkerServer([service], settings=settings), address_file=arguments.address_file
        )

    asyncio.run(serve())


if __name__ == "__main__":
    main()

"""Following one job's events to its result, and the ways in which that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from evo.errors import ProtocolError, WorkerLost
from evo.evaluation import Evaluation
from evo.job import EvaluationRequest, Purpose
from workers import convert
from workers.proto.v1 import worker_pb2 as pb


class JobLost(WorkerLost):
    """A worker died or restarted while it held a job.

    Attributes:
        stage: The last stage seen; "queued" if the job had not begun.
    """

    def __init__(self, message: str, stage: str) -> None:
        super().__init__(message)
        self.stage = stage


class DeadlineExceeded(JobLost):
    """A worker still answers, but ran a job for longer than all its own limits together."""


class Silence(Exception):
    """No event within the heartbeat time-out."""


def run_limit_s(request: EvaluationRequest, slack_s: float) -> float:
    """Returns how long a job may run, from its own limits, seconds.

    A backstop: the worker ends a slow compilation or run itself, so only a worker that hangs gets
    here. Every distinct source may compile to its limit; a candidate is given up at its first
    slow run, but a slow baseline or fresh process may come on top.
    """
    arms = [request.candidate, request.baseline]
    if request.incumbent is not None:
        arms.append(request.incumbent)
    sources = {(program.source, program.build_options) for arm in arms for program in arm.workloads}
    settings = request.settings
    processes = settings.processes if request.purpose is Purpose.CONFIRM else 1
    workloads = max((len(arm.workloads) for arm in arms), default=1)
    runs = 4 + workloads * len(arms) * processes
    return slack_s + len(sources) * settings.compile_timeout_s + runs * settings.run_timeout_s


class Follower:
    """Reads one job's events, over as many streams as it takes."""

    def __init__(
        self,
        job_id: str,
        *,
        limit_s: float,
        silence_s: float,
        on_stage: Callable[[str], None] | None,
    ) -> None:
        self._job_id = job_id
        self.limit_s = limit_s
        self._silence_s = silence_s
        self._on_stage = on_stage
        self._running_since: float | None = None
        self.stage = "queued"
        self.events = 0

    def restart(self) -> None:
        """The job begins anew."""
        self._running_since = None
        self.stage = "queued"

    async def follow(self, stream: Any) -> Evaluation:
        """Reads until the result.

        Raises:
            Silence: If no event comes for too long.
            DeadlineExceeded: If the job runs for too long.
            AioRpcError: As the stream ends.
        """
        loop = asyncio.get_running_loop()
        while True:
            timeout_s = self._silence_s
            if self._running_since is not None:
                timeout_s = min(timeout_s, self._running_since + self.limit_s - loop.time())
            try:
                async with asyncio.timeout(max(0.0, timeout_s)):
                    response = await stream.read()
            except TimeoutError:
                stream.cancel()
                if self._overdue(loop.time()):
                    raise self._deadline() from None
                raise Silence from None
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise self._deadline() from None
                raise
            if response is grpc.aio.EOF:
                raise ProtocolError(f"the stream of job {self._job_id} ended without a result")
            event: pb.EvaluateEvent = response.event
            self.events += 1
            self._note(event, loop.time())
            if event.stage == pb.STAGE_DONE:
                return convert.evaluation_from(event)
            if self._overdue(loop.time()):
                stream.cancel()
                raise self._deadline()

    def _note(self, event: pb.EvaluateEvent, now: float) -> None:
        name = convert.stage_name(event.stage)
        if event.stage != pb.STAGE_QUEUED and self._running_since is None:
            self._running_since = now - event.running_s
        if name and name != self.stage:
            self.stage = name
            if self._on_stage is not None:
                self._on_stage(name)

    def _overdue(self, now: float) -> bool:
        return self._running_since is not None and now - self._running_since >= self.limit_s

    def _deadline(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"job {self._job_id} ran past its deadline of {self.limit_s:.0f} s "
            f"(last stage: {self.stage})",
            self.stage,
        )

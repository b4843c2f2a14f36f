"""The daemon's jobs: one queue, one thread per device, results remembered for a while.

Everything here runs on the event loop; only a device's blocking calls leave it, each device in a
thread of its own. A job outlives its streams: it ends when its device is done, when every client
that asked for it has given it up, or when nobody has watched it for the grace period.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from evo.errors import ConfigError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.job import DeviceInfo, EvaluationRequest, TaskBundle
from workers.convert import Reason, require_same_device
from workers.signals import Signal

log = logging.getLogger(__name__)

_KILL_AGAIN_S = 0.5
_LAST_WAIT_S = 10.0


class Service(Protocol):
    """What the daemon needs of `workers.service.EvaluationService`; calls block."""

    def start(self) -> DeviceInfo:
        """Opens the device."""
        ...

    def put_task(self, bundle: TaskBundle) -> None:
        """Makes a task known; raises TaskError if it is refused."""
        ...

    def has_task(self, task_hash: str) -> bool:
        """Tells whether a task is known; quick, from any thread."""
        ...

    def evaluate(
        self, request: EvaluationRequest, on_stage: Callable[[str], None] | None = None
    ) -> Evaluation:
        """Evaluates one request."""
        ...

    def cancel(self, job_id: str) -> None:
        """Makes a running `evaluate` return soon; from another thread."""
        ...

    def close(self) -> None:
        """Ends all child processes; idempotent."""
        ...


class Refused(Exception):
    """A call that the worker refuses for a reason the client can act on."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Job:
    """One evaluation, from submission until its result is forgotten."""

    def __init__(self, request: EvaluationRequest) -> None:
        self.id = request.job_id
        self.digest = request.digest
        self.request: EvaluationRequest | None = request
        self.stage = "queued"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.result: Evaluation | None = None
        self.refusal: Refused | None = None
        self.clients: set[str] = set()
        self.watchers = 0
        self.orphan_timer: asyncio.TimerHandle | None = None
        self.kill_task: asyncio.Task[None] | None = None
        self.device_done = asyncio.Event()
        self.changed = Signal()

    @property
    def ended(self) -> bool:
        """The job has its result or its refusal."""
        return self.ended_at is not None

    @property
    def running_s(self) -> float:
        """Seconds since it left the queue."""
        if self.started_at is None:
            return 0.0
        return (self.ended_at or time.monotonic()) - self.started_at

    def set_stage(self, stage: str) -> None:
        """Notes a stage the service reports."""
        # "done" belongs to the event that carries the result.
        if not self.ended and stage not in (self.stage, "done"):
            self.stage = stage
            self.changed.set()

    def end(self, *, result: Evaluation | None = None, refusal: Refused | None = None) -> None:
        """Gives the job its outcome."""
        if self.ended:
            return
        self.result, self.refusal = result, refusal
        self.stage = "done"
        self.ended_at = time.monotonic()
        self.request = None  # Sources are the bulk of a job; the result does not need them.
        if self.orphan_timer is not None:
            self.orphan_timer.cancel()
            self.orphan_timer = None
        self.changed.set()


class _Slot:
    """One device: its service and the only thread that makes blocking calls to it."""

    def __init__(self, service: Service, index: int) -> None:
        self.service = service
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"device-{index}")
        self.job: Job | None = None


class JobTable:
    """Runs jobs on devices, in order of arrival, and remembers their results.

    Args:
        services: One per device; all devices must be alike.
        orphan_grace_s: How long a job goes on while nobody watches it.
        remember: Results kept at most.
        remember_s: How long a result is kept.
        max_queued: Jobs waiting at most; more are refused.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        orphan_grace_s: float = 60.0,
        remember: int = 1024,
        remember_s: float = 900.0,
        max_queued: int = 1024,
    ) -> None:
        if not services:
            raise ConfigError("a worker needs at least one device")
        self._slots = [_Slot(service, index) for index, service in enumerate(services)]
        self._orphan_grace_s = orphan_grace_s
        self._remember = remember
        self._remember_s = remember_s
        self._max_queued = max_queued
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._queue: deque[Job] = deque()
        self._changed = Signal()
        self._runners: list[asyncio.Task[None]] = []
        self._helpers: set[asyncio.Task[None]] = set()
        self._closed = False
        self.draining = False

    @property
    def slots(self) -> int:
        """Number of devices."""
        return len(self._slots)

    @property
    def running(self) -> int:
        """Devices at work."""
        return sum(slot.job is not None for slot in self._slots)

    @property
    def queued(self) -> int:
        """Jobs waiting."""
        return len(self._queue)

    async def start(self) -> DeviceInfo:
        """Opens all devices and starts taking jobs.

        Raises:
            ConfigError: If the devices differ.
            EvoError: Whatever a service raises.
        """
        loop = asyncio.get_running_loop()
        starts = [loop.run_in_executor(slot.thread, slot.service.start) for slot in self._slots]
        devices = await asyncio.gather(*starts)
        named = [(f"device {index}", device) for index, device in enumerate(devices)]
        if differing := require_same_device(named):
            raise ConfigError(
                f"one worker serves devices of one kind; {differing[0]}, but {differing[1]}"
            )
        self._runners = [asyncio.create_task(self._serve(slot)) for slot in self._slots]
        return devices[0]

    def has_task(self, task_hash: str) -> bool:
        """Tells whether every device knows a task."""
        return all(slot.service.has_task(task_hash) for slot in self._slots)

    async def put_task(self, bundle: TaskBundle) -> bool:
        """Makes a task known to every device; returns whether it was known already.

        Raises:
            TaskError: If the task is refused.
        """
        if self.has_task(bundle.task_hash):
            return True
        loop = asyncio.get_running_loop()
        for slot in self._slots:
            # Through the device's thread: waits for its running job, and never races with it.
            if not slot.service.has_task(bundle.task_hash):
                await loop.run_in_executor(slot.thread, slot.service.put_task, bundle)
        return False

    def submit(self, request: EvaluationRequest) -> Job:
        """Starts a job, joins the one of that id, or returns the finished one.

        Raises:
            Refused: If the worker drains, the queue is full, or the id is taken.
        """
        self._forget()
        known = self._jobs.get(request.job_id)
        if known is not None:
            same = known.digest == request.digest
            if not known.ended and not same:
                raise Refused(
                    Reason.CONFLICT, f"job {request.job_id} is running with other content"
                )
            # What infrastructure spoiled deserves another try, whoever asks again.
            spoiled = (
                known.result is not None and known.result.status is EvaluationStatus.INFRA_ERROR
            )
            if same and not spoiled:
                return known
        if self.draining:
            raise Refused(Reason.DRAINING, "this worker takes no new jobs")
        if len(self._queue) >= self._max_queued:
            raise Refused(Reason.QUEUE_FULL, f"{len(self._queue)} jobs are waiting here already")
        job = Job(request)
        self._jobs[job.id] = job
        self._jobs.move_to_end(job.id)
        self._queue.append(job)
        self._changed.set()
        return job

    def find(self, job_id: str) -> Job:
        """Returns a job by id; raises Refused if there is none."""
        self._forget()
        try:
            return self._jobs[job_id]
        except KeyError:
            raise Refused(Reason.UNKNOWN_JOB, f"no job {job_id} here") from None

    def position(self, job: Job) -> int:
        """Returns how many jobs wait before this one."""
        with suppress(ValueError):
            return self._queue.index(job)
        return 0

    async def watch(
        self, job: Job, client_id: str, heartbeat_s: float
    ) -> AsyncGenerator[None, None]:
        """Yields at once, at every change, at least every heartbeat, and after the end.

        Close the iterator (`contextlib.aclosing`): the job counts its watchers.
        """
        job.clients.add(client_id)
        job.watchers += 1
        if job.orphan_timer is not None:
            job.orphan_timer.cancel()
            job.orphan_timer = None
        try:
            while True:
                changed, ended = job.changed.next(), job.ended
                yield
                if ended:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), heartbeat_s)
        finally:
            job.watchers -= 1
            if job.watchers == 0 and not job.ended:
                loop = asyncio.get_running_loop()
                job.orphan_timer = loop.call_later(self._orphan_grace_s, self._orphaned, job)

    def release(self, job_id: str, client_id: str) -> tuple[bool, bool]:
        """Ends a client's interest in a job, everybody's if `client_id` is empty.

        Returns:
            (cancelled, kept): The job is being killed; others keep it alive.
        """
        job = self._jobs.get(job_id)
        if job is None or job.ended:
            return False, False
        job.clients.discard(client_id)
        if client_id and job.clients:
            return False, True
        self._give_up(job, Refused(Reason.CANCELLED, f"job {job_id} was cancelled"))
        return True, False

    def drain(self) -> None:
        """Takes no new jobs and hands back the queued ones; running ones go on."""
        self.draining = True
        for job in list(self._queue):
            self._give_up(job, Refused(Reason.DRAINING, "this worker is going away"))

    async def finish(self, grace_s: float) -> bool:
        """Drains, waits for running jobs, kills those that take longer.

        Returns:
            False if a device did not come back even then.
        """
        self.drain()
        if await self._idle(grace_s):
            return True
        for slot in self._slots:
            if slot.job is not None:
                log.warning("job %s outlived the grace period, killing it", slot.job.id)
                self._give_up(slot.job, Refused(Reason.CANCELLED, "the worker went away"))
        return await self._idle(_LAST_WAIT_S)

    async def close(self) -> bool:
        """Stops the runners and closes all devices; idempotent.

        Returns:
            False if a device did not close in time.
        """
        if self._closed:
            return True
        self._closed = True
        tasks = [*self._runners, *self._helpers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # In threads of their own that nobody joins: a device that hangs must not keep us here.
        closers = [
            threading.Thread(target=_close, args=(slot,), daemon=True) for slot in self._slots
        ]
        for closer in closers:
            closer.start()
        deadline = time.monotonic() + _LAST_WAIT_S
        while any(closer.is_alive() for closer in closers) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for slot in self._slots:
            slot.thread.shutdown(wait=False, cancel_futures=True)
        return not any(closer.is_alive() for closer in closers)

    def kill_children(self) -> None:
        """Ends all device work at once; may block on a device, so call it from a thread."""
        for slot in self._slots:
            _close(slot)

    async def _serve(self, slot: _Slot) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._queue:
                await self._changed.next().wait()
            job = self._queue.popleft()
            request = job.request
            if request is None:
                continue
            slot.job = job
            job.started_at = time.monotonic()
            result = await loop.run_in_executor(
                slot.thread, _evaluate, slot.service, job, request, loop
            )
            job.device_done.set()
            if job.kill_task is not None:
                # A cancel on its way must not hit the next job.
                await asyncio.wait([job.kill_task])
            job.end(result=result)
            slot.job = None
            self._changed.set()

    def _give_up(self, job: Job, refusal: Refused) -> None:
        """Ends a job without a result; kills it if a device works on it."""
        if self._jobs.get(job.id) is job:
            del self._jobs[job.id]
        with suppress(ValueError):
            self._queue.remove(job)
        slot = next((slot for slot in self._slots if slot.job is job), None)
        job.end(refusal=refusal)
        if slot is not None and job.kill_task is None:
            job.kill_task = self._spawn(self._kill(slot, job))

    async def _kill(self, slot: _Slot, job: Job) -> None:
        """Cancels until the device lets go: a first cancel may come before the work begins."""
        loop = asyncio.get_running_loop()
        while not job.device_done.is_set():
            try:
                await loop.run_in_executor(None, slot.service.cancel, job.id)
            except Exception:
                log.exception("cancelling job %s failed", job.id)
            with suppress(TimeoutError):
                await asyncio.wait_for(job.device_done.wait(), _KILL_AGAIN_S)

    def _orphaned(self, job: Job) -> None:
        job.orphan_timer = None
        if job.watchers == 0 and not job.ended:
            log.info("job %s has had no watcher for %g s, killing it", job.id, self._orphan_grace_s)
            self._give_up(job, Refused(Reason.CANCELLED, f"nobody waited for job {job.id}"))

    async def _idle(self, timeout_s: float) -> bool:
        async def wait() -> None:
            while self.running or self._queue:
                await self._changed.next().wait()

        try:
            await asyncio.wait_for(wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _forget(self) -> None:
        """Drops results that are too old or too many; unfinished jobs stay."""
        oldest = time.monotonic() - self._remember_s
        surplus = len(self._jobs) - self._remember
        for job in list(self._jobs.values()):
            if job.ended_at is None:
                continue
            if surplus > 0 or job.ended_at < oldest:
                del self._jobs[job.id]
                surplus -= 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task


def _close(slot: _Slot) -> None:
    try:
        slot.service.close()
    except Exception:
        log.exception("closing a device failed")


def _evaluate(
    service: Service, job: Job, request: EvaluationRequest, loop: asyncio.AbstractEventLoop
) -> Evaluation:
    """Runs in the device's thread; whatever escapes the service is infrastructure's fault."""

    def on_stage(stage: str) -> None:
        loop.call_soon_threadsafe(job.set_stage, stage)

    try:
        if not job.ended:
            return service.evaluate(request, on_stage)
        message = "given up before it began"
    except Exception as error:
        log.exception("job %s failed on the worker", request.job_id)
        message = f"worker failed: {type(error).__name__}: {error}"
    return Evaluation(
        job_id=request.job_id, status=EvaluationStatus.INFRA_ERROR, message=message, measured=False
    )

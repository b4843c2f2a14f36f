"""One worker as seen from a controller: connect, put a task, evaluate, come back after a loss."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from evo.errors import (
    ConfigError,
    EvoError,
    ProtocolError,
    TaskError,
    WorkerUnavailable,
)
from evo.evaluation import Evaluation
from evo.job import DeviceInfo, EvaluationRequest, TaskBundle
from workers import convert
from workers.convert import REASON_KEY, Reason
from workers.follow import DeadlineExceeded, Follower, JobLost, Silence, run_limit_s
from workers.proto.v1 import worker_pb2 as pb
from workers.proto.v1 import worker_pb2_grpc
from workers.security import ClientSecurity

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 2.0
_GIVE_UP_TIMEOUT_S = 3.0
# What a broken connection or a dying server looks like, depending on when it breaks.
_LOSS_CODES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Patience of a client, in seconds.

    Attributes:
        heartbeat_timeout_s: Silence on a stream after which the worker is taken for lost; at
            least three of the worker's own heartbeats.
        reattach_s: How long to try to come back to a job after a loss.
        queue_allowance_s: How long a job may wait for other controllers' jobs.
        slack_s: Added to a job's own limits before its deadline.
        put_task_timeout_s: A worker checks a task when it is put, after its running job.
    """

    connect_timeout_s: float = 5.0
    heartbeat_timeout_s: float = 20.0
    reattach_s: float = 10.0
    queue_allowance_s: float = 3600.0
    slack_s: float = 60.0
    put_task_timeout_s: float = 600.0
    max_message_bytes: int = convert.MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a worker says of itself."""

    worker_name: str
    worker_version: str
    host: str
    instance_id: str
    device: DeviceInfo
    slots: int
    draining: bool
    heartbeat_interval_s: float
    max_message_bytes: int


class WorkerClient:
    """A connection to one worker; use from one event loop.

    Args:
        address: "host:port".
        security: Token and TLS.
        settings: Patience.

    Raises:
        ConfigError: If the address is malformed or the token would travel in the clear.
    """

    def __init__(
        self,
        address: str,
        *,
        security: ClientSecurity | None = None,
        settings: ClientSettings | None = None,
    ) -> None:
        self.address = address
        self._security = security or ClientSecurity()
        self._settings = settings or ClientSettings()
        self._metadata = self._security.metadata()
        self._client_id = uuid.uuid4().hex
        self._heartbeat_timeout_s = self._settings.heartbeat_timeout_s
        self._message_limit = self._settings.max_message_bytes
        self._channel = self._security.channel(
            address, convert.client_options(self._settings.max_message_bytes)
        )
        self._stub: Any = worker_pb2_grpc.WorkerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def connect(self) -> Capabilities:
        """Asks who answers; again after a loss.

        Raises:
            WorkerUnavailable: If nobody does.
            ProtocolError: If it is no worker, or one of another protocol version.
            ConfigError: If it refuses the token.
        """
        try:
            answer: pb.GetCapabilitiesResponse = await self._stub.GetCapabilities(
                pb.GetCapabilitiesRequest(protocol_version=convert.PROTOCOL_VERSION),
                timeout=self._settings.connect_timeout_s,
                metadata=self._metadata,
            )
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        try:
            convert.check_protocol(answer.protocol_version)
            device = convert.device_from(answer)
        except ProtocolError as error:
            raise ProtocolError(f"worker {self.address}: {error}") from None
        ours = convert.distribution_version()
        if answer.worker_version != ours:
            log.warning(
                "worker %s runs kernel-elites %s, this is %s",
                self.address,
                answer.worker_version,
                ours,
            )
        self._heartbeat_timeout_s = max(
            self._settings.heartbeat_timeout_s, 3 * answer.heartbeat_interval_s
        )
        self._message_limit = min(self._settings.max_message_bytes, answer.max_message_bytes)
        return Capabilities(
            worker_name=answer.worker_name,
            worker_version=answer.worker_version,
            host=answer.host,
            instance_id=answer.instance_id,
            device=device,
            slots=max(1, answer.slots),
            draining=answer.draining,
            heartbeat_interval_s=answer.heartbeat_interval_s,
            max_message_bytes=answer.max_message_bytes,
        )

    async def put_task(self, bundle: TaskBundle) -> None:
        """Makes a task known to the worker.

        Raises:
            TaskError: If the worker refuses the task.
            WorkerError: If it cannot be asked.
        """
        message = convert.put_task_message(bundle)
        self._check_size(message.ByteSize(), f"task {bundle.name}")
        try:
            await self._stub.PutTask(
                message, timeout=self._settings.put_task_timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None

    async def evaluate(
        self,
        request: EvaluationRequest,
        *,
        bundle: TaskBundle | None = None,
        on_stage: Callable[[str], None] | None = None,
        resubmissions: int = 1,
    ) -> Evaluation:
        """Evaluates a request, coming back to it after lost connections.

        Args:
            request: What to evaluate.
            bundle: Put again if the worker restarted and forgot the task.
            on_stage: Told every new stage.
            resubmissions: How often a job that a restarted worker lost is sent again.

        Raises:
            WorkerUnavailable: If the worker does not take the job, or handed it back.
            JobLost: If the worker died or restarted while it held the job.
            DeadlineExceeded: If the worker ran the job for too long; it is cancelled there.
            ProtocolError: If the request does not fit the worker.
        """
        follower = Follower(
            request.job_id,
            limit_s=run_limit_s(request, self._settings.slack_s),
            silence_s=self._heartbeat_timeout_s,
            on_stage=on_stage,
        )
        message = convert.evaluate_message(request, self._client_id)
        self._check_size(message.ByteSize(), f"job {request.job_id}")
        try:
            return await self._evaluate(message, follower, bundle, resubmissions)
        except (asyncio.CancelledError, DeadlineExceeded):
            await self._give_up(request.job_id)
            raise

    async def cancel(self, job_id: str) -> bool:
        """Gives up a job; returns whether the worker is killing it (others may want it still)."""
        try:
            answer = await self._stub.CancelEvaluation(
                pb.CancelEvaluationRequest(job_id=job_id, client_id=self._client_id),
                timeout=_GIVE_UP_TIMEOUT_S,
                metadata=self._metadata,
            )
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        return bool(answer.cancelled)

    async def drain(self, grace_s: float = 0.0) -> None:
        """Asks the worker to finish what it runs and exit; 0 leaves the grace to it."""
        try:
            await self._stub.Drain(
                pb.DrainRequest(grace_s=grace_s),
                timeout=self._settings.connect_timeout_s,
                metadata=self._metadata,
            )
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None

    async def close(self) -> None:
        """Closes the connection; idempotent."""
        await self._channel.close()

    async def _evaluate(
        self,
        message: pb.EvaluateRequest,
        follower: Follower,
        bundle: TaskBundle | None,
        resubmissions: int,
    ) -> Evaluation:
        loop = asyncio.get_running_loop()
        job_id = message.job_id
        held = False  # The worker has sent an event: it holds the job.
        put_again = bundle is not None
        lost_at: float | None = None
        backoff_s = _FIRST_BACKOFF_S
        while True:
            events = follower.events
            try:
                return await follower.follow(self._open(message, held, follower.limit_s))
            except Silence:
                why = "is silent"
            except grpc.aio.AioRpcError as error:
                reason = _reason(error)
                if reason is Reason.UNKNOWN_TASK and bundle is not None and put_again:
                    put_again = False
                    await self.put_task(bundle)
                    continue
                if reason is Reason.UNKNOWN_JOB and held:
                    if resubmissions <= 0:
                        raise JobLost(
                            f"worker {self.address} restarted and lost job {job_id}",
                            follower.stage,
                        ) from None
                    resubmissions -= 1
                    held, put_again = False, bundle is not None
                    follower.restart()
                    continue
                if reason is not None or error.code() not in _LOSS_CODES:
                    raise self._translated(error) from None
                why = "does not answer any more"
            if follower.events > events:
                held, lost_at, backoff_s = True, None, _FIRST_BACKOFF_S
            if not follower.events:
                raise WorkerUnavailable(f"worker {self.address} did not take job {job_id}")
            lost_at = loop.time() if lost_at is None else lost_at
            if loop.time() - lost_at > self._settings.reattach_s:
                raise JobLost(f"worker {self.address} {why}; it held job {job_id}", follower.stage)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def _open(self, message: pb.EvaluateRequest, held: bool, limit_s: float) -> Any:
        # The follower watches the limit event by event, because it starts with the run; this is
        # the outer bound that no stream may pass.
        timeout_s = self._settings.queue_allowance_s + limit_s
        if not held:
            return self._stub.Evaluate(message, timeout=timeout_s, metadata=self._metadata)
        wait = pb.WaitEvaluationRequest(
            protocol_version=convert.PROTOCOL_VERSION,
            job_id=message.job_id,
            client_id=self._client_id,
        )
        return self._stub.WaitEvaluation(wait, timeout=timeout_s, metadata=self._metadata)

    async def _give_up(self, job_id: str) -> None:
        """Cancels on the worker, whatever happens to the task that asks."""
        cancelling = asyncio.ensure_future(self.cancel(job_id))
        cancelling.add_done_callback(lambda done: done.cancelled() or done.exception())
        with suppress(Exception):  # Best effort; the worker reaps what nobody watches.
            await asyncio.shield(cancelling)

    def _check_size(self, size_bytes: int, what: str) -> None:
        # gRPC's own refusal comes late and says RESOURCE_EXHAUSTED, as a full queue does.
        if size_bytes > self._message_limit:
            raise ProtocolError(
                f"{what} is {size_bytes} bytes; worker {self.address} takes messages up to "
                f"{self._message_limit}"
            )

    def _translated(self, error: grpc.aio.AioRpcError) -> EvoError:
        """Returns the error of ours that a gRPC status means."""
        code, reason = error.code(), _reason(error)
        detail = " ".join((error.details() or code.name).split())
        where = f"worker {self.address}"
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return ConfigError(
                f"{where} refuses the token: give the one it was started with "
                "(token_file or KELITES_WORKER_TOKEN)"
            )
        if reason is Reason.TASK_REFUSED:
            return TaskError(f"{where} refuses the task: {detail}")
        if reason in (Reason.DRAINING, Reason.QUEUE_FULL, Reason.CANCELLED):
            return WorkerUnavailable(f"{where}: {detail}")
        if reason is not None:
            return ProtocolError(f"{where}: {detail}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ProtocolError(f"what answers at {self.address} is not a kelites-worker")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED or code in _LOSS_CODES:
            hint = f" (TLS: {detail})" if "handshake" in detail.lower() else ""
            return WorkerUnavailable(
                f"no worker answers at {self.address} "
                f"(is `kelites-worker serve` running there?){hint}"
            )
        return ProtocolError(f"{where}: {code.name}: {detail}")


def _reason(error: grpc.aio.AioRpcError) -> Reason | None:
    """Returns why the worker itself refused; None if the status comes from the transport."""
    for key, value in error.trailing_metadata() or ():
        if key == REASON_KEY:
            with suppress(ValueError):
                return Reason(value)
    return None

"""The daemon: the gRPC service over a table of jobs, with health, draining and signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from evo.errors import ConfigError, EvoError, ProtocolError
from evo.evaluation import EVALUATION_SCHEMA
from evo.job import DeviceInfo
from evo.serial import to_json
from workers import convert
from workers.convert import REASON_KEY, Reason
from workers.jobs import Job, JobTable, Refused, Service
from workers.proto.v1 import worker_pb2 as pb
from workers.proto.v1 import worker_pb2_grpc
from workers.security import ServerSecurity, join_address

log = logging.getLogger(__name__)

_STREAM_GRACE_S = 2.0
_EXIT_WAIT_S = 2.0
_MAX_DETAIL = 2000

R = TypeVar("R")

_CODES = {
    Reason.PROTOCOL: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNKNOWN_TASK: grpc.StatusCode.NOT_FOUND,
    Reason.UNKNOWN_JOB: grpc.StatusCode.NOT_FOUND,
    Reason.TASK_REFUSED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.CANCELLED: grpc.StatusCode.ABORTED,
    Reason.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    Reason.TOKEN: grpc.StatusCode.UNAUTHENTICATED,
}


def host_name() -> str:
    """Returns this machine's name, the default name of its worker."""
    return socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a daemon listens and behaves.

    Attributes:
        port: 0 takes a free one.
        insecure_bind: Allows another host than loopback without TLS and token.
        reflection: Offers gRPC reflection, for grpcurl.
        heartbeat_s: Longest silence on a stream.
        drain_grace_s: How long running jobs may take after SIGTERM, SIGINT or Drain.
        orphan_grace_s: How long a job goes on while nobody watches it.
        remember: Results kept for those who ask again.
        remember_s: How long.
    """

    host: str = "127.0.0.1"
    port: int = convert.DEFAULT_PORT
    insecure_bind: bool = False
    reflection: bool = False
    worker_name: str = field(default_factory=host_name)
    heartbeat_s: float = 5.0
    drain_grace_s: float = 120.0
    orphan_grace_s: float = 60.0
    remember: int = 1024
    remember_s: float = 900.0
    max_message_bytes: int = convert.MAX_MESSAGE_BYTES


class WorkerServer:
    """A worker on the network; use from one event loop.

    Args:
        services: One per device, not started yet.
        settings: How to listen.
        security: What to ask of callers.

    Raises:
        ConfigError: If the bind is refused.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        settings: ServerSettings | None = None,
        security: ServerSecurity | None = None,
    ) -> None:
        self._settings = settings or ServerSettings()
        self._security = security or ServerSecurity()
        self._security.check_bind(self._settings.host, insecure_bind=self._settings.insecure_bind)
        self.jobs = JobTable(
            services,
            orphan_grace_s=self._settings.orphan_grace_s,
            remember=self._settings.remember,
            remember_s=self._settings.remember_s,
        )
        self.stopped = asyncio.Event()
        self.clean = True
        """False once a device's thread could not be ended."""
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._device: DeviceInfo | None = None

    @property
    def device(self) -> DeviceInfo:
        """The device served; known after `start`."""
        if self._device is None:
            raise RuntimeError("the server has not started")
        return self._device

    async def start(self) -> str:
        """Takes the port, opens the devices, serves.

        Returns:
            The address bound, "host:port".

        Raises:
            ConfigError: If the port is in use, the host is not ours or the TLS files are no good.
            EvoError: Whatever opening a device raises.
        """
        server = grpc.aio.server(
            interceptors=self._security.interceptors(),
            options=convert.server_options(self._settings.max_message_bytes),
        )
        # The port first: opening a device takes seconds, finding the port taken does not.
        port = self._bind(server)
        try:
            self._device = await self.jobs.start()
            servicer = _Servicer(self, self._settings, self._device)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(  # type: ignore[no-untyped-call]
                servicer, server
            )
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            if self._settings.reflection:
                names = (convert.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
                reflection.enable_server_reflection(names, server)
            await self._health.set(convert.SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
            await server.start()
        except BaseException:
            await self.jobs.close()
            await server.stop(None)
            raise
        self._server = server
        return join_address(self._settings.host, port)

    @property
    def stopping(self) -> bool:
        """It drains, or has stopped."""
        return self._stopping is not None

    def begin_drain(self, grace_s: float | None = None) -> None:
        """Starts to drain and stop; `stopped` is set at the end. Idempotent."""
        if self._stopping is None:
            grace = self._settings.drain_grace_s if grace_s is None else grace_s
            self._stopping = asyncio.create_task(self._drain(grace))

    async def stop(self, grace_s: float = 0.0) -> None:
        """Drains with a grace for running jobs, then stops; idempotent."""
        self.begin_drain(grace_s)
        await self.stopped.wait()

    async def _drain(self, grace_s: float) -> None:
        try:
            await self._health.enter_graceful_shutdown()
            self.clean = await self.jobs.finish(grace_s)
            if self._server is not None:
                # Streams end by themselves now; the grace lets them deliver their last event.
                await self._server.stop(_STREAM_GRACE_S)
            self.clean = await self.jobs.close() and self.clean
        finally:
            self.stopped.set()

    def _bind(self, server: grpc.aio.Server) -> int:
        address = join_address(self._settings.host, self._settings.port)
        try:
            # Made here, so that an unreadable PEM is told apart from a taken port.
            credentials = self._security.credentials()
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            reason = _why_not_bound(self._settings.host, self._settings.port)
            raise ConfigError(f"cannot listen on {address}: {reason}")
        return int(port)


def _why_not_bound(host: str, port: int) -> str:
    """Asks the operating system, whose reason gRPC keeps to itself."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "the certificate or key cannot be used"


class _Servicer(worker_pb2_grpc.WorkerServiceServicer):
    """The calls of worker.proto; see there for what each means."""

    def __init__(self, server: WorkerServer, settings: ServerSettings, device: DeviceInfo) -> None:
        self._server = server
        self._jobs = server.jobs
        self._settings = settings
        self._device = device
        self._instance_id = uuid.uuid4().hex

    async def GetCapabilities(
        self, message: pb.GetCapabilitiesRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetCapabilitiesResponse:
        return pb.GetCapabilitiesResponse(
            protocol_version=convert.PROTOCOL_VERSION,
            worker_version=convert.distribution_version(),
            worker_name=self._settings.worker_name,
            host=host_name(),
            instance_id=self._instance_id,
            backend=self._device.backend,
            device_name=self._device.name,
            device_kind=self._device.kind,
            device_driver=self._device.driver,
            device_schema=convert.DEVICE_SCHEMA,
            device_json=to_json(self._device),
            slots=self._jobs.slots,
            running=self._jobs.running,
            queued=self._jobs.queued,
            draining=self._jobs.draining,
            heartbeat_interval_s=self._settings.heartbeat_s,
            max_message_bytes=self._settings.max_message_bytes,
        )

    async def PutTask(
        self, message: pb.PutTaskRequest, context: grpc.aio.ServicerContext
    ) -> pb.PutTaskResponse:
        bundle = await _decoded(context, message, convert.bundle_from)
        try:
            known = await self._jobs.put_task(bundle)
        except EvoError as error:
            await _abort(context, Refused(Reason.TASK_REFUSED, str(error)))
        return pb.PutTaskResponse(known=known)

    async def Evaluate(
        self, message: pb.EvaluateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.EvaluateResponse, None]:
        request = await _decoded(context, message, convert.request_from)
        try:
            if not self._jobs.has_task(request.task_hash):
                raise Refused(Reason.UNKNOWN_TASK, f"task {request.task_hash} was not put here")
            job = self._jobs.submit(request)
        except Refused as refusal:
            await _abort(context, refusal)
        try:
            async with aclosing(self._events(job, message.client_id, context)) as events:
                async for event in events:
                    yield pb.EvaluateResponse(event=event)
        except asyncio.CancelledError:
            left = context.time_remaining()
            if left is not None and left <= 0.0:
                # The client's own deadline, not a lost connection: it won't come back for it.
                self._jobs.release(job.id, message.client_id)
            raise

    async def WaitEvaluation(
        self, message: pb.WaitEvaluationRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.WaitEvaluationResponse, None]:
        await _checked_protocol(context, message.protocol_version)
        try:
            job = self._jobs.find(message.job_id)
        except Refused as refusal:
            await _abort(context, refusal)
        async with aclosing(self._events(job, message.client_id, context)) as events:
            async for event in events:
                yield pb.WaitEvaluationResponse(event=event)

    async def CancelEvaluation(
        self, message: pb.CancelEvaluationRequest, context: grpc.aio.ServicerContext
    ) -> pb.CancelEvaluationResponse:
        cancelled, kept = self._jobs.release(message.job_id, message.client_id)
        return pb.CancelEvaluationResponse(cancelled=cancelled, kept=kept)

    async def Drain(
        self, message: pb.DrainRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrainResponse:
        answer = pb.DrainResponse(running=self._jobs.running, queued=self._jobs.queued)
        log.info("asked to drain")
        self._server.begin_drain(message.grace_s or None)
        return answer

    async def _events(
        self, job: Job, client_id: str, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.EvaluateEvent, None]:
        changes = self._jobs.watch(job, client_id, self._settings.heartbeat_s)
        async with aclosing(changes):
            async for _ in changes:
                if job.refusal is not None:
                    await _abort(context, job.refusal)
                event = pb.EvaluateEvent(
                    job_id=job.id,
                    stage=convert.STAGES.get(job.stage, pb.STAGE_UNSPECIFIED),
                    queue_position=self._jobs.position(job),
                    running_s=job.running_s,
                )
                if job.result is not None:
                    event.evaluation_schema = EVALUATION_SCHEMA
                    event.evaluation_json = convert.evaluation_json(
                        job.result, self._settings.max_message_bytes
                    )
                yield event


async def _abort(context: grpc.aio.ServicerContext, refusal: Refused) -> NoReturn:
    """Ends a call with the status code of a refusal; raises, never returns."""
    await context.abort(
        _CODES[refusal.reason],
        str(refusal)[:_MAX_DETAIL],
        ((REASON_KEY, refusal.reason.value),),
    )
    raise AssertionError("abort returned")


async def _checked_protocol(context: grpc.aio.ServicerContext, version: int) -> None:
    try:
        convert.check_protocol(version)
    except ProtocolError as error:
        await _abort(context, Refused(Reason.PROTOCOL, str(error)))


async def _decoded(
    context: grpc.aio.ServicerContext, message: Any, decode: Callable[[Any], R]
) -> R:
    await _checked_protocol(context, message.protocol_version)
    try:
        return decode(message)
    except ProtocolError as error:
        await _abort(context, Refused(Reason.MALFORMED, str(error)))


async def run_daemon(
    server: WorkerServer,
    *,
    address_file: str | os.PathLike[str] | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or a Drain call; a second signal exits at once.

    Args:
        server: Not started yet.
        address_file: Holds "host:port" while the worker answers.
        announce: Told the one line that says where it serves; by default it is printed.

    Raises:
        EvoError: If the server cannot start.
    """
    file = None if address_file is None else Path(address_file)
    if file is not None:
        file.unlink(missing_ok=True)  # Whoever waits for it must not read a former address.
    address = await server.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, server, number)
    try:
        if file is not None:
            _write_address(file, address)
        device = server.device
        line = f"kelites-worker serving on {address} backend={device.backend} device={device.name}"
        if announce is not None:
            announce(line)
        else:
            print(line, flush=True)
        await server.stopped.wait()
    finally:
        await server.stop()
        if file is not None:
            file.unlink(missing_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _on_signal(server: WorkerServer, number: signal.Signals) -> None:
    if not server.stopping:
        log.info("%s: draining", number.name)
        server.begin_drain()
        return
    # Killing child processes may block on a device; never let it keep us from leaving.
    killer = threading.Thread(target=server.jobs.kill_children, daemon=True)
    killer.start()
    killer.join(_EXIT_WAIT_S)
    sys.stdout.flush()
    os._exit(128 + number)


def _write_address(path: Path, address: str) -> None:
    """Writes in one step: who waits for the file never reads half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(f"{address}\n")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write address file {path}: {error.strerror}") from None

"""Between records and messages: versions, limits, channel settings and envelope checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from importlib import metadata
from typing import Any

from evo.errors import ProtocolError
from evo.evaluation import EVALUATION_SCHEMA, Evaluation
from evo.job import JOB_SCHEMA, DeviceInfo, EvaluationRequest, TaskBundle
from evo.serial import from_json, to_json
from workers.proto.v1 import worker_pb2 as pb

PROTOCOL_VERSION = 1
SERVICE_NAME = "kelites.worker.v1.WorkerService"
BUNDLE_SCHEMA = "kelites-task-bundle-1"
DEVICE_SCHEMA = "kelites-device-1"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
DEFAULT_PORT = 50051
REASON_KEY = "kelites-reason"
"""Trailing metadata that makes a status code precise; its values are `Reason`."""

STAGES: dict[str, pb.Stage] = {
    "queued": pb.STAGE_QUEUED,
    "validate": pb.STAGE_VALIDATE,
    "compile": pb.STAGE_COMPILE,
    "check": pb.STAGE_CHECK,
    "time": pb.STAGE_TIME,
    "done": pb.STAGE_DONE,
}
_STAGE_NAMES: dict[int, str] = {int(number): name for name, number in STAGES.items()}


class Reason(str, Enum):
    """Why a worker refused a call, beyond the status code."""

    PROTOCOL = "protocol"
    """The client speaks another protocol version or record schema."""
    MALFORMED = "malformed"
    """A body does not fit its schema, or contradicts its envelope."""
    UNKNOWN_TASK = "unknown-task"
    UNKNOWN_JOB = "unknown-job"
    TASK_REFUSED = "task-refused"
    DRAINING = "draining"
    QUEUE_FULL = "queue-full"
    CANCELLED = "cancelled"
    """Somebody cancelled the job, or nobody waited for it any more."""
    CONFLICT = "conflict"
    """A running job of that id has other content."""
    TOKEN = "token"


def distribution_version() -> str:
    """Returns the version of the installed distribution, "0+unknown" in a bare tree."""
    try:
        return metadata.version("kernel-elites")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def stage_name(stage: int) -> str:
    """Returns the name of a stage on the wire; "" for one this version does not know."""
    return _STAGE_NAMES.get(stage, "")


def client_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, Any]]:
    """Returns channel options: limits, keepalive, quick reconnects, one retry layer (ours)."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # Idle streams through NAT and ssh tunnels must be noticed when they die. The server
        # below permits pings this frequent; gRPC's own default answers them with GOAWAY.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.enable_retries", 0),
        # Workers are dialled directly, or through ssh; never through a web proxy.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, Any]]:
    """Returns server options; without `so_reuseport=0` two daemons could share one port."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ]


def check_protocol(version: int) -> None:
    """Raises ProtocolError unless the other side speaks this protocol version."""
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol version {version} meets version {PROTOCOL_VERSION}: "
            "install the same kernel-elites on controller and worker"
        )


def _check_schema(found: str, wanted: str) -> None:
    if found != wanted:
        raise ProtocolError(
            f"schema {found or 'unnamed'!r} where {wanted!r} is spoken: "
            "install the same kernel-elites on controller and worker"
        )


def evaluate_message(request: EvaluationRequest, client_id: str) -> pb.EvaluateRequest:
    """Wraps a request in its envelope."""
    return pb.EvaluateRequest(
        protocol_version=PROTOCOL_VERSION,
        job_id=request.job_id,
        task_hash=request.task_hash,
        client_id=client_id,
        request_schema=request.schema,
        request_json=to_json(request),
    )


def request_from(message: pb.EvaluateRequest) -> EvaluationRequest:
    """Unwraps a request.

    Raises:
        ProtocolError: If it does not fit its schema or contradicts its envelope.
    """
    _check_schema(message.request_schema, JOB_SCHEMA)
    request = from_json(message.request_json, EvaluationRequest)
    if not request.job_id:
        raise ProtocolError("a request needs a job id")
    if (request.job_id, request.task_hash) != (message.job_id, message.task_hash):
        raise ProtocolError(f"envelope and body of job {message.job_id} disagree")
    return request


def put_task_message(bundle: TaskBundle) -> pb.PutTaskRequest:
    """Wraps a task bundle in its envelope."""
    return pb.PutTaskRequest(
        protocol_version=PROTOCOL_VERSION,
        task_hash=bundle.task_hash,
        bundle_schema=BUNDLE_SCHEMA,
        bundle_json=to_json(bundle),
    )


def bundle_from(message: pb.PutTaskRequest) -> TaskBundle:
    """Unwraps a task bundle.

    Raises:
        ProtocolError: If it does not fit its schema or contradicts its envelope.
    """
    _check_schema(message.bundle_schema, BUNDLE_SCHEMA)
    bundle = from_json(message.bundle_json, TaskBundle)
    if bundle.task_hash != message.task_hash:
        raise ProtocolError(f"envelope and body of task {message.task_hash} disagree")
    return bundle


def evaluation_json(evaluation: Evaluation, max_bytes: int) -> bytes:
    """Encodes an evaluation, dropping its log if it would not fit into a message."""
    body = to_json(evaluation)
    if len(body) > max_bytes - 4096:
        note = f"(log of {len(evaluation.log)} characters dropped: message limit)"
        body = to_json(dataclasses.replace(evaluation, log=note))
    return body


def evaluation_from(event: pb.EvaluateEvent) -> Evaluation:
    """Unwraps the result that a last event carries.

    Raises:
        ProtocolError: If it does not fit its schema or belongs to another job.
    """
    _check_schema(event.evaluation_schema, EVALUATION_SCHEMA)
    evaluation = from_json(event.evaluation_json, Evaluation)
    if evaluation.job_id != event.job_id:
        raise ProtocolError(f"result of job {evaluation.job_id} sent for {event.job_id}")
    return evaluation


def device_from(message: pb.GetCapabilitiesResponse) -> DeviceInfo:
    """Unwraps the device of a worker; raises ProtocolError if it does not fit its schema."""
    _check_schema(message.device_schema, DEVICE_SCHEMA)
    return from_json(message.device_json, DeviceInfo)


def device_label(device: DeviceInfo) -> str:
    """Returns what decides whether two devices' timings may be mixed, in words."""
    driver = f", driver {device.driver}" if device.driver else ""
    return f"{device.backend} {device.name} ({device.compute_units} units{driver})"


def require_same_device(devices: Sequence[tuple[str, DeviceInfo]]) -> tuple[str, str] | None:
    """Compares (place, device) pairs.

    Returns:
        The first two places whose devices differ, as "place: device" texts; None if all agree.
    """
    if not devices:
        return None
    first_place, first = devices[0]
    for place, device in devices[1:]:
        if device_label(device) != device_label(first):
            return f"{first_place}: {device_label(first)}", f"{place}: {device_label(device)}"
    return None

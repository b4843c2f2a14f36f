from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_QUEUED: _ClassVar[Stage]
    STAGE_VALIDATE: _ClassVar[Stage]
    STAGE_COMPILE: _ClassVar[Stage]
    STAGE_CHECK: _ClassVar[Stage]
    STAGE_TIME: _ClassVar[Stage]
    STAGE_DONE: _ClassVar[Stage]
STAGE_UNSPECIFIED: Stage
STAGE_QUEUED: Stage
STAGE_VALIDATE: Stage
STAGE_COMPILE: Stage
STAGE_CHECK: Stage
STAGE_TIME: Stage
STAGE_DONE: Stage

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("protocol_version", "worker_version", "worker_name", "host", "instance_id", "backend", "device_name", "device_kind", "device_driver", "device_schema", "device_json", "slots", "running", "queued", "draining", "heartbeat_interval_s", "max_message_bytes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_DRIVER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DEVICE_JSON_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker_version: str
    worker_name: str
    host: str
    instance_id: str
    backend: str
    device_name: str
    device_kind: str
    device_driver: str
    device_schema: str
    device_json: bytes
    slots: int
    running: int
    queued: int
    draining: bool
    heartbeat_interval_s: float
    max_message_bytes: int
    def __init__(self, protocol_version: _Optional[int] = ..., worker_version: _Optional[str] = ..., worker_name: _Optional[str] = ..., host: _Optional[str] = ..., instance_id: _Optional[str] = ..., backend: _Optional[str] = ..., device_name: _Optional[str] = ..., device_kind: _Optional[str] = ..., device_driver: _Optional[str] = ..., device_schema: _Optional[str] = ..., device_json: _Optional[bytes] = ..., slots: _Optional[int] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., draining: bool = ..., heartbeat_interval_s: _Optional[float] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class PutTaskRequest(_message.Message):
    __slots__ = ("protocol_version", "task_hash", "bundle_schema", "bundle_json")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_HASH_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_JSON_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    task_hash: str
    bundle_schema: str
    bundle_json: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., task_hash: _Optional[str] = ..., bundle_schema: _Optional[str] = ..., bundle_json: _Optional[bytes] = ...) -> None: ...

class PutTaskResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("protocol_version", "job_id", "task_hash", "client_id", "request_schema", "request_json")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_HASH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    job_id: str
    task_hash: str
    client_id: str
    request_schema: str
    request_json: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., job_id: _Optional[str] = ..., task_hash: _Optional[str] = ..., client_id: _Optional[str] = ..., request_schema: _Optional[str] = ..., request_json: _Optional[bytes] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: EvaluateEvent
    def __init__(self, event: _Optional[_Union[EvaluateEvent, _Mapping]] = ...) -> None: ...

class WaitEvaluationRequest(_message.Message):
    __slots__ = ("protocol_version", "job_id", "client_id")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    job_id: str
    client_id: str
    def __init__(self, protocol_version: _Optional[int] = ..., job_id: _Optional[str] = ..., client_id: _Optional[str] = ...) -> None: ...

class WaitEvaluationResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: EvaluateEvent
    def __init__(self, event: _Optional[_Union[EvaluateEvent, _Mapping]] = ...) -> None: ...

class EvaluateEvent(_message.Message):
    __slots__ = ("job_id", "stage", "queue_position", "running_s", "evaluation_schema", "evaluation_json")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_S_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_JSON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    stage: Stage
    queue_position: int
    running_s: float
    evaluation_schema: str
    evaluation_json: bytes
    def __init__(self, job_id: _Optional[str] = ..., stage: _Optional[_Union[Stage, str]] = ..., queue_position: _Optional[int] = ..., running_s: _Optional[float] = ..., evaluation_schema: _Optional[str] = ..., evaluation_json: _Optional[bytes] = ...) -> None: ...

class CancelEvaluationRequest(_message.Message):
    __slots__ = ("job_id", "client_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    client_id: str
    def __init__(self, job_id: _Optional[str] = ..., client_id: _Optional[str] = ...) -> None: ...

class CancelEvaluationResponse(_message.Message):
    __slots__ = ("cancelled", "kept")
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    cancelled: bool
    kept: bool
    def __init__(self, cancelled: bool = ..., kept: bool = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("running", "queued")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    running: int
    queued: int
    def __init__(self, running: _Optional[int] = ..., queued: _Optional[int] = ...) -> None: ...

"""Messages between the parent and its child process, and their framing.

A frame is a 4-byte big-endian length and JSON. Arrays do not travel in frames: they lie in a shared
memory file ("arena") at offsets that the parent chooses. The parent treats all it reads from the
child as untrusted: sizes are bounded and JSON is validated against the types below.
"""

from __future__ import annotations

import struct

import msgspec

from evo.evaluation import CodeFeatures, Resources
from evo.job import DeviceInfo, Launch

MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_BINARY_BYTES = 256 * 1024 * 1024
HEADER = struct.Struct(">I")


class FrameError(Exception):
    """A frame is too large or does not hold what it should."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the class name travels as the tag."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a buffer, guards included, to copy to the arena.

    Buffers are called "in/NAME", "out/NAME" and "GROUP/NAME" for scratch.
    """

    buffer: str
    start: int
    nbytes: int
    offset: int


class Blank(msgspec.Struct, frozen=True, kw_only=True):
    """A result or scratch buffer: allocated, guarded and poisoned for one request."""

    name: str
    payload_bytes: int
    poison: bytes


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input's payload in the arena."""

    name: str
    nbytes: int
    offset: int


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A dim or scalar: numpy dtype name and little-endian bytes (JSON has no NaN)."""

    dtype: str
    raw: bytes


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """What one call runs. `scratch_group` names the set of scratch buffers it owns."""

    code_key: str
    launches: tuple[Launch, ...]
    scratch_group: str
    scratch: tuple[Blank, ...]


class CompileRequest(_Message, frozen=True):
    """Compile; the binary comes back in the arena."""

    source: str
    build_options: tuple[str, ...]
    entries: tuple[str, ...]
    cpu_seconds: int


class LoadRequest(_Message, frozen=True):
    """Make code launchable; the binary is in the arena."""

    code_key: str
    binary_bytes: int
    source: str
    build_options: tuple[str, ...]


class UploadRequest(_Message, frozen=True):
    """Copy a set of inputs to the device."""

    set_id: str
    tensors: tuple[Tensor, ...]


class DropRequest(_Message, frozen=True):
    """Free code and input sets."""

    codes: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


class RunRequest(_Message, frozen=True):
    """Run once on poisoned results and copy the spans out."""

    arm: Arm
    set_id: str
    outputs: tuple[Blank, ...]
    numbers: dict[str, Number]
    guard_seed: int
    spans: tuple[Span, ...]


class TimeRequest(_Message, frozen=True):
    """Time arms in order; results and scratch are poisoned again before every call.

    The `check_spans` are copied out right after the last call of arm `check_arm`, the
    `final_spans` when all arms have run.
    """

    arms: tuple[Arm, ...]
    calls: tuple[int, ...]
    set_id: str
    outputs: tuple[Blank, ...]
    numbers: dict[str, Number]
    guard_seed: int
    check_arm: int | None
    check_spans: tuple[Span, ...]
    final_spans: tuple[Span, ...]
    flush_bytes: int = 0


Request = CompileRequest | LoadRequest | UploadRequest | DropRequest | RunRequest | TimeRequest


class Ready(_Message, frozen=True):
    """First frame of a child: its device is open."""

    device: DeviceInfo
    clock: str


class CompileReply(_Message, frozen=True):
    """Outcome of a compilation; a compile error is `ok=False` with the log."""

    ok: bool
    log: str = ""
    binary_bytes: int = 0
    code_hash: str = ""
    features: CodeFeatures | None = None
    resources: Resources = msgspec.field(default_factory=Resources)
    compile_s: float = 0.0
    forbidden: str = ""


class Done(_Message, frozen=True):
    """The request was carried out and has no other result than bytes in the arena."""


class TimeReply(_Message, frozen=True):
    """Microseconds per arm and call."""

    arm_us: tuple[tuple[float, ...], ...]


class Failed(_Message, frozen=True):
    """The request failed.

    Attributes:
        kind: "unavailable" (no backend or device), "kernel" (launch refused, driver error) or
            "internal" (a fault of ours).
        sticky: The child must be replaced.
    """

    kind: str
    message: str
    sticky: bool = True


Reply = Ready | CompileReply | Done | TimeReply | Failed

_request_decoder = msgspec.json.Decoder(Request)
_reply_decoder = msgspec.json.Decoder(Reply)


def encode_frame(message: Request | Reply) -> bytes:
    """Returns the frame of one message."""
    payload = msgspec.json.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message has {len(payload)} bytes, more than {MAX_FRAME_BYTES}")
    return HEADER.pack(len(payload)) + payload


def frame_length(header: bytes) -> int:
    """Reads and bounds the length in a frame's header."""
    length: int = HEADER.unpack(header)[0]
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame claims {length} bytes, more than {MAX_FRAME_BYTES}")
    return length


def decode_request(payload: bytes) -> Request:
    """Decodes what the parent sent."""
    try:
        return _request_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(f"bad request: {error}") from None


def decode_reply(payload: bytes) -> Reply:
    """Decodes and validates what the child sent."""
    try:
        return _reply_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(f"bad reply: {error}") from None

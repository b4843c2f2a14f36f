"""The child's side on a made-up device: it obeys, in the right order, and reports what it must."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from evo.job import DeviceInfo, Launch
from workers import child, frames
from workers.backends.base import CompiledCode, CompileFailure, LaunchFailure
from workers.measure.buffers import GUARD_BYTES, guard_block

SIZE = 16
SECRET = b"\x11\x22\x33\x44"


class Device:
    """Buffers are numpy arrays; a call doubles n elements of x into y; the journal tells all."""

    info = DeviceInfo(backend="made-up", name="made-up", kind="cpu")
    clock = "counter"

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.payload_before_call: list[np.ndarray] = []

    def compile(self, source, build_options, entries):
        if source == "bad":
            raise CompileFailure("line 1: bad")
        return CompiledCode(binary=source.encode() * 2, code_hash="h", forbidden="state")

    def load(self, binary, source, build_options):
        self.journal.append(f"load {binary.decode()}")
        return binary

    def allocate(self, total_bytes, payload_start, payload_bytes):
        return np.zeros(total_bytes, dtype=np.uint8)

    def write(self, buffer, start, data):
        buffer[start : start + data.size] = data

    def read(self, buffer, start, nbytes):
        return buffer[start : start + nbytes].copy()

    def fill(self, fills):
        for fill in fills:
            pattern = np.frombuffer(fill.pattern, dtype=np.uint8)
            repeats = fill.nbytes // pattern.size
            fill.buffer[fill.start : fill.start + fill.nbytes] = np.tile(pattern, repeats)

    def prepare(self, module, launches, bindings):
        if launches[0].entry == "refused":
            raise LaunchFailure("too large", sticky=False)
        return module, bindings

    def run(self, call):
        module, bindings = call
        self.journal.append(f"run {module.decode()}")
        x, y, n = bindings["x"], bindings["y"], int(bindings["n"])
        self.payload_before_call.append(y[GUARD_BYTES:-GUARD_BYTES].copy())
        start = GUARD_BYTES
        y[start : start + n] = 2 * x[start : start + n]

    def measure(self, call, count, fills: Sequence, flush_bytes):
        for _ in range(count):
            self.fill(fills)
            self.run(call)
        self.journal.append(f"flush {flush_bytes}")
        return tuple(float(i) for i in range(count))


@pytest.fixture
def arena_fd():
    fd = os.memfd_create("test")
    yield fd
    os.close(fd)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def server(device, arena_fd) -> child.Server:
    server = child.Server(device, child.Arena(arena_fd), limit_cpu=False)
    os.pwrite(arena_fd, bytes(range(SIZE)), 0)
    tensor = frames.Tensor(name="x", nbytes=SIZE, offset=0)
    assert server.handle(frames.UploadRequest(set_id="s", tensors=(tensor,))) == frames.Done()
    for key in ("a", "b"):
        os.pwrite(arena_fd, key.encode(), 0)
        load = frames.LoadRequest(code_key=key, binary_bytes=1, source="", build_options=())
        assert server.handle(load) == frames.Done()
    return server


def arm(key: str, entry: str = "double") -> frames.Arm:
    launches = (Launch(entry=entry, args=(), grid=(1, 1, 1), block=(1, 1, 1)),)
    scratch = (frames.Blank(name="t", payload_bytes=8, poison=b"\x77"),)
    return frames.Arm(code_key=key, launches=launches, scratch_group=f"g{key}", scratch=scratch)


def common() -> dict:
    return {
        "set_id": "s",
        "outputs": (frames.Blank(name="y", payload_bytes=SIZE, poison=SECRET),),
        "numbers": {"n": frames.Number(dtype="int32", raw=np.int32(12).tobytes())},
        "guard_seed": 5,
    }


def span(buffer: str, start: int, nbytes: int, offset: int) -> frames.Span:
    return frames.Span(buffer=buffer, start=start, nbytes=nbytes, offset=offset)


def test_run_poisons_guards_runs_and_copies_out(server, device, arena_fd):
    total = SIZE + 2 * GUARD_BYTES
    scratch = span("ga/t", GUARD_BYTES, 8, 2 * total)
    spans = (span("out/y", 0, total, 0), span("in/x", 0, total, total), scratch)
    reply = server.handle(frames.RunRequest(arm=arm("a"), spans=spans, **common()))
    assert reply == frames.Done()
    assert os.pread(arena_fd, 8, 2 * total) == b"\x77" * 8
    guard = guard_block(5).tobytes()
    doubled = bytes(2 * i for i in range(12)) + SECRET
    assert os.pread(arena_fd, total, 0) == guard + doubled + guard
    nans = b"\xff" * GUARD_BYTES
    assert os.pread(arena_fd, total, total) == nans + bytes(range(SIZE)) + nans
    assert device.payload_before_call[0].tobytes() == SECRET * 4


def test_time_warms_up_each_code_once_and_poisons_before_every_call(server, device):
    request = frames.TimeRequest(
        arms=(arm("a"), arm("b"), arm("a")),
        calls=(2, 1, 3),
        check_arm=None,
        check_spans=(),
        final_spans=(),
        flush_bytes=64,
        **common(),
    )
    expected = ["run a", "run b"]
    expected += ["run a"] * 2 + ["flush 64", "run b", "flush 64"] + ["run a"] * 3 + ["flush 64"]
    device.journal.clear()
    reply = server.handle(request)
    assert reply == frames.TimeReply(arm_us=((0.0, 1.0), (0.0,), (0.0, 1.0, 2.0)))
    assert device.journal == expected
    assert all(before.tobytes() == SECRET * 4 for before in device.payload_before_call)
    device.journal.clear()
    server.handle(request)
    assert device.journal == expected[2:], "already warm"


def test_time_copies_the_check_arm_before_later_arms_run(server, device, arena_fd):
    payload = span("out/y", GUARD_BYTES, SIZE, 0)
    request = frames.TimeRequest(
        arms=(arm("a"), arm("b")),
        calls=(1, 1),
        check_arm=0,
        check_spans=(payload,),
        final_spans=(span("in/x", GUARD_BYTES, SIZE, SIZE),),
        **common(),
    )
    original = device.measure

    def measure(call, count, fills, flush_bytes):
        times = original(call, count, fills, flush_bytes)
        if call[0] == b"b":
            call[1]["y"][:] = 0
        return times

    device.measure = measure
    server.handle(request)
    assert os.pread(arena_fd, 4, 0) == bytes([0, 2, 4, 6])
    assert os.pread(arena_fd, SIZE, SIZE) == bytes(range(SIZE))


def test_refused_launch_is_a_reply(server):
    reply = server.handle(frames.RunRequest(arm=arm("a", "refused"), spans=(), **common()))
    assert reply == frames.Failed(kind="kernel", message="too large", sticky=False)


def test_dropped_code_and_sets_are_gone(server):
    server.handle(frames.DropRequest(codes=("a",), sets=("s", "unknown")))
    with pytest.raises(KeyError):
        server.handle(frames.RunRequest(arm=arm("b"), spans=(), **common()))


def compile_request(source: str) -> frames.CompileRequest:
    return frames.CompileRequest(source=source, build_options=(), entries=("k",), cpu_seconds=5)


def test_compile_puts_the_binary_into_the_arena(server, arena_fd):
    reply = server.handle(compile_request("good"))
    assert reply.ok
    assert (reply.code_hash, reply.forbidden, reply.binary_bytes) == ("h", "state", 8)
    assert os.pread(arena_fd, 8, 0) == b"goodgood"
    failed = server.handle(compile_request("bad"))
    assert (failed.ok, failed.log) == (False, "line 1: bad")


def test_oversized_binary_is_a_compile_error(server, monkeypatch):
    monkeypatch.setattr(frames, "MAX_BINARY_BYTES", 7)
    reply = server.handle(compile_request("good"))
    assert (reply.ok, reply.binary_bytes) == (False, 0)


def test_request_longer_than_the_arena_is_an_error(server):
    tensor = frames.Tensor(name="x", nbytes=1 << 20, offset=0)
    with pytest.raises(EOFError):
        server.handle(frames.UploadRequest(set_id="t", tensors=(tensor,)))


# -- frames ----------------------------------------------------------------------------------------


def test_frames_convert_back():
    request = frames.RunRequest(arm=arm("a"), spans=(span("in/x", 1, 2, 3),), **common())
    frame = frames.encode_frame(request)
    length = frames.frame_length(frame[: frames.HEADER.size])
    assert length == len(frame) - frames.HEADER.size
    assert frames.decode_request(frame[frames.HEADER.size :]) == request


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not json",
        b'{"type": "Nothing"}',
        b'{"type": "Done", "extra": 1}',
        b'{"type": "TimeReply", "arm_us": [[null]]}',
        b'{"type": "TimeReply", "arm_us": [["1"]]}',
        b'{"type": "Failed"}',
    ],
)
def test_replies_are_validated(payload):
    with pytest.raises(frames.FrameError):
        frames.decode_reply(payload)


def test_frame_sizes_are_bounded(monkeypatch):
    with pytest.raises(frames.FrameError, match="claims"):
        frames.frame_length(b"\xff\xff\xff\xff")
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 10)
    with pytest.raises(frames.FrameError, match="more than 10"):
        frames.encode_frame(compile_request("x" * 100))


# -- the process -----------------------------------------------------------------------------------


def start_child(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "workers.child", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)


def test_child_refuses_to_run_without_its_parent():
    result = start_child(
        "--backend=opencl", "--parent=1", "--request-fd=0", "--reply-fd=1", "--arena-fd=2"
    )
    assert result.returncode == 1
    assert result.stdout == ""


def test_child_imports_nothing_of_the_controller():
    code = (
        "import sys, workers.child, workers.executor, workers.compile_pool;"
        "print([m for m in ('hydra', 'mlflow', 'deap', 'omegaconf', 'rich', 'matplotlib',"
        " 'torch', 'pyopencl', 'grpc') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "[]"

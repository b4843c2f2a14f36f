"""The child process that owns a device: `python -m workers.child`, started by its parent only.

It obeys: allocate, copy, launch, copy back. It holds no reference results and reaches no verdict,
because a kernel on a CPU device shares its address space.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.errors import BackendUnavailable
from workers import frames
from workers.backends.base import Bytes, CompileFailure, Device, Fill, LaunchFailure, load_backend
from workers.measure.buffers import Layout, guard_block, guarded, input_guard

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_MAX_LOG_CHARS = 16 * 1024


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A device buffer with guards around its payload."""

    handle: Any
    layout: Layout


class Arena:
    """Shared memory file, read and written at offsets (a mapping could be cut off under us)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, nbytes: int) -> Bytes:
        """Returns bytes the parent put there."""
        data = np.empty(nbytes, dtype=np.uint8)
        view, done = data.data, 0
        while done < nbytes:
            count = os.preadv(self._fd, [view[done:]], offset + done)
            if count == 0:
                raise EOFError("the arena is shorter than the request says")
            done += count
        return data

    def write(self, offset: int, data: Bytes | bytes) -> None:
        """Puts bytes there for the parent."""
        view, done = memoryview(data if isinstance(data, bytes) else data.data), 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], offset + done)


class Server:
    """Carries out requests on one open device."""

    def __init__(self, device: Device, arena: Arena, *, limit_cpu: bool) -> None:
        self._device = device
        self._arena = arena
        self._cpu_limited = limit_cpu
        self._modules: dict[str, Any] = {}
        self._sets: dict[str, dict[str, _Guarded]] = {}
        self._warm: set[tuple[str, str]] = set()

    def handle(self, request: frames.Request) -> frames.Reply:
        """Returns the reply to one request; failures that a kernel can cause are replies too."""
        try:
            match request:
                case frames.CompileRequest():
                    return self._compile(request)
                case frames.LoadRequest():
                    self._load(request)
                case frames.UploadRequest():
                    self._upload(request)
                case frames.DropRequest():
                    self._drop(request)
                case frames.RunRequest():
                    self._run(request)
                case frames.TimeRequest():
                    return self._time(request)
            return frames.Done()
        except LaunchFailure as failure:
            return frames.Failed(kind="kernel", message=str(failure), sticky=failure.sticky)

    def _compile(self, request: frames.CompileRequest) -> frames.CompileReply:
        if self._cpu_limited:
            _limit_cpu(request.cpu_seconds)
        start = time.perf_counter()
        try:
            code = self._device.compile(request.source, request.build_options, request.entries)
        except CompileFailure as failure:
            seconds = time.perf_counter() - start
            log = failure.log[:_MAX_LOG_CHARS]
            return frames.CompileReply(ok=False, log=log, compile_s=seconds)
        seconds = time.perf_counter() - start
        if len(code.binary) > frames.MAX_BINARY_BYTES:
            return frames.CompileReply(ok=False, log="the binary is too large", compile_s=seconds)
        self._arena.write(0, code.binary)
        return frames.CompileReply(
            ok=True,
            log=code.log[:_MAX_LOG_CHARS],
            binary_bytes=len(code.binary),
            code_hash=code.code_hash,
            features=code.features,
            resources=code.resources,
            compile_s=seconds,
            forbidden=code.forbidden,
        )

    def _load(self, request: frames.LoadRequest) -> None:
        binary = self._arena.read(0, request.binary_bytes).tobytes()
        module = self._device.load(binary, request.source, request.build_options)
        self._modules[request.code_key] = module

    def _upload(self, request: frames.UploadRequest) -> None:
        guard = input_guard()
        buffers = {}
        for tensor in request.tensors:
            payload = self._arena.read(tensor.offset, tensor.nbytes)
            buffer = self._allocate(tensor.nbytes)
            self._device.write(buffer.handle, 0, guarded(payload, guard))
            buffers[tensor.name] = buffer
        self._sets[request.set_id] = buffers

    def _drop(self, request: frames.DropRequest) -> None:
        for key in request.codes:
            self._modules.pop(key, None)
            self._warm = {item for item in self._warm if item[0] != key}
        for name in request.sets:
            self._sets.pop(name, None)

    def _run(self, request: frames.RunRequest) -> None:
        guard = guard_block(request.guard_seed)
        inputs = self._sets[request.set_id]
        outputs, fills = self._blanks(request.outputs, guard)
        scratch, scratch_fills = self._blanks(request.arm.scratch, guard)
        call = self._prepare(request.arm, inputs, outputs, scratch, request.numbers)
        self._device.fill([*fills, *scratch_fills])
        self._device.run(call)
        table = _table(inputs, outputs, {request.arm.scratch_group: scratch})
        self._copy_out(request.spans, table)

    def _time(self, request: frames.TimeRequest) -> frames.TimeReply:
        guard = guard_block(request.guard_seed)
        inputs = self._sets[request.set_id]
        outputs, output_fills = self._blanks(request.outputs, guard)
        groups: dict[str, dict[str, _Guarded]] = {}
        prepared: dict[str, tuple[Any, list[Fill]]] = {}
        for arm in request.arms:
            # Equal arms of an ABBA sequence share their group, hence their scratch and call.
            if arm.scratch_group not in prepared:
                scratch, fills = self._blanks(arm.scratch, guard)
                call = self._prepare(arm, inputs, outputs, scratch, request.numbers)
                groups[arm.scratch_group] = scratch
                prepared[arm.scratch_group] = (call, [*output_fills, *fills])
        for arm in request.arms:
            key = (arm.code_key, repr(arm.launches))
            if key not in self._warm:  # drivers finish code for a geometry at its first launch
                call, fills = prepared[arm.scratch_group]
                self._device.fill(fills)
                self._device.run(call)
                self._warm.add(key)
        table = _table(inputs, outputs, groups)
        arm_us = []
        for index, (arm, count) in enumerate(zip(request.arms, request.calls, strict=True)):
            call, fills = prepared[arm.scratch_group]
            arm_us.append(self._device.measure(call, count, fills, request.flush_bytes))
            if index == request.check_arm:
                self._copy_out(request.check_spans, table)
        self._copy_out(request.final_spans, table)
        return frames.TimeReply(arm_us=tuple(arm_us))

    def _allocate(self, payload_bytes: int) -> _Guarded:
        layout = Layout(payload_bytes=payload_bytes)
        handle = self._device.allocate(layout.total, layout.start, payload_bytes)
        return _Guarded(handle, layout)

    def _blanks(
        self, blanks: Sequence[frames.Blank], guard: Bytes
    ) -> tuple[dict[str, _Guarded], list[Fill]]:
        """Allocates guarded buffers and lists the fills that poison their payloads."""
        buffers, fills = {}, []
        for blank in blanks:
            buffer = self._allocate(blank.payload_bytes)
            self._device.write(buffer.handle, 0, guard)
            self._device.write(buffer.handle, buffer.layout.end, guard)
            fills.append(
                Fill(
                    buffer=buffer.handle,
                    start=buffer.layout.start,
                    nbytes=blank.payload_bytes,
                    pattern=blank.poison,
                )
            )
            buffers[blank.name] = buffer
        return buffers, fills

    def _prepare(
        self,
        arm: frames.Arm,
        inputs: Mapping[str, _Guarded],
        outputs: Mapping[str, _Guarded],
        scratch: Mapping[str, _Guarded],
        numbers: Mapping[str, frames.Number],
    ) -> Any:
        bindings: dict[str, Any] = {
            name: np.frombuffer(number.raw, dtype=number.dtype)[0]
            for name, number in numbers.items()
        }
        for group in (scratch, inputs, outputs):
            bindings.update({name: buffer.handle for name, buffer in group.items()})
        return self._device.prepare(self._modules[arm.code_key], arm.launches, bindings)

    def _copy_out(self, spans: Sequence[frames.Span], table: Mapping[str, _Guarded]) -> None:
        for span in spans:
            data = self._device.read(table[span.buffer].handle, span.start, span.nbytes)
            self._arena.write(span.offset, data)


def _table(
    inputs: Mapping[str, _Guarded],
    outputs: Mapping[str, _Guarded],
    groups: Mapping[str, Mapping[str, _Guarded]],
) -> dict[str, _Guarded]:
    """Names all buffers of a request the way spans do."""
    table = {f"in/{name}": buffer for name, buffer in inputs.items()}
    table |= {f"out/{name}": buffer for name, buffer in outputs.items()}
    for group, buffers in groups.items():
        table |= {f"{group}/{name}": buffer for name, buffer in buffers.items()}
    return table


def _limit_cpu(seconds: int) -> None:
    """Lets this process use that much more processor time, in all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _limit_process(memory_bytes: int | None) -> None:
    """Forbids core dumps and gaining privileges; bounds the address space if asked."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            memory_bytes = min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _die_with_parent(parent: int) -> None:
    """Asks to be killed when the parent is, and leaves at once if it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _read_exactly(fd: int, nbytes: int) -> bytes:
    """Reads that many bytes; fewer only at the end of the stream."""
    data = bytearray()
    while len(data) < nbytes:
        chunk = os.read(fd, nbytes - len(data))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def _send(fd: int, reply: frames.Reply) -> None:
    view = memoryview(frames.encode_frame(reply))
    while view:
        view = view[os.write(fd, view) :]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="workers.child", description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--role", choices=("execute", "compile"), default="execute")
    parser.add_argument("--memory-limit", type=int, default=None)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--request-fd", type=int, required=True)
    parser.add_argument("--reply-fd", type=int, required=True)
    parser.add_argument("--arena-fd", type=int, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Opens the device, then serves requests until the parent closes the pipe."""
    args = _parse(argv)
    _die_with_parent(args.parent)
    _limit_process(args.memory_limit)
    try:
        device = load_backend(args.backend).open(args.device)
    except BackendUnavailable as error:
        _send(args.reply_fd, frames.Failed(kind="unavailable", message=str(error)))
        return 1
    server = Server(device, Arena(args.arena_fd), limit_cpu=args.role == "compile")
    _send(args.reply_fd, frames.Ready(device=device.info, clock=device.clock))
    while True:
        header = _read_exactly(args.request_fd, frames.HEADER.size)
        if len(header) < frames.HEADER.size:
            return 0
        payload = _read_exactly(args.request_fd, frames.frame_length(header))
        try:
            reply = server.handle(frames.decode_request(payload))
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            reply = frames.Failed(kind="internal", message=message)
        sys.stdout.flush()
        _send(args.reply_fd, reply)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

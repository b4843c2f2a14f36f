"""Parent's side of a device: runs code in a child process and judges the bytes that come back.

The parent never opens the device. A time-out, a crash, a sticky driver error or a damaged guard
replaces the child; code and inputs are remembered here and go to the new child by themselves.
"""

from __future__ import annotations

import math
import os
import signal as signals
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evo.errors import BackendUnavailable, WorkerError
from evo.job import DeviceInfo, WorkloadProgram
from workers import frames
from workers.child_process import ChildDied, ChildProcess, ChildTimeout
from workers.execution import (
    CodeLost,
    Compiled,
    ExecutorCrash,
    ExecutorFailure,
    ExecutorTimeout,
    KernelFailure,
    RunResult,
    SetLost,
    TimedArm,
    TimeResult,
)
from workers.measure.buffers import Bytes, Poison, raw_bytes, storage_dtype
from workers.measure.memory_plan import MemoryPlan, OutputSpecs, Verdict

__all__ = [
    "CodeLost",
    "Compiled",
    "Executor",
    "ExecutorCrash",
    "ExecutorFailure",
    "ExecutorTimeout",
    "KernelFailure",
    "RunResult",
    "SetLost",
    "TimeResult",
    "TimedArm",
]

Numbers = Mapping[str, tuple[str, float | int]]
"""Name of a dim or scalar -> dtype, value."""

_MAX_CODES_REMEMBERED = 1024
_MAX_CODES_RESIDENT = 128
_MAX_SET_BYTES_REMEMBERED = 4 << 30
_MAX_SET_BYTES_RESIDENT = 2 << 30
_DROP_TIMEOUT_S = 30.0
_CLOSE_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Code:
    binary: bytes
    source: str
    build_options: tuple[str, ...]


class Executor:
    """Owns one child process. Calls wait for each other, only `kill` and `close` cut in."""

    def __init__(
        self,
        *,
        backend: str,
        device_index: int = 0,
        role: str = "execute",
        memory_limit_bytes: int | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            backend: Name of a backend, see `workers.backends.base`.
            device_index: Which of its devices.
            role: "execute", or "compile" for a child whose processor time is bounded per request.
            memory_limit_bytes: Bound on the child's address space. Only for compile children: GPU
                drivers reserve far more than they use.
        """
        self._arguments = ["--backend", backend, "--device", str(device_index), "--role", role]
        if memory_limit_bytes is not None:
            self._arguments += ["--memory-limit", str(memory_limit_bytes)]
        self._busy = threading.RLock()
        self._child: ChildProcess | None = None
        self._closed = False
        self._generation = 0
        self._device: DeviceInfo | None = None
        self._clock = ""
        self._codes: OrderedDict[str, _Code] = OrderedDict()
        self._sets: OrderedDict[str, dict[str, Bytes]] = OrderedDict()
        self._resident_codes: OrderedDict[str, None] = OrderedDict()
        self._resident_sets: OrderedDict[str, int] = OrderedDict()

    @property
    def pid(self) -> int | None:
        """Process id of the child, None if there is none."""
        return self._child.pid if self._child else None

    @property
    def generation(self) -> int:
        """Number of children started so far."""
        return self._generation

    @property
    def device(self) -> DeviceInfo:
        """The device; starts the child if none was started before."""
        return self._device or self.start()

    @property
    def clock(self) -> str:
        """What measures, for example "opencl-event"; known once started."""
        return self._clock

    def start(self, timeout_s: float = 60.0) -> DeviceInfo:
        """Makes sure a child runs; starts a new one if it is dead.

        Raises:
            BackendUnavailable: If a package or the device is missing.
            WorkerError: If the child does not come up, or the executor is closed.
        """
        with self._busy:
            self._running(timeout_s)
            return self.device

    def compile(
        self,
        *,
        source: str,
        build_options: Sequence[str],
        entries: Sequence[str],
        timeout_s: float,
    ) -> Compiled:
        """Compiles; an error in the source is `ok=False` with the log.

        Raises:
            ExecutorTimeout: If the compiler takes too long.
            ExecutorCrash: If it crashes or exceeds its limits.
        """
        request = frames.CompileRequest(
            source=source,
            build_options=tuple(build_options),
            entries=tuple(entries),
            cpu_seconds=math.ceil(timeout_s),
        )
        with self._busy:
            child = self._running()
            reply = self._exchange(child, request, timeout_s)
            if not isinstance(reply, frames.CompileReply):
                raise self._unexpected(reply)
            if not 0 <= reply.binary_bytes <= frames.MAX_BINARY_BYTES:
                raise self._unexpected(reply)
            binary = _read_arena(child, 0, reply.binary_bytes).tobytes()
        return Compiled(
            ok=reply.ok,
            binary=binary,
            log=reply.log,
            code_hash=reply.code_hash,
            features=reply.features,
            resources=reply.resources,
            compile_s=reply.compile_s,
            forbidden=reply.forbidden,
        )

    def load(
        self,
        code_key: str,
        binary: bytes,
        source: str,
        build_options: Sequence[str],
        timeout_s: float,
    ) -> None:
        """Makes code launchable under a key; does nothing if the key is loaded.

        Raises:
            ExecutorTimeout: If the driver takes too long.
            ExecutorCrash: If the child crashes.
            KernelFailure: If the driver takes neither binary nor source.
        """
        with self._busy:
            self._codes[code_key] = _Code(binary, source, tuple(build_options))
            self._codes.move_to_end(code_key)
            while len(self._codes) > _MAX_CODES_REMEMBERED:
                self._codes.popitem(last=False)
            self._ensure_codes(self._running(), (code_key,), timeout_s)

    def upload(
        self, set_id: str, tensors: Mapping[str, NDArray[np.generic]], timeout_s: float
    ) -> None:
        """Puts a named set of inputs on the device, replacing one of the same name.

        The arrays are kept, not copied, where they are contiguous: leave them unchanged.
        """
        with self._busy:
            self.forget(set_id)
            self._sets[set_id] = {name: raw_bytes(array) for name, array in tensors.items()}
            sizes = {key: _size(tensors) for key, tensors in self._sets.items()}
            for key in _oldest_beyond(sizes, _MAX_SET_BYTES_REMEMBERED):
                self.forget(key)
            self._ensure_set(self._running(), set_id, timeout_s)

    def forget(self, set_id: str) -> None:
        """Frees a set of inputs, here and on the device; unknown names are fine."""
        with self._busy:
            self._sets.pop(set_id, None)
            if self._resident_sets.pop(set_id, None) is not None and self._child is not None:
                self._drop(self._child, sets=(set_id,))

    def run(
        self,
        *,
        code_key: str,
        program: WorkloadProgram,
        set_id: str,
        outputs: OutputSpecs,
        numbers: Numbers,
        poison: int,
        timeout_s: float,
    ) -> RunResult:
        """Runs a program once on poisoned outputs and reports what it left in memory.

        Args:
            code_key: What `load` was given.
            program: Its launches and scratch buffers are used.
            set_id: What `upload` was given.
            outputs: Name -> dtype and shape.
            numbers: Name of each dim and scalar -> dtype and value.
            poison: See `workers.measure.buffers.Poison`.
            timeout_s: For the run alone; a new child, its loads and uploads have their own.

        Raises:
            ExecutorTimeout: If it does not end in time.
            ExecutorCrash: If the child crashes under it.
            KernelFailure: If a launch is refused or the driver reports an error.
            CodeLost: If the key is not known.
            SetLost: If the set is not known.
        """
        with self._busy:
            child = self._running()
            self._ensure_codes(child, (code_key,), timeout_s)
            inputs = self._ensure_set(child, set_id, timeout_s)
            plan = MemoryPlan(inputs=inputs, outputs=outputs, poison=Poison(poison))
            arm = plan.arm(code_key, program)
            plan.finish()
            request = frames.RunRequest(
                arm=arm,
                set_id=set_id,
                outputs=plan.outputs,
                numbers=_encode_numbers(numbers),
                guard_seed=plan.guard_seed,
                spans=(*plan.payload_spans, *plan.final_spans),
            )
            self._exchange_done(child, request, timeout_s)
            verdict = self._judge(child, plan, set_id, payloads=True)
        return RunResult(
            outputs=plan.tensors(verdict),
            changed_inputs=verdict.changed_inputs,
            guard_violations=verdict.guard_violations,
            unwritten=verdict.unwritten,
        )

    def time(
        self,
        *,
        arms: Sequence[TimedArm],
        calls: Sequence[int],
        set_id: str,
        outputs: OutputSpecs,
        numbers: Numbers,
        check_arm: int | None,
        timeout_s: float,
        poison: int = Poison.NAN,
        flush_bytes: int = 0,
    ) -> TimeResult:
        """Times arms in the order given on the device's clock, each arm's calls in a row.

        Outputs and scratch are poisoned again before every call, outside its time: otherwise a
        kernel could find an earlier call's result in them and skip the work. A geometry's first
        launch in a child is made untimed beforehand.

        Args:
            arms: May name the same program more than once (ABBA).
            calls: Number of calls per arm.
            set_id: What `upload` was given.
            outputs: As in `run`.
            numbers: As in `run`.
            check_arm: Arm whose last call's outputs come back, or None.
            timeout_s: As in `run`, for everything timed.
            poison: As in `run`.
            flush_bytes: Overwrite a buffer of that size before each call to empty the caches.

        Raises:
            ExecutorFailure: As in `run`.
        """
        with self._busy:
            child = self._running()
            self._ensure_codes(child, tuple({arm.code_key: None for arm in arms}), timeout_s)
            inputs = self._ensure_set(child, set_id, timeout_s)
            plan = MemoryPlan(inputs=inputs, outputs=outputs, poison=Poison(poison))
            wire_arms = tuple(plan.arm(arm.code_key, arm.program) for arm in arms)
            plan.finish()
            request = frames.TimeRequest(
                arms=wire_arms,
                calls=tuple(calls),
                set_id=set_id,
                outputs=plan.outputs,
                numbers=_encode_numbers(numbers),
                guard_seed=plan.guard_seed,
                check_arm=check_arm,
                check_spans=plan.payload_spans,
                final_spans=plan.final_spans,
                flush_bytes=flush_bytes,
            )
            reply = self._exchange(child, request, timeout_s)
            if not isinstance(reply, frames.TimeReply) or not _plausible(reply.arm_us, calls):
                raise self._unexpected(reply)
            verdict = self._judge(child, plan, set_id, payloads=check_arm is not None)
        return TimeResult(
            arm_us=reply.arm_us,
            outputs=plan.tensors(verdict) if check_arm is not None else None,
            changed_inputs=verdict.changed_inputs,
            guard_violations=verdict.guard_violations,
            unwritten=verdict.unwritten,
        )

    def kill(self) -> None:
        """Kills the child; a call in progress in another thread raises ExecutorCrash."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """Ends the child and frees everything; idempotent, and safe from any thread."""
        self._closed = True
        idle = self._busy.acquire(blocking=False)
        if not idle:
            self.kill()
            self._busy.acquire()
        try:
            self._discard(_CLOSE_GRACE_S if idle else 0.0)
            self._codes.clear()
            self._sets.clear()
        finally:
            self._busy.release()

    # -- the child -----------------------------------------------------------------------------

    def _running(self, timeout_s: float = 60.0) -> ChildProcess:
        """Returns a live child; see `start`."""
        if self._closed:
            raise WorkerError("the executor is closed")
        if self._child is not None and self._child.alive():
            return self._child
        self._discard()
        self._generation += 1
        child = self._child = ChildProcess(self._arguments)
        try:
            reply = child.exchange(None, timeout_s)
        except ChildTimeout:
            self._discard()
            raise WorkerError(f"the executor did not start within {timeout_s:g} s") from None
        except ChildDied:
            self._discard(_CLOSE_GRACE_S)
            last = child.log.strip().splitlines()[-1:] or ["it printed nothing"]
            raise WorkerError(f"the executor did not start: {last[0]}") from None
        if isinstance(reply, frames.Failed):
            self._discard()
            raise BackendUnavailable(reply.message)
        if not isinstance(reply, frames.Ready):
            raise self._unexpected(reply)
        self._device, self._clock = reply.device, reply.clock
        return child

    def _discard(self, grace_s: float = 0.0) -> None:
        """Ends the child; what was resident in it is gone."""
        if self._child is not None:
            self._child.stop(grace_s)
            self._child = None
        self._resident_codes.clear()
        self._resident_sets.clear()

    def _exchange(
        self,
        child: ChildProcess,
        request: frames.Request,
        timeout_s: float,
        payloads: Sequence[Bytes] = (),
    ) -> frames.Reply:
        """Puts payloads into the emptied arena, one after the other, and makes the request."""
        os.ftruncate(child.arena_fd, 0)
        offset = 0
        for payload in payloads:
            _write_arena(child, offset, payload)
            offset += payload.size
        try:
            reply = child.exchange(request, timeout_s)
        except ChildTimeout:
            self._discard()
            raise ExecutorTimeout(f"no result within {timeout_s:g} s") from None
        except ChildDied as error:
            raise self._crash(child, error) from None
        if isinstance(reply, frames.Failed):
            if reply.sticky:
                self._discard()
            if reply.kind == "kernel":
                raise KernelFailure(reply.message)
            raise WorkerError(f"the executor failed: {reply.message}")
        return reply

    def _exchange_done(
        self,
        child: ChildProcess,
        request: frames.Request,
        timeout_s: float,
        payloads: Sequence[Bytes] = (),
    ) -> None:
        reply = self._exchange(child, request, timeout_s, payloads)
        if not isinstance(reply, frames.Done):
            raise self._unexpected(reply)

    def _crash(self, child: ChildProcess, error: ChildDied) -> ExecutorCrash:
        """Collects a dead child and says how it ended."""
        self._discard(_CLOSE_GRACE_S)
        code = child.returncode or 0
        if error.misbehaved:
            return ExecutorCrash(str(error), log=child.log, signal=None)
        if code < 0:
            message = f"the executor crashed with {_signal_name(-code)}"
            return ExecutorCrash(message, log=child.log, signal=-code)
        return ExecutorCrash(f"the executor exited with status {code}", log=child.log, signal=None)

    def _unexpected(self, reply: frames.Reply) -> WorkerError:
        self._discard()
        return WorkerError(f"the executor sent an unexpected {type(reply).__name__}")

    # -- what is resident ----------------------------------------------------------------------

    def _ensure_codes(
        self, child: ChildProcess, code_keys: tuple[str, ...], timeout_s: float
    ) -> None:
        """Makes all of these resident, at the cost of those not used for longest."""
        for key in code_keys:
            code = self._codes.get(key)
            if code is None:
                raise CodeLost(f"code '{key}' is not loaded")
            self._codes.move_to_end(key)
            if key not in self._resident_codes:
                request = frames.LoadRequest(
                    code_key=key,
                    binary_bytes=len(code.binary),
                    source=code.source,
                    build_options=code.build_options,
                )
                binary = np.frombuffer(code.binary, dtype=np.uint8)
                self._exchange_done(child, request, timeout_s, [binary])
            self._resident_codes[key] = None
            self._resident_codes.move_to_end(key)
        surplus = len(self._resident_codes) - max(_MAX_CODES_RESIDENT, len(code_keys))
        if surplus > 0:
            self._drop(child, codes=tuple(self._resident_codes)[:surplus])

    def _ensure_set(
        self, child: ChildProcess, set_id: str, timeout_s: float
    ) -> Mapping[str, Bytes]:
        tensors = self._sets.get(set_id)
        if tensors is None:
            raise SetLost(f"input set '{set_id}' is not uploaded")
        self._sets.move_to_end(set_id)
        if set_id not in self._resident_sets:
            wire, offset = [], 0
            for name, payload in tensors.items():
                wire.append(frames.Tensor(name=name, nbytes=payload.size, offset=offset))
                offset += payload.size
            request = frames.UploadRequest(set_id=set_id, tensors=tuple(wire))
            self._exchange_done(child, request, timeout_s, list(tensors.values()))
        self._resident_sets[set_id] = _size(tensors)
        self._resident_sets.move_to_end(set_id)
        surplus = _oldest_beyond(self._resident_sets, _MAX_SET_BYTES_RESIDENT)
        if surplus:
            self._drop(child, sets=surplus)
        return tensors

    def _drop(
        self, child: ChildProcess, *, codes: tuple[str, ...] = (), sets: tuple[str, ...] = ()
    ) -> None:
        """Frees code and sets in the child; a child that can't is simply replaced later."""
        for key in codes:
            self._resident_codes.pop(key, None)
        for key in sets:
            self._resident_sets.pop(key, None)
        if child.alive():
            request = frames.DropRequest(codes=codes, sets=sets)
            self._exchange_done(child, request, _DROP_TIMEOUT_S)

    def _judge(
        self, child: ChildProcess, plan: MemoryPlan, set_id: str, *, payloads: bool
    ) -> Verdict:
        """Reaches the verdict; damaged memory is not used again."""

        def read(offset: int, nbytes: int) -> Bytes:
            return _read_arena(child, offset, nbytes)

        verdict = plan.judge(read, payloads=payloads)
        if verdict.guard_violations:
            self._discard()
        elif verdict.changed_inputs:
            self._drop(child, sets=(set_id,))
        return verdict


def _encode_numbers(numbers: Numbers) -> dict[str, frames.Number]:
    """Gives each number its exact bytes.

    Raises:
        KernelFailure: If a value does not fit its dtype.
    """
    encoded = {}
    for name, (dtype, value) in numbers.items():
        try:
            raw = np.array(value, dtype=storage_dtype(dtype)).tobytes()
        except (OverflowError, ValueError):
            raise KernelFailure(f"argument '{name}' = {value} does not fit {dtype}") from None
        encoded[name] = frames.Number(dtype=storage_dtype(dtype).name, raw=raw)
    return encoded


def _plausible(arm_us: Sequence[Sequence[float]], calls: Sequence[int]) -> bool:
    """Says whether the child's times have the right shape and could be times."""
    if [len(times) for times in arm_us] != list(calls):
        return False
    return all(math.isfinite(t) and t >= 0 for times in arm_us for t in times)


def _size(tensors: Mapping[str, Bytes]) -> int:
    return sum(payload.size for payload in tensors.values())


def _oldest_beyond(sizes: Mapping[str, int], limit: int) -> tuple[str, ...]:
    """Returns the first keys to go so that the rest fits; the last one always stays."""
    surplus, keys = sum(sizes.values()) - limit, []
    for key in list(sizes)[:-1]:
        if surplus <= 0:
            break
        keys.append(key)
        surplus -= sizes[key]
    return tuple(keys)


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _write_arena(child: ChildProcess, offset: int, data: Bytes) -> None:
    view = data.data
    while view:
        count = os.pwrite(child.arena_fd, view, offset)
        view, offset = view[count:], offset + count


def _read_arena(child: ChildProcess, offset: int, nbytes: int) -> Bytes:
    """Reads what the child put there.

    Raises:
        WorkerError: If it put less there.
    """
    data = np.empty(nbytes, dtype=np.uint8)
    view, done = data.data, 0
    while done < nbytes:
        count = os.preadv(child.arena_fd, [view[done:]], offset + done)
        if count == 0:
            raise WorkerError("the executor returned fewer bytes than it was asked for")
        done += count
    return data

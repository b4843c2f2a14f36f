"""Compiles programs, each distinct source once, and tells which are the same machine code."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from evo.evaluation import CodeFeatures, EvaluationStatus, Resources
from evo.job import DeviceInfo, Program, WorkloadProgram
from evo.serial import content_hash
from evo.task import Task
from workers.execution import Compiled
from workers.measure.static import problem_with
from workers.measure.verdict import Rejected

DEFAULT_KEPT = 512


class Compiler(Protocol):
    """What compiles: a `workers.compile_pool.CompilePool`."""

    def compile(
        self, *, source: str, build_options: Sequence[str], entries: Sequence[str], timeout_s: float
    ) -> Compiled:
        """Compiles one source."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A program with everything it compiled to.

    Attributes:
        program: What was compiled.
        keys: Workload -> key of its code in the executor.
        compiled: Key -> result.
        compile_s: Compilers' seconds summed up, 0 for what was compiled before.
    """

    program: Program
    keys: dict[str, str]
    compiled: dict[str, Compiled]
    compile_s: float

    def code(self, workload: str) -> Compiled:
        """Returns what a workload's source compiled to."""
        return self.compiled[self.keys[workload]]

    @property
    def features(self) -> CodeFeatures | None:
        """Features of the first workload's code, which stand for the program."""
        return self.code(self.program.workloads[0].workload).features

    @property
    def resources(self) -> Resources:
        """Resources of the first workload's code."""
        return self.code(self.program.workloads[0].workload).resources

    @property
    def code_hash(self) -> str:
        """Hash of all workloads' machine code and launches; equal programs run equally."""
        return content_hash(
            [[self.code(item.workload).code_hash, _launch_identity(item)] for item in self._items]
        )

    @property
    def _items(self) -> tuple[WorkloadProgram, ...]:
        return tuple(sorted(self.program.workloads, key=lambda item: item.workload))


def entries_of(item: WorkloadProgram) -> tuple[str, ...]:
    """Returns the kernels a workload launches, each once, in order of first launch."""
    return tuple(dict.fromkeys(launch.entry for launch in item.launches))


def _launch_identity(item: WorkloadProgram) -> list[object]:
    # Kernels by position and scratch by place of first use: renaming them changes nothing.
    entries = entries_of(item)
    scratch = {buffer.name: buffer for buffer in item.scratch}
    order: dict[str, int] = {}
    launches = []
    for launch in item.launches:
        args = []
        for name in launch.args:
            if name in scratch:
                args.append(f"scratch#{order.setdefault(name, len(order))}")
            else:
                args.append(name)
        launches.append(
            [
                entries.index(launch.entry),
                args,
                launch.grid,
                launch.block,
                launch.shared_bytes,
            ]
        )
    buffers = [[scratch[name].dtype, scratch[name].elements] for name in order]
    return [item.workload, launches, buffers]


class Builder:
    """Validates and compiles programs; keeps recent results.

    Args:
        compiler: Compiles one source.
        kept: Distinct sources to remember.
    """

    def __init__(self, *, compiler: Compiler, kept: int = DEFAULT_KEPT) -> None:
        self._compiler = compiler
        self._kept = kept
        self._cache: OrderedDict[str, Compiled] = OrderedDict()

    def validate(self, program: Program, task: Task, device: DeviceInfo) -> None:
        """Refuses what can be refused without compiling.

        Raises:
            Rejected: INVALID.
        """
        reason = problem_with(program, task, device)
        if reason:
            raise Rejected(EvaluationStatus.INVALID, reason)

    def build(self, program: Program, device: DeviceInfo, timeout_s: float) -> Build:
        """Compiles every workload's source.

        Raises:
            Rejected: COMPILE_ERROR with the compiler's log, or INVALID when the compiled code holds
                something forbidden or needs more than the device has.
        """
        keys: dict[str, str] = {}
        distinct: dict[str, WorkloadProgram] = {}
        for item in program.workloads:
            key = content_hash([item.source, item.build_options, entries_of(item)])
            keys[item.workload] = key
            distinct.setdefault(key, item)
        fresh = {key: item for key, item in distinct.items() if key not in self._cache}
        results = dict(zip(fresh, self._compile_all(list(fresh.values()), timeout_s), strict=True))
        compiled: dict[str, Compiled] = {}
        for key, item in distinct.items():
            if key in results:
                compiled[key] = results[key]
                self._remember(key, results[key])
            else:
                compiled[key] = self._cache[key]
                self._cache.move_to_end(key)
            _judge(compiled[key], item.workload, device)
        return Build(
            program=program,
            keys=keys,
            compiled=compiled,
            compile_s=sum(result.compile_s for result in results.values()),
        )

    def _compile_all(self, items: Sequence[WorkloadProgram], timeout_s: float) -> list[Compiled]:
        """Compiles sources side by side, as many at once as the compiler takes."""

        def one(item: WorkloadProgram) -> Compiled:
            return self._compiler.compile(
                source=item.source,
                build_options=item.build_options,
                entries=entries_of(item),
                timeout_s=timeout_s,
            )

        if len(items) < 2:
            return [one(item) for item in items]
        with ThreadPoolExecutor(max_workers=len(items), thread_name_prefix="compile") as threads:
            return list(threads.map(one, items))

    def _remember(self, key: str, compiled: Compiled) -> None:
        if not compiled.ok:
            return  # a time-out on a busy machine must not stick
        self._cache[key] = compiled
        while len(self._cache) > self._kept:
            self._cache.popitem(last=False)


def _judge(compiled: Compiled, workload: str, device: DeviceInfo) -> None:
    if not compiled.ok:
        first = next((line for line in compiled.log.splitlines() if "error" in line.lower()), "")
        message = first.strip()[:300] or "the compiler failed"
        raise Rejected(
            EvaluationStatus.COMPILE_ERROR, f"{message} (workload {workload})", log=compiled.log
        )
    if compiled.forbidden:
        raise Rejected(
            EvaluationStatus.INVALID,
            f"{compiled.forbidden} (workload {workload})",
            log=compiled.log,
        )
    local = compiled.resources.local_mem_bytes
    if local is not None and device.local_mem_bytes and local > device.local_mem_bytes:
        raise Rejected(
            EvaluationStatus.INVALID,
            f"{local} bytes of local memory, the device has {device.local_mem_bytes}"
            f" (workload {workload})",
        )

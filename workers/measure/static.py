"""What can be refused before anything is compiled: launches out of limits, host constructs.

The source scan is triage, not a wall: the compiler's own output is examined afterwards, and the
executor process is the isolation. It only saves compiling what is plainly not device code.
"""

from __future__ import annotations

import math
import re

from evo.job import DeviceInfo, Program, WorkloadProgram
from evo.task import Task

MAX_GRID = 2**31 - 1
MAX_SCRATCH_FRACTION = 0.25
MAX_SOURCE_BYTES = 1 << 20

_OPTION = re.compile(r"-cl-[a-z0-9-]+(=[A-Za-z0-9.+]+)?|-D[A-Za-z_]\w*(=[\w.+-]*)?|-w|-Werror")
# Literals are matched too, so that a quote can't open a comment nor hide one.
_IGNORED = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
_FORBIDDEN = (
    (
        re.compile(r"^[ \t]*(#|%:|\?\?=)[ \t]*(include|include_next|import|embed)\b", re.M),
        "#include",
    ),
    (re.compile(r"\b__has_(include|embed)\w*"), "__has_include"),
    (re.compile(r"\b(asm|__asm|__asm__)\b"), "inline assembly"),
)


def problem_with(program: Program, task: Task, device: DeviceInfo) -> str:
    """Returns one line that says why a program is refused, or "" if it is not.

    Args:
        program: The rendered program.
        task: Gives the names that arguments may use, and the workloads.
        device: Gives the limits.
    """
    if program.backend != device.backend:
        return f"the program is for backend {program.backend}, this device runs {device.backend}"
    have = {item.workload for item in program.workloads}
    for workload in task.workloads:
        if workload.name not in have:
            return f"the program has nothing for workload {workload.name}"
    for item in program.workloads:
        if item.workload not in {workload.name for workload in task.workloads}:
            return f"the task has no workload {item.workload}"
        reason = _source_problem(item) or _launch_problem(item, task, device)
        if reason:
            return f"{reason} (workload {item.workload})"
    return ""


def _source_problem(item: WorkloadProgram) -> str:
    if len(item.source) > MAX_SOURCE_BYTES:
        return f"source of {len(item.source)} bytes, allowed are {MAX_SOURCE_BYTES}"
    for option in item.build_options:
        if not _OPTION.fullmatch(option):
            return f"build option {option!r} is not allowed (allowed: -cl-*, -D NAME=VALUE, -w)"
    spliced = re.sub(r"(\\|\?\?/)[ \t]*\r?\n", "", item.source)
    text = _IGNORED.sub(" ", spliced)
    for pattern, what in _FORBIDDEN:
        if pattern.search(text):
            return f"{what} is not allowed in device code"
    return ""


def _launch_problem(item: WorkloadProgram, task: Task, device: DeviceInfo) -> str:
    if not item.launches:
        return "no launches"
    known = {spec.name for spec in (*task.inputs, *task.outputs)}
    known |= set(task.dims) | {scalar.name for scalar in task.scalars}
    scratch = {buffer.name for buffer in item.scratch}
    if clash := sorted(scratch & known):
        return f"scratch buffer {clash[0]} has the name of something else"
    wanted = sum(_size_bytes(buffer.dtype) * buffer.elements for buffer in item.scratch)
    limit = MAX_SCRATCH_FRACTION * device.global_mem_bytes
    if device.global_mem_bytes and wanted > limit:
        return f"scratch of {wanted} bytes, allowed are {int(limit)}"
    for launch in item.launches:
        where = f"launch {launch.entry}"
        for name in launch.args:
            if name not in known and name not in scratch:
                return f"{where}: no argument is called {name!r}"
        for axis, (groups, items) in enumerate(zip(launch.grid, launch.block, strict=True)):
            if groups < 1 or items < 1:
                return f"{where}: grid and block must be positive"
            if groups * items > MAX_GRID:
                return f"{where}: {groups * items} work-items in dimension {axis}"
            if items > device.max_block[axis]:
                return (
                    f"{where}: block {items} in dimension {axis}, allowed {device.max_block[axis]}"
                )
        size = math.prod(launch.block)
        if size > device.max_work_group_size:
            return f"{where}: work-group of {size}, the device allows {device.max_work_group_size}"
        if launch.shared_bytes > device.local_mem_bytes:
            return (
                f"{where}: {launch.shared_bytes} bytes of local memory,"
                f" the device has {device.local_mem_bytes}"
            )
    return ""


def _size_bytes(dtype: str) -> int:
    digits = re.sub(r"\D", "", dtype)
    return max(1, int(digits or 8) // 8)

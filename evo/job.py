"""The records a controller sends: a rendered program, and what to do with it.

A program is device code plus numbers. It holds no host code: the worker owns buffers, launches and
clocks, so a candidate cannot reach any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from evo.serial import content_hash

JOB_SCHEMA = "kelites-job-1"


class Purpose(str, Enum):
    """Why an evaluation is asked for."""

    SEARCH = "search"
    """Check and time on the search workloads; racing may end timing early."""
    DUEL = "duel"
    """ABBA re-measurement of a challenger against the incumbent named in the request."""
    CONFIRM = "confirm"
    """Fresh inputs, all workloads including the confirm ones, several fresh processes."""
    COMPILE_ONLY = "compile_only"
    """No device needed: compile and read features; never a timing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch, all numbers known.

    Attributes:
        entry: Kernel function name.
        args: Names bound in order: task tensors, scratch buffers, dims (int32) or task scalars.
        grid: Number of work-groups (thread blocks) per dimension.
        block: Work-items (threads) per work-group.
        shared_bytes: Dynamic local memory, for backends that pass it at launch.
    """

    entry: str
    args: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """A work buffer the worker allocates and poisons: `elements` items of `dtype`."""

    name: str
    dtype: str
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProgram:
    """A program as it runs on one workload; launches run in order."""

    workload: str
    source: str
    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()
    build_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A genome rendered for every workload of its task (search and confirm)."""

    backend: str
    template: str
    workloads: tuple[WorkloadProgram, ...]

    def on(self, workload: str) -> WorkloadProgram:
        """Returns the program of one workload; raises KeyError if it has none."""
        for item in self.workloads:
            if item.workload == workload:
                return item
        raise KeyError(workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """How hard to look. Times are seconds unless the name says otherwise.

    Attributes:
        families: Input families for correctness, see `workers/measure/inputs.py`.
        compile_timeout_s: Limit on one compilation.
        run_timeout_s: Limit on any one run or timing block.
        min_blocks: Interleaved blocks before an interval is judged.
        max_blocks: Blocks after which timing ends whatever the interval.
        target_rel_interval: Stop when the 95 % interval's half-width on log speed-up is below this.
        block_us: Device time each arm aims for in a block, microseconds.
        race_cells: Cell ("1-2-0", see `evo.descriptor.cell_key`) -> lower bound of its elite's log
            speed-up. Timing stops early once the candidate's upper bound is clearly below it.
        processes: Fresh executor processes a confirm spreads its blocks over.

    Raises:
        ValueError: If a number is out of range.
    """

    families: tuple[str, ...] = ("normal", "offset", "integers")
    compile_timeout_s: float = 60.0
    run_timeout_s: float = 20.0
    min_blocks: int = 4
    max_blocks: int = 16
    target_rel_interval: float = 0.02
    block_us: float = 3000.0
    race_cells: dict[str, float] = field(default_factory=dict)
    processes: int = 3

    def __post_init__(self) -> None:
        for name in ("compile_timeout_s", "run_timeout_s", "target_rel_interval", "block_us"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name}={value!r}: a positive number is allowed")
        for name in ("min_blocks", "max_blocks", "processes"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value!r}: a whole number of at least 1 is allowed")
        if self.min_blocks > self.max_blocks:
            raise ValueError(f"min_blocks={self.min_blocks} exceeds max_blocks={self.max_blocks}")
        if not self.families:
            raise ValueError("families: at least one is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """One job: idempotent by `job_id` (content hash of the program plus an attempt number).

    Attributes:
        job_id: Unique per content, purpose and attempt.
        task_hash: Content hash of the task bundle, put on the worker beforehand.
        candidate: What to evaluate.
        baseline: Timed interleaved with the candidate.
        incumbent: Third arm in a duel.
        scope: Run the job belongs to; measurements are inherited only within one scope.
    """

    job_id: str
    task_hash: str
    candidate: Program
    baseline: Program
    incumbent: Program | None = None
    purpose: Purpose = Purpose.SEARCH
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)
    scope: str = ""
    schema: str = JOB_SCHEMA

    @property
    def digest(self) -> str:
        """Hash of what a result depends on.

        Race bounds are left out: they move while a search goes on, and only end timing early.
        """
        return content_hash(replace(self, settings=replace(self.settings, race_cells={})))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What constraints and templates may ask about a device, as `device.<field>`.

    Attributes:
        backend: Backend that drives it.
        kind: "cpu" or "gpu".
        max_work_group_size: Work-items per work-group.
        max_block: Work-items per dimension.
        local_mem_bytes: On-chip memory per work-group.
        sub_group_size: Warp, wave or sub-group width; 1 where there is none.
        vector_width: Preferred float vector width.
        bandwidth_gbs: Measured copy bandwidth, GB/s (0 until measured).
        peak_gflops: Measured fp32 multiply-add peak, GFLOP/s (0 until measured).
    """

    backend: str
    name: str
    kind: str
    vendor: str = ""
    driver: str = ""
    platform: str = ""
    compute_units: int = 1
    max_work_group_size: int = 1
    max_block: tuple[int, int, int] = (1, 1, 1)
    local_mem_bytes: int = 0
    global_mem_bytes: int = 0
    cache_bytes: int = 0
    sub_group_size: int = 1
    vector_width: int = 1
    bandwidth_gbs: float = 0.0
    peak_gflops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBundle:
    """A task folder's text files as they travel to a worker: name -> content, plus their hash."""

    name: str
    task_hash: str
    files: dict[str, str]

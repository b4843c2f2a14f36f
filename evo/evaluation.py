"""The records a worker returns: what happened to one candidate, with evidence.

A failed kernel is data: its `Evaluation` carries a status and a message. The validators refuse
impossible combinations, such as a timing without a passed correctness check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

EVALUATION_SCHEMA = "kelites-evaluation-1"


class EvaluationStatus(str, Enum):
    """Outcome of one evaluation; only `INFRA_ERROR` is not the kernel's doing."""

    OK = "ok"
    INVALID = "invalid"
    """Rejected before compilation: launch out of device limits, forbidden construct."""
    COMPILE_ERROR = "compile_error"
    INCORRECT = "incorrect"
    """Wrong or unwritten output."""
    RUNTIME_ERROR = "runtime_error"
    """The launch failed, or the executor process crashed under the kernel."""
    TIMEOUT = "timeout"
    HACK = "hack"
    """Integrity violation: inputs changed, guard bands written, or faster than physics allows."""
    INFRA_ERROR = "infra_error"
    """Worker, network or driver failed; the candidate is retried, never blamed."""


class Bound(str, Enum):
    """What limits a kernel according to the roofline."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """Worst errors over all checks of one evaluation, against the float64 reference.

    Attributes:
        passed: All checks passed.
        checks: Number of (workload, input family, repeat) checks made.
        max_abs: Largest absolute error; None if not finite or not measured.
        max_rel: Largest error relative to the output's root mean square.
        norm_ratio: Norm of the error over norm of the reference.
        tolerance: The bound `max_rel` was held to.
        deterministic: Repeated runs gave equal bits.
        worst: Which workload and family the worst error came from.
    """

    passed: bool
    checks: int
    max_abs: float | None = None
    max_rel: float | None = None
    norm_ratio: float | None = None
    tolerance: float = 0.0
    deterministic: bool = True
    worst: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTiming:
    """Median device times of one workload.

    Attributes:
        workload: Name of the workload.
        latency_us: Candidate's median over blocks, microseconds.
        baseline_us: Baseline's median over the same, interleaved blocks.
        sol_fraction: Roofline bound over latency, 1.0 = at the bound; None without a roofline.
        bound: What limits it.
        log_speedups: (blocks,) this workload's share of each block, for an interval of its own;
            empty where the worker does not keep it.
    """

    workload: str
    latency_us: float
    baseline_us: float
    sol_fraction: float | None = None
    bound: Bound | None = None
    log_speedups: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Paired, interleaved timing of a candidate against the baseline (and a rival in a duel).

    Attributes:
        log_speedups: (blocks,) natural log of baseline time over candidate time; each entry is one
            interleaved block, averaged over the workloads (so exp of the mean is a geometric mean).
        workloads: Per-workload medians.
        rival_log_ratios: (blocks,) log of rival time over candidate time, positive = candidate
            faster; empty unless the request named an incumbent.
        rival_log_speedups: (blocks,) fresh log speed-ups of the incumbent over the baseline.
        calls: Timed kernel calls of the candidate.
        processes: Number of fresh executor processes the blocks came from.
        clock: What measured, e.g. "opencl-event".
        raced_out: Timing ended early because the candidate was clearly slow.
    """

    log_speedups: tuple[float, ...]
    workloads: tuple[WorkloadTiming, ...]
    rival_log_ratios: tuple[float, ...] = ()
    rival_log_speedups: tuple[float, ...] = ()
    calls: int = 0
    processes: int = 1
    clock: str = ""
    raced_out: bool = False

    def __post_init__(self) -> None:
        if not self.log_speedups or not self.workloads:
            raise ValueError("timing needs at least one block and one workload")
        values = (*self.log_speedups, *self.rival_log_ratios, *self.rival_log_speedups)
        if not all(math.isfinite(v) for v in values):
            raise ValueError("timing holds a non-finite log ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the compiler and driver report; None where the device does not say."""

    registers: int | None = None
    spill_bytes: int | None = None
    local_mem_bytes: int | None = None
    private_mem_bytes: int | None = None
    occupancy: float | None = None
    binary_bytes: int | None = None
    preferred_work_group_multiple: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFeatures:
    """Facts read from compiled code; `evo.descriptor` maps them to a cell.

    Attributes:
        origin: Where they come from: "llvm-ir", "spirv", "ptx", "sass", "amdgcn" or "source".
        counts: Feature name -> count or level evidence (see `evo/descriptor.py` for the names).
    """

    origin: str
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a number was measured on."""

    backend: str = ""
    device: str = ""
    driver: str = ""
    platform: str = ""
    worker: str = ""
    host: str = ""
    device_kind: str = ""
    """"cpu" or "gpu": a CPU time says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result of one request.

    Raises:
        ValueError: If a timing comes without passed correctness, or an OK status without either
            a timing or `measured=False`.
    """

    job_id: str
    status: EvaluationStatus
    message: str = ""
    """One line for people; for `HACK` it never names the check (that would teach evasion)."""
    log: str = ""
    """Compiler or runtime output, truncated by the worker."""
    stage: str = ""
    """Last stage reached: validate, compile, check, time, done."""
    measured: bool = True
    correctness: Correctness | None = None
    timing: Timing | None = None
    resources: Resources | None = None
    features: CodeFeatures | None = None
    code_hash: str = ""
    inherited_from: str = ""
    """Job id whose measurement was inherited because the machine code is identical."""
    environment: Environment = field(default_factory=Environment)
    compile_s: float = 0.0
    total_s: float = 0.0
    input_seed: int | None = None
    """Secret until the evaluation is over."""
    schema: str = EVALUATION_SCHEMA

    def __post_init__(self) -> None:
        if self.timing is not None and not (self.correctness and self.correctness.passed):
            raise ValueError("an evaluation with timing must have passed correctness")
        if self.status is EvaluationStatus.OK:
            if self.measured and self.timing is None:
                raise ValueError("an OK evaluation needs a timing or measured=False")
        elif self.status is not EvaluationStatus.HACK and self.timing is not None:
            raise ValueError(f"an evaluation with status {self.status.value} carries no timing")

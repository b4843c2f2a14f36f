"""What the executor returns and raises: the records between the parent's two halves."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evo.evaluation import CodeFeatures, Resources
from evo.job import WorkloadProgram


class ExecutorFailure(Exception):
    """Base of what a kernel, or the child that runs it, can do wrong."""


class ExecutorTimeout(ExecutorFailure):
    """The child did not answer in time and was killed."""


class ExecutorCrash(ExecutorFailure):
    """The child ended in the middle of a request.

    Attributes:
        message: One line.
        log: The last it printed.
        signal: Number of the signal that ended it, or None.
    """

    def __init__(self, message: str, *, log: str, signal: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.log = log
        self.signal = signal

    @property
    def from_outside(self) -> bool:
        """Whether somebody else ended the child: an operator, or the system short of memory.

        Device code cannot send signals, and no fault of its own raises one of these.
        """
        return self.signal in (signals.SIGKILL, signals.SIGTERM, signals.SIGINT, signals.SIGHUP)


class KernelFailure(ExecutorFailure):
    """A launch was refused, or the driver reported an error.

    Attributes:
        message: One line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CodeLost(ExecutorFailure):
    """This code was never loaded, or so much was since that it is forgotten: load it again."""


class SetLost(ExecutorFailure):
    """This input set was never uploaded, or is forgotten: upload it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Outcome of one compilation.

    Attributes:
        ok: It compiled.
        binary: For `Executor.load` on the same kind of device.
        log: The compiler's output.
        code_hash: Equal for equal machine code.
        features: Facts for the descriptor.
        resources: What the compiler reports.
        compile_s: Time it took.
        forbidden: One-line reason when the code holds something that is not allowed, else "".
    """

    ok: bool
    binary: bytes = b""
    log: str = ""
    code_hash: str = ""
    features: CodeFeatures | None = None
    resources: Resources = field(default_factory=Resources)
    compile_s: float = 0.0
    forbidden: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedArm:
    """What to time: loaded code and its launches on one workload."""

    code_key: str
    program: WorkloadProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run left in memory.

    Attributes:
        outputs: Output tensors by name; dtype and shape as asked.
        changed_inputs: Names of inputs whose bytes changed.
        guard_violations: Names of tensors and scratch buffers written outside of.
        unwritten: Output name -> elements that still hold this run's poison bits.
    """

    outputs: dict[str, NDArray[np.generic]]
    changed_inputs: tuple[str, ...] = ()
    guard_violations: tuple[str, ...] = ()
    unwritten: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeResult:
    """Times, and what the timed calls left in memory.

    Attributes:
        arm_us: Per arm, per call: device time in microseconds.
        outputs: What the last call of the check arm wrote; None without a check arm.
        changed_inputs: Names of inputs whose bytes changed during any of the calls.
        guard_violations: Names of tensors and scratch buffers written outside of.
        unwritten: As in `RunResult`, for the check arm.
    """

    arm_us: tuple[tuple[float, ...], ...]
    outputs: dict[str, NDArray[np.generic]] | None = None
    changed_inputs: tuple[str, ...] = ()
    guard_violations: tuple[str, ...] = ()
    unwritten: dict[str, int] = field(default_factory=dict)

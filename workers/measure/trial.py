"""Runs one program's checks and timings on an executor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evo.errors import WorkerError
from evo.evaluation import EvaluationStatus
from evo.task import Task, Workload
from workers.execution import ExecutorFailure, TimedArm
from workers.executor import Executor
from workers.measure.builds import Build
from workers.measure.correctness import Checker
from workers.measure.inputs import Array
from workers.measure.reference import Expected, ReferenceCache
from workers.measure.timing import CANDIDATE
from workers.measure.verdict import Rejected, hack, kernel_faults

POISONS = (0, 1)


@dataclass(slots=True, kw_only=True)
class Bench:
    """An executor with one task's inputs on it.

    Attributes:
        executor: Runs kernels.
        cache: Expected results.
        task: The task.
        seed: Secret seed of all inputs.
        timeout_s: Limit on any one call of the executor.
        uploaded: Sets of inputs the executor knows.
        require_wanted: Called before every run; raises if the job was cancelled.
    """

    executor: Executor
    cache: ReferenceCache
    task: Task
    seed: int
    timeout_s: float
    uploaded: set[str] = field(default_factory=set)
    require_wanted: Callable[[], None] = lambda: None

    def expected(self, workload: Workload, family: str) -> Expected:
        """Returns inputs and reference outputs."""
        return self.cache.get(self.task, workload, family, self.seed)

    def upload(self, workload: Workload, family: str) -> str:
        """Makes a set of inputs known to the executor and returns its id.

        Raises:
            ExecutorFailure: If the device can't take it, which is no kernel's fault.
        """
        set_id = f"{self.task.bundle.task_hash}/{workload.name}/{family}/{self.seed}"
        if set_id not in self.uploaded:
            self.executor.upload(set_id, self.expected(workload, family).inputs, self.timeout_s)
            self.uploaded.add(set_id)
        return set_id

    def forget(self) -> None:
        """Frees all sets of inputs on the device; a child that can't be asked has lost them."""
        for set_id in self.uploaded:
            with contextlib.suppress(ExecutorFailure, WorkerError):
                self.executor.forget(set_id)
        self.uploaded.clear()

    def load(self, build: Build, workload: Workload) -> None:
        """Makes a program's code for a workload known to the executor."""
        item = build.program.on(workload.name)
        self.executor.load(
            build.keys[workload.name],
            build.code(workload.name).binary,
            item.source,
            item.build_options,
            self.timeout_s,
        )

    def outputs(self, workload: Workload) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Returns output name -> dtype and shape."""
        return {s.name: (s.dtype, s.resolve(workload.dims)) for s in self.task.outputs}

    def numbers(self, workload: Workload) -> dict[str, tuple[str, float | int]]:
        """Returns the value of every dim (int32) and scalar that a launch may name."""
        values: dict[str, tuple[str, float | int]] = {
            name: ("int32", size) for name, size in workload.dims.items()
        }
        values.update({s.name: (s.dtype, s.value) for s in self.task.scalars})
        return values


def check(
    bench: Bench,
    build: Build,
    *,
    workloads: Sequence[Workload],
    families: Sequence[str],
    checker: Checker,
    repeats: int = 2,
) -> None:
    """Compares a program with the reference on workloads and input families.

    Each pair is run `repeats` times with alternating poison: the first result is compared with the
    reference, later ones bit by bit with the first, and with the reference where they differ.
    Small workloads come first, so a wrong program is cheap.

    Raises:
        Rejected: On the first failure.
    """
    for workload in sorted(workloads, key=lambda item: bench.task.bytes(item)):
        where = f"workload {workload.name}"
        bench.require_wanted()
        with kernel_faults(where):
            bench.load(build, workload)
        for family in families:
            expected = bench.expected(workload, family)
            set_id = bench.upload(workload, family)
            first: Mapping[str, Array] = {}
            unwritten: Mapping[str, int] = {}
            for repeat in range(max(2, repeats)):
                bench.require_wanted()
                with kernel_faults(f"{where}, inputs {family}"):
                    result = bench.executor.run(
                        code_key=build.keys[workload.name],
                        program=build.program.on(workload.name),
                        set_id=set_id,
                        outputs=bench.outputs(workload),
                        numbers=bench.numbers(workload),
                        poison=POISONS[repeat % 2],
                        timeout_s=bench.timeout_s,
                    )
                require_integrity(result.guard_violations, result.changed_inputs, checker)
                if repeat == 0:
                    first, unwritten = result.outputs, result.unwritten
                    if not any(unwritten.values()):
                        _require(checker.check(first, expected, workload, family), checker)
                    continue
                same = checker.repeated(first, result.outputs)
                if repeat == 1 and any(unwritten.values()):
                    # A right value may look like one poison pattern, hardly like each in turn.
                    both = {n: min(c, result.unwritten.get(n, 0)) for n, c in unwritten.items()}
                    _require(same or checker.unwritten(both, workload, family), checker)
                    _require(checker.check(first, expected, workload, family), checker)
                if not same:
                    _require(checker.check(result.outputs, expected, workload, family), checker)
                    if bench.task.deterministic:
                        checker.fail(
                            f"repeated runs give different bits ({where}, inputs {family})"
                        )
                        _require(False, checker)


def _require(passed: bool, checker: Checker) -> None:
    if not passed:
        raise Rejected(EvaluationStatus.INCORRECT, checker.failure, correctness=checker.result())


def require_integrity(
    guard_violations: Sequence[str], changed_inputs: Sequence[str], checker: Checker
) -> None:
    """Refuses a run that wrote where it must not.

    Raises:
        Rejected: HACK; what happened goes to the worker's log only.
    """
    problems = [f"guard band: {what}" for what in guard_violations]
    problems += [f"input changed: {name}" for name in changed_inputs]
    if problems:
        raise hack("; ".join(problems), correctness=checker.result())


class ExecutorStopwatch:
    """Times arms on an executor and checks what one timed call of the candidate wrote.

    Every block uses another input family, so content differs from block to block; the executor
    poisons outputs and scratch before each call, so no call can lean on an earlier one. In every
    block one workload's outputs are checked, in turn; all of them with `check_all`.

    Args:
        bench: Executor and inputs.
        builds: (arms,) baseline, candidate and maybe the rival.
        workloads: Names of the workloads a block visits.
        families: Input families to rotate through.
        checker: Judges the outputs of timed calls.
        check_all: Check every workload in every block.
    """

    def __init__(
        self,
        *,
        bench: Bench,
        builds: Sequence[Build],
        workloads: Sequence[str],
        families: Sequence[str],
        checker: Checker,
        check_all: bool = False,
    ) -> None:
        self._workloads = tuple(workloads)
        self._check_all = check_all
        self._bench = bench
        self._builds = builds
        self._families = families
        self._checker = checker

    def __call__(
        self, workload: str, order: Sequence[int], calls: Sequence[int], block: int
    ) -> Sequence[Sequence[float]]:
        """Runs the visits; raises Rejected when a check fails."""
        bench, size = self._bench, self._bench.task.workload(workload)
        family = self._family(block)
        where = f"timing, workload {workload}"
        bench.require_wanted()
        set_id = bench.upload(size, family)
        with kernel_faults(where):
            for build in self._builds:
                bench.load(build, size)
            arms = [
                TimedArm(
                    code_key=self._builds[arm].keys[workload],
                    program=self._builds[arm].program.on(workload),
                )
                for arm in order
            ]
            result = bench.executor.time(
                arms=arms,
                calls=calls,
                set_id=set_id,
                outputs=bench.outputs(size),
                numbers=bench.numbers(size),
                check_arm=_last(order, CANDIDATE) if self._checks(workload, block) else None,
                timeout_s=bench.timeout_s,
            )
        require_integrity(result.guard_violations, result.changed_inputs, self._checker)
        if result.outputs is not None:
            expected = bench.expected(size, family)
            passed = self._checker.check(result.outputs, expected, size, f"{family}, timed")
            _require(passed, self._checker)
        return result.arm_us

    def _checks(self, workload: str, block: int) -> bool:
        """Says whether to check this visit; never in the warm-up, block -1."""
        if block < 0:
            return False
        return self._check_all or workload == self._workloads[block % len(self._workloads)]

    def _family(self, block: int) -> str:
        """The block's input family; the turn shifts, so every workload meets every family."""
        return self._families[(block + block // len(self._workloads)) % len(self._families)]


def _last(order: Sequence[int], arm: int) -> int:
    return max(index for index, item in enumerate(order) if item == arm)

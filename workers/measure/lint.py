"""The task linter: a task whose own check lets a known-wrong answer through is refused.

No device is used. Wrong answers ("mutants") are made from the reference itself: constants, the
input passed through, sums in lower precision, elements left out, a sign ignored, rows swapped. Each
must fail the task's check on at least one search workload and input family. The honest answer, the
reference in the task's own precision, must pass everywhere with room to spare. Both together are
the evidence for the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from evo.errors import TaskError
from evo.task import Reference, Task, Workload, load_reference
from workers.measure.correctness import compare_output
from workers.measure.inputs import Array
from workers.measure.reference import Expected, ReferenceCache, evaluate_reference

HONEST_MARGIN = 1.5
"""How far under the tolerance the framework's own result must stay."""
SKIPPED_FRACTION = 0.02
MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10}
COARSE_MANTISSAS = (("fp16 or tf32", 10), ("bf16", 7), ("fp8", 3))

Outputs = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintCheck:
    """Verdict on one mutant, or on the honest answer.

    Attributes:
        name: Which answer, e.g. "skip_last_2_percent"; "honest" for the framework's own.
        passed: The task behaved as it must: mutants rejected, honest accepted.
        detail: One line of evidence.
    """

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Result of linting one task.

    Attributes:
        task: Name of the task.
        checks: All verdicts; `honest` first.
        natural_error: Largest error of the reference in the task's own precision, relative to rms.
        nearest_mutant: Smallest of the mutants' largest errors: the room there is for a tolerance.
        tolerance: What the task allows.
    """

    task: str
    checks: tuple[LintCheck, ...]
    natural_error: float
    nearest_mutant: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    task: Task
    reference: Reference
    workload: Workload
    family: str
    expected: Expected


Mutant = Callable[[_Case], Outputs | None]
"""Makes a wrong answer; None where it makes no sense for this task."""


def lint_task(task: Task, *, seed: int = 20_240_229) -> LintReport:
    """Checks that a task's own check tells right from wrong.

    Args:
        task: The task.
        seed: Seed of the inputs.

    Returns:
        The report; see `require_sound` for the refusal.

    Raises:
        TaskError: If the reference fails.
    """
    cache = ReferenceCache()
    reference = load_reference(task)

    def case(workload: Workload, family: str) -> _Case:
        return _Case(
            task=task,
            reference=reference,
            workload=workload,
            family=family,
            expected=cache.get(task, workload, family, seed),
        )

    natural, where = 0.0, ""
    for workload in task.workloads:
        for family in task.all_families:
            item = case(workload, family)
            error = _error(item, _in_precision(item, _torch_dtype(task)))
            if error >= natural:
                natural, where = error, f"workload {workload.name}, inputs {family}"
    limit = task.tolerance.max_rel
    honest = LintCheck(
        name="honest",
        passed=natural * HONEST_MARGIN <= limit,
        detail=f"error {natural:.2e} of {limit:.2e} allowed ({where})",
    )
    # Small workloads first: most mutants fail at once.
    cases = [
        (workload, family)
        for workload in sorted(task.search_workloads, key=lambda w: task.bytes(w))
        for family in task.families
    ]
    checks, nearest = [honest], math.inf
    for name, mutant in _mutants(task):
        largest, seen = -1.0, False
        for workload, family in cases:
            item = case(workload, family)
            outputs = mutant(item)
            if outputs is None:
                continue
            seen = True
            largest = max(largest, _error(item, outputs))
            if largest > limit:
                break
        if not seen:
            continue
        nearest = min(nearest, largest)
        detail = (
            f"error {largest:.2e}, over the {limit:.2e} allowed"
            if largest > limit
            else f"passes the check: error {largest:.2e} of {limit:.2e} allowed"
        )
        checks.append(LintCheck(name=name, passed=largest > limit, detail=detail))
    return LintReport(
        task=task.name,
        checks=tuple(checks),
        natural_error=natural,
        nearest_mutant=nearest,
        tolerance=limit,
    )


def require_sound(report: LintReport) -> None:
    """Refuses a task that failed its lint.

    Raises:
        TaskError: Naming the first failed check and its evidence.
    """
    for check in report.checks:
        if check.passed:
            continue
        if check.name == "honest":
            raise TaskError(
                f"task {report.task} refused: the framework's own result does not pass with a"
                f" margin of {HONEST_MARGIN}: {check.detail}"
            )
        raise TaskError(f"task {report.task} refused: mutant {check.name} {check.detail}")


def _error(case: _Case, outputs: Mapping[str, Array]) -> float:
    """Largest error over the outputs relative to rms; inf for what no tolerance can accept."""
    worst = 0.0
    for spec in case.task.outputs:
        errors = compare_output(
            outputs[spec.name],
            case.expected.outputs[spec.name],
            case.expected.rms[spec.name],
            outputs[spec.name].dtype.name,
        )
        worst = max(worst, math.inf if errors.reason else errors.max_rel)
    return worst


def _torch_dtype(task: Task) -> str:
    """The precision that the task works in: the widest floating dtype of its tensors."""
    found = [s.dtype for s in (*task.inputs, *task.outputs) if s.dtype in MANTISSA_BITS]
    return max(found, key=lambda name: MANTISSA_BITS[name], default="float64")


def _in_precision(case: _Case, dtype: str) -> Outputs:
    import torch

    outputs = evaluate_reference(
        case.task, case.reference, case.expected.inputs, case.workload, getattr(torch, dtype)
    )
    # Round to what the task stores.
    return {spec.name: outputs[spec.name].astype(spec.dtype) for spec in case.task.outputs}


def _mutants(task: Task) -> Iterator[tuple[str, Mutant]]:
    yield "constant_zero", lambda case: _map(case, np.zeros_like)
    yield "constant_mean", lambda case: _map(case, lambda a: np.full_like(a, a.mean()))
    yield "row_mean", lambda case: _map(case, _row_mean, least=2)
    yield "identity", _identity
    yield "skip_last_2_percent", lambda case: _map(case, _skip_outputs)
    yield "ignore_last_2_percent_of_inputs", lambda case: _with_inputs(case, _zero_tail)
    yield "one_sided", lambda case: _with_inputs(case, np.abs)
    yield "swapped_rows", lambda case: _map(case, _swap_rows)
    own = MANTISSA_BITS[_torch_dtype(task)]
    coarser = [(name, bits) for name, bits in COARSE_MANTISSAS if bits < own]
    for name, bits in coarser[:2]:
        yield f"inputs_rounded_to_{name.replace(' ', '_')}", _rounded(bits)
    if own > MANTISSA_BITS["float16"]:
        yield "accumulates_in_float16", _half


def _map(case: _Case, change: Callable[[Array], Array | None], least: int = 1) -> Outputs | None:
    outputs = {}
    for name, array in case.expected.outputs.items():
        changed = change(array.copy()) if array.size >= least else None
        if changed is None:
            return None
        outputs[name] = changed
    return outputs


def _row_mean(array: Array) -> Array | None:
    if array.ndim < 2 or array.shape[-1] < 2:
        return None
    return np.broadcast_to(array.mean(axis=-1, keepdims=True), array.shape).astype(array.dtype)


def _skip_outputs(array: Array) -> Array:
    flat = array.reshape(-1)
    skipped = max(1, int(flat.size * SKIPPED_FRACTION))
    done = flat[:-skipped]
    flat[-skipped:] = done.mean() if done.size else 0
    return array


def _swap_rows(array: Array) -> Array | None:
    axes = [axis for axis, size in enumerate(array.shape) if size > 1]
    return np.ascontiguousarray(np.roll(array, 1, axis=axes[0])) if axes else None


def _identity(case: _Case) -> Outputs | None:
    outputs = {}
    for name, array in case.expected.outputs.items():
        same = [i for i in case.expected.inputs.values() if i.shape == array.shape]
        if not same:
            return None
        outputs[name] = same[0].astype(array.dtype)
    return outputs


def _with_inputs(case: _Case, change: Callable[[Array], Array]) -> Outputs | None:
    """Runs the reference on changed floating inputs."""
    inputs = dict(case.expected.inputs)
    reals = [name for name, array in inputs.items() if array.dtype.kind == "f" and array.size]
    if not reals:
        return None
    inputs.update({name: change(inputs[name].copy()) for name in reals})
    return evaluate_reference(case.task, case.reference, inputs, case.workload)


def _zero_tail(array: Array) -> Array:
    flat = array.reshape(-1)
    flat[-max(1, int(flat.size * SKIPPED_FRACTION)) :] = 0
    return array


def _rounded(bits: int) -> Mutant:
    def mutant(case: _Case) -> Outputs | None:
        return _with_inputs(case, lambda array: round_mantissa(array, bits))

    return mutant


def round_mantissa(array: Array, bits: int) -> Array:
    """Rounds reals to `bits` explicit mantissa bits (bf16 has 7, fp16 and tf32 have 10)."""
    values = array.astype(np.float64)
    mantissa, exponent = np.frexp(values)
    scale = float(1 << (bits + 1))
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(mantissa * scale) / scale, exponent)
    return np.where(np.isfinite(values), rounded, values).astype(array.dtype)


def _half(case: _Case) -> Outputs | None:
    import torch

    try:
        return evaluate_reference(
            case.task, case.reference, case.expected.inputs, case.workload, torch.float16
        )
    except TaskError:
        return None  # an operation that torch does not have in half precision

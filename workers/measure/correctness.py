"""Compares what a kernel wrote with the float64 reference.

Errors are relative to the root mean square of the whole reference output, not to single elements:
an element near zero may carry the rounding of its large neighbours, while a constant answer still
misses by about one rms. Integer and boolean outputs must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from evo.evaluation import Correctness
from evo.task import Task, Workload
from workers.measure.inputs import Array
from workers.measure.reference import Expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Distance of one output from its reference.

    Attributes:
        reason: Why it can't be right whatever the tolerance; empty if only distances decide.
        max_abs: Largest absolute error.
        max_rel: `max_abs` over the reference's rms; inf where the reference is all zero and the
            output is not.
        norm_ratio: Norm of the error over norm of the reference.
        index: Where the largest error is.
    """

    reason: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    norm_ratio: float = 0.0
    index: tuple[int, ...] = ()


def compare_output(output: Array, reference: Array, rms: float, dtype: str) -> Errors:
    """Measures one output.

    Args:
        output: As read back from the device.
        reference: float64 (or integer) reference of the declared shape.
        rms: Root mean square of the reference.
        dtype: The dtype the task declares.
    """
    if output.shape != reference.shape:
        return Errors(reason=f"shape {output.shape} instead of {reference.shape}")
    if output.dtype != np.dtype(dtype):
        return Errors(reason=f"dtype {output.dtype} instead of {dtype}")
    if output.size == 0:
        return Errors()
    got = output.astype(np.float64)
    want = reference.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got - want)
    if not np.isfinite(difference).all():
        # Rare: sort out which non-finite values are the right ones.
        wrong = _wrong_specials(got, want)
        if wrong is not None:
            value = got[wrong]
            return Errors(reason=f"{value} at {list(wrong)}, which is not right", index=wrong)
        difference = np.where(np.isfinite(want), difference, 0.0)
    flat_index = int(difference.argmax())
    index = tuple(int(i) for i in np.unravel_index(flat_index, difference.shape))
    max_abs = float(difference.reshape(-1)[flat_index])
    if np.dtype(dtype).kind not in "fc" and max_abs > 0.0:
        return Errors(
            reason=f"differs at {list(index)}", max_abs=max_abs, max_rel=math.inf, index=index
        )
    return Errors(
        max_abs=max_abs,
        max_rel=_ratio(max_abs, rms),
        norm_ratio=_ratio(float(np.sqrt(np.mean(np.square(difference)))), rms),
        index=index,
    )


def _wrong_specials(got: Array, want: Array) -> tuple[int, ...] | None:
    """Index of the first element that is non-finite and should not be, or the other way round."""
    same_kind = np.where(np.isfinite(want), np.isfinite(got), False)
    same_kind |= np.isnan(want) & np.isnan(got)
    same_kind |= np.isinf(want) & (got == want)
    wrong = np.flatnonzero(~same_kind.reshape(-1))
    if wrong.size == 0:
        return None
    return tuple(int(i) for i in np.unravel_index(int(wrong[0]), want.shape))


def _ratio(value: float, scale: float) -> float:
    if value == 0.0:
        return 0.0
    return value / scale if scale > 0.0 else math.inf


@dataclass(slots=True, kw_only=True)
class Checker:
    """Collects the checks of one evaluation; the first failure ends them.

    Attributes:
        task: Gives outputs and tolerance.
        failure: One line about the first failed check, empty while all passed. It names the
            workload, the input family and the worst index, never a seed or an expected value.
    """

    task: Task
    failure: str = ""
    checks: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    norm_ratio: float = 0.0
    deterministic: bool = True
    worst: str = ""
    _measured: bool = field(default=False, repr=False)

    def check(
        self, outputs: Mapping[str, Array], expected: Expected, workload: Workload, family: str
    ) -> bool:
        """Checks one run against the reference; returns whether it passed."""
        self.checks += 1
        where = f"workload {workload.name}, inputs {family}"
        limit = self.task.tolerance.max_rel
        for spec in self.task.outputs:
            errors = compare_output(
                outputs[spec.name],
                expected.outputs[spec.name],
                expected.rms[spec.name],
                spec.dtype,
            )
            self._keep(errors, where)
            if errors.reason:
                self.fail(f"output {spec.name} wrong ({where}): {errors.reason}")
                return False
            if not errors.max_rel <= limit:
                self.fail(
                    f"output {spec.name} wrong ({where}): error {errors.max_rel:.3g} of the"
                    f" output's rms at {list(errors.index)}, allowed {limit:.3g}"
                )
                return False
        return True

    def unwritten(self, counts: Mapping[str, int], workload: Workload, family: str) -> bool:
        """Records elements that no run wrote; returns whether all were written."""
        for name, count in counts.items():
            if count:
                self.checks += 1
                self.fail(
                    f"output {name}: {count} elements never written"
                    f" (workload {workload.name}, inputs {family})"
                )
                return False
        return True

    def repeated(self, first: Mapping[str, Array], second: Mapping[str, Array]) -> bool:
        """Compares two runs on equal inputs bit by bit; returns whether they are equal."""
        same = all(_same_bits(first[spec.name], second[spec.name]) for spec in self.task.outputs)
        if not same:
            self.deterministic = False
        return same

    def fail(self, message: str) -> None:
        """Notes a failure; the first one stays."""
        self.failure = self.failure or message

    def result(self) -> Correctness:
        """Returns the record; error sizes are None unless something was measured."""
        return Correctness(
            passed=not self.failure and self.checks > 0,
            checks=self.checks,
            max_abs=_finite(self.max_abs) if self._measured else None,
            max_rel=_finite(self.max_rel) if self._measured else None,
            norm_ratio=_finite(self.norm_ratio) if self._measured else None,
            tolerance=self.task.tolerance.max_rel,
            deterministic=self.deterministic,
            worst=self.worst,
        )

    def _keep(self, errors: Errors, where: str) -> None:
        if errors.reason and errors.max_abs == 0.0:
            return
        if not self._measured or errors.max_rel > self.max_rel:
            self.worst = where
        self._measured = True
        self.max_abs = max(self.max_abs, errors.max_abs)
        self.max_rel = max(self.max_rel, errors.max_rel)
        self.norm_ratio = max(self.norm_ratio, errors.norm_ratio)


def _same_bits(first: Array, second: Array) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return np.array_equal(
        np.ascontiguousarray(first).view(np.uint8), np.ascontiguousarray(second).view(np.uint8)
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

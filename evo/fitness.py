"""A kernel's fitness for parent selection, as DEAP sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from deap import base

from evo.archives.base import Elite


class KernelFitness(base.Fitness):  # type: ignore[misc]
    """Log speed-up (lower bound, maximised), compile seconds and numerical error (minimised).

    Compared lexicographically, so the later values break ties only; `dominates` compares all
    three. DEAP orders NaN inconsistently (nan > 1 and 1 > nan both hold), so values must be finite.

    Args:
        values: The three values, or nothing for a fitness not known yet.

    Raises:
        ValueError: If there are not three values, or one is not finite.
    """

    weights = (1.0, -1.0, -1.0)

    def __init__(self, values: Iterable[float] = ()) -> None:
        super().__init__(tuple(values))

    def _set_values(self, values: Iterable[float]) -> None:
        checked = tuple(float(value) for value in values)
        if len(checked) != len(self.weights):
            raise ValueError(f"a fitness has {len(self.weights)} values, got {len(checked)}")
        if not all(math.isfinite(value) for value in checked):
            raise ValueError(f"a fitness must be finite, got {checked}")
        self.setValues(checked)

    values = property(
        base.Fitness.getValues,
        _set_values,
        base.Fitness.delValues,
        "Log speed-up, compile seconds, numerical error.",
    )


def fitness_of(elite: Elite) -> KernelFitness:
    """Returns an elite's fitness; an error that was not measured counts as the tolerance."""
    evaluation = elite.evaluation
    error = 0.0
    if evaluation.correctness is not None:
        measured = evaluation.correctness.max_rel
        error = evaluation.correctness.tolerance if measured is None else measured
    return KernelFitness((elite.objective.low, evaluation.compile_s, error))

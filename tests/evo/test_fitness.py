from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deap import tools

from evo.archives.grid import GridArchive
from evo.evaluation import Correctness
from evo.fitness import KernelFitness, fitness_of
from evo.testing.archive_suite import make_candidate, make_evaluation


def test_faster_wins_whatever_the_rest() -> None:
    assert KernelFitness((0.2, 9.0, 1e-3)) > KernelFitness((0.1, 0.1, 1e-9))


def test_ties_go_to_the_quicker_compile_then_the_smaller_error() -> None:
    assert KernelFitness((0.1, 1.0, 0.5)) > KernelFitness((0.1, 2.0, 0.1))
    assert KernelFitness((0.1, 1.0, 0.1)) > KernelFitness((0.1, 1.0, 0.5))


def test_dominance_compares_all_three() -> None:
    fast, precise = KernelFitness((0.2, 1.0, 0.5)), KernelFitness((0.1, 1.0, 0.1))
    assert not fast.dominates(precise)
    assert not precise.dominates(fast)
    assert KernelFitness((0.2, 1.0, 0.1)).dominates(fast)


def test_works_with_non_dominated_sorting() -> None:
    class Individual:
        def __init__(self, *values: float) -> None:
            self.fitness = KernelFitness(values)

    front, worse = Individual(0.2, 1.0, 0.5), Individual(0.1, 2.0, 0.6)
    assert tools.sortNondominated([worse, front], 2) == [[front], [worse]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_not_finite_is_refused(bad: float, position: int) -> None:
    values = [0.0, 0.0, 0.0]
    values[position] = bad
    with pytest.raises(ValueError, match="finite"):
        KernelFitness(values)
    fitness = KernelFitness()
    with pytest.raises(ValueError, match="finite"):
        fitness.values = values
    assert not fitness.valid


def test_three_values_or_none() -> None:
    with pytest.raises(ValueError, match="3 values"):
        KernelFitness((1.0,))
    fitness = KernelFitness((1.0, 2.0, 3.0))
    assert fitness.values == (1.0, 2.0, 3.0)
    del fitness.values
    assert not fitness.valid


def test_of_an_elite() -> None:
    archive = GridArchive()
    evaluation = replace(make_evaluation("j", [0.3, 0.5]), compile_s=0.25)
    archive.add(make_candidate(1), evaluation, (0, 0, 0))
    elite = archive.best()
    assert elite is not None
    assert fitness_of(elite).values == (elite.objective.low, 0.25, 1e-7)
    unmeasured = Correctness(passed=True, checks=1, tolerance=1e-5)
    vague = replace(elite, evaluation=replace(evaluation, correctness=unmeasured))
    assert fitness_of(vague).values[2] == 1e-5

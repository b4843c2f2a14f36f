from __future__ import annotations

import numpy as np
import pytest

from evo.errors import ConfigError
from evo.testing.operator_suite import OperatorSuite, toy_templates, toy_view
from evo.variation import Operator
from operators.crossover import Crossover


class TestCrossover(OperatorSuite):
    def make_operator(self) -> Operator:
        return Crossover()


class TestCrossoverOfElitesOnly(OperatorSuite):
    def make_operator(self) -> Operator:
        return Crossover(mates=0)


def test_children_take_each_value_from_a_parent_unless_repaired() -> None:
    view = toy_view(60)
    genomes = {r.candidate.id: r.candidate.genome for r in view.evaluated}
    rng = np.random.default_rng(0)
    inherited = total = 0
    for _ in range(150):
        proposal = Crossover().propose(view, rng)
        assert proposal is not None
        one, other = (genomes[parent] for parent in proposal.parents)
        assert one.template == other.template == proposal.template
        for name, value in proposal.params.items():
            inherited += value in (one.params[name], other.params[name])
            total += 1
    assert inherited > 0.95 * total


def test_swap_decides_how_much_comes_from_the_mate() -> None:
    view = toy_view(60)
    genomes = {r.candidate.id: r.candidate.genome for r in view.evaluated}

    def from_mate(swap: float) -> float:
        rng = np.random.default_rng(0)
        shares = []
        for _ in range(80):
            proposal = Crossover(swap=swap).propose(view, rng)
            if proposal is None:
                continue
            one, other = (genomes[parent].params for parent in proposal.parents)
            differing = [name for name in one if one[name] != other[name]]
            taken = sum(proposal.params[name] == other[name] for name in differing)
            shares.append(taken / max(1, len(differing)))
        return float(np.mean(shares))

    assert from_mate(0.2) < 0.4 < 0.6 < from_mate(0.8)


def test_mates_are_the_fastest_when_elites_are_few() -> None:
    # All points of this template fall into few cells; with two elites or fewer, mates help.
    view = toy_view(30, templates=toy_templates()[1:], seed=4)
    elites = {elite.candidate.id for elite in view.archive}
    rng = np.random.default_rng(0)
    parents: set[str] = set()
    for _ in range(100):
        proposal = Crossover(mates=5).propose(view, rng)
        if proposal is not None:
            parents.update(proposal.parents)
    timed = [r for r in view.evaluated if r.objective is not None]
    fastest = sorted(timed, key=lambda r: -(r.objective or 0.0))[:5]
    assert parents <= elites | {r.candidate.id for r in fastest}
    assert parents - elites


@pytest.mark.parametrize("settings", [{"swap": -0.1}, {"mates": -1}, {"attempts": 0}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Crossover(**settings)  # type: ignore[arg-type]

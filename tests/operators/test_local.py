from __future__ import annotations

import numpy as np
import pytest

from evo.errors import ConfigError
from evo.testing.operator_suite import OperatorSuite, toy_speed, toy_view
from evo.variation import Operator
from operators.local import Local


class TestLocal(OperatorSuite):
    def make_operator(self) -> Operator:
        return Local()


def test_steps_from_the_best_elite_first_then_from_the_next() -> None:
    view = toy_view(60)
    ranked = sorted(view.archive, key=lambda elite: -elite.objective.low)
    assert isinstance(view.seen, set)
    rng = np.random.default_rng(0)
    origins = []
    for _ in range(40):
        proposal = Local(width=3, radius=1).propose(view, rng)
        if proposal is None:
            break
        entry = view.template(proposal.template)
        view.seen.add(entry.genome(proposal.params).key)
        origins.append(proposal.parents[0])
    assert origins[0] == ranked[0].candidate.id
    used = list(dict.fromkeys(origins))
    assert used == [elite.candidate.id for elite in ranked[: len(used)]]
    assert 2 <= len(used) <= 3


def test_one_parameter_moves() -> None:
    view = toy_view(60)
    genomes = {r.candidate.id: r.candidate.genome for r in view.evaluated}
    proposal = Local().propose(view, np.random.default_rng(0))
    assert proposal is not None
    parent = genomes[proposal.parents[0]].params
    assert sum(parent[name] != value for name, value in proposal.params.items()) == 1


def test_promising_neighbours_come_before_random_ones() -> None:
    def mean_gain(greed: int) -> float:
        gains = []
        for seed in range(25):
            view = toy_view(60, seed=seed)
            genomes = {r.candidate.id: r.candidate.genome for r in view.evaluated}
            proposal = Local(greed=greed).propose(view, np.random.default_rng(seed))
            assert proposal is not None
            child = view.template(proposal.template).genome(proposal.params)
            gains.append(toy_speed(child) - toy_speed(genomes[proposal.parents[0]]))
        return float(np.mean(gains))

    assert mean_gain(greed=1) > mean_gain(greed=100) + 0.05


@pytest.mark.parametrize("settings", [{"width": 0}, {"radius": 0}, {"greed": 0}])
def test_bad_settings(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Local(**settings)  # type: ignore[arg-type]

from __future__ import annotations

import numpy as np
import pytest

from evo.errors import ConfigError
from evo.testing.operator_suite import OperatorSuite, toy_view
from evo.variation import Operator, SearchView
from operators.mutate import Mutate


class TestMutate(OperatorSuite):
    def make_operator(self) -> Operator:
        return Mutate()


def _moves(view: SearchView, operator: Mutate, count: int = 150) -> list[int]:
    """Numbers of parameters in which children differ from their parents."""
    rng = np.random.default_rng(2)
    params = {r.candidate.id: r.candidate.genome.params for r in view.evaluated}
    moves = []
    for _ in range(count):
        proposal = operator.propose(view, rng)
        assert proposal is not None
        parent = params[proposal.parents[0]]
        assert set(parent) == set(proposal.params)
        moved = [name for name in parent if parent[name] != proposal.params[name]]
        assert proposal.note.count("->") == len(moved)
        moves.append(len(moved))
    return moves


def test_single_moves_when_asked() -> None:
    assert set(_moves(toy_view(60), Mutate(more=0.0))) == {1}


def test_more_moves_are_rarer() -> None:
    moves = _moves(toy_view(60), Mutate(more=0.5))
    counts = [moves.count(number) for number in (1, 2, 3)]
    assert counts[0] > counts[1] > counts[2] > 0


def test_radius_bounds_the_step() -> None:
    view = toy_view(60)
    unrolls = {r.candidate.id: r.candidate.genome.params["unroll"] for r in view.evaluated}
    steps: dict[int, set[int]] = {}
    for radius in (1, 3):
        rng = np.random.default_rng(0)
        steps[radius] = set()
        for _ in range(200):
            proposal = Mutate(more=0.0, radius=radius).propose(view, rng)
            assert proposal is not None
            steps[radius].add(
                abs(int(proposal.params["unroll"]) - int(unrolls[proposal.parents[0]]))
            )
    # A constraint may make the next valid value further away than one.
    assert max(steps[1]) < max(steps[3])


@pytest.mark.parametrize("settings", [{"more": 1.5}, {"radius": 0}, {"attempts": 0}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Mutate(**settings)  # type: ignore[arg-type]

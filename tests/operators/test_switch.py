from __future__ import annotations

import numpy as np
import pytest

from evo.errors import ConfigError
from evo.testing.operator_suite import OperatorSuite, toy_templates, toy_view
from evo.variation import Operator
from operators.switch import Switch


class TestSwitch(OperatorSuite):
    def make_operator(self) -> Operator:
        return Switch()


def test_carries_values_by_name_and_defaults_the_rest() -> None:
    view = toy_view(60)
    genomes = {r.candidate.id: r.candidate.genome for r in view.evaluated}
    rng = np.random.default_rng(0)
    seen_both_ways = set()
    for _ in range(60):
        proposal = Switch(jitter=0.0).propose(view, rng)
        assert proposal is not None
        parent = genomes[proposal.parents[0]]
        assert parent.template != proposal.template
        assert proposal.note.startswith(f"{parent.template} -> {proposal.template}")
        if proposal.template == "tiled":
            # Everything the plain template has is legal in the tiled one, so it arrives unchanged
            # unless that very point was seen and a neighbour taken.
            target = {**parent.params, "cache": False, "order": "row"}
            moved = sum(target[name] != value for name, value in proposal.params.items())
            assert moved <= 1
            seen_both_ways.add(moved)
    assert 0 in seen_both_ways


def test_jitter_moves_on() -> None:
    view = toy_view(60)
    notes = {
        jitter: {
            tuple(proposal.params.items())
            for seed in range(40)
            if (proposal := Switch(jitter=jitter).propose(view, np.random.default_rng(seed)))
        }
        for jitter in (0.0, 1.0)
    }
    assert len(notes[1.0]) > len(notes[0.0])


def test_one_template_cannot_be_switched() -> None:
    view = toy_view(20, templates=toy_templates()[:1])
    assert Switch().propose(view, np.random.default_rng(0)) is None


@pytest.mark.parametrize("settings", [{"jitter": 2.0}, {"attempts": 0}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Switch(**settings)  # type: ignore[arg-type]

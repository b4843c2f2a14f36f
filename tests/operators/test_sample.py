from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from evo.errors import ConfigError
from evo.params import pow2, stepped
from evo.space import Space
from evo.testing.operator_suite import OperatorSuite, toy_view
from evo.variation import Operator, TemplateEntry
from operators.sample import Sample


class TestSample(OperatorSuite):
    needs_elites = False

    def make_operator(self) -> Operator:
        return Sample()


def test_templates_get_equal_shares_whatever_their_size() -> None:
    view = toy_view(0)
    rng = np.random.default_rng(0)
    names: Counter[str] = Counter()
    for _ in range(200):
        proposal = Sample().propose(view, rng)
        assert proposal is not None
        names[proposal.template] += 1
    assert 70 < names["plain"] < 130


def test_a_small_space_is_used_to_the_last_point() -> None:
    space = Space(params=(pow2("a", 1, 64, 1), stepped("b", 0, 9, 1, 0)), constraints=("a < 32",))
    entry = TemplateEntry(name="small", hash="0" * 16, space=space)
    view = toy_view(0, templates=(entry,))
    seen = view.seen
    assert isinstance(seen, set)
    rng = np.random.default_rng(0)
    for _ in range(50):
        proposal = Sample(draws=1).propose(view, rng)
        assert proposal is not None
        seen.add(entry.genome(proposal.params).key)
    assert len(seen) == 50 == space.size().count
    assert Sample().propose(view, rng) is None


def test_a_large_space_is_not_listed() -> None:
    space = Space(params=(pow2("a", 1, 64, 1), stepped("b", 0, 9, 1, 0)))
    entry = TemplateEntry(name="large", hash="0" * 16, space=space)
    view = toy_view(0, templates=(entry,))
    assert isinstance(view.seen, set)
    view.seen.update(entry.genome(params).key for params in space.enumerate())
    assert Sample(enumerate_up_to=10).propose(view, np.random.default_rng(0)) is None


@pytest.mark.parametrize("settings", [{"draws": 0}, {"enumerate_up_to": -1}])
def test_bad_settings(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Sample(**settings)  # type: ignore[arg-type]

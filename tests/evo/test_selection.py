from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from evo.archives.base import Elite
from evo.archives.grid import GridArchive
from evo.errors import ConfigError
from evo.selection import EliteSelection, fenced_random
from evo.testing.archive_suite import offer


@pytest.fixture
def elites() -> list[Elite]:
    archive = GridArchive()
    for number in range(10):
        offer(archive, number, 0.1 * number, (number % 4, number // 4, 0))
    return list(archive)


def _counts(selection: EliteSelection, elites: list[Elite]) -> Counter[str]:
    chosen = selection(elites, 2000, np.random.default_rng(0))
    return Counter(elite.candidate.id for elite in chosen)


def test_tournament_prefers_the_fast(elites: list[Elite]) -> None:
    counts = _counts(EliteSelection(tournament_size=3, diversity=0.0), elites)
    # The best of ten wins a tournament of three with probability 1 - 0.9 ** 3.
    assert counts["c000009"] == pytest.approx(2000 * 0.271, rel=0.15)
    assert counts["c000009"] > counts["c000005"] > counts["c000001"]


def test_diversity_gives_every_cell_its_chance(elites: list[Elite]) -> None:
    counts = _counts(EliteSelection(tournament_size=3, diversity=1.0), elites)
    assert len(counts) == 10
    assert min(counts.values()) > 140


def test_mixture(elites: list[Elite]) -> None:
    greedy = _counts(EliteSelection(diversity=0.0), elites)["c000000"]
    mixed = _counts(EliteSelection(diversity=0.5), elites)["c000000"]
    assert greedy < 30 < 70 < mixed < 140


def test_parents_do_not_come_sorted_by_how_they_were_picked(elites: list[Elite]) -> None:
    selection = EliteSelection(tournament_size=50, diversity=0.5)
    first = [
        selection(elites, 2, np.random.default_rng(seed))[0].candidate.id for seed in range(300)
    ]
    assert 0.3 < first.count("c000009") / 300 < 0.8


def test_no_elites_no_parents() -> None:
    assert EliteSelection()([], 3, np.random.default_rng(0)) == []


def test_depends_on_the_generator_not_on_global_random(elites: list[Elite]) -> None:
    selection = EliteSelection()
    first = selection(elites, 20, np.random.default_rng(7))
    random.seed(123)
    random.random()
    assert selection(elites, 20, np.random.default_rng(7)) == first
    assert selection(elites, 20, np.random.default_rng(8)) != first


def test_global_random_goes_on_as_if_nothing_had_happened(elites: list[Elite]) -> None:
    random.seed(5)
    expected = [random.random() for _ in range(4)]
    random.seed(5)
    found = [random.random() for _ in range(2)]
    EliteSelection()(elites, 20, np.random.default_rng(0))
    assert found + [random.random() for _ in range(2)] == expected


def test_the_fence_holds_when_something_raises() -> None:
    random.seed(5)
    before = random.getstate()

    def fail() -> None:
        with fenced_random(np.random.default_rng(0)):
            raise ZeroDivisionError(random.random())

    with pytest.raises(ZeroDivisionError):
        fail()
    assert random.getstate() == before


@pytest.mark.parametrize("settings", [{"tournament_size": 0}, {"diversity": 1.1}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        EliteSelection(**settings)  # type: ignore[arg-type]

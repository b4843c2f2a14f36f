from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from evo.bandit import DEFAULT_REWARDS, POLICIES, Bandit
from evo.errors import ConfigError
from evo.variation import Tier

NAMES = ("a", "b", "c")


def _play(
    bandit: Bandit, odds: dict[str, float], rounds: int, rng: np.random.Generator
) -> Counter[str]:
    """Plays arms that reach NEW_BEST with the given odds and CORRECT otherwise."""
    chosen: Counter[str] = Counter()
    for _ in range(rounds):
        name = bandit.select(rng)
        bandit.start(name)
        chosen[name] += 1
        bandit.credit(name, Tier.NEW_BEST if rng.random() < odds[name] else Tier.CORRECT)
    return chosen


@pytest.mark.parametrize("policy", POLICIES)
class TestPolicies:
    def test_every_arm_is_tried_before_any_is_known(self, policy: str) -> None:
        bandit = Bandit(names=NAMES, policy=policy)
        rng = np.random.default_rng(0)
        tried = []
        for _ in NAMES:
            tried.append(bandit.select(rng))
            bandit.start(tried[-1])
        assert sorted(tried) == list(NAMES)

    def test_the_paying_arm_is_played_most_and_no_arm_is_forgotten(self, policy: str) -> None:
        bandit = Bandit(names=NAMES, policy=policy)
        chosen = _play(bandit, {"a": 0.05, "b": 0.6, "c": 0.05}, 400, np.random.default_rng(1))
        assert chosen["b"] > 240
        assert min(chosen.values()) >= 8

    def test_it_notices_when_another_arm_starts_to_pay(self, policy: str) -> None:
        bandit = Bandit(names=NAMES, policy=policy)
        rng = np.random.default_rng(2)
        _play(bandit, {"a": 0.6, "b": 0.0, "c": 0.0}, 300, rng)
        later = _play(bandit, {"a": 0.0, "b": 0.0, "c": 0.6}, 300, rng)
        assert later["c"] > later["a"]

    def test_same_generator_same_choices(self, policy: str) -> None:
        odds = {"a": 0.1, "b": 0.3, "c": 0.2}
        runs = [
            _play(Bandit(names=NAMES, policy=policy), odds, 100, np.random.default_rng(seed))
            for seed in (3, 3, 4)
        ]
        assert runs[0] == runs[1] != runs[2]

    def test_select_changes_nothing_but_the_generator(self, policy: str) -> None:
        bandit = Bandit(names=NAMES, policy=policy)
        _play(bandit, {"a": 0.1, "b": 0.3, "c": 0.2}, 30, np.random.default_rng(0))
        before = bandit.stats()
        first = [bandit.select(np.random.default_rng(s)) for s in range(20)]
        assert [bandit.select(np.random.default_rng(s)) for s in range(20)] == first
        assert bandit.stats() == before

    def test_choice_among_some(self, policy: str) -> None:
        bandit = Bandit(names=NAMES, policy=policy)
        rng = np.random.default_rng(0)
        _play(bandit, {"a": 0.9, "b": 0.0, "c": 0.0}, 50, rng)
        assert {bandit.select(rng, ["b", "c"]) for _ in range(50)} <= {"b", "c"}
        assert "a" in {bandit.select(rng) for _ in range(50)}


def test_slots_are_spread_while_results_are_outstanding() -> None:
    bandit = Bandit(names=NAMES, policy="ucb")
    rng = np.random.default_rng(0)
    _play(bandit, {"a": 0.35, "b": 0.3, "c": 0.3}, 60, rng)
    chosen = []
    for _ in range(12):
        chosen.append(bandit.select(rng))
        bandit.start(chosen[-1])
    assert len(set(chosen)) == 3


def test_rewards_rise_with_the_tier() -> None:
    bandit = Bandit(names=["a"])
    paid = [bandit.credit("a", tier) for tier in sorted(Tier)]
    assert paid == sorted(paid)
    assert paid[0] == 0.0
    assert paid[-1] == 1.0
    assert len(set(paid)) == len(Tier)


def test_old_outcomes_fade() -> None:
    bandit = Bandit(names=["a", "b"], discount=0.5)
    bandit.credit("a", Tier.NEW_BEST)
    for _ in range(3):
        bandit.credit("a", Tier.INVALID)
    [a, b] = bandit.stats()
    assert a.mean_reward == pytest.approx(0.125 / (1 + 0.5 + 0.25 + 0.125))
    assert a.credited == 4
    assert b.mean_reward is None


def test_own_rewards() -> None:
    bandit = Bandit(names=["a"], rewards={"new_cell": 0.9})
    assert bandit.credit("a", Tier.NEW_CELL) == 0.9
    assert bandit.credit("a", Tier.CORRECT) == DEFAULT_REWARDS["correct"]


def test_reward_per_cost() -> None:
    thrifty = Bandit(names=["a"], cost_exponent=1.0)
    assert thrifty.credit("a", Tier.NEW_BEST, cost=2.0) == pytest.approx(1.0)
    assert thrifty.credit("a", Tier.NEW_BEST, cost=6.0) == pytest.approx(4.0 / 6.0)
    careless = Bandit(names=["a"])
    assert careless.credit("a", Tier.NEW_BEST, cost=1e9) == 1.0


def test_started_and_cancelled() -> None:
    bandit = Bandit(names=["a"])
    bandit.start("a")
    bandit.cancel("a")
    [stats] = bandit.stats()
    assert (stats.started, stats.credited, stats.mean_reward) == (1, 0, None)


@pytest.mark.parametrize("method", ["start", "cancel"])
def test_unknown_names(method: str) -> None:
    bandit = Bandit(names=NAMES)
    with pytest.raises(ConfigError, match="no arm 'z' .allowed: a, b, c"):
        getattr(bandit, method)("z")
    with pytest.raises(ConfigError, match="no arm 'z'"):
        bandit.credit("z", Tier.CORRECT)
    with pytest.raises(ConfigError, match="no arm 'z'"):
        bandit.select(np.random.default_rng(0), ["z"])
    with pytest.raises(ConfigError, match="no arms"):
        bandit.select(np.random.default_rng(0), [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": ()}, "names"),
        ({"names": ("a", "a")}, "names"),
        ({"policy": "greedy"}, "thompson, ucb"),
        ({"discount": 0.0}, "discount"),
        ({"prior_mean": 1.0}, "prior_mean"),
        ({"prior_weight": 0.0}, "prior_weight"),
        ({"exploration": -1.0}, "exploration"),
        ({"cost_exponent": -1.0}, "cost_exponent"),
        ({"rewards": {"best": 1.0}}, "allowed: invalid, failed, correct"),
        ({"rewards": {"new_best": 2.0}}, "new_best"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Bandit(**{"names": NAMES, **settings})  # type: ignore[arg-type]

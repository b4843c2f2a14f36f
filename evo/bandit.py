"""Which operator gets the next evaluation: a discounted bandit over names, paid by outcome tier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evo.errors import ConfigError
from evo.variation import Tier

DEFAULT_REWARDS: Mapping[str, float] = {
    "invalid": 0.0,
    "failed": 0.02,
    "correct": 0.1,
    "new_cell": 0.6,
    "improved": 0.7,
    "new_best": 1.0,
}
"""Reward of each tier, between 0 and 1."""

POLICIES = ("thompson", "ucb")


@dataclass(slots=True)
class _Arm:
    """Discounted sums over an arm's outcomes."""

    reward: float = 0.0
    weight: float = 0.0
    started: int = 0
    waiting: int = 0
    credited: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmStats:
    """An arm's account: candidates it started, outcomes known, discounted mean reward."""

    name: str
    started: int
    credited: int
    mean_reward: float | None


class Bandit:
    """Discounted Thompson sampling, or discounted UCB, over named arms.

    Old outcomes fade, because what pays changes during a search: sampling opens cells early, local
    steps improve them later (Garivier and Moulines 2011, https://arxiv.org/abs/0805.3415; Raj and
    Kalyani 2017, https://arxiv.org/abs/1707.09727). Arms that were never started go first. An arm
    with results outstanding counts as tried, so that many slots are not filled by one arm.

    Args:
        names: Arms, in a fixed order.
        policy: "thompson" draws from each arm's Beta posterior, "ucb" takes the largest bound.
        discount: Factor on every arm's past at each outcome; 0.98 remembers about 50 outcomes.
        prior_mean: Reward expected of an arm without a past.
        prior_weight: Outcomes that expectation is worth.
        exploration: Width of the UCB bonus (unused by Thompson sampling).
        rewards: Tier name in lower case -> reward in [0, 1]; tiers left out keep their default.
        cost_exponent: 0 ignores cost; 1 pays reward per cost, relative to the mean cost so far.

    Raises:
        ConfigError: If names are missing or repeated, or a setting is unknown or out of range.
    """

    def __init__(
        self,
        *,
        names: Sequence[str],
        policy: str = "thompson",
        discount: float = 0.98,
        prior_mean: float = 0.3,
        prior_weight: float = 2.0,
        exploration: float = 0.5,
        rewards: Mapping[str, float] | None = None,
        cost_exponent: float = 0.0,
    ) -> None:
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"a bandit needs one or more different names, got {list(names)}")
        if policy not in POLICIES:
            raise ConfigError(f"bandit policy {policy!r} (allowed: {', '.join(POLICIES)})")
        if not 0.0 < discount <= 1.0:
            raise ConfigError(f"discount must lie in (0, 1], got {discount}")
        if not 0.0 < prior_mean < 1.0 or prior_weight <= 0.0:
            raise ConfigError(
                "prior_mean must lie in (0, 1) and prior_weight above 0, "
                f"got {prior_mean} and {prior_weight}"
            )
        if exploration < 0.0 or cost_exponent < 0.0:
            raise ConfigError("exploration and cost_exponent must not be negative")
        self._rewards = _rewards_by_tier(rewards or {})
        self._arms = {name: _Arm() for name in names}
        self._policy = policy
        self._discount = discount
        self._prior = (prior_mean * prior_weight, prior_weight)
        self._exploration = exploration
        self._cost_exponent = cost_exponent
        self._cost_sum = 0.0
        self._cost_count = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Arms in order."""
        return tuple(self._arms)

    def select(self, rng: np.random.Generator, among: Sequence[str] | None = None) -> str:
        """Picks an arm; changes nothing but the generator.

        Args:
            rng: Source of randomness.
            among: Arms to choose from; all if None.

        Raises:
            ConfigError: If a name is unknown or there is none to choose from.
        """
        names = self.names if among is None else tuple(among)
        if not names:
            raise ConfigError("a bandit was asked to choose among no arms")
        arms = [self._arm(name) for name in names]
        untried = [name for name, arm in zip(names, arms, strict=True) if arm.started == 0]
        if untried:
            return untried[0]
        score = self._thompson if self._policy == "thompson" else self._ucb
        scores = [score(arm, rng) for arm in arms]
        return names[int(np.argmax(scores))]

    def start(self, name: str) -> None:
        """Notes that a candidate of this arm is on its way; `credit` or `cancel` follows.

        Raises:
            ConfigError: If the name is unknown.
        """
        arm = self._arm(name)
        arm.started += 1
        arm.waiting += 1

    def cancel(self, name: str) -> None:
        """Notes that a started candidate will have no outcome that is the arm's doing.

        Raises:
            ConfigError: If the name is unknown.
        """
        arm = self._arm(name)
        arm.waiting = max(0, arm.waiting - 1)

    def credit(self, name: str, tier: Tier, *, cost: float = 1.0) -> float:
        """Pays an arm for the outcome of one of its candidates.

        Args:
            name: The arm.
            tier: How far the candidate got.
            cost: What it cost, in any one unit (used if `cost_exponent` is above 0).

        Returns:
            The reward paid.

        Raises:
            ConfigError: If the name is unknown.
        """
        credited = self._arm(name)
        reward = self._rewards[tier] * self._cost_factor(cost)
        for arm in self._arms.values():
            arm.reward *= self._discount
            arm.weight *= self._discount
        credited.reward += reward
        credited.weight += 1.0
        credited.credited += 1
        credited.waiting = max(0, credited.waiting - 1)
        return reward

    def stats(self) -> list[ArmStats]:
        """Returns each arm's account, in order."""
        return [
            ArmStats(
                name=name,
                started=arm.started,
                credited=arm.credited,
                mean_reward=arm.reward / arm.weight if arm.weight > 0.0 else None,
            )
            for name, arm in self._arms.items()
        ]

    def _arm(self, name: str) -> _Arm:
        try:
            return self._arms[name]
        except KeyError:
            raise ConfigError(
                f"bandit knows no arm {name!r} (allowed: {', '.join(self._arms)})"
            ) from None

    def _thompson(self, arm: _Arm, rng: np.random.Generator) -> float:
        success, weight = self._prior
        alpha = success + arm.reward
        beta = (weight - success) + max(0.0, arm.weight - arm.reward)
        return float(rng.beta(alpha, beta))

    def _ucb(self, arm: _Arm, rng: np.random.Generator) -> float:
        success, weight = self._prior
        # Candidates in flight count as trials without changing the mean.
        trials = weight + arm.weight
        total = sum(weight + other.weight + other.waiting for other in self._arms.values())
        bonus = math.sqrt(math.log(1.0 + total) / (trials + arm.waiting))
        jitter = 1e-9 * float(rng.random())  # ties are broken by chance, not by order
        return (success + arm.reward) / trials + self._exploration * bonus + jitter

    def _cost_factor(self, cost: float) -> float:
        if self._cost_exponent == 0.0 or not (math.isfinite(cost) and cost > 0.0):
            return 1.0
        self._cost_sum += cost
        self._cost_count += 1
        mean = self._cost_sum / self._cost_count
        return min(1.0, float((mean / cost) ** self._cost_exponent))


def _rewards_by_tier(overrides: Mapping[str, float]) -> dict[Tier, float]:
    unknown = sorted(set(overrides) - set(DEFAULT_REWARDS))
    if unknown:
        raise ConfigError(
            f"no tier {unknown[0]!r} to reward (allowed: {', '.join(DEFAULT_REWARDS)})"
        )
    rewards = {**DEFAULT_REWARDS, **overrides}
    for name, reward in rewards.items():
        if not 0.0 <= reward <= 1.0:
            raise ConfigError(f"reward of {name} must lie between 0 and 1, got {reward}")
    return {tier: float(rewards[tier.name.lower()]) for tier in Tier}

"""Settings of a run that belong to no component; ranges are checked here, types by `build`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from evo.errors import ConfigError
from evo.job import EvaluationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Which backend, and which of its devices for `workers=local`."""

    name: str
    device_index: int = 0

    def __post_init__(self) -> None:
        _at_least("backend.device_index", self.device_index, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How a search proposes.

    Attributes:
        initial_samples: Candidates spread over the templates before the operators take over.
        duels: Settle close calls by a re-measurement of both.
        duel_share: Most evaluations that may go into duels, 0 to 1.
        step: Results per logged step.
        bandit: Node of the bandit that shares the budget among the operators.
    """

    initial_samples: int
    duels: bool
    duel_share: float
    step: int
    bandit: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least("search.initial_samples", self.initial_samples, 0)
        _at_least("search.step", self.step, 1)
        if not 0.0 <= self.duel_share <= 1.0:
            raise ConfigError(f"search.duel_share={self.duel_share!r}: 0 to 1 is allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmSettings:
    """How the best elites are measured at the end.

    Attributes:
        top: How many, best first; 0 for no confirm pass.
        processes: Fresh executor processes per elite.
        max_blocks: Blocks after which timing ends whatever the interval.
        target_rel_interval: Half-width of the interval to reach before that.
    """

    top: int
    processes: int
    max_blocks: int
    target_rel_interval: float

    def __post_init__(self) -> None:
        _at_least("confirm.top", self.top, 0)
        _at_least("confirm.processes", self.processes, 1)
        _at_least("confirm.max_blocks", self.max_blocks, 1)
        if not self.target_rel_interval > 0.0:
            raise ConfigError(
                f"confirm.target_rel_interval={self.target_rel_interval!r}: "
                "a positive number is allowed"
            )

    def limits(self, search: EvaluationSettings) -> EvaluationSettings:
        """Returns the search's limits with those of the confirm pass in their place."""
        return replace(
            search,
            processes=self.processes,
            min_blocks=min(search.min_blocks, self.max_blocks),
            max_blocks=self.max_blocks,
            target_rel_interval=self.target_rel_interval,
        )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name}={value}: a whole number of at least {least} is allowed")

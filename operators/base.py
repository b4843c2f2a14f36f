"""What an operator works with, and what several of them share.

The protocol and the records are the engine's (`evo.variation`); they are named here too so that an
operator needs one import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evo.archives.base import Elite
from evo.errors import ConfigError
from evo.genome import ParamValue
from evo.variation import Evaluated, Operator, Proposal, SearchView, TemplateEntry

__all__ = [
    "Evaluated",
    "Operator",
    "Proposal",
    "SearchView",
    "TemplateEntry",
    "changes",
    "check_fraction",
    "check_positive",
    "choose",
    "entry_of",
    "ranked_elites",
]


def changes(before: Mapping[str, ParamValue], after: Mapping[str, ParamValue]) -> str:
    """Returns which values differ, e.g. "wg 64 -> 128, vec 1 -> 4"."""
    moved = [
        f"{name} {before[name]} -> {value}" if name in before else f"{name} = {value}"
        for name, value in after.items()
        if name not in before or before[name] != value
    ]
    return ", ".join(moved)


def choose(
    items: Sequence[dict[str, ParamValue]], rng: np.random.Generator
) -> dict[str, ParamValue]:
    """Returns one of the items, uniformly; raises ValueError if there are none."""
    return items[int(rng.integers(len(items)))]


def entry_of(view: SearchView, elite: Elite) -> TemplateEntry:
    """Returns the template an elite was made from."""
    return view.template(elite.candidate.genome.template)


def ranked_elites(view: SearchView) -> list[Elite]:
    """Returns the elites, best lower bound first."""
    return sorted(view.archive, key=lambda elite: -elite.objective.low)


def check_fraction(name: str, value: float) -> float:
    """Returns a value from 0 to 1.

    Raises:
        ConfigError: If it is not.
    """
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must lie between 0 and 1, got {value}")
    return float(value)


def check_positive(name: str, value: int) -> int:
    """Returns a whole number above 0.

    Raises:
        ConfigError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number above 0, got {value!r}")
    return value

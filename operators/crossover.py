"""A child of two good candidates of one template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evo.genome import Candidate, ParamValue
from evo.variation import Proposal, SearchView, TemplateEntry
from operators.base import check_fraction, check_positive, entry_of


class Crossover:
    """Uniform crossover of a selected elite with a mate, repaired to the nearest valid point.

    Mates are the other elites of the same template and, since a template may hold one cell only,
    the fastest other candidates of it.

    Args:
        swap: Probability that a parameter comes from the mate.
        mates: How many of the fastest candidates besides the elites may be mates; 0 for elites
            only.
        attempts: Children tried until one is new.
        name: Name the bandit knows it by.

    Raises:
        ConfigError: If a value is out of range.
    """

    def __init__(
        self, *, swap: float = 0.5, mates: int = 12, attempts: int = 8, name: str = "crossover"
    ) -> None:
        self._swap = check_fraction("swap", swap)
        self._mates = check_positive("mates", mates) if mates else 0
        self._attempts = check_positive("attempts", attempts)
        self.name = name

    def propose(self, view: SearchView, rng: np.random.Generator) -> Proposal | None:
        """Puts a child forward; None if no template has two parents, or no new child was met."""
        pools: dict[str, list[Candidate]] = {}
        for elite in view.parents(self._attempts, rng):
            entry = entry_of(view, elite)
            if entry.name not in pools:
                pools[entry.name] = self._pool(view, entry)
            one = elite.candidate
            others = [c for c in pools[entry.name] if c.id != one.id]
            if not others:
                continue
            other = others[int(rng.integers(len(others)))]
            params = self._mix(entry, one.genome.params, other.genome.params, rng)
            if not view.is_new(entry, params):
                continue  # most children of like parents; repairing them would be for nothing
            repaired = params if entry.space.is_valid(params) else entry.space.repair(params, rng)
            if repaired is not None and view.is_new(entry, repaired):
                return Proposal(
                    template=entry.name,
                    params=repaired,
                    parents=(one.id, other.id),
                    note=_origin(repaired, one, other),
                )
        return None

    def _pool(self, view: SearchView, entry: TemplateEntry) -> list[Candidate]:
        pool = {
            elite.candidate.id: elite.candidate
            for elite in view.archive
            if elite.candidate.genome.template == entry.name
        }
        timed = [
            (-result.objective, result.candidate.id, result.candidate)
            for result in view.evaluated
            if result.objective is not None and result.candidate.genome.template == entry.name
        ]
        for _, key, candidate in sorted(timed, key=lambda item: item[:2])[: self._mates]:
            pool.setdefault(key, candidate)
        return list(pool.values())

    def _mix(
        self,
        entry: TemplateEntry,
        one: Mapping[str, ParamValue],
        other: Mapping[str, ParamValue],
        rng: np.random.Generator,
    ) -> dict[str, ParamValue]:
        names = [param.name for param in entry.space.params]
        swapped = rng.random(len(names)) < self._swap
        return {
            name: (other if swap else one)[name] for name, swap in zip(names, swapped, strict=True)
        }


def _origin(params: Mapping[str, ParamValue], one: Candidate, other: Candidate) -> str:
    theirs: Sequence[str] = [
        name
        for name, value in params.items()
        if value == other.genome.params[name] != one.genome.params[name]
    ]
    return f"{', '.join(theirs) or 'nothing'} from {other.id}"

"""Small random changes to an elite's parameters."""

from __future__ import annotations

import numpy as np

from evo.variation import Proposal, SearchView
from operators.base import changes, check_fraction, check_positive, choose, entry_of


class Mutate:
    """Moves a selected elite by one parameter, and by further ones with falling probability.

    Args:
        more: Probability of each further move; the number of moves is geometric with mean
            1 / (1 - more).
        radius: How far one move may go in an ordered parameter, in values.
        attempts: Mutants tried until one is new.
        name: Name the bandit knows it by.

    Raises:
        ConfigError: If a value is out of range.
    """

    def __init__(
        self, *, more: float = 0.4, radius: int = 2, attempts: int = 8, name: str = "mutate"
    ) -> None:
        self._more = min(check_fraction("more", more), 0.99)
        self._radius = check_positive("radius", radius)
        self._attempts = check_positive("attempts", attempts)
        self.name = name

    def propose(self, view: SearchView, rng: np.random.Generator) -> Proposal | None:
        """Puts a mutant forward; None without elites, or if no new mutant was met."""
        for elite in view.parents(self._attempts, rng):
            entry = entry_of(view, elite)
            origin = elite.candidate.genome.params
            params = dict(origin)
            for _ in range(int(rng.geometric(1.0 - self._more))):
                steps = entry.space.neighbours(params, radius=self._radius)
                if not steps:
                    break
                params = choose(steps, rng)
            if view.is_new(entry, params):
                return Proposal(
                    template=entry.name,
                    params=params,
                    parents=(elite.candidate.id,),
                    note=changes(origin, params),
                )
        return None

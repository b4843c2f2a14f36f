"""Parent selection: DEAP's tournament over the elites, mixed with a uniform choice of cells."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from deap import tools

from evo.archives.base import Elite
from evo.errors import ConfigError
from evo.fitness import KernelFitness, fitness_of


@contextmanager
def fenced_random(rng: np.random.Generator) -> Iterator[None]:
    """Gives the global `random` module a state drawn from `rng`, and puts the old one back.

    DEAP's stochastic functions draw from that module, where any other caller would change their
    results and they would change any other caller's. Not for use from several threads at once.
    """
    outside = random.getstate()
    random.seed(int(rng.integers(2**63)))
    try:
        yield
    finally:
        random.setstate(outside)


class _Entrant:
    """An elite in a tournament; its fitness is worked out only if it takes part."""

    def __init__(self, elite: Elite) -> None:
        self.elite = elite

    @cached_property
    def fitness(self) -> KernelFitness:
        return fitness_of(self.elite)


class EliteSelection:
    """Picks each parent by tournament, or uniformly over the occupied cells.

    Args:
        tournament_size: Elites that compete; 1 is uniform, larger is greedier.
        diversity: Probability that a parent is picked uniformly instead.

    Raises:
        ConfigError: If a value is out of range.
    """

    def __init__(self, *, tournament_size: int = 3, diversity: float = 0.3) -> None:
        if tournament_size < 1:
            raise ConfigError(f"tournament_size must be at least 1, got {tournament_size}")
        if not 0.0 <= diversity <= 1.0:
            raise ConfigError(f"diversity must lie between 0 and 1, got {diversity}")
        self._tournament_size = tournament_size
        self._diversity = diversity

    def __call__(self, elites: Sequence[Elite], k: int, rng: np.random.Generator) -> list[Elite]:
        """Returns k parents, with replacement; none if there are no elites."""
        if not elites:
            return []
        uniform = int((rng.random(k) < self._diversity).sum())
        entrants = [_Entrant(elite) for elite in elites]
        with fenced_random(rng):
            chosen = tools.selRandom(entrants, uniform)
            chosen += tools.selTournament(entrants, k - uniform, self._tournament_size)
        picked = [entrant.elite for entrant in chosen]
        return [picked[index] for index in rng.permutation(k)]

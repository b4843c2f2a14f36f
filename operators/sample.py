"""A valid point from anywhere in a template's space."""

from __future__ import annotations

import numpy as np

from evo.variation import Proposal, SearchView, TemplateEntry
from operators.base import check_positive


class Sample:
    """Random template, random valid values. The only operator that needs no elite.

    Args:
        draws: Samples tried per template before the space counts as hard to sample.
        enumerate_up_to: A space with at most this many points is then listed, and one of its
            unseen points taken, so that a small space is used up to the last point.
        name: Name the bandit knows it by.

    Raises:
        ConfigError: If a count is not positive.
    """

    def __init__(
        self, *, draws: int = 8, enumerate_up_to: int = 20_000, name: str = "sample"
    ) -> None:
        self._draws = check_positive("draws", draws)
        self._enumerate_up_to = check_positive("enumerate_up_to", enumerate_up_to)
        self.name = name

    def propose(self, view: SearchView, rng: np.random.Generator) -> Proposal | None:
        """Puts a random point forward; None once every template's space is used up."""
        for index in rng.permutation(len(view.templates)):
            entry = view.templates[int(index)]
            for _ in range(self._draws):
                params = entry.space.sample(rng)
                if view.is_new(entry, params):
                    return Proposal(template=entry.name, params=params)
            left = self._unseen(view, entry, rng)
            if left is not None:
                return left
        return None

    def _unseen(
        self, view: SearchView, entry: TemplateEntry, rng: np.random.Generator
    ) -> Proposal | None:
        size = entry.space.size()
        if not size.exact or size.count > self._enumerate_up_to:
            return None
        left = [params for params in entry.space.enumerate() if view.is_new(entry, params)]
        if not left:
            return None
        params = left[int(rng.integers(len(left)))]
        return Proposal(template=entry.name, params=params, note=f"one of the last {len(left)}")

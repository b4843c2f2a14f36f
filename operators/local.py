"""A greedy step around one of the best elites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from evo.genome import ParamValue
from evo.variation import Proposal, SearchView, TemplateEntry
from operators.base import changes, check_positive, entry_of, ranked_elites

_Effects = Mapping[tuple[str, ParamValue], float]


class Local:
    """Tries the untried neighbours of the best elites, those first that promise most.

    A neighbour's promise is read off all results of its template so far: the mean log speed-up of
    the candidates that had its new value, less that of those that had the old one (failures count
    as the slowest result, values never tried as average). It remembers nothing itself; when the
    best elite's neighbourhood is used up, the next elite's follows, then the wider radius.

    Args:
        width: Elites considered, best first.
        radius: Largest step in an ordered parameter, in values; nearer steps are used up first.
        greed: Among the neighbours of one elite, how many of the most promising to choose from at
            random; 1 takes the best.
        name: Name the bandit knows it by.

    Raises:
        ConfigError: If a count is not positive.
    """

    def __init__(
        self, *, width: int = 6, radius: int = 2, greed: int = 2, name: str = "local"
    ) -> None:
        self._width = check_positive("width", width)
        self._radius = check_positive("radius", radius)
        self._greed = check_positive("greed", greed)
        self.name = name

    def propose(self, view: SearchView, rng: np.random.Generator) -> Proposal | None:
        """Puts a neighbour forward; None if the neighbourhoods of the best elites are used up."""
        elites = ranked_elites(view)[: self._width]
        for radius in range(1, self._radius + 1):
            for elite in elites:
                entry = entry_of(view, elite)
                origin = elite.candidate.genome.params
                steps = [
                    params
                    for params in entry.space.neighbours(origin, radius=radius)
                    if view.is_new(entry, params)
                ]
                if not steps:
                    continue
                effects = _value_effects(view, entry)
                steps.sort(key=lambda params: -_promise(origin, params, effects))
                params = steps[int(rng.integers(min(self._greed, len(steps))))]
                return Proposal(
                    template=entry.name,
                    params=params,
                    parents=(elite.candidate.id,),
                    note=changes(origin, params),
                )
        return None


def _value_effects(view: SearchView, entry: TemplateEntry) -> _Effects:
    """Returns for each (parameter, value) tried its mean log speed-up less the overall mean."""
    results = [r for r in view.evaluated if r.candidate.genome.template == entry.name]
    timed = [r.objective for r in results if r.objective is not None]
    if not timed:
        return {}
    slowest = min(timed)
    scores = [slowest if r.objective is None else r.objective for r in results]
    overall = sum(scores) / len(scores)
    sums: dict[tuple[str, ParamValue], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for result, score in zip(results, scores, strict=True):
        for item in result.candidate.genome.params.items():
            account = sums[item]
            account[0] += score - overall
            account[1] += 1.0
    # One average result is mixed in, so that a value seen once does not decide.
    return {item: total / (count + 1.0) for item, (total, count) in sums.items()}


def _promise(
    origin: Mapping[str, ParamValue], params: Mapping[str, ParamValue], effects: _Effects
) -> float:
    return sum(
        effects.get((name, value), 0.0) - effects.get((name, origin[name]), 0.0)
        for name, value in params.items()
        if value != origin[name]
    )

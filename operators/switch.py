"""An elite's values carried over to another template."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evo.genome import ParamValue
from evo.variation import Proposal, SearchView, TemplateEntry
from operators.base import check_fraction, check_positive, choose, entry_of


class Switch:
    """Rewrites an elite on another template of the task: same idea, other structure.

    Parameters of the same name keep their value, or the nearest the other template allows; the
    rest take its defaults; the result is repaired. If that point was seen, a neighbour is taken.

    Args:
        jitter: Probability of a further random step, so that one pair of templates has more than
            one child.
        attempts: Elites tried until a new point is found.
        name: Name the bandit knows it by.

    Raises:
        ConfigError: If a value is out of range.
    """

    def __init__(self, *, jitter: float = 0.3, attempts: int = 6, name: str = "switch") -> None:
        self._jitter = check_fraction("jitter", jitter)
        self._attempts = check_positive("attempts", attempts)
        self.name = name

    def propose(self, view: SearchView, rng: np.random.Generator) -> Proposal | None:
        """Puts a switched elite forward; None with one template, or if nothing new was met."""
        for elite in view.parents(self._attempts, rng):
            source = entry_of(view, elite)
            others = [entry for entry in view.templates if entry.name != source.name]
            if not others:
                return None
            target = others[int(rng.integers(len(others)))]
            carried = _carried(elite.candidate.genome.params, source, target)
            params = target.space.repair({**target.space.defaults(), **carried}, rng)
            if params is not None:
                params = self._fresh(view, target, params, rng)
            if params is not None:
                return Proposal(
                    template=target.name,
                    params=params,
                    parents=(elite.candidate.id,),
                    note=f"{source.name} -> {target.name}, {', '.join(carried) or 'nothing'} kept",
                )
        return None

    def _fresh(
        self,
        view: SearchView,
        entry: TemplateEntry,
        params: dict[str, ParamValue],
        rng: np.random.Generator,
    ) -> dict[str, ParamValue] | None:
        """Returns the point itself if new and left alone, else a new neighbour, else None."""
        if view.is_new(entry, params) and rng.random() >= self._jitter:
            return params
        steps = [step for step in entry.space.neighbours(params) if view.is_new(entry, step)]
        if steps:
            return choose(steps, rng)
        return params if view.is_new(entry, params) else None


def _carried(
    params: Mapping[str, ParamValue], source: TemplateEntry, target: TemplateEntry
) -> dict[str, ParamValue]:
    """Returns the values whose parameter exists, with the same type of value, in both."""
    kinds = {param.name: param.values for param in target.space.params}
    return {
        param.name: params[param.name]
        for param in source.space.params
        if any(type(value) is type(params[param.name]) for value in kinds.get(param.name, ()))
    }

"""The first samples: spread evenly over templates and over every parameter's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from evo.genome import ParamValue
from evo.variation import Proposal, TemplateEntry

DRAWS = 24


def initial_design(
    templates: Sequence[TemplateEntry], count: int, rng: np.random.Generator
) -> list[Proposal]:
    """Returns up to `count` different valid points, templates taking turns; no template's defaults.

    Each point is the one of `DRAWS` uniform valid samples whose values have been used least so
    far, so that after a few points every value of every parameter has been seen about equally
    often: a Latin hypercube that respects constraints. A template whose space holds fewer points
    than its share gets as many as were found.
    """
    used: dict[str, Counter[tuple[str, ParamValue]]] = {}
    taken: dict[str, list[dict[str, ParamValue]]] = {}
    for entry in templates:
        defaults = entry.space.defaults()
        taken[entry.name] = [defaults]
        used[entry.name] = Counter(defaults.items())
    design = []
    turns = [templates[turn % len(templates)] for turn in range(count)] if templates else []
    for entry in turns:
        counts = used[entry.name]
        draws = [entry.space.sample(rng) for _ in range(DRAWS)]
        fresh = [draw for draw in draws if draw not in taken[entry.name]]
        if not fresh:
            continue
        overlap = [sum(counts[item] for item in draw.items()) for draw in fresh]
        chosen = fresh[int(np.argmin(overlap))]
        taken[entry.name].append(chosen)
        counts.update(chosen.items())
        design.append(Proposal(template=entry.name, params=chosen, note="spread sample"))
    return design

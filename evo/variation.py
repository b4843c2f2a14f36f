"""What the search and its operators say to each other: view, proposal, tiers of outcome.

Operators live in the `operators` package and know these records only; the search knows operators
only by the protocol below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from evo.archives.base import Archive, Cell, Elite
from evo.evaluation import Evaluation, EvaluationStatus
from evo.genome import Candidate, Genome, ParamValue
from evo.space import Space


class Tier(IntEnum):
    """How far a candidate got; operators are credited by it."""

    INVALID = 0
    """Refused, did not compile, or tampered with its measurement."""
    FAILED = 1
    """Compiled, but wrong, crashed or timed out."""
    CORRECT = 2
    """Correct, but its cell holds something as good."""
    NEW_CELL = 3
    """Opened an empty cell."""
    IMPROVED = 4
    """Displaced its cell's elite."""
    NEW_BEST = 5
    """Entered the archive as its best elite."""


_FAILED_TIERS = {
    EvaluationStatus.INVALID: Tier.INVALID,
    EvaluationStatus.COMPILE_ERROR: Tier.INVALID,
    # It compiled, but tampering must not pay better than not compiling.
    EvaluationStatus.HACK: Tier.INVALID,
    EvaluationStatus.INCORRECT: Tier.FAILED,
    EvaluationStatus.RUNTIME_ERROR: Tier.FAILED,
    EvaluationStatus.TIMEOUT: Tier.FAILED,
}


def failed_tier(status: EvaluationStatus) -> Tier:
    """Returns the tier of a kernel that did not pass; raises KeyError for OK and INFRA_ERROR."""
    return _FAILED_TIERS[status]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateEntry:
    """A template the search may use, with its parameter space on the device at hand."""

    name: str
    hash: str
    space: Space

    def genome(self, params: Mapping[str, ParamValue]) -> Genome:
        """Returns the genome with these values, in the space's order of parameters."""
        ordered = {param.name: params[param.name] for param in self.space.params}
        return Genome(template=self.name, template_hash=self.hash, params=ordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A candidate with its result.

    Attributes:
        candidate: What was evaluated.
        evaluation: Its first evaluation (a duel's is not listed).
        cell: Where its code lands; None if no features were read.
        objective: Mean log speed-up over the baseline; None if it was not timed.
    """

    candidate: Candidate
    evaluation: Evaluation
    cell: Cell | None
    objective: float | None


class SelectParents(Protocol):
    """Chooses elites as parents, with replacement."""

    def __call__(self, elites: Sequence[Elite], k: int, rng: np.random.Generator) -> list[Elite]:
        """Returns k of the elites; none if there are none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """What an operator may see; it reads, and changes nothing.

    Attributes:
        archive: The archive.
        templates: Every template, in a fixed order.
        seen: Keys of all genomes proposed so far in this run, those in flight included.
        evaluated: All results, oldest first.
        select: Parent selection.
    """

    archive: Archive
    templates: Sequence[TemplateEntry]
    seen: AbstractSet[str]
    evaluated: Sequence[Evaluated]
    select: SelectParents

    def template(self, name: str) -> TemplateEntry:
        """Returns a template by name; raises KeyError if the search does not use it."""
        for entry in self.templates:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def is_new(self, template: TemplateEntry, params: Mapping[str, ParamValue]) -> bool:
        """Tells whether no candidate of this run had these values."""
        return template.genome(params).key not in self.seen

    def parents(self, k: int, rng: np.random.Generator, *, template: str = "") -> list[Elite]:
        """Selects k elites, of one template if a name is given; empty if there are none."""
        elites = [
            elite
            for elite in self.archive
            if not template or elite.candidate.genome.template == template
        ]
        return self.select(elites, k, rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A candidate as an operator puts it forward.

    Attributes:
        template: Name of the template.
        params: A value for each of its parameters.
        parents: Ids of the candidates it was made from.
        note: One line on why (which parameter moved).
    """

    template: str
    params: dict[str, ParamValue]
    parents: tuple[str, ...] = ()
    note: str = ""


class Operator(Protocol):
    """Contract of a variation operator (`evo/testing/operator_suite.py` tests it).

    - `propose` returns valid values of a template of the view, not yet seen; or None if it cannot
      think of any now. It never raises because of what the view holds.
    - It keeps no state and changes none: the answer depends on the view and the generator only.
    """

    @property
    def name(self) -> str:
        """Name the bandit knows it by; an identifier."""
        ...

    def propose(self, view: SearchView, rng: np.random.Generator) -> Proposal | None:
        """Puts one candidate forward."""
        ...

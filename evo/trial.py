"""One evaluation the search asks for, and what its result meant."""

from __future__ import annotations

from dataclasses import dataclass

from evo.archives.base import AddResult, Cell
from evo.genome import Candidate
from evo.job import Purpose
from evo.variation import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One evaluation the search wants.

    Attributes:
        id: Unique within a run, e.g. "t000012".
        purpose: SEARCH, or DUEL against `incumbent`.
        candidate: What to evaluate; in a duel, the challenger.
        incumbent: The elite's candidate in a duel.
        attempt: 1, or more after infrastructure failed; part of what makes the job unique.
    """

    id: str
    purpose: Purpose
    candidate: Candidate
    incumbent: Candidate | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a trial's evaluation meant.

    Attributes:
        trial: The trial.
        tier: How far the candidate got; None while that is open (contested, or to be repeated)
            and for good if infrastructure failed it.
        add: What the archive said; None if it was not offered.
        cell: Where the code lands; None if no features were read.
        resolved: Candidates that were waiting for a duel and whose fate this tell decided, too.
    """

    trial: Trial
    tier: Tier | None = None
    add: AddResult | None = None
    cell: Cell | None = None
    resolved: tuple[Outcome, ...] = ()

"""The archive contract, and the records that go in and come out.

Words as in the quality-diversity field (pyribs): measures, cell, elite, add status, QD score,
coverage. The objective is the natural log of the speed-up over the baseline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from evo.evaluation import Evaluation
from evo.genome import Candidate

Cell = tuple[int, ...]


class AddStatus(str, Enum):
    """What happened to a candidate offered to the archive."""

    NEW = "new"
    """It opened an empty cell."""
    IMPROVED = "improved"
    """It displaced the cell's elite."""
    CONTESTED = "contested"
    """Too close to call: the caller re-measures both back to back and calls `settle`."""
    NOT_ADDED = "not_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Estimate of a log speed-up with its 95 % interval over blocks."""

    mean: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Elite:
    """The occupant of a cell.

    Attributes:
        cell: (axes,) level per axis.
        candidate: What it is.
        evaluation: Its first full evaluation.
        log_speedups: (blocks,) every block ever measured for it, duels included.
        objective: Interval over `log_speedups`.
    """

    cell: Cell
    candidate: Candidate
    evaluation: Evaluation
    log_speedups: tuple[float, ...]
    objective: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class AddResult:
    """Outcome of `Archive.add` or `Archive.settle`.

    Attributes:
        status: What happened.
        cell: Cell the candidate belongs to.
        value: Gain of the objective's lower bound over the cell's previous elite (over 0 when new).
        incumbent: The elite it met, if any.
    """

    status: AddStatus
    cell: Cell
    value: float
    incumbent: Elite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStats:
    """Summary of an archive.

    Attributes:
        num_elites: Occupied cells.
        cells: Cells in the grid.
        coverage: num_elites / cells.
        qd_score: Sum over elites of max(0, lower bound of log speed-up minus `offset`).
        best: Best elite's interval; None while empty.
        mean_objective: Mean of the elites' log speed-ups; None while empty.
    """

    num_elites: int
    cells: int
    coverage: float
    qd_score: float
    best: Interval | None
    mean_objective: float | None


class Archive(Protocol):
    """Contract every archive keeps (`evo/testing/archive_suite.py` tests it).

    - One thread: no locking is promised. Elites returned are immutable snapshots.
    - Only an evaluation with status OK and a timing can enter; anything else raises ArchiveError.
    - `add` never replaces an elite on a difference within noise: it answers CONTESTED and leaves
      the archive unchanged; `settle` decides after a duel.
    - The state depends only on the sequence of calls: replaying them gives an equal archive.
    - In the noise-free case the outcome equals a plain grid archive's, whatever the order.
    """

    def add(self, candidate: Candidate, evaluation: Evaluation, cell: Cell) -> AddResult:
        """Offers a candidate to a cell."""
        ...

    def settle(
        self, candidate: Candidate, evaluation: Evaluation, duel: Evaluation, cell: Cell
    ) -> AddResult:
        """Decides a contest with the duel's paired blocks; updates the samples of both."""
        ...

    def get(self, cell: Cell) -> Elite | None:
        """Returns a cell's elite."""
        ...

    def best(self) -> Elite | None:
        """Returns the elite with the highest lower bound."""
        ...

    def stats(self) -> ArchiveStats:
        """Returns the summary."""
        ...

    def __iter__(self) -> Iterator[Elite]:
        """Iterates over elites in cell order."""
        ...

    def __len__(self) -> int:
        """Number of elites."""
        ...

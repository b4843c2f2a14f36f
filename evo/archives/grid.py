"""A grid archive that knows about noise.

A plain MAP-Elites grid (Mouret and Clune 2015, https://arxiv.org/abs/1504.04909) keeps the larger
of two numbers, so under noise each cell ends up with the luckiest measurement. Here an elite holds
its samples, close calls are decided by a duel (paired, back to back), and every duel adds fresh
blocks to the incumbent, so that a lucky record decays towards the truth.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evo.archives.base import AddResult, AddStatus, ArchiveStats, Cell, Elite
from evo.errors import ArchiveError, ProtocolError
from evo.evaluation import Evaluation, EvaluationStatus, Timing
from evo.genome import Candidate
from evo.serial import from_builtins, to_builtins
from evo.statistics import interval

ARCHIVE_SCHEMA = "kelites-archive-1"
DEFAULT_QD_OFFSET = math.log(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """An archive as JSON."""

    shape: tuple[int, ...]
    qd_offset: float
    session_noise: float
    axes_schema: str
    elites: tuple[Elite, ...] = field(default=())
    schema: str = ARCHIVE_SCHEMA


class GridArchive:
    """One elite per cell of a fixed grid; replacement is decided on intervals, not on means.

    With c the challenger's interval and e the elite's, both of log speed-up, `add` answers

    - IMPROVED if `c.low > e.high + session_noise`: a clear win;
    - CONTESTED if not, but `c.mean > e.low`: the elite's record may be luck, so a challenger that
      looks slightly worse may contest it too. The band narrows as the elite gathers blocks;
    - NOT_ADDED otherwise, and always if both report one measurement (identical code).

    `settle` lets the challenger in iff the duel's paired interval lies above zero. Without noise
    the two together are "strictly larger replaces", as in a plain grid archive.

    Simulated with 100 challengers in one cell, 1 % noise between blocks and 1 % between sessions,
    8 blocks each: the surviving record is 0.9 % off its true value and costs 10 % more
    measurements, where keeping the largest mean is 2.0 % off.

    Args:
        shape: Levels per axis.
        qd_offset: Log speed-up that is worth nothing in the QD score; the default is ten times
            slower than the baseline.
        session_noise: Log units by which two measurements of one kernel in different sessions may
            differ although the blocks within each agree (placement, caches, clocks); 0.02 is 2 %.
            A win by less needs a duel. 0 trusts the intervals alone.
        axes_schema: Schema id of the descriptor that defines the cells; kept in every file.

    Raises:
        ArchiveError: If the shape is empty or a level count is not positive, or a number is not
            finite or negative.
    """

    def __init__(
        self,
        *,
        shape: Sequence[int] = (4, 4, 4),
        qd_offset: float = DEFAULT_QD_OFFSET,
        session_noise: float = 0.02,
        axes_schema: str = "kelites-axes-1",
    ) -> None:
        self._shape = tuple(int(levels) for levels in shape)
        if not self._shape or min(self._shape) < 1:
            raise ArchiveError(f"archive shape {tuple(shape)} needs positive level counts")
        if not math.isfinite(qd_offset):
            raise ArchiveError(f"qd_offset must be finite, got {qd_offset}")
        if not (math.isfinite(session_noise) and session_noise >= 0.0):
            raise ArchiveError(f"session_noise must be a number >= 0, got {session_noise}")
        self._qd_offset = float(qd_offset)
        self._session_noise = float(session_noise)
        self._axes_schema = axes_schema
        self._elites: dict[Cell, Elite] = {}
        self._ordered: tuple[Elite, ...] | None = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Levels per axis."""
        return self._shape

    @property
    def axes_schema(self) -> str:
        """Schema id of the descriptor that defines the cells."""
        return self._axes_schema

    @property
    def qd_offset(self) -> float:
        """Log speed-up that is worth nothing in the QD score."""
        return self._qd_offset

    def add(self, candidate: Candidate, evaluation: Evaluation, cell: Cell) -> AddResult:
        """Offers a candidate to a cell.

        Raises:
            ArchiveError: If the evaluation is not OK or has no timing, or the cell is outside.
        """
        cell = self._checked(cell)
        samples = _timing(candidate, evaluation).log_speedups
        challenger = Elite(
            cell=cell,
            candidate=candidate,
            evaluation=evaluation,
            log_speedups=samples,
            objective=interval(samples),
        )
        elite = self._elites.get(cell)
        if elite is None:
            self._put(challenger)
            return AddResult(status=AddStatus.NEW, cell=cell, value=challenger.objective.low)
        status = self._judge(challenger, elite)
        if status is AddStatus.IMPROVED:
            self._put(challenger)
        return AddResult(
            status=status,
            cell=cell,
            value=challenger.objective.low - elite.objective.low,
            incumbent=elite,
        )

    def settle(
        self, candidate: Candidate, evaluation: Evaluation, duel: Evaluation, cell: Cell
    ) -> AddResult:
        """Decides a contest with the duel's paired blocks; updates the samples of both.

        The duel must have been fought against the cell's present elite.

        Args:
            candidate: The challenger.
            evaluation: Its first evaluation.
            duel: Result of the duel: fresh blocks of both, and their paired log ratios.
            cell: The contested cell.

        Raises:
            ArchiveError: If an evaluation is not OK or lacks what it must hold, or the cell is
                outside or empty.
        """
        cell = self._checked(cell)
        first = _timing(candidate, evaluation)
        fresh = _timing(candidate, duel)
        elite = self._elites.get(cell)
        if elite is None:
            raise ArchiveError(f"cell {cell} is empty: there is no contest to settle")
        if not fresh.rival_log_ratios:
            raise ArchiveError(f"duel {duel.job_id} of {candidate.id} holds no paired blocks")
        samples = first.log_speedups + fresh.log_speedups
        challenger = Elite(
            cell=cell,
            candidate=candidate,
            evaluation=evaluation,
            log_speedups=samples,
            objective=interval(samples),
        )
        # Each duel dilutes the blocks that made the incumbent an elite, which luck selected, with
        # blocks that nothing selected.
        defended = elite.log_speedups + fresh.rival_log_speedups
        incumbent = replace(elite, log_speedups=defended, objective=interval(defended))
        won = interval(fresh.rival_log_ratios).low > 0.0
        self._put(challenger if won else incumbent)
        return AddResult(
            status=AddStatus.IMPROVED if won else AddStatus.NOT_ADDED,
            cell=cell,
            value=challenger.objective.low - incumbent.objective.low,
            incumbent=incumbent,
        )

    def get(self, cell: Cell) -> Elite | None:
        """Returns a cell's elite.

        Raises:
            ArchiveError: If the cell is outside the grid.
        """
        return self._elites.get(self._checked(cell))

    def best(self) -> Elite | None:
        """Returns the elite with the highest lower bound; the first in cell order among equals."""
        return max(self, key=lambda elite: elite.objective.low, default=None)

    def stats(self) -> ArchiveStats:
        """Returns the summary."""
        elites = tuple(self)
        best = self.best()
        cells = math.prod(self._shape)
        return ArchiveStats(
            num_elites=len(elites),
            cells=cells,
            coverage=len(elites) / cells,
            qd_score=math.fsum(max(0.0, e.objective.low - self._qd_offset) for e in elites),
            best=best.objective if best else None,
            mean_objective=(
                math.fsum(e.objective.mean for e in elites) / len(elites) if elites else None
            ),
        )

    def __iter__(self) -> Iterator[Elite]:
        if self._ordered is None:
            self._ordered = tuple(self._elites[cell] for cell in sorted(self._elites))
        return iter(self._ordered)

    def __len__(self) -> int:
        return len(self._elites)

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns one flat row per elite, in cell order; speed-ups are ratios, times seconds."""
        return [self._row(elite) for elite in self]

    def to_csv(self, path: Path) -> None:
        """Writes the rows; a file with the header alone if the archive is empty."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=ROW_FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.to_rows())

    def to_json(self) -> str:
        """Returns everything as JSON with sorted keys; equal archives give equal text."""
        snapshot = _Snapshot(
            shape=self._shape,
            qd_offset=self._qd_offset,
            session_noise=self._session_noise,
            axes_schema=self._axes_schema,
            elites=tuple(self),
        )
        return json.dumps(to_builtins(snapshot), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> GridArchive:
        """Restores an archive.

        Raises:
            ArchiveError: If the text is not an archive of this schema.
        """
        try:
            snapshot = from_builtins(json.loads(text), _Snapshot)
        except (ValueError, ProtocolError) as error:
            raise ArchiveError(f"not an archive: {error}") from None
        if snapshot.schema != ARCHIVE_SCHEMA:
            raise ArchiveError(
                f"archive has schema {snapshot.schema!r}, this version reads {ARCHIVE_SCHEMA!r}"
            )
        archive = cls(
            shape=snapshot.shape,
            qd_offset=snapshot.qd_offset,
            session_noise=snapshot.session_noise,
            axes_schema=snapshot.axes_schema,
        )
        for elite in snapshot.elites:
            archive._put(replace(elite, cell=archive._checked(elite.cell)))
        return archive

    def _judge(self, challenger: Elite, elite: Elite) -> AddStatus:
        if _same_measurement(challenger.evaluation, elite.evaluation):
            return AddStatus.NOT_ADDED
        mine, theirs = challenger.objective, elite.objective
        if mine.low > theirs.high + self._session_noise:
            return AddStatus.IMPROVED
        if mine.mean > theirs.low:
            return AddStatus.CONTESTED
        return AddStatus.NOT_ADDED

    def _put(self, elite: Elite) -> None:
        self._elites[elite.cell] = elite
        self._ordered = None

    def _checked(self, cell: Cell) -> Cell:
        levels = tuple(int(level) for level in cell)
        inside = len(levels) == len(self._shape) and all(
            0 <= level < count for level, count in zip(levels, self._shape, strict=True)
        )
        if not inside:
            raise ArchiveError(f"cell {tuple(cell)} is outside the {self._shape} grid")
        return levels

    def _row(self, elite: Elite) -> dict[str, Any]:
        evaluation, genome = elite.evaluation, elite.candidate.genome
        return {
            "cell": "-".join(str(level) for level in elite.cell),
            "candidate": elite.candidate.id,
            "template": genome.template,
            "params": json.dumps(genome.params, separators=(",", ":")),
            "operator": elite.candidate.operator,
            "parents": " ".join(elite.candidate.parents),
            "speedup": math.exp(elite.objective.mean),
            "speedup_low": math.exp(elite.objective.low),
            "speedup_high": math.exp(elite.objective.high),
            "blocks": elite.objective.blocks,
            "max_rel_error": evaluation.correctness and evaluation.correctness.max_rel,
            "compile_s": evaluation.compile_s,
            "backend": evaluation.environment.backend,
            "device": evaluation.environment.device,
            "code_hash": evaluation.code_hash,
            "genome": genome.key,
            "axes_schema": self._axes_schema,
        }


ROW_FIELDS = (
    "cell",
    "candidate",
    "template",
    "params",
    "operator",
    "parents",
    "speedup",
    "speedup_low",
    "speedup_high",
    "blocks",
    "max_rel_error",
    "compile_s",
    "backend",
    "device",
    "code_hash",
    "genome",
    "axes_schema",
)
"""Columns of `GridArchive.to_rows` and the CSV file."""


def _timing(candidate: Candidate, evaluation: Evaluation) -> Timing:
    if evaluation.status is not EvaluationStatus.OK or evaluation.timing is None:
        raise ArchiveError(
            f"candidate {candidate.id} with status {evaluation.status.value} and "
            f"{'a' if evaluation.timing else 'no'} timing cannot enter an archive"
        )
    return evaluation.timing


def _same_measurement(one: Evaluation, other: Evaluation) -> bool:
    """Tells whether both report one measurement, as programs of identical code do."""
    origin = one.inherited_from or one.job_id
    return origin != "" and origin == (other.inherited_from or other.job_id)

# ruff: noqa: D102
"""Conformance suite for archives: inherit it and every archive is held to the contract.

    class TestMyArchive(ArchiveSuite):
        def make_archive(self) -> Archive:
            return MyArchive(...)

Needs pytest. The archive under test must hold at least the cells (0, 0, 0) to (3, 3, 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from evo.archives.base import AddResult, AddStatus, Archive, Cell
from evo.errors import ArchiveError
from evo.evaluation import Correctness, Evaluation, EvaluationStatus, Timing, WorkloadTiming
from evo.genome import Candidate, Genome

CELL: Cell = (1, 2, 3)


def make_candidate(number: int, *, operator: str = "sample") -> Candidate:
    """Returns a candidate with a genome of its own."""
    genome = Genome(template="toy", template_hash="0" * 16, params={"x": number})
    return Candidate(id=f"c{number:06d}", genome=genome, operator=operator)


def make_evaluation(
    job_id: str,
    log_speedups: Sequence[float],
    *,
    rival_log_ratios: Sequence[float] = (),
    rival_log_speedups: Sequence[float] = (),
) -> Evaluation:
    """Returns an OK evaluation with these blocks."""
    return Evaluation(
        job_id=job_id,
        status=EvaluationStatus.OK,
        correctness=Correctness(passed=True, checks=1, max_rel=1e-7),
        timing=Timing(
            log_speedups=tuple(log_speedups),
            workloads=(WorkloadTiming(workload="w", latency_us=1.0, baseline_us=1.0),),
            rival_log_ratios=tuple(rival_log_ratios),
            rival_log_speedups=tuple(rival_log_speedups),
        ),
    )


def make_duel(job_id: str, mine: Sequence[float], theirs: Sequence[float]) -> Evaluation:
    """Returns a duel in which challenger and incumbent had these paired log speed-ups."""
    ratios = [a - b for a, b in zip(mine, theirs, strict=True)]
    return make_evaluation(job_id, mine, rival_log_ratios=ratios, rival_log_speedups=theirs)


def offer(archive: Archive, number: int, truth: float, cell: Cell) -> AddResult:
    """Adds a candidate measured without noise and, if it is contested, fights the duel."""
    candidate = make_candidate(number)
    evaluation = make_evaluation(f"j{number}", [truth] * 4)
    result = archive.add(candidate, evaluation, cell)
    if result.status is not AddStatus.CONTESTED:
        return result
    assert result.incumbent is not None
    rival = result.incumbent.evaluation.timing
    assert rival is not None
    duel = make_duel(f"d{number}", [truth] * 4, rival.log_speedups[:1] * 4)
    return archive.settle(candidate, evaluation, duel, cell)


class ArchiveSuite:
    """What every archive must do."""

    def make_archive(self) -> Archive:
        """Returns an empty archive."""
        raise NotImplementedError

    @pytest.fixture
    def archive(self) -> Archive:
        """A fresh archive for each test."""
        return self.make_archive()

    def test_empty(self, archive: Archive) -> None:
        assert len(archive) == 0
        assert list(archive) == []
        assert archive.best() is None
        assert archive.get(CELL) is None
        stats = archive.stats()
        assert (stats.num_elites, stats.coverage, stats.qd_score) == (0, 0.0, 0.0)
        assert stats.best is None
        assert stats.mean_objective is None

    def test_first_candidate_opens_its_cell(self, archive: Archive) -> None:
        result = archive.add(make_candidate(1), make_evaluation("j1", [0.3, 0.3]), CELL)
        assert result.status is AddStatus.NEW
        assert result.incumbent is None
        assert result.value == pytest.approx(0.3)
        elite = archive.get(CELL)
        assert elite is not None
        assert elite.candidate == make_candidate(1)
        assert elite.log_speedups == (0.3, 0.3)
        assert archive.stats().coverage == pytest.approx(1 / archive.stats().cells)

    def test_clear_win_replaces(self, archive: Archive) -> None:
        offer(archive, 1, 0.0, CELL)
        result = archive.add(make_candidate(2), make_evaluation("j2", [0.9, 1.0, 1.1]), CELL)
        assert result.status is AddStatus.IMPROVED
        assert result.incumbent is not None
        assert result.incumbent.candidate.id == "c000001"
        elite = archive.get(CELL)
        assert elite is not None
        assert elite.candidate.id == "c000002"
        assert result.value == pytest.approx(elite.objective.low)

    def test_clear_loss_changes_nothing(self, archive: Archive) -> None:
        offer(archive, 1, 1.0, CELL)
        before = list(archive)
        result = archive.add(make_candidate(2), make_evaluation("j2", [0.1, 0.0, 0.2]), CELL)
        assert result.status is AddStatus.NOT_ADDED
        assert result.value < 0
        assert list(archive) == before

    def test_close_call_is_contested_and_changes_nothing(self, archive: Archive) -> None:
        archive.add(make_candidate(1), make_evaluation("j1", [0.50, 0.55, 0.60]), CELL)
        before = list(archive)
        result = archive.add(make_candidate(2), make_evaluation("j2", [0.52, 0.58, 0.63]), CELL)
        assert result.status is AddStatus.CONTESTED
        assert list(archive) == before

    def test_duel_won(self, archive: Archive) -> None:
        archive.add(make_candidate(1), make_evaluation("j1", [0.50, 0.55, 0.60]), CELL)
        evaluation = make_evaluation("j2", [0.52, 0.58, 0.63])
        archive.add(make_candidate(2), evaluation, CELL)
        duel = make_duel("d", [0.60, 0.61, 0.63], [0.55, 0.57, 0.58])
        result = archive.settle(make_candidate(2), evaluation, duel, CELL)
        assert result.status is AddStatus.IMPROVED
        elite = archive.get(CELL)
        assert elite is not None
        assert elite.candidate.id == "c000002"
        assert set(elite.log_speedups) == {0.52, 0.58, 0.63, 0.60, 0.61}

    def test_undecided_duel_keeps_the_incumbent_and_lets_its_record_decay(
        self, archive: Archive
    ) -> None:
        archive.add(make_candidate(1), make_evaluation("j1", [0.60, 0.65, 0.70]), CELL)
        evaluation = make_evaluation("j2", [0.62, 0.66, 0.70])
        archive.add(make_candidate(2), evaluation, CELL)
        duel = make_duel("d", [0.41, 0.38, 0.40], [0.40, 0.40, 0.39])
        result = archive.settle(make_candidate(2), evaluation, duel, CELL)
        assert result.status is AddStatus.NOT_ADDED
        elite = archive.get(CELL)
        assert elite is not None
        assert elite.candidate.id == "c000001"
        assert len(elite.log_speedups) == 6
        assert 0.4 < elite.objective.mean < 0.65

    def test_identical_code_never_replaces(self, archive: Archive) -> None:
        archive.add(make_candidate(1), make_evaluation("j1", [0.5, 0.6]), CELL)
        twin = Evaluation(
            job_id="j2",
            status=EvaluationStatus.OK,
            inherited_from="j1",
            correctness=Correctness(passed=True, checks=1),
            timing=make_evaluation("j1", [0.5, 0.6]).timing,
        )
        assert archive.add(make_candidate(2), twin, CELL).status is AddStatus.NOT_ADDED

    @pytest.mark.parametrize(
        "status", [s for s in EvaluationStatus if s is not EvaluationStatus.OK]
    )
    def test_failures_are_refused(self, archive: Archive, status: EvaluationStatus) -> None:
        evaluation = Evaluation(job_id="j", status=status)
        with pytest.raises(ArchiveError, match=status.value):
            archive.add(make_candidate(1), evaluation, CELL)
        assert len(archive) == 0

    def test_untimed_is_refused(self, archive: Archive) -> None:
        evaluation = Evaluation(job_id="j", status=EvaluationStatus.OK, measured=False)
        with pytest.raises(ArchiveError, match="timing"):
            archive.add(make_candidate(1), evaluation, CELL)

    @pytest.mark.parametrize("cell", [(9, 0, 0), (0, 0), (0, 0, -1), (0, 0, 0, 0)])
    def test_cells_outside_are_refused(self, archive: Archive, cell: Cell) -> None:
        with pytest.raises(ArchiveError, match="outside"):
            archive.add(make_candidate(1), make_evaluation("j", [0.1, 0.1]), cell)
        with pytest.raises(ArchiveError, match="outside"):
            archive.get(cell)

    def test_settling_needs_an_incumbent_and_paired_blocks(self, archive: Archive) -> None:
        evaluation = make_evaluation("j1", [0.1, 0.1])
        with pytest.raises(ArchiveError, match="empty"):
            archive.settle(make_candidate(1), evaluation, make_duel("d", [0.1], [0.0]), CELL)
        archive.add(make_candidate(1), evaluation, CELL)
        with pytest.raises(ArchiveError, match="paired"):
            archive.settle(make_candidate(2), evaluation, evaluation, CELL)

    def test_iterates_in_cell_order(self, archive: Archive) -> None:
        for number, cell in enumerate([(3, 0, 0), (0, 3, 0), (0, 0, 3), (1, 1, 1), (0, 0, 0)]):
            offer(archive, number, 0.1 * number, cell)
        cells = [elite.cell for elite in archive]
        assert cells == sorted(cells)
        assert len(cells) == len(archive) == 5

    def test_best_has_the_highest_lower_bound(self, archive: Archive) -> None:
        archive.add(make_candidate(1), make_evaluation("j1", [0.0, 2.0]), (0, 0, 0))
        archive.add(make_candidate(2), make_evaluation("j2", [0.5, 0.6, 0.55]), (1, 0, 0))
        best = archive.best()
        assert best is not None
        assert best.candidate.id == "c000002"
        assert archive.stats().best == best.objective

    def test_snapshots_do_not_change(self, archive: Archive) -> None:
        offer(archive, 1, 0.1, CELL)
        elite = archive.get(CELL)
        assert elite is not None
        offer(archive, 2, 0.11, CELL)
        offer(archive, 3, 0.9, CELL)
        assert elite.candidate.id == "c000001"
        assert set(elite.log_speedups) == {0.1}

    def test_noise_free_outcome_is_the_maximum_per_cell_in_any_order(
        self, archive: Archive
    ) -> None:
        rng = np.random.default_rng(3)
        points = [
            (number, float(rng.normal()), tuple(int(v) for v in rng.integers(0, 4, 3)))
            for number in range(120)
        ]
        truth: dict[Cell, float] = {}
        for number, value, cell in points:
            offer(archive, number, value, cell)
            truth[cell] = max(value, truth.get(cell, -math.inf))
        assert {elite.cell: elite.objective.mean for elite in archive} == truth
        rising = self.make_archive()
        for number, value, cell in sorted(points, key=lambda point: point[1]):
            offer(rising, number, value, cell)
        assert {elite.cell: elite.candidate.id for elite in rising} == {
            elite.cell: elite.candidate.id for elite in archive
        }

    def test_replaying_the_calls_gives_an_equal_archive(self, archive: Archive) -> None:
        other = self.make_archive()
        for target in (archive, other):
            rng = np.random.default_rng(11)
            for number in range(60):
                candidate = make_candidate(number)
                evaluation = make_evaluation(f"j{number}", rng.normal(0.0, 0.1, 5).tolist())
                cell = (int(rng.integers(0, 2)), 0, 0)
                if target.add(candidate, evaluation, cell).status is AddStatus.CONTESTED:
                    mine, theirs = rng.normal(0.0, 0.1, (2, 5)).tolist()
                    target.settle(candidate, evaluation, make_duel("d", mine, theirs), cell)
        assert list(archive) == list(other)
        assert archive.stats() == other.stats()

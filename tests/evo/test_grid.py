from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evo.archives.base import AddStatus, Archive, Cell
from evo.archives.grid import ROW_FIELDS, GridArchive
from evo.errors import ArchiveError
from evo.testing.archive_suite import (
    ArchiveSuite,
    make_candidate,
    make_duel,
    make_evaluation,
    offer,
)


class TestGridArchive(ArchiveSuite):
    def make_archive(self) -> Archive:
        return GridArchive()


class TestGridArchiveThatTrustsItsIntervals(ArchiveSuite):
    def make_archive(self) -> Archive:
        return GridArchive(session_noise=0.0)


CELLS = st.tuples(*[st.integers(0, 3)] * 3)
# Coarse objectives, so that equal ones are met often.
POINTS = st.lists(st.tuples(CELLS, st.integers(-20, 20).map(lambda v: v / 8)), max_size=60)


@settings(max_examples=40, deadline=None)
@given(points=POINTS, order=st.sampled_from(["as drawn", "rising", "falling"]))
def test_equals_ribs_without_noise(points: list[tuple[Cell, float]], order: str) -> None:
    ribs = pytest.importorskip("ribs.archives")
    if order != "as drawn":
        points = sorted(points, key=lambda point: point[1], reverse=order == "falling")
    ours = GridArchive(session_noise=0.0)
    theirs = ribs.GridArchive(solution_dim=1, dims=(4, 4, 4), ranges=[(0, 4)] * 3)
    for number, (cell, value) in enumerate(points):
        # With no allowance for sessions, no duel is ever needed: `add` alone must agree.
        status = ours.add(make_candidate(number), make_evaluation(f"j{number}", [value] * 3), cell)
        info = theirs.add_single([float(number)], value, [level + 0.5 for level in cell])
        expected = [AddStatus.NOT_ADDED, AddStatus.IMPROVED, AddStatus.NEW][int(info["status"])]
        assert status.status is expected
    found = {elite.cell: (elite.candidate.id, elite.objective.mean) for elite in ours}
    reference = {
        tuple(int(m) for m in elite["measures"]): (
            make_candidate(int(elite["solution"][0])).id,
            float(elite["objective"]),
        )
        for elite in theirs
    }
    assert found == reference
    assert ours.stats().coverage == pytest.approx(float(theirs.stats.coverage))
    if points:
        assert ours.stats().mean_objective == pytest.approx(float(theirs.stats.obj_mean))


@settings(max_examples=40, deadline=None)
@given(points=POINTS, noise=st.sampled_from([0.0, 0.02, 0.3]), data=st.data())
def test_same_elites_whatever_the_order(
    points: list[tuple[Cell, float]], noise: float, data: st.DataObject
) -> None:
    distinct = [(n, cell, value + n * 1e-6) for n, (cell, value) in enumerate(points)]
    archives = []
    for order in (distinct, data.draw(st.permutations(distinct))):
        archive = GridArchive(session_noise=noise)
        for number, cell, value in order:
            offer(archive, number, value, cell)
        archives.append({elite.cell: elite.candidate.id for elite in archive})
    assert archives[0] == archives[1]


def test_a_narrow_win_in_another_session_needs_a_duel() -> None:
    careful, trusting = GridArchive(session_noise=0.02), GridArchive(session_noise=0.0)
    for archive in (careful, trusting):
        archive.add(make_candidate(1), make_evaluation("j1", [0.1, 0.1001]), (0, 0, 0))
    win = make_evaluation("j2", [0.11, 0.1101])
    assert careful.add(make_candidate(2), win, (0, 0, 0)).status is AddStatus.CONTESTED
    assert trusting.add(make_candidate(2), win, (0, 0, 0)).status is AddStatus.IMPROVED


def test_band_of_contests_narrows_as_the_elite_gathers_blocks() -> None:
    archive = GridArchive()
    archive.add(make_candidate(0), make_evaluation("j0", [0.45, 0.5, 0.55]), (0, 0, 0))
    probe = make_evaluation("p", [0.44, 0.45, 0.46])
    assert archive.add(make_candidate(99), probe, (0, 0, 0)).status is AddStatus.CONTESTED
    for number in range(1, 9):
        rival = make_evaluation(f"j{number}", [0.5, 0.5, 0.5])
        duel = make_duel(f"d{number}", [0.47, 0.5, 0.53], [0.53, 0.5, 0.47])
        archive.settle(make_candidate(number), rival, duel, (0, 0, 0))
    assert archive.add(make_candidate(99), probe, (0, 0, 0)).status is AddStatus.NOT_ADDED


def _survivor(seed: int, noise: float, *, greedy: bool) -> tuple[float, float]:
    """Runs 100 challengers through one cell; returns (record - truth, best truth - truth)."""
    rng = np.random.default_rng(seed)
    truths = -rng.exponential(0.05, 100)

    def session(truth: float) -> list[float]:
        blocks = rng.normal(truth + rng.normal(0.0, noise / 2), noise, 6)
        return [float(block) for block in blocks]

    if greedy:
        means = [float(np.mean(session(truth))) for truth in truths]
        winner = int(np.argmax(means))
        return means[winner] - truths[winner], truths.max() - truths[winner]
    archive = GridArchive(shape=(1,))
    for number, truth in enumerate(truths):
        candidate = make_candidate(number)
        evaluation = make_evaluation(f"j{number}", session(truth))
        result = archive.add(candidate, evaluation, (0,))
        if result.status is AddStatus.CONTESTED:
            assert result.incumbent is not None
            rival = truths[int(result.incumbent.candidate.id[1:])]
            duel = make_duel(f"d{number}", session(truth), session(rival))
            archive.settle(candidate, evaluation, duel, (0,))
    elite = archive.best()
    assert elite is not None
    truth = truths[int(elite.candidate.id[1:])]
    return elite.objective.mean - truth, truths.max() - truth


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_records_are_closer_to_the_truth_than_greedy_ones(noise: float) -> None:
    ours = np.array([_survivor(seed, noise, greedy=False) for seed in range(25)])
    greedy = np.array([_survivor(seed, noise, greedy=True) for seed in range(25)])
    # Greedy records are a winner's curse: all of them too good. Ours keep less than half of it ...
    assert greedy[:, 0].mean() > 0.9 * noise
    assert abs(ours[:, 0].mean()) < 0.5 * greedy[:, 0].mean()
    # ... and what survives is no worse a kernel.
    assert ours[:, 1].mean() < greedy[:, 1].mean() + 0.1 * noise


def test_json_round_trip_keeps_everything() -> None:
    archive = GridArchive(shape=(2, 3), qd_offset=-1.0, session_noise=0.05, axes_schema="toy-1")
    for number, cell in enumerate([(0, 0), (1, 2), (1, 2), (0, 0)]):
        offer(archive, number, 0.1 + 0.3 * number, cell)
    copy = GridArchive.from_json(archive.to_json())
    assert copy.to_json() == archive.to_json()
    assert list(copy) == list(archive)
    assert copy.stats() == archive.stats()
    assert (copy.shape, copy.axes_schema, copy.qd_offset) == ((2, 3), "toy-1", -1.0)
    for target in (archive, copy):
        offer(target, 9, 2.0, (0, 0))
    assert copy.to_json() == archive.to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an archive"),
        ("{}", "not an archive"),
        (GridArchive().to_json().replace("archive-1", "archive-9"), "kelites-archive-9"),
    ],
)
def test_other_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        GridArchive.from_json(text)


def test_json_with_a_cell_outside_is_refused() -> None:
    archive = GridArchive()
    offer(archive, 1, 0.1, (1, 2, 3))
    data = json.loads(archive.to_json())
    data["elites"][0]["cell"] = [1, 2, 7]
    with pytest.raises(ArchiveError, match="outside"):
        GridArchive.from_json(json.dumps(data))


def test_rows_and_csv(tmp_path: Path) -> None:
    archive = GridArchive()
    offer(archive, 1, math.log(2.0), (0, 1, 2))
    offer(archive, 2, math.log(4.0), (3, 0, 0))
    rows = archive.to_rows()
    assert [row["cell"] for row in rows] == ["0-1-2", "3-0-0"]
    assert rows[1]["speedup"] == pytest.approx(4.0)
    assert rows[1]["speedup_low"] == pytest.approx(4.0)
    archive.to_csv(tmp_path / "archive.csv")
    with (tmp_path / "archive.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["candidate"] for row in read] == ["c000001", "c000002"]
    assert json.loads(read[0]["params"]) == {"x": 1}
    assert tuple(read[0]) == ROW_FIELDS == tuple(rows[0])


def test_qd_score_counts_lower_bounds_above_the_offset() -> None:
    archive = GridArchive(qd_offset=-1.0)
    offer(archive, 1, 0.5, (0, 0, 0))
    offer(archive, 2, -0.5, (1, 0, 0))
    offer(archive, 3, -3.0, (2, 0, 0))
    assert archive.stats().qd_score == pytest.approx(1.5 + 0.5 + 0.0)


@pytest.mark.parametrize(
    "settings_",
    [{"shape": ()}, {"shape": (4, 0)}, {"qd_offset": math.nan}, {"session_noise": -0.1}],
)
def test_bad_settings(settings_: dict[str, object]) -> None:
    with pytest.raises(ArchiveError):
        GridArchive(**settings_)  # type: ignore[arg-type]

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evo.archives.grid import GridArchive
from evo.errors import ConfigError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.logbook import SearchLog
from evo.testing.archive_suite import make_candidate, make_evaluation


def _timed(log_speedup: float, compile_s: float) -> Evaluation:
    return replace(make_evaluation("j", [log_speedup] * 2), compile_s=compile_s)


FAILED = Evaluation(job_id="f", status=EvaluationStatus.INCORRECT, compile_s=4.0)


def test_one_row_per_full_step() -> None:
    log, archive = SearchLog(step=3), GridArchive()
    assert log.observe(_timed(0.1, 1.0), archive) is None
    assert log.observe(FAILED, archive) is None
    archive.add(make_candidate(1), _timed(0.3, 1.0), (0, 0, 0))
    row = log.observe(_timed(0.3, 1.0), archive)
    assert row == log.rows()[0]
    assert row["step"] == 1
    assert row["evaluations"] == 3
    assert row["valid_rate"] == pytest.approx(2 / 3)
    assert row["coverage"] == pytest.approx(1 / 64)
    assert row["best_mean"] == row["best_low"] == row["best_high"] == pytest.approx(0.3)
    assert row["qd_score"] == archive.stats().qd_score
    assert (row["status_ok"], row["status_incorrect"], row["status_hack"]) == (2, 1, 0)
    assert row["log_speedup_mean"] == pytest.approx(0.2)
    assert row["log_speedup_std"] == pytest.approx(0.1)
    assert (row["compile_s_min"], row["compile_s_max"]) == (1.0, 4.0)
    assert row["compile_s_mean"] == pytest.approx(2.0)


def test_a_step_without_a_valid_kernel_has_no_speed() -> None:
    log, archive = SearchLog(step=1), GridArchive()
    first = log.observe(FAILED, archive)
    second = log.observe(_timed(0.5, 1.0), archive)
    assert first is not None
    assert not any(name.startswith(("log_speedup", "best")) for name in first)
    assert first["valid_rate"] == 0.0
    assert second is not None
    assert second["log_speedup_max"] == 0.5


def test_flush_closes_the_last_step_once() -> None:
    log, archive = SearchLog(step=5), GridArchive()
    for _ in range(7):
        log.observe(FAILED, archive)
    row = log.flush(archive)
    assert row is not None
    assert (row["step"], row["evaluations"], row["status_incorrect"]) == (2, 7, 2)
    assert log.flush(archive) is None
    assert [r["evaluations"] for r in log.rows()] == [5, 7]


def test_values_are_plain_numbers_and_equal_for_equal_input() -> None:
    logs = []
    for _ in range(2):
        log, archive = SearchLog(step=2), GridArchive()
        rng = np.random.default_rng(0)
        for number in range(10):
            evaluation = _timed(float(rng.normal()), float(rng.random()))
            archive.add(make_candidate(number), evaluation, (number % 4, 0, 0))
            log.observe(evaluation, archive)
        logs.append(log)
    assert logs[0].rows() == logs[1].rows()
    assert all(type(value) in (int, float) for row in logs[0].rows() for value in row.values())


def test_is_a_deap_logbook() -> None:
    log, archive = SearchLog(step=1), GridArchive()
    log.observe(_timed(0.5, 1.0), archive)
    assert log.logbook.select("evaluations") == [1]
    assert log.logbook.chapters["log_speedup"].select("mean") == [0.5]


def test_bad_step() -> None:
    with pytest.raises(ConfigError, match="step"):
        SearchLog(step=0)

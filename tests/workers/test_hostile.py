"""Kernels that hang, crash, cheat or are plain wrong, on a real device: each gets its verdict, and
the honest kernel after it is evaluated as if nothing had happened."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator

import pytest

from evo.evaluation import Evaluation, EvaluationStatus
from evo.job import EvaluationRequest, EvaluationSettings
from workers import corpus
from workers.service import EvaluationService

SETTINGS = EvaluationSettings(run_timeout_s=1.5, min_blocks=2, max_blocks=2)
numbers = itertools.count()


@pytest.fixture(scope="module")
def service() -> Iterator[EvaluationService]:
    service = EvaluationService(backend="opencl", worker_name="hostile")
    service.start()
    service.put_task(corpus.bundle())
    yield service
    service.close()


def evaluate(service: EvaluationService, case: corpus.Case) -> Evaluation:
    number = f"{case.name}-{next(numbers)}"
    return service.evaluate(
        EvaluationRequest(
            job_id=number,
            task_hash=corpus.bundle().task_hash,
            candidate=case.program(),
            baseline=corpus.HONEST_CASE.program(),
            settings=SETTINGS,
            scope=number,
        )
    )


def ids(case: corpus.Case) -> str:
    return f"{case.name}-{case.status.value}"


@pytest.mark.hostile
@pytest.mark.parametrize("case", corpus.CHEATS, ids=ids)
def test_hostile(
    service: EvaluationService,
    case: corpus.Case,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    with caplog.at_level(logging.WARNING, logger="workers.service"):
        result = evaluate(service, case)
    record_property("hostile_kernel", case.name)
    record_property("status", result.status.value)
    record_property("message", result.message)
    assert result.status is case.status, result.message
    assert result.timing is None
    assert result.message
    assert "\n" not in result.message
    if case.status is EvaluationStatus.HACK:
        # The verdict goes back to whoever wrote the kernel; what gave it away does not.
        told = (result.message + result.log).lower()
        assert not any(word in told for word in ("guard", "input", "poison", "bound", "byte"))
        assert any(result.job_id in record.getMessage() for record in caplog.records)
    after = evaluate(service, corpus.HONEST_CASE)
    assert after.status is EvaluationStatus.OK, after.message


@pytest.mark.hostile
@pytest.mark.parametrize("case", corpus.HONEST_CASES, ids=ids)
def test_honest(service: EvaluationService, case: corpus.Case) -> None:
    result = evaluate(service, case)
    assert result.status is EvaluationStatus.OK, result.message
    assert result.timing is not None
    assert result.timing.clock == "opencl-event"


def test_case_names_are_unique() -> None:
    names = [case.name for case in (*corpus.HONEST_CASES, *corpus.CHEATS)]
    assert len(names) == len(set(names))

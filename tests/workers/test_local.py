from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from evo.errors import BackendUnavailable, WorkerError
from evo.evaluator import Evaluator
from evo.job import EvaluationRequest, EvaluationSettings, TaskBundle
from evo.testing.evaluator_suite import EvaluatorSuite
from workers import corpus
from workers.local import LocalEvaluator


def request(case: corpus.Case, timeout_s: float = 10.0) -> EvaluationRequest:
    return EvaluationRequest(
        job_id=case.name,
        task_hash=corpus.bundle().task_hash,
        candidate=case.program(),
        baseline=corpus.HONEST_CASE.program(),
        settings=EvaluationSettings(run_timeout_s=timeout_s, min_blocks=2, max_blocks=2),
    )


class TestLocalEvaluator(EvaluatorSuite):
    @pytest.fixture
    def make_evaluator(self) -> Callable[[], Evaluator]:
        return lambda: LocalEvaluator(backend="opencl", lint=False)

    @pytest.fixture
    def bundle(self) -> TaskBundle:
        return corpus.bundle()

    @pytest.fixture
    def good(self) -> EvaluationRequest:
        return request(corpus.HONEST_CASE)

    @pytest.fixture
    def slow(self) -> EvaluationRequest:
        endless = next(case for case in corpus.CHEATS if case.name == "infinite_loop")
        return request(endless, timeout_s=300.0)


def test_device_is_known_after_start_only() -> None:
    with pytest.raises(WorkerError, match="not started"):
        LocalEvaluator(backend="opencl").device  # noqa: B018


@pytest.mark.parametrize(("backend", "index"), [("abacus", 0), ("opencl", 99)])
def test_a_missing_device_is_one_line(backend: str, index: int) -> None:
    async def main() -> None:
        evaluator = LocalEvaluator(backend=backend, device_index=index)
        try:
            await evaluator.start(corpus.bundle())
        finally:
            await evaluator.close()

    with pytest.raises(BackendUnavailable) as caught:
        asyncio.run(main())
    assert "\n" not in str(caught.value)

"""Tests that every evaluator passes; subclass and give the fixtures."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evo.errors import WorkerError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.evaluator import Evaluator
from evo.job import EvaluationRequest, TaskBundle

_numbers = itertools.count()


class EvaluatorSuite:
    """Contract of `evo.evaluator.Evaluator`.

    A subclass defines four fixtures: `make_evaluator`, a function that makes a new evaluator not
    yet started; `bundle`, a task; `good`, a request for it that must end OK; `slow`, one that would
    run for minutes.
    """

    @pytest.fixture
    def make_evaluator(self) -> Callable[[], Evaluator]:
        """Returns a function that makes an evaluator."""
        raise NotImplementedError

    @pytest.fixture
    def bundle(self) -> TaskBundle:
        """Returns the task of the requests."""
        raise NotImplementedError

    @pytest.fixture
    def good(self) -> EvaluationRequest:
        """Returns a request that ends OK."""
        raise NotImplementedError

    @pytest.fixture
    def slow(self) -> EvaluationRequest:
        """Returns a request that runs for minutes unless it is cancelled."""
        raise NotImplementedError

    def _with(
        self,
        make_evaluator: Callable[[], Evaluator],
        bundle: TaskBundle,
        body: Callable[[Evaluator], Coroutine[Any, Any, None]],
    ) -> None:
        async def main() -> None:
            evaluator = make_evaluator()
            try:
                await evaluator.start(bundle)
                await body(evaluator)
            finally:
                await evaluator.close()

        asyncio.run(main())

    def test_evaluates_and_names_its_device(
        self,
        make_evaluator: Callable[[], Evaluator],
        bundle: TaskBundle,
        good: EvaluationRequest,
    ) -> None:
        """A good request ends OK with the job's id and the device's name."""

        async def body(evaluator: Evaluator) -> None:
            assert evaluator.slots >= 1
            result = await evaluator.evaluate(good)
            assert (result.job_id, result.status) == (good.job_id, EvaluationStatus.OK)
            assert result.environment.device == evaluator.device.name

        self._with(make_evaluator, bundle, body)

    def test_takes_as_many_as_it_has_slots_and_more(
        self,
        make_evaluator: Callable[[], Evaluator],
        bundle: TaskBundle,
        good: EvaluationRequest,
    ) -> None:
        """Requests beyond the slots wait, and each gets its own answer."""

        async def body(evaluator: Evaluator) -> None:
            requests = [fresh(good) for _ in range(evaluator.slots + 1)]
            results = await asyncio.gather(*(evaluator.evaluate(r) for r in requests))
            assert [r.job_id for r in results] == [r.job_id for r in requests]
            assert all(r.status is EvaluationStatus.OK for r in results)

        self._with(make_evaluator, bundle, body)

    def test_cancelling_frees_the_slot(
        self,
        make_evaluator: Callable[[], Evaluator],
        bundle: TaskBundle,
        good: EvaluationRequest,
        slow: EvaluationRequest,
    ) -> None:
        """A cancelled job stops, whether it runs or waits, and the next one is evaluated."""

        async def body(evaluator: Evaluator) -> None:
            count = evaluator.slots + 1
            jobs = [asyncio.create_task(evaluator.evaluate(fresh(slow))) for _ in range(count)]
            await asyncio.sleep(1.0)
            assert not any(job.done() for job in jobs)
            for job in jobs:
                job.cancel()
            ended = await asyncio.gather(*jobs, return_exceptions=True)
            assert all(isinstance(item, asyncio.CancelledError) for item in ended)
            result: Evaluation = await asyncio.wait_for(evaluator.evaluate(fresh(good)), 100)
            assert result.status is EvaluationStatus.OK

        self._with(make_evaluator, bundle, body)

    def test_close_is_idempotent_and_final(
        self,
        make_evaluator: Callable[[], Evaluator],
        bundle: TaskBundle,
        good: EvaluationRequest,
    ) -> None:
        """A closed evaluator refuses work with one line."""

        async def body(evaluator: Evaluator) -> None:
            await evaluator.close()
            await evaluator.close()
            with pytest.raises(WorkerError) as caught:
                await evaluator.evaluate(good)
            assert "\n" not in str(caught.value)

        self._with(make_evaluator, bundle, body)


def fresh(request: EvaluationRequest) -> EvaluationRequest:
    """Returns the request under a new job id, in a scope of its own."""
    name = f"suite-{next(_numbers)}"
    return dataclasses.replace(request, job_id=name, scope=name)

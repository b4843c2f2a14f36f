from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evo.evaluation import EvaluationStatus
from tests.workers.fake_worker import BUNDLE, FakeService, request, run
from workers import jobs as jobs_module
from workers.convert import Reason
from workers.jobs import Job, JobTable, Refused

BEHAVIOURS = ("sleep:0", "sleep:0.01", "hang", "raise", "infra")
# What a client may do: submit a job and wait, or submit it and cancel after a moment.
ACTION = st.tuples(st.integers(0, 5), st.sampled_from(BEHAVIOURS), st.sampled_from((0.0, 0.02)))


async def outcome(table: JobTable, job: Job, client: str) -> EvaluationStatus | Reason:
    async with aclosing(table.watch(job, client, 0.05)) as changes:
        async for _ in changes:
            pass
    if job.refusal is not None:
        return job.refusal.reason
    assert job.result is not None
    return job.result.status


@settings(max_examples=25, deadline=None)
@given(actions=st.lists(ACTION, max_size=12), devices=st.integers(1, 3))
def test_whatever_clients_do_every_job_ends_and_devices_never_share(actions, devices):
    services = [FakeService() for _ in range(devices)]

    async def client(table: JobTable, name: str, number: int, behaviour: str, patience: float):
        try:
            job = table.submit(request(behaviour, f"j{number}"))
        except Refused as refusal:
            return refusal.reason
        watching = asyncio.create_task(outcome(table, job, name))
        if patience or behaviour == "hang":
            await asyncio.sleep(patience)
            table.release(job.id, name)
        return await watching

    async def scenario():
        table = JobTable(services, orphan_grace_s=0.05)
        await table.start()
        await table.put_task(BUNDLE)
        outcomes = await asyncio.gather(
            *(client(table, f"c{index}", *action) for index, action in enumerate(actions))
        )
        settled = await table.finish(10.0)
        left = table.running, table.queued
        await table.close()
        return outcomes, settled, left

    outcomes, settled, left = run(scenario())
    assert settled
    assert left == (0, 0)
    assert len(outcomes) == len(actions)
    assert set(outcomes) <= {
        EvaluationStatus.OK,
        EvaluationStatus.INFRA_ERROR,
        Reason.CANCELLED,
        Reason.CONFLICT,
    }
    assert all(service.most_at_once <= 1 for service in services)
    assert all(service.closed for service in services)


def test_queue_is_bounded():
    async def scenario():
        table = JobTable([FakeService()], max_queued=2)
        await table.put_task(BUNDLE)  # Not started: nothing leaves the queue.
        for number in range(2):
            table.submit(request("sleep:0", f"j{number}"))
        try:
            table.submit(request("sleep:0", "one too many"))
        except Refused as refusal:
            return refusal.reason
        finally:
            await table.close()

    assert run(scenario()) is Reason.QUEUE_FULL


def test_positions_follow_the_order_of_arrival():
    async def scenario():
        table = JobTable([FakeService()])
        jobs = [table.submit(request("sleep:0", f"j{number}")) for number in range(3)]
        before = [table.position(job) for job in jobs]
        table.release("j0", "")
        after = [table.position(job) for job in jobs[1:]]
        await table.close()
        return before, after

    assert run(scenario()) == ([0, 1, 2], [0, 1])


def test_device_that_never_returns_is_reported_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs_module, "_LAST_WAIT_S", 0.3)
    service = FakeService()

    async def scenario():
        table = JobTable([service])
        await table.start()
        await table.put_task(BUNDLE)
        table.submit(request("deaf"))
        while not service.started:
            await asyncio.sleep(0.01)
        settled = await table.finish(0.1)
        await table.close()
        return settled

    assert run(scenario()) is False
    assert service.cancelled


def test_late_cancel_does_not_hit_the_next_job_of_the_same_id():
    class Slow(FakeService):
        def cancel(self, job_id: str) -> None:
            super().cancel(job_id)
            time.sleep(0.3)  # The first job has returned by now.
            super().cancel(job_id)

    service = Slow()

    async def scenario():
        table = JobTable([service])
        await table.start()
        await table.put_task(BUNDLE)
        table.submit(request("hang", "id"))
        while not service.started:
            await asyncio.sleep(0.01)
        table.release("id", "")
        again = await outcome(table, table.submit(request("sleep:0.5", "id")), "c")
        await table.close()
        return again

    assert run(scenario()) is EvaluationStatus.OK
    assert service.started == ["id", "id"]

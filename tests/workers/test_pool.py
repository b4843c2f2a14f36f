from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ConfigError, TaskError, WorkerLost, WorkerUnavailable
from evo.evaluation import EvaluationStatus
from evo.job import EvaluationSettings, TaskBundle
from tests.workers.fake_worker import (
    BUNDLE,
    Daemon,
    FakeService,
    daemons,
    request,
    run,
    serving,
    until,
)
from tests.workers.test_client import free_port
from workers.client import ClientSettings
from workers.pool import WorkerPool

QUICK = ClientSettings(heartbeat_timeout_s=2.0, reattach_s=0.5)
OK = EvaluationStatus.OK


async def pooled(*addresses: str, bundle: TaskBundle = BUNDLE, **options: Any) -> WorkerPool:
    pool = WorkerPool(list(addresses), settings=options.pop("settings", QUICK), **options)
    await pool.start(bundle)
    return pool


def test_work_is_spread_over_all_workers():
    services = FakeService(), FakeService()

    async def scenario():
        async with serving(services[0]) as (_, one), serving(services[1]) as (_, two):
            pool = await pooled(one, two)
            assert (pool.slots, pool.device.name) == (2, "FakeDevice")
            results = await asyncio.gather(
                *(pool.evaluate(request("sleep:0.1", f"j{index}")) for index in range(6))
            )
            await pool.close()
            return [(result.job_id, result.status) for result in results]

    assert run(scenario()) == [(f"j{index}", OK) for index in range(6)]
    assert [len(service.started) for service in services] == [3, 3]


def test_killed_daemons_job_finishes_on_the_other(tmp_path: Path):
    with daemons(tmp_path, ["--name", "one"], ["--name", "two"]) as started:
        addresses = [daemon.address() for daemon in started]

        async def scenario():
            pool = await pooled(*addresses)
            jobs = [asyncio.create_task(pool.evaluate(request("sleep:1", f"j{i}"))) for i in (0, 1)]
            await asyncio.sleep(0.4)
            await asyncio.to_thread(started[0].kill)
            results = await asyncio.gather(*jobs)
            slots = pool.slots
            await pool.close()
            return results, slots

        results, slots = run(scenario())
    assert [(r.job_id, r.status) for r in results] == [("j0", OK), ("j1", OK)]
    assert {r.environment.worker for r in results} == {"two"}
    assert slots == 1


def test_single_daemon_killed_and_restarted_finishes_the_job(tmp_path: Path):
    port = str(free_port())
    with daemons(tmp_path, ["--port", port]) as started:
        address = started[0].address()

        async def scenario():
            pool = await pooled(address)
            job = asyncio.create_task(pool.evaluate(request("sleep:1", "j")))
            await asyncio.sleep(0.4)
            await asyncio.to_thread(started[0].kill)
            started.append(Daemon(tmp_path, "--port", port))
            result = await job
            await pool.close()
            return result

        result = run(scenario())
    assert (result.job_id, result.status) == ("j", OK)


def test_candidate_that_takes_down_two_workers_is_quarantined(tmp_path: Path):
    with daemons(tmp_path, [], [], []) as started:
        addresses = [daemon.address() for daemon in started]

        async def scenario():
            pool = await pooled(*addresses)
            killer = await pool.evaluate(request("die"))
            good = await pool.evaluate(request("sleep:0"))
            await pool.close()
            return killer, good

        killer, good = run(scenario())
        alive = [daemon.process.poll() is None for daemon in started]
    assert killer.status is EvaluationStatus.RUNTIME_ERROR
    assert "quarantined: 2 workers" in killer.message
    assert good.status is OK
    assert sorted(alive) == [False, False, True]


def test_job_that_only_waited_on_a_killed_worker_gets_no_strike(tmp_path: Path):
    port = str(free_port())
    with daemons(tmp_path, ["--port", port]) as started:
        address = started[0].address()

        async def scenario():
            pool = await pooled(address, quarantine_after=1)
            other = await pooled(address, quarantine_after=5)
            first = asyncio.create_task(other.evaluate(request("sleep:2", "first")))
            await asyncio.sleep(0.3)
            waiting = asyncio.create_task(pool.evaluate(request("sleep:0", "waiting")))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(started[0].kill)
            started.append(Daemon(tmp_path, "--port", port))
            result = await waiting
            first.cancel()
            await asyncio.wait([first])
            await pool.close()
            await other.close()
            return result

        assert run(scenario()).status is OK


def test_no_worker_at_all_names_them():
    ports = [free_port(), free_port()]

    async def scenario():
        await pooled(*(f"127.0.0.1:{port}" for port in ports))

    with pytest.raises(WorkerUnavailable, match=f"none of 2 workers answers: .*:{ports[0]}, "):
        run(scenario())


def test_absent_worker_joins_later(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    port = free_port()

    async def scenario():
        async with serving() as (_, present):
            pool = await pooled(present, f"127.0.0.1:{port}")
            slots = [pool.slots]
            async with serving(port=port):
                await until(lambda: pool.slots == 2)
                slots.append(pool.slots)
            await pool.close()
            return slots

    with caplog.at_level(logging.WARNING):
        assert run(scenario()) == [1, 2]
    assert f"no worker answers at 127.0.0.1:{port}" in caplog.text


def test_different_devices_are_refused_naming_both():
    async def scenario():
        a, b = FakeService(device_name="H200"), FakeService(device_name="MI300X")
        async with serving(a) as (_, one), serving(b) as (_, two):
            await pooled(one, two)

    with pytest.raises(ConfigError, match=r"fake H200 .*fake MI300X"):
        run(scenario())


def test_worker_that_comes_back_with_another_device_is_left_out(tmp_path: Path):
    port = str(free_port())
    with daemons(tmp_path, ["--port", port]) as started:
        address = started[0].address()

        async def scenario():
            pool = await pooled(address, lost_limit_s=20.0)
            job = asyncio.create_task(pool.evaluate(request("sleep:20", "j")))
            await asyncio.sleep(0.4)
            await asyncio.to_thread(started[0].kill)
            started.append(Daemon(tmp_path, "--port", port, "--device-name", "Other"))
            try:
                await job
            finally:
                await pool.close()

        with pytest.raises(WorkerLost, match=r"no worker is left: .*fake Other"):
            run(scenario())


def test_all_workers_gone_for_too_long_is_worker_lost(tmp_path: Path):
    with daemons(tmp_path, []) as (daemon,):
        address = daemon.address()

        async def scenario():
            pool = await pooled(address, lost_limit_s=0.5)
            job = asyncio.create_task(pool.evaluate(request("sleep:20")))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(daemon.kill)
            try:
                await job
            finally:
                await pool.close()

        with pytest.raises(WorkerLost, match="no worker came back within 0.5 s"):
            run(scenario())


def test_infrastructure_failure_is_tried_on_another_worker():
    services = FakeService(), FakeService()

    async def scenario():
        async with serving(services[0]) as (_, one), serving(services[1]) as (_, two):
            pool = await pooled(one, two)
            bad = await pool.evaluate(request("infra", "j"))
            await pool.close()
            return bad

    bad = run(scenario())
    assert (bad.job_id, bad.status) == ("j", EvaluationStatus.INFRA_ERROR)
    assert bad.message == "the driver is upset"
    assert [service.started for service in services] == [["j", "j.3"], ["j.2"]]


def test_passing_infrastructure_failure_is_invisible():
    async def scenario():
        async with serving() as (_, address):
            pool = await pooled(address)
            result = await pool.evaluate(request("infra-once", "j"))
            await pool.close()
            return result

    result = run(scenario())
    assert (result.job_id, result.status) == ("j", OK)


def test_hung_worker_is_not_given_the_job_again():
    service = FakeService()
    hurried = EvaluationSettings(compile_timeout_s=0.05, run_timeout_s=0.05)

    async def scenario():
        async with serving(service) as (_, address):
            pool = await pooled(address, settings=ClientSettings(slack_s=0.1))
            result = await pool.evaluate(request("deaf", settings=hurried))
            await pool.close()
            service.close()
            return result

    result = run(scenario())
    assert result.status is EvaluationStatus.INFRA_ERROR
    assert "past its deadline" in result.message
    assert service.started == ["job-deaf"]


def test_candidate_that_hangs_two_workers_is_quarantined():
    services = FakeService(), FakeService(), FakeService()
    hurried = EvaluationSettings(compile_timeout_s=0.05, run_timeout_s=0.05)

    async def scenario():
        async with (
            serving(services[0]) as (_, one),
            serving(services[1]) as (_, two),
            serving(services[2]) as (_, three),
        ):
            pool = await pooled(one, two, three, settings=ClientSettings(slack_s=0.1))
            result = await pool.evaluate(request("hang", settings=hurried))
            await pool.close()
            return result

    assert run(scenario()).status is EvaluationStatus.RUNTIME_ERROR
    assert sum(len(service.started) for service in services) == 2


def test_cancelling_an_evaluation_frees_slot_and_device():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            pool = await pooled(address)
            job = asyncio.create_task(pool.evaluate(request("hang")))
            await until(lambda: bool(service.started))
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            result = await pool.evaluate(request("sleep:0"))
            await pool.close()
            return result

    assert run(scenario()).status is OK
    assert service.cancelled[0] == "job-hang"


def test_draining_worker_passes_its_work_on():
    services = FakeService(), FakeService()

    async def scenario():
        async with serving(services[0]) as (server, one), serving(services[1]) as (_, two):
            pool = await pooled(one, two)
            server.begin_drain()
            await server.stopped.wait()
            results = await asyncio.gather(
                *(pool.evaluate(request("sleep:0", f"j{index}")) for index in range(4))
            )
            await pool.close()
            return [result.status for result in results]

    assert run(scenario()) == [OK] * 4
    assert services[0].started == []


def test_two_pools_share_one_worker():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            pools = [await pooled(address), await pooled(address)]
            results = await asyncio.gather(
                *(
                    pool.evaluate(request("sleep:0.01", f"{index}-{number}"))
                    for index, pool in enumerate(pools)
                    for number in range(8)
                )
            )
            for pool in pools:
                await pool.close()
            return {result.job_id for result in results}

    assert len(run(scenario())) == 16
    assert service.most_at_once == 1


def test_refused_task_stops_the_start():
    async def scenario():
        async with serving() as (_, address):
            await pooled(address, bundle=TaskBundle(name="bad", task_hash="h", files={}))

    with pytest.raises(TaskError, match="refuses the task"):
        run(scenario())


def test_close_twice_is_fine():
    async def scenario():
        async with serving() as (_, address):
            pool = await pooled(address)
            await pool.close()
            await pool.close()
            return pool.slots

    assert run(scenario()) == 1


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ([], "is empty"),
        (["a:1", "b:1", "a:1"], "a:1 is named twice"),
        (["gpubox"], "not host:port"),
    ],
)
def test_bad_addresses_are_config_errors(addresses: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        WorkerPool(addresses)

from __future__ import annotations

import asyncio
import dataclasses
import signal
import socket
from collections.abc import AsyncIterable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from evo.errors import ConfigError, EvoError, ProtocolError, TaskError, WorkerUnavailable
from evo.evaluation import EvaluationStatus
from evo.job import EvaluationSettings
from tests.workers.fake_worker import (
    BUNDLE,
    FakeService,
    daemons,
    program,
    request,
    run,
    serving,
    until,
)
from workers.client import WorkerClient
from workers.convert import REASON_KEY, SERVICE_NAME, evaluate_message
from workers.proto.v1 import worker_pb2 as pb
from workers.proto.v1 import worker_pb2_grpc
from workers.server import ServerSettings, WorkerServer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def connected(address: str) -> WorkerClient:
    client = WorkerClient(address)
    await client.connect()
    await client.put_task(BUNDLE)
    return client


async def drained(stream: AsyncIterable[object]) -> list[object]:
    return [answer async for answer in stream]


async def refusal(call: object) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (drained(call) if hasattr(call, "__aiter__") else call)
    metadata = dict(caught.value.trailing_metadata() or ())
    return caught.value.code(), str(metadata.get(REASON_KEY, ""))


def test_capabilities_name_device_and_versions():
    async def scenario():
        async with serving(FakeService(), worker_name="box") as (_, address):
            client = WorkerClient(address)
            found = await client.connect()
            await client.close()
            return found

    found = run(scenario())
    assert (found.worker_name, found.device.name, found.slots) == ("box", "FakeDevice", 1)
    assert not found.draining


def test_evaluate_streams_stages_in_order_then_the_result():
    async def scenario():
        async with serving() as (_, address):
            client = await connected(address)
            stages: list[str] = []
            result = await client.evaluate(request("sleep:0.3"), on_stage=stages.append)
            await client.close()
            return stages, result

    stages, result = run(scenario())
    order = ["queued", "validate", "compile", "check", "time", "done"]
    assert stages == [stage for stage in order if stage in stages]
    assert {"compile", "done"} <= set(stages)
    assert (result.status, result.job_id) == (EvaluationStatus.OK, "job-sleep:0.3")


def test_heartbeats_repeat_the_stage_while_nothing_changes():
    async def scenario():
        async with serving(heartbeat_s=0.05) as (_, address):
            client = await connected(address)
            channel = grpc.aio.insecure_channel(address)
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            call = stub.Evaluate(evaluate_message(request("sleep:0.5"), "me"))
            stages = [answer.event.stage async for answer in call]
            await channel.close()
            await client.close()
            return stages

    stages = run(scenario())
    assert stages.count(pb.STAGE_COMPILE) >= 3
    assert stages[-1] == pb.STAGE_DONE


def test_duplicate_submission_joins_the_running_job_and_later_its_result():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            one, two = await connected(address), await connected(address)
            job = request("sleep:0.3", "same")
            together = await asyncio.gather(one.evaluate(job), two.evaluate(job))
            again = await two.evaluate(job)
            await one.close()
            await two.close()
            return [*together, again]

    results = run(scenario())
    assert results[0] == results[1] == results[2]
    assert service.started == ["same"]


def test_same_id_with_other_content_is_refused_while_running_and_replaced_after():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            client = await connected(address)
            first = asyncio.create_task(client.evaluate(request("sleep:0.4", "id")))
            await until(lambda: service.started == ["id"])
            with pytest.raises(ProtocolError, match="other content"):
                await client.evaluate(request("sleep:0", "id"))
            await first
            await client.evaluate(request("sleep:0", "id"))
            await client.close()

    run(scenario())
    assert service.started == ["id", "id"]


def test_race_bounds_do_not_make_another_job():
    service = FakeService()
    raced = dataclasses.replace(
        request("sleep:0", "id"), settings=EvaluationSettings(race_cells={"1-1-1": 0.4})
    )

    async def scenario():
        async with serving(service) as (_, address):
            client = await connected(address)
            await client.evaluate(request("sleep:0", "id"))
            await client.evaluate(raced)
            await client.close()

    run(scenario())
    assert service.started == ["id"]


def test_infrastructure_failure_is_not_remembered_for_a_new_submission():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            client = await connected(address)
            results = [await client.evaluate(request("infra-once", "id")) for _ in range(3)]
            await client.close()
            return [result.status for result in results]

    ok, infra = EvaluationStatus.OK, EvaluationStatus.INFRA_ERROR
    assert run(scenario()) == [infra, ok, ok]
    assert service.started == ["id", "id"]


@pytest.mark.parametrize(("remember", "remember_s"), [(1, 900.0), (1024, 0.0)])
def test_results_are_forgotten_by_number_and_by_age(remember, remember_s):
    service = FakeService()

    async def scenario():
        async with serving(service, remember=remember, remember_s=remember_s) as (_, address):
            client = await connected(address)
            for name in ("a", "b", "a"):
                await client.evaluate(request("sleep:0", name))
            await client.close()

    run(scenario())
    assert service.started == ["a", "b", "a"]


def test_one_device_runs_the_jobs_of_two_controllers_one_at_a_time():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            controllers = [await connected(address), await connected(address)]
            results = await asyncio.gather(
                *(
                    controllers[index % 2].evaluate(request("sleep:0.02", f"j{index}"))
                    for index in range(6)
                )
            )
            for controller in controllers:
                await controller.close()
            return [result.job_id for result in results]

    assert run(scenario()) == [f"j{index}" for index in range(6)]
    assert sorted(service.started) == [f"j{index}" for index in range(6)]
    assert service.most_at_once == 1


def test_two_devices_run_two_jobs_at_once():
    services = FakeService(), FakeService()

    async def scenario():
        async with serving(*services) as (_, address):
            client = await connected(address)
            both = asyncio.gather(
                client.evaluate(request("sleep:0.5", "a")),
                client.evaluate(request("sleep:0.5", "b")),
            )
            await until(lambda: all(service.started for service in services))
            await both
            await client.close()

    run(scenario())
    assert [len(service.started) for service in services] == [1, 1]


def test_unlike_devices_are_refused_by_one_server():
    async def scenario():
        async with serving(FakeService(device_name="A"), FakeService(device_name="B")):
            pass

    with pytest.raises(ConfigError, match="device 0: fake A.*device 1: fake B"):
        run(scenario())


def test_exception_in_the_service_is_an_infra_error_and_the_next_job_runs():
    async def scenario():
        async with serving() as (_, address):
            client = await connected(address)
            bad = await client.evaluate(request("raise"))
            good = await client.evaluate(request("sleep:0"))
            await client.close()
            return bad, good

    bad, good = run(scenario())
    assert bad.status is EvaluationStatus.INFRA_ERROR
    assert "a bug in the service" in bad.message
    assert good.status is EvaluationStatus.OK


def test_cancel_kills_a_running_job_and_the_device_is_free_again():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            client = await connected(address)
            job = asyncio.create_task(client.evaluate(request("hang")))
            await until(lambda: bool(service.started))
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            after = await client.evaluate(request("sleep:0"))
            await client.close()
            return after

    assert run(scenario()).status is EvaluationStatus.OK
    assert "job-hang" in service.cancelled


def test_cancelled_job_can_be_submitted_again():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            client = await connected(address)
            job = asyncio.create_task(client.evaluate(request("sleep:20", "id")))
            await until(lambda: bool(service.started))
            job.cancel()
            await asyncio.wait([job])
            again = await client.evaluate(request("sleep:0", "id"))
            await client.close()
            return again

    assert run(scenario()).status is EvaluationStatus.OK
    assert service.started == ["id", "id"]


def test_queued_job_that_is_cancelled_never_starts():
    service = FakeService()

    async def scenario():
        async with serving(service) as (server, address):
            client = await connected(address)
            first = asyncio.create_task(client.evaluate(request("sleep:0.5", "first")))
            await until(lambda: bool(service.started))
            second = asyncio.create_task(client.evaluate(request("sleep:0", "second")))
            await until(lambda: server.jobs.queued == 1)
            second.cancel()
            await asyncio.wait([second])
            await first
            await client.evaluate(request("sleep:0", "third"))
            await client.close()

    run(scenario())
    assert service.started == ["first", "third"]


def test_cancel_by_one_client_keeps_the_job_for_the_other():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            one, two = await connected(address), await connected(address)
            job = request("sleep:0.6", "shared")
            mine = asyncio.create_task(one.evaluate(job))
            theirs = asyncio.create_task(two.evaluate(job))
            await until(lambda: bool(service.started))
            await asyncio.sleep(0.1)
            mine.cancel()
            await asyncio.wait([mine])
            result = await theirs
            await one.close()
            await two.close()
            return result

    assert run(scenario()).status is EvaluationStatus.OK
    assert service.cancelled == []


def test_client_deadline_kills_the_job_without_the_grace_period():
    service = FakeService()

    async def scenario():
        async with serving(service, orphan_grace_s=1000.0) as (_, address):
            client = await connected(address)
            channel = grpc.aio.insecure_channel(address)
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            call = stub.Evaluate(evaluate_message(request("hang"), "me"), timeout=0.5)
            code, _ = await refusal(call)
            await until(lambda: "job-hang" in service.cancelled)
            await channel.close()
            await client.close()
            return code

    assert run(scenario()) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_job_without_watchers_ends_after_the_grace_period():
    service = FakeService()

    async def scenario():
        async with serving(service, orphan_grace_s=0.2) as (server, address):
            client = await connected(address)
            channel = grpc.aio.insecure_channel(address)
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            call = stub.Evaluate(evaluate_message(request("hang"), "me"))
            await call.read()
            await until(lambda: bool(service.started))
            call.cancel()
            await until(lambda: server.jobs.running == 0)
            await channel.close()
            await client.close()

    run(scenario())
    assert "job-hang" in service.cancelled


def test_wait_attaches_to_a_job_whose_client_has_gone():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            client = await connected(address)
            async with grpc.aio.insecure_channel(address) as gone:
                call = worker_pb2_grpc.WorkerServiceStub(gone).Evaluate(
                    evaluate_message(request("sleep:0.5", "id"), "gone")
                )
                await call.read()
                await until(lambda: bool(service.started))
            async with grpc.aio.insecure_channel(address) as back:
                call = worker_pb2_grpc.WorkerServiceStub(back).WaitEvaluation(
                    pb.WaitEvaluationRequest(protocol_version=1, job_id="id", client_id="back")
                )
                stages = [answer.event.stage async for answer in call]
            await client.close()
            return stages

    assert run(scenario())[-1] == pb.STAGE_DONE
    assert service.started == ["id"]
    assert service.cancelled == []


def test_calls_are_refused_with_a_code_and_a_reason():
    async def scenario():
        async with serving() as (_, address):
            client = await connected(address)
            channel = grpc.aio.insecure_channel(address)
            stub = worker_pb2_grpc.WorkerServiceStub(channel)

            def altered(**fields: object) -> pb.EvaluateRequest:
                message = evaluate_message(request("sleep:0"), "me")
                for name, value in fields.items():
                    setattr(message, name, value)
                return message

            wait = pb.WaitEvaluationRequest(protocol_version=1, job_id="nobody")
            found = [
                await refusal(stub.Evaluate(altered(protocol_version=99))),
                await refusal(stub.Evaluate(altered(request_schema="kelites-job-0"))),
                await refusal(stub.Evaluate(altered(request_json=b"{"))),
                await refusal(stub.Evaluate(altered(job_id="another"))),
                await refusal(
                    stub.Evaluate(
                        evaluate_message(
                            dataclasses.replace(request("sleep:0"), task_hash="nowhere"), "me"
                        )
                    )
                ),
                await refusal(stub.WaitEvaluation(wait)),
            ]
            await channel.close()
            await client.close()
            return found

    invalid = (grpc.StatusCode.INVALID_ARGUMENT, "malformed")
    assert run(scenario()) == [
        (grpc.StatusCode.FAILED_PRECONDITION, "protocol"),
        invalid,
        invalid,
        invalid,
        (grpc.StatusCode.NOT_FOUND, "unknown-task"),
        (grpc.StatusCode.NOT_FOUND, "unknown-job"),
    ]


def test_refused_task_is_a_task_error_with_the_reason():
    async def scenario():
        async with serving() as (_, address):
            client = WorkerClient(address)
            try:
                await client.put_task(dataclasses.replace(BUNDLE, name="bad"))
            finally:
                await client.close()

    with pytest.raises(TaskError, match="its own check accepts a constant"):
        run(scenario())


def test_oversized_log_is_dropped_so_that_the_result_still_arrives():
    async def scenario():
        async with serving(max_message_bytes=100_000) as (_, address):
            client = await connected(address)
            result = await client.evaluate(request("log:200000"))
            await client.close()
            return result

    result = run(scenario())
    assert result.status is EvaluationStatus.COMPILE_ERROR
    assert "200000 characters dropped" in result.log


def test_message_over_the_limit_is_one_clear_line():
    async def scenario():
        async with serving(max_message_bytes=100_000) as (_, address):
            client = await connected(address)
            try:
                await client.evaluate(
                    dataclasses.replace(request("sleep:0"), candidate=program("x" * 200_000))
                )
            finally:
                await client.close()

    with pytest.raises(ProtocolError, match=r"takes messages up to 100000"):
        run(scenario())


def test_drain_finishes_what_runs_hands_back_what_waits_and_stops():
    service = FakeService()

    async def scenario():
        async with serving(service, drain_grace_s=10.0) as (server, address):
            client = await connected(address)
            running = asyncio.create_task(client.evaluate(request("sleep:0.5", "running")))
            await until(lambda: bool(service.started))
            waiting = asyncio.create_task(client.evaluate(request("sleep:0", "waiting")))
            await until(lambda: server.jobs.queued == 1)
            channel = grpc.aio.insecure_channel(address)
            health = health_pb2_grpc.HealthStub(channel)
            before = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
            await client.drain()
            during = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
            overall = await health.Check(health_pb2.HealthCheckRequest())
            with pytest.raises(WorkerUnavailable):
                await waiting
            with pytest.raises(WorkerUnavailable):
                await client.evaluate(request("sleep:0", "late"))
            result = await running
            await server.stopped.wait()
            await channel.close()
            await client.close()
            return [before.status, during.status, overall.status], result.status

    statuses, result = run(scenario())
    assert statuses == [SERVING, NOT_SERVING, NOT_SERVING]
    assert result is EvaluationStatus.OK
    assert service.started == ["running"]
    assert service.closed


def test_drain_kills_what_outlives_the_grace():
    service = FakeService()

    async def scenario():
        async with serving(service) as (server, address):
            client = await connected(address)
            job = asyncio.create_task(client.evaluate(request("hang")))
            await until(lambda: bool(service.started))
            await client.drain(grace_s=0.2)
            with pytest.raises(WorkerUnavailable):
                await job
            await server.stopped.wait()
            await client.close()
            return server.clean

    assert run(scenario())
    assert "job-hang" in service.cancelled


def test_health_and_reflection_answer():
    async def scenario():
        async with serving(reflection=True) as (_, address):
            async with grpc.aio.insecure_channel(address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                named = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
                overall = await health.Check(health_pb2.HealthCheckRequest())
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                ask = reflection_pb2.ServerReflectionRequest(list_services="")
                async for answer in stub.ServerReflectionInfo(iter([ask])):
                    names = {item.name for item in answer.list_services_response.service}
            return named.status, overall.status, names

    named, overall, names = run(scenario())
    assert (named, overall) == (SERVING, SERVING)
    assert SERVICE_NAME in names


def test_reflection_is_off_unless_asked_for():
    async def scenario():
        async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            return (await refusal(stub.ServerReflectionInfo(iter([ask]))))[0]

    assert run(scenario()) is grpc.StatusCode.UNIMPLEMENTED


def test_port_in_use_is_a_config_error_and_the_first_server_lives_on():
    async def scenario():
        async with serving() as (_, address):
            port = int(address.rpartition(":")[2])
            with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: address already in use"):
                async with serving(port=port):
                    pass
            client = WorkerClient(address)
            await client.connect()
            await client.close()

    run(scenario())


def test_foreign_address_says_so():
    async def scenario():
        async with serving(host="203.0.113.7", insecure_bind=True):
            pass

    with pytest.raises(ConfigError, match="cannot assign requested address"):
        run(scenario())


def test_device_that_does_not_open_closes_the_port():
    class Broken(FakeService):
        def start(self):
            raise EvoError("no device here")

    async def scenario():
        service = Broken()
        server = WorkerServer([service], settings=ServerSettings(port=0))
        with pytest.raises(EvoError, match="no device here"):
            await server.start()
        return service.closed

    assert run(scenario())


def test_sigterm_drains_and_exits_with_zero(tmp_path: Path):
    with daemons(tmp_path, []) as (daemon,):
        address = daemon.address()

        async def scenario():
            client = await connected(address)
            job = asyncio.create_task(client.evaluate(request("sleep:0.5")))
            await asyncio.sleep(0.2)
            daemon.process.send_signal(signal.SIGTERM)
            result = await job
            await client.close()
            return result

        assert run(scenario()).status is EvaluationStatus.OK
        assert daemon.process.wait(20) == 0
        assert not daemon.address_file.exists()
        line = f"kelites-worker serving on {address} backend=fake device=FakeDevice\n"
        assert daemon.process.stdout is not None
        assert daemon.process.stdout.read() == line


def test_second_signal_exits_at_once(tmp_path: Path):
    with daemons(tmp_path, ["--drain-grace", "1000"]) as (daemon,):
        address = daemon.address()

        async def scenario():
            client = await connected(address)
            job = asyncio.create_task(client.evaluate(request("deaf"), resubmissions=0))
            await asyncio.sleep(0.2)
            daemon.process.send_signal(signal.SIGINT)
            health = health_pb2_grpc.HealthStub(grpc.aio.insecure_channel(address))
            ask = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
            while (await health.Check(ask)).status == SERVING:
                await asyncio.sleep(0.01)
            assert daemon.process.poll() is None
            daemon.process.send_signal(signal.SIGINT)
            code = await asyncio.to_thread(daemon.process.wait, 20)
            job.cancel()
            await asyncio.wait([job])
            await client.close()
            return code

        assert run(scenario()) == 128 + signal.SIGINT


def test_default_bind_is_loopback_only():
    assert socket.gethostbyname(ServerSettings().host).startswith("127.")

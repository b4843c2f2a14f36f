from __future__ import annotations

import asyncio
import signal
import socket
import threading
from pathlib import Path

import pytest

from evo.errors import ConfigError, ProtocolError, WorkerUnavailable
from evo.evaluation import EvaluationStatus
from evo.job import EvaluationSettings, Purpose
from tests.workers.fake_worker import (
    BUNDLE,
    Daemon,
    FakeService,
    daemons,
    program,
    request,
    run,
    serving,
    until,
)
from workers import convert
from workers.client import ClientSettings, WorkerClient
from workers.follow import DeadlineExceeded, JobLost, run_limit_s

QUICK = ClientSettings(connect_timeout_s=2.0, heartbeat_timeout_s=1.0, reattach_s=1.0, slack_s=5.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Relay:
    """A TCP relay that can cut its connections, standing in for a network that drops."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0
        self.refusing = False

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def stop(self) -> None:
        self.refusing = True
        self.cut()
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refusing:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._target)
        self._writers += [writer, back]
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass


def test_lost_connection_is_re_attached_and_the_job_runs_once():
    service = FakeService()

    async def scenario():
        async with serving(service) as (_, address):
            relay = Relay(address)
            client = WorkerClient(await relay.start(), settings=QUICK)
            await client.connect()
            await client.put_task(BUNDLE)
            job = asyncio.create_task(client.evaluate(request("sleep:1.0"), resubmissions=0))
            await until(lambda: bool(service.started))
            relay.cut()
            result = await job
            await client.close()
            relay.stop()
            return result, relay.connections

    result, connections = run(scenario())
    assert result.status is EvaluationStatus.OK
    assert connections >= 2
    assert service.started == ["job-sleep:1.0"]
    assert service.cancelled == []


def test_connection_that_stays_away_loses_the_job_with_its_stage():
    service = FakeService()

    async def scenario():
        async with serving(service, orphan_grace_s=0.2) as (_, address):
            relay = Relay(address)
            client = WorkerClient(await relay.start(), settings=QUICK)
            await client.connect()
            await client.put_task(BUNDLE)
            stages: list[str] = []
            job = asyncio.create_task(client.evaluate(request("hang"), on_stage=stages.append))
            await until(lambda: "compile" in stages)
            relay.stop()
            with pytest.raises(JobLost, match="does not answer any more; it held job") as caught:
                await job
            await until(lambda: "job-hang" in service.cancelled)
            await client.close()
            return caught.value.stage

    assert run(scenario()) == "compile"


def test_restarted_worker_gets_task_and_job_again(tmp_path: Path):
    port = str(free_port())
    with daemons(tmp_path, ["--port", port]) as started:
        address = started[0].address()

        async def scenario():
            client = WorkerClient(
                address, settings=ClientSettings(heartbeat_timeout_s=2.0, reattach_s=20.0)
            )
            await client.connect()
            await client.put_task(BUNDLE)
            stages: list[str] = []
            job = asyncio.create_task(
                client.evaluate(request("sleep:1"), bundle=BUNDLE, on_stage=stages.append)
            )
            await until(lambda: "compile" in stages)
            await asyncio.to_thread(started[0].kill)
            started.append(Daemon(tmp_path, "--port", port))
            result = await job
            await client.close()
            return result, stages

        result, stages = run(scenario())
    assert result.status is EvaluationStatus.OK
    assert stages.count("compile") == 2


def test_restarted_worker_without_resubmission_is_a_lost_job(tmp_path: Path):
    port = str(free_port())
    with daemons(tmp_path, ["--port", port]) as started:
        address = started[0].address()

        async def scenario():
            client = WorkerClient(address, settings=ClientSettings(reattach_s=20.0))
            await client.connect()
            await client.put_task(BUNDLE)
            stages: list[str] = []
            job = asyncio.create_task(
                client.evaluate(request("sleep:20"), on_stage=stages.append, resubmissions=0)
            )
            await until(lambda: "compile" in stages)
            await asyncio.to_thread(started[0].kill)
            started.append(Daemon(tmp_path, "--port", port))
            with pytest.raises(JobLost, match="restarted and lost job"):
                await job
            await client.close()

        run(scenario())


def test_frozen_worker_is_noticed_by_its_silence(tmp_path: Path):
    with daemons(tmp_path, []) as (daemon,):
        address = daemon.address()

        async def scenario():
            client = WorkerClient(address, settings=QUICK)
            await client.connect()
            await client.put_task(BUNDLE)
            stages: list[str] = []
            job = asyncio.create_task(client.evaluate(request("hang"), on_stage=stages.append))
            await until(lambda: "compile" in stages)
            daemon.process.send_signal(signal.SIGSTOP)
            with pytest.raises(JobLost, match="is silent"):
                await job
            await client.close()

        run(scenario())


def test_job_past_its_deadline_is_cancelled_and_not_retried():
    service = FakeService()
    settings = EvaluationSettings(compile_timeout_s=0.05, run_timeout_s=0.05)
    slow = request("hang", settings=settings)
    assert run_limit_s(slow, 0.1) < 1.0

    async def scenario():
        async with serving(service) as (_, address):
            client = WorkerClient(address, settings=ClientSettings(slack_s=0.1))
            await client.connect()
            await client.put_task(BUNDLE)
            with pytest.raises(DeadlineExceeded, match="last stage: compile"):
                await client.evaluate(slow)
            await until(lambda: "job-hang" in service.cancelled)
            await client.close()

    run(scenario())
    assert service.started == ["job-hang"]


def test_time_in_the_queue_does_not_count_against_the_deadline():
    service = FakeService()
    settings = EvaluationSettings(compile_timeout_s=0.05, run_timeout_s=0.05)

    async def scenario():
        async with serving(service) as (_, address):
            patient = WorkerClient(address)
            hurried = WorkerClient(address, settings=ClientSettings(slack_s=0.1))
            await patient.connect()
            await hurried.connect()
            await patient.put_task(BUNDLE)
            first = asyncio.create_task(patient.evaluate(request("sleep:1.2")))
            await until(lambda: bool(service.started))
            result = await hurried.evaluate(request("sleep:0", settings=settings))
            await first
            await patient.close()
            await hurried.close()
            return result

    assert run(scenario()).status is EvaluationStatus.OK


def test_run_limit_grows_with_sources_arms_and_processes():
    plain = request("a")
    duel = request("a", incumbent=program("b"), purpose=Purpose.DUEL)
    confirm = request("a", purpose=Purpose.CONFIRM)
    assert run_limit_s(plain, 0.0) < run_limit_s(plain, 10.0)
    assert run_limit_s(plain, 0.0) < run_limit_s(duel, 0.0)
    assert run_limit_s(plain, 0.0) < run_limit_s(confirm, 0.0)


def test_dead_port_fails_quickly_with_one_line():
    address = f"127.0.0.1:{free_port()}"

    async def scenario():
        client = WorkerClient(address, settings=ClientSettings(connect_timeout_s=1000.0))
        try:
            await client.connect()
        finally:
            await client.close()

    with pytest.raises(WorkerUnavailable) as caught:
        run(scenario())
    expected = f"no worker answers at {address} (is `kelites-worker serve` running there?)"
    assert str(caught.value) == expected


def test_port_that_accepts_and_says_nothing_times_out():
    async def scenario():
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            client = WorkerClient(address, settings=ClientSettings(connect_timeout_s=0.3))
            try:
                await client.connect()
            finally:
                await client.close()

    with pytest.raises(WorkerUnavailable, match="no worker answers"):
        run(scenario())


def test_other_http_servers_are_not_workers():
    from http.server import BaseHTTPRequestHandler, HTTPServer

    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    async def scenario():
        client = WorkerClient(f"127.0.0.1:{server.server_port}", settings=QUICK)
        try:
            await client.connect()
        finally:
            await client.close()

    try:
        with pytest.raises((WorkerUnavailable, ProtocolError), match="worker"):
            run(scenario())
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_other_protocol_version_is_refused_by_the_client(monkeypatch: pytest.MonkeyPatch):
    async def scenario():
        async with serving() as (_, address):
            client = WorkerClient(address)
            real = convert.check_protocol
            monkeypatch.setattr(convert, "check_protocol", lambda version: real(version + 1))
            try:
                await client.connect()
            finally:
                await client.close()

    with pytest.raises(ProtocolError, match=r"worker 127.0.0.1:\d+: protocol version 2 meets"):
        run(scenario())


def test_unknown_task_is_put_and_the_job_goes_on():
    async def scenario():
        async with serving() as (_, address):
            client = WorkerClient(address)
            with pytest.raises(ProtocolError, match="was not put here"):
                await client.evaluate(request("sleep:0"))
            result = await client.evaluate(request("sleep:0"), bundle=BUNDLE)
            await client.close()
            return result

    assert run(scenario()).status is EvaluationStatus.OK


@pytest.mark.parametrize("address", ["gpubox", "gpubox:", ":50051", "h:0", "h:65536", "::1:5", ""])
def test_malformed_address_is_a_config_error(address: str):
    with pytest.raises(ConfigError, match="worker address"):
        WorkerClient(address)

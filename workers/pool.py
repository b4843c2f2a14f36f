"""Several workers as one evaluator: least-loaded dispatch, failover, reconnects, quarantine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence

from evo.errors import (
    ConfigError,
    EvoError,
    ProtocolError,
    WorkerError,
    WorkerLost,
    WorkerUnavailable,
)
from evo.evaluation import Evaluation, EvaluationStatus
from evo.job import DeviceInfo, EvaluationRequest, TaskBundle
from workers.client import ClientSettings, WorkerClient
from workers.convert import require_same_device
from workers.follow import DeadlineExceeded, JobLost
from workers.security import ClientSecurity, split_address
from workers.signals import Signal

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.25
_LAST_BACKOFF_S = 10.0
_INFRA_RETRIES = 2
_MAX_ROUNDS = 12


class _Member:
    """One worker of the pool."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client
        self.device: DeviceInfo | None = None
        self.slots = 0
        self.in_flight = 0
        self.live = False
        self.retired = ""
        """Why it never comes back; empty while it may."""
        self.reconnecting: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self.client.address

    @property
    def load(self) -> float:
        return self.in_flight / self.slots


class WorkerPool:
    """An evaluator over worker daemons (`evo.evaluator.Evaluator`); use from one event loop.

    A job whose worker dies goes to another one, or to the same one once it is back. A candidate
    that took down several workers is given RUNTIME_ERROR: the search goes on without it.

    Args:
        addresses: "host:port" of each worker; all must have the same device.
        token_file: File with the workers' token; else KELITES_WORKER_TOKEN, if set.
        tls_ca: PEM file of the CA of the workers' certificates; turns TLS on.
        tls_client_cert: PEM file shown to workers that ask for one (mutual TLS).
        tls_client_key: Its private key.
        tls_server_name: Name to expect in the certificates instead of the host dialled.
        insecure: Sends the token to other hosts even without TLS.
        lost_limit_s: How long to wait for any worker to come back.
        quarantine_after: Workers a candidate may take down, minus one.
        settings: Patience of the connections.

    Raises:
        ConfigError: If addresses, token or TLS settings are no good.
    """

    def __init__(
        self,
        addresses: Sequence[str] | str,
        *,
        token_file: str | None = None,
        tls_ca: str | None = None,
        tls_client_cert: str | None = None,
        tls_client_key: str | None = None,
        tls_server_name: str | None = None,
        insecure: bool = False,
        lost_limit_s: float = 120.0,
        quarantine_after: int = 2,
        settings: ClientSettings | None = None,
    ) -> None:
        places = [addresses] if isinstance(addresses, str) else [str(item) for item in addresses]
        if not places:
            raise ConfigError("workers.addresses is empty: name at least one host:port")
        if doubled := sorted({place for place in places if places.count(place) > 1}):
            raise ConfigError(f"worker {doubled[0]} is named twice")
        for place in places:
            split_address(place)
        self._places = places
        self._security = ClientSecurity.load(
            token_file=token_file,
            tls_ca=tls_ca,
            tls_client_cert=tls_client_cert,
            tls_client_key=tls_client_key,
            tls_server_name=tls_server_name,
            insecure=insecure,
        )
        self._settings = settings or ClientSettings()
        self._lost_limit_s = lost_limit_s
        self._quarantine_after = quarantine_after
        self._members: list[_Member] = []
        self._bundle: TaskBundle | None = None
        self._device: DeviceInfo | None = None
        self._changed = Signal()
        self._closed = False

    @property
    def slots(self) -> int:
        """Evaluations that the live workers run at once; at least 1, to wait for the others."""
        return max(1, sum(member.slots for member in self._members if member.live))

    @property
    def device(self) -> DeviceInfo:
        """The device that all workers have; known after `start`."""
        if self._device is None:
            raise RuntimeError("the pool has not started")
        return self._device

    async def start(self, bundle: TaskBundle) -> None:
        """Connects to the workers and puts the task on them.

        Workers that do not answer are tried again in the background, if at least one does.

        Raises:
            WorkerUnavailable: If none answers.
            ConfigError: If their devices differ, or a token is refused.
            ProtocolError: If one speaks another version.
            TaskError: If one refuses the task.
        """
        self._bundle = bundle
        self._members = [
            _Member(WorkerClient(place, security=self._security, settings=self._settings))
            for place in self._places
        ]
        outcomes = await asyncio.gather(
            *(self._connect(member) for member in self._members), return_exceptions=True
        )
        try:
            self._judge_start(outcomes)
        except BaseException:
            await self.close()
            raise
        for member in self._members:
            if not member.live:
                self._reconnect(member)

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates one request on whichever worker is least busy.

        Raises:
            WorkerLost: If no worker comes back within the limit.
        """
        strikes = infra_failures = attempt = 0
        trouble = ""
        avoid: set[_Member] = set()
        banned: set[_Member] = set()
        for _ in range(_MAX_ROUNDS):
            member = await self._acquire(avoid, banned)
            if member is None:
                break
            # Another attempt is another job: the first may still be running somewhere.
            job_id = f"{request.job_id}.{attempt + 1}" if attempt else request.job_id
            sent = dataclasses.replace(request, job_id=job_id)
            avoid.add(member)
            try:
                result = await member.client.evaluate(sent, bundle=self._bundle, resubmissions=0)
            except DeadlineExceeded as error:
                trouble, attempt = str(error), attempt + 1
                strikes += error.stage != "queued"
                banned.add(member)
            except JobLost as error:
                trouble, attempt = str(error), attempt + 1
                strikes += error.stage != "queued"
                self._lose(member, trouble)
            except WorkerUnavailable as error:
                trouble = str(error)
                self._lose(member, trouble)
            except ProtocolError as error:
                # This request does not fit this worker; others are no different.
                trouble = str(error)
                break
            except EvoError as error:
                trouble = str(error)
                self._retire(member, trouble)
            else:
                if result.status is not EvaluationStatus.INFRA_ERROR:
                    return dataclasses.replace(result, job_id=request.job_id)
                trouble, attempt = result.message, attempt + 1
                infra_failures += 1
                if infra_failures > _INFRA_RETRIES:
                    return dataclasses.replace(result, job_id=request.job_id)
            finally:
                member.in_flight -= 1
                self._changed.set()
            if strikes >= self._quarantine_after:
                log.warning("job %s took down %d workers", request.job_id, strikes)
                return _failure(
                    request,
                    EvaluationStatus.RUNTIME_ERROR,
                    f"quarantined: {strikes} workers went down or hung under this candidate",
                )
        return _failure(request, EvaluationStatus.INFRA_ERROR, trouble or "no worker took the job")

    async def close(self) -> None:
        """Closes all connections; idempotent."""
        self._closed = True
        tasks = [member.reconnecting for member in self._members if member.reconnecting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(
            *(member.client.close() for member in self._members), return_exceptions=True
        )
        for member in self._members:
            member.live = False

    async def _connect(self, member: _Member) -> None:
        capabilities = await member.client.connect()
        if capabilities.draining:
            raise WorkerUnavailable(f"worker {member.address} is draining")
        if self._device is not None:
            self._require_device(member.address, capabilities.device)
        if self._bundle is not None:
            await member.client.put_task(self._bundle)
        member.device = capabilities.device
        member.slots = capabilities.slots
        member.live = True
        self._changed.set()

    def _judge_start(self, outcomes: Sequence[BaseException | None]) -> None:
        absent: list[str] = []
        for outcome in outcomes:
            if isinstance(outcome, WorkerUnavailable):
                absent.append(str(outcome))
            elif outcome is not None:
                raise outcome
        if len(absent) == len(self._members):
            if len(absent) == 1:
                raise WorkerUnavailable(absent[0])
            raise WorkerUnavailable(
                f"none of {len(absent)} workers answers: {', '.join(self._places)} "
                "(is `kelites-worker serve` running there?)"
            )
        for message in absent:
            log.warning("%s; going on without it", message)
        devices = [(m.address, m.device) for m in self._members if m.device is not None]
        if differing := require_same_device(devices):
            raise ConfigError(f"workers with different devices: {differing[0]}; {differing[1]}")
        self._device = devices[0][1]

    def _require_device(self, address: str, device: DeviceInfo) -> None:
        if differing := require_same_device([("this search", self.device), (address, device)]):
            raise ConfigError(f"workers with different devices: {differing[0]}; {differing[1]}")

    async def _acquire(self, avoid: set[_Member], banned: set[_Member]) -> _Member | None:
        """Takes a slot, on a worker outside `avoid` if one is live, never on a banned one.

        Returns:
            The member, or None if only banned ones are left.

        Raises:
            WorkerLost: If no worker is live for longer than the limit.
        """
        loop = asyncio.get_running_loop()
        dead_since: float | None = None
        while True:
            change = self._changed.next()
            possible = [m for m in self._members if m not in banned and not m.retired]
            live = [m for m in possible if m.live]
            fresh = [m for m in live if m not in avoid] or live
            free = [m for m in fresh if m.in_flight < m.slots]
            if free:
                member = min(free, key=lambda m: m.load)
                member.in_flight += 1
                return member
            if not possible:
                if banned:
                    return None
                raise WorkerLost(self._obituary("no worker is left"))
            timeout_s = None
            if live:
                dead_since = None
            else:
                dead_since = loop.time() if dead_since is None else dead_since
                timeout_s = dead_since + self._lost_limit_s - loop.time()
                if timeout_s <= 0:
                    if banned:
                        return None
                    raise WorkerLost(
                        self._obituary(f"no worker came back within {self._lost_limit_s:g} s")
                    )
            try:
                await asyncio.wait_for(change.wait(), timeout_s)
            except TimeoutError:
                continue

    def _obituary(self, what: str) -> str:
        notes = [f"{m.address} ({m.retired})" if m.retired else m.address for m in self._members]
        return f"{what}: {', '.join(notes)}"

    def _lose(self, member: _Member, why: str) -> None:
        """Marks a worker as gone for now, and looks for it in the background."""
        if member.live:
            log.warning("%s", why)
        member.live = False
        self._reconnect(member)
        self._changed.set()

    def _retire(self, member: _Member, why: str) -> None:
        log.error("worker %s is left out from now on: %s", member.address, why)
        member.live = False
        member.retired = why
        self._changed.set()

    def _reconnect(self, member: _Member) -> None:
        if self._closed or member.retired:
            return
        if member.reconnecting is None or member.reconnecting.done():
            member.reconnecting = asyncio.create_task(self._reconnect_until_live(member))

    async def _reconnect_until_live(self, member: _Member) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                await self._connect(member)
            except ProtocolError as error:
                self._retire(member, str(error))
                return
            except WorkerError:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)
            except EvoError as error:
                self._retire(member, str(error))
                return
            else:
                log.info("worker %s is back", member.address)
                return


def _failure(request: EvaluationRequest, status: EvaluationStatus, message: str) -> Evaluation:
    return Evaluation(job_id=request.job_id, status=status, message=message, measured=False)

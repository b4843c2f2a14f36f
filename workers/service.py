"""Evaluates programs on one device: the pipeline from validation to a timing with an interval.

    validate -> compile -> dedupe by machine code -> check -> time -> judge

A kernel can only end its own evaluation. Whatever it does to the executor process, the next
request gets a working one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from evo.descriptor import DEFAULT_DESCRIPTOR, cell_key
from evo.errors import EvoError, TaskError, WorkerError
from evo.evaluation import (
    CodeFeatures,
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Resources,
    Timing,
)
from evo.job import DeviceInfo, EvaluationRequest, Program, Purpose, TaskBundle
from evo.serial import content_hash
from evo.task import Task, task_from_bundle
from workers.compile_pool import CompilePool
from workers.execution import ExecutorFailure
from workers.executor import Executor
from workers.measure.builds import Build, Builder
from workers.measure.ceilings import measure_ceilings
from workers.measure.correctness import Checker
from workers.measure.lint import lint_task, require_sound
from workers.measure.reference import ReferenceCache
from workers.measure.roofline import is_impossible, roofline
from workers.measure.timing import RIVAL, Samples, measure, to_timing
from workers.measure.trial import Bench, ExecutorStopwatch, check
from workers.measure.verdict import Rejected, hack

logger = logging.getLogger(__name__)

Stage = Callable[[str], None]

MAX_RESULTS = 1024
MAX_TASKS = 64
SEED_LIFETIME = 64
"""Evaluations that share inputs: references are dear, and device code has nowhere to keep notes."""
CONFIRM_REPEATS = 3

_cores = threading.Lock()
"""Held while a CPU device compiles or runs: each uses all cores and would disturb the other."""


@dataclass(slots=True)
class _Draft:
    """What is known of an evaluation so far."""

    stage: str = "validate"
    correctness: Correctness | None = None
    timing: Timing | None = None
    features: CodeFeatures | None = None
    resources: Resources | None = None
    code_hash: str = ""
    compile_s: float = 0.0
    seed: int | None = None
    executor_used: bool = field(default=False)


class EvaluationService:
    """Evaluates requests one at a time on one device.

    `evaluate` may be called from any thread; calls queue. `cancel` and `close` come from others.

    Args:
        backend: Name of the backend.
        device_index: Which of its devices.
        worker_name: Put into every result's environment.
        compile_jobs: Compile processes.
        lint: Refuse tasks whose own check accepts known-wrong answers.
        start_timeout_s: Limit on opening the device.
    """

    def __init__(
        self,
        *,
        backend: str,
        device_index: int = 0,
        worker_name: str = "local",
        compile_jobs: int = 1,
        lint: bool = True,
        start_timeout_s: float = 60.0,
    ) -> None:
        self._backend = backend
        self._worker_name = worker_name
        self._lint = lint
        self._start_timeout_s = start_timeout_s
        self._executor = Executor(backend=backend, device_index=device_index)
        self._compilers = CompilePool(size=compile_jobs, backend=backend, device_index=device_index)
        self._builder = Builder(compiler=self._compilers)
        self._cache = ReferenceCache()
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._benches: dict[str, Bench] = {}
        self._seed_uses: dict[str, int] = {}
        self._results: OrderedDict[str, Evaluation] = OrderedDict()
        self._measured: OrderedDict[str, Evaluation] = OrderedDict()
        self._sound_baselines: set[str] = set()
        self._device: DeviceInfo | None = None
        self._busy = threading.RLock()
        self._state = threading.Lock()
        self._current = ""
        self._cancelled: set[str] = set()
        self._closed = False

    # -- life cycle ------------------------------------------------------------------------------

    def start(self) -> DeviceInfo:
        """Opens the device and measures its ceilings, at first call; returns its description.

        Raises:
            BackendUnavailable: If the device or its toolchain is missing.
            WorkerError: If it does not start, or the service is closed.
        """
        with self._busy:
            if self._closed:
                raise WorkerError("the evaluation service is closed")
            self._executor.start(self._start_timeout_s)
            if self._device is None:
                with self._exclusive(self._executor.device):
                    self._device = measure_ceilings(
                        self._executor, self._compilers, self._executor.device
                    )
            return self._device

    def close(self) -> None:
        """Ends all child processes; a running evaluation ends as INFRA_ERROR. Idempotent."""
        with self._state:
            if self._closed:
                return
            self._closed = True
        self._executor.kill()
        with self._busy:
            self._executor.close()
            self._compilers.close()
            self._cache.clear()

    # -- tasks -----------------------------------------------------------------------------------

    def put_task(self, bundle: TaskBundle) -> None:
        """Loads and lints a task.

        Raises:
            TaskError: If it is malformed, or its own check accepts a known-wrong answer.
        """
        if self.has_task(bundle.task_hash):
            return
        task = task_from_bundle(bundle)
        if self._lint:
            require_sound(lint_task(task))
        with self._state:
            self._tasks[bundle.task_hash] = task
            while len(self._tasks) > MAX_TASKS:
                self._tasks.popitem(last=False)

    def has_task(self, task_hash: str) -> bool:
        """Says whether a task is known."""
        with self._state:
            return task_hash in self._tasks

    # -- evaluation ------------------------------------------------------------------------------

    def evaluate(self, request: EvaluationRequest, on_stage: Stage | None = None) -> Evaluation:
        """Evaluates one request; a job id seen before gives the result it gave then.

        Args:
            request: The job.
            on_stage: Called with "validate", "compile", "check", "time" and "done" as they begin.

        Raises:
            TaskError: If the task is not known here.
        """
        with self._busy:
            known = self._results.get(request.job_id)
            if known is not None:
                self._results.move_to_end(request.job_id)
                return known
            with self._state:
                task = self._tasks.get(request.task_hash)
                if task is None:
                    raise TaskError(f"task {request.task_hash} is not known here: put it first")
                self._tasks.move_to_end(request.task_hash)
                self._current = request.job_id
            result = None
            try:
                result = self._evaluate(request, task, on_stage or _ignore)
            finally:
                with self._state:
                    self._current = ""
                    self._cancelled.discard(request.job_id)
                    if result is not None and result.status is not EvaluationStatus.INFRA_ERROR:
                        self._results[request.job_id] = result
                        while len(self._results) > MAX_RESULTS:
                            self._results.popitem(last=False)
            return result

    def cancel(self, job_id: str) -> None:
        """Makes a job that runs or has not begun end soon as INFRA_ERROR; done ones stay.

        A running compilation is not interrupted; its own time limit holds.
        """
        with self._state:
            if job_id in self._results:
                return
            self._cancelled.add(job_id)
            running = self._current == job_id
        if running:
            self._executor.kill()

    def _evaluate(self, request: EvaluationRequest, task: Task, on_stage: Stage) -> Evaluation:
        begun = time.perf_counter()
        draft = _Draft()

        def enter(stage: str) -> None:
            self._require_wanted(request.job_id)
            draft.stage = stage
            on_stage(stage)

        status, message, log = EvaluationStatus.OK, "", ""
        try:
            inherited = self._run_stages(request, task, draft, enter)
            if inherited is not None:
                on_stage("done")
                return dataclasses.replace(
                    inherited,
                    job_id=request.job_id,
                    inherited_from=inherited.inherited_from or inherited.job_id,
                    compile_s=draft.compile_s,
                    total_s=time.perf_counter() - begun,
                )
            draft.stage = "done"
        except Rejected as verdict:
            status, message, log = verdict.status, verdict.message, verdict.log
            draft.correctness = verdict.correctness or draft.correctness
            draft.timing = verdict.timing
            if verdict.detail:
                logger.warning("job %s %s: %s", request.job_id, status.value, verdict.detail)
            if log and draft.executor_used:
                self._forget(task)  # what a kernel printed leaves the worker: change the inputs
        except (EvoError, ExecutorFailure) as error:
            status, message = EvaluationStatus.INFRA_ERROR, str(error)
            self._forget(task)
        except Exception as error:
            logger.exception("job %s: internal error", request.job_id)
            status = EvaluationStatus.INFRA_ERROR
            message = f"internal error of the worker: {type(error).__name__}"
            self._forget(task)
        if self._is_cancelled(request.job_id):
            status, message = EvaluationStatus.INFRA_ERROR, "cancelled"
        ok = status is EvaluationStatus.OK
        result = Evaluation(
            job_id=request.job_id,
            status=status,
            message=message,
            log=log,
            stage=draft.stage,
            measured=not ok or draft.timing is not None,
            correctness=draft.correctness,
            timing=draft.timing if ok or status is EvaluationStatus.HACK else None,
            resources=draft.resources,
            features=draft.features,
            code_hash=draft.code_hash,
            environment=self._environment(),
            compile_s=draft.compile_s,
            total_s=time.perf_counter() - begun,
            input_seed=draft.seed,
        )
        if request.purpose is Purpose.SEARCH and status in _INHERITABLE and result.code_hash:
            self._measured[self._measurement_key(request, result.code_hash)] = result
            while len(self._measured) > MAX_RESULTS:
                self._measured.popitem(last=False)
        on_stage("done")
        return result

    def _run_stages(
        self, request: EvaluationRequest, task: Task, draft: _Draft, enter: Stage
    ) -> Evaluation | None:
        """Fills the draft; returns an earlier evaluation of the same machine code, if any."""
        device, settings = self.start(), request.settings
        enter("validate")
        self._builder.validate(request.candidate, task, device)
        enter("compile")
        build = self._build(request.candidate, settings.compile_timeout_s, draft)
        draft.features, draft.resources = build.features, build.resources
        draft.code_hash = build.code_hash
        if request.purpose is Purpose.COMPILE_ONLY:
            return None
        if request.purpose is Purpose.SEARCH:
            known = self._measured.get(self._measurement_key(request, build.code_hash))
            if known is not None:
                return known
        others = [self._reference_arm(request.baseline, "baseline", task, request)]
        if request.incumbent is not None and request.purpose is Purpose.DUEL:
            others.append(self._reference_arm(request.incumbent, "incumbent", task, request))
        with self._exclusive(device):
            draft.executor_used = True
            if request.purpose is Purpose.CONFIRM:
                self._confirm(request, task, others[0], build, draft, enter)
            else:
                self._search(request, task, [others[0], build, *others[1:]], draft, enter)
        return None

    def _search(
        self,
        request: EvaluationRequest,
        task: Task,
        builds: Sequence[Build],
        draft: _Draft,
        enter: Stage,
    ) -> None:
        """Checks and times on the search workloads; three builds make a duel."""
        settings = request.settings
        families = _families(settings.families, task)
        bench = self._bench(task, request)
        draft.seed = bench.seed
        checker = Checker(task=task)
        enter("check")
        self._check_baseline(bench, builds[0], families)
        check(
            bench,
            builds[1],
            workloads=task.search_workloads,
            families=families,
            checker=checker,
        )
        draft.correctness = checker.result()
        enter("time")
        names = [workload.name for workload in task.search_workloads]
        samples = measure(
            ExecutorStopwatch(
                bench=bench, builds=builds, workloads=names, families=families, checker=checker
            ),
            workloads=names,
            arms=len(builds),
            settings=settings,
            rng=np.random.default_rng(secrets.randbits(64)),
            race_bound=_race_bound(request, draft.features) if len(builds) <= RIVAL else None,
        )
        draft.correctness = checker.result()
        draft.timing = self._judge(task, samples, draft)

    def _confirm(
        self,
        request: EvaluationRequest,
        task: Task,
        baseline: Build,
        build: Build,
        draft: _Draft,
        enter: Stage,
    ) -> None:
        """Checks and times on all workloads, in several fresh processes with fresh inputs.

        The first process goes through every input family, the others through the search's.
        """
        settings = request.settings
        processes = max(1, settings.processes)
        blocks = max(2, settings.min_blocks, -(-settings.max_blocks // processes))
        names = [workload.name for workload in task.workloads]
        families = _families(settings.families, task)
        samples = Samples(workloads=tuple(names), arms=2, processes=processes)
        checker = Checker(task=task)
        self._forget(task)
        for number in range(processes):
            self._executor.kill()
            bench = Bench(
                executor=self._executor,
                cache=ReferenceCache(),  # never used again: fresh inputs for every process
                task=task,
                seed=secrets.randbits(53),
                timeout_s=settings.run_timeout_s,
                require_wanted=functools.partial(self._require_wanted, request.job_id),
            )
            draft.seed = bench.seed
            try:
                enter("check")
                check(
                    bench,
                    build,
                    workloads=task.workloads,
                    families=task.all_families if number == 0 else families,
                    checker=checker,
                    repeats=CONFIRM_REPEATS if number == 0 else 2,
                )
                draft.correctness = checker.result()
                enter("time")
                measure(
                    ExecutorStopwatch(
                        bench=bench,
                        builds=[baseline, build],
                        workloads=names,
                        families=families,
                        checker=checker,
                        check_all=True,
                    ),
                    workloads=names,
                    arms=2,
                    settings=settings,
                    rng=np.random.default_rng(secrets.randbits(64)),
                    fixed_blocks=blocks,
                    into=samples,
                )
            finally:
                with contextlib.suppress(Exception):
                    bench.forget()
        draft.correctness = checker.result()
        draft.timing = self._judge(task, samples, draft)

    def _judge(self, task: Task, samples: Samples, draft: _Draft) -> Timing:
        """Adds the roofline, and refuses times that the device cannot reach.

        Raises:
            Rejected: HACK.
        """
        timing = self._with_roofline(task, samples)
        if self._impossible(task, timing):
            # The ceilings may have been measured while the machine was busy: look again.
            assert self._device is not None
            self._device = measure_ceilings(self._executor, self._compilers, self._device)
            timing = self._with_roofline(task, samples)
            if where := self._impossible(task, timing):
                raise hack(
                    f"faster than the device can be on workload {where}",
                    correctness=draft.correctness,
                    timing=timing,
                )
        return timing

    def _with_roofline(self, task: Task, samples: Samples) -> Timing:
        assert self._device is not None
        known = {}
        for name in samples.workloads:
            workload = task.workload(name)
            bounds = roofline(self._device, task.bytes(workload), task.flops(workload))
            latency_us = samples.median_us(1, name)
            known[name] = (bounds.fraction(latency_us), bounds.classify(latency_us))
        return to_timing(samples, clock=self._executor.clock, roofline=known)

    def _impossible(self, task: Task, timing: Timing) -> str:
        """Returns the first workload whose time is below the device's bounds, or ""."""
        assert self._device is not None
        for item in timing.workloads:
            workload = task.workload(item.workload)
            size_bytes = task.bytes(workload)
            bounds = roofline(self._device, size_bytes, task.flops(workload))
            if is_impossible(self._device, bounds, size_bytes, item.latency_us):
                return item.workload
        return ""

    # -- arms ------------------------------------------------------------------------------------

    def _build(self, program: Program, timeout_s: float, draft: _Draft | None = None) -> Build:
        assert self._device is not None
        with self._exclusive(self._device):
            build = self._builder.build(program, self._device, timeout_s)
        if draft is not None:
            draft.compile_s = build.compile_s
        return build

    def _reference_arm(
        self, program: Program, what: str, task: Task, request: EvaluationRequest
    ) -> Build:
        """Builds the baseline or the incumbent; their failure is never blamed on the candidate."""
        assert self._device is not None
        try:
            self._builder.validate(program, task, self._device)
            return self._build(program, request.settings.compile_timeout_s)
        except Rejected as verdict:
            raise WorkerError(f"the {what} is {verdict.status.value}: {verdict.message}") from None

    def _check_baseline(self, bench: Bench, baseline: Build, families: Sequence[str]) -> None:
        key = content_hash([bench.task.bundle.task_hash, baseline.program])
        if key in self._sound_baselines:
            return
        checker = Checker(task=bench.task)
        try:
            check(
                bench,
                baseline,
                workloads=bench.task.search_workloads,
                families=families,
                checker=checker,
            )
        except Rejected as verdict:
            reason = verdict.detail or verdict.message
            raise WorkerError(f"the baseline is {verdict.status.value}: {reason}") from None
        self._sound_baselines.add(key)

    # -- inputs ----------------------------------------------------------------------------------

    def _bench(self, task: Task, request: EvaluationRequest) -> Bench:
        """Returns the task's inputs, drawn anew every `SEED_LIFETIME` evaluations."""
        task_hash = task.bundle.task_hash
        if self._seed_uses.get(task_hash, 0) >= SEED_LIFETIME:
            self._forget(task)
        if task_hash not in self._benches:
            for other in list(self._benches.values()):
                self._forget(other.task)  # one task at a time keeps the device's memory free
            self._benches[task_hash] = Bench(
                executor=self._executor,
                cache=self._cache,
                task=task,
                seed=secrets.randbits(53),
                timeout_s=request.settings.run_timeout_s,
            )
            self._seed_uses[task_hash] = 0
        self._seed_uses[task_hash] += 1
        bench = self._benches[task_hash]
        bench.timeout_s = request.settings.run_timeout_s
        bench.require_wanted = functools.partial(self._require_wanted, request.job_id)
        return bench

    def _forget(self, task: Task) -> None:
        """Drops a task's inputs here and on the device."""
        bench = self._benches.pop(task.bundle.task_hash, None)
        if bench is not None:
            bench.forget()
            self._cache.clear()

    # -- small things ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _exclusive(self, device: DeviceInfo) -> Iterator[None]:
        if device.kind == "cpu":
            with _cores:
                yield
        else:
            yield

    def _measurement_key(self, request: EvaluationRequest, code_hash: str) -> str:
        return content_hash([request.scope, request.task_hash, request.baseline, code_hash])

    def _is_cancelled(self, job_id: str) -> bool:
        with self._state:
            return self._closed or job_id in self._cancelled

    def _require_wanted(self, job_id: str) -> None:
        if self._is_cancelled(job_id):
            raise WorkerError("cancelled")

    def _environment(self) -> Environment:
        device = self._device
        if device is None:
            return Environment(backend=self._backend, worker=self._worker_name)
        return Environment(
            backend=device.backend,
            device=device.name,
            driver=device.driver,
            platform=device.platform,
            worker=self._worker_name,
            host=socket.gethostname(),
            device_kind=device.kind,
        )


_INHERITABLE = frozenset({EvaluationStatus.OK, EvaluationStatus.INCORRECT})
"""Time-outs and crashes may depend on the machine's state, so equal code gets another chance."""


def _ignore(_stage: str) -> None:
    pass


def _families(asked: Sequence[str], task: Task) -> tuple[str, ...]:
    """The families asked for that the task's contract admits; the task's own if none is left."""
    return tuple(name for name in asked if name in task.all_families) or task.families


def _race_bound(request: EvaluationRequest, features: CodeFeatures | None) -> float | None:
    if features is None or not request.settings.race_cells:
        return None
    key = cell_key(DEFAULT_DESCRIPTOR.cell(features))
    return request.settings.race_cells.get(key)

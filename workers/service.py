"""Evaluates programs on one device: the pipeline from validation to a timing with an interval.

    validate -> compile -> dedupe by machine code -> check -> time -> judge

A kernel can only end its own evaluation. Whatever it does to the executor process, the next
request gets a working one.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from evo.errors import EvoError, TaskError, WorkerError
from evo.evaluation import (
    Environment,
    Evaluation,
    EvaluationStatus,
)
from evo.job import DeviceInfo, EvaluationRequest, Purpose, TaskBundle
from evo.serial import content_hash
from evo.task import Task, task_from_bundle
from workers.execution import ExecutorFailure
from workers.laboratory import Draft, Laboratory, exclusive
from workers.measure.lint import lint_task, require_sound
from workers.measure.verdict import Rejected

logger = logging.getLogger(__name__)

Stage = Callable[[str], None]

MAX_RESULTS = 1024
MAX_TASKS = 64


class EvaluationService:
    """Evaluates requests one at a time on one device.

    `evaluate` may be called from any thread; calls queue. `cancel` and `close` come from others.

    Args:
        backend: Name of the backend.
        device_index: Which of its devices.
        worker_name: Put into every result's environment.
        compile_jobs: Compile processes; None is one per processor, four at most.
        lint: Refuse tasks whose own check accepts known-wrong answers.
        start_timeout_s: Limit on opening the device.
    """

    def __init__(
        self,
        *,
        backend: str,
        device_index: int = 0,
        worker_name: str = "local",
        compile_jobs: int | None = None,
        lint: bool = True,
        start_timeout_s: float = 60.0,
    ) -> None:
        self._backend = backend
        self._worker_name = worker_name
        self._lint = lint
        self._lab = Laboratory(
            backend=backend,
            device_index=device_index,
            compile_jobs=compile_jobs or min(4, os.cpu_count() or 1),
            start_timeout_s=start_timeout_s,
        )
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._results: OrderedDict[str, tuple[str, Evaluation]] = OrderedDict()
        self._measured: OrderedDict[str, Evaluation] = OrderedDict()
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
            return self._lab.start()

    def close(self) -> None:
        """Ends all child processes; a running evaluation ends as INFRA_ERROR. Idempotent."""
        with self._state:
            if self._closed:
                return
            self._closed = True
        self._lab.kill()
        with self._busy:
            self._lab.close()

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
        """Evaluates one request; one seen before, id and content, gives the result it gave then.

        Args:
            request: The job.
            on_stage: Called with "validate", "compile", "check", "time" and "done" as they begin.

        Raises:
            TaskError: If the task is not known here.
        """
        with self._busy:
            digest = request.digest
            earlier = self._results.get(request.job_id)
            if earlier is not None and earlier[0] == digest:
                self._results.move_to_end(request.job_id)
                return earlier[1]
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
                        self._results[request.job_id] = (digest, result)
                        self._results.move_to_end(request.job_id)
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
            if len(self._cancelled) >= MAX_RESULTS:  # of jobs that never came
                self._cancelled.clear()
            self._cancelled.add(job_id)
            running = self._current == job_id
        if running:
            self._lab.kill()

    def _evaluate(self, request: EvaluationRequest, task: Task, on_stage: Stage) -> Evaluation:
        begun = time.perf_counter()

        def enter(stage: str) -> None:
            self._require_wanted(request.job_id)
            draft.stage = stage
            on_stage(stage)

        draft = Draft(
            enter=enter, require_wanted=functools.partial(self._require_wanted, request.job_id)
        )
        status, message, log = EvaluationStatus.OK, "", ""
        try:
            inherited = self._run_stages(request, task, draft)
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
            if log and draft.executed:
                self._lab.forget()  # what a kernel printed leaves the worker: change the inputs
        except (EvoError, ExecutorFailure) as error:
            status, message = EvaluationStatus.INFRA_ERROR, str(error)
            self._lab.forget()
        except Exception as error:
            logger.exception("job %s: internal error", request.job_id)
            status = EvaluationStatus.INFRA_ERROR
            message = f"internal error of the worker: {type(error).__name__}"
            self._lab.forget()
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
        self, request: EvaluationRequest, task: Task, draft: Draft
    ) -> Evaluation | None:
        """Fills the draft; returns an earlier evaluation of the same machine code, if any."""
        device, settings, lab = self.start(), request.settings, self._lab
        limit = settings.compile_timeout_s
        used = _used_workloads(task, request.purpose)
        draft.enter("validate")
        lab.validate(request.candidate, task)
        draft.enter("compile")
        build = lab.build(request.candidate, used, limit)
        draft.compile_s, draft.code_hash = build.compile_s, build.code_hash
        draft.features, draft.resources = build.features, build.resources
        if request.purpose is Purpose.COMPILE_ONLY:
            return None
        if request.purpose is Purpose.SEARCH:
            known = self._measured.get(self._measurement_key(request, build.code_hash))
            if known is not None:
                return known
        builds = [lab.build_other(request.baseline, "baseline", task, used, limit), build]
        if request.incumbent is not None and request.purpose is Purpose.DUEL:
            builds.append(lab.build_other(request.incumbent, "incumbent", task, used, limit))
        with exclusive(device):
            draft.executed = True
            if request.purpose is Purpose.CONFIRM:
                lab.confirm(task, builds[0], build, settings, draft)
            else:
                lab.search(task, builds, settings, draft)
        return None

    # -- small things ----------------------------------------------------------------------------

    def _measurement_key(self, request: EvaluationRequest, code_hash: str) -> str:
        return content_hash([request.scope, request.task_hash, request.baseline, code_hash])

    def _is_cancelled(self, job_id: str) -> bool:
        with self._state:
            return self._closed or job_id in self._cancelled

    def _require_wanted(self, job_id: str) -> None:
        if self._is_cancelled(job_id):
            raise WorkerError("cancelled")

    def _environment(self) -> Environment:
        device = self._lab.device
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


def _used_workloads(task: Task, purpose: Purpose) -> tuple[str, ...]:
    """Names of the workloads an evaluation runs; a search spares itself the confirm ones."""
    searching = purpose in (Purpose.SEARCH, Purpose.DUEL)
    return tuple(item.name for item in (task.search_workloads if searching else task.workloads))


def _ignore(_stage: str) -> None:
    pass

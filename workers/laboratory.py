"""Owns a device's processes and a task's inputs, and carries out the dear stages on them."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evo.descriptor import DEFAULT_DESCRIPTOR, cell_key
from evo.errors import WorkerError
from evo.evaluation import CodeFeatures, Correctness, EvaluationStatus, Resources, Timing
from evo.job import DeviceInfo, EvaluationSettings, Program
from evo.serial import content_hash
from evo.task import Task, Workload
from workers.compile_pool import CompilePool
from workers.executor import Executor
from workers.measure.builds import Build, Builder
from workers.measure.ceilings import measure_ceilings
from workers.measure.correctness import Checker
from workers.measure.reference import ReferenceCache
from workers.measure.roofline import is_impossible, roofline
from workers.measure.timing import CANDIDATE, RIVAL, Samples, measure, to_timing
from workers.measure.trial import Bench, ExecutorStopwatch, check
from workers.measure.verdict import Rejected, hack

SEED_LIFETIME = 64
"""Evaluations that share inputs: references are dear, and device code has nowhere to keep notes."""
CONFIRM_REPEATS = 3

_cores = threading.Lock()
"""Held while a CPU device compiles or runs: each uses all cores and would disturb the other."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """One evaluation in the making.

    Attributes:
        enter: Called with the name of each stage as it begins; raises if the job was cancelled.
        require_wanted: Raises if the job was cancelled.
        seed: Of the inputs last used.
        executed: The executor was used, so a log may hold what a kernel printed.
    """

    enter: Callable[[str], None]
    require_wanted: Callable[[], None]
    stage: str = "validate"
    correctness: Correctness | None = None
    timing: Timing | None = None
    features: CodeFeatures | None = None
    resources: Resources | None = None
    code_hash: str = ""
    compile_s: float = 0.0
    seed: int | None = None
    executed: bool = False


class Laboratory:
    """A device, its compilers, and what was learnt on them. One thread at a time, but for `kill`.

    Args:
        backend: Name of the backend.
        device_index: Which of its devices.
        compile_jobs: Compile processes.
        start_timeout_s: Limit on opening the device.
    """

    def __init__(
        self, *, backend: str, device_index: int, compile_jobs: int, start_timeout_s: float
    ) -> None:
        self.executor = Executor(backend=backend, device_index=device_index)
        self._compilers = CompilePool(size=compile_jobs, backend=backend, device_index=device_index)
        self._builder = Builder(compiler=self._compilers)
        self._start_timeout_s = start_timeout_s
        self._cache = ReferenceCache()
        self._bench: Bench | None = None
        self._bench_uses = 0
        self._sound_baselines: set[str] = set()
        self.device: DeviceInfo | None = None

    def start(self) -> DeviceInfo:
        """Opens the device; measures its ceilings at first call.

        Raises:
            BackendUnavailable: If the device or its toolchain is missing.
            WorkerError: If it does not start.
        """
        described = self.executor.start(self._start_timeout_s)
        if self.device is None:
            with exclusive(described):
                self.device = measure_ceilings(self.executor, self._compilers, described)
        return self.device

    def kill(self) -> None:
        """Ends what runs on the device; from any thread. The next use starts anew."""
        self.executor.kill()

    def close(self) -> None:
        """Ends all child processes."""
        self.executor.close()
        self._compilers.close()
        self._cache.clear()

    # -- building --------------------------------------------------------------------------------

    def build(self, program: Program, workloads: Collection[str], timeout_s: float) -> Build:
        """Compiles a program that `validate` let pass, as far as some workloads need it.

        Raises:
            Rejected: COMPILE_ERROR or INVALID.
        """
        device = self.start()
        with exclusive(device):
            used = tuple(item for item in program.workloads if item.workload in workloads)
            return self._builder.build(replace(program, workloads=used), device, timeout_s)

    def validate(self, program: Program, task: Task) -> None:
        """Refuses what can be refused without compiling.

        Raises:
            Rejected: INVALID.
        """
        self._builder.validate(program, task, self.start())

    def build_other(
        self,
        program: Program,
        what: str,
        task: Task,
        workloads: Collection[str],
        timeout_s: float,
    ) -> Build:
        """Builds the baseline or the incumbent.

        Raises:
            WorkerError: If it fails: never the candidate's fault.
        """
        try:
            self.validate(program, task)
            return self.build(program, workloads, timeout_s)
        except Rejected as verdict:
            raise WorkerError(f"the {what} is {verdict.status.value}: {verdict.message}") from None

    # -- measuring -------------------------------------------------------------------------------

    def search(
        self, task: Task, builds: Sequence[Build], settings: EvaluationSettings, draft: Draft
    ) -> None:
        """Checks and times on the search workloads.

        Args:
            task: The task.
            builds: Baseline, candidate and, in a duel, the rival.
            settings: How hard to look.
            draft: Filled in.

        Raises:
            Rejected: With the verdict, if the candidate fails.
            WorkerError: If the baseline does, or the job was cancelled.
        """
        families = _families(settings.families, task)
        bench = self._inputs(task, settings, draft)
        draft.seed = bench.seed
        checker = Checker(task=task)
        draft.enter("check")
        self._check_baseline(bench, builds[0], task.search_workloads, families)
        check(
            bench,
            builds[1],
            workloads=task.search_workloads,
            families=families,
            checker=checker,
        )
        draft.correctness = checker.result()
        draft.enter("time")
        names = [workload.name for workload in task.search_workloads]

        def timed(arms: Sequence[Build], fixed_blocks: int | None = None) -> Samples:
            return measure(
                ExecutorStopwatch(
                    bench=bench, builds=arms, workloads=names, families=families, checker=checker
                ),
                workloads=names,
                arms=len(arms),
                settings=settings,
                rng=np.random.default_rng(secrets.randbits(64)),
                race_bound=_race_bound(settings, draft.features) if len(arms) <= RIVAL else None,
                fixed_blocks=fixed_blocks,
            )

        try:
            samples = timed(builds)
        except Rejected as verdict:
            if len(builds) <= RIVAL or verdict.status is EvaluationStatus.INCORRECT:
                raise
            # Three kernels took turns and one crashed, hung or wrote astray: the candidate, if it
            # does so without the rival as well.
            timed(builds[:RIVAL], fixed_blocks=2)
            raise WorkerError(f"the incumbent spoilt the duel: {verdict.message}") from None
        draft.correctness = checker.result()
        draft.timing = self._judge(task, samples, draft)

    def confirm(
        self,
        task: Task,
        baseline: Build,
        build: Build,
        settings: EvaluationSettings,
        draft: Draft,
    ) -> None:
        """Checks and times on all workloads, in several fresh processes with fresh inputs.

        The first process goes through every input family, the others through the search's.

        Raises:
            Rejected: With the verdict, if the candidate fails.
            WorkerError: If the job was cancelled.
        """
        processes = max(1, settings.processes)
        blocks = max(2, settings.min_blocks, -(-settings.max_blocks // processes))
        names = [workload.name for workload in task.workloads]
        families = _families(settings.families, task)
        samples = Samples(workloads=tuple(names), arms=2, processes=processes)
        checker = Checker(task=task)
        self.forget()
        for number in range(processes):
            self.executor.kill()
            bench = Bench(
                executor=self.executor,
                cache=ReferenceCache(),  # never used again: fresh inputs for every process
                task=task,
                seed=secrets.randbits(53),
                timeout_s=settings.run_timeout_s,
                require_wanted=draft.require_wanted,
            )
            draft.seed = bench.seed
            try:
                draft.enter("check")
                self._check_baseline(bench, baseline, task.workloads, families)
                check(
                    bench,
                    build,
                    workloads=task.workloads,
                    families=task.all_families if number == 0 else families,
                    checker=checker,
                    repeats=CONFIRM_REPEATS if number == 0 else 2,
                )
                draft.correctness = checker.result()
                draft.enter("time")
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
                bench.forget()
        draft.correctness = checker.result()
        draft.timing = self._judge(task, samples, draft)

    def _judge(self, task: Task, samples: Samples, draft: Draft) -> Timing:
        """Adds the roofline, and refuses times that the device cannot reach.

        Raises:
            Rejected: HACK.
        """
        timing = self._with_roofline(task, samples)
        if self._impossible(task, timing):
            # The ceilings may have been measured while the machine was busy: look again.
            assert self.device is not None
            self.device = measure_ceilings(self.executor, self._compilers, self.device)
            timing = self._with_roofline(task, samples)
            if where := self._impossible(task, timing):
                raise hack(
                    f"faster than the device can be on workload {where}",
                    correctness=draft.correctness,
                    timing=timing,
                )
        return timing

    def _with_roofline(self, task: Task, samples: Samples) -> Timing:
        assert self.device is not None
        known = {}
        for name in samples.workloads:
            workload = task.workload(name)
            bounds = roofline(self.device, task.bytes(workload), task.flops(workload))
            latency_us = samples.median_us(CANDIDATE, name)
            known[name] = (bounds.fraction(latency_us), bounds.classify(latency_us))
        return to_timing(samples, clock=self.executor.clock, roofline=known)

    def _impossible(self, task: Task, timing: Timing) -> str:
        """Returns the first workload whose time is below the device's bounds, or ""."""
        assert self.device is not None
        for item in timing.workloads:
            workload = task.workload(item.workload)
            size_bytes = task.bytes(workload)
            bounds = roofline(self.device, size_bytes, task.flops(workload))
            if is_impossible(self.device, bounds, size_bytes, item.latency_us):
                return item.workload
        return ""

    def _check_baseline(
        self,
        bench: Bench,
        baseline: Build,
        workloads: Sequence[Workload],
        families: Sequence[str],
    ) -> None:
        """Checks the baseline once per workload: a wrong one would flatter its rivals.

        Raises:
            WorkerError: If it fails.
        """
        known = {item.name: self._baseline_key(bench, baseline, item) for item in workloads}
        unseen = [item for item in workloads if known[item.name] not in self._sound_baselines]
        checker = Checker(task=bench.task)
        try:
            check(bench, baseline, workloads=unseen, families=families, checker=checker)
        except Rejected as verdict:
            reason = verdict.detail or verdict.message
            raise WorkerError(f"the baseline is {verdict.status.value}: {reason}") from None
        self._sound_baselines |= set(known.values())

    def _baseline_key(self, bench: Bench, baseline: Build, workload: Workload) -> str:
        program = baseline.program.on(workload.name)
        return content_hash([bench.task.bundle.task_hash, program])

    def _inputs(self, task: Task, settings: EvaluationSettings, draft: Draft) -> Bench:
        """Returns the task's inputs, drawn anew every `SEED_LIFETIME` evaluations.

        One task's at a time, which keeps the device's memory free.
        """
        bench = self._bench
        if self._bench_uses >= SEED_LIFETIME:
            # Drivers keep memory of every program loaded; only the end of the process frees it.
            self.executor.kill()
        if (
            bench is None
            or bench.task.bundle.task_hash != task.bundle.task_hash
            or self._bench_uses >= SEED_LIFETIME
        ):
            self.forget()
            bench = self._bench = Bench(
                executor=self.executor,
                cache=self._cache,
                task=task,
                seed=secrets.randbits(53),
                timeout_s=settings.run_timeout_s,
            )
        self._bench_uses += 1
        bench.timeout_s = settings.run_timeout_s
        bench.require_wanted = draft.require_wanted
        return bench

    def forget(self) -> None:
        """Drops all inputs here and on the device: the next evaluation draws new ones."""
        bench, self._bench, self._bench_uses = self._bench, None, 0
        if bench is not None:
            bench.forget()
        self._cache.clear()


@contextlib.contextmanager
def exclusive(device: DeviceInfo) -> Iterator[None]:
    """On a CPU device, keeps compilation and timing in this process from overlapping."""
    if device.kind == "cpu":
        with _cores:
            yield
    else:
        yield


def _families(asked: Sequence[str], task: Task) -> tuple[str, ...]:
    """The families asked for that the task's contract admits; the task's own if none is left."""
    return tuple(name for name in asked if name in task.all_families) or task.families


def _race_bound(settings: EvaluationSettings, features: CodeFeatures | None) -> float | None:
    if features is None or not settings.race_cells:
        return None
    return settings.race_cells.get(cell_key(DEFAULT_DESCRIPTOR.cell(features)))

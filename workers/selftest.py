"""Does this machine measure what it says it measures? Run before trusting a number.

Five kinds of check: equal kernels time equally, twice the work takes about twice as long, nothing
beats the device's own ceilings, dishonest kernels are found out and honest ones are not, and the
linter passes a shipped task.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from evo.errors import EvoError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.job import DeviceInfo, EvaluationRequest, EvaluationSettings, Purpose
from evo.statistics import interval
from evo.task import list_tasks, load_task
from workers import corpus
from workers.measure.lint import lint_task
from workers.measure.roofline import memory_margin
from workers.service import EvaluationService

SETTINGS = EvaluationSettings(run_timeout_s=3.0, min_blocks=8, max_blocks=24)
AA_SESSIONS = 5
AA_SMALL = 0.02
"""A systematic difference between equal kernels that nobody would mind: 2 %."""
DOUBLE_BAND = (1.5, 2.6)
ROUNDS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Verdict on one property of the measuring machinery.

    Attributes:
        name: What was tested.
        passed: It holds.
        detail: One line of evidence.
    """

    name: str
    passed: bool
    detail: str


Report = Callable[[Check], None]


def run_selftest(
    backend: str, device_index: int = 0, on_check: Report | None = None
) -> list[Check]:
    """Runs all checks on a device.

    Args:
        backend: Name of the backend.
        device_index: Which of its devices.
        on_check: Called with each check as it ends.

    Returns:
        All checks, in order.

    Raises:
        BackendUnavailable: If the device is missing.
        WorkerError: If it does not start.
    """
    checks: list[Check] = []

    def note(check: Check) -> None:
        checks.append(check)
        if on_check is not None:
            on_check(check)

    service = EvaluationService(backend=backend, device_index=device_index, worker_name="selftest")
    try:
        device = service.start()
        runner = _Runner(service)
        note(_ceilings(device))
        note(_equal_kernels(runner))
        note(_known_duration(runner))
        note(_plausible_bandwidth(runner, device))
        for case in (*corpus.HONEST_CASES, *corpus.CHEATS):
            note(_verdict(runner, case))
    finally:
        service.close()
    note(_linter())
    return checks


class _Runner:
    """Evaluates corpus cases against the honest kernel, each under a job id of its own."""

    def __init__(self, service: EvaluationService) -> None:
        self._service = service
        self._count = 0
        service.put_task(corpus.bundle())

    def __call__(self, case: corpus.Case, baseline: corpus.Case) -> Evaluation:
        self._count += 1
        # A scope per job: nothing may be inherited, each measurement is its own.
        return self._service.evaluate(
            EvaluationRequest(
                job_id=f"selftest-{self._count}",
                task_hash=corpus.bundle().task_hash,
                candidate=case.program(),
                baseline=baseline.program(),
                purpose=Purpose.SEARCH,
                settings=SETTINGS,
                scope=f"selftest-{self._count}",
            )
        )


def _ceilings(device: DeviceInfo) -> Check:
    known = device.bandwidth_gbs > 0.0 and device.peak_gflops > 0.0
    detail = f"copy {device.bandwidth_gbs:.1f} GB/s, {device.peak_gflops:.1f} GFLOP/s fp32"
    return Check(name="ceilings measured", passed=known, detail=detail)


def _equal_kernels(runner: _Runner) -> Check:
    """A/A: the honest kernel against itself, in several sessions.

    Each session's interval misses zero once in twenty by design, so the sessions' means are judged
    together, and a difference too small to matter passes.
    """
    means = []
    for _ in range(AA_SESSIONS):
        result = runner(corpus.HONEST_CASE, corpus.HONEST_CASE)
        if result.timing is None:
            return _failed("A/A", result)
        means.append(interval(result.timing.log_speedups).mean)
    whole = interval(means)
    passed = whole.low <= 0.0 <= whole.high or abs(whole.mean) < AA_SMALL
    return Check(
        name="A/A: a kernel against itself",
        passed=passed,
        detail=f"log ratio {whole.mean:+.4f} [{whole.low:+.4f}, {whole.high:+.4f}]"
        f" over {AA_SESSIONS} sessions",
    )


def _known_duration(runner: _Runner) -> Check:
    """Twice the loop count takes about twice as long."""
    result = runner(corpus.repeated(2 * ROUNDS), corpus.repeated(ROUNDS))
    if result.timing is None:
        return _failed("twice the work", result)
    ratio = math.exp(-statistics.fmean(result.timing.log_speedups))
    low, high = DOUBLE_BAND
    return Check(
        name="twice the work takes twice as long",
        passed=low <= ratio <= high,
        detail=f"measured {ratio:.2f}, allowed {low} to {high}",
    )


def _plausible_bandwidth(runner: _Runner, device: DeviceInfo) -> Check:
    """The honest kernel stays below what the device can move.

    A time that is out of all proportion ends as HACK, hence without a timing.
    """
    result = runner(corpus.HONEST_CASE, corpus.HONEST_CASE)
    if result.timing is None:
        return _failed("bandwidth", result)
    worst = max(item.sol_fraction or 0.0 for item in result.timing.workloads)
    limit = memory_margin(device, 0.0)  # small tensors: caches may serve them
    return Check(
        name="no faster than the ceilings allow",
        passed=0.0 < worst <= limit,
        detail=f"{worst:.2f} of the bound, allowed {limit:g}",
    )


def _verdict(runner: _Runner, case: corpus.Case) -> Check:
    result = runner(case, corpus.HONEST_CASE)
    kind = "accepts" if case.status is EvaluationStatus.OK else "rejects"
    detail = f"{result.status.value}, expected {case.status.value}"
    if result.status is not case.status:
        detail += f": {result.message}"
    return Check(
        name=f"{kind} {case.name.replace('_', ' ')}",
        passed=result.status is case.status,
        detail=detail,
    )


def _linter() -> Check:
    """The linter passes a shipped task and says so with evidence."""
    try:
        task = load_task(list_tasks()[0])
        report = lint_task(task)
    except (EvoError, IndexError) as error:
        return Check(name="task linter", passed=False, detail=str(error))
    return Check(
        name=f"task linter on {task.name}",
        passed=report.passed,
        detail=f"natural error {report.natural_error:.1e}, tolerance {report.tolerance:.1e},"
        f" nearest mutant {report.nearest_mutant:.1e}, {len(report.checks)} checks",
    )


def _failed(name: str, result: Evaluation) -> Check:
    return Check(name=name, passed=False, detail=f"{result.status.value}: {result.message}")

"""Candidates, evaluations and archives for tests, without any device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evo.archives.base import AddResult, AddStatus, ArchiveStats, Cell, Elite, Interval
from evo.confirm import ConfirmRow, confirm_row
from evo.evaluation import (
    Bound,
    CodeFeatures,
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Timing,
    WorkloadTiming,
)
from evo.genome import Candidate, Genome, ParamValue
from evo.job import DeviceInfo
from evo.tracking.base import RunInfo, RunSummary

DEVICE = DeviceInfo(backend="opencl", name="fake-cpu", kind="cpu", vendor="tests", compute_units=2)
ENVIRONMENT = Environment(
    backend="opencl", device="fake-cpu", device_kind="cpu", worker="local", host="here"
)


def make_candidate(
    number: int = 0,
    *,
    template: str = "opencl_naive",
    params: dict[str, ParamValue] | None = None,
    operator: str = "sample",
    parents: tuple[str, ...] = (),
    note: str = "",
) -> Candidate:
    """Builds candidate "c000007" for number 7; its parameters depend on the number."""
    values: dict[str, ParamValue] = {"wg": 64, "vec": number} if params is None else params
    return Candidate(
        id=f"c{number:06d}",
        genome=Genome(template=template, template_hash=f"hash-{template}", params=values),
        operator=operator,
        parents=parents,
        note=note,
    )


def make_timing(
    log_speedups: Iterable[float],
    *,
    workloads: tuple[str, ...] = ("square", "prime"),
    baseline_us: float = 100.0,
    processes: int = 1,
    keep_blocks: bool = False,
) -> Timing:
    """Builds a timing whose workloads all show the mean speed-up."""
    blocks = tuple(log_speedups)
    latency_us = baseline_us / math.exp(statistics.fmean(blocks))
    return Timing(
        log_speedups=blocks,
        workloads=tuple(
            WorkloadTiming(
                workload=name,
                latency_us=latency_us,
                baseline_us=baseline_us,
                sol_fraction=0.4,
                bound=Bound.MEMORY,
                log_speedups=blocks if keep_blocks else (),
            )
            for name in workloads
        ),
        calls=10 * len(blocks),
        processes=processes,
        clock="fake-clock",
    )


def make_evaluation(
    log_speedups: Iterable[float] | None = (0.5, 0.52, 0.48, 0.5),
    *,
    status: EvaluationStatus = EvaluationStatus.OK,
    job_id: str = "job",
    message: str = "",
    timing: Timing | None = None,
) -> Evaluation:
    """Builds an OK evaluation with these blocks, or a failed one without timing."""
    good = status is EvaluationStatus.OK
    if timing is None and good and log_speedups is not None:
        timing = make_timing(log_speedups)
    return Evaluation(
        job_id=job_id,
        status=status,
        message=message,
        stage="done" if good else "check",
        correctness=Correctness(passed=True, checks=9, max_rel=1e-7, tolerance=2e-5)
        if good
        else None,
        timing=timing if good else None,
        features=CodeFeatures(origin="llvm-ir", counts={"barriers": 1.0}),
        environment=ENVIRONMENT,
    )


def make_interval(samples: Iterable[float]) -> Interval:
    """Mean plus or minus two standard errors: close enough for fakes."""
    values = list(samples)
    mean = statistics.fmean(values)
    half = 2 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Interval(mean=mean, low=mean - half, high=mean + half, blocks=len(values))


def make_elite(
    number: int = 0,
    cell: Cell = (0, 0, 0),
    log_speedups: Iterable[float] = (0.5, 0.52, 0.48, 0.5),
    *,
    candidate: Candidate | None = None,
) -> Elite:
    """Builds an elite with these blocks."""
    blocks = tuple(log_speedups)
    return Elite(
        cell=cell,
        candidate=candidate or make_candidate(number),
        evaluation=make_evaluation(blocks, job_id=f"job-{number}"),
        log_speedups=blocks,
        objective=make_interval(blocks),
    )


class FakeArchive:
    """The archive contract without noise handling: the higher lower bound wins."""

    def __init__(self, elites: Iterable[Elite] = (), *, cells: int = 64) -> None:
        self._elites = {elite.cell: elite for elite in elites}
        self._cells = cells

    def add(self, candidate: Candidate, evaluation: Evaluation, cell: Cell) -> AddResult:
        assert evaluation.timing is not None
        blocks = evaluation.timing.log_speedups
        challenger = Elite(
            cell=cell,
            candidate=candidate,
            evaluation=evaluation,
            log_speedups=blocks,
            objective=make_interval(blocks),
        )
        incumbent = self._elites.get(cell)
        value = challenger.objective.low - (incumbent.objective.low if incumbent else 0.0)
        if incumbent is not None and value <= 0:
            return AddResult(
                status=AddStatus.NOT_ADDED, cell=cell, value=value, incumbent=incumbent
            )
        self._elites[cell] = challenger
        status = AddStatus.IMPROVED if incumbent else AddStatus.NEW
        return AddResult(status=status, cell=cell, value=value, incumbent=incumbent)

    def settle(
        self, candidate: Candidate, evaluation: Evaluation, duel: Evaluation, cell: Cell
    ) -> AddResult:
        return self.add(candidate, evaluation, cell)

    def get(self, cell: Cell) -> Elite | None:
        return self._elites.get(cell)

    def best(self) -> Elite | None:
        return max(self, key=lambda elite: elite.objective.low, default=None)

    def stats(self) -> ArchiveStats:
        best = self.best()
        means = [elite.objective.mean for elite in self]
        return ArchiveStats(
            num_elites=len(self),
            cells=self._cells,
            coverage=len(self) / self._cells,
            qd_score=sum(max(0.0, elite.objective.low) for elite in self),
            best=best.objective if best else None,
            mean_objective=statistics.fmean(means) if means else None,
        )

    def __iter__(self) -> Iterator[Elite]:
        return (self._elites[cell] for cell in sorted(self._elites))

    def __len__(self) -> int:
        return len(self._elites)


def demo_archive(seed: int = 0, fill: float = 0.4) -> FakeArchive:
    """Builds a 4x4x4 archive with a believable spread of speed-ups, from 0.3x to about 8x."""
    rng = np.random.default_rng(seed)
    elites = []
    number = 0
    for memory in range(4):
        for compute in range(4):
            for parallelism in range(4):
                if rng.random() > fill:
                    continue
                number += 1
                mean = 0.45 * (memory + compute) - 0.15 * parallelism + rng.normal(-0.4, 0.4)
                blocks = mean + rng.normal(0.0, 0.02, size=6)
                elites.append(
                    make_elite(
                        number,
                        (memory, compute, parallelism),
                        tuple(float(block) for block in blocks),
                        candidate=make_candidate(
                            number,
                            template=("opencl_naive", "opencl_online")[number % 2],
                            operator=("sample", "mutate", "crossover")[number % 3],
                            parents=(f"c{number - 1:06d}",) if number > 1 else (),
                        ),
                    )
                )
    return FakeArchive(elites)


SOURCE = """// one row per work-item
__kernel void softmax(__global const float* restrict x, __global float* restrict y, int cols) {
    int row = get_global_id(0);
    float top = -INFINITY;
    for (int c = 0; c < cols; ++c) top = fmax(top, x[row * cols + c]);
    if (a < b && c > d) { y[0] = "</script><b>not bold</b>"[0]; }
}
"""


def make_run_info(run_dir: Path, **changes: Any) -> RunInfo:
    """Builds the start of a run in a folder."""
    info = RunInfo(
        run_dir=run_dir,
        run_name="softmax-opencl-0",
        task="softmax",
        backend="opencl",
        device=DEVICE,
        seed=7,
        config={"task": "softmax", "budget.evaluations": 300, "workers.addresses[0]": "a:1"},
        resolved_yaml="task: softmax\nbudget: {evaluations: 300}\n",
        git_sha="0123abc",
        command="kelites task=softmax",
        versions={"kernel-elites": "0.1.0"},
        description="Row-wise softmax, numerically stable",
    )
    return replace(info, **changes)


def make_confirm_rows(elites: Iterable[Elite]) -> list[ConfirmRow]:
    """Confirms elites on paper: a failure, then one with an interval around 1, the rest faster."""
    rows = []
    for index, elite in enumerate(elites):
        if index == 0:
            status = EvaluationStatus.INCORRECT
            evaluation = make_evaluation(status=status, message="wrong on workload wide")
        else:
            mean = 0.0 if index == 1 else 0.9 * elite.objective.mean
            timing = make_timing(
                (mean - 0.02, mean + 0.03, mean - 0.01, mean),
                workloads=("square", "wide"),
                processes=3,
                keep_blocks=index % 2 == 0,
            )
            evaluation = make_evaluation(timing=timing)
        rows.append(confirm_row(elite, evaluation, {"wide"}))
    return rows


def make_summary(archive: FakeArchive | None = None, **changes: Any) -> RunSummary:
    """Builds the end of a run over `demo_archive`."""
    archive = demo_archive() if archive is None else archive
    elites = list(archive)
    ranked = sorted(elites, key=lambda elite: -elite.objective.low)
    logbook = [
        {
            "evaluations": 20.0 * step,
            "coverage": 0.4 * (1 - math.exp(-step / 4)),
            "valid_rate": 0.9 - 0.01 * step,
            "qd_score": 2.0 * step,
            "best_mean": 1.9 * (1 - math.exp(-step / 3)),
            "best_low": 1.9 * (1 - math.exp(-step / 3)) - 0.1,
            "best_high": 1.9 * (1 - math.exp(-step / 3)) + 0.1,
        }
        for step in range(1, 16)
    ]
    summary = RunSummary(
        status="finished",
        elites=elites,
        stats=archive.stats(),
        device=DEVICE,
        confirm=make_confirm_rows(ranked[:4]),
        sources={elite.candidate.id: SOURCE for elite in elites},
        candidates={elite.candidate.id: elite.candidate for elite in elites},
        logbook=logbook,
        status_counts={"ok": 250, "incorrect": 31, "compile_error": 12, "timeout": 7},
        evaluations=300,
        elapsed_s=184.0,
        message="budget of 300 evaluations used",
    )
    return replace(summary, **changes)

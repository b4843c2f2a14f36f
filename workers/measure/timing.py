"""Interleaved timing: what to run in which order, when to stop, and what the samples mean.

Nothing here touches a device. A `Stopwatch` runs the arms in the order it is told and returns the
device time of each call; the pipeline gives one that drives an executor, tests give simulated ones.

Method. A block visits every workload once; at each, the arms run in a random palindrome (A B B A,
or A B C C B A with a rival), so a linear drift of clocks or load cancels within the block. The
block's value is the mean over workloads of log(median baseline time / median candidate time).
Intervals are over blocks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from evo.archives.base import Interval
from evo.evaluation import Bound, Timing, WorkloadTiming
from evo.job import EvaluationSettings
from evo.statistics import interval

BASELINE, CANDIDATE, RIVAL = 0, 1, 2
"""Arm numbers."""

MAX_CALLS_PER_VISIT = 50
RACE_MIN_BLOCKS = 2
RACE_HALF_WIDTHS = 2.0
RACE_MARGIN = 0.03
"""How far below the bound a candidate must be at least: near misses are measured to the end, and
two blocks equal by luck don't end a race."""


class Stopwatch(Protocol):
    """Runs arms back to back on one workload.

    Called with the workload's name, the arms in order, how many calls each visit makes, and the
    number of the block. Returns device times in microseconds, one tuple per visit. Raises whatever
    ends the evaluation.
    """

    def __call__(
        self, workload: str, order: Sequence[int], calls: Sequence[int], block: int
    ) -> Sequence[Sequence[float]]:
        """Runs the visits."""
        ...


@dataclass(slots=True)
class Samples:
    """Median time of every arm on every workload, block by block.

    Attributes:
        workloads: Names, in the order they are visited.
        arms: Number of arms, 2 or 3.
        blocks: One entry per block: workload -> (arms,) median microseconds.
        calls: Timed calls of the candidate.
        processes: Executor processes the blocks came from.
        raced_out: Ended early as clearly slow.
    """

    workloads: tuple[str, ...]
    arms: int
    blocks: list[dict[str, tuple[float, ...]]] = field(default_factory=list)
    calls: int = 0
    processes: int = 1
    raced_out: bool = False

    def log_ratios(self, slow: int, fast: int, workload: str | None = None) -> tuple[float, ...]:
        """Returns per block log(time of `slow` / time of `fast`), averaged over workloads."""
        names = self.workloads if workload is None else (workload,)
        return tuple(
            math.fsum(math.log(block[name][slow] / block[name][fast]) for name in names)
            / len(names)
            for block in self.blocks
        )

    def median_us(self, arm: int, workload: str) -> float:
        """Returns an arm's median over blocks on a workload."""
        return statistics.median(block[workload][arm] for block in self.blocks)


def palindrome(arms: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Returns a random order of the arms followed by its mirror image."""
    half = [int(arm) for arm in rng.permutation(arms)]
    return (*half, *reversed(half))


def calls_per_visit(latency_us: float, budget_us: float) -> int:
    """Returns how many calls one of an arm's two visits makes, at least 1 and at most 50.

    Args:
        latency_us: Time of a call, from the warm-up.
        budget_us: Device time the arm aims for in the block on this workload.
    """
    if latency_us <= 0.0:
        return MAX_CALLS_PER_VISIT
    return max(1, min(MAX_CALLS_PER_VISIT, round(budget_us / 2.0 / latency_us)))


def measure(
    stopwatch: Stopwatch,
    *,
    workloads: Sequence[str],
    arms: int,
    settings: EvaluationSettings,
    rng: np.random.Generator,
    race_bound: float | None = None,
    fixed_blocks: int | None = None,
    into: Samples | None = None,
) -> Samples:
    """Times until the answer is good enough.

    Stops after `settings.min_blocks` once the interval on the log speed-up is narrow enough (with a
    rival: once the interval on rival over candidate is narrow enough or clear of zero), at
    `settings.max_blocks` in any case, or after two blocks when racing shows a hopeless candidate.

    Args:
        stopwatch: Runs and times.
        workloads: Names to visit in every block.
        arms: 2 (baseline, candidate) or 3 (and a rival).
        settings: Limits and targets.
        rng: Orders the arms.
        race_bound: Lower bound of the log speed-up to beat; None for no racing.
        fixed_blocks: Take exactly this many blocks, whatever the interval.
        into: Samples of an earlier process to add to.

    Returns:
        The samples; every block complete.
    """
    samples = into or Samples(workloads=tuple(workloads), arms=arms)
    calls = _warm_up(stopwatch, workloads, arms, settings.block_us / len(workloads))
    limit = fixed_blocks if fixed_blocks is not None else settings.max_blocks
    for number in range(max(1, limit)):
        block = {}
        for name in workloads:
            order = palindrome(arms, rng)
            counts = [calls[name][arm] for arm in order]
            visits = stopwatch(name, order, counts, number)
            block[name] = _medians(order, visits, arms)
            samples.calls += sum(len(v) for arm, v in zip(order, visits, strict=True) if arm == 1)
        samples.blocks.append(block)
        if fixed_blocks is None:
            if _hopeless(samples, race_bound):
                samples.raced_out = True
                break
            if number + 1 >= settings.min_blocks and _settled(samples, settings):
                break
    return samples


def _warm_up(
    stopwatch: Stopwatch, workloads: Sequence[str], arms: int, budget_us: float
) -> dict[str, tuple[int, ...]]:
    """Runs every arm twice on every workload; the second call sets the number of calls."""
    result = {}
    for name in workloads:
        order = tuple(range(arms))
        visits = stopwatch(name, order, [2] * arms, -1)
        result[name] = tuple(calls_per_visit(visit[-1], budget_us) for visit in visits)
    return result


def _medians(
    order: Sequence[int], visits: Sequence[Sequence[float]], arms: int
) -> tuple[float, ...]:
    times: list[list[float]] = [[] for _ in range(arms)]
    for arm, visit in zip(order, visits, strict=True):
        times[arm].extend(visit)
    # A device clock ticks in steps; a call below one tick counts as one nanosecond.
    return tuple(max(statistics.median(values), 1e-3) for values in times)


def _hopeless(samples: Samples, race_bound: float | None) -> bool:
    if race_bound is None or len(samples.blocks) < RACE_MIN_BLOCKS:
        return False
    estimate = interval(samples.log_ratios(BASELINE, CANDIDATE))
    return estimate.mean + RACE_HALF_WIDTHS * _half_width(estimate) + RACE_MARGIN < race_bound


def _settled(samples: Samples, settings: EvaluationSettings) -> bool:
    """Says whether the interval is good enough, and was so a block ago.

    Few blocks agree by luck now and then; asking twice keeps that from ending a measurement.
    """
    pairs = samples.log_ratios(BASELINE, CANDIDATE)
    if samples.arms > RIVAL:
        pairs = samples.log_ratios(RIVAL, CANDIDATE)
    for count in (len(pairs) - 1, len(pairs)):
        if count < 2:
            return False
        estimate = interval(pairs[:count])
        decided = samples.arms > RIVAL and (estimate.low > 0.0 or estimate.high < 0.0)
        if not decided and _half_width(estimate) >= settings.target_rel_interval:
            return False
    return True


def _half_width(estimate: Interval) -> float:
    return (estimate.high - estimate.low) / 2.0


def to_timing(
    samples: Samples,
    *,
    clock: str,
    roofline: dict[str, tuple[float | None, Bound | None]] | None = None,
) -> Timing:
    """Turns samples into the record.

    Args:
        samples: At least one block.
        clock: Label of the clock, e.g. "opencl-event".
        roofline: Workload -> (fraction of the bound, what limits it).
    """
    known = roofline or {}
    workloads = []
    for name in samples.workloads:
        fraction, bound = known.get(name, (None, None))
        workloads.append(
            WorkloadTiming(
                workload=name,
                latency_us=samples.median_us(CANDIDATE, name),
                baseline_us=samples.median_us(BASELINE, name),
                sol_fraction=fraction,
                bound=bound,
                log_speedups=samples.log_ratios(BASELINE, CANDIDATE, name),
            )
        )
    duel = samples.arms > RIVAL
    return Timing(
        log_speedups=samples.log_ratios(BASELINE, CANDIDATE),
        workloads=tuple(workloads),
        rival_log_ratios=samples.log_ratios(RIVAL, CANDIDATE) if duel else (),
        rival_log_speedups=samples.log_ratios(BASELINE, RIVAL) if duel else (),
        calls=samples.calls,
        processes=samples.processes,
        clock=clock,
        raced_out=samples.raced_out,
    )

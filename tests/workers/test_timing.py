from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.evaluation import Bound
from evo.job import EvaluationSettings
from evo.statistics import interval
from workers.measure.timing import (
    MAX_CALLS_PER_VISIT,
    Samples,
    calls_per_visit,
    measure,
    palindrome,
    to_timing,
)

SETTINGS = EvaluationSettings()


class Simulation:
    """Arms of given latencies on a clock that drifts and jitters."""

    def __init__(
        self,
        latencies: Sequence[float],
        *,
        noise: float = 0.0,
        drift: Callable[[int], float] = lambda _: 1.0,
        seed: int = 0,
    ) -> None:
        self.latencies = latencies
        self.noise = noise
        self.drift = drift
        self.rng = np.random.default_rng(seed)
        self.calls = 0
        self.visits: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []

    def __call__(
        self, workload: str, order: Sequence[int], calls: Sequence[int], block: int
    ) -> list[tuple[float, ...]]:
        self.visits.append((workload, tuple(order), tuple(calls), block))
        result = []
        for arm, count in zip(order, calls, strict=True):
            times = []
            for _ in range(count):
                self.calls += 1
                jitter = math.exp(self.noise * self.rng.standard_normal())
                times.append(self.latencies[arm] * self.drift(self.calls) * jitter)
            result.append(tuple(times))
        return result


def take(simulation: Simulation, **overrides: object) -> Samples:
    options: dict[str, object] = {
        "workloads": ("a", "b"),
        "arms": len(simulation.latencies),
        "settings": SETTINGS,
        "rng": np.random.default_rng(5),
    }
    return measure(simulation, **(options | overrides))  # type: ignore[arg-type]


@given(st.integers(2, 3), st.integers(0, 1000))
def test_palindromes(arms: int, seed: int) -> None:
    order = palindrome(arms, np.random.default_rng(seed))
    assert order == order[::-1]
    assert sorted(order) == sorted([*range(arms)] * 2)


def test_both_orders_occur() -> None:
    rng = np.random.default_rng(0)
    assert {palindrome(2, rng) for _ in range(20)} == {(0, 1, 1, 0), (1, 0, 0, 1)}


@pytest.mark.parametrize(
    ("latency", "calls"),
    [(100.0, 15), (1.0, MAX_CALLS_PER_VISIT), (1e6, 1), (0.0, MAX_CALLS_PER_VISIT), (3000.0, 1)],
)
def test_calls_fill_the_block(latency: float, calls: int) -> None:
    assert calls_per_visit(latency, 3000.0) == calls


def test_a_noiseless_clock_needs_the_minimum_of_blocks() -> None:
    samples = take(Simulation([200.0, 100.0]))
    assert len(samples.blocks) == SETTINGS.min_blocks
    assert samples.log_ratios(0, 1) == pytest.approx([math.log(2)] * SETTINGS.min_blocks)


def test_noise_buys_more_blocks_up_to_the_limit() -> None:
    quiet = take(Simulation([100.0, 100.0], noise=0.01))
    loud = take(Simulation([1e6, 1e6], noise=0.5))
    assert len(quiet.blocks) < len(loud.blocks) == SETTINGS.max_blocks


def test_linear_drift_cancels_within_a_block() -> None:
    samples = take(Simulation([100.0, 100.0], drift=lambda n: 1.0 + n * 1e-4))
    assert samples.log_ratios(0, 1) == pytest.approx([0.0] * len(samples.blocks), abs=1e-3)


def test_every_block_visits_every_workload_in_full() -> None:
    simulation = Simulation([100.0, 50.0], noise=0.02)
    samples = take(simulation)
    timed = [visit for visit in simulation.visits if visit[3] >= 0]
    assert [visit[0] for visit in timed] == ["a", "b"] * len(samples.blocks)
    assert [visit[3] for visit in timed[::2]] == list(range(len(samples.blocks)))


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(200):
        samples = take(Simulation([110.0, 100.0], noise=0.05, seed=seed), fixed_blocks=8)
        estimate = interval(samples.log_ratios(0, 1))
        hits += estimate.low <= math.log(1.1) <= estimate.high
    assert 180 <= hits <= 198  # 95 % of 200, within 3 sigma


def test_racing_stops_a_hopeless_candidate_only() -> None:
    hopeless = take(Simulation([100.0, 200.0], noise=0.02), race_bound=0.5)
    assert hopeless.raced_out
    assert len(hopeless.blocks) <= 3
    close = take(Simulation([100.0, 62.0], noise=0.02), race_bound=0.5)
    assert not close.raced_out
    better = take(Simulation([100.0, 50.0], noise=0.02), race_bound=0.5)
    assert not better.raced_out


def test_racing_rarely_drops_the_equal() -> None:
    dropped = sum(
        take(Simulation([100.0, 100.0], noise=0.1, seed=seed), race_bound=0.0).raced_out
        for seed in range(200)
    )
    assert dropped <= 4


def test_duel_goes_on_until_decided() -> None:
    clear = take(Simulation([100.0, 50.0, 80.0], noise=0.02))
    assert len(clear.blocks) == SETTINGS.min_blocks
    record = to_timing(clear, clock="simulated")
    assert np.mean(record.rival_log_ratios) == pytest.approx(math.log(80 / 50), abs=0.05)
    assert np.mean(record.rival_log_speedups) == pytest.approx(math.log(100 / 80), abs=0.05)
    even = take(Simulation([1e6, 1e6, 1e6], noise=0.2))
    assert len(even.blocks) > SETTINGS.min_blocks


def test_samples_of_several_processes_add_up() -> None:
    samples = Samples(workloads=("a", "b"), arms=2, processes=3)
    for _ in range(3):
        take(Simulation([100.0, 50.0]), fixed_blocks=4, into=samples)
    record = to_timing(samples, clock="simulated")
    assert len(record.log_speedups) == 12
    assert record.processes == 3


def test_record_holds_medians_and_blocks_per_workload() -> None:
    samples = take(Simulation([200.0, 100.0]))
    record = to_timing(
        samples, clock="simulated", roofline={"a": (0.5, Bound.MEMORY), "b": (None, None)}
    )
    first, second = record.workloads
    assert (first.workload, first.latency_us, first.baseline_us) == ("a", 100.0, 200.0)
    assert (first.sol_fraction, first.bound) == (0.5, Bound.MEMORY)
    assert second.sol_fraction is None
    assert len(first.log_speedups) == len(record.log_speedups)
    means = np.mean([first.log_speedups, second.log_speedups], axis=0)
    assert record.log_speedups == pytest.approx(means)
    assert record.rival_log_ratios == ()
    assert record.clock == "simulated"


def test_calls_of_the_candidate_are_counted() -> None:
    simulation = Simulation([100.0, 50.0])
    samples = take(simulation)
    counted = sum(
        count
        for _, order, calls, block in simulation.visits
        if block >= 0
        for arm, count in zip(order, calls, strict=True)
        if arm == 1
    )
    assert samples.calls == counted


def test_a_clock_too_coarse_for_the_kernel_gives_a_finite_ratio() -> None:
    samples = take(Simulation([10.0, 0.0]))
    assert all(math.isfinite(value) for value in samples.log_ratios(0, 1))

from __future__ import annotations

import dataclasses

import pytest

from evo.evaluation import Bound
from evo.job import DeviceInfo
from workers.measure.roofline import (
    copy_probe,
    is_impossible,
    peak_probe,
    roofline,
    with_ceilings,
)

CPU = DeviceInfo(
    backend="opencl", name="c", kind="cpu", compute_units=2, bandwidth_gbs=10.0, peak_gflops=100.0
)
GPU = dataclasses.replace(CPU, kind="gpu", cache_bytes=50_000_000, bandwidth_gbs=1000.0)


def test_bounds_in_microseconds() -> None:
    bounds = roofline(CPU, 1e6, 1e6)
    assert bounds.memory_us == pytest.approx(100.0)  # 1 MB at 10 GB/s
    assert bounds.compute_us == pytest.approx(10.0)  # 1 MFLOP at 100 GFLOP/s
    assert bounds.bound_us == bounds.memory_us
    assert bounds.fraction(200.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("size_bytes", "flops", "latency_us", "bound"),
    [
        (1e6, 1e6, 150.0, Bound.MEMORY),
        (1e6, 1e8, 1500.0, Bound.COMPUTE),
        (1e3, 1e3, 15.0, Bound.LATENCY),
        (1e3, 1e3, 25.0, Bound.MEMORY),
        (1e5, 1e3, 15.0, Bound.MEMORY),
    ],
)
def test_classes(size_bytes: float, flops: float, latency_us: float, bound: Bound) -> None:
    assert roofline(CPU, size_bytes, flops).classify(latency_us) is bound


def test_unknown_ceilings_switch_it_off() -> None:
    unknown = dataclasses.replace(CPU, bandwidth_gbs=0.0, peak_gflops=0.0)
    bounds = roofline(unknown, 1e6, 1e6)
    assert bounds.fraction(1.0) is None
    assert bounds.classify(1.0) is None
    assert not is_impossible(unknown, bounds, 1e6, 1e-3)


@pytest.mark.parametrize(
    ("device", "size_bytes", "flops", "latency_us", "impossible"),
    [
        (CPU, 1e6, 0.0, 3.0, False),  # served from cache
        (CPU, 1e6, 0.0, 2.0, True),
        (dataclasses.replace(CPU, peak_gflops=0.0), 1e6, 0.0, 6.0, False),
        (dataclasses.replace(CPU, peak_gflops=0.0), 1e6, 0.0, 4.0, True),
        (CPU, 1.0, 1e8, 300.0, False),
        (CPU, 1.0, 1e8, 200.0, True),
        (GPU, 1e9, 0.0, 800.0, False),
        (GPU, 1e9, 0.0, 600.0, True),
        (GPU, 1e6, 0.0, 0.2, False),  # fits the cache
        (GPU, 1e6, 0.0, 0.05, True),
    ],
)
def test_impossible_speed(
    device: DeviceInfo, size_bytes: float, flops: float, latency_us: float, impossible: bool
) -> None:
    bounds = roofline(device, size_bytes, flops)
    assert is_impossible(device, bounds, size_bytes, latency_us) == impossible


def test_ceilings_are_only_raised() -> None:
    copy_us = copy_probe(CPU).work / 20e3  # 20 GB/s
    peak_us = peak_probe(CPU).work / 50e3  # 50 GFLOP/s
    measured = with_ceilings(CPU, copy_us=copy_us, peak_us=peak_us)
    assert measured.bandwidth_gbs == pytest.approx(20.0)
    assert measured.peak_gflops == CPU.peak_gflops

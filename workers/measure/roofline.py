"""The device's measured ceilings, and how near to them a kernel comes.

Copy bandwidth and fp32 multiply-add rate are measured once per service start with two small
kernels, never looked up: tables are wrong for the device at hand sooner or later.

A time below what the ceilings allow is a sign that the work was not done. On a GPU whose tensors
exceed its cache the margin can be tight. A CPU keeps small tensors in its caches, many times faster
than the main memory that the copy kernel sees, so there the margin on bytes is wide and most of
the evidence is in the arithmetic.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from evo.evaluation import Bound
from evo.job import DeviceInfo, Launch, WorkloadProgram
from workers.execution import TimedArm
from workers.executor import Executor

COPY_FLOATS = {"cpu": 1 << 22, "gpu": 1 << 25}
"""16 MiB each way on a CPU, 128 MiB on a GPU: beyond the private caches of the one and the L2 of
the other, and quick."""
PEAK_ITEMS_PER_UNIT = 1 << 10
PEAK_ROUNDS = 256
LATENCY_US = 20.0
LATENCY_FACTOR = 10.0

COPY_SOURCE = """
__kernel void kelites_copy(__global const float4* restrict x, __global float4* restrict y) {
    const size_t i = get_global_id(0);
    y[i] = x[i];
}
"""

PEAK_SOURCE = """
#define ROUNDS %d
__kernel void kelites_peak(__global const float* restrict x, __global float* restrict y) {
    const float seed = x[get_local_id(0)];
    const float16 m = (float16)(0.999f + seed * 1e-6f), k = (float16)(1e-3f);
    float16 a0 = (float16)(seed), a1 = a0 + 1.0f, a2 = a0 + 2.0f, a3 = a0 + 3.0f;
    float16 a4 = a0 + 4.0f, a5 = a0 + 5.0f, a6 = a0 + 6.0f, a7 = a0 + 7.0f;
    for (int i = 0; i < ROUNDS; ++i) {
        a0 = a0 * m + k; a1 = a1 * m + k; a2 = a2 * m + k; a3 = a3 * m + k;
        a4 = a4 * m + k; a5 = a5 * m + k; a6 = a6 * m + k; a7 = a7 * m + k;
    }
    const float16 s = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7;
    y[get_global_id(0)] = s.s0 + s.s1 + s.s2 + s.s3 + s.s4 + s.s5 + s.s6 + s.s7
        + s.s8 + s.s9 + s.sa + s.sb + s.sc + s.sd + s.se + s.sf;
}
"""
"""Eight independent chains of 16 lanes. Written as `a * m + k`: PoCL turns it into one instruction,
while its `fma` and `mad` built-ins are calls and read five times too low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Lower bounds on the time of a workload.

    Attributes:
        memory_us: Bytes over copy bandwidth, microseconds; 0 when bandwidth is unknown.
        compute_us: Flops over the multiply-add peak, microseconds; 0 when the peak is unknown.
    """

    memory_us: float
    compute_us: float

    @property
    def bound_us(self) -> float:
        """The larger of the two; 0 if neither is known."""
        return max(self.memory_us, self.compute_us)

    def fraction(self, latency_us: float) -> float | None:
        """Returns bound over latency; above 1 on a CPU when the data stays in its caches."""
        return self.bound_us / latency_us if self.bound_us > 0.0 and latency_us > 0.0 else None

    def classify(self, latency_us: float) -> Bound | None:
        """Says what limits a kernel.

        Latency-bound: under 20 us and more than ten times the bound, so that launch and
        synchronisation must be what is left. Otherwise the larger of the two bounds.
        """
        if self.bound_us <= 0.0:
            return None
        if latency_us < LATENCY_US and latency_us > LATENCY_FACTOR * self.bound_us:
            return Bound.LATENCY
        return Bound.MEMORY if self.memory_us >= self.compute_us else Bound.COMPUTE


def roofline(device: DeviceInfo, size_bytes: float, flops: float) -> Roofline:
    """Returns the bounds of a workload that moves `size_bytes` and does `flops` operations."""
    return Roofline(
        memory_us=size_bytes / (device.bandwidth_gbs * 1e3) if device.bandwidth_gbs > 0.0 else 0.0,
        compute_us=flops / (device.peak_gflops * 1e3) if device.peak_gflops > 0.0 else 0.0,
    )


def memory_margin(device: DeviceInfo, size_bytes: float) -> float:
    """Returns how many times faster than the copy bandwidth a workload may honestly be.

    On a GPU 1.4 for tensors of at least twice the cache, 10 for smaller ones. On a CPU, whose
    caches the copy does not see, the larger of 20 and the rate at which the nearest cache can feed
    the arithmetic: two bytes per operation, times two.
    """
    if device.kind == "cpu":
        if device.bandwidth_gbs <= 0.0:
            return 20.0
        return max(20.0, 4.0 * device.peak_gflops / device.bandwidth_gbs)
    cached = size_bytes < 2.0 * device.cache_bytes or not device.cache_bytes
    return 10.0 if cached else 1.4


def is_impossible(
    device: DeviceInfo, bounds: Roofline, size_bytes: float, latency_us: float
) -> bool:
    """Says whether a time is below what the device can do, with a margin for measured ceilings.

    A kernel must do its arithmetic and move its bytes, so falling under either bound is enough. The
    margin on arithmetic is 4 on a CPU (ceilings measured while others use its cores read low) and
    2 on a GPU.
    """
    return latency_us < max(
        bounds.compute_us / (4.0 if device.kind == "cpu" else 2.0),
        bounds.memory_us / memory_margin(device, size_bytes),
    )


class Probe:
    """A small kernel that reaches one ceiling.

    Args:
        source: OpenCL C.
        entry: Kernel name.
        options: Build options.
        items: Work-items in all.
        block: Work-items per work-group.
        floats: Floats in each of the two buffers.
        work: Bytes moved, or operations done, by one call.
    """

    def __init__(
        self,
        *,
        source: str,
        entry: str,
        options: tuple[str, ...],
        items: int,
        block: int,
        floats: int,
        work: float,
    ) -> None:
        self.source, self.entry, self.options = source, entry, options
        self.floats, self.work = floats, work
        self.program = WorkloadProgram(
            workload=entry,
            source=source,
            build_options=options,
            launches=(
                Launch(
                    entry=entry, args=("x", "y"), grid=(items // block, 1, 1), block=(block, 1, 1)
                ),
            ),
        )

    def best_us(self, executor: Executor, key: str, *, repeats: int, timeout_s: float) -> float:
        """Runs the probe; returns the shortest device time in microseconds."""
        set_id = f"roofline/{self.entry}"
        values = np.full(self.floats, 0.5, dtype=np.float32)
        executor.upload(set_id, {"x": values}, timeout_s)
        try:
            result = executor.time(
                arms=[TimedArm(code_key=key, program=self.program)],
                calls=[repeats],
                set_id=set_id,
                outputs={"y": ("float32", (self.floats,))},
                numbers={},
                check_arm=None,
                timeout_s=timeout_s,
            )
        finally:
            executor.forget(set_id)
        return max(min(result.arm_us[0]), 1e-3)


def copy_probe(device: DeviceInfo) -> Probe:
    """Returns the kernel that copies more than the nearest caches hold."""
    floats = COPY_FLOATS.get(device.kind, COPY_FLOATS["gpu"])
    return Probe(
        source=COPY_SOURCE,
        entry="kelites_copy",
        options=(),
        items=floats // 4,
        block=64,
        floats=floats,
        work=8.0 * floats,
    )


def peak_probe(device: DeviceInfo, rounds: int = PEAK_ROUNDS) -> Probe:
    """Returns the kernel that does nothing but multiply-adds."""
    items = max(1, device.compute_units) * PEAK_ITEMS_PER_UNIT
    return Probe(
        source=PEAK_SOURCE % rounds,
        entry="kelites_peak",
        options=("-cl-mad-enable",),
        items=items,
        block=64,
        floats=items,
        work=2.0 * 8 * 16 * rounds * items,
    )


def with_ceilings(device: DeviceInfo, *, copy_us: float, peak_us: float) -> DeviceInfo:
    """Returns the device with the ceilings that two probe times give, never lower than before."""
    bandwidth = copy_probe(device).work / copy_us / 1e3
    peak = peak_probe(device).work / peak_us / 1e3
    return dataclasses.replace(
        device,
        bandwidth_gbs=max(device.bandwidth_gbs, bandwidth),
        peak_gflops=max(device.peak_gflops, peak),
    )

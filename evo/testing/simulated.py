"""An evaluator without a device: made-up, repeatable results for tests of everything around it.

Nothing it returns is a measurement, and its device name says so.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace

import numpy as np

from evo.errors import ConfigError
from evo.evaluation import (
    CodeFeatures,
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Timing,
    WorkloadTiming,
)
from evo.job import DeviceInfo, EvaluationRequest, Program, TaskBundle
from evo.serial import to_json

BLOCKS = 6
DEVICE_NAME = "simulated device (no measurement)"


class SimulatedEvaluator:
    """Keeps the `Evaluator` contract with results that depend on the request's program only.

    Args:
        backend: Backend it pretends to be.
        slots: Evaluations in flight.
        delay_s: How long each one takes.
        noise: Standard deviation of the block noise on log speed-up.
        failure_rate: Share of programs that come back incorrect.

    Raises:
        ConfigError: If a number is out of range.
    """

    def __init__(
        self,
        *,
        backend: str = "opencl",
        slots: int = 1,
        delay_s: float = 0.0,
        noise: float = 0.01,
        failure_rate: float = 0.1,
    ) -> None:
        if slots < 1 or delay_s < 0.0 or noise < 0.0 or not 0.0 <= failure_rate <= 1.0:
            raise ConfigError(
                "the simulated evaluator allows slots >= 1, delay_s >= 0, noise >= 0 and "
                f"failure_rate from 0 to 1; got {slots}, {delay_s}, {noise} and {failure_rate}"
            )
        self._slots = slots
        self._delay_s = delay_s
        self._noise = noise
        self._failure_rate = failure_rate
        self._device = DeviceInfo(
            backend=backend,
            name=DEVICE_NAME,
            kind="cpu",
            compute_units=2,
            max_work_group_size=1024,
            max_block=(1024, 1024, 1024),
            local_mem_bytes=65536,
            vector_width=8,
        )

    @property
    def slots(self) -> int:
        """Evaluations in flight."""
        return self._slots

    @property
    def device(self) -> DeviceInfo:
        """The made-up device."""
        return self._device

    async def start(self, bundle: TaskBundle) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Returns the made-up result of a program."""
        await asyncio.sleep(self._delay_s)
        program = request.candidate
        wrong = Evaluation(
            job_id=request.job_id,
            status=EvaluationStatus.INCORRECT,
            stage="check",
            message="made-up wrong result",
            correctness=Correctness(passed=False, checks=1),
            code_hash=f"{_seed(program, 'code'):08x}",
            environment=Environment(
                backend=self._device.backend, device=DEVICE_NAME, device_kind="cpu"
            ),
        )
        if _rng(program, "fails").random() < self._failure_rate:
            return wrong
        return replace(
            wrong,
            status=EvaluationStatus.OK,
            stage="done",
            message="",
            correctness=Correctness(passed=True, checks=1, max_rel=1e-7, tolerance=1e-5),
            timing=self._timing(request),
            features=CodeFeatures(origin="source", counts=_counts(program)),
            input_seed=0,
        )

    def _timing(self, request: EvaluationRequest) -> Timing:
        noise = _rng(request.candidate, request.purpose.value)
        truth = _truth(request.candidate)
        blocks = truth + self._noise * noise.standard_normal(BLOCKS)
        rival = np.empty(0)
        if request.incumbent is not None:
            rival = _truth(request.incumbent) + self._noise * noise.standard_normal(BLOCKS)
        return Timing(
            log_speedups=tuple(blocks.tolist()),
            rival_log_speedups=tuple(rival.tolist()),
            rival_log_ratios=tuple((blocks - rival).tolist()) if rival.size else (),
            workloads=tuple(
                WorkloadTiming(
                    workload=item.workload,
                    latency_us=100.0 / float(np.exp(truth)),
                    baseline_us=100.0,
                )
                for item in request.candidate.workloads
            ),
            calls=BLOCKS,
            clock="simulated",
        )


# What puts code on each level of each axis, see evo/descriptor.py.
LEVELS: tuple[tuple[dict[str, float], ...], ...] = (
    (
        {},
        {"global_values": 4.0, "global_vector_values": 4.0},
        {"local_tiles": 1.0},
        {"async_copies": 1.0},
    ),
    ({}, {"chains": 4.0}, {"results": 16.0, "work_ratio": 2.0}, {"matrix_ops": 1.0}),
    ({}, {"barriers": 1.0, "local_shared": 1.0}, {"sub_group_ops": 1.0}, {"global_atomics": 1.0}),
)


def _seed(program: Program, salt: str) -> int:
    return zlib.crc32(to_json(program) + salt.encode())


def _rng(program: Program, salt: str) -> np.random.Generator:
    return np.random.default_rng(_seed(program, salt))


def _truth(program: Program) -> float:
    return float(_rng(program, "truth").normal(0.3, 0.4))


def _counts(program: Program) -> dict[str, float]:
    """Picks a level per axis, so that made-up candidates spread over the grid."""
    rng = _rng(program, "features")
    counts: dict[str, float] = {}
    for levels in LEVELS:
        counts |= levels[int(rng.integers(len(levels)))]
    return counts

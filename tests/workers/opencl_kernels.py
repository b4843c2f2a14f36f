"""OpenCL kernels, good and bad, and the requests that run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from evo.job import Launch, Scratch, WorkloadProgram
from workers.executor import Executor

N = 1000
X = np.arange(1, N + 1, dtype=np.float32)

HEAD = "__kernel void k(__global const float *x, __global float *y, int n) {\n"
GOOD = HEAD + "int i = get_global_id(0); if (i < n) y[i] = 2 * x[i]; }"
ENDLESS = HEAD + "volatile int go = 1; while (go) y[0] += x[0]; }"
WILD = HEAD + "y[(long)1 << 40] = 1; }"
TRAP = HEAD + "__builtin_trap(); }"
PRINTING = HEAD + (
    'int i = get_global_id(0); for (int j = 0; j < 50; j++) printf("{\\"ok\\": %d}\\n", i);'
    " if (i < n) y[i] = 2 * x[i]; }"
)
WRITES_INPUT = (
    "__kernel void k(__global float *x, __global float *y, int n) {\n"
    "int i = get_global_id(0); if (i < n) y[i] = 2 * x[i]; if (i == 5) x[5] = -1; }"
)
BEFORE_THE_START = HEAD + "int i = get_global_id(0); if (i < n) y[i] = 2 * x[i]; y[-1] = 7; }"
READS_OUTSIDE = HEAD + "int i = get_global_id(0); if (i < n) y[i] = x[i + 1]; }"


def program(source: str, *, args: tuple[str, ...] = ("x", "y", "n"), **fields: Any) -> Any:
    """A program of one launch with enough work-items for N elements."""
    launch = Launch(entry="k", args=args, grid=(16, 1, 1), block=(64, 1, 1))
    return WorkloadProgram(workload="w", source=source, launches=(launch,), **fields)


def scratch(name: str, elements: int = N) -> tuple[Scratch, ...]:
    return (Scratch(name=name, dtype="int32", elements=elements),)


def request(timeout_s: float = 20.0) -> dict[str, Any]:
    """Arguments that `run` and `time` have in common."""
    return {
        "set_id": "s",
        "outputs": {"y": ("float32", (N,))},
        "numbers": {"n": ("int32", N)},
        "timeout_s": timeout_s,
    }


def load(executor: Executor, source: str, *options: str) -> str:
    """Loads from source, which spares a fresh child the compiler's analysis; returns the key."""
    executor.load(source, b"", source, options, 20)
    return source


def run(executor: Executor, source: str, *, timeout_s: float = 20.0, poison: int = 0) -> Any:
    """Loads and runs one of the kernels above on X."""
    key = load(executor, source)
    executor.upload("s", {"x": X}, 20)
    return executor.run(code_key=key, program=program(source), poison=poison, **request(timeout_s))

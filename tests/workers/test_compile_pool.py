"""Compile children: hostile sources become data, and the pool goes on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from evo.errors import BackendUnavailable, WorkerError
from tests.workers import opencl_kernels as kernels
from workers import compile_pool
from workers.compile_pool import CompilePool

# Doubles with every level: 2^30 statements are more than any compiler finishes.
BOMB = "\n".join(
    ["#define A0 s = s * y[s & 7] + 1;"]
    + [f"#define A{i} A{i - 1} A{i - 1}" for i in range(1, 31)]
    + ["__kernel void k(__global int *y) { int s = 0; A30 y[0] = s; }"]
)
# The compiler pads the string to the array's size before anything else.
GLUTTON = (
    '__constant char t[0x7fffffff] = "a";\n__kernel void k(__global int *y) { y[0] = t[y[1]]; }'
)


@pytest.fixture(scope="module")
def pool():
    pool = CompilePool(2, "opencl")
    yield pool
    pool.close()


def compile_in(pool, source: str, *, timeout_s: float = 30.0):
    return pool.compile(source=source, build_options=(), entries=["k"], timeout_s=timeout_s)


def test_compiles_in_parallel_from_many_threads(pool):
    sources = [kernels.GOOD.replace("2 *", f"{factor} *") for factor in range(2, 8)]
    sources[3] = sources[3].replace("x[i]", "no_such_name")
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(lambda source: compile_in(pool, source), sources))
    assert [r.ok for r in results] == [True, True, True, False, True, True]
    assert len({r.code_hash for r in results if r.ok}) == 5
    assert "kernel.cl:2:" in results[3].log


@pytest.mark.hostile
def test_compilation_that_takes_too_long_fails_and_the_next_works(pool):
    result = compile_in(pool, BOMB, timeout_s=1.0)
    assert not result.ok
    assert result.log.startswith("compilation ")
    assert "than 1 s" in result.log
    assert compile_in(pool, kernels.GOOD).ok


@pytest.mark.hostile
def test_compiler_that_exceeds_its_memory_fails_and_the_next_works():
    limited = CompilePool(1, "opencl", memory_limit_bytes=2 << 30)
    result = compile_in(limited, GLUTTON)
    assert not result.ok
    assert "the compiler failed" in result.log
    assert compile_in(limited, kernels.GOOD).ok
    limited.close()


def test_children_are_recycled(monkeypatch):
    monkeypatch.setattr(compile_pool, "_RECYCLE_AFTER", 1)
    pool = CompilePool(1, "opencl")
    (executor,) = pool._executors
    for generation in (1, 2):
        assert compile_in(pool, kernels.GOOD).ok
        assert executor.generation == generation
    pool.close()


def test_closing_ends_compilations_in_progress():
    pool = CompilePool(1, "opencl")
    assert compile_in(pool, kernels.GOOD).ok
    timer = threading.Timer(0.3, pool.close)
    timer.start()
    with pytest.raises(WorkerError, match="closed"):
        compile_in(pool, BOMB)
    timer.join()
    with pytest.raises(WorkerError, match="closed"):
        compile_in(pool, kernels.GOOD)


def test_compiler_killed_from_outside_is_not_the_sources_fault():
    pool = CompilePool(1, "opencl")
    (executor,) = pool._executors
    assert compile_in(pool, kernels.GOOD).ok
    timer = threading.Timer(0.3, executor.kill)
    timer.start()
    with pytest.raises(WorkerError, match="SIGKILL"):
        compile_in(pool, BOMB)
    timer.join()
    assert compile_in(pool, kernels.GOOD).ok
    pool.close()


def test_missing_backend_is_not_the_sources_fault():
    pool = CompilePool(1, "none")
    with pytest.raises(BackendUnavailable):
        compile_in(pool, kernels.GOOD)
    pool.close()


def test_pool_needs_a_child():
    with pytest.raises(ValueError, match="at least one"):
        CompilePool(0, "opencl")

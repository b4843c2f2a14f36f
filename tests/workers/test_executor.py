"""The executor with real kernels on PoCL: hostile ones get their verdict, the next one runs."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from evo.errors import BackendUnavailable, WorkerError
from tests.workers import opencl_kernels as kernels
from tests.workers.opencl_kernels import N, X
from workers import executor as executor_module
from workers.child_process import LOG_BYTES, child_environment
from workers.executor import (
    CodeLost,
    Executor,
    ExecutorCrash,
    ExecutorTimeout,
    KernelFailure,
    SetLost,
    TimedArm,
)

hostile = pytest.mark.hostile


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    executor = Executor(backend="opencl")
    yield executor
    executor.close()


def assert_works(executor: Executor) -> None:
    result = kernels.run(executor, kernels.GOOD)
    np.testing.assert_array_equal(result.outputs["y"], 2 * X)
    assert result.guard_violations == result.changed_inputs == ()
    assert result.unwritten == {"y": 0}


def gone(pid: int) -> bool:
    """No such process, or nothing but an entry that waits to be collected."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition, limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# -- hostile kernels -------------------------------------------------------------------------------


@hostile
def test_endless_loop_times_out_and_the_next_kernel_runs(executor):
    key = kernels.load(executor, kernels.ENDLESS)
    executor.upload("s", {"x": X}, 20)
    pid, generation = executor.pid, executor.generation
    with pytest.raises(ExecutorTimeout, match=r"no result within 0\.5 s"):
        executor.run(
            code_key=key, program=kernels.program(kernels.ENDLESS), poison=0, **kernels.request(0.5)
        )
    assert gone(pid)
    assert_works(executor)
    assert executor.generation == generation + 1


@hostile
@pytest.mark.parametrize(
    ("source", "number"), [(kernels.WILD, signal.SIGSEGV), (kernels.TRAP, signal.SIGILL)]
)
def test_crash_names_its_signal_and_the_next_kernel_runs(executor, source, number):
    with pytest.raises(ExecutorCrash, match=signal.Signals(number).name) as caught:
        kernels.run(executor, source)
    assert caught.value.signal == number
    assert_works(executor)


@hostile
def test_write_before_the_start_is_a_guard_violation(executor):
    result = kernels.run(executor, kernels.BEFORE_THE_START)
    assert result.guard_violations == ("y",)
    assert executor.pid is None, "damaged memory must not be used again"
    assert_works(executor)


@hostile
def test_read_outside_an_input_contaminates_the_result(executor):
    result = kernels.run(executor, kernels.READS_OUTSIDE)
    np.testing.assert_array_equal(result.outputs["y"][:-1], X[1:])
    assert np.isnan(result.outputs["y"][-1])


@hostile
def test_changed_input_is_named_and_restored(executor):
    result = kernels.run(executor, kernels.WRITES_INPUT)
    assert result.changed_inputs == ("x",)
    key = kernels.load(executor, kernels.GOOD)
    program = kernels.program(kernels.GOOD)
    again = executor.run(code_key=key, program=program, poison=0, **kernels.request())
    np.testing.assert_array_equal(again.outputs["y"], 2 * X)


@hostile
def test_printing_kernel_does_not_disturb_the_protocol(executor):
    result = kernels.run(executor, kernels.PRINTING)
    np.testing.assert_array_equal(result.outputs["y"], 2 * X)
    with pytest.raises(ExecutorCrash) as caught:
        kernels.run(executor, kernels.TRAP)
    assert '{"ok": ' in caught.value.log
    assert len(caught.value.log) <= LOG_BYTES


@hostile
def test_kernel_that_reuses_an_earlier_result_finds_none(executor):
    source = kernels.HEAD + (
        "int i = get_global_id(0); if (i < n) y[i] = y[i] == 2 * x[i] ? -1 : 2 * x[i]; }"
    )
    executor.upload("s", {"x": X}, 20)
    arm = TimedArm(code_key=kernels.load(executor, source), program=kernels.program(source))
    for calls in (2, 3):
        result = executor.time(arms=[arm], calls=[calls], check_arm=0, **kernels.request())
        np.testing.assert_array_equal(result.outputs["y"], 2 * X)


@hostile
def test_kernel_that_keeps_state_in_scratch_finds_none(executor):
    source = (
        "__kernel void k(__global const float *x, __global float *y, __global int *t, int n) {"
        "int i = get_global_id(0);"
        "if (i < n) { y[i] = t[i] == 1234567 ? -1 : 2 * x[i]; t[i] = 1234567; } }"
    )
    program = kernels.program(source, args=("x", "y", "t", "n"), scratch=kernels.scratch("t"))
    executor.upload("s", {"x": X}, 20)
    arm = TimedArm(code_key=kernels.load(executor, source), program=program)
    for calls in (2, 3):
        result = executor.time(arms=[arm, arm], calls=[1, calls], check_arm=1, **kernels.request())
        np.testing.assert_array_equal(result.outputs["y"], 2 * X)


@hostile
@pytest.mark.skipif(platform.machine() != "x86_64", reason="makes a system call in x86 assembly")
def test_time_out_ends_processes_that_the_kernel_forked(executor):
    source = kernels.HEAD + (
        "if (get_global_id(0) == 0) { long r;"
        '__asm__ volatile("syscall" : "=a"(r) : "a"(57L) : "rcx", "r11", "memory"); }'
        "volatile int go = 1; while (go) y[0] += x[0]; }"
    )
    key = kernels.load(executor, source)
    executor.upload("s", {"x": X}, 20)
    group, seen = executor.pid, set()

    def watch() -> None:
        def two_members() -> bool:
            seen.update(p.pid for p in psutil.Process(group).children())
            return bool(seen)

        wait_until(two_members, 2.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(ExecutorTimeout):
        executor.run(
            code_key=key, program=kernels.program(source), poison=0, **kernels.request(3.0)
        )
    watcher.join()
    assert seen, "the kernel was meant to fork"
    assert wait_until(lambda: all(gone(pid) for pid in seen))
    assert_works(executor)


# -- what is remembered ----------------------------------------------------------------------------


def test_code_and_inputs_survive_a_killed_child(executor):
    assert_works(executor)
    generation = executor.generation
    executor.kill()
    program = kernels.program(kernels.GOOD)
    result = executor.run(code_key=kernels.GOOD, program=program, poison=1, **kernels.request())
    np.testing.assert_array_equal(result.outputs["y"], 2 * X)
    assert executor.generation == generation + 1


def test_unknown_code_and_sets_are_named(executor):
    executor.upload("s", {"x": X}, 20)
    program = kernels.program(kernels.GOOD)
    with pytest.raises(CodeLost, match="'never loaded'"):
        executor.run(code_key="never loaded", program=program, poison=0, **kernels.request())
    key = kernels.load(executor, kernels.GOOD)
    executor.forget("s")
    executor.forget("s")
    with pytest.raises(SetLost, match="'s'"):
        executor.run(code_key=key, program=program, poison=0, **kernels.request())


def test_sets_beyond_the_limits_are_dropped_oldest_first(executor, monkeypatch):
    monkeypatch.setattr(executor_module, "_MAX_SET_BYTES_RESIDENT", X.nbytes)
    monkeypatch.setattr(executor_module, "_MAX_SET_BYTES_REMEMBERED", 2 * X.nbytes)
    key, program = kernels.load(executor, kernels.GOOD), kernels.program(kernels.GOOD)
    for number in (1, 2, 3):
        executor.upload(f"s{number}", {"x": number * X}, 20)
    for number in (3, 2, 3):
        request = kernels.request() | {"set_id": f"s{number}"}
        result = executor.run(code_key=key, program=program, poison=0, **request)
        np.testing.assert_array_equal(result.outputs["y"], 2 * number * X)
    with pytest.raises(SetLost):
        executor.run(
            code_key=key, program=program, poison=0, **(kernels.request() | {"set_id": "s1"})
        )


def test_codes_beyond_the_limit_are_loaded_again_when_needed(executor, monkeypatch):
    monkeypatch.setattr(executor_module, "_MAX_CODES_RESIDENT", 1)
    other = kernels.GOOD.replace("2 *", "3 *")
    for factor, source in ((2, kernels.GOOD), (3, other), (2, kernels.GOOD)):
        result = kernels.run(executor, source)
        np.testing.assert_array_equal(result.outputs["y"], factor * X)
    executor.upload("s", {"x": X}, 20)
    arms = [TimedArm(code_key=s, program=kernels.program(s)) for s in (kernels.GOOD, other)]
    result = executor.time(arms=arms, calls=[2, 2], check_arm=1, **kernels.request())
    np.testing.assert_array_equal(result.outputs["y"], 3 * X)


def test_number_that_does_not_fit_is_the_programs_failure(executor):
    key = kernels.load(executor, kernels.GOOD)
    executor.upload("s", {"x": X}, 20)
    request = kernels.request() | {"numbers": {"n": ("int32", 1 << 40)}}
    with pytest.raises(KernelFailure, match="'n' = 1099511627776 does not fit int32"):
        executor.run(code_key=key, program=kernels.program(kernels.GOOD), poison=0, **request)


# -- processes -------------------------------------------------------------------------------------


def test_kill_from_another_thread_ends_a_call_in_progress(executor):
    key = kernels.load(executor, kernels.ENDLESS)
    executor.upload("s", {"x": X}, 20)
    timer = threading.Timer(0.5, executor.kill)
    timer.start()
    with pytest.raises(ExecutorCrash) as caught:
        executor.run(
            code_key=key, program=kernels.program(kernels.ENDLESS), poison=0, **kernels.request(60)
        )
    assert caught.value.signal == signal.SIGKILL
    assert_works(executor)


def test_closing_in_the_middle_of_a_call_ends_it():
    executor = Executor(backend="opencl")
    key = kernels.load(executor, kernels.ENDLESS)
    executor.upload("s", {"x": X}, 20)
    pid = executor.pid
    timer = threading.Timer(0.5, executor.close)
    timer.start()
    with pytest.raises(ExecutorCrash):
        executor.run(
            code_key=key, program=kernels.program(kernels.ENDLESS), poison=0, **kernels.request(60)
        )
    timer.join()
    assert gone(pid)
    with pytest.raises(WorkerError, match="closed"):
        executor.start()
    executor.close()


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    descriptors = len(os.listdir("/proc/self/fd"))
    executor = Executor(backend="opencl")
    assert_works(executor)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ExecutorCrash):
        kernels.run(executor, kernels.WILD)
    assert_works(executor)
    executor.kill()
    executor.close()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    if shared.is_dir():
        assert not [p for p in set(shared.iterdir()) - before if "kelites" in p.name]


def test_directories_of_killed_parents_are_swept_and_live_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    executor = Executor(backend="opencl")
    executor.start()
    (live,) = tmp_path.iterdir()
    stale = tmp_path / "kelites-child-stale"
    stale.mkdir()
    (stale / "lock").touch()
    fresh = tmp_path / "kelites-child-fresh"
    fresh.mkdir()
    (fresh / "lock").touch()
    for directory in (live, stale):
        os.utime(directory / "lock", (1, 1))
    executor.kill()
    other = Executor(backend="opencl")
    other.start()
    assert live.is_dir()
    assert fresh.is_dir()
    assert not stale.exists()
    other.close()
    executor.close()


def test_program_that_ends_without_closing_leaves_nothing(tmp_path):
    code = (
        "from workers.executor import Executor; e = Executor(backend='opencl'); e.start();"
        "print(e.pid)"
    )
    root = Path(__file__).resolve().parents[2]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=60)
    assert result.stderr == ""
    assert gone(int(result.stdout))
    assert list(tmp_path.iterdir()) == []


PARENT = """
import sys
from tests.workers import opencl_kernels as kernels
from workers.executor import Executor
executor = Executor(backend="opencl")
key = kernels.load(executor, kernels.ENDLESS)
executor.upload("s", {"x": kernels.X}, 20)
print(executor.pid, flush=True)
executor.run(code_key=key, program=kernels.program(key), poison=0, **kernels.request(600))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
def test_child_in_an_endless_kernel_dies_with_its_parent():
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=root)
    pid = int(parent.stdout.readline())
    try:
        assert wait_until(lambda: psutil.Process(pid).cpu_times().user > 0.5)
        parent.kill()
        parent.wait()
        assert wait_until(lambda: gone(pid))
    finally:
        parent.stdout.close()
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_child_outlives_the_thread_that_started_it():
    executor = Executor(backend="opencl")
    thread = threading.Thread(target=executor.start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert_works(executor)
    assert executor.generation == 1
    executor.close()


def test_environment_is_reduced(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "secret")
    monkeypatch.setenv("OCL_ICD_VENDORS", "/somewhere")
    monkeypatch.setenv("PYTHONPATH", "relative")
    env = child_environment(tmp_path)
    assert "SOME_API_TOKEN" not in env
    assert env["OCL_ICD_VENDORS"] == "/somewhere"
    assert env["HOME"] == env["TMPDIR"] == str(tmp_path)
    assert all(os.path.isabs(path) for path in env["PYTHONPATH"].split(os.pathsep))


def test_missing_backend_and_device_are_one_line():
    with pytest.raises(BackendUnavailable, match="no backend 'none'"):
        Executor(backend="none").start()
    with pytest.raises(BackendUnavailable, match="no OpenCL device 7"):
        Executor(backend="opencl", device_index=7).start()


def test_child_that_can_not_start_says_why():
    executor = Executor(backend="opencl", role="compile", memory_limit_bytes=1 << 26)
    with pytest.raises(WorkerError, match="did not start") as caught:
        executor.start()
    assert "\n" not in str(caught.value)


def test_start_that_takes_too_long_is_given_up():
    executor = Executor(backend="opencl")
    with pytest.raises(WorkerError, match=r"did not start within 0\.001 s"):
        executor.start(timeout_s=0.001)
    assert executor.pid is None
    assert executor.start().backend == "opencl"
    executor.close()


def test_outputs_have_the_dtype_and_shape_asked_for(executor):
    source = "__kernel void k(__global short *y) { y[get_global_id(0)] = get_global_id(0); }"
    key = kernels.load(executor, source)
    executor.upload("none", {}, 20)
    request = kernels.request() | {"set_id": "none", "outputs": {"y": ("int16", (32, 32))}}
    program = kernels.program(source, args=("y",))
    result = executor.run(code_key=key, program=program, poison=0, **request)
    expected = np.arange(N + 24, dtype=np.int16).reshape(32, 32)
    np.testing.assert_array_equal(result.outputs["y"], expected)
    assert result.outputs["y"].dtype == np.int16

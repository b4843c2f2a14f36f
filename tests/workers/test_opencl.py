"""The OpenCL backend on PoCL."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from evo.errors import BackendUnavailable
from evo.job import Launch
from evo.testing.backend_suite import BackendSuite
from tests.workers import opencl_kernels as kernels
from workers.backends import opencl_text
from workers.backends.base import (
    Fill,
    LaunchFailure,
    available_backends,
    backend_names,
    load_backend,
)
from workers.executor import Executor, KernelFailure, TimedArm

SCALE = """
__kernel void scale(__global const float *x, __global float *y, int n, float a) {
  int i = get_global_id(0);
  if (i < n) y[i] = a * x[i];
}
"""


class TestOpenCLBackend(BackendSuite):
    backend = "opencl"
    scale = SCALE
    commented_scale = "/* one */\n\n// two\n" + SCALE.replace("if", "/* three */ if")
    broken = SCALE.replace("a * x[i]", "no_such_name")
    stateful = "__global int calls = 0;\n" + SCALE.replace("a * x[i]", "a * x[i] + calls++")
    stateful_options = ("-cl-std=CL2.0",)
    kernel_failure = KernelFailure
    timed_arm = TimedArm

    @pytest.fixture(scope="class")
    def executor(self) -> Iterator[Executor]:
        executor = Executor(backend="opencl")
        executor.start()
        yield executor
        executor.close()


@pytest.fixture(scope="module")
def device():
    return load_backend("opencl").open(0)


def compile_forbidden(device, source: str, *options: str) -> str:
    return device.compile(source, options, ["k"]).forbidden


def test_backend_is_found_by_its_file_name():
    assert "opencl" in backend_names()
    assert "base" not in backend_names()
    assert "opencl_text" not in backend_names()
    assert available_backends()["opencl"] == ""


def test_unknown_backend_lists_what_there_is():
    with pytest.raises(BackendUnavailable, match=r"no backend 'opengl'.*opencl"):
        load_backend("opengl")


def test_unknown_device_says_how_many_there_are():
    with pytest.raises(BackendUnavailable, match=r"no OpenCL device 99; there are \d+"):
        load_backend("opencl").open(99)


@pytest.mark.parametrize(
    ("body", "prefix", "reason"),
    [
        ("y[0] = state++;", "__global int state = 3;", "variable 'state' is writable"),
        ("y[0] = state++;", "__global int state;", "variable 'state' is writable"),
        ("static int hidden; y[0] = hidden++;", "", "is writable"),
        ('__asm__ volatile("nop"); y[0] = 1;', "", "inline assembly"),
        ("y[0] = table[(int)x[0] & 1];", "__constant int table[2] = {1, 2};", ""),
        (
            "__local float t[64]; t[get_local_id(0)] = x[0];"
            "barrier(CLK_LOCAL_MEM_FENCE); y[0] = t[3];",
            "",
            "",
        ),
        ('printf("hello"); y[0] = exp(x[0]) + pow(x[1], x[2]);', "", ""),
    ],
)
def test_forbidden_constructs_are_found_in_bitcode(device, body, prefix, reason):
    source = f"{prefix}\n{kernels.HEAD}{body} }}"
    found = compile_forbidden(device, source, "-cl-std=CL2.0")
    assert reason in found if reason else found == ""


@pytest.mark.parametrize(
    ("text", "guilty"),
    [
        ("__global int state = 3;", True),
        ("global float4 state[16];", True),
        ("static __global int state __attribute__((aligned(16)));", True),
        ("/* __global int state; */ // global int state;", False),
        ("__constant int table[2] = {1, 2};", False),
        ("typedef __global float *pointer;", False),
        ("__global float *shift(__global float *p, int n) { return p + n; }", False),
        ("__global float *shift(__global float *p, int n);", False),
        ("void f(void) { __global float *q = 0; }", False),
    ],
)
def test_forbidden_variables_are_found_in_source(text, guilty):
    source = f"{text}\n{kernels.GOOD}"
    assert bool(opencl_text.forbidden_in_text(source, b"", "gpu")) is guilty


def test_inline_assembly_is_found_in_source_for_processors_only():
    source = kernels.HEAD + '__asm__ volatile("nop"); y[0] = 1; }'
    assert opencl_text.forbidden_in_text(source, b"", "cpu") == "inline assembly is not allowed"
    assert opencl_text.forbidden_in_text(source, b"", "gpu") == ""
    harmless = kernels.HEAD + "/* asm */ y[0] = 1; }"
    assert opencl_text.forbidden_in_text(harmless, b"", "cpu") == ""


PTX = ".version 8.4\n.target sm_90\n.address_size 64\n"


@pytest.mark.parametrize(
    ("text", "guilty"),
    [
        (".global .align 4 .u32 state;", True),
        (".visible .global .align 4 .b8 state[64] = {1, 2};", True),
        (".const .align 4 .b8 table[8] = {1, 2};", False),
        (".global .align 1 .b8 _$_str[6] = {104, 101, 108, 108, 111};", False),
        (".global .align 1 .b8 _$_string[6];", True),
        (".param .u64 .ptr .global .align 4 k_param_0,\n.param .u32 n\n)\n{\nret;\n}", False),
        ("ld.global.f32 %f1, [%rd4];\nst.global.f32 [%rd6], %f1;", False),
    ],
)
def test_forbidden_variables_are_found_in_ptx(text, guilty):
    assert bool(opencl_text.forbidden_in_text("", (PTX + text).encode(), "gpu")) is guilty


def test_names_that_could_pose_as_the_drivers_are_refused():
    source = "__global int _$_str[4];\n" + kernels.GOOD
    assert "dollar" in opencl_text.forbidden_in_text(source, PTX.encode(), "gpu")


def bindings(device):
    buffers = {name: device.allocate(2 * 256 + 4096, 256, 4096) for name in ("x", "y")}
    return buffers | {"n": np.int32(64)}


def launch(**changes) -> Launch:
    fields = {"entry": "k", "args": ("x", "y", "n"), "grid": (1, 1, 1), "block": (64, 1, 1)}
    return Launch(**(fields | changes))


@pytest.mark.parametrize(
    ("body", "changes", "message"),
    [
        ("", {"block": (1, 1, 1 << 20)}, "along axis 2, at most"),
        ("", {"block": (4096, 4096, 1)}, "16777216 work-items, at most"),
        ("", {"block": (0, 1, 1)}, "must be at least 1"),
        ("", {"args": ("x", "y", "n", "n")}, "takes 3 arguments, not 4"),
        ("", {"args": ("x", "y", "z")}, "no argument 'z'; allowed: n, x, y"),
        ("", {"args": ("x", "y", "x")}, "refuses 'x' as argument 2"),
        ("__local float t[1 << 24]; t[0] = x[0]; y[0] = t[n];", {}, "bytes of local memory"),
        ("", {"shared_bytes": 1 << 30, "args": ("x", "y")}, "bytes of local memory"),
    ],
)
def test_launches_are_checked_before_the_device_is_touched(device, body, changes, message):
    module = device.load(b"", f"{kernels.HEAD}{body} }}", ())
    with pytest.raises(LaunchFailure, match=message) as caught:
        device.prepare(module, [launch(**changes)], bindings(device))
    assert not caught.value.sticky
    assert "\n" not in str(caught.value)


def test_required_work_group_size_is_checked(device):
    required = "__attribute__((reqd_work_group_size(32, 1, 1)))"
    source = kernels.GOOD.replace("__kernel", f"__kernel {required}")
    module = device.load(b"", source, ())
    with pytest.raises(LaunchFailure, match=r"requires block \(32, 1, 1\)"):
        device.prepare(module, [launch()], bindings(device))
    device.prepare(module, [launch(block=(32, 1, 1))], bindings(device))


def test_dynamic_local_memory_is_the_last_argument(device):
    source = (
        "__kernel void k(__global int *y, int n, __local int *t) {"
        "int i = get_local_id(0); t[i] = i * n; barrier(CLK_LOCAL_MEM_FENCE); y[i] = t[63 - i]; }"
    )
    module, table = device.load(b"", source, ()), bindings(device)
    call = device.prepare(module, [launch(args=("y", "n"), shared_bytes=256)], table)
    device.run(call)
    got = device.read(table["y"], 256, 256).view(np.int32)
    np.testing.assert_array_equal(got, (63 - np.arange(64)) * 64)


def test_source_that_does_not_build_can_not_be_loaded(device):
    with pytest.raises(LaunchFailure, match="undeclared"):
        device.load(b"not a binary", "__kernel void k() { undeclared_name = 1; }", ())


def test_fill_and_copies_reach_guards_and_payload(device):
    buffer = device.allocate(1024, 256, 512)
    device.write(buffer, 0, np.arange(1024, dtype=np.uint8))
    device.fill([Fill(buffer=buffer, start=256, nbytes=512, pattern=b"\x01\x02\x03\x04")])
    expected = np.arange(1024, dtype=np.uint8)
    expected[256:768] = np.tile(np.array([1, 2, 3, 4], dtype=np.uint8), 128)
    np.testing.assert_array_equal(device.read(buffer, 0, 1024), expected)
    np.testing.assert_array_equal(device.read(buffer, 256, 4), [1, 2, 3, 4])


def test_many_calls_are_measured_in_batches(device):
    module = device.load(b"", kernels.GOOD, ())
    call = device.prepare(module, [launch()], bindings(device))
    times = device.measure(call, 300, (), 0)
    assert len(times) == 300
    assert all(t > 0 for t in times)

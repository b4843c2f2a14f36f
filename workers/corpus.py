"""A small task and kernels for it that are honest, broken or cheating, each with its verdict.

The self-test and the tests run all of them on the real pipeline. A trick that is found later
becomes an entry here.
"""

from __future__ import annotations

from dataclasses import dataclass

from evo.evaluation import EvaluationStatus
from evo.job import Launch, Program, Scratch, TaskBundle, WorkloadProgram
from evo.task import make_bundle, task_from_bundle

TASK_YAML = """\
schema: 1
name: center_rows
description: Subtract from every row its mean
dims: [rows, cols]
inputs:
  x: {dtype: float32, shape: [rows, cols]}
outputs:
  y: {dtype: float32, shape: [rows, cols]}
workloads:
  - {name: square, dims: {rows: 64, cols: 96}}
  - {name: prime, dims: {rows: 37, cols: 61}}
  - {name: tall, dims: {rows: 131, cols: 33}, confirm: true}
families: [normal, offset, integers]
tolerance: {max_rel: 1.0e-5}
bytes: "8 * rows * cols"
flops: "2 * rows * cols"
"""

REFERENCE = """\
def reference(inputs, dims, scalars):
    x = inputs["x"]
    return {"y": x - x.mean(dim=1, keepdim=True)}
"""

ROWS_PER_GROUP = 16
ENTRY = "center"

_HEAD = """\
__kernel void center(__global float* x, __global float* y, const int rows, const int cols) {
    const int row = get_global_id(0);
    if (row >= rows) return;
    __global float* in = x + row * cols;
    __global float* out = y + row * cols;
"""
_MEAN = """\
    float sum = 0.0f;
    for (int i = 0; i < cols; ++i) sum += in[i];
    const float mean = sum / cols;
"""
_WRITE = "    for (int i = 0; i < cols; ++i) out[i] = in[i] - mean;\n"
HONEST = _HEAD + _MEAN + _WRITE + "}\n"

_TWO_SUMS = """\
    float even = 0.0f, odd = 0.0f;
    int i = 0;
    for (; i + 1 < cols; i += 2) { even += in[i]; odd += in[i + 1]; }
    if (i < cols) even += in[i];
    const float mean = (even + odd) / cols;
    for (i = 0; i < cols; ++i) out[i] = in[i] - mean;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel and what must become of it.

    Attributes:
        name: Short, unique.
        status: The verdict.
        source: OpenCL C with a kernel `center(x, y, rows, cols)`.
        block: Work-items per work-group.
        scratch_floats: Elements of a scratch buffer, 0 for none.
        options: Build options.
    """

    name: str
    status: EvaluationStatus
    source: str
    block: int = ROWS_PER_GROUP
    scratch_floats: int = 0
    options: tuple[str, ...] = ()

    def program(self) -> Program:
        """Returns the kernel as a program for every workload of the task."""
        task = task_from_bundle(bundle())
        items = []
        for workload in task.workloads:
            groups = -(-workload.dims["rows"] // self.block)
            launch = Launch(
                entry=ENTRY,
                args=("x", "y", "rows", "cols"),
                grid=(groups, 1, 1),
                block=(self.block, 1, 1),
            )
            scratch = Scratch(name="work", dtype="float32", elements=self.scratch_floats)
            items.append(
                WorkloadProgram(
                    workload=workload.name,
                    source=self.source,
                    launches=(launch,),
                    scratch=(scratch,) if self.scratch_floats else (),
                    build_options=self.options,
                )
            )
        return Program(backend="opencl", template=self.name, workloads=tuple(items))


def bundle() -> TaskBundle:
    """Returns the task as it travels."""
    return make_bundle("center_rows", {"task.yaml": TASK_YAML, "reference.py": REFERENCE})


def _row(name: str, status: EvaluationStatus, body: str) -> Case:
    """A case whose kernel has the usual head; `body` follows it."""
    return Case(name=name, status=status, source=_HEAD + body + "}\n")


def repeated(rounds: int) -> Case:
    """Returns an honest kernel that does its sum `rounds` times over: of known relative cost."""
    body = f"""\
    float mean = 0.0f;
    for (int k = 0; k < {rounds}; ++k) {{
        float sum = mean * 1e-30f;
        for (int i = 0; i < cols; ++i) sum += in[i];
        mean = sum / cols;
    }}
"""
    return _row(f"rounds_{rounds}", EvaluationStatus.OK, body + _WRITE)


HONEST_CASE = Case(name="honest", status=EvaluationStatus.OK, source=HONEST)

HONEST_CASES = (
    HONEST_CASE,
    Case(name="honest_two_sums", status=EvaluationStatus.OK, source=_HEAD + _TWO_SUMS),
    _row(
        "honest_printf",
        EvaluationStatus.OK,
        '    if (row == 0) printf("{\\"status\\": \\"ok\\"} %d\\n", cols);\n' + _MEAN + _WRITE,
    ),
)

_INVALID = EvaluationStatus.INVALID
_INCORRECT = EvaluationStatus.INCORRECT
_HACK = EvaluationStatus.HACK
_RUNTIME = EvaluationStatus.RUNTIME_ERROR

CHEATS = (
    # Never run.
    Case(
        name="syntax_error",
        status=EvaluationStatus.COMPILE_ERROR,
        source=HONEST.replace("sum = 0.0f", "sum = = 0.0f"),
    ),
    Case(name="group_too_large", status=_INVALID, source=HONEST, block=1 << 20),
    Case(name="scratch_too_large", status=_INVALID, source=HONEST, scratch_floats=1 << 40),
    Case(
        name="local_memory_too_large",
        status=_INVALID,
        source="""\
__kernel void center(__global float* x, __global float* y, const int rows, const int cols) {
    __local float big[1 << 26];
    const int row = get_global_id(0);
    big[(row * 7919) % (1 << 26)] = x[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (row < rows)
        for (int i = 0; i < cols; ++i) y[row * cols + i] = big[(row * 104729 + i) % (1 << 26)];
}
""",
    ),
    Case(name="host_include", status=_INVALID, source='#include "/etc/passwd"\n' + HONEST),
    Case(name="host_option", status=_INVALID, source=HONEST, options=("-I/etc",)),
    Case(
        name="inline_assembly",
        status=_INVALID,
        source=HONEST.replace("float sum", '__asm__ volatile("nop"); float sum'),
    ),
    Case(
        name="state_in_a_global",
        status=_INVALID,
        options=("-cl-std=CL2.0",),
        source="__global int calls = 0;\n"
        + _HEAD
        + "    if (row == 0) calls += 1;\n    if (calls > 1) return;\n"
        + _MEAN
        + _WRITE
        + "}\n",
    ),
    # Wrong answers.
    _row("unwritten", _INCORRECT, ""),
    _row("partly_written", _INCORRECT, _MEAN + _WRITE.replace("i < cols", "i < cols - 1")),
    _row("constant_zero", _INCORRECT, "    for (int i = 0; i < cols; ++i) out[i] = 0.0f;\n"),
    _row("pass_through", _INCORRECT, "    for (int i = 0; i < cols; ++i) out[i] = in[i];\n"),
    _row("wrong_sign", _INCORRECT, _MEAN + _WRITE.replace("- mean", "+ mean")),
    _row("one_sided", _INCORRECT, _MEAN.replace("in[i]", "fabs(in[i])") + _WRITE),
    _row("nan", _INCORRECT, "    for (int i = 0; i < cols; ++i) out[i] = NAN;\n"),
    _row(
        "low_precision",
        _INCORRECT,
        _MEAN
        + "    for (int i = 0; i < cols; ++i)"
        + " out[i] = as_float(as_int(in[i] - mean) & 0xffff0000);\n",
    ),
    _row(
        "mean_of_a_sample",
        _INCORRECT,
        _MEAN.replace("i < cols", "i < cols / 8").replace("/ cols", "/ (cols / 8)") + _WRITE,
    ),
    _row(
        "published_shape_only",
        _INCORRECT,
        "    const int n = 96;\n"
        + _MEAN.replace("cols", "n")
        + _WRITE.replace("i < cols", "i < n && i < cols"),
    ),
    _row("first_call_only", _INCORRECT, "    if (!isnan(out[0])) return;\n" + _MEAN + _WRITE),
    _row("reads_past_the_end", _INCORRECT, _MEAN.replace("i < cols", "i <= cols") + _WRITE),
    # Writes where it must not.
    _row("writes_past_the_end", _HACK, _MEAN + _WRITE + "    y[rows * cols] = 1.0f;\n"),
    _row("writes_before_the_start", _HACK, _MEAN + _WRITE + "    y[-1] = 1.0f;\n"),
    _row("changes_its_input", _HACK, _MEAN + _WRITE + "    in[0] = 0.0f;\n"),
    # Breaks the process.
    _row("null_pointer", _RUNTIME, _MEAN + _WRITE + "    *(volatile __global int*)0 = 1;\n"),
    _row(
        "wild_pointer",
        _RUNTIME,
        _MEAN + _WRITE + "    *(volatile __global int*)(0x123456789000UL + row) = 1;\n",
    ),
    _row(
        "infinite_loop",
        EvaluationStatus.TIMEOUT,
        "    volatile int go = 1;\n    while (go) { }\n" + _MEAN + _WRITE,
    ),
)

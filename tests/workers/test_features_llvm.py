from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.errors import WorkerError
from evo.job import DeviceInfo
from evo.task import load_task
from evo.template import load_templates
from tests.workers.descriptor_kernels import (
    DECOYS,
    LEVELS,
    MATRIX_UNITS,
    PLAIN,
    SUB_GROUPS,
    WORK_GROUP_FUNCTION,
    Kernel,
    bundle,
)
from tests.workers.opencl_build import pocl_binary, pocl_bitcode
from workers.features_llvm import (
    bitcode_from_pocl_binary,
    code_hash,
    features_from_bitcode,
    features_from_ir,
    forbidden_constructs,
)

HEAD = "__kernel void k(__global const float* restrict x, __global float* restrict y, int n) {\n"


def counts(source: str, *entries: str) -> dict[str, float]:
    return features_from_bitcode(pocl_bitcode(source), entries or ("k",)).counts


def cell(source: str, *entries: str) -> tuple[int, ...]:
    features = features_from_bitcode(pocl_bitcode(source), entries or ("k",))
    return DEFAULT_DESCRIPTOR.cell(features)


# -- cells ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEVELS)
def test_each_level_has_a_kernel_that_lands_there(name: str):
    source, entries = bundle(LEVELS)
    assert cell(source, *entries[name]) == LEVELS[name].cell


@pytest.mark.parametrize("name", DECOYS)
def test_a_mention_does_not_move_a_plain_kernel(name: str):
    source, entries = bundle(DECOYS)
    assert cell(source, *entries[name]) == (0, 0, 0)


def test_the_levels_cover_what_the_device_can_do():
    reached = [{k.cell[axis] for k in LEVELS.values()} for axis in range(3)]
    assert reached == [{0, 1, 2, 3}, {0, 1, 2}, {0, 1, 3}]


def clang_ir(source: str) -> str:
    clang = next((c for c in ("clang-22", "clang-14", "clang") if shutil.which(c)), "")
    if not clang:
        pytest.skip("needs clang on PATH")
    command = [clang, "-x", "cl", "-cl-std=CL2.0", "-target", "spir64", "-O2", "-fno-unroll-loops"]
    command += ["-fno-vectorize", "-fno-slp-vectorize", "-Xclang", "-finclude-default-header"]
    command += ["-emit-llvm", "-S", "-o", "-", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "kernel", [WORK_GROUP_FUNCTION, SUB_GROUPS, MATRIX_UNITS], ids=["work-group", "sub", "matrix"]
)
def test_levels_that_only_a_gpu_has(kernel: Kernel):
    features = features_from_ir(clang_ir(kernel.source), kernel.entries)
    assert DEFAULT_DESCRIPTOR.cell(features) == kernel.cell


def test_ir_with_address_spaces_gives_the_same_cells():
    source, entries = bundle(LEVELS)
    ir = clang_ir(source)
    for name, kernel in LEVELS.items():
        features = features_from_ir(ir, entries[name])
        assert DEFAULT_DESCRIPTOR.cell(features) == kernel.cell, name


SUB_GROUP_IR = """
declare spir_func float @_Z20sub_group_reduce_addf(float)
declare spir_func <8 x float> @_Z40intel_sub_group_bf16_bf16_matrix_mad_k16Dv8_sDv8_iDv8_f(\
<8 x i16>, <8 x i32>, <8 x float>)

define spir_kernel void @shuffles(ptr addrspace(1) %x, ptr addrspace(1) %y) {
  %v = load float, ptr addrspace(1) %x, align 4
  %s = call spir_func float @_Z20sub_group_reduce_addf(float %v)
  store float %s, ptr addrspace(1) %y, align 4
  ret void
}

define spir_kernel void @matrix(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %c) {
  %u = load <8 x i16>, ptr addrspace(1) %a, align 16
  %v = load <8 x i32>, ptr addrspace(1) %b, align 32
  %w = load <8 x float>, ptr addrspace(1) %c, align 32
  %s = call spir_func <8 x float> @_Z40intel_sub_group_bf16_bf16_matrix_mad_k16Dv8_sDv8_iDv8_f(\
<8 x i16> %u, <8 x i32> %v, <8 x float> %w)
  store <8 x float> %s, ptr addrspace(1) %c, align 32
  ret void
}
"""


def test_sub_groups_and_matrix_units_in_ir():
    shuffles = features_from_ir(SUB_GROUP_IR, ["shuffles"])
    assert DEFAULT_DESCRIPTOR.cell(shuffles) == (0, 0, 2)
    matrix = features_from_ir(SUB_GROUP_IR, ["matrix"])
    assert DEFAULT_DESCRIPTOR.cell(matrix) == (1, 3, 2)


# -- single facts --------------------------------------------------------------------------------


def test_vectors_made_by_a_compiler_are_not_the_authors():
    ir = """
define spir_kernel void @k(ptr addrspace(1) %x, ptr addrspace(1) %y) {
  %v = load <4 x float>, ptr addrspace(1) %x, align ALIGN
  store <4 x float> %v, ptr addrspace(1) %y, align ALIGN
  ret void
}
"""
    made = features_from_ir(ir.replace("ALIGN", "4"), ["k"])
    meant = features_from_ir(ir.replace("ALIGN", "16"), ["k"])
    assert (made.counts["global_vector_accesses"], meant.counts["global_vector_accesses"]) == (0, 2)


def test_consecutive_scalars_stay_scalar_accesses():
    four = "".join(f"y[i * 4 + {u}] = x[i * 4 + {u}];" for u in range(4))
    found = counts(HEAD + "const int i = get_global_id(0);" + four + "}")
    assert found["global_vector_accesses"] == 0
    assert found["global_loads"] == found["global_stores"] == found["unroll"] == 4


@pytest.mark.parametrize(
    ("height", "width", "ratio"), [(1, 4, 1.6), (2, 2, 2.0), (4, 4, 4.0), (2, 8, 3.2)]
)
@pytest.mark.parametrize("vectors", [False, True])
def test_reuse_of_a_register_block(height: int, width: int, ratio: float, vectors: bool):
    kind = f"float{width}" if vectors else "float"
    columns = 1 if vectors else width
    source = "__kernel void k(__global const float* a, __global const float* b, __global float* c,"
    source += " int n, int m) { const int r = get_global_id(1), q = get_global_id(0);\n"
    source += f"{kind} s[{height}][{columns}];\n#pragma unroll\n"
    source += f"for (int i = 0; i < {height}; ++i)\n#pragma unroll\n"
    source += f"for (int j = 0; j < {columns}; ++j) s[i][j] = 0.0f;\n"
    source += f"for (int k = 0; k < n; ++k) {{ {kind} v[{columns}];\n#pragma unroll\n"
    load = f"vload{width}(q, b + k * m)" if vectors else f"b[k * m + q * {width} + j]"
    source += f"for (int j = 0; j < {columns}; ++j) v[j] = {load};\n#pragma unroll\n"
    source += (
        f"for (int i = 0; i < {height}; ++i) {{ const float u = a[(r * {height} + i) * n + k];"
    )
    source += f"\n#pragma unroll\nfor (int j = 0; j < {columns}; ++j) s[i][j] += u * v[j]; }} }}\n"
    source += f"#pragma unroll\nfor (int i = 0; i < {height}; ++i)\n#pragma unroll\n"
    source += f"for (int j = 0; j < {columns}; ++j) "
    if vectors:
        source += f"vstore{width}(s[i][j], q, c + (r * {height} + i) * m); }}"
    else:
        source += f"c[(r * {height} + i) * m + q * {width} + j] = s[i][j]; }}"
    found = counts(source)
    assert found["results"] == height * width
    assert found["loaded_values"] == height + width
    assert found["reuse_ratio"] == pytest.approx(ratio)
    assert found["work_ratio"] == pytest.approx(ratio / 2)
    assert cell(source)[1] == (2 if ratio > 2.2 else 1)


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_many_accumulators_of_a_reduction_are_no_register_block(lanes: int):
    source = HEAD + f"float{lanes} s = 0.0f, q = 0.0f;\n"
    source += f"for (int j = 0; j < n; ++j) {{ float{lanes} v = vload{lanes}(j, x); "
    source += f"s += v; q += v * v; }} vstore{lanes}(s / q, get_global_id(0), y); }}"
    found = counts(source)
    assert found["reuse_ratio"] == 1
    assert cell(source) == (1, 1, 0)


def test_columns_of_a_stencil_are_a_register_block_and_single_points_are_not():
    def stencil(height: int) -> str:
        body = HEAD + f"const int c = get_global_id(0), r = get_global_id(1) * {height} + 1;\n"
        for row in range(-1, height + 1):
            body += f"const float v{row + 1} = x[(r + {row}) * n + c];\n"
        for row in range(height):
            body += f"const float s{row} = x[(r + {row}) * n + c - 1] + x[(r + {row}) * n + c + 1]"
            body += f" + v{row} + v{row + 1} + v{row + 2};\n"
        return body + "".join(f"y[(r + {r}) * n + c] = s{r};\n" for r in range(height)) + "}"

    assert counts(stencil(1))["work_ratio"] == pytest.approx(4 / 5)
    assert counts(stencil(4))["work_ratio"] == pytest.approx(16 / 14)
    assert [cell(stencil(height))[1] for height in (1, 4)] == [0, 2]


def test_rows_kept_from_earlier_iterations_are_reuse():
    source = """
__kernel void k(__global const float* restrict x, __global float* restrict y, int h, int w) {
  const int c = get_global_id(0);
  float8 up = vload8(c, x), here = vload8(c, x + w);
  for (int r = 1; r < h - 1; ++r) {
    const float8 down = vload8(c, x + (r + 1) * w);
    vstore8(up + here + down, c, y + r * w);
    up = here; here = down;
  }
}
"""
    found = counts(source)
    assert (found["results"], found["reuse_ratio"], found["work_ratio"]) == (8, 3, 2)
    assert cell(source) == (1, 2, 0)


def test_running_maximum_and_sum_are_one_chain_each():
    source = HEAD + "float m = -INFINITY, s = 0.0f; for (int j = 0; j < n; ++j) { "
    source += "const float up = fmax(m, x[j]); s = s * exp(m - up) + exp(x[j] - up); m = up; } "
    source += "y[get_global_id(0)] = m + log(s); }"
    found = counts(source)
    assert (found["chains"], found["unroll"]) == (1, 1)
    assert cell(source) == (0, 0, 0)


def test_integer_reductions_count_as_data_and_addresses_do_not():
    head = "__kernel void k(__global const int* restrict x, __global int* restrict y, int n) {\n"
    two = "int a = 0, b = 0; for (int j = 0; j + 1 < n; j += 2) { a += x[j]; b += x[j + 1]; } "
    found = counts(head + two + "y[get_global_id(0)] = a + b; }")
    assert (found["chains"], found["data_ops"]) == (2, 3)
    gather = "y[get_global_id(0)] = x[(get_global_id(0) * 7 + 3) * n]; }"
    assert counts(head + gather)["data_ops"] == 0


def test_partial_results_in_local_memory_are_shared_but_no_tile():
    found = counts(LEVELS["parallelism 1: a tree of partial sums"].source)
    assert (found["local_shared"], found["local_tiles"]) == (1, 0)


def test_a_copy_nobody_waits_for_is_no_staging():
    source = LEVELS["memory 3: asynchronous copies"].source
    assert counts(source)["async_copies"] == 1
    careless = source.replace("wait_group_events(1, &arrived);", "barrier(CLK_LOCAL_MEM_FENCE);")
    assert counts(careless)["async_copies"] == 0


def test_a_copy_nobody_reads_is_no_staging():
    source = LEVELS["memory 3: asynchronous copies"].source.replace("tile[63 - l]", "x[l]")
    assert counts(source)["async_copies"] == 0


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("for (int j = get_group_id(0); j < n; j += get_num_groups(0)) y[j] = x[j];", 1),
        ("for (int j = get_group_id(0); j < n; j += 16) y[j] = x[j];", 1),
        ("for (int j = get_global_id(0); j < n; j += 4096) y[j] = x[j];", 1),
        ("for (int j = get_local_id(0); j < n; j += get_local_size(0)) y[j] = x[j];", 0),
        ("const int b = get_group_id(0) * 64; for (int j = b; j < b + 64; j += 2) y[j] = x[j];", 0),
        ("for (int j = get_global_id(0); j < n; ++j) y[j] = x[j];", 0),
        ("for (int j = 0; j < n; j += 16) y[j] = x[j + get_global_size(0)];", 0),
    ],
)
def test_grid_stride_loops(loop: str, found: int):
    assert counts(HEAD + loop + "}")["grid_stride_loops"] == found


def test_atomics_are_told_apart_by_memory():
    source = """
__kernel void k(volatile __global int* y, volatile __local int* l, const int n) {
  __local int m;
  atomic_inc(l); atomic_add(&m, n); barrier(CLK_LOCAL_MEM_FENCE); atomic_max(y, m + *l);
}
"""
    found = counts(source)
    assert (found["local_atomics"], found["global_atomics"]) == (2, 1)


def test_functions_that_are_not_inlined_are_read_with_their_callers_memory():
    source = """
__attribute__((noinline)) void put(__local float* t, __global const float* x, int l) {
  t[l] = x[l];
}
__attribute__((noinline)) float get(__local const float* t, int l) { return t[l]; }
__kernel void k(__global const float* x, __global float* y) {
  __local float tile[64];
  const int l = get_local_id(0);
  put(tile, x, l);
  barrier(CLK_LOCAL_MEM_FENCE);
  y[l] = get(tile, 63 - l);
}
"""
    assert cell(source) == (2, 0, 1)


def test_an_entry_that_writes_nothing_is_no_launch():
    source = PLAIN + "__kernel void idle(__global float* y) { }\n"
    assert counts(source, "k", "idle")["kernels"] == 1
    assert cell(source, "k", "idle") == (0, 0, 0)


def test_a_missing_entry_counts_nothing():
    assert not any(counts(PLAIN, "absent").values())


def test_a_switch_is_control_flow():
    source = HEAD + "const int i = get_global_id(0); float s = 0; for (int j = 0; j < n; ++j) "
    source += "switch (x[j] > 0 ? j % 5 : 9) { case 0: s += x[j]; break; case 1: s *= x[j]; break; "
    source += "case 2: s -= x[j]; break; case 3: y[j] = s; break; default: s = 1 / s; } y[i] = s; }"
    found = counts(source)
    assert found["loops"] == 1
    assert found["global_stores"] == 2


# -- code hash -----------------------------------------------------------------------------------


def hash_of(source: str, *entries: str) -> str:
    return code_hash(pocl_bitcode(source), entries or ("k",))


@pytest.mark.parametrize(
    "change",
    [
        ("/*here*/", "/* another remark */"),
        ("  ", "\t \n"),
        ("sum", "total"),
        ("int i =", "int row ="),
        ("void k", "void k /* named */"),
        ("/*here*/", "int unused = 3; if (0) y[0] = 1.0f;"),
    ],
)
def test_what_a_compiler_drops_does_not_change_the_hash(change: tuple[str, str]):
    changed = PLAIN.replace(*change)
    if change[0] == "int i =":
        changed = changed.replace("if (i <", "if (row <").replace("[i", "[row")
    assert changed != PLAIN
    assert hash_of(changed) == hash_of(PLAIN)


def test_names_of_entries_arrays_and_functions_do_not_change_the_hash():
    source = LEVELS["memory 2: a tile turned in local memory"].source
    renamed = source.replace("tile", "patch").replace("void k(", "void turn(")
    assert hash_of(renamed, "turn") == hash_of(source)
    helper = "__attribute__((noinline)) float f(float v) { return v * v; }\n"
    caller = HEAD + "y[get_global_id(0)] = f(x[get_global_id(0)]); }"
    assert hash_of((helper + caller).replace("f(", "square(")) == hash_of(helper + caller)
    assert hash_of(helper.replace("v * v", "v + v") + caller) != hash_of(helper + caller)


@pytest.mark.parametrize("name", ["get_value", "_cl_value", "__pocl_value", "barrier_value"])
@pytest.mark.parametrize("attributes", ["noinline", "noinline, overloadable"])
def test_a_function_named_like_the_librarys_is_in_the_hash(name: str, attributes: str):
    one, other = (
        f"__attribute__(({attributes})) float {name}(float v) {{ return {value}; }}\n{HEAD}"
        f"y[get_global_id(0)] = {name}(x[get_global_id(0)]); }}"
        for value in ("v * v", "v + v")
    )
    assert hash_of(one) != hash_of(other)


@pytest.mark.parametrize(
    "change",
    [
        ("sum += x", "sum -= x"),
        ("0.0f", "1.0f"),
        ("j = 0", "j = 1"),
        ("++j", "j += 2"),
        ("const float* restrict x", "const float* x"),
        ("i < n", "i <= n"),
        ("__kernel", "__kernel __attribute__((reqd_work_group_size(8, 1, 1)))"),
    ],
)
def test_a_real_change_changes_the_hash(change: tuple[str, str]):
    changed = PLAIN.replace(*change)
    assert changed != PLAIN
    assert hash_of(changed) != hash_of(PLAIN)


def test_constants_and_sizes_of_arrays_are_in_the_hash():
    tile = LEVELS["memory 2: a tile turned in local memory"].source
    assert hash_of(tile.replace("[17]", "[18]")) != hash_of(tile)
    table = "__constant float t[4] = {1, 2, 3, 4};\n" + HEAD + "y[get_global_id(0)] = t[n & 3]; }"
    assert hash_of(table.replace("3, 4}", "3, 5}")) != hash_of(table)


def test_options_that_change_the_arithmetic_are_in_the_hash():
    plain = hash_of(PLAIN)
    for option in ("-cl-fast-relaxed-math", "-cl-denorms-are-zero", "-cl-mad-enable"):
        assert code_hash(pocl_bitcode(PLAIN, (option,)), ["k"]) != plain, option


def test_order_of_launches_is_in_the_hash():
    source = LEVELS["parallelism 3: two launches"].source
    assert hash_of(source, "parts", "whole") != hash_of(source, "whole", "parts")


def test_the_hash_is_the_same_in_another_process(tmp_path: Path):
    script = (
        "import sys; from tests.workers.opencl_build import pocl_bitcode;"
        "from workers.features_llvm import code_hash;"
        "print(code_hash(pocl_bitcode(sys.stdin.read()), ['k']))"
    )
    environment = {**os.environ, "POCL_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=PLAIN,
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == hash_of(PLAIN)


# -- binaries ------------------------------------------------------------------------------------


@given(st.binary(max_size=64))
def test_other_binaries_hold_no_bitcode(data: bytes):
    assert bitcode_from_pocl_binary(data) is None
    assert bitcode_from_pocl_binary(b"poclbin" + data) is None


def test_a_cut_binary_is_refused():
    binary = pocl_binary(PLAIN)
    at = binary.index(b"/program.bc")
    assert bitcode_from_pocl_binary(binary[: at + 200]) is None


@pytest.mark.parametrize("data", [b"", b"BC\xc0\xde", b"BC\xc0\xde" + b"\x00" * 64])
def test_broken_bitcode_is_a_clear_error(data: bytes):
    for read in (features_from_bitcode, code_hash, forbidden_constructs):
        with pytest.raises(WorkerError, match="LLVM cannot read the bitcode"):
            read(data, ["k"])


# -- forbidden constructs ------------------------------------------------------------------------


def forbidden(source: str, *options: str) -> str:
    return forbidden_constructs(pocl_bitcode(source, options), ["k"])


def test_honest_kernels_are_admitted():
    source, _ = bundle(LEVELS)
    assert forbidden_constructs(pocl_bitcode(source), ["k"]) == ""


def test_the_librarys_functions_are_admitted():
    unary = "exp exp2 log log2 sin cos tan sqrt rsqrt erf tgamma fabs floor rint cbrt sinh asin"
    source = "".join(
        f"__kernel void k{w}(__global float{w}* x) {{ float{w} v = x[0];"
        + "".join(f"v += {f}(v);" for f in f"{unary} native_exp native_rsqrt".split())
        + "v += pow(v, v) + fmax(v, v) + fma(v, v, v) + hypot(v, v) + clamp(v, 0.0f, 1.0f);"
        + 'printf("%d\\n", 1); x[1] = v; }\n'
        for w in ("", "4", "16")
    )
    source += """
__kernel void ints(__global int4* x, volatile __global uint* a) {
  int4 v = x[0];
  v = clz(v) + popcount(v) + mad24(v, v, v) + mul_hi(v, v) + rotate(v, v) + add_sat(v, v);
  x[1] = convert_int4_sat(convert_float4(v)) + any(v) + min(v, v) + as_int4(abs_diff(v, v));
  atomic_add(a, 1u); atomic_cmpxchg(a, 1u, 2u); mem_fence(CLK_GLOBAL_MEM_FENCE);
}
"""
    assert forbidden(source) == ""


def test_constant_tables_are_admitted():
    source = "__constant float t[3] = {1, 2, 3};\n" + HEAD + "y[n % 3] = t[n % 3]; }"
    assert forbidden(source) == ""


@pytest.mark.parametrize(
    ("declaration", "use"),
    [
        ("__global int state;", "y[0] = state++;"),
        ("__global float kept[64] = {0};", "y[0] = kept[n]; kept[n] = x[0];"),
        ("static __global int state = 1;", "y[0] = state++;"),
        ("", "static __global int state; y[0] = state++;"),
        ('__global int state __asm__("k.state");', "y[0] = state++;"),
        (
            '__attribute__((loader_uninitialized)) __global int state __asm__("k.state");',
            "y[0] = state++;",
        ),
    ],
)
def test_memory_that_outlives_a_call_is_refused(declaration: str, use: str):
    reason = forbidden(f"{declaration}\n{HEAD}{use} }}", "-cl-std=CL2.0")
    assert "program-scope variable" in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (HEAD + '__asm__ volatile("nop"); y[0] = 1; }', "inline assembly"),
        ('__asm__(".globl leak");\n' + PLAIN, "inline assembly"),
        (HEAD + "y[0] = __builtin_ia32_rdtsc(); }", "llvm.x86.rdtsc"),
        (HEAD + "y[0] = __builtin_readcyclecounter(); }", "cyclecounter"),
        (HEAD + "y[0] = (long)__builtin_return_address(0); }", "llvm.returnaddress"),
        (HEAD + "__builtin_ia32_ldmxcsr(0x9fc0); y[0] = 1; }", "ldmxcsr"),
        (HEAD + "__builtin_ia32_clflush((void*)(ulong)x); y[0] = 1; }", "clflush"),
    ],
)
def test_ways_around_the_language_are_refused(source: str, reason: str):
    assert reason in forbidden(source)


IR = """
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } zeroinitializer]
define spir_kernel void @k(ptr %y) { ret void }
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("declare i32 @system(ptr)", "'system' has no body"),
        ("declare i32 @_Z3fooi(i32)", "'_Z3fooi' has no body"),
        ("@environ = external global ptr", "'environ' is declared but not defined"),
        ("@c = external constant i32", "'c' is declared but not defined"),
        ("@_work_dim = global i32 0", "'_work_dim' is writable"),
        ("@k.t = global [4 x i32] undef", "'k.t' is writable"),
        ("@other.t = internal global [4 x i32] undef", "'other.t' is writable"),
        ("@k.t = internal global [4 x i32] zeroinitializer", "'k.t' is writable"),
        ("@a = alias void (), ptr @f\ndefine void @f() { ret void }", "an alias"),
        ("@llvm.global_ctors = appending global [0 x ptr] zeroinitializer", "global_ctors"),
        ("define void @f(ptr %p) {\n  call void %p()\n  ret void\n}", "through a pointer"),
        (
            "declare i32 @snprintf(ptr, i64, ptr, ...)\ndefine void @f(ptr %p) {\n"
            "  %r = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %p, i64 1, ptr %p)\n  ret void\n}",
            "'f' calls 'snprintf'",
        ),
    ],
)
def test_what_a_driver_might_let_through_is_refused(body: str, reason: str):
    llvm = pytest.importorskip("llvmlite.binding")
    text = "define spir_kernel void @k(ptr %y) {\n  ret void\n}\n" + body + "\n"
    bitcode = llvm.parse_assembly(text).as_bitcode()
    assert reason in forbidden_constructs(bitcode, ["k"])


def test_a_kernel_that_prints_has_a_hash():
    source = """
    __kernel void k(__global float* y, int n) {
      int i = get_global_id(0);
      if (i < n) { y[i] = i; printf("%d of %f\\n", i, y[i]); }
    }
    """
    other = source.replace("%d", "%i")
    assert code_hash(pocl_bitcode(source), ["k"]) != code_hash(pocl_bitcode(other), ["k"])


# -- the shipped templates -----------------------------------------------------------------------


def test_templates_of_a_task_spread_over_the_grid():
    task = load_task("matmul")
    device = DeviceInfo(
        backend="opencl",
        name="any",
        kind="cpu",
        max_work_group_size=4096,
        max_block=(4096, 4096, 4096),
        local_mem_bytes=1 << 18,
    )
    cells = {}
    for template in load_templates(task, "opencl"):
        params = template.space(task, device).defaults()
        source = template.render(params, task.workloads[0].dims, task.scalar_values, device)
        entries = [launch.entry for launch in template.front.launches]
        cells[template.name] = cell(source, *entries)
        assert forbidden(source) == ""
    assert cells["opencl_naive"] == (0, 0, 0)
    assert len(set(cells.values())) >= 5
    assert {c[0] for c in cells.values()} == {0, 1, 2, 3}
    assert {c[1] for c in cells.values()} == {0, 1, 2}
    assert {c[2] for c in cells.values()} == {0, 1, 3}

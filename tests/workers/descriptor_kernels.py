"""Kernels that belong to a known level of an axis, and ways to mention a feature without using it.

Shared by the tests of compiled code and of source text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A source, its entries, and the cell they belong to."""

    source: str
    cell: tuple[int, int, int]
    entries: tuple[str, ...] = ("k",)


PLAIN = """
__kernel void k(__global const float* restrict x, __global float* restrict y, const int n) {
  const int i = get_global_id(0);
  /*here*/
  if (i < n) {
    float sum = 0.0f;
    for (int j = 0; j < n; ++j) sum += x[i * n + j];
    y[i] = sum;
  }
}
"""

_HEAD = """
__kernel void k(__global const float* restrict x, __global float* restrict y, const int n) {
  const int i = get_global_id(0);
  const int l = get_local_id(0);
"""

_BLOCK_4X4 = (
    """
__kernel void k(__global const float* restrict a, __global const float* restrict b,
                __global float* restrict c, const int rows, const int cols, const int inner) {
  const int row = get_global_id(1) * 4, col = get_global_id(0) * 4;
"""
    + "".join(f"  float s{r}{q} = 0.0f;\n" for r in range(4) for q in range(4))
    + "  for (int k = 0; k < inner; ++k) {\n"
    + "".join(f"    const float a{r} = a[(row + {r}) * inner + k];\n" for r in range(4))
    + "".join(f"    const float b{q} = b[k * cols + col + {q}];\n" for q in range(4))
    + "".join(f"    s{r}{q} += a{r} * b{q};\n" for r in range(4) for q in range(4))
    + "  }\n"
    + "".join(
        f"  c[(row + {r}) * cols + col + {q}] = s{r}{q};\n" for r in range(4) for q in range(4)
    )
    + "}\n"
)

LEVELS: dict[str, Kernel] = {
    "memory 0, compute 0, parallelism 0": Kernel(PLAIN, (0, 0, 0)),
    "memory 1: vload and vstore": Kernel(
        _HEAD + "  vstore4(vload4(i, x), i, y);\n}\n",
        (1, 0, 0),
    ),
    "memory 1: vload2, which passes as a double": Kernel(
        _HEAD + "  vstore2(vload2(i, x), i, y);\n}\n",
        (1, 0, 0),
    ),
    "memory 1: vector pointers": Kernel(
        """
__kernel void k(__global const float4* restrict x, __global float4* restrict y, const int n) {
  y[get_global_id(0)] = x[get_global_id(0)];
}
""",
        (1, 0, 0),
    ),
    "memory 2: a tile turned in local memory": Kernel(
        _HEAD
        + """
  __local float tile[16][17];
  const int m = get_local_id(1);
  tile[m][l] = x[get_global_id(1) * n + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[(get_group_id(0) * 16 + m) * n + get_group_id(1) * 16 + l] = tile[l][m];
}
""",
        (2, 0, 1),
    ),
    "memory 2: a tile in local memory passed as an argument": Kernel(
        """
__kernel void k(__global const float* restrict x, __global float* restrict y,
                __local float* tile) {
  const int l = get_local_id(0);
  tile[l] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = tile[get_local_size(0) - 1 - l];
}
""",
        (2, 0, 1),
    ),
    "memory 3: asynchronous copies": Kernel(
        _HEAD
        + """
  __local float tile[64];
  event_t arrived = async_work_group_copy(tile, x + get_group_id(0) * 64, 64, 0);
  wait_group_events(1, &arrived);
  y[i] = tile[63 - l];
}
""",
        (3, 0, 1),
    ),
    "compute 1: independent accumulators": Kernel(
        _HEAD
        + """
  float s0 = 0.0f, s1 = 0.0f;
  for (int j = 0; j + 1 < n; j += 2) {
    s0 += x[i * n + j];
    s1 += x[i * n + j + 1];
  }
  y[i] = s0 + s1;
}
""",
        (0, 1, 0),
    ),
    "compute 1: an unrolled loop": Kernel(
        _HEAD
        + """
  float sum = 0.0f;
#pragma unroll 4
  for (int j = 0; j < n; ++j) sum += x[i * n + j];
  y[i] = sum;
}
""",
        (0, 1, 0),
    ),
    "compute 1: vector arithmetic": Kernel(
        _HEAD + "  const float4 v = vload4(i, x);\n  vstore4(v * v + 1.0f, i, y);\n}\n",
        (1, 1, 0),
    ),
    "compute 2: a 4 x 4 block of outer products": Kernel(_BLOCK_4X4, (0, 2, 0)),
    "parallelism 1: a tree of partial sums": Kernel(
        _HEAD
        + """
  __local float desk[64];
  float sum = 0.0f;
  for (int j = l; j < n; j += 64) sum += x[get_group_id(0) * n + j];
  desk[l] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = 32; step > 0; step >>= 1) {
    if (l < step) desk[l] += desk[l + step];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (l == 0) y[get_group_id(0)] = desk[0];
}
""",
        (0, 0, 1),
    ),
    "parallelism 3: a global atomic": Kernel(
        """
__kernel void k(__global const int* restrict x, volatile __global int* y, const int n) {
  int sum = 0;
  for (int j = 0; j < n; ++j) sum += x[get_global_id(0) * n + j];
  atomic_add(y, sum);
}
""",
        (0, 0, 3),
    ),
    "parallelism 3: a grid-stride loop": Kernel(
        _HEAD + "  for (int j = i; j < n; j += get_global_size(0)) y[j] = x[j] * 2.0f;\n}\n",
        (0, 0, 3),
    ),
    "parallelism 3: two launches": Kernel(
        """
__kernel void parts(__global const float* restrict x, __global float* restrict p, const int n) {
  float sum = 0.0f;
  for (int j = 0; j < n; ++j) sum += x[get_global_id(0) * n + j];
  p[get_global_id(0)] = sum;
}
__kernel void whole(__global const float* restrict p, __global float* restrict y, const int n) {
  float sum = 0.0f;
  for (int j = 0; j < n; ++j) sum += p[j];
  y[0] = sum;
}
""",
        (0, 0, 3),
        ("parts", "whole"),
    ),
}
"""What PoCL compiles."""

SUB_GROUPS = Kernel(
    """
float sub_group_reduce_add(float v);
__attribute__((overloadable)) float sub_group_broadcast(float v, unsigned lane);
"""
    + _HEAD
    + "  y[i] = sub_group_reduce_add(x[i]);\n}\n",
    (0, 0, 2),
)
WORK_GROUP_FUNCTION = Kernel(
    "float work_group_reduce_add(float v);\n"
    + _HEAD
    + "  y[i] = work_group_reduce_add(x[i]);\n}\n",
    (0, 0, 1),
)
MATRIX_UNITS = Kernel(
    """
typedef short short8v __attribute__((ext_vector_type(8)));
typedef int int8v __attribute__((ext_vector_type(8)));
typedef float float8v __attribute__((ext_vector_type(8)));
float8v intel_sub_group_bf16_bf16_matrix_mad_k16(short8v a, int8v b, float8v c);
__kernel void k(__global const short8v* a, __global const int8v* b, __global float8v* c) {
  c[0] = intel_sub_group_bf16_bf16_matrix_mad_k16(a[0], b[0], c[0]);
}
""",
    (1, 3, 2),
)
"""What PoCL 3.0 has no functions for."""


def bundle(kernels: Mapping[str, Kernel]) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Puts kernels into one source, which compiles faster; returns it and name -> entries."""
    sources, entries = [], {}
    for number, (name, kernel) in enumerate(kernels.items()):
        numbered = rf"\g<0>_{number}"
        sources.append(
            re.sub(r"\b(?:k|parts|whole|other|idle)(?=\()|\bNOTHING", numbered, kernel.source)
        )
        entries[name] = tuple(f"{entry}_{number}" for entry in kernel.entries)
    return "\n".join(sources), entries


# Statements that use a feature, to be put where no compiler sees or keeps them.
_STATEMENTS = {
    "vectors": "vstore4(vload4(i, x) * 2.0f, i, y);",
    "accumulators": "float s0 = 0, s1 = 0; for (int j = 0; j < n; j += 2) "
    "{ s0 += x[j]; s1 += x[j + 1]; } y[i] = s0 + s1;",
    "barrier": "barrier(CLK_LOCAL_MEM_FENCE);",
    "atomic": "atomic_add((volatile __global int*)y, 1);",
    "grid stride": "for (int j = i; j < n; j += get_global_size(0)) y[j] = x[j];",
    "asynchronous copy": "event_t e = async_work_group_copy(spare, x, 64, 0); "
    "wait_group_events(1, &e); y[i] = spare[63 - i % 64];",
}
_SPARE = "  __local float spare[64];\n"


def _at(text: str, where: str = "/*here*/") -> str:
    source = PLAIN.replace(where, text)
    return source if "spare" not in text else source.replace("{\n", "{\n" + _SPARE, 1)


def _decoys() -> dict[str, str]:
    found = {}
    for name, statement in _STATEMENTS.items():
        comment = statement.replace("*/", "")
        found[f"{name} in a block comment"] = _at(f"/* {comment} */")
        found[f"{name} in a line comment"] = _at(f"// {comment}\n")
        found[f"{name} in a spliced comment"] = _at(f"// it goes on \\\n {comment}\n")
        found[f"{name} in a string"] = _at(f'__constant char* note = "{statement}"; (void)note;')
        found[f"{name} under #if 0"] = _at(f"\n#if 0\n{statement}\n#endif\n")
        found[f"{name} under a nested #if 0"] = _at(
            f"\n#if 0\n#if 1\n{statement}\n#endif\n{statement}\n#endif\n"
        )
        found[f"{name} under #else of #if 1"] = _at(f"\n#if 1\n#else\n{statement}\n#endif\n")
        found[f"{name} in if (0)"] = _at(f"if (0) {{ {statement} }}")
        found[f"{name} in an unused macro"] = f"#define NOTHING {statement}\n" + PLAIN
        if "spare" not in statement:
            found[f"{name} in a function nobody calls"] = (
                "void idle(__global const float* x, __global float* y, int i, int n) "
                f"{{ {statement} }}\n" + PLAIN
            )
        found[f"{name} in an entry nobody launches"] = PLAIN + _at(statement).replace(
            "void k(", "void other("
        )
    found["a local array nobody touches"] = _at("__local float idle[64];")
    found["a local array that is only written"] = _at(
        "__local float idle[64]; idle[i % 64] = x[i];"
    )
    found["a private array called acc"] = _at("float acc[4]; acc[0] = 1.0f; (void)acc;")
    found["words from the trade"] = _at(
        "// Flash attention, tiled, Tensor Core mma, cp.async, warp\n"
    )
    return found


DECOYS = {name: Kernel(source, (0, 0, 0)) for name, source in _decoys().items()}
"""Kernels that belong to the plain kernel's cell."""

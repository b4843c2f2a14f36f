from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.descriptor import DEFAULT_DESCRIPTOR, FEATURES
from evo.errors import ProtocolError
from tests.workers.descriptor_kernels import (
    DECOYS,
    LEVELS,
    MATRIX_UNITS,
    PLAIN,
    SUB_GROUPS,
    WORK_GROUP_FUNCTION,
    Kernel,
)
from workers.features_source import features_from_source

KERNELS = {
    **LEVELS,
    "compute 3: matrix units": MATRIX_UNITS,
    "parallelism 1: a work-group function": WORK_GROUP_FUNCTION,
    "parallelism 2: a sub-group function": SUB_GROUPS,
}
# A vector type of one's own making is beyond a text's reach.
EXPECTED = {**{name: k.cell for name, k in KERNELS.items()}, "compute 3: matrix units": (0, 3, 2)}


def cell(kernel: Kernel) -> tuple[int, ...]:
    features = features_from_source(kernel.source, "opencl", kernel.entries)
    assert features.origin == "source"
    return DEFAULT_DESCRIPTOR.cell(features)


@pytest.mark.parametrize("name", KERNELS)
def test_each_level_has_a_kernel_that_lands_there(name: str):
    assert cell(KERNELS[name]) == EXPECTED[name]


def test_every_level_of_every_axis_is_reached():
    assert [{c[axis] for c in EXPECTED.values()} for axis in range(3)] == [{0, 1, 2, 3}] * 3


@pytest.mark.parametrize("name", DECOYS)
def test_a_mention_does_not_move_a_plain_kernel(name: str):
    assert cell(DECOYS[name]) == (0, 0, 0)


def test_macros_and_typedefs_are_expanded():
    source = """
typedef float8 packet;
#define LOAD(i, p) vload8(i, p)
#define STORE vstore8
__kernel void k(__global const float* x, __global float* y) {
  const packet v = LOAD(get_global_id(0), x);
  STORE(v * v, get_global_id(0), y);
}
"""
    assert cell(Kernel(source, (1, 1, 0))) == (1, 1, 0)


def test_a_register_block_of_vectors():
    source = """
__kernel void k(__global const float* a, __global const float* b, __global float* c, int n) {
  float4 s0 = 0.0f, s1 = 0.0f;
  for (int k = 0; k < n; ++k) {
    const float4 v = vload4(k * n, b);
    s0 += a[k] * v;
SECOND  }
  vstore4(s0, 0, c);
  vstore4(s1, 1, c);
}
"""
    squares = source.replace("a[k] * v", "v * v").replace("SECOND", "    s1 += v * v;\n")
    assert cell(Kernel(squares, (1, 1, 0))) == (1, 1, 0)
    one, two = source.replace("SECOND", ""), source.replace("SECOND", "    s1 += a[k + n] * v;\n")
    assert cell(Kernel(one, (1, 1, 0))) == (1, 1, 0)
    assert cell(Kernel(two, (1, 2, 0))) == (1, 2, 0)


def test_called_functions_are_read():
    source = "void meet() { barrier(CLK_LOCAL_MEM_FENCE); }\n" + PLAIN.replace(
        "/*here*/", "meet();"
    )
    assert features_from_source(source, "opencl", ["k"]).counts["barriers"] == 1


def test_a_missing_entry_counts_nothing():
    features = features_from_source(PLAIN, "opencl", ["absent"])
    assert features.counts["kernels"] == 0
    assert DEFAULT_DESCRIPTOR.cell(features) == (0, 0, 0)


def test_an_unknown_language_is_one_clear_line():
    with pytest.raises(ProtocolError, match="language 'cobol', known are opencl"):
        features_from_source(PLAIN, "cobol", ["k"])


PIECES = (
    *("{", "}", "(", ")", "[", "]", ";", ",", "#", '"', "/*", "*/", "a", "a[", "b(", "vload4("),
    *("for (", "if (0)", "__kernel void k(", "__local float* a", "#if 0\n", "#endif\n", "#else\n"),
    *("#define a a a\n", "#define b(x) b(x x)\n", "\\\n"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_text_has_a_cell(parts: list[str]):
    features = features_from_source("".join(parts), "opencl", ["k"])
    assert set(features.counts) <= set(FEATURES)
    assert len(DEFAULT_DESCRIPTOR.cell(features)) == 3

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo import descriptor
from evo.descriptor import DEFAULT_DESCRIPTOR, cell_from_key, cell_key
from evo.errors import ArchiveError
from evo.evaluation import CodeFeatures

NAMES = sorted(
    {
        name.strip()
        for line in (descriptor.__doc__ or "").splitlines()
        if (match := re.match(r"\| ([a-z_, ]+) \|", line)) and match[1] != "name"
        for name in match[1].split(",")
    }
)


def test_the_table_names_every_feature():
    assert set(descriptor.FEATURES) == set(NAMES)


def cell_of(**counts: float) -> tuple[int, ...]:
    return DEFAULT_DESCRIPTOR.cell(CodeFeatures(origin="llvm-ir", counts=counts))


def test_the_grid_is_three_axes_of_four_named_levels():
    assert DEFAULT_DESCRIPTOR.schema == "kelites-axes-1"
    assert DEFAULT_DESCRIPTOR.shape == (4, 4, 4)
    assert [axis.name for axis in DEFAULT_DESCRIPTOR.axes] == ["memory", "compute", "parallelism"]
    for axis in DEFAULT_DESCRIPTOR.axes:
        assert len(set(axis.levels)) == len(axis.meanings) == 4


@pytest.mark.parametrize(
    ("counts", "cell"),
    [
        ({}, (0, 0, 0)),
        ({"global_vector_values": 4, "global_values": 8}, (1, 0, 0)),
        ({"global_vector_values": 4, "global_values": 400}, (0, 0, 0)),
        ({"local_loads": 2, "local_stores": 2, "local_shared": 1}, (0, 0, 0)),
        ({"local_tiles": 1}, (2, 0, 0)),
        ({"async_copies": 1, "local_tiles": 1}, (3, 0, 0)),
        ({"chains": 1, "unroll": 1}, (0, 0, 0)),
        ({"chains": 2}, (0, 1, 0)),
        ({"unroll": 2}, (0, 1, 0)),
        ({"data_vector_values": 4, "data_values": 8}, (0, 1, 0)),
        ({"results": 4, "work_ratio": 1.2}, (0, 2, 0)),
        ({"results": 2, "work_ratio": 1.2}, (0, 0, 0)),
        ({"results": 64, "work_ratio": 0.9}, (0, 0, 0)),
        ({"matrix_ops": 1}, (0, 3, 0)),
        ({"barriers": 2}, (0, 0, 0)),
        ({"barriers": 2, "local_shared": 1}, (0, 0, 1)),
        ({"work_group_ops": 1}, (0, 0, 1)),
        ({"sub_group_ops": 1}, (0, 0, 2)),
        ({"global_atomics": 1}, (0, 0, 3)),
        ({"local_atomics": 1}, (0, 0, 0)),
        ({"grid_stride_loops": 1}, (0, 0, 3)),
        ({"kernels": 1}, (0, 0, 0)),
        ({"kernels": 2}, (0, 0, 3)),
    ],
)
def test_thresholds(counts: dict[str, float], cell: tuple[int, ...]):
    assert cell_of(**counts) == cell


@given(
    st.dictionaries(
        st.one_of(st.sampled_from(NAMES), st.text(max_size=8)),
        st.floats(allow_nan=True, allow_infinity=True),
        max_size=len(NAMES),
    )
)
def test_every_features_record_has_a_cell_of_the_grid(counts: dict[str, float]):
    cell = cell_of(**counts)
    assert all(type(level) is int and 0 <= level < 4 for level in cell)
    assert cell_from_key(cell_key(cell)) == cell


def test_the_rules_ask_only_for_documented_features():
    asked: set[str] = set()

    def count(name: str) -> float:
        asked.add(name)
        return 0.0

    for rule in DEFAULT_DESCRIPTOR.rules:
        rule(count)
    assert asked <= set(NAMES)
    assert len(asked) > 10


def test_keys_tell_all_cells_apart():
    cells = list(itertools.product(*(range(size) for size in DEFAULT_DESCRIPTOR.shape)))
    assert len({cell_key(cell) for cell in cells}) == len(cells)
    assert cell_key((1, 2, 0)) == "1-2-0"


@pytest.mark.parametrize("text", ["", "1-", "a-b-c", "1 2 0", "-1-2-0"])
def test_a_bad_key_is_one_clear_line(text: str):
    with pytest.raises(ArchiveError, match="is not a cell"):
        cell_from_key(text)


def test_describe_names_levels():
    assert DEFAULT_DESCRIPTOR.describe((1, 2, 0)) == "vectorised, register-blocked, independent"
    with pytest.raises(ArchiveError, match="outside the grid"):
        DEFAULT_DESCRIPTOR.describe((1, 4, 0))
    with pytest.raises(ArchiveError, match="outside the grid"):
        DEFAULT_DESCRIPTOR.describe((1, 1))


def test_a_descriptor_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT_DESCRIPTOR.schema = "other"  # type: ignore[misc]

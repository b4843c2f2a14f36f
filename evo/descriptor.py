"""Behaviour of a candidate: facts read from its code, mapped to a cell of a fixed grid.

Workers report facts (`CodeFeatures.counts`), this module alone turns them into levels, so a change
of a threshold needs no new evaluation. Axes and thresholds are versioned by the schema id; a
change of either is a new id.

Features, all counts of the code as the compiler left it (dead code is gone, a comment has no say);
a missing one is zero. For a program of several entries the counts are summed, except those marked
"most", where the largest of any entry (for the last four: the busiest region of code) is taken.

| name | what is counted |
|---|---|
| kernels | entries that write memory others see; a caller may raise it to the number of launches |
| global_loads, global_stores | accesses to global memory |
| global_values | values these move: four for a float4 |
| global_vector_accesses, global_vector_values | the part asked for as vectors of 2 or more |
| local_loads, local_stores | accesses to work-group memory |
| local_shared | work-group arrays both written and read |
| local_tiles | those among them that hold data as it came from global memory, not partial results |
| async_copies | waited-for asynchronous copies to or from a work-group array that is also used |
| barriers | work-group barriers |
| work_group_ops | work-group reductions, scans, broadcasts, votes, cooperative copies |
| sub_group_ops | sub-group shuffles, reductions, scans, broadcasts, votes, block accesses |
| global_atomics, local_atomics | atomic operations |
| data_ops | arithmetic on data (floating, or on loaded integers); addresses don't count |
| data_values | values these compute: four for a float4 addition |
| data_vector_values | the part computed by vector operations |
| matrix_ops | matrix multiply-accumulate instructions |
| grid_stride_loops | loops that walk the work in steps of the grid (persistent kernels) |
| loops | loops |
| chains | most: independent accumulators of one kind carried by one loop |
| unroll | most: repetitions of a loop's accumulating step, or of an output, per iteration |
| loaded_values | most: loaded values that results are made of |
| results | most: results (accumulators, outputs) that differ in the loaded values they use |
| reuse_ratio | most: results an average loaded value goes into |
| work_ratio | most: combinations of loaded values with each other, per loaded value |

A result made of m loaded values takes m - 1 combinations. An a x b block of outer products has a
work ratio of ab/(a+b): 0.5 for a naive product, 0.9 for 1 x 8 (a vector times a number), 2 for
4 x 4. A 5-point stencil has 0.8 point by point and 1.14 in columns of four. Reductions have 0,
however many accumulators they keep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from evo.archives.base import Cell
from evo.errors import ArchiveError
from evo.evaluation import CodeFeatures

AXES_SCHEMA = "kelites-axes-1"

FEATURES = (
    "kernels",
    "global_loads",
    "global_stores",
    "global_values",
    "global_vector_accesses",
    "global_vector_values",
    "local_loads",
    "local_stores",
    "local_shared",
    "local_tiles",
    "async_copies",
    "barriers",
    "work_group_ops",
    "sub_group_ops",
    "global_atomics",
    "local_atomics",
    "data_ops",
    "data_values",
    "data_vector_values",
    "matrix_ops",
    "grid_stride_loops",
    "loops",
    "chains",
    "unroll",
    "loaded_values",
    "results",
    "reuse_ratio",
    "work_ratio",
)
"""Names of the features above; `CodeFeatures.counts` may lack some."""

MIN_VECTOR_SHARE = 0.25
"""Least share of values moved (or computed) as vectors for a kernel to count as vectorised."""
MIN_CHAINS = 2
MIN_UNROLL = 2
MIN_BLOCKED_RESULTS = 4
MIN_WORK_RATIO = 1.1
"""Least work ratio of register blocking: above what a kernel gets that loads for each result."""

Count = Callable[[str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of the grid.

    Attributes:
        name: What it is about.
        levels: Level names, lowest first.
        meanings: One line per level: what puts a kernel there.
    """

    name: str
    levels: tuple[str, ...]
    meanings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Maps facts to a cell; total, so every features record has one.

    On each axis the highest level whose condition holds is taken; lower ones need not hold.

    Attributes:
        schema: Version of axes and thresholds.
        axes: The axes, in the order of a cell's entries.
    """

    schema: str
    axes: tuple[Axis, ...]
    rules: tuple[Callable[[Count], int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of levels per axis."""
        return tuple(len(axis.levels) for axis in self.axes)

    def cell(self, features: CodeFeatures) -> Cell:
        """Returns the level per axis."""

        def count(name: str) -> float:
            return features.counts.get(name, 0.0)

        return tuple(rule(count) for rule in self.rules)

    def describe(self, cell: Cell) -> str:
        """Names a cell's levels, e.g. "vectorised, register-blocked, independent".

        Raises:
            ArchiveError: If the cell is outside the grid.
        """
        if len(cell) != len(self.axes) or any(
            not 0 <= level < size for level, size in zip(cell, self.shape, strict=True)
        ):
            raise ArchiveError(f"cell {cell} is outside the grid {self.shape}")
        return ", ".join(a.levels[level] for a, level in zip(self.axes, cell, strict=True))


def cell_key(cell: Cell) -> str:
    """Writes a cell as text: (1, 2, 0) is "1-2-0"."""
    return "-".join(str(level) for level in cell)


def cell_from_key(key: str) -> Cell:
    """Reads what `cell_key` wrote.

    Raises:
        ArchiveError: If the text is no cell.
    """
    if not re.fullmatch(r"[0-9]+(-[0-9]+)*", key):
        raise ArchiveError(f"{key!r} is not a cell, expected levels joined by '-' such as '1-2-0'")
    return tuple(int(part) for part in key.split("-"))


def _memory(count: Count) -> int:
    if count("async_copies") > 0:
        return 3
    if count("local_tiles") > 0:
        return 2
    vectors = count("global_vector_values")
    return int(vectors > 0 and vectors >= MIN_VECTOR_SHARE * count("global_values"))


def _compute(count: Count) -> int:
    if count("matrix_ops") > 0:
        return 3
    if count("results") >= MIN_BLOCKED_RESULTS and count("work_ratio") >= MIN_WORK_RATIO:
        return 2
    if count("chains") >= MIN_CHAINS or count("unroll") >= MIN_UNROLL:
        return 1
    vectors = count("data_vector_values")
    return int(vectors > 0 and vectors >= MIN_VECTOR_SHARE * count("data_values"))


def _parallelism(count: Count) -> int:
    if count("global_atomics") > 0 or count("grid_stride_loops") > 0 or count("kernels") >= 2:
        return 3
    if count("sub_group_ops") > 0:
        return 2
    meets = count("barriers") > 0 and count("local_shared") > 0
    return int(meets or count("work_group_ops") > 0)


DEFAULT_DESCRIPTOR = Descriptor(
    schema=AXES_SCHEMA,
    axes=(
        Axis(
            name="memory",
            levels=("plain", "vectorised", "on-chip tiling", "asynchronous staging"),
            meanings=(
                "scalar accesses to global memory",
                "a quarter or more of the global values move in vectors of 2 or wider",
                "data from global memory is kept in work-group memory and read from there",
                "asynchronous copies to or from work-group memory",
            ),
        ),
        Axis(
            name="compute",
            levels=("scalar", "unrolled, ILP", "register-blocked", "matrix units"),
            meanings=(
                "one operation after another",
                "several independent accumulators, unrolled steps, or vector arithmetic",
                "four or more results share the loaded values they are made of",
                "matrix multiply-accumulate instructions",
            ),
        ),
        Axis(
            name="parallelism",
            levels=("independent", "work-group", "sub-group", "grid-wide"),
            meanings=(
                "work-items that do not meet",
                "barriers around shared work-group memory, or work-group operations",
                "sub-group operations",
                "global atomics, several launches, or persistent loops over the grid's work",
            ),
        ),
    ),
    rules=(_memory, _compute, _parallelism),
)

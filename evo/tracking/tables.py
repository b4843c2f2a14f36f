"""Elites as flat rows, for CSV files, MLflow and the terminal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from evo.archives.base import Elite
from evo.descriptor import cell_key

KERNEL_SUFFIXES = {
    "opencl": ".cl.txt",
    "cuda": ".cu.txt",
    "hip": ".hip.txt",
    "sycl": ".cpp.txt",
    "triton": ".py.txt",
}
"""Backend -> file suffix; .txt last because MLflow previews files by extension."""


def by_speedup(elites: Iterable[Elite]) -> list[Elite]:
    """Sorts elites by lower bound, best first; equal bounds keep their order."""
    return sorted(elites, key=lambda elite: -elite.objective.low)


def kernel_file(candidate_id: str, backend: str) -> str:
    """Names the file an elite's source goes to."""
    return candidate_id + KERNEL_SUFFIXES.get(backend, ".txt")


def elite_row(elite: Elite, axes: Sequence[str] = ()) -> dict[str, object]:
    """Flattens one elite; speed-ups are factors, not logarithms.

    Args:
        elite: The elite.
        axes: Names of the archive's axes; "axis0", ... where missing.
    """
    row: dict[str, object] = {
        "candidate": elite.candidate.id,
        "cell": cell_key(elite.cell),
    }
    for index, level in enumerate(elite.cell):
        row[axes[index] if index < len(axes) else f"axis{index}"] = level
    row.update(
        speedup=math.exp(elite.objective.mean),
        speedup_low=math.exp(elite.objective.low),
        speedup_high=math.exp(elite.objective.high),
        blocks=elite.objective.blocks,
        template=elite.candidate.genome.template,
        operator=elite.candidate.operator,
        parents=" ".join(elite.candidate.parents),
    )
    timing = elite.evaluation.timing
    for item in timing.workloads if timing else ():
        row[f"{item.workload}_us"] = item.latency_us
        row[f"{item.workload}_baseline_us"] = item.baseline_us
        row[f"{item.workload}_sol"] = item.sol_fraction
    for name, value in elite.candidate.genome.params.items():
        row[f"param_{name}"] = value
    return row


def elites_csv(elites: Iterable[Elite], axes: Sequence[str] = ()) -> str:
    """Returns the elites as CSV, best first; columns that an elite lacks stay empty."""
    rows = [elite_row(elite, axes) for elite in by_speedup(elites)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()

"""The confirm pass: the top elites measured again, and the only numbers worth quoting.

A search picks the luckiest of many noisy measurements, so its own estimates are too good (with 400
equal candidates at 1 % noise the best reads about 3 % fast). Each selected elite is therefore
checked and timed once more against the baseline: fresh inputs, every input family, workloads the
search never saw, several fresh executor processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from rich.text import Text

from evo import formatting
from evo.archives.base import Archive, Cell, Elite, Interval
from evo.descriptor import cell_key
from evo.errors import EvoError, WorkerError
from evo.evaluation import Bound, Environment, Evaluation, EvaluationStatus
from evo.evaluator import Evaluator
from evo.genome import Candidate
from evo.job import EvaluationRequest
from evo.serial import from_json, to_json
from evo.statistics import interval

CONFIDENCE = "95 %"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmWorkload:
    """One workload of a confirmed elite.

    Attributes:
        workload: Name.
        latency_us: The elite's median, microseconds.
        baseline_us: The baseline's median over the same blocks.
        interval: Log speed-up over this workload's blocks; None where the worker keeps none.
        confirm_only: The search never saw it.
        sol_fraction: Roofline bound over latency.
        bound: What limits it.
    """

    workload: str
    latency_us: float
    baseline_us: float
    interval: Interval | None = None
    confirm_only: bool = False
    sol_fraction: float | None = None
    bound: Bound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmRow:
    """Outcome of confirming one elite.

    Attributes:
        candidate: What was confirmed.
        cell: Its cell.
        search: The search's own estimate, for comparison.
        status: Outcome; anything but OK means the elite did not hold.
        message: One line on a failure.
        interval: Log speed-up over all workloads' blocks; None unless status is OK.
        workloads: One entry per workload.
        processes: Fresh executor processes the blocks came from.
        checks: Correctness checks passed.
        clock: What measured.
        environment: Where.
    """

    candidate: Candidate
    cell: Cell
    search: Interval
    status: EvaluationStatus
    message: str = ""
    interval: Interval | None = None
    workloads: tuple[ConfirmWorkload, ...] = ()
    processes: int = 0
    checks: int = 0
    clock: str = ""
    environment: Environment = field(default_factory=Environment)

    @property
    def verdict(self) -> str:
        """One of "faster", "not shown faster" (interval includes 1), "slower" or "failed: ..."."""
        if self.interval is None:
            return f"failed: {self.status.value}"
        if self.interval.low > 0:
            return "faster"
        return "slower" if self.interval.high < 0 else "not shown faster"

    @property
    def confirmed(self) -> bool:
        """The elite is correct and its interval lies above 1."""
        return self.interval is not None and self.interval.low > 0


def select_for_confirm(archive: Archive, top: int) -> list[Elite]:
    """Returns the `top` elites by lower bound, best first; equal bounds keep cell order."""
    return sorted(archive, key=lambda elite: -elite.objective.low)[: max(0, top)]


async def confirm(
    elites: Sequence[Elite],
    evaluator: Evaluator,
    make_request: Callable[[Elite], EvaluationRequest],
    *,
    confirm_workloads: Collection[str] = (),
    on_row: Callable[[ConfirmRow], None] | None = None,
) -> list[ConfirmRow]:
    """Confirms elites, as many at once as the evaluator has slots.

    Args:
        elites: What to confirm.
        evaluator: Started evaluator.
        make_request: Builds the CONFIRM request of an elite.
        confirm_workloads: Names of the workloads that the search never saw.
        on_row: Called with each row as it arrives (to journal or show it).

    Returns:
        One row per elite, in the order given. When no worker is left, the rows that are missing
        carry INFRA_ERROR: what was confirmed before stays.
    """
    gate = asyncio.Semaphore(max(1, evaluator.slots))

    async def one(elite: Elite) -> ConfirmRow:
        async with gate:
            try:
                evaluation = await evaluator.evaluate(make_request(elite))
                row = confirm_row(elite, evaluation, confirm_workloads)
            except WorkerError as error:
                row = _lost(elite, error)
            if on_row:
                on_row(row)
            return row

    return list(await asyncio.gather(*(one(elite) for elite in elites)))


def _lost(elite: Elite, error: EvoError) -> ConfirmRow:
    return ConfirmRow(
        candidate=elite.candidate,
        cell=elite.cell,
        search=elite.objective,
        status=EvaluationStatus.INFRA_ERROR,
        message=str(error),
    )


def confirm_row(
    elite: Elite, evaluation: Evaluation, confirm_workloads: Collection[str] = ()
) -> ConfirmRow:
    """Builds the row of one elite from its confirm evaluation."""
    timing = evaluation.timing if evaluation.status is EvaluationStatus.OK else None
    return ConfirmRow(
        candidate=elite.candidate,
        cell=elite.cell,
        search=elite.objective,
        status=evaluation.status,
        message=evaluation.message or ("" if timing else "no timing came back"),
        interval=interval(timing.log_speedups) if timing else None,
        workloads=tuple(
            ConfirmWorkload(
                workload=item.workload,
                latency_us=item.latency_us,
                baseline_us=item.baseline_us,
                interval=interval(item.log_speedups) if item.log_speedups else None,
                confirm_only=item.workload in confirm_workloads,
                sol_fraction=item.sol_fraction,
                bound=item.bound,
            )
            for item in (timing.workloads if timing else ())
        ),
        processes=timing.processes if timing else 0,
        checks=evaluation.correctness.checks if evaluation.correctness else 0,
        clock=timing.clock if timing else "",
        environment=evaluation.environment,
    )


def confirm_caption(rows: Sequence[ConfirmRow]) -> str:
    """Says what the numbers are: device and kind of time, samples, processes, clock."""
    timed = [row for row in rows if row.interval is not None]
    if not timed:
        return "No elite could be timed."
    places = sorted(
        {
            (row.environment.device, formatting.time_kind(row.environment.device_kind))
            for row in timed
        }
    )
    where = "; ".join(f"{name or 'unnamed device'} ({kind})" for name, kind in places)
    blocks = _span([row.interval.blocks for row in timed if row.interval])
    processes = _span([row.processes for row in timed])
    clocks = ", ".join(sorted({row.clock for row in timed if row.clock})) or "unknown"
    parts = [
        f"Measured on {where}, clock {clocks}",
        f"{blocks} interleaved blocks from {processes} fresh process(es) per elite",
        f"{CONFIDENCE} intervals over blocks",
        "fresh inputs",
    ]
    if any(item.confirm_only for row in timed for item in row.workloads):
        parts.append("* = workload never used in the search")
    return "; ".join(parts) + "."


def confirm_table(rows: Sequence[ConfirmRow], title: str = "Confirmed elites") -> Table:
    """Builds the table for a terminal: one block of lines per elite, one line per workload."""
    table = Table(title=title, caption=confirm_caption(rows), caption_justify="left")
    for name in ("elite", "cell", "workload"):
        table.add_column(name, no_wrap=True)
    for name in ("baseline", "latency", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in rows:
        style = "green" if row.confirmed else "yellow" if row.interval else "red"
        verdict = row.verdict + (f": {row.message}" if row.interval is None and row.message else "")
        table.add_row(
            row.candidate.id,
            cell_key(row.cell),
            f"all {len(row.workloads)}" if row.workloads else "-",
            "",
            "",
            Text(formatting.speedup(row.interval), style="bold"),
            Text(verdict, style=style),
            end_section=not row.workloads,
        )
        for item in row.workloads:
            table.add_row(
                "",
                "",
                item.workload + ("*" if item.confirm_only else ""),
                formatting.latency(item.baseline_us),
                formatting.latency(item.latency_us),
                workload_speedup(item),
                "",
                end_section=item is row.workloads[-1],
            )
    return table


def workload_speedup(item: ConfirmWorkload) -> str:
    """Formats one workload's speed-up, with its interval where there is one."""
    if item.interval is not None:
        return formatting.speedup(item.interval)
    return f"{item.baseline_us / item.latency_us:.2f}x" if item.latency_us > 0 else "-"


def confirm_lines(rows: Sequence[ConfirmRow]) -> list[str]:
    """Formats the rows as plain lines, for logs and pipes."""
    lines = []
    for row in rows:
        name = f"{row.candidate.id} cell {cell_key(row.cell)}"
        if row.interval is None:
            lines.append(f"{name}: {row.verdict}" + (f": {row.message}" if row.message else ""))
            continue
        lines.append(
            f"{name}: {formatting.speedup(row.interval)} {row.verdict}"
            f" (search said {formatting.speedup(row.search)} on its own workloads)"
        )
        lines.extend(
            f"  {item.workload}{'*' if item.confirm_only else ''}:"
            f" {formatting.latency(item.latency_us)}"
            f" against {formatting.latency(item.baseline_us)}, {workload_speedup(item)}"
            for item in row.workloads
        )
    return [*lines, confirm_caption(rows)]


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def save_rows(path: Path, rows: Sequence[ConfirmRow]) -> None:
    """Writes rows as JSON, all or nothing."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(to_json(list(rows)))
    partial.replace(path)


def load_rows(path: Path) -> list[ConfirmRow]:
    """Reads rows written by `save_rows`.

    Raises:
        ProtocolError: If the file does not hold such rows.
    """
    return from_json(path.read_bytes(), list[ConfirmRow])

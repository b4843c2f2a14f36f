"""report.html: one file that holds a run's outcome, opens anywhere and fetches nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from evo import formatting
from evo.archives.base import Elite
from evo.confirm import ConfirmRow, confirm_caption, workload_speedup
from evo.descriptor import DEFAULT_DESCRIPTOR, cell_key
from evo.evaluation import Correctness, EvaluationStatus, Resources
from evo.lineage import lineage, lineage_text
from evo.tracking.base import RunInfo, RunSummary
from evo.tracking.charts import Point, factor_ticks, line_chart
from evo.tracking.heatmap import AxisLike, colour_hex
from evo.tracking.report_page import PAGE
from evo.tracking.tables import by_speedup

_MEANING = {
    EvaluationStatus.OK: "correct, and timed",
    EvaluationStatus.INVALID: "rejected before compilation",
    EvaluationStatus.COMPILE_ERROR: "the compiler refused it",
    EvaluationStatus.INCORRECT: "wrong or unwritten output",
    EvaluationStatus.RUNTIME_ERROR: "the launch failed or the kernel crashed",
    EvaluationStatus.TIMEOUT: "did not end in time",
    EvaluationStatus.HACK: "broke the rules of a fair measurement",
    EvaluationStatus.INFRA_ERROR: "worker or network failed; not the kernel's doing",
}
_LEXERS = {"triton": "python", "cuda": "c", "hip": "c", "opencl": "c", "sycl": "cpp"}
_ELITE_COLUMNS = (
    *("elite", "cell", "speed-up (search)", "lower bound", "confirm"),
    *("template", "parameters", "operator"),
)
_STATUS_CLASS = {"finished": "good", "stopped": "warn", "failed": "bad"}


def render_report(
    info: RunInfo, summary: RunSummary, axes: Sequence[AxisLike] = DEFAULT_DESCRIPTOR.axes
) -> str:
    """Renders the report.

    Args:
        info: What was known at the start.
        summary: What came out.
        axes: The archive's two or three axes.

    Returns:
        A whole HTML page; every text from outside is escaped.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    elites = by_speedup(summary.elites)
    listed = {elite.candidate.id for elite in elites}
    return environment.from_string(PAGE).render(
        title=f"{info.task} on {info.backend}: Kernel Elites",
        info=info,
        summary=summary,
        status_class=_STATUS_CLASS[summary.status],
        time_kind=formatting.time_kind(summary.device.kind),
        cards=_cards(summary),
        confirm=[_confirm_row(row, listed) for row in summary.confirm],
        confirm_caption=confirm_caption(summary.confirm),
        archive_line=f"{summary.stats.num_elites} of {summary.stats.cells} cells",
        slices=_slices(elites, axes),
        axis_names=[axis.name for axis in axes],
        charts=_charts(summary.logbook),
        outcomes=_outcomes(summary.status_counts),
        outcome_line=f"{sum(summary.status_counts.values())} results",
        elite_columns=_ELITE_COLUMNS,
        numeric=(2, 3),
        elites=[_elite(elite, info, summary, axes) for elite in elites],
        facts=_facts(info, summary),
    )


def _cards(summary: RunSummary) -> list[dict[str, str]]:
    confirmed = [row for row in summary.confirm if row.confirmed and row.interval]
    if confirmed:
        top = max(confirmed, key=lambda row: row.interval.low if row.interval else 0.0)
        best = formatting.speedup(top.interval)
        note = f"confirmed, {top.candidate.id}"
    else:
        best = formatting.speedup(summary.stats.best)
        note = "none confirmed" if summary.confirm else "search estimate, not confirmed"
    counts = summary.status_counts
    judged = sum(counts.values()) - counts.get(EvaluationStatus.INFRA_ERROR.value, 0)
    valid = counts.get(EvaluationStatus.OK.value, 0) / judged if judged else None
    rate = summary.evaluations / summary.elapsed_s if summary.elapsed_s > 0 else None
    return [
        {"name": "Best speed-up", "value": best, "note": note},
        {
            "name": "Cells filled",
            "value": f"{summary.stats.num_elites} / {summary.stats.cells}",
            "note": f"QD score {summary.stats.qd_score:.2f}",
        },
        {
            "name": "Evaluations",
            "value": str(summary.evaluations),
            "note": f"{rate:.1f} per second" if rate else "",
        },
        {"name": "Correct", "value": formatting.percent(valid), "note": "of all results"},
        {"name": "Search time", "value": formatting.duration(summary.elapsed_s), "note": ""},
    ]


def _confirm_row(row: ConfirmRow, listed: set[str]) -> dict[str, Any]:
    verdict_class = "good" if row.confirmed else "warn" if row.interval else "bad"
    verdict = row.verdict
    if row.interval is None and row.message:
        verdict += f": {row.message}"
    samples = f"{row.interval.blocks} blocks, {row.processes} processes" if row.interval else ""
    return {
        "id": row.candidate.id,
        "listed": row.candidate.id in listed,
        "cell": cell_key(row.cell),
        "scope": f"all {len(row.workloads)}" if row.workloads else "-",
        "speedup": formatting.speedup(row.interval),
        "verdict": verdict,
        "verdict_class": verdict_class,
        "search": formatting.speedup(row.search),
        "samples": samples or f"{row.checks} checks passed",
        "workloads": [
            {
                "workload": item.workload,
                "confirm_only": item.confirm_only,
                "baseline": formatting.latency(item.baseline_us),
                "latency": formatting.latency(item.latency_us),
                "speedup": workload_speedup(item),
                "sol": _sol(item.sol_fraction, item.bound.value if item.bound else ""),
            }
            for item in row.workloads
        ],
    }


def _sol(fraction: float | None, bound: str) -> str:
    return "-" if fraction is None else f"{formatting.percent(fraction)} {bound}".strip()


def _slices(elites: Sequence[Elite], axes: Sequence[AxisLike]) -> list[dict[str, Any]]:
    by_cell = {elite.cell: elite for elite in elites}
    values = [elite.objective.mean for elite in elites]
    best = elites[0] if elites else None
    last = axes[2] if len(axes) == 3 else None
    slices = []
    for index in range(len(last.levels) if last else 1):
        suffix = (index,) if last else ()
        rows = []
        for row in reversed(range(len(axes[0].levels))):  # level 0 at the bottom, as in the picture
            cells = []
            for column in range(len(axes[1].levels)):
                elite = by_cell.get((row, column, *suffix))
                cells.append(_map_cell(elite, values, elite is best))
            rows.append({"name": axes[0].levels[row], "cells": cells})
        name = f"{last.name}: {last.levels[index]}" if last else ""
        slices.append({"name": name, "rows": rows, "columns": list(axes[1].levels)})
    return slices


def _map_cell(elite: Elite | None, values: Sequence[float], best: bool) -> dict[str, Any]:
    if elite is None:
        return {"id": ""}
    colour, dark = colour_hex(elite.objective.mean, values)
    return {
        "id": elite.candidate.id,
        "colour": colour,
        "shade": "dark" if dark else "light",
        "best": best,
        "text": formatting.ratio(elite.objective.mean),
        "tip": f"{elite.candidate.id} {formatting.speedup(elite.objective)}"
        f" {elite.candidate.genome.template}",
    }


def _charts(logbook: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    best = [
        Point(x=row["evaluations"], y=row["best_mean"], low=_low(row), high=_high(row))
        for row in logbook
        if _finite(row, "evaluations") and _finite(row, "best_mean")
    ]
    low = min([0.0, *(p.y if p.low is None else p.low for p in best)])
    high = max([0.0, *(p.y if p.high is None else p.high for p in best)])
    charts = [
        {
            "name": "Best speed-up so far, with its interval",
            "svg": line_chart(
                best,
                label="best speed-up",
                y_text=formatting.ratio,
                ticks=factor_ticks(low, high),
            ),
        }
    ]
    for name, key, y_text in (
        ("Cells filled", "coverage", formatting.percent),
        ("Correct results", "valid_rate", formatting.percent),
        ("QD score", "qd_score", lambda value: f"{value:g}"),
    ):
        points = [
            Point(x=row["evaluations"], y=row[key])
            for row in logbook
            if _finite(row, "evaluations") and _finite(row, key)
        ]
        if points:
            charts.append({"name": name, "svg": line_chart(points, label=name, y_text=y_text)})
    return charts


def _finite(row: Mapping[str, float], key: str) -> bool:
    value = row.get(key)
    return value is not None and math.isfinite(value)


def _low(row: Mapping[str, float]) -> float | None:
    return row["best_low"] if _finite(row, "best_low") else None


def _high(row: Mapping[str, float]) -> float | None:
    return row["best_high"] if _finite(row, "best_high") else None


def _outcomes(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    most = max([1, *counts.values()])
    return [
        {
            "name": status.value,
            "count": counts.get(status.value, 0),
            "width": round(300 * counts.get(status.value, 0) / most),
            "meaning": meaning,
        }
        for status, meaning in _MEANING.items()
        if counts.get(status.value, 0) or status is EvaluationStatus.OK
    ]


def _elite(
    elite: Elite, info: RunInfo, summary: RunSummary, axes: Sequence[AxisLike]
) -> dict[str, Any]:
    genome = elite.candidate.genome
    timing = elite.evaluation.timing
    objective = elite.objective
    rows = {row.candidate.id: row for row in summary.confirm}
    verdict = rows[elite.candidate.id].verdict if elite.candidate.id in rows else ""
    candidates = {elite.candidate.id: elite.candidate, **summary.candidates}
    columns = [
        (elite.candidate.id, elite.candidate.id),
        (cell_key(elite.cell), cell_key(elite.cell)),
        (objective.mean, formatting.speedup(objective)),
        (objective.low, formatting.ratio(objective.low)),
        (verdict, verdict),
        (genome.template, genome.template),
        (formatting.params(genome.params), formatting.params(genome.params)),
        (elite.candidate.operator, elite.candidate.operator),
    ]
    source = summary.sources.get(elite.candidate.id, "")
    return {
        "id": elite.candidate.id,
        "columns": [{"key": key, "text": text} for key, text in columns],
        "levels": ", ".join(
            f"{axis.name}: {axis.levels[level]}"
            for axis, level in zip(axes, elite.cell, strict=True)
        ),
        "speedup": formatting.speedup(objective),
        "samples": f"{objective.blocks} blocks, clock {timing.clock or 'unknown'}"
        if timing
        else "",
        "params": [(name, formatting.value_text(value)) for name, value in genome.params.items()],
        "workloads": [
            {
                "workload": item.workload,
                "baseline": formatting.latency(item.baseline_us),
                "latency": formatting.latency(item.latency_us),
                "speedup": f"{item.baseline_us / item.latency_us:.2f}x",
                "sol": _sol(item.sol_fraction, item.bound.value if item.bound else ""),
            }
            for item in (timing.workloads if timing else ())
        ],
        "resources": resources_text(elite.evaluation.resources),
        "correctness": correctness_text(elite.evaluation.correctness),
        "lineage": lineage_text(lineage(elite.candidate.id, candidates)),
        "template": genome.template,
        "source": highlight_source(source, info.backend) if source else "",
    }


def resources_text(resources: Resources | None) -> str:
    """Formats what the compiler reported: "registers 32, local_mem_bytes 4096"."""
    if resources is None:
        return "not reported"
    values = {name: getattr(resources, name) for name in Resources.__dataclass_fields__}
    known = [f"{name} {value:g}" for name, value in values.items() if value is not None]
    return ", ".join(known) or "not reported"


def correctness_text(correctness: Correctness | None) -> str:
    """Formats the evidence for correctness on one line."""
    if correctness is None:
        return "not checked"
    parts = [f"{correctness.checks} checks {'passed' if correctness.passed else 'not passed'}"]
    if correctness.max_rel is not None:
        parts.append(
            f"worst error {correctness.max_rel:.1e} of {correctness.tolerance:.1e} allowed"
        )
    if correctness.worst:
        parts.append(f"at {correctness.worst}")
    parts.append("bit-reproducible" if correctness.deterministic else "not bit-reproducible")
    return ", ".join(parts)


def highlight_source(source: str, backend: str) -> Markup:
    """Colours source as HTML; the formatter escapes it."""
    lexer = get_lexer_by_name(_LEXERS.get(backend, "c"), stripnl=False)
    return Markup(highlight(source, lexer, HtmlFormatter(nowrap=True)))


def _facts(info: RunInfo, summary: RunSummary) -> list[tuple[str, str]]:
    device = summary.device
    facts = [
        ("command", info.command),
        ("device", f"{formatting.device(device)}, {device.compute_units} compute units"),
        ("platform", device.platform),
        ("driver", device.driver),
    ]
    if device.bandwidth_gbs:
        facts.append(("copy bandwidth", f"{device.bandwidth_gbs:.1f} GB/s (measured)"))
    if device.peak_gflops:
        facts.append(("fp32 peak", f"{device.peak_gflops:.1f} GFLOP/s (measured)"))
    versions = ", ".join(f"{name} {version}" for name, version in info.versions.items())
    facts += [
        ("seed", str(info.seed)),
        ("run", f"{info.run_name} in {info.run_dir}"),
        ("commit", info.git_sha),
        ("versions", versions),
    ]
    return [(name, value) for name, value in facts if value]

"""What a run leaves in its folder besides the journal: for people, and for `kelites-elites`.

outcome.json (everything below, re-readable), report.html, heatmap.png, archive.csv, confirm.json
and elites/<id>.<ext> with the rendered sources.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import msgspec

from evo import formatting
from evo.confirm import save_rows
from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.errors import ConfigError, ProtocolError
from evo.job import DeviceInfo
from evo.serial import from_builtins
from evo.tracking.base import RunInfo, RunSummary
from evo.tracking.heatmap import AxisLike, archive_figure, figure_png
from evo.tracking.report import render_report
from evo.tracking.tables import elites_csv, kernel_file

OUTCOME_FILE = "outcome.json"
OUTCOME_SCHEMA = "kelites-outcome-1"


def write_run_files(
    info: RunInfo, summary: RunSummary, axes: Sequence[AxisLike] = DEFAULT_DESCRIPTOR.axes
) -> None:
    """Writes all files of a run's end into `info.run_dir`; a later end overwrites them.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder = info.run_dir
    picture = archive_figure(
        summary.elites,
        axes,
        f"{info.task} on {info.backend}: {summary.stats.num_elites} of {summary.stats.cells} cells"
        f", best {formatting.speedup(summary.stats.best)}",
        f"{formatting.device(summary.device)}, {summary.evaluations} evaluations, seed {info.seed}",
    )
    _replace(folder / "heatmap.png", figure_png(picture))
    names = [axis.name for axis in axes]
    _replace(folder / "archive.csv", elites_csv(summary.elites, names).encode())
    _replace(folder / "report.html", render_report(info, summary, axes).encode())
    if summary.confirm:
        save_rows(folder / "confirm.json", summary.confirm)
    sources = folder / "elites"
    sources.mkdir(exist_ok=True)
    for elite in summary.elites:
        if text := summary.sources.get(elite.candidate.id):
            name = kernel_file(elite.candidate.id, info.backend).removesuffix(".txt")
            (sources / name).write_text(text, encoding="utf-8")
    # Not evo.serial, which sorts keys: parameters keep the template's order for readers.
    started = {
        field.name: msgspec.to_builtins(getattr(info, field.name))
        for field in fields(RunInfo)
        if field.name not in ("run_dir", "config")
    }
    started["config"] = {name: _plain(value) for name, value in info.config.items()}
    record = {"schema": OUTCOME_SCHEMA, "info": started, "summary": msgspec.to_builtins(summary)}
    _replace(folder / OUTCOME_FILE, json.dumps(record).encode())


def read_outcome(run_dir: Path) -> tuple[RunInfo, RunSummary]:
    """Reads what `write_run_files` wrote.

    Raises:
        ConfigError: If the file is missing, damaged or of another version.
    """
    path = run_dir / OUTCOME_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != OUTCOME_SCHEMA:
            raise ConfigError(
                f"{path}: schema {record['schema']!r}, this version reads {OUTCOME_SCHEMA!r}"
            )
        started = {**record["info"], "run_dir": run_dir}
        started["device"] = from_builtins(started["device"], DeviceInfo)
        return RunInfo(**started), from_builtins(record["summary"], RunSummary)
    except (OSError, ValueError, KeyError, TypeError, ProtocolError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _plain(value: object) -> object:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _replace(path: Path, content: bytes) -> None:
    """Writes all or nothing: a crash leaves the old file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)

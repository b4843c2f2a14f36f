"""What a run leaves behind: archive files, report, and the lines printed at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evo import formatting
from evo.archives.grid import GridArchive
from evo.confirm import ConfirmRow, confirm_lines, confirm_table
from evo.driver import Progress
from evo.errors import JournalError
from evo.tracking.base import RunInfo, RunSummary
from evo.tracking.files import write_run_files


def write_archive(run_dir: Path, archive: GridArchive) -> None:
    """Writes archive.json, all or nothing.

    Raises:
        JournalError: If the directory cannot be written.
    """
    partial = run_dir / "archive.json.partial"
    try:
        partial.write_text(archive.to_json() + "\n", encoding="utf-8")
        partial.replace(run_dir / "archive.json")
    except OSError as error:
        raise JournalError(f"{run_dir}: archive.json cannot be written: {error.strerror}") from None


def write_files(run_dir: Path, info: RunInfo, summary: RunSummary, archive: GridArchive) -> None:
    """Writes archive.json and what `write_run_files` lists.

    Raises:
        JournalError: If the directory cannot be written; the journal itself is complete.
    """
    write_archive(run_dir, archive)
    try:
        write_run_files(info, summary)
    except OSError as error:
        raise JournalError(
            f"{run_dir}: the report cannot be written ({error.strerror}); the journal is complete, "
            f"so make room and run: kelites resume={run_dir}"
        ) from None


def print_outcome(
    run_dir: Path, summary: RunSummary, progress: Progress, rows: Sequence[ConfirmRow]
) -> None:
    """Prints how the run ended, the confirmed elites, and what to do next."""
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    stats = summary.stats
    say(
        f"{summary.status}: {summary.message}. {progress.evaluations} evaluations "
        f"({progress.duels} duels) and {progress.inherited} inherited results in "
        f"{formatting.duration(progress.elapsed_s)}; {stats.num_elites} of {stats.cells} cells "
        f"filled; device: {formatting.device(summary.device)}"
    )
    if rows and console.is_terminal:
        console.print(confirm_table(rows))
    elif rows:
        for line in confirm_lines(rows):
            say(line)
    if summary.status == "finished":
        say(f"elites: kelites-elites list {run_dir}   report: {run_dir}/report.html")
    else:
        say(f"nothing is lost; continue with: kelites resume={run_dir}")

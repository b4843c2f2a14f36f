"""What `kelites-elites` shows of a run folder: the elites, one candidate, the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from evo import formatting
from evo.archives.base import Elite
from evo.archives.grid import GridArchive
from evo.confirm import ConfirmRow, workload_speedup
from evo.descriptor import DEFAULT_DESCRIPTOR, Descriptor, cell_key
from evo.errors import ConfigError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.genome import Candidate
from evo.job import DeviceInfo
from evo.journal import JOURNAL_FILE, Event, read_events
from evo.lineage import lineage, lineage_text
from evo.serial import from_builtins
from evo.tracking.files import OUTCOME_FILE, read_outcome
from evo.tracking.report import correctness_text, resources_text
from evo.tracking.tables import by_speedup

ARCHIVE_FILE = "archive.json"

SORTS = ("speedup", "cell", "id", "template")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as its folder shows it, finished or not.

    Attributes:
        run_dir: The folder.
        title: "softmax on opencl", or the folder's name while nothing better is known.
        status: "finished", "stopped", "failed", or "unfinished" when there is no outcome yet.
        message: Why it ended.
        device: Device with its kind of time.
        elites: The archive.
        candidates: Every candidate asked for, by id.
        evaluations: Candidate id -> its latest evaluation that was no duel.
        confirm: Candidate id -> row of the confirm pass.
        sources: Candidate id -> rendered source.
        backend: Backend name.
    """

    run_dir: Path
    title: str
    status: str
    message: str = ""
    device: str = ""
    elites: tuple[Elite, ...] = ()
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    confirm: Mapping[str, ConfirmRow] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    backend: str = ""

    def elite(self, candidate_id: str) -> Elite | None:
        """Returns the elite made of a candidate, if it is one."""
        for elite in self.elites:
            if elite.candidate.id == candidate_id:
                return elite
        return None


def load_run(run_dir: Path) -> RunView:
    """Reads a run folder; a run that still goes on, or was killed, shows what is there.

    Raises:
        ConfigError: If the folder holds no run.
        JournalError: If the journal is damaged.
        ArchiveError: If archive.json is damaged.
    """
    if not (run_dir / JOURNAL_FILE).is_file():
        raise ConfigError(f"{run_dir}: no run there ({JOURNAL_FILE} is missing)")
    events = read_events(run_dir)
    header = events[0].data
    candidates, evaluations, confirmed = _from_journal(events)
    if (run_dir / OUTCOME_FILE).is_file():
        info, summary = read_outcome(run_dir)
        rows = {row.candidate.id: row for row in summary.confirm}
        return RunView(
            run_dir=run_dir,
            title=f"{info.task} on {info.backend}",
            status=summary.status,
            message=summary.message,
            device=formatting.device(summary.device),
            elites=tuple(summary.elites),
            candidates={**summary.candidates, **candidates},
            evaluations=evaluations,
            confirm=rows or confirmed,
            sources=summary.sources,
            backend=info.backend,
        )
    archive = run_dir / ARCHIVE_FILE
    return RunView(
        run_dir=run_dir,
        title=f"{header.get('task', run_dir.name)} on {header.get('backend', '?')}",
        status="unfinished",
        message="it still goes on, or resume it to complete it",
        device=formatting.device(from_builtins(header["device"], DeviceInfo))
        if "device" in header
        else "",
        elites=tuple(GridArchive.from_json(archive.read_text(encoding="utf-8")))
        if archive.is_file()
        else (),
        candidates=candidates,
        evaluations=evaluations,
        confirm=confirmed,
        backend=header.get("backend", ""),
    )


def _from_journal(
    events: Iterable[Event],
) -> tuple[dict[str, Candidate], dict[str, Evaluation], dict[str, ConfirmRow]]:
    """Collects candidates, their evaluations and confirm rows.

    Duels are left out, they say nothing new about a kernel; of several confirm passes the last
    one counts.
    """
    candidates: dict[str, Candidate] = {}
    evaluations: dict[str, Evaluation] = {}
    confirmed: dict[str, ConfirmRow] = {}
    asked: dict[str, str] = {}
    for event in events:
        if event.kind == "ask":
            trial = event.data["trial"]
            candidate = from_builtins(trial["candidate"], Candidate)
            candidates[candidate.id] = candidate
            if trial.get("incumbent") is None:
                asked[trial["id"]] = candidate.id
        elif event.kind == "tell" and event.data["trial"] in asked:
            evaluation = from_builtins(event.data["evaluation"], Evaluation)
            evaluations[asked[event.data["trial"]]] = evaluation
        elif event.kind == "confirm":
            row = from_builtins(event.data, ConfirmRow)
            confirmed[row.candidate.id] = row
    return candidates, evaluations, confirmed


def find_candidate(view: RunView, name: str) -> str:
    """Turns what a user typed into a candidate id.

    Args:
        view: The run.
        name: An id ("c000017"), its number ("17"), a cell ("1-2-0"), or "best": the elite with
            the highest confirmed lower bound, or the search's if none is confirmed.

    Raises:
        ConfigError: If nothing has that name.
    """
    if name == "best":
        confirmed = [row for row in view.confirm.values() if row.confirmed]
        if confirmed:
            best = max(confirmed, key=lambda row: row.interval.low if row.interval else 0.0)
            return best.candidate.id
        if view.elites:
            return by_speedup(view.elites)[0].candidate.id
        raise ConfigError(f"{view.run_dir}: the archive is empty, there is no best elite")
    for elite in view.elites:
        if cell_key(elite.cell) == name:
            return elite.candidate.id
    known = {**view.candidates, **{elite.candidate.id: None for elite in view.elites}}
    if name in known:
        return name
    if name.isdigit():
        for candidate_id in known:
            if candidate_id.lstrip("c").lstrip("0") == name.lstrip("0"):
                return candidate_id
    raise ConfigError(
        f"{view.run_dir}: no candidate {name!r}; allowed are an id such as c000017, its number, "
        "a cell such as 1-2-0, or best"
    )


def sort_elites(elites: Iterable[Elite], sort: str = "speedup") -> list[Elite]:
    """Sorts elites by one of `SORTS`; speed-up is by lower bound, best first.

    Raises:
        ConfigError: If the key is unknown.
    """
    ranked = by_speedup(elites)
    if sort == "speedup":
        return ranked
    if sort == "cell":
        return sorted(ranked, key=lambda elite: elite.cell)
    if sort == "id":
        return sorted(ranked, key=lambda elite: elite.candidate.id)
    if sort == "template":
        return sorted(ranked, key=lambda elite: elite.candidate.genome.template)
    raise ConfigError(f"sort={sort!r}: allowed are {', '.join(SORTS)}")


def elites_table(
    view: RunView,
    *,
    sort: str = "speedup",
    top: int | None = None,
    descriptor: Descriptor = DEFAULT_DESCRIPTOR,
) -> Table:
    """Builds the table of a run's elites, one a line.

    Raises:
        ConfigError: If the sort key is unknown.
    """
    elites = sort_elites(view.elites, sort)[:top]
    confirmed = bool(view.confirm)
    table = Table(title=headline(view), caption=_caption(view), caption_justify="left")
    table.add_column("elite", no_wrap=True)
    table.add_column("cell", no_wrap=True)
    table.add_column("behaviour")
    table.add_column("search", justify="right", no_wrap=True)
    if confirmed:
        table.add_column("confirmed", justify="right", no_wrap=True)
    table.add_column("template")
    table.add_column("parameters")
    for elite in elites:
        cells: list[RenderableType] = [
            elite.candidate.id,
            cell_key(elite.cell),
            descriptor.describe(elite.cell),
            formatting.speedup(elite.objective),
        ]
        if confirmed:
            cells.append(_confirmed(view.confirm.get(elite.candidate.id)))
        genome = elite.candidate.genome
        table.add_row(*cells, Text(genome.template), Text(formatting.params(genome.params)))
    return table


def headline(view: RunView) -> str:
    """Says what run this is, and whether it is complete."""
    return f"{view.title}: {len(view.elites)} elites, {view.status}"


def _caption(view: RunView) -> str:
    counts = Counter(evaluation.status.value for evaluation in view.evaluations.values())
    outcomes = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    lines = [f"Measured on {view.device or 'an unknown device'}. Candidates: {outcomes or 'none'}."]
    lines.append("Search speed-ups favour lucky measurements; quote confirmed ones.")
    if view.message:
        lines.append(f"Run {view.status}: {view.message}.")
    return "\n".join(lines)


def _confirmed(row: ConfirmRow | None) -> Text:
    if row is None:
        return Text("-", style="dim")
    if row.interval is None:
        return Text(row.verdict, style="red")
    text = formatting.speedup(row.interval)
    if row.confirmed:
        return Text(text, style="green")
    return Text(f"{text} {row.verdict}", style="yellow")


def candidate_view(
    view: RunView, candidate_id: str, descriptor: Descriptor = DEFAULT_DESCRIPTOR
) -> RenderableType:
    """Shows one candidate: outcome, parameters, timings, lineage, compiler log, source.

    Raises:
        ConfigError: If the run has no such candidate.
    """
    elite = view.elite(candidate_id)
    candidate = elite.candidate if elite else view.candidates.get(candidate_id)
    if candidate is None:
        raise ConfigError(f"{view.run_dir}: no candidate {candidate_id!r}")
    evaluation = elite.evaluation if elite else view.evaluations.get(candidate_id)
    row = view.confirm.get(candidate_id)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for name, value in _facts(candidate, elite, evaluation, row, descriptor):
        facts.add_row(name, Text(value))
    parts: list[RenderableType] = [Text(candidate_id, style="bold"), facts]
    if (timings := _timings(evaluation, row)) is not None:
        parts.append(timings)
    parts += [Text("Lineage", style="bold"), Text(lineage_text(lineage(candidate_id, _all(view))))]
    if evaluation is not None and evaluation.log and evaluation.status is not EvaluationStatus.OK:
        parts += [Text("Log", style="bold"), Text(evaluation.log.rstrip())]
    if source := view.sources.get(candidate_id):
        language = "python" if view.backend == "triton" else "c"
        parts += [Text("Source", style="bold"), Syntax(source, language, theme="ansi_dark")]
    return Group(*parts)


def _all(view: RunView) -> dict[str, Candidate]:
    return {**{e.candidate.id: e.candidate for e in view.elites}, **view.candidates}


def _facts(
    candidate: Candidate,
    elite: Elite | None,
    evaluation: Evaluation | None,
    row: ConfirmRow | None,
    descriptor: Descriptor,
) -> list[tuple[str, str]]:
    facts = [
        ("template", candidate.genome.template),
        ("parameters", formatting.params(candidate.genome.params)),
        ("made by", f"{candidate.operator} {candidate.note}".strip()),
    ]
    if elite is not None:
        facts += [
            ("cell", f"{cell_key(elite.cell)} ({descriptor.describe(elite.cell)})"),
            ("search", f"{formatting.speedup(elite.objective)}, {elite.objective.blocks} blocks"),
        ]
    if row is not None:
        text = f"{formatting.speedup(row.interval)} {row.verdict}"
        facts.append(("confirm", f"{text}: {row.message}" if row.message else text))
    if evaluation is None:
        facts.append(("outcome", "not evaluated"))
    elif evaluation.status is EvaluationStatus.OK:
        facts.append(("checks", correctness_text(evaluation.correctness)))
        facts.append(("compiler", resources_text(evaluation.resources)))
    else:
        facts.append(("outcome", f"{evaluation.status.value}: {evaluation.message}"))
    if evaluation is not None and evaluation.inherited_from:
        facts.append(("measured as", f"{evaluation.inherited_from} (identical code)"))
    return facts


def _timings(evaluation: Evaluation | None, row: ConfirmRow | None) -> Table | None:
    timing = evaluation.timing if evaluation else None
    if timing is None and not (row and row.workloads):
        return None
    table = Table(title="Timings", title_justify="left")
    for name in ("workload", "pass"):
        table.add_column(name)
    for name in ("baseline", "latency", "speed-up", "of roofline"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in timing.workloads if timing else ():
        table.add_row(
            item.workload,
            "search",
            formatting.latency(item.baseline_us),
            formatting.latency(item.latency_us),
            f"{item.baseline_us / item.latency_us:.2f}x",
            formatting.percent(item.sol_fraction),
        )
    for entry in row.workloads if row else ():
        table.add_row(
            entry.workload + ("*" if entry.confirm_only else ""),
            "confirm",
            formatting.latency(entry.baseline_us),
            formatting.latency(entry.latency_us),
            workload_speedup(entry),
            formatting.percent(entry.sol_fraction),
        )
    return table


def failures_table(
    view: RunView, statuses: Sequence[EvaluationStatus] = (), top: int | None = None
) -> Table:
    """Builds the table of failed candidates, latest first.

    Args:
        view: The run.
        statuses: Only these; all failures when empty.
        top: Most rows.
    """
    table = Table(title=f"{view.title}: failed candidates")
    for name in ("candidate", "status", "template", "parameters", "message"):
        table.add_column(name)
    failed = [
        (candidate_id, evaluation)
        for candidate_id, evaluation in sorted(view.evaluations.items(), reverse=True)
        if evaluation.status is not EvaluationStatus.OK
        and (not statuses or evaluation.status in statuses)
    ]
    for candidate_id, evaluation in failed[:top]:
        genome = view.candidates[candidate_id].genome
        table.add_row(
            candidate_id,
            evaluation.status.value,
            Text(genome.template),
            Text(formatting.params(genome.params)),
            Text(evaluation.message),
        )
    return table

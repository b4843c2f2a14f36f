"""One run from configuration to report: wires the rooms, then hands over to the driver."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from evo import formatting
from evo.archives.grid import GridArchive
from evo.components import build
from evo.conclusion import print_outcome, write_archive, write_files
from evo.confirm import ConfirmRow, confirm, select_for_confirm
from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.display import Display, ProgressState, make_display
from evo.driver import Driver, Progress
from evo.errors import EvoError
from evo.evaluation import Evaluation
from evo.evaluator import Evaluator
from evo.job import DeviceInfo
from evo.journal import Event, Journal
from evo.logbook import SearchLog
from evo.plan import Plan, begin, make_plan, reopen, resumed_device, run_info
from evo.requests import RequestBuilder
from evo.run_folder import release, require_new
from evo.search import Outcome, Search, TemplateEntry, Trial
from evo.serial import to_builtins
from evo.tracking.base import RunSummary, SafeTracker
from evo.tracking.files import OUTCOME_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run leaves behind.

    Attributes:
        run_dir: Where journal, archive and report lie.
        status: "finished", or "stopped" when it was interrupted and can be resumed.
        qd_score: The archive's QD score.
    """

    run_dir: Path
    status: str
    qd_score: float


def run_search(config: DictConfig, *, run_dir: Path, resume: bool = False) -> RunResult:
    """Runs or continues a search.

    Args:
        config: Composed configuration (see conf/config.yaml), or a saved one.
        run_dir: Where the run lives; new or empty unless `resume`.
        resume: Continue from the journal in `run_dir`.

    Raises:
        EvoError: Whatever is somebody's to mend; what was journalled stays.
    """
    return asyncio.run(_run(config, run_dir, resume))


async def _run(config: DictConfig, run_dir: Path, resume: bool) -> RunResult:
    if not resume:
        require_new(run_dir)
    plan = make_plan(config, run_dir, begun=resume)
    display = make_display(str(config.display))
    evaluator: Evaluator = build(config.workers)
    tracker = SafeTracker(build(config.tracking))
    journal: Journal | None = None
    events: Sequence[Event] = ()
    try:
        if resume:
            journal, header, events = reopen(plan)
        await evaluator.start(plan.task.bundle)
        device = evaluator.device
        if journal is None:
            journal, header = begin(plan, device)
        else:
            device = resumed_device(header, device)
        try:
            run = _Run(plan, device, header, evaluator, journal, tracker, display)
            run.open_tracker()
        except BaseException:
            if not resume:
                release(run_dir)  # nothing was asked yet: leave the folder to a second try
            raise
        return await run.go(events)
    finally:
        display.close()
        tracker.close()
        await evaluator.close()
        if journal is not None:
            journal.close()


class _Run:
    """One process's share of a run: replay, search, confirm, report."""

    def __init__(
        self,
        plan: Plan,
        device: DeviceInfo,
        header: Mapping[str, Any],
        evaluator: Evaluator,
        journal: Journal,
        tracker: SafeTracker,
        display: Display,
    ) -> None:
        self._plan = plan
        self._device = device
        self._evaluator = evaluator
        self._journal = journal
        self._tracker = tracker
        self._display = display
        self._info = run_info(plan, device, header)
        self._archive: GridArchive = build(plan.config.archive)
        self._log = SearchLog(step=plan.search.step)
        self._requests = RequestBuilder(
            task=plan.task,
            templates=plan.known_templates,
            backend=plan.backend,
            device=device,
            settings=plan.limits,
            run_id=header["run_id"],
        )
        self._search = make_search(plan, device, self._archive)
        self._driver = Driver(
            search=self._search,
            archive=self._archive,
            requests=self._requests,
            evaluator=evaluator,
            journal=journal,
            budget=plan.budget,
            listeners=[self._on_tell],
        )
        self._resumed = (0, 0.0)
        self._confirming: asyncio.Task[list[ConfirmRow]] | None = None

    def open_tracker(self) -> None:
        """Starts tracking.

        Raises:
            ConfigError: If the tracker's settings cannot work.
        """
        self._tracker.start(self._info)

    async def go(self, events: Sequence[Event]) -> RunResult:
        """Replays what is recorded, searches on, confirms and reports."""
        (self._plan.run_dir / OUTCOME_FILE).unlink(missing_ok=True)  # it has not ended any more
        self._driver.replay(events)
        progress = self._driver.progress
        self._resumed = (progress.evaluations, progress.elapsed_s)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        rows: list[ConfirmRow] = []
        status, message = "failed", "unexpected error"
        try:
            self._show("search")
            message = await self._driver.run()
            if not self._driver.interrupted:
                rows = await self._confirm()
            status = "stopped" if self._driver.interrupted else "finished"
        except EvoError as error:
            message = str(error)
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            self._display.close()
            self._conclude(status, message, rows)
        stats = self._archive.stats()
        return RunResult(run_dir=self._plan.run_dir, status=status, qd_score=stats.qd_score)

    def _interrupt(self) -> None:
        """Ends the run after the first signal; a second one gets the default treatment."""
        self._driver.stop("interrupted")
        if self._confirming is not None:
            self._confirming.cancel()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _on_tell(
        self, trial: Trial, evaluation: Evaluation, outcome: Outcome, progress: Progress
    ) -> None:
        row = self._log.observe(evaluation, self._archive)
        if row is not None:
            self._tracker.step(int(row["step"]), row, self._archive)
            if not progress.replaying:
                # So that `kelites-elites` has the elites of a run that is killed later.
                write_archive(self._plan.run_dir, self._archive)
        if not progress.replaying:
            self._show("search")

    def _show(self, phase: str) -> None:
        progress, stats, best = self._driver.progress, self._archive.stats(), self._archive.best()
        self._display.update(
            ProgressState(
                title=f"{self._plan.task.name} on {self._plan.backend}",
                device=formatting.device(self._device),
                phase=phase,
                evaluations=progress.evaluations,
                budget_evaluations=self._plan.budget.evaluations,
                elapsed_s=progress.elapsed_s,
                budget_s=self._plan.budget.seconds,
                resumed_evaluations=self._resumed[0],
                resumed_s=self._resumed[1],
                status_counts=dict(progress.statuses),
                num_elites=stats.num_elites,
                cells=stats.cells,
                best=stats.best,
                best_id=best.candidate.id if best else "",
                in_flight=progress.in_flight,
                slots=self._evaluator.slots,
            )
        )

    async def _confirm(self) -> list[ConfirmRow]:
        """Measures the top elites again, on fresh inputs and on the confirm workloads."""
        elites = select_for_confirm(self._archive, self._plan.confirm.top)
        if not elites:
            return []
        self._show("confirm")
        limits = self._plan.confirm.limits(self._plan.limits)

        def record(row: ConfirmRow) -> None:
            self._journal.append("confirm", to_builtins(row))

        self._confirming = asyncio.ensure_future(
            confirm(
                elites,
                self._evaluator,
                lambda elite: self._requests.for_confirm(elite.candidate, limits),
                confirm_workloads=[item.name for item in self._plan.task.workloads if item.confirm],
                on_row=record,
            )
        )
        try:
            return await self._confirming
        except asyncio.CancelledError:
            if not self._driver.interrupted:
                raise
            return []

    def _conclude(self, status: str, message: str, rows: Sequence[ConfirmRow]) -> None:
        """Writes archive, report and tracking, and prints the outcome."""
        row = self._log.flush(self._archive)
        if row is not None:
            self._tracker.step(int(row["step"]), row, self._archive)
        progress = self._driver.progress
        summary = RunSummary(
            status=status,
            elites=tuple(self._archive),
            stats=self._archive.stats(),
            device=self._device,
            confirm=rows,
            sources={
                elite.candidate.id: self._requests.source(elite.candidate.genome)
                for elite in self._archive
            },
            candidates=self._search.candidates,
            logbook=self._log.rows(),
            status_counts=dict(progress.statuses),
            evaluations=progress.evaluations,
            elapsed_s=progress.elapsed_s,
            message=message,
        )
        write_files(self._plan.run_dir, self._info, summary, self._archive)
        self._tracker.finish(summary)
        if self._plan.config.display != "none":
            print_outcome(self._plan.run_dir, summary, progress, rows)


def make_search(plan: Plan, device: DeviceInfo, archive: GridArchive) -> Search:
    """Builds the search from its configuration nodes."""
    operators = [build(item) for item in plan.config.operators]
    return Search(
        templates=[
            TemplateEntry(
                name=template.name, hash=template.hash, space=template.space(plan.task, device)
            )
            for template in plan.templates
        ],
        archive=archive,
        operators=operators,
        bandit=build(
            plan.search.bandit, where="search.bandit", names=[item.name for item in operators]
        ),
        descriptor=DEFAULT_DESCRIPTOR,
        rng=np.random.default_rng(plan.seed),
        initial_samples=plan.search.initial_samples,
        duels=plan.search.duels,
        duel_share=plan.search.duel_share,
    )

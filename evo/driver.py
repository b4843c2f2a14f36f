"""The asynchronous loop between search and evaluator, with the journal as the truth.

One candidate's way: `Search.ask` proposes a trial -> rendered -> journalled ("ask") -> evaluated
by a worker -> journalled ("tell") -> `Search.tell` puts it into the archive. The search's state
depends only on the order of asks and tells, so replaying the journal restores it, random state
included; trials that were asked but never told are evaluated again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evo.archives.base import AddStatus, Archive
from evo.budget import Budget
from evo.errors import JournalError, TemplateError
from evo.evaluation import Evaluation, EvaluationStatus
from evo.evaluator import Evaluator
from evo.job import Program
from evo.journal import Event, Journal
from evo.requests import RequestBuilder
from evo.search import Outcome, Search, Trial
from evo.serial import from_builtins, to_builtins


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands; counts survive a resume.

    Attributes:
        evaluations: Trials sent to a worker, failed ones and duels included.
        told: Trials with a result, inherited ones included.
        inherited: Results taken over from identical source, at no cost.
        stagnant: Evaluations since a cell was last opened or improved.
        elapsed_s: Search time, summed over resumes.
        in_flight: Trials being evaluated now.
        statuses: Outcomes by status.
        duels: Duels among the evaluations.
        replaying: The journal is being replayed; listeners need not show anything.
    """

    evaluations: int = 0
    told: int = 0
    inherited: int = 0
    stagnant: int = 0
    elapsed_s: float = 0.0
    in_flight: int = 0
    duels: int = 0
    replaying: bool = False
    statuses: Counter[str] = field(default_factory=Counter)


# What identical source gives again. A crash or a time-out may have had to do with the machine.
_REPEATABLE = frozenset(
    {
        EvaluationStatus.OK,
        EvaluationStatus.INVALID,
        EvaluationStatus.COMPILE_ERROR,
        EvaluationStatus.INCORRECT,
    }
)

Listener = Callable[[Trial, Evaluation, Outcome, Progress], None]


class Driver:
    """Runs a search to the end of its budget, or until `stop` is called.

    Args:
        search: State machine that proposes and learns.
        archive: The archive the search fills (read for racing floors).
        requests: Renders trials.
        evaluator: Started evaluator.
        journal: Open journal; every ask and tell is on disk before it counts.
        budget: When to stop asking.
        listeners: Called after each tell, replayed ones included.
    """

    def __init__(
        self,
        *,
        search: Search,
        archive: Archive,
        requests: RequestBuilder,
        evaluator: Evaluator,
        journal: Journal,
        budget: Budget,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._search = search
        self._archive = archive
        self._requests = requests
        self._evaluator = evaluator
        self._journal = journal
        self._budget = budget
        self._listeners = tuple(listeners)
        self._by_source: dict[str, Evaluation] = {}
        self._source_of: dict[str, str] = {}
        self._unanswered: dict[str, Trial] = {}
        self._stop_reason = ""
        self.progress = Progress()

    @property
    def interrupted(self) -> bool:
        """Whether `stop` was called."""
        return bool(self._stop_reason)

    def stop(self, reason: str) -> None:
        """Asks the loop to end; trials in flight are given up and resumed next time."""
        self._stop_reason = reason

    def replay(self, events: Sequence[Event]) -> None:
        """Feeds journalled asks and tells through the search.

        Raises:
            JournalError: If the search proposes something else than the journal says, which means
                that code, templates or configuration changed since.
        """
        self.progress.replaying = True
        for event in events:
            if event.kind == "ask":
                self._replay_ask(event)
            elif event.kind == "tell":
                trial_id = event.data["trial"]
                trial = self._unanswered.get(trial_id)
                if trial is None:
                    raise JournalError(
                        f"journal event {event.seq}: tell for unknown trial {trial_id}"
                    )
                evaluation = from_builtins(event.data["evaluation"], Evaluation)
                self.progress.elapsed_s = float(event.data["elapsed_s"])
                self._learn(trial, evaluation)
        self.progress.replaying = False

    def _replay_ask(self, event: Event) -> None:
        recorded = from_builtins(event.data["trial"], Trial)
        trial = self._search.ask()
        if trial is None or trial != recorded:
            raise JournalError(
                f"journal event {event.seq}: the search now proposes "
                f"{_describe(trial)} where the journal has {_describe(recorded)}; "
                "code, templates or settings changed since, start a new run"
            )
        self._register(trial, event.data["source"], inherited=event.data["inherited"])

    def _register(self, trial: Trial, source_key: str, *, inherited: bool) -> None:
        self._unanswered[trial.id] = trial
        self._source_of[trial.id] = source_key
        if not inherited:
            self.progress.evaluations += 1
            self.progress.duels += trial.incumbent is not None

    async def run(self) -> str:
        """Runs until the budget is used, the space is exhausted or `stop` is called.

        Returns:
            Why it ended.

        Raises:
            JournalError: If the journal cannot be written; nothing unrecorded has counted.
            WorkerError: If no worker is left.
        """
        started_s = time.monotonic() - self.progress.elapsed_s
        flights: dict[asyncio.Task[Evaluation], Trial] = {}
        for trial in list(self._unanswered.values()):  # asked before the interruption
            self._launch(trial, flights)
        try:
            while True:
                self.progress.elapsed_s = time.monotonic() - started_s
                reason = await self._fill(flights, started_s)
                if not flights or self._stop_reason:
                    return self._stop_reason or reason or "space exhausted: nothing new to try"
                await self._collect(flights, started_s)
        finally:
            for task in flights:
                task.cancel()
            await asyncio.gather(*flights, return_exceptions=True)
            self.progress.in_flight = 0

    async def _fill(self, flights: dict[asyncio.Task[Evaluation], Trial], started_s: float) -> str:
        """Asks until all slots are busy; returns why it stopped asking, if it did."""
        while len(flights) < self._evaluator.slots and not self._stop_reason:
            reason = self._budget.reason_to_stop(
                evaluations=self.progress.evaluations,
                elapsed_s=time.monotonic() - started_s,
                stagnant=self.progress.stagnant,
            )
            if reason:
                return reason
            trial = self._search.ask()
            if trial is None:
                return ""
            self._dispatch(trial, flights, started_s)
            await asyncio.sleep(0)  # many results may be inherited in a row: let signals be heard
        return ""

    def _dispatch(
        self, trial: Trial, flights: dict[asyncio.Task[Evaluation], Trial], started_s: float
    ) -> None:
        """Journals a new trial and sends it off, unless its result is known already."""
        known: Evaluation | None = None
        source_key = ""
        try:
            source_key = self._requests.source_key(self._requests.program(trial.candidate.genome))
            if trial.incumbent is None:
                known = self._by_source.get(source_key)
        except TemplateError as error:
            known = Evaluation(
                job_id="",
                status=EvaluationStatus.INVALID,
                message=str(error),
                stage="render",
                measured=False,
            )
        data = {
            "trial": to_builtins(trial),
            "source": source_key,
            "inherited": known is not None,
        }
        self._journal.append("ask", data)
        self._register(trial, source_key, inherited=known is not None)
        if known is None:
            self._launch(trial, flights)
        else:
            self._record(trial, _inherit(known), started_s)

    def _launch(self, trial: Trial, flights: dict[asyncio.Task[Evaluation], Trial]) -> None:
        program: Program = self._requests.program(trial.candidate.genome)
        request = self._requests.for_trial(trial, program, self._archive)
        flights[asyncio.ensure_future(self._evaluator.evaluate(request))] = trial
        self.progress.in_flight = len(flights)

    async def _collect(
        self, flights: dict[asyncio.Task[Evaluation], Trial], started_s: float
    ) -> None:
        """Waits for results and records them; wakes regularly so that `stop` is heard."""
        done, _ = await asyncio.wait(flights, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=lambda item: flights[item].id):
            trial = flights[task]
            evaluation = (
                task.result()
            )  # before the trial leaves the books: a WorkerError ends the run
            del flights[task]
            self.progress.in_flight = len(flights)
            self._record(trial, evaluation, started_s)

    def _record(self, trial: Trial, evaluation: Evaluation, started_s: float) -> None:
        self.progress.elapsed_s = time.monotonic() - started_s
        self._journal.append(
            "tell",
            {
                "trial": trial.id,
                "evaluation": to_builtins(evaluation),
                "elapsed_s": round(self.progress.elapsed_s, 3),
            },
        )
        self._learn(trial, evaluation)

    def _learn(self, trial: Trial, evaluation: Evaluation) -> None:
        """Tells the search; the same code path serves live results and replayed ones."""
        source_key = self._source_of.pop(trial.id)
        del self._unanswered[trial.id]
        outcome = self._search.tell(trial.id, evaluation)
        if (
            trial.incumbent is None
            and source_key
            and not evaluation.inherited_from
            and evaluation.status in _REPEATABLE
        ):
            self._by_source[source_key] = evaluation
        progress = self.progress
        progress.told += 1
        progress.inherited += bool(evaluation.inherited_from)
        progress.statuses[evaluation.status.value] += 1
        moved = any(_moved(item) for item in (outcome, *outcome.resolved))
        progress.stagnant = 0 if moved else progress.stagnant + 1
        for listener in self._listeners:
            listener(trial, evaluation, outcome, progress)


def _moved(outcome: Outcome) -> bool:
    return outcome.add is not None and outcome.add.status in (AddStatus.NEW, AddStatus.IMPROVED)


def _inherit(known: Evaluation) -> Evaluation:
    """Marks a result as taken over from the job that earned it; it cost nothing this time."""
    if not known.job_id:
        return known
    origin = known.inherited_from or known.job_id
    return replace(known, inherited_from=origin, compile_s=0.0, total_s=0.0)


def _describe(trial: Trial | None) -> str:
    if trial is None:
        return "nothing"
    genome: Any = trial.candidate.genome
    return f"{trial.id} ({trial.purpose.value} {genome.template} {genome.params})"

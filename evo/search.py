"""The search as a state machine: `ask` for a trial, `tell` its evaluation, in any order.

The state depends only on the seed and on the sequence of asks that returned a trial and of tells.
No clock, no global random, no order of hashes enters; replaying a journal restores everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from deap import base

from evo.archives.base import AddResult, AddStatus, Archive, Cell
from evo.bandit import Bandit
from evo.duels import Challenge, DuelQueue
from evo.errors import ConfigError, SearchError
from evo.evaluation import CodeFeatures, Evaluation, EvaluationStatus
from evo.genome import Candidate
from evo.initial import initial_design
from evo.job import Purpose
from evo.selection import EliteSelection
from evo.trial import Outcome, Trial
from evo.variation import (
    Evaluated,
    Operator,
    Proposal,
    SearchView,
    SelectParents,
    TemplateEntry,
    Tier,
    failed_tier,
)

__all__ = ["Outcome", "Search", "TemplateEntry", "Tier", "Trial"]

SEED = "seed"
"""Operator name of the templates' defaults."""
INITIAL = "initial"
"""Operator name of the spread samples that come next."""
MAX_TRIES = 3
"""Evaluations of one candidate that infrastructure may spoil before it is given up."""
KEPT_FAILURES = 64


class PlacesCode(Protocol):
    """The part of a descriptor the search needs."""

    def cell(self, features: CodeFeatures) -> Cell:
        """Returns the cell of a piece of code."""
        ...


class Search:
    """Asynchronous quality-diversity search.

    First every template's defaults, then spread samples, then whatever the bandit's operators
    propose; duels and repeats go before all of these. A genome is proposed once per run.

    Args:
        templates: What may be varied; at least one.
        archive: Filled by `tell`; nobody else may add to it.
        operators: Variation operators, names unique.
        bandit: Shares the evaluations among the operators; its arms are their names.
        descriptor: Maps code features to a cell.
        rng: The run's generator.
        initial_samples: Spread samples after the defaults, over all templates together.
        duels: Settle close calls by a duel; without, the incumbent stays.
        duel_share: Largest share of the trials that may be duels.
        max_attempts: Proposals asked of one operator before another gets its turn.
        selection: How operators choose parents.

    Raises:
        ConfigError: If a setting is out of range, or names do not fit together.
    """

    def __init__(
        self,
        *,
        templates: Sequence[TemplateEntry],
        archive: Archive,
        operators: Sequence[Operator],
        bandit: Bandit,
        descriptor: PlacesCode,
        rng: np.random.Generator,
        initial_samples: int = 16,
        duels: bool = True,
        duel_share: float = 0.3,
        max_attempts: int = 8,
        selection: SelectParents | None = None,
    ) -> None:
        if not templates:
            raise ConfigError("the search needs at least one template")
        if initial_samples < 0 or max_attempts < 1 or not 0.0 <= duel_share <= 1.0:
            raise ConfigError(
                "allowed are initial_samples >= 0, max_attempts >= 1 and duel_share from 0 to 1; "
                f"got {initial_samples}, {max_attempts} and {duel_share}"
            )
        self._templates = tuple(templates)
        self._by_name = {entry.name: entry for entry in self._templates}
        self.archive = archive
        self.bandit = bandit
        self._descriptor = descriptor
        self._rng = rng
        self._max_attempts = max_attempts
        self._duels = DuelQueue(share=duel_share if duels else 0.0)
        self.toolbox = _operator_table(operators, bandit, selection or EliteSelection())
        self._plan = deque(self._opening(initial_samples))
        self._repeats: deque[Trial] = deque()
        self._flights: dict[str, Trial] = {}
        self._challenges: dict[str, Challenge] = {}
        self._evaluated: list[Evaluated] = []
        self._failures: deque[Evaluated] = deque(maxlen=KEPT_FAILURES)
        self._candidates: dict[str, Candidate] = {}
        self._seen: set[str] = set()
        self._asked = 0
        self._starved = False
        self._view = SearchView(
            archive=archive,
            templates=self._templates,
            seen=self._seen,
            evaluated=self._evaluated,
            select=self.toolbox.select,
        )

    @property
    def view(self) -> SearchView:
        """What the operators see; live."""
        return self._view

    @property
    def in_flight(self) -> tuple[Trial, ...]:
        """Trials asked and not told, oldest first."""
        return tuple(self._flights.values())

    @property
    def evaluated(self) -> Sequence[Evaluated]:
        """Every first evaluation of a candidate, oldest first; live, do not change it."""
        return self._evaluated

    @property
    def failures(self) -> tuple[Evaluated, ...]:
        """The latest candidates that failed, oldest first."""
        return tuple(self._failures)

    @property
    def candidates(self) -> dict[str, Candidate]:
        """Every candidate proposed, by id."""
        return dict(self._candidates)

    @property
    def exhausted(self) -> bool:
        """True if `ask` had nothing, nothing is in flight, and so nothing will ever come."""
        return self._starved and not self._flights and not self._repeats

    def ask(self) -> Trial | None:
        """Returns the next trial; None if there is nothing to propose before the next tell.

        An ask that returns None leaves no trace: a replay need not repeat it.
        """
        trial = self._repeat() or self._duel() or self._open() or self._vary()
        trial = trial or self._duel(regardless=True)
        if trial is not None:
            self._flights[trial.id] = trial
            self._asked += 1
        return trial

    def tell(self, trial_id: str, evaluation: Evaluation) -> Outcome:
        """Takes in the evaluation of a trial.

        Raises:
            SearchError: If the trial is not in flight.
        """
        trial = self._flights.pop(trial_id, None)
        if trial is None:
            raise SearchError(f"trial {trial_id!r} is not in flight: unknown, or told before")
        self._starved = False
        if evaluation.status is EvaluationStatus.INFRA_ERROR:
            return self._tell_infrastructure(trial)
        if trial.purpose is Purpose.DUEL:
            return self._tell_duel(trial, evaluation)
        return self._tell_first(trial, evaluation)

    # -- proposing ---------------------------------------------------------------------------

    def _opening(self, initial_samples: int) -> list[tuple[str, Proposal]]:
        defaults = [
            (SEED, Proposal(template=entry.name, params=entry.space.defaults(), note="defaults"))
            for entry in self._templates
        ]
        spread = initial_design(self._templates, initial_samples, self._rng)
        return defaults + [(INITIAL, proposal) for proposal in spread]

    def _repeat(self) -> Trial | None:
        return replace(self._repeats.popleft(), id=self._next_id()) if self._repeats else None

    def _duel(self, *, regardless: bool = False) -> Trial | None:
        challenge = self._duels.pop(trials=self._asked, regardless=regardless)
        if challenge is None:
            return None
        elite = self.archive.get(challenge.cell)
        assert elite is not None  # a cell is never emptied
        trial = Trial(
            id=self._next_id(),
            purpose=Purpose.DUEL,
            candidate=challenge.trial.candidate,
            incumbent=elite.candidate,
        )
        self._challenges[challenge.trial.candidate.id] = challenge
        return trial

    def _open(self) -> Trial | None:
        while self._plan:
            operator, proposal = self._plan.popleft()
            trial = self._admit(operator, proposal)
            if trial is not None:
                return trial
        return None

    def _vary(self) -> Trial | None:
        if self._starved:
            return None
        state = self._rng.bit_generator.state
        arms = list(self.bandit.names)
        while arms:
            name = self.bandit.select(self._rng, arms)
            operator: Callable[..., Proposal | None] = getattr(self.toolbox, name)
            for _ in range(self._max_attempts):
                proposal = operator(self._view, self._rng)
                if proposal is None:
                    break
                trial = self._admit(name, proposal)
                if trial is not None:
                    self.bandit.start(name)
                    return trial
            arms.remove(name)
        self._rng.bit_generator.state = state
        self._starved = True
        return None

    def _admit(self, operator: str, proposal: Proposal) -> Trial | None:
        """Makes a trial of a proposal, unless it is invalid or was seen."""
        entry = self._by_name.get(proposal.template)
        if entry is None or not entry.space.is_valid(proposal.params):
            return None
        genome = entry.genome(proposal.params)
        key = genome.key
        if key in self._seen:
            return None
        self._seen.add(key)
        candidate = Candidate(
            id=f"c{len(self._candidates):06d}",
            genome=genome,
            operator=operator,
            parents=proposal.parents,
            note=proposal.note,
        )
        self._candidates[candidate.id] = candidate
        return Trial(id=self._next_id(), purpose=Purpose.SEARCH, candidate=candidate)

    def _next_id(self) -> str:
        return f"t{self._asked:06d}"

    # -- learning ----------------------------------------------------------------------------

    def _tell_infrastructure(self, trial: Trial) -> Outcome:
        if trial.attempt < MAX_TRIES:
            self._repeats.append(replace(trial, attempt=trial.attempt + 1))
            return Outcome(trial=trial)
        if trial.purpose is not Purpose.DUEL:
            if trial.candidate.operator in self.bandit.names:
                self.bandit.cancel(trial.candidate.operator)
            return Outcome(trial=trial)
        # The challenger is sound, only its duel was not to be had: the incumbent stays.
        challenge = self._challenges.pop(trial.candidate.id)
        self._duels.finish(challenge, lost=False)
        tier = self._credit(challenge.trial.candidate, Tier.CORRECT, challenge.evaluation)
        return Outcome(trial=trial, tier=tier, cell=challenge.cell)

    def _tell_first(self, trial: Trial, evaluation: Evaluation) -> Outcome:
        timing = evaluation.timing
        cell = self._descriptor.cell(evaluation.features) if evaluation.features else None
        record = Evaluated(
            candidate=trial.candidate,
            evaluation=evaluation,
            cell=cell,
            objective=float(np.mean(timing.log_speedups)) if timing else None,
        )
        self._evaluated.append(record)
        if evaluation.status is not EvaluationStatus.OK:
            self._failures.append(record)
            tier = failed_tier(evaluation.status)
            return Outcome(
                trial=trial, tier=self._credit(trial.candidate, tier, evaluation), cell=cell
            )
        if record.objective is None or cell is None:  # compiled only
            passed = evaluation.correctness is not None and evaluation.correctness.passed
            tier = Tier.CORRECT if passed else Tier.FAILED
            return Outcome(
                trial=trial, tier=self._credit(trial.candidate, tier, evaluation), cell=cell
            )
        challenge = Challenge(
            trial=trial,
            evaluation=evaluation,
            cell=cell,
            objective=record.objective,
        )
        return self._offer(trial, challenge)

    def _tell_duel(self, trial: Trial, evaluation: Evaluation) -> Outcome:
        challenge = self._challenges.pop(trial.candidate.id)
        cell, timing = challenge.cell, evaluation.timing
        if evaluation.status is not EvaluationStatus.OK or timing is None:
            # Correct once and not again: it must not hold a cell.
            self._duels.finish(challenge, lost=True)
            record = Evaluated(
                candidate=trial.candidate, evaluation=evaluation, cell=cell, objective=None
            )
            self._failures.append(record)
            failed = evaluation.status is not EvaluationStatus.OK
            tier = failed_tier(evaluation.status) if failed else Tier.CORRECT
            return Outcome(
                trial=trial, tier=self._credit(trial.candidate, tier, evaluation), cell=cell
            )
        elite = self.archive.get(cell)
        if elite is None or elite.candidate != trial.incumbent or not timing.rival_log_ratios:
            # Another elite moved in meanwhile. The fresh blocks still count for the challenger.
            self._duels.finish(challenge, lost=False)
            return self._offer(trial, _merged(challenge, evaluation))
        result = self.archive.settle(
            challenge.trial.candidate, challenge.evaluation, evaluation, cell
        )
        self._duels.finish(challenge, lost=result.status is not AddStatus.IMPROVED)
        tier = self._credit(challenge.trial.candidate, self._tier(challenge, result), evaluation)
        return Outcome(
            trial=trial, tier=tier, add=result, cell=cell, resolved=self._reconsider(cell)
        )

    def _offer(self, trial: Trial, challenge: Challenge) -> Outcome:
        """Offers a candidate to the archive; lets it wait for a duel if that is contested."""
        result = self.archive.add(challenge.trial.candidate, challenge.evaluation, challenge.cell)
        if result.status is not AddStatus.CONTESTED:
            tier = self._credit(
                challenge.trial.candidate, self._tier(challenge, result), challenge.evaluation
            )
            moved = result.status is not AddStatus.NOT_ADDED
            resolved = self._reconsider(challenge.cell) if moved else ()
            return Outcome(
                trial=trial, tier=tier, add=result, cell=challenge.cell, resolved=resolved
            )
        hopeless = not self._duels.enabled or self._duels.has_lost(challenge)
        given_up = [challenge] if hopeless else self._duels.push(challenge)
        mine: Tier | None = None
        others = []
        for loser in given_up:
            loser_tier = self._credit(loser.trial.candidate, Tier.CORRECT, loser.evaluation)
            if loser is challenge:
                mine = loser_tier
            else:
                others.append(Outcome(trial=loser.trial, tier=loser_tier, cell=loser.cell))
        return Outcome(
            trial=trial, tier=mine, add=result, cell=challenge.cell, resolved=tuple(others)
        )

    def _reconsider(self, cell: Cell) -> tuple[Outcome, ...]:
        """Offers those waiting for a cell again, after its elite or its record has changed."""
        outcomes: list[Outcome] = []
        for challenge in self._duels.take(cell):
            outcome = self._offer(challenge.trial, challenge)
            if outcome.tier is not None:
                outcomes.append(replace(outcome, resolved=()))
            outcomes += outcome.resolved
        return tuple(outcomes)

    def _tier(self, challenge: Challenge, result: AddResult) -> Tier:
        if result.status is AddStatus.NOT_ADDED:
            return Tier.CORRECT
        best = self.archive.best()
        if best is not None and best.candidate.id == challenge.trial.candidate.id:
            return Tier.NEW_BEST
        return Tier.NEW_CELL if result.status is AddStatus.NEW else Tier.IMPROVED

    def _credit(self, candidate: Candidate, tier: Tier, evaluation: Evaluation) -> Tier:
        if candidate.operator in self.bandit.names:
            self.bandit.credit(candidate.operator, tier, cost=evaluation.total_s)
        return tier


def _operator_table(
    operators: Sequence[Operator], bandit: Bandit, selection: SelectParents
) -> base.Toolbox:
    """Registers operators by name, and selection as "select", in a DEAP toolbox.

    Raises:
        ConfigError: If a name cannot be used, is used twice, or is unknown to the bandit.
    """
    toolbox = base.Toolbox()
    taken = {SEED, INITIAL, "select", *dir(toolbox)}
    for operator in operators:
        if not operator.name.isidentifier() or operator.name in taken:
            raise ConfigError(f"operator name {operator.name!r} is reserved, in use or no name")
        taken.add(operator.name)
        toolbox.register(operator.name, operator.propose)
    toolbox.register("select", selection)
    names = {operator.name for operator in operators}
    if names != set(bandit.names):
        raise ConfigError(
            f"the bandit's arms ({', '.join(bandit.names)}) are not the operators "
            f"({', '.join(operator.name for operator in operators)})"
        )
    return toolbox


def _merged(challenge: Challenge, duel: Evaluation) -> Challenge:
    """Adds a duel's fresh blocks to a challenger's own."""
    mine, fresh = challenge.evaluation.timing, duel.timing
    assert mine is not None
    assert fresh is not None
    samples = mine.log_speedups + fresh.log_speedups
    evaluation = replace(challenge.evaluation, timing=replace(mine, log_speedups=samples))
    return replace(
        challenge,
        evaluation=evaluation,
        objective=float(np.mean(samples)),
        rounds=challenge.rounds + 1,
    )

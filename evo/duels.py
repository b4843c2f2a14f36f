"""Challengers that wait for a duel with their cell's elite."""

from __future__ import annotations

from dataclasses import dataclass

from evo.archives.base import Cell
from evo.evaluation import Evaluation
from evo.trial import Trial

WAITING_PER_CELL = 4
MAX_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A candidate whose place is contested.

    Attributes:
        trial: The trial that measured it first.
        evaluation: Its measurement; blocks of earlier duels are merged in.
        cell: The contested cell.
        objective: Its mean log speed-up.
        rounds: Duels it has fought.
    """

    trial: Trial
    evaluation: Evaluation
    cell: Cell
    objective: float
    rounds: int = 0

    @property
    def origin(self) -> str:
        """Names the measurement: equal for candidates whose code is the same."""
        return self.evaluation.inherited_from or self.evaluation.job_id


class DuelQueue:
    """Decides which duel is worth its evaluation, and when.

    One duel per cell at a time, since its outcome changes what the others have to beat. The best
    challenger of all cells goes first. Duels are held to a share of all trials; in a cell where
    everything is equal within noise they would otherwise eat the budget.

    Args:
        share: Largest share of trials that may be duels.
    """

    def __init__(self, *, share: float) -> None:
        self._share = share
        self._waiting: dict[Cell, list[Challenge]] = {}
        self._busy: set[Cell] = set()
        self._lost: set[tuple[Cell, str]] = set()
        self._fought = 0

    @property
    def enabled(self) -> bool:
        """Whether there are duels at all."""
        return self._share > 0.0

    def has_lost(self, challenge: Challenge) -> bool:
        """Tells whether identical code has lost in this cell before; its elite only gets better."""
        return (challenge.cell, challenge.origin) in self._lost

    def push(self, challenge: Challenge) -> list[Challenge]:
        """Lets a challenger wait.

        Returns:
            Those given up: of more than `WAITING_PER_CELL` the slowest, and a challenger whose
            incumbent keeps being replaced.
        """
        if challenge.rounds >= MAX_ROUNDS:
            return [challenge]
        queue = self._waiting.setdefault(challenge.cell, [])
        queue.append(challenge)
        queue.sort(key=_rank)
        dropped = queue[WAITING_PER_CELL:]
        del queue[WAITING_PER_CELL:]
        return dropped

    def pop(self, *, trials: int, regardless: bool = False) -> Challenge | None:
        """Starts the next duel, or returns None if none may start now.

        Args:
            trials: Trials asked so far, duels included.
            regardless: There is nothing better to do: ignore the share.
        """
        if self._fought > self._share * trials and not regardless:
            return None
        heads = [q[0] for cell, q in self._waiting.items() if q and cell not in self._busy]
        if not heads or not self.enabled:
            return None
        challenge = min(heads, key=_rank)
        self._waiting[challenge.cell].remove(challenge)
        self._busy.add(challenge.cell)
        self._fought += 1
        return challenge

    def finish(self, challenge: Challenge, *, lost: bool) -> None:
        """Frees the cell after a duel."""
        self._busy.discard(challenge.cell)
        if lost:
            self._lost.add((challenge.cell, challenge.origin))

    def take(self, cell: Cell) -> list[Challenge]:
        """Removes and returns the challengers waiting for a cell, best first."""
        return self._waiting.pop(cell, [])


def _rank(challenge: Challenge) -> tuple[float, str]:
    return (-challenge.objective, challenge.trial.candidate.id)

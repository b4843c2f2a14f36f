from __future__ import annotations

from dataclasses import replace

from evo.archives.base import Cell
from evo.duels import MAX_ROUNDS, WAITING_PER_CELL, Challenge, DuelQueue
from evo.job import Purpose
from evo.testing.archive_suite import make_candidate, make_evaluation
from evo.trial import Trial


def challenge(number: int, objective: float, cell: Cell = (0, 0, 0)) -> Challenge:
    trial = Trial(id=f"t{number:06d}", purpose=Purpose.SEARCH, candidate=make_candidate(number))
    evaluation = make_evaluation(f"j{number}", [objective] * 2)
    return Challenge(trial=trial, evaluation=evaluation, cell=cell, objective=objective)


def test_the_best_of_all_free_cells_goes_first() -> None:
    queue = DuelQueue(share=1.0)
    slow, fast, other = challenge(1, 0.1), challenge(2, 0.9), challenge(3, 0.5, (1, 0, 0))
    for item in (slow, fast, other):
        assert queue.push(item) == []
    assert queue.pop(trials=100) == fast
    assert queue.pop(trials=100) == other  # the first cell is busy
    assert queue.pop(trials=100) is None
    queue.finish(fast, lost=True)
    assert queue.pop(trials=100) == slow


def test_of_too_many_waiting_the_slowest_is_given_up() -> None:
    queue = DuelQueue(share=1.0)
    items = [challenge(number, 0.1 * number) for number in range(WAITING_PER_CELL + 1)]
    dropped = [queue.push(item) for item in items]
    assert dropped == [[]] * WAITING_PER_CELL + [[items[0]]]
    hopeless = challenge(99, -5.0)
    assert queue.push(hopeless) == [hopeless]
    assert queue.take((0, 0, 0)) == items[:0:-1]
    assert queue.take((0, 0, 0)) == []


def test_a_challenger_whose_rival_keeps_changing_is_given_up() -> None:
    queue = DuelQueue(share=1.0)
    tired = replace(challenge(1, 0.5), rounds=MAX_ROUNDS)
    assert queue.push(tired) == [tired]
    assert queue.pop(trials=100) is None


def test_the_share_holds_unless_there_is_nothing_better_to_do() -> None:
    queue = DuelQueue(share=0.1)
    for number in range(3):
        queue.push(challenge(number, 0.1, (number, 0, 0)))
    assert queue.pop(trials=2) is not None
    assert queue.pop(trials=9) is None
    assert queue.pop(trials=10) is not None
    assert queue.pop(trials=10) is None
    assert queue.pop(trials=10, regardless=True) is not None


def test_losers_are_remembered_by_cell_and_code() -> None:
    queue = DuelQueue(share=1.0)
    loser = challenge(1, 0.5)
    queue.push(loser)
    queue.pop(trials=10)
    queue.finish(loser, lost=True)
    inherited = replace(challenge(2, 0.5).evaluation, inherited_from="j1")
    assert queue.has_lost(replace(challenge(2, 0.5), evaluation=inherited))
    assert not queue.has_lost(challenge(3, 0.5))
    assert not queue.has_lost(replace(loser, cell=(1, 0, 0)))

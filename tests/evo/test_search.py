from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evo.archives.base import AddStatus
from evo.archives.grid import GridArchive
from evo.bandit import Bandit
from evo.errors import ConfigError, SearchError
from evo.evaluation import CodeFeatures, Correctness, Evaluation, EvaluationStatus
from evo.genome import ParamValue
from evo.job import Purpose
from evo.params import pow2, stepped
from evo.search import INITIAL, MAX_TRIES, SEED, Search, Tier, Trial
from evo.serial import from_json, to_json
from evo.space import Space
from evo.testing.archive_suite import make_duel, make_evaluation
from evo.testing.operator_suite import (
    TOY_OPTIMUM,
    ToyDescriptor,
    ToyEvaluator,
    toy_speed,
    toy_templates,
)
from evo.variation import Operator, Proposal, SearchView, TemplateEntry
from operators.crossover import Crossover
from operators.local import Local
from operators.mutate import Mutate
from operators.sample import Sample
from operators.switch import Switch

Evaluate = Callable[[Trial], Evaluation]
FEATURES = CodeFeatures(origin="source", counts={"memory": 0.0, "compute": 0.0, "parallelism": 0.0})


def make_search(
    *,
    seed: int = 0,
    operators: Sequence[Operator] | None = None,
    templates: Sequence[TemplateEntry] | None = None,
    initial_samples: int = 12,
    duels: bool = True,
    duel_share: float = 0.3,
) -> Search:
    chosen = operators or (Sample(), Mutate(), Crossover(), Local(), Switch())
    return Search(
        templates=toy_templates() if templates is None else templates,
        archive=GridArchive(),
        operators=chosen,
        bandit=Bandit(names=[operator.name for operator in chosen]),
        descriptor=ToyDescriptor(),
        rng=np.random.default_rng(seed),
        initial_samples=initial_samples,
        duels=duels,
        duel_share=duel_share,
    )


def run(search: Search, evaluate: Evaluate, budget: int) -> list[Trial]:
    """One slot: ask, tell, ask, tell."""
    trials = []
    for _ in range(budget):
        trial = search.ask()
        if trial is None:
            break
        trials.append(trial)
        search.tell(trial.id, evaluate(trial))
    return trials


def archive_json(search: Search) -> str:
    archive = search.archive
    assert isinstance(archive, GridArchive)
    return archive.to_json()


def timed(trial: Trial, blocks: Sequence[float]) -> Evaluation:
    return replace(make_evaluation(trial.id, blocks), features=FEATURES)


def fought(trial: Trial, mine: Sequence[float], theirs: Sequence[float]) -> Evaluation:
    return replace(make_duel(trial.id, mine, theirs), features=FEATURES)


def ask(search: Search) -> Trial:
    trial = search.ask()
    assert trial is not None
    return trial


# -- what is proposed ------------------------------------------------------------------------


def test_defaults_come_first_then_spread_samples_then_the_operators() -> None:
    search = make_search(initial_samples=8)
    trials = run(search, ToyEvaluator(noise=0.0), 60)
    firsts = [trial.candidate for trial in trials if trial.purpose is Purpose.SEARCH]
    operators = [candidate.operator for candidate in firsts]
    assert operators[:10] == [SEED] * 2 + [INITIAL] * 8
    assert set(operators[10:]) <= {"sample", "mutate", "crossover", "local", "switch"}
    assert len(set(operators[10:])) == 5
    for candidate, entry in zip(firsts[:2], toy_templates(), strict=True):
        assert candidate.genome == entry.genome(entry.space.defaults())
    assert Counter(c.genome.template for c in firsts[2:10]) == {"tiled": 4, "plain": 4}


def test_spread_samples_cover_values_better_than_uniform_ones() -> None:
    def values_met(points: Sequence[dict[str, ParamValue]]) -> int:
        return len({item for point in points for item in point.items()})

    entry = toy_templates()[0]
    gains = []
    for seed in range(12):
        search = make_search(seed=seed, templates=[entry], initial_samples=7)
        spread = [dict(ask(search).candidate.genome.params) for _ in range(8)]
        rng = np.random.default_rng(seed)
        uniform = [dict(entry.space.sample(rng)) for _ in range(7)] + [entry.space.defaults()]
        gains.append(values_met(spread) - values_met(uniform))
    assert min(gains) >= 0
    assert np.mean(gains) > 1.5


def test_no_genome_twice() -> None:
    search = make_search()
    trials = run(search, ToyEvaluator(), 300)
    keys = [t.candidate.genome.key for t in trials if t.purpose is Purpose.SEARCH]
    assert len(set(keys)) == len(keys)
    ids = [trial.id for trial in trials]
    assert ids == [f"t{number:06d}" for number in range(len(ids))]
    assert set(search.candidates) == {t.candidate.id for t in trials}


def test_invalid_and_foreign_proposals_are_never_asked() -> None:
    class Rogue:
        name = "rogue"

        def propose(self, view: SearchView, rng: np.random.Generator) -> Proposal | None:
            bad: list[Proposal] = [
                Proposal(template="nosuch", params={}),
                Proposal(template="plain", params={"wg": 17, "unroll": 1, "vec": 1}),
                Proposal(template="plain", params={"wg": 16}),
            ]
            return bad[int(rng.integers(3))]

    search = make_search(operators=[Rogue()], initial_samples=0)
    assert len(run(search, ToyEvaluator(), 10)) == 2  # the templates' defaults
    assert search.exhausted


def test_exhaustion() -> None:
    space = Space(
        params=(pow2("wg", 32, 64, 32), stepped("unroll", 1, 3, 1, 1), pow2("vec", 1, 2, 1))
    )
    entry = TemplateEntry(name="plain", hash="5" * 16, space=space)
    search = make_search(templates=[entry], initial_samples=4)
    trials = []
    while (trial := search.ask()) is not None:  # all in flight at once
        trials.append(trial)
    assert len(trials) == 12
    assert not search.exhausted
    evaluate = ToyEvaluator(noise=0.05)
    for trial in trials:
        search.tell(trial.id, evaluate(trial))
    duels = run(search, evaluate, 1000)
    assert all(trial.purpose is Purpose.DUEL for trial in duels)
    assert search.exhausted
    assert search.in_flight == ()


def test_nothing_to_propose_now_is_not_exhaustion() -> None:
    search = make_search(operators=[Mutate()], initial_samples=0)
    first, second = ask(search), ask(search)
    assert search.ask() is None
    assert not search.exhausted
    search.tell(first.id, ToyEvaluator()(first))
    assert search.ask() is not None
    search.tell(second.id, ToyEvaluator()(second))


# -- reproducibility -------------------------------------------------------------------------


def test_same_seed_same_search_another_seed_another() -> None:
    runs = []
    for seed in (1, 1, 2):
        random.seed(random.random())  # whatever the global generator holds
        search = make_search(seed=seed)
        runs.append((run(search, ToyEvaluator(), 150), archive_json(search)))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    assert runs[0][1] != runs[2][1]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), slots=st.integers(1, 8))
def test_replaying_asks_and_tells_in_their_order_gives_an_equal_archive(
    seed: int, slots: int
) -> None:
    search = make_search(seed=seed, initial_samples=6)
    rng = np.random.default_rng(seed)
    evaluate = ToyEvaluator(noise=0.05, seed=seed)
    log: list[tuple[str, Trial, bytes]] = []
    flights: deque[Trial] = deque()
    for _ in range(70):
        while len(flights) < slots and (trial := search.ask()) is not None:
            flights.append(trial)
            log.append(("ask", trial, b""))
        flights.rotate(int(rng.integers(slots)))  # results come in any order
        told = flights.popleft()
        evaluation = evaluate(told)
        if rng.random() < 0.05:
            evaluation = Evaluation(job_id=told.id, status=EvaluationStatus.INFRA_ERROR)
        search.tell(told.id, evaluation)
        log.append(("tell", told, to_json(evaluation)))
    replayed = make_search(seed=seed, initial_samples=6)
    for kind, trial, data in log:
        if kind == "ask":
            assert replayed.ask() == trial
        else:
            replayed.tell(trial.id, from_json(data, Evaluation))
    assert archive_json(replayed) == archive_json(search)
    assert replayed.in_flight == search.in_flight
    assert replayed.bandit.stats() == search.bandit.stats()
    assert replayed.ask() == search.ask()


def test_asks_that_return_nothing_leave_no_trace() -> None:
    def steps(fruitless_asks: int) -> tuple[str, Trial | None]:
        search = make_search(operators=[Mutate(), Local()], initial_samples=0)
        evaluate = ToyEvaluator(noise=0.0)
        flights = [ask(search), ask(search)]
        for _ in range(40):
            for _ in range(fruitless_asks):
                if len(flights) == 2 and len(search.evaluated) == 0:
                    assert search.ask() is None
            told = flights.pop(0)
            search.tell(told.id, evaluate(told))
            flights.append(ask(search))
        return archive_json(search), search.ask()

    assert steps(0) == steps(3)


# -- does it find anything -------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 8])
def test_finds_the_optimum_region_in_an_eighth_of_the_space(slots: int) -> None:
    reached = []
    for seed in range(5):
        search = make_search(seed=seed)
        evaluate = ToyEvaluator(noise=0.02, seed=seed)
        rng = np.random.default_rng(seed)
        flights: list[Trial] = []
        for _ in range(150):
            while len(flights) < slots:
                flights.append(ask(search))
            told = flights.pop(int(rng.integers(len(flights))))
            search.tell(told.id, evaluate(told))
        best = search.archive.best()
        assert best is not None
        reached.append(toy_speed(best.candidate.genome))
        assert search.archive.stats().num_elites >= 12
    assert np.median(reached) >= TOY_OPTIMUM - 0.06


def test_operators_beat_sampling_alone() -> None:
    def best_after(operators: Sequence[Operator] | None) -> float:
        speeds = []
        for seed in range(6):
            search = make_search(seed=seed, operators=operators)
            run(search, ToyEvaluator(noise=0.01, seed=seed), 80)
            best = search.archive.best()
            assert best is not None
            speeds.append(toy_speed(best.candidate.genome))
        return float(np.mean(speeds))

    assert best_after(None) > best_after([Sample()]) + 0.05


# -- outcomes and credit ---------------------------------------------------------------------


def one_operator(**settings: object) -> Search:
    """A search in which everything comes from "sample"; the two defaults are told as failures."""
    search = make_search(operators=[Sample()], initial_samples=0, **settings)  # type: ignore[arg-type]
    for _ in range(2):
        trial = ask(search)
        search.tell(trial.id, Evaluation(job_id=trial.id, status=EvaluationStatus.COMPILE_ERROR))
    return search


@pytest.mark.parametrize(
    ("status", "tier"),
    [
        (EvaluationStatus.INVALID, Tier.INVALID),
        (EvaluationStatus.COMPILE_ERROR, Tier.INVALID),
        (EvaluationStatus.HACK, Tier.INVALID),
        (EvaluationStatus.INCORRECT, Tier.FAILED),
        (EvaluationStatus.RUNTIME_ERROR, Tier.FAILED),
        (EvaluationStatus.TIMEOUT, Tier.FAILED),
    ],
)
def test_failures_are_kept_and_credited_by_how_far_they_got(
    status: EvaluationStatus, tier: Tier
) -> None:
    search = one_operator()
    trial = ask(search)
    outcome = search.tell(trial.id, Evaluation(job_id="j", status=status, log="why"))
    assert (outcome.tier, outcome.add, outcome.resolved) == (tier, None, ())
    assert search.failures[-1].candidate == trial.candidate
    assert search.failures[-1].evaluation.log == "why"
    assert search.bandit.stats()[0].credited == 1
    assert len(search.archive) == 0


def test_failures_kept_are_bounded() -> None:
    search = make_search()
    for _ in range(100):
        trial = ask(search)
        search.tell(trial.id, Evaluation(job_id=trial.id, status=EvaluationStatus.TIMEOUT))
    assert len(search.failures) == 64
    assert len(search.evaluated) == 100
    assert search.failures[-1] == search.evaluated[-1]


def test_tiers_of_what_enters_the_archive() -> None:
    search = one_operator()
    elsewhere = CodeFeatures(
        origin="source", counts={"memory": 1.0, "compute": 0.0, "parallelism": 0.0}
    )

    def tell(speed: float, features: CodeFeatures = FEATURES) -> Tier | None:
        trial = ask(search)
        evaluation = replace(make_evaluation(trial.id, [speed] * 4), features=features)
        return search.tell(trial.id, evaluation).tier

    assert tell(0.5) is Tier.NEW_BEST
    assert tell(0.1, elsewhere) is Tier.NEW_CELL
    assert tell(0.3, elsewhere) is Tier.IMPROVED
    assert tell(0.9, elsewhere) is Tier.NEW_BEST
    assert tell(0.2) is Tier.CORRECT


def test_defaults_and_spread_samples_are_nobodys_credit() -> None:
    search = make_search(initial_samples=6)
    run(search, ToyEvaluator(), 6)
    assert sum(arm.started + arm.credited for arm in search.bandit.stats()) == 0


def test_unmeasured_results_stay_out_of_the_archive() -> None:
    search = one_operator()
    for passed, tier in ((True, Tier.CORRECT), (False, Tier.FAILED)):
        trial = ask(search)
        evaluation = Evaluation(
            job_id=trial.id,
            status=EvaluationStatus.OK,
            measured=False,
            correctness=Correctness(passed=passed, checks=1),
            features=FEATURES,
        )
        assert search.tell(trial.id, evaluation).tier is tier
    assert len(search.archive) == 0


def test_unknown_and_repeated_tells() -> None:
    search = make_search()
    trial = ask(search)
    with pytest.raises(SearchError, match="t999999"):
        search.tell("t999999", ToyEvaluator()(trial))
    search.tell(trial.id, ToyEvaluator()(trial))
    with pytest.raises(SearchError, match="told before"):
        search.tell(trial.id, ToyEvaluator()(trial))


# -- infrastructure --------------------------------------------------------------------------


def test_infrastructure_failures_repeat_the_candidate_and_blame_nobody() -> None:
    search = one_operator()
    first = ask(search)
    trial = first
    for attempt in range(2, MAX_TRIES + 1):
        outcome = search.tell(trial.id, Evaluation(job_id="j", status=EvaluationStatus.INFRA_ERROR))
        assert outcome.tier is None
        assert not search.exhausted
        trial = ask(search)
        assert trial.candidate == first.candidate
        assert trial.attempt == attempt
        assert trial.id != first.id
    search.tell(trial.id, Evaluation(job_id="j", status=EvaluationStatus.INFRA_ERROR))
    assert ask(search).candidate != first.candidate
    assert all(record.candidate != first.candidate for record in search.failures)
    [arm] = search.bandit.stats()
    assert (arm.started, arm.credited) == (2, 0)


def test_a_repeat_that_works_counts_normally() -> None:
    search = one_operator()
    trial = ask(search)
    search.tell(trial.id, Evaluation(job_id="j", status=EvaluationStatus.INFRA_ERROR))
    again = ask(search)
    assert search.tell(again.id, timed(again, [0.5, 0.5])).tier is Tier.NEW_BEST


# -- duels -----------------------------------------------------------------------------------


def contested(search: Search) -> tuple[Trial, Trial, Trial]:
    """Sets up an elite and a challenger; returns their trials and the duel's."""
    elite = ask(search)
    search.tell(elite.id, timed(elite, [0.5, 0.55, 0.6]))
    challenger = ask(search)
    outcome = search.tell(challenger.id, timed(challenger, [0.53, 0.57, 0.61]))
    assert outcome.add is not None
    assert outcome.add.status is AddStatus.CONTESTED
    assert outcome.tier is None
    return elite, challenger, ask(search)


def test_a_close_call_leads_to_a_duel_before_anything_else() -> None:
    search = one_operator()
    elite, challenger, duel = contested(search)
    assert duel.purpose is Purpose.DUEL
    assert duel.candidate == challenger.candidate
    assert duel.incumbent == elite.candidate
    assert search.bandit.stats()[0].credited == 1  # the challenger's is open


def test_duel_won() -> None:
    search = one_operator()
    _, challenger, duel = contested(search)
    outcome = search.tell(duel.id, fought(duel, [0.60, 0.61, 0.62], [0.55, 0.56, 0.58]))
    assert outcome.tier is Tier.NEW_BEST
    assert outcome.add is not None
    assert outcome.add.status is AddStatus.IMPROVED
    best = search.archive.best()
    assert best is not None
    assert best.candidate == challenger.candidate
    assert search.bandit.stats()[0].credited == 2


def test_duel_lost() -> None:
    search = one_operator()
    elite, _, duel = contested(search)
    outcome = search.tell(duel.id, fought(duel, [0.50, 0.49, 0.5], [0.50, 0.50, 0.49]))
    assert outcome.tier is Tier.CORRECT
    best = search.archive.best()
    assert best is not None
    assert best.candidate == elite.candidate
    assert len(best.log_speedups) == 6
    assert ask(search).purpose is Purpose.SEARCH


def test_identical_code_does_not_fight_twice() -> None:
    search = one_operator()
    _, challenger, duel = contested(search)
    search.tell(duel.id, fought(duel, [0.50, 0.49, 0.5], [0.50, 0.50, 0.49]))
    twin = ask(search)
    evaluation = replace(timed(twin, [0.53, 0.57, 0.61]), inherited_from=challenger.id)
    assert search.tell(twin.id, evaluation).tier is Tier.CORRECT
    assert ask(search).purpose is Purpose.SEARCH


def test_a_challenger_that_fails_in_the_duel_stays_out() -> None:
    search = one_operator()
    elite, challenger, duel = contested(search)
    outcome = search.tell(duel.id, Evaluation(job_id=duel.id, status=EvaluationStatus.INCORRECT))
    assert outcome.tier is Tier.FAILED
    assert search.failures[-1].candidate == challenger.candidate
    best = search.archive.best()
    assert best is not None
    assert best.candidate == elite.candidate


def test_a_duel_that_infrastructure_spoils_is_repeated_then_dropped() -> None:
    search = one_operator()
    elite, challenger, duel = contested(search)
    for _ in range(MAX_TRIES - 1):
        spoilt = Evaluation(job_id=duel.id, status=EvaluationStatus.INFRA_ERROR)
        assert search.tell(duel.id, spoilt).tier is None
        duel = ask(search)
        assert (duel.purpose, duel.candidate) == (Purpose.DUEL, challenger.candidate)
        assert duel.incumbent == elite.candidate
    outcome = search.tell(duel.id, Evaluation(job_id=duel.id, status=EvaluationStatus.INFRA_ERROR))
    assert outcome.tier is Tier.CORRECT  # its own evaluation was fine
    assert ask(search).purpose is Purpose.SEARCH


def test_a_stale_duel_is_fought_again_against_the_new_elite() -> None:
    search = one_operator()
    _, challenger, duel = contested(search)
    usurper = ask(search)
    outcome = search.tell(usurper.id, timed(usurper, [0.74, 0.75, 0.76]))
    assert outcome.tier is Tier.NEW_BEST
    # The challenger's fresh blocks lift it into the new elite's band.
    outcome = search.tell(duel.id, fought(duel, [0.85, 0.90, 0.95], [0.6, 0.5, 0.5]))
    assert outcome.tier is None
    rematch = ask(search)
    assert rematch.purpose is Purpose.DUEL
    assert (rematch.candidate, rematch.incumbent) == (challenger.candidate, usurper.candidate)
    outcome = search.tell(rematch.id, fought(rematch, [0.8, 0.82, 0.81], [0.75, 0.75, 0.75]))
    assert outcome.tier is Tier.NEW_BEST
    best = search.archive.best()
    assert best is not None
    assert len(best.log_speedups) == 9  # first evaluation, stale duel, rematch


def test_a_stale_duel_against_a_far_better_elite_is_dropped() -> None:
    search = one_operator()
    _, _, duel = contested(search)
    usurper = ask(search)
    search.tell(usurper.id, timed(usurper, [2.0, 2.01]))
    outcome = search.tell(duel.id, fought(duel, [0.6, 0.61, 0.6], [0.5, 0.5, 0.5]))
    assert outcome.tier is Tier.CORRECT
    assert outcome.add is not None
    assert outcome.add.status is AddStatus.NOT_ADDED
    assert ask(search).purpose is Purpose.SEARCH


def test_one_duel_per_cell_and_those_waiting_are_judged_by_its_outcome() -> None:
    search = one_operator(duel_share=1.0)
    _, first, duel = contested(search)
    waiting = ask(search)
    assert waiting.purpose is Purpose.SEARCH
    assert search.tell(waiting.id, timed(waiting, [0.52, 0.56, 0.60])).tier is None
    assert ask(search).purpose is Purpose.SEARCH  # the cell is busy
    outcome = search.tell(duel.id, fought(duel, [0.9, 0.91, 0.92], [0.5, 0.5, 0.5]))
    assert outcome.tier is Tier.NEW_BEST
    # The mean of the winner's six blocks is far above what the waiting one showed, but its
    # interval is wide: it may still try.
    rematch = ask(search)
    assert (rematch.candidate, rematch.incumbent) == (waiting.candidate, first.candidate)


def test_a_waiting_challenger_is_dropped_when_a_far_better_elite_moves_in() -> None:
    search = one_operator(duel_share=1.0)
    _, _, duel = contested(search)
    waiting = ask(search)
    search.tell(waiting.id, timed(waiting, [0.52, 0.56, 0.60]))
    usurper = ask(search)
    outcome = search.tell(usurper.id, timed(usurper, [2.0, 2.01]))
    [other] = outcome.resolved
    assert (other.trial, other.tier) == (waiting, Tier.CORRECT)
    assert search.in_flight == (duel,)
    assert search.bandit.stats()[0].credited == 3  # elite, usurper, waiting


def test_duels_keep_to_their_share() -> None:
    def share(limit: float) -> float:
        search = make_search(seed=3, duel_share=limit)
        trials = run(search, ToyEvaluator(noise=0.3), 150)
        return sum(trial.purpose is Purpose.DUEL for trial in trials) / len(trials)

    assert share(0.0) == 0.0
    assert 0.05 < share(0.1) <= 0.12
    assert 0.2 < share(0.5) <= 0.52


def test_without_duels_the_incumbent_stays() -> None:
    search = one_operator(duels=False)
    elite = ask(search)
    search.tell(elite.id, timed(elite, [0.5, 0.55, 0.6]))
    challenger = ask(search)
    outcome = search.tell(challenger.id, timed(challenger, [0.53, 0.57, 0.61]))
    assert outcome.tier is Tier.CORRECT
    assert ask(search).purpose is Purpose.SEARCH
    best = search.archive.best()
    assert best is not None
    assert best.candidate == elite.candidate


def test_every_candidate_is_credited_exactly_once() -> None:
    search = make_search(seed=5)
    trials = run(search, ToyEvaluator(noise=0.1), 200)
    credited = sum(arm.credited for arm in search.bandit.stats())
    made = [
        t
        for t in trials
        if t.purpose is Purpose.SEARCH and t.candidate.operator not in (SEED, INITIAL)
    ]
    open_ = sum(arm.started for arm in search.bandit.stats()) - credited
    assert credited + open_ == len(made)
    assert 0 <= open_ < 30  # challengers still waiting


# -- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"templates": ()}, "at least one template"),
        ({"initial_samples": -1}, "initial_samples"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"duel_share": 1.5}, "duel_share"),
        ({"bandit": Bandit(names=["mutate"])}, "arms .mutate. are not the operators"),
        ({"operators": [Sample(), Sample()]}, "'sample' is reserved, in use"),
        ({"operators": [Sample(name="select")]}, "'select'"),
        ({"operators": [Sample(name="seed")]}, "'seed'"),
        ({"operators": [Sample(name="no name")]}, "'no name'"),
    ],
)
def test_bad_settings(changed: dict[str, object], message: str) -> None:
    settings_: dict[str, object] = {
        "templates": toy_templates(),
        "archive": GridArchive(),
        "operators": [Sample()],
        "bandit": Bandit(names=["sample"]),
        "descriptor": ToyDescriptor(),
        "rng": np.random.default_rng(0),
    }
    with pytest.raises(ConfigError, match=message):
        Search(**{**settings_, **changed})  # type: ignore[arg-type]


def test_operators_and_selection_are_in_the_toolbox() -> None:
    search = make_search()
    run(search, ToyEvaluator(), 30)
    proposal = search.toolbox.mutate(search.view, np.random.default_rng(0))
    assert proposal.parents
    elites = list(search.archive)
    assert len(search.toolbox.select(elites, 4, np.random.default_rng(0))) == 4

# ruff: noqa: D102
"""Conformance suite for variation operators, and a made-up search space to try them on.

    class TestMyOperator(OperatorSuite):
        def make_operator(self) -> Operator:
            return MyOperator(...)

Needs pytest. Nothing here is a measurement.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from evo.archives.base import AddStatus, Archive, Cell
from evo.archives.grid import GridArchive
from evo.evaluation import (
    CodeFeatures,
    Correctness,
    Evaluation,
    EvaluationStatus,
    Timing,
    WorkloadTiming,
)
from evo.genome import Candidate, Genome
from evo.job import Purpose
from evo.params import flag, listed, pow2, stepped
from evo.selection import EliteSelection
from evo.space import Space
from evo.trial import Trial
from evo.variation import Evaluated, Operator, Proposal, SearchView, TemplateEntry

BLOCKS = 6


def toy_templates() -> tuple[TemplateEntry, ...]:
    """Returns two templates of 1,152 and 80 valid points that share some parameters."""
    tiled = Space(
        params=(
            pow2("wg", 8, 256, 64),
            listed("vec", [1, 2, 4, 8], 1),
            stepped("unroll", 1, 8, 1, 1),
            flag("cache", False),
            listed("order", ["row", "column", "zigzag", "hilbert"], "row"),
        ),
        constraints=("wg * vec <= 512", "unroll <= 4 or vec >= 2"),
    )
    plain = Space(
        params=(
            pow2("wg", 16, 256, 32),
            stepped("unroll", 1, 4, 1, 1),
            listed("vec", [1, 2, 4, 8], 1),
        ),
    )
    return (
        TemplateEntry(name="tiled", hash="1" * 16, space=tiled),
        TemplateEntry(name="plain", hash="2" * 16, space=plain),
    )


def toy_speed(genome: Genome) -> float:
    """Returns the true log speed-up: best at tiled, wg 64, vec 4, unroll 3, cache, hilbert."""
    p = genome.params
    speed = -0.2 * abs(math.log2(int(p["wg"])) - 6) - 0.15 * abs(math.log2(int(p["vec"])) - 2)
    speed -= 0.05 * abs(int(p["unroll"]) - 3)
    if genome.template == "tiled":
        speed += 0.3 + 0.2 * bool(p["cache"])
        speed += {"row": 0.0, "column": -0.2, "zigzag": 0.1, "hilbert": 0.2}[str(p["order"])]
    return speed


TOY_OPTIMUM = 0.7


class ToyDescriptor:
    """Reads the cell from the made-up features."""

    def cell(self, features: CodeFeatures) -> Cell:
        """Returns the cell."""
        counts = features.counts
        return (int(counts["memory"]), int(counts["compute"]), int(counts["parallelism"]))


class ToyEvaluator:
    """Evaluates a trial: a fixed function of the genome, plus noise fixed by seed and trial.

    About one genome in twelve fails, always in the same way.

    Args:
        noise: Standard deviation of a block.
        seed: Seed of the noise.
    """

    def __init__(self, *, noise: float = 0.01, seed: int = 0) -> None:
        self._noise = noise
        self._seed = seed

    def __call__(self, trial: Trial) -> Evaluation:
        """Returns the evaluation."""
        genome = trial.candidate.genome
        luck = zlib.crc32(genome.key.encode()) % 36
        failures = {
            0: EvaluationStatus.COMPILE_ERROR,
            1: EvaluationStatus.INCORRECT,
            2: EvaluationStatus.TIMEOUT,
        }
        if luck in failures:
            return Evaluation(job_id=trial.id, status=failures[luck], message="made up")
        salt = zlib.crc32(f"{trial.id} {genome.key} {self._seed}".encode())
        rng = np.random.default_rng(salt)
        mine = rng.normal(toy_speed(genome), self._noise, BLOCKS)
        theirs = np.empty(0)
        if trial.incumbent is not None:
            theirs = rng.normal(toy_speed(trial.incumbent.genome), self._noise, BLOCKS)
        return Evaluation(
            job_id=trial.id,
            status=EvaluationStatus.OK,
            correctness=Correctness(passed=True, checks=1, max_rel=1e-7, tolerance=1e-5),
            timing=Timing(
                log_speedups=tuple(mine.tolist()),
                workloads=(WorkloadTiming(workload="w", latency_us=1.0, baseline_us=1.0),),
                rival_log_speedups=tuple(theirs.tolist()),
                rival_log_ratios=tuple((mine - theirs).tolist()) if theirs.size else (),
            ),
            features=CodeFeatures(origin="source", counts=_toy_counts(genome)),
            compile_s=0.1,
            total_s=0.5,
        )


def _toy_counts(genome: Genome) -> dict[str, float]:
    return {
        "memory": math.log2(int(genome.params["vec"])),
        "compute": float(min(3, int(genome.params["unroll"]) // 2)),
        "parallelism": 1.0 if genome.template == "tiled" else 0.0,
    }


def toy_view(
    points: int, *, seed: int = 0, templates: Sequence[TemplateEntry] | None = None
) -> SearchView:
    """Returns the view after that many random points were evaluated without noise."""
    entries = tuple(toy_templates() if templates is None else templates)
    archive: Archive = GridArchive()
    seen: set[str] = set()
    evaluated: list[Evaluated] = []
    rng = np.random.default_rng(seed)
    evaluate, descriptor = ToyEvaluator(noise=0.0), ToyDescriptor()
    while len(evaluated) < points:
        entry = entries[int(rng.integers(len(entries)))]
        genome = entry.genome(entry.space.sample(rng))
        if genome.key in seen:
            continue
        seen.add(genome.key)
        number = len(evaluated)
        candidate = Candidate(id=f"c{number:06d}", genome=genome, operator="sample")
        trial = Trial(id=f"t{number:06d}", purpose=Purpose.SEARCH, candidate=candidate)
        evaluation = evaluate(trial)
        cell = descriptor.cell(evaluation.features) if evaluation.features else None
        timing = evaluation.timing
        if timing is not None and cell is not None:
            result = archive.add(candidate, evaluation, cell)
            if result.status is AddStatus.CONTESTED and result.incumbent is not None:
                duel = Trial(
                    id=f"d{number:06d}",
                    purpose=Purpose.DUEL,
                    candidate=candidate,
                    incumbent=result.incumbent.candidate,
                )
                archive.settle(candidate, evaluation, evaluate(duel), cell)
        evaluated.append(
            Evaluated(
                candidate=candidate,
                evaluation=evaluation,
                cell=cell,
                objective=timing.log_speedups[0] if timing else None,
            )
        )
    return SearchView(
        archive=archive,
        templates=entries,
        seen=seen,
        evaluated=evaluated,
        select=EliteSelection(),
    )


class OperatorSuite:
    """What every operator must do."""

    needs_elites = True
    """Whether it has nothing to work on before the archive holds something."""

    def make_operator(self) -> Operator:
        """Returns the operator under test."""
        raise NotImplementedError

    @pytest.fixture
    def operator(self) -> Operator:
        """A fresh operator for each test."""
        return self.make_operator()

    def propose_many(
        self, operator: Operator, view: SearchView, count: int, seed: int = 1
    ) -> list[Proposal]:
        """Returns what is proposed in a row by one generator, without the refusals."""
        rng = np.random.default_rng(seed)
        proposals = [operator.propose(view, rng) for _ in range(count)]
        return [proposal for proposal in proposals if proposal is not None]

    def test_name_is_an_identifier(self, operator: Operator) -> None:
        assert operator.name.isidentifier()

    def test_proposals_are_valid_and_new(self, operator: Operator) -> None:
        view = toy_view(60)
        proposals = self.propose_many(operator, view, 60)
        assert proposals
        for proposal in proposals:
            entry = view.template(proposal.template)
            assert entry.space.violated(proposal.params) is None
            assert view.is_new(entry, proposal.params)

    def test_parents_are_known(self, operator: Operator) -> None:
        view = toy_view(60)
        known = {result.candidate.id for result in view.evaluated}
        for proposal in self.propose_many(operator, view, 30):
            assert set(proposal.parents) <= known
            assert bool(proposal.parents) == self.needs_elites

    def test_without_elites(self, operator: Operator) -> None:
        proposals = self.propose_many(operator, toy_view(0), 10)
        assert bool(proposals) is not self.needs_elites

    def test_depends_on_view_and_generator_only(self, operator: Operator) -> None:
        view = toy_view(60)
        first = self.propose_many(operator, view, 20, seed=5)
        self.propose_many(operator, toy_view(30, seed=9), 7, seed=6)
        assert self.propose_many(self.make_operator(), view, 20, seed=5) == first
        assert self.propose_many(operator, view, 20, seed=5) == first

    def test_the_generator_matters(self, operator: Operator) -> None:
        view = toy_view(60)
        runs = [self.propose_many(operator, view, 20, seed=seed) for seed in range(4)]
        assert any(run != runs[0] for run in runs[1:])

    def test_leaves_the_view_alone(self, operator: Operator) -> None:
        view = toy_view(60)
        elites, seen = list(view.archive), copy.deepcopy(view.seen)
        params = [dict(result.candidate.genome.params) for result in view.evaluated]
        self.propose_many(operator, view, 30)
        assert list(view.archive) == elites
        assert view.seen == seen
        assert [result.candidate.genome.params for result in view.evaluated] == params

    def test_gives_up_when_everything_was_seen(self, operator: Operator) -> None:
        space = Space(
            params=(pow2("wg", 8, 16, 8), pow2("vec", 1, 2, 1), stepped("unroll", 1, 2, 1, 1))
        )
        small = TemplateEntry(name="small", hash="3" * 16, space=space)
        twin = TemplateEntry(name="twin", hash="4" * 16, space=space)
        view = toy_view(16, templates=(small, twin))
        assert self.propose_many(operator, view, 5) == []

"""Times `ask` plus `tell` of a 2,000-trial search on a made-up space; see README.md."""

from __future__ import annotations

import math
import time
import zlib

import numpy as np

from evo.archives.grid import GridArchive
from evo.bandit import Bandit
from evo.evaluation import (
    CodeFeatures,
    Correctness,
    Evaluation,
    EvaluationStatus,
    Timing,
    WorkloadTiming,
)
from evo.params import flag, listed, pow2, stepped
from evo.search import Search, TemplateEntry, Trial
from evo.space import Space
from evo.testing.operator_suite import ToyDescriptor
from operators.crossover import Crossover
from operators.local import Local
from operators.mutate import Mutate
from operators.sample import Sample
from operators.switch import Switch

TRIALS = 2000


def template(name: str) -> TemplateEntry:
    """Seven parameters, 65,536 combinations, three constraints on two workloads."""
    space = Space(
        params=(
            pow2("wg", 8, 1024, 64),
            pow2("tile_m", 1, 128, 16),
            pow2("tile_n", 1, 128, 16),
            listed("vec", [1, 2, 4, 8], 1),
            stepped("unroll", 1, 8, 1, 1),
            flag("cache", False),
            flag("pad", False),
        ),
        constraints=(
            "wg * vec <= 1024",
            "tile_m * tile_n * 4 <= 32768",
            "tile_m * vec <= rows",
        ),
        contexts=({"rows": 512}, {"rows": 127}),
    )
    return TemplateEntry(name=name, hash=f"{zlib.crc32(name.encode()):016x}", space=space)


def evaluate(trial: Trial) -> Evaluation:
    """Returns a made-up result; a tenth of the genomes fail."""
    rng = np.random.default_rng(zlib.crc32(f"{trial.id}{trial.candidate.genome.key}".encode()))
    if rng.random() < 0.1:
        return Evaluation(job_id=trial.id, status=EvaluationStatus.INCORRECT)
    p = trial.candidate.genome.params
    speed = -0.1 * sum(abs(math.log2(int(p[n])) - 4) for n in ("wg", "tile_m", "tile_n"))
    mine, theirs = rng.normal(speed, 0.02, (2, 8))
    levels = [math.log2(int(p["vec"])), float(int(p["unroll"]) // 2 % 4), float(bool(p["pad"]))]
    return Evaluation(
        job_id=trial.id,
        status=EvaluationStatus.OK,
        correctness=Correctness(passed=True, checks=1, max_rel=0.0),
        timing=Timing(
            log_speedups=tuple(mine.tolist()),
            workloads=(WorkloadTiming(workload="w", latency_us=1.0, baseline_us=1.0),),
            rival_log_speedups=tuple(theirs.tolist()) if trial.incumbent else (),
            rival_log_ratios=tuple((mine - theirs).tolist()) if trial.incumbent else (),
        ),
        features=CodeFeatures(
            origin="source",
            counts=dict(zip(("memory", "compute", "parallelism"), levels, strict=True)),
        ),
    )


def main() -> None:
    """Prints CPU time per trial."""
    operators = (Sample(), Mutate(), Crossover(), Local(), Switch())
    search = Search(
        templates=[template("one"), template("two")],
        archive=GridArchive(),
        operators=operators,
        bandit=Bandit(names=[operator.name for operator in operators]),
        descriptor=ToyDescriptor(),
        rng=np.random.default_rng(0),
    )
    costs_ms = []
    for _ in range(TRIALS):
        started = time.thread_time()
        trial = search.ask()
        asked = time.thread_time()
        assert trial is not None
        evaluation = evaluate(trial)
        resumed = time.thread_time()
        search.tell(trial.id, evaluation)
        costs_ms.append(1e3 * (asked - started + time.thread_time() - resumed))
    for label, part in (("all", costs_ms), ("last 200", costs_ms[-200:])):
        print(f"{label:>8}: median {np.median(part):.2f} ms, 95 % {np.percentile(part, 95):.2f} ms")
    print(f"elites {len(search.archive)}, candidates {len(search.candidates)}")


if __name__ == "__main__":
    main()

"""The search in numbers, one row per step, kept in a DEAP logbook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from deap import tools

from evo.archives.base import Archive
from evo.errors import ConfigError
from evo.evaluation import Evaluation, EvaluationStatus

_FUNCTIONS = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}


class SearchLog:
    """Sums up results in steps of a fixed size, as generations would be.

    A row holds the archive as it stands at the end of the step (`evaluations`, `num_elites`,
    `coverage`, `qd_score`, `best_mean`, `best_low`, `best_high`), the step's own `valid_rate` and
    `status_<name>` counts, and over its candidates that passed `log_speedup_*` and over all
    `compile_s_*` (mean, std, min, max). What has no value yet is left out. Duels count as
    evaluations.

    Args:
        step: Results per row.

    Raises:
        ConfigError: If step is not positive.
    """

    def __init__(self, *, step: int = 20) -> None:
        if step < 1:
            raise ConfigError(f"step must be at least 1, got {step}")
        self._step = step
        self._pending: list[Evaluation] = []
        self._evaluations = 0
        speed = tools.Statistics(key=_log_speedup)
        compile_time = tools.Statistics(key=lambda evaluation: evaluation.compile_s)
        self._statistics = tools.MultiStatistics(log_speedup=speed, compile_s=compile_time)
        for name, function in (
            ("mean", np.mean),
            ("std", np.std),
            ("min", np.min),
            ("max", np.max),
        ):
            self._statistics.register(name, function)
        self.logbook = tools.Logbook()
        """The DEAP logbook, with the chapters `log_speedup` and `compile_s`."""

    def observe(self, evaluation: Evaluation, archive: Archive) -> dict[str, float] | None:
        """Takes in one result; returns the row if it completes a step."""
        self._pending.append(evaluation)
        self._evaluations += 1
        return self._close(archive) if len(self._pending) == self._step else None

    def flush(self, archive: Archive) -> dict[str, float] | None:
        """Closes a step that is not full; returns its row, or None if it holds nothing."""
        return self._close(archive) if self._pending else None

    def rows(self) -> list[dict[str, float]]:
        """Returns all rows, flat, oldest first; the first column is `step`, from 1."""
        return [self._flat(index) for index in range(len(self.logbook))]

    def _close(self, archive: Archive) -> dict[str, float]:
        batch, self._pending = self._pending, []
        stats = archive.stats()
        statuses = Counter(evaluation.status.value for evaluation in batch)
        record: dict[str, Any] = {
            "step": len(self.logbook) + 1,
            "evaluations": self._evaluations,
            "valid_rate": statuses[EvaluationStatus.OK.value] / len(batch),
            "num_elites": stats.num_elites,
            "coverage": stats.coverage,
            "qd_score": stats.qd_score,
        }
        if stats.best is not None:
            record |= {
                "best_mean": stats.best.mean,
                "best_low": stats.best.low,
                "best_high": stats.best.high,
            }
        record |= {f"status_{status.value}": statuses[status.value] for status in EvaluationStatus}
        self.logbook.record(**record, **self._chapters(batch))
        return self._flat(len(self.logbook) - 1)

    def _chapters(self, batch: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
        timed = [evaluation for evaluation in batch if evaluation.timing is not None]
        chapters: dict[str, dict[str, float]] = {}
        for name, members in (("log_speedup", timed), ("compile_s", batch)):
            # An empty chapter keeps the chapters as long as the logbook.
            compiled = self._statistics[name].compile(members) if members else {}
            chapters[name] = {key: float(value) for key, value in compiled.items()}
        return chapters

    def _flat(self, index: int) -> dict[str, float]:
        row: dict[str, float] = dict(self.logbook[index])
        for name in sorted(self.logbook.chapters):
            chapter = self.logbook.chapters[name][index]
            row |= {
                f"{name}_{key}": chapter[key]
                for key in ("mean", "std", "min", "max")
                if key in chapter
            }
        return row


def _log_speedup(evaluation: Evaluation) -> float:
    assert evaluation.timing is not None
    return float(np.mean(evaluation.timing.log_speedups))

"""The tracking contract: what a run tells the outside world, and a wrapper that never fails it.

The journal is the truth; a tracker is a view. A tracker that breaks costs a warning line, never a
search. What is plainly wrong before anything has run (a mistyped URI, a server that does not
answer) is the user's to mend and is raised by `start`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from evo.archives.base import Archive, ArchiveStats, Elite
from evo.confirm import ConfirmRow
from evo.errors import ConfigError
from evo.genome import Candidate
from evo.job import DeviceInfo

_LOG = logging.getLogger(__name__)

RUN_STATUSES = ("finished", "stopped", "failed")
"""finished: budget used or space exhausted; stopped: interrupted, can be resumed; failed: error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is known before the first candidate.

    Attributes:
        run_dir: Folder of the run.
        run_name: Name shown in lists.
        task: Task name.
        backend: Backend name.
        device: Device every evaluation runs on.
        seed: Seed of the search.
        config: Flattened configuration, "search.initial_samples" -> value.
        resolved_yaml: The whole configuration as YAML.
        git_sha: Commit of the working tree; empty outside one.
        command: Command line that started the run.
        versions: Package name -> version.
        description: One line about the task.
    """

    run_dir: Path
    run_name: str
    task: str
    backend: str
    device: DeviceInfo
    seed: int
    config: Mapping[str, object] = field(default_factory=dict)
    resolved_yaml: str = ""
    git_sha: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is known at the end.

    Attributes:
        status: One of `RUN_STATUSES`.
        elites: The archive, in cell order.
        stats: The archive's summary.
        device: Device measured on, roofline included.
        confirm: Rows of the confirm pass; empty if there was none.
        sources: Candidate id -> rendered source of its first workload.
        candidates: Candidate id -> candidate, ancestors of the elites included, for lineage.
        logbook: One row of numbers per step, see `evo/logbook.py`.
        status_counts: Evaluation status -> number of candidates.
        evaluations: Evaluations made.
        elapsed_s: Wall time of the search, seconds, over all sessions.
        message: One line on why the run ended.
    """

    status: str
    elites: Sequence[Elite]
    stats: ArchiveStats
    device: DeviceInfo
    confirm: Sequence[ConfirmRow] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    logbook: Sequence[Mapping[str, float]] = ()
    status_counts: Mapping[str, int] = field(default_factory=dict)
    evaluations: int = 0
    elapsed_s: float = 0.0
    message: str = ""

    def __post_init__(self) -> None:
        if self.status not in RUN_STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(RUN_STATUSES)}")


class Tracker(Protocol):
    """Contract of a tracker; calls come from one thread, in the order below.

    - `start` raises ConfigError, one line, when its settings cannot work.
    - The rest may raise anything: callers hold a tracker through `SafeTracker`.
    - `step` must not keep the archive: it reads what it needs before it returns.
    - `close` is idempotent and returns in bounded time.
    """

    def start(self, info: RunInfo) -> None:
        """Opens the run, or re-opens it when `info.run_dir` was tracked before."""
        ...

    def step(self, step: int, metrics: Mapping[str, float], archive: Archive) -> None:
        """Records one step's numbers (step counts up from 1)."""
        ...

    def finish(self, summary: RunSummary) -> None:
        """Records the outcome; called at most once per session."""
        ...

    def close(self) -> None:
        """Flushes and lets go."""
        ...


class SafeTracker:
    """Keeps a tracker's failures away from the search.

    `start` passes ConfigError on, since nothing has run yet. Any other failure is logged, one
    line for the first of each method, and the run goes on.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._warned: set[str] = set()
        self._started = False

    def start(self, info: RunInfo) -> None:
        """Opens the run.

        Raises:
            ConfigError: If the tracker's settings cannot work.
        """
        try:
            self._tracker.start(info)
            self._started = True
        except ConfigError:
            raise
        except Exception as error:
            self._warn("start", error)

    def step(self, step: int, metrics: Mapping[str, float], archive: Archive) -> None:
        """Records one step, or warns."""
        if self._started:
            self._guard("step", lambda: self._tracker.step(step, metrics, archive))

    def finish(self, summary: RunSummary) -> None:
        """Records the outcome, or warns."""
        if self._started:
            self._guard("finish", lambda: self._tracker.finish(summary))

    def close(self) -> None:
        """Closes, or warns."""
        self._guard("close", self._tracker.close)

    def _guard(self, method: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._warn(method, error)

    def _warn(self, method: str, error: Exception) -> None:
        if method not in self._warned:
            self._warned.add(method)
            _LOG.warning("tracking: %s failed, the search goes on: %s", method, one_line(error))


def one_line(error: BaseException, limit: int = 300) -> str:
    """Returns an error as one line of at most `limit` letters; its type if it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."

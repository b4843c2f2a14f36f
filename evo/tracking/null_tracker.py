"""No tracking: the journal and the run folder hold everything that matters."""

from __future__ import annotations

from collections.abc import Mapping

from evo.archives.base import Archive
from evo.tracking.base import RunInfo, RunSummary


class NullTracker:
    """A tracker that records nothing."""

    def start(self, info: RunInfo) -> None:
        """Does nothing."""

    def step(self, step: int, metrics: Mapping[str, float], archive: Archive) -> None:
        """Does nothing."""

    def finish(self, summary: RunSummary) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

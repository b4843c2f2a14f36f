"""One thread that does a tracker's slow work, in order, without ever holding up the search."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable

from evo.tracking.base import one_line

_LOG = logging.getLogger(__name__)

GIVE_UP_AFTER = 3
"""Failures in a row after which nothing more is tried."""


class Writer:
    """Runs jobs one after another in a background thread.

    A job that raises costs one warning line for the first failure; after `GIVE_UP_AFTER` in a row
    the rest is dropped. When the queue is full, jobs that may be dropped are, with one warning.

    Args:
        name: What is written, for the warnings.
        capacity: Jobs that may wait.
    """

    def __init__(self, name: str, capacity: int = 256) -> None:
        self._name = name
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._failures_in_a_row = 0
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"{name}-writer", daemon=True)
        self._thread.start()

    @property
    def gave_up(self) -> bool:
        """Too many failures in a row: whatever is submitted is dropped."""
        return self._failures_in_a_row >= GIVE_UP_AFTER

    def submit(self, job: Callable[[], None], *, droppable: bool = True) -> None:
        """Queues a job; one that is not droppable may wait up to ten seconds for room."""
        try:
            self._queue.put(job, block=not droppable, timeout=None if droppable else 10.0)
        except queue.Full:
            self._warn("slow", f"{self._name} is too slow: some steps are not recorded")

    def close(self, timeout_s: float) -> None:
        """Works off what is queued, for `timeout_s` at most."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._warn("close", f"{self._name} did not finish within {timeout_s:g} s; given up")

    def _run(self) -> None:
        # Being nice matters: on a CPU device this thread shares the cores that are being timed.
        # Priorities are per thread on Linux only; elsewhere this would slow the whole process.
        if hasattr(os, "sched_getaffinity"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while (job := self._queue.get()) is not None:
            if self.gave_up:
                continue
            try:
                job()
                self._failures_in_a_row = 0
            except Exception as error:
                self._failures_in_a_row += 1
                self._warn("job", f"{self._name} failed, the search goes on: {one_line(error)}")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("tracking: %s", text)

"""One small tool of the daemon and the pool: waiting for the next change of some state."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes everyone who waits for the next change; usable again and again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wakes all who hold `next()` from before."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def next(self) -> asyncio.Event:
        """Returns the event of the next change; take it before looking at the state."""
        return self._event

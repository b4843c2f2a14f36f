"""The seam between the search and whatever evaluates: a daemon pool, a local executor, a replay."""

from __future__ import annotations

from typing import Protocol

from evo.evaluation import Evaluation
from evo.job import DeviceInfo, EvaluationRequest, TaskBundle


class Evaluator(Protocol):
    """Contract of an evaluator.

    - `start` connects, checks versions and makes the task known; raises WorkerError on failure.
    - `evaluate` is a coroutine and may be awaited `slots` times at once. It returns an Evaluation
      for every outcome that a kernel can cause, and INFRA_ERROR when infrastructure failed for
      good after its own retries; it raises WorkerError only when no worker is left.
    - Cancelling an `evaluate` releases its slot and stops the device work.
    - A duel runs both arms on the same device, whichever worker that is.
    """

    @property
    def slots(self) -> int:
        """Evaluations that can usefully be in flight."""
        ...

    @property
    def device(self) -> DeviceInfo:
        """The device every slot has; known after `start`."""
        ...

    async def start(self, bundle: TaskBundle) -> None:
        """Connects and makes the task known."""
        ...

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates one request."""
        ...

    async def close(self) -> None:
        """Releases everything; idempotent."""
        ...

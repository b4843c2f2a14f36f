"""How a stage ends an evaluation: one exception carries a status and what may be said about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from evo.evaluation import Correctness, EvaluationStatus, Timing
from workers.execution import ExecutorCrash, ExecutorTimeout, KernelFailure

HACK_MESSAGE = "rejected: the run broke the integrity rules"
"""All that is ever said: naming the rule would teach a search to get round it."""

MAX_LOG_CHARS = 16 * 1024


class Rejected(Exception):
    """Ends an evaluation with a status; never leaves the service.

    Attributes:
        status: Outcome.
        message: One line for people and feedback.
        log: Compiler or runtime output.
        detail: For the worker's own log only; not part of the evaluation.
        correctness: Evidence gathered so far.
        timing: Only with status HACK.
    """

    def __init__(
        self,
        status: EvaluationStatus,
        message: str,
        *,
        log: str = "",
        detail: str = "",
        correctness: Correctness | None = None,
        timing: Timing | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.log = log if len(log) <= MAX_LOG_CHARS else log[:MAX_LOG_CHARS] + "\n[truncated]"
        self.detail = detail
        self.correctness = correctness
        self.timing = timing


def hack(
    detail: str, *, correctness: Correctness | None = None, timing: Timing | None = None
) -> Rejected:
    """Returns a HACK verdict whose reason stays in the worker's log."""
    return Rejected(
        EvaluationStatus.HACK, HACK_MESSAGE, detail=detail, correctness=correctness, timing=timing
    )


@contextlib.contextmanager
def kernel_faults(where: str) -> Iterator[None]:
    """Turns what a kernel did to the executor into a verdict.

    An executor that was ended from outside is no kernel's fault and passes through.

    Args:
        where: What was running, e.g. "workload square".
    """
    try:
        yield
    except ExecutorTimeout as error:
        raise Rejected(EvaluationStatus.TIMEOUT, f"{error} ({where})") from error
    except ExecutorCrash as error:
        if error.from_outside:
            raise
        raise Rejected(
            EvaluationStatus.RUNTIME_ERROR, f"{error} ({where})", log=error.log
        ) from error
    except KernelFailure as error:
        raise Rejected(EvaluationStatus.RUNTIME_ERROR, f"{error} ({where})") from error

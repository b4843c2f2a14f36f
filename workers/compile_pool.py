"""A few compile children, so that a compiler that hangs, crashes or eats memory costs one child."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Sequence

from evo.errors import WorkerError
from workers.execution import Compiled, ExecutorCrash, ExecutorTimeout
from workers.executor import Executor

MEMORY_LIMIT_BYTES = 8 << 30
_RECYCLE_AFTER = 500
"""Compilations after which a child is replaced: compilers and drivers leak."""


class CompilePool:
    """Compiles in parallel children; `compile` may be called from any number of threads."""

    def __init__(
        self,
        size: int,
        backend: str,
        device_index: int = 0,
        *,
        memory_limit_bytes: int | None = MEMORY_LIMIT_BYTES,
    ) -> None:
        """Starts nothing yet; each child starts when it is first needed.

        Args:
            size: Compilations at once.
            backend: Name of a backend.
            device_index: Device to compile for.
            memory_limit_bytes: Bound on the address space of each child.
        """
        if size < 1:
            raise ValueError("a compile pool needs at least one child")
        self._closed = threading.Event()
        self._executors = tuple(
            Executor(
                backend=backend,
                device_index=device_index,
                role="compile",
                memory_limit_bytes=memory_limit_bytes,
            )
            for _ in range(size)
        )
        self._uses = dict.fromkeys(self._executors, 0)
        # Last in, first out: a lightly loaded pool keeps one child, and it stays warm.
        self._idle: queue.LifoQueue[Executor] = queue.LifoQueue()
        for executor in self._executors:
            self._idle.put(executor)

    def compile(
        self,
        *,
        source: str,
        build_options: Sequence[str],
        entries: Sequence[str],
        timeout_s: float,
    ) -> Compiled:
        """Compiles in the next idle child; waiting for one does not count towards the limit.

        Whatever the source does to the compiler comes back as `ok=False` with a log.

        Raises:
            BackendUnavailable: If no child can start for lack of a package or device.
            WorkerError: If the pool is closed, or a child does not start or is ended from outside.
        """
        executor = self._idle.get()
        try:
            if self._uses[executor] >= _RECYCLE_AFTER:
                executor.kill()
                self._uses[executor] = 0
            self._uses[executor] += 1
            executor.start()
            return executor.compile(
                source=source, build_options=build_options, entries=entries, timeout_s=timeout_s
            )
        except ExecutorTimeout:
            return _failed(f"compilation took longer than {timeout_s:g} s", timeout_s)
        except ExecutorCrash as crash:
            if self._closed.is_set():
                raise WorkerError("the compile pool is closed") from None
            if crash.from_outside:
                raise WorkerError(f"{crash.message}, while it compiled") from None
            return _failed(_describe(crash, timeout_s), 0.0)
        finally:
            self._idle.put(executor)

    def close(self) -> None:
        """Ends all children; compilations in progress raise WorkerError."""
        self._closed.set()
        for executor in self._executors:
            executor.close()


def _failed(log: str, compile_s: float) -> Compiled:
    return Compiled(ok=False, log=log, compile_s=compile_s)


def _describe(crash: ExecutorCrash, timeout_s: float) -> str:
    if crash.signal == signal.SIGXCPU:
        return f"compilation used more than {timeout_s:g} s of processor time"
    return f"the compiler failed: {crash.message}\n{crash.log}".strip()

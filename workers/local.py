"""The evaluator without a network: the same service, in a thread of this process.

Kernels still run in their own child process; only gRPC is left out.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from evo.errors import WorkerError
from evo.evaluation import Evaluation
from evo.job import DeviceInfo, EvaluationRequest, TaskBundle
from workers.service import EvaluationService


class LocalEvaluator:
    """Keeps the `evo.evaluator.Evaluator` contract on one device of this machine; one slot.

    Args:
        backend: Name of the backend.
        device_index: Which of its devices.
        worker_name: Put into every result's environment.
        lint: Refuse tasks whose own check accepts known-wrong answers.
    """

    def __init__(
        self,
        *,
        backend: str,
        device_index: int = 0,
        worker_name: str = "local",
        lint: bool = True,
    ) -> None:
        self._service = EvaluationService(
            backend=backend, device_index=device_index, worker_name=worker_name, lint=lint
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluate")
        self._device: DeviceInfo | None = None
        self._closed = False

    @property
    def slots(self) -> int:
        """One: a device measures one kernel at a time."""
        return 1

    @property
    def device(self) -> DeviceInfo:
        """The device, ceilings included.

        Raises:
            WorkerError: Before `start`.
        """
        if self._device is None:
            raise WorkerError("the evaluator was not started")
        return self._device

    async def start(self, bundle: TaskBundle) -> None:
        """Opens the device and makes the task known.

        Raises:
            BackendUnavailable: If the device is missing.
            TaskError: If the task is refused.
        """
        if self._closed:
            raise WorkerError("the evaluator is closed")
        loop = asyncio.get_running_loop()
        self._device = await loop.run_in_executor(self._thread, self._service.start)
        await loop.run_in_executor(self._thread, self._service.put_task, bundle)

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates one request; cancelling it stops the device work and frees the slot."""
        if self._closed:
            raise WorkerError("the evaluator is closed")
        loop = asyncio.get_running_loop()
        future = self._thread.submit(self._service.evaluate, request)
        try:
            return await asyncio.wrap_future(future, loop=loop)
        except asyncio.CancelledError:
            # Still queued, it never starts now; running, it is stopped.
            self._service.cancel(request.job_id)
            raise

    async def close(self) -> None:
        """Ends the child processes; idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._service.close)
        self._thread.shutdown(wait=True, cancel_futures=True)

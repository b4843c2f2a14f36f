"""What the outputs should be: the task's torch reference in float64, on exactly the input bits.

It is evaluated in the parent process and never sent to the executor, so no kernel can find it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evo.errors import TaskError
from evo.task import Reference, Task, Workload, load_reference
from workers.measure.inputs import Array, Reals, make_inputs, seeded

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One set of inputs and its reference outputs.

    Attributes:
        inputs: Input name -> array as uploaded.
        outputs: Output name -> float64 reference (int64 for integer outputs).
        rms: Output name -> root mean square of the finite reference values.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    rms: dict[str, float]

    @property
    def size_bytes(self) -> int:
        """Bytes held by inputs and outputs."""
        return sum(a.nbytes for a in (*self.inputs.values(), *self.outputs.values()))


def to_tensors(
    inputs: Mapping[str, Array], dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Turns arrays into torch tensors: reals as `dtype` (float64 if None), integers as int64."""
    torch = _torch()
    wanted = torch.float64 if dtype is None else dtype
    tensors = {}
    for name, array in inputs.items():
        tensor = torch.from_numpy(np.array(array))
        if tensor.is_floating_point():
            tensors[name] = tensor.to(wanted)
        else:
            tensors[name] = tensor.to(torch.int64)
    return tensors


def evaluate_reference(
    task: Task,
    reference: Reference,
    inputs: Mapping[str, Array],
    workload: Workload,
    dtype: torch.dtype | None = None,
) -> dict[str, Array]:
    """Runs the reference and checks that it gives the outputs the task declares.

    Args:
        task: Declares outputs and scalars.
        reference: The task's `reference` function.
        inputs: Input name -> array.
        workload: Gives the dims.
        dtype: Floating type to compute in; float64 if None.

    Returns:
        Output name -> array, float64 (int64 for integers).

    Raises:
        TaskError: If the reference raises, omits an output or gives a wrong shape.
    """
    torch = _torch()
    where = f"task {task.name}: reference.py on workload {workload.name}"
    try:
        with torch.no_grad():
            result = reference(to_tensors(inputs, dtype), dict(workload.dims), task.scalar_values)
    except Exception as error:
        raise TaskError(f"{where} raised {type(error).__name__}: {_one_line(error)}") from error
    outputs = {}
    for spec in task.outputs:
        if not isinstance(result, dict) or spec.name not in result:
            raise TaskError(f"{where} returns no output {spec.name!r}")
        tensor = result[spec.name]
        shape = spec.resolve(workload.dims)
        if tuple(tensor.shape) != shape:
            got = tuple(tensor.shape)
            raise TaskError(f"{where} gives {spec.name} the shape {got}, declared is {shape}")
        kind = torch.float64 if tensor.is_floating_point() else torch.int64
        outputs[spec.name] = tensor.to(kind).contiguous().numpy()
    return outputs


class ReferenceCache:
    """Expected results, least recently used ones dropped when a byte limit is passed.

    Thread safe. The key holds the task's content hash, so an edited task never meets old results.

    Args:
        max_bytes: Bytes of inputs and outputs to keep; the newest entry always stays.
    """

    def __init__(self, *, max_bytes: int = 1 << 30) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, str, str, int], Expected] = OrderedDict()
        self._references: dict[str, Reference] = {}
        self._bytes = 0
        self._lock = threading.RLock()
        self.evaluations = 0

    def get(self, task: Task, workload: Workload, family: str, seed: int) -> Expected:
        """Returns inputs and expected outputs, computing them at first use.

        Raises:
            TaskError: If the reference fails or does not fit the task.
        """
        key = (task.bundle.task_hash, workload.name, family, seed)
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return found
            made = self._make(task, workload, family, seed)
            self._entries[key] = made
            self._bytes += made.size_bytes
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= dropped.size_bytes
            return made

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._entries.clear()
            self._references.clear()
            self._bytes = 0

    def _make(self, task: Task, workload: Workload, family: str, seed: int) -> Expected:
        task_hash = task.bundle.task_hash
        if task_hash not in self._references:
            self._references[task_hash] = load_reference(task)
        self.evaluations += 1
        rng = seeded(seed, workload.name, family)
        inputs = make_inputs(task, workload, family, rng)
        outputs = evaluate_reference(task, self._references[task_hash], inputs, workload)
        for array in (*inputs.values(), *outputs.values()):
            array.setflags(write=False)
        return Expected(
            inputs=inputs, outputs=outputs, rms={n: _rms(a) for n, a in outputs.items()}
        )


def _rms(array: Array) -> float:
    values: Reals = np.asarray(array, dtype=np.float64)
    finite = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else ""


def _torch() -> Any:
    """Imports torch at first use; one thread, so that it does not compete with the device."""
    global _threads_set
    import torch

    if not _threads_set:
        torch.set_num_threads(1)
        _threads_set = True
    return torch


_threads_set = False

"""Input families: how the tensors of a check are filled.

One family hides what another shows. Positive inputs hide a lost sign, unit-scale inputs hide a
wrong epsilon, random reals hide an off-by-one that small integers expose exactly. All of them are
drawn from a secret seed, so a kernel cannot be written for the data it will see.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evo.errors import TaskError
from evo.task import Task, TensorSpec, Workload

Array = npt.NDArray[np.generic]
Reals = npt.NDArray[np.float64]

SPIKES = (4.0, 8.0)
"""Size of spikes, either sign: enough to dominate a sum, while the rounding that a product of two
leaves in an fp32 running sum stays near everyone else's."""
INTEGER_LIMIT = 3


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Reals:
    return rng.standard_normal(shape)


def _uniform(shape: tuple[int, ...], rng: np.random.Generator) -> Reals:
    values: Reals = rng.uniform(-1.0, 1.0, shape)
    return values


def _offset(shape: tuple[int, ...], rng: np.random.Generator) -> Reals:
    offset = float(rng.choice((-1.0, 1.0))) * rng.uniform(1.0, 3.0)
    values: Reals = offset + rng.uniform(0.5, 2.0) * rng.standard_normal(shape)
    return values


def _spikes(shape: tuple[int, ...], rng: np.random.Generator) -> Reals:
    values = rng.standard_normal(shape)
    flat = values.reshape(-1)
    count = max(1, flat.size // 500)
    sizes = rng.choice((-1.0, 1.0), size=count) * rng.uniform(*SPIKES, size=count)
    flat[rng.integers(0, flat.size, size=count)] = sizes
    return values


def _integers(shape: tuple[int, ...], rng: np.random.Generator) -> Reals:
    return rng.integers(-INTEGER_LIMIT, INTEGER_LIMIT + 1, shape).astype(np.float64)


def _blocks(shape: tuple[int, ...], rng: np.random.Generator) -> Reals:
    count = int(np.prod(shape, dtype=np.int64))
    run = int(rng.integers(5, 97))
    runs = rng.standard_normal(-(-count // run) + 1)
    start = int(rng.integers(0, run))
    values: Reals = np.repeat(runs, run)[start : start + count].reshape(shape)
    return values


def _special(shape: tuple[int, ...], rng: np.random.Generator) -> Reals:
    values = rng.standard_normal(shape)
    flat = values.reshape(-1)
    for value in (np.nan, np.inf, -np.inf):
        flat[rng.integers(0, flat.size, size=max(1, flat.size // 2000))] = value
    return values


FAMILIES: dict[str, Callable[[tuple[int, ...], np.random.Generator], Reals]] = {
    "normal": _normal,
    "uniform": _uniform,
    "offset": _offset,
    "spikes": _spikes,
    "integers": _integers,
    "blocks": _blocks,
    "special": _special,
}
"""Name -> generator of reals; `special` holds NaN and infinities."""


def seeded(seed: int, *labels: str) -> np.random.Generator:
    """Returns a generator that depends on the seed and the labels, and on nothing else."""
    return np.random.default_rng([seed, *(zlib.crc32(label.encode()) for label in labels)])


def make_inputs(
    task: Task, workload: Workload, family: str, rng: np.random.Generator
) -> dict[str, Array]:
    """Fills every input tensor of a workload.

    Args:
        task: Whose inputs.
        workload: Gives the dims.
        family: A key of `FAMILIES`.
        rng: Seeded generator; consumed in the task's input order.

    Returns:
        Input name -> contiguous array with the dtype and shape of its spec.

    Raises:
        TaskError: If the family is unknown.
    """
    if family not in FAMILIES:
        raise TaskError(
            f"task {task.name}: unknown input family {family!r}; allowed: {', '.join(FAMILIES)}"
        )
    return {spec.name: _fill(spec, workload, family, rng) for spec in task.inputs}


def _fill(spec: TensorSpec, workload: Workload, family: str, rng: np.random.Generator) -> Array:
    shape = spec.resolve(workload.dims)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return np.ascontiguousarray(FAMILIES[family](shape, rng).astype(dtype))
    # Integers have no scale to vary: one family of small values, unsigned ones not negative.
    low = 0 if dtype.kind == "u" else -INTEGER_LIMIT
    return rng.integers(low, INTEGER_LIMIT + 1, shape).astype(dtype)

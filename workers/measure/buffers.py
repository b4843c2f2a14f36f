"""Guard bands and poison: how stray accesses and unwritten results are seen. Pure numpy.

Every buffer is one allocation: guard, payload, guard. Kernels get the payload's address. The guards
of inputs hold NaN bits, so a read outside contaminates the result; those of outputs and scratch
hold random bytes, so a write outside shows. Payloads of outputs and scratch are poisoned before
every call. The child only copies bytes; the verdicts below are reached in the parent.

The scheme follows what compute-sanitizers and CUDA-L2's bordered operands do, without their cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from evo.errors import TaskError

Bytes = NDArray[np.uint8]

GUARD_BYTES = 64 * 1024
"""Multiple of every device's base address alignment, so the payload keeps its alignment."""

INPUT_GUARD_BYTE = 0xFF
"""All ones is a NaN in every floating-point format and -1 as an integer."""

DTYPES: dict[str, np.dtype[np.generic]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),  # numpy has none: raw bits
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int16": np.dtype(np.int16),
    "uint16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int64": np.dtype(np.int64),
    "uint64": np.dtype(np.uint64),
}

# Sign, exponent and quiet bit are fixed, the mantissa bits under the mask are drawn per run: a
# quiet NaN with a payload that no arithmetic produces, and a finite value near the format's
# largest. Both leave the top mantissa bits alone so that no drawn value is infinite or signalling.
_NAN_BASE = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}
_LARGE_BASE = {
    "float16": 0x7800,
    "bfloat16": 0x7E80,
    "float32": 0x7E800000,
    "float64": 0x7FC0 << 48,
}
_MANTISSA_MASK = {
    "float16": 0x01FF,
    "bfloat16": 0x003F,
    "float32": 0x003FFFFF,
    "float64": (1 << 51) - 1,
}


class Poison(IntEnum):
    """Which pattern to fill results with before a run."""

    NAN = 0
    """A quiet NaN with a random payload; random bits for integers."""
    LARGE = 1
    """A large finite value; other random bits for integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the payload lies in an allocation; all numbers are bytes.

    The end guard starts right behind the last payload byte: one element too far is already seen.
    """

    payload_bytes: int
    guard_bytes: int = GUARD_BYTES

    @property
    def start(self) -> int:
        """First byte of the payload."""
        return self.guard_bytes

    @property
    def end(self) -> int:
        """First byte behind the payload."""
        return self.guard_bytes + self.payload_bytes

    @property
    def total(self) -> int:
        """Size of the allocation."""
        return self.payload_bytes + 2 * self.guard_bytes


def storage_dtype(name: str) -> np.dtype[np.generic]:
    """Returns the numpy dtype that stores a task's dtype; bfloat16 is stored as uint16.

    Raises:
        TaskError: If the dtype is not supported.
    """
    try:
        return DTYPES[name]
    except KeyError:
        allowed = ", ".join(DTYPES)
        raise TaskError(f"dtype '{name}' is not supported; allowed: {allowed}") from None


def raw_bytes(array: NDArray[np.generic]) -> Bytes:
    """Returns an array's bytes in C order, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def poison_bits(dtype: str, kind: Poison, rng: np.random.Generator) -> bytes:
    """Draws the bit pattern, one element wide, that marks elements as unwritten in one run.

    Args:
        dtype: A task dtype.
        kind: NaN or large finite; integers get random bits either way, different in each draw.
        rng: Seeded by the parent; kernels can't guess the draw.
    """
    itemsize = storage_dtype(dtype).itemsize
    if dtype in _MANTISSA_MASK:
        base = (_NAN_BASE if kind is Poison.NAN else _LARGE_BASE)[dtype]
        mask = _MANTISSA_MASK[dtype]
        bits = base | (int(rng.integers(1, mask, endpoint=True)) & mask)
    else:
        bits = int.from_bytes(rng.bytes(itemsize), "little")
    return bits.to_bytes(itemsize, "little")


def guard_block(seed: int, nbytes: int = GUARD_BYTES) -> Bytes:
    """Returns the random bytes that fill each guard of outputs and scratch in one run."""
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype=np.uint8)


def input_guard(nbytes: int = GUARD_BYTES) -> Bytes:
    """Returns the NaN bits that fill each guard of an input."""
    return np.full(nbytes, INPUT_GUARD_BYTE, dtype=np.uint8)


def guarded(payload: Bytes, guard: Bytes) -> Bytes:
    """Returns guard, payload, guard as one array of bytes."""
    return np.concatenate([guard, payload, guard])


def guards_intact(before: Bytes, after: Bytes, expected: Bytes) -> bool:
    """Says whether both guards of a buffer still hold what was put there."""
    return np.array_equal(before, expected) and np.array_equal(after, expected)


def count_unwritten(payload: Bytes, bits: bytes) -> int:
    """Counts elements whose bits equal the poison.

    Args:
        payload: Raw bytes, a whole number of elements.
        bits: One element's poison, little endian.
    """
    word = np.dtype(f"<u{len(bits)}")
    return int(np.count_nonzero(payload.view(word) == np.frombuffer(bits, dtype=word)[0]))


def as_tensor(payload: Bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Views raw bytes as a tensor of a task's dtype and shape."""
    return payload.view(storage_dtype(dtype)).reshape(shape)

"""Tunable parameters: a name, the values it may take, and whether their order means anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evo.errors import SpaceError
from evo.genome import ParamValue

KINDS = ("pow2", "range", "values", "bool")
MAX_VALUES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter.

    Attributes:
        name: Name in expressions and in the template body.
        kind: "pow2", "range", "values" or "bool".
        values: All values, in order.
        default: One of `values`.
        ordered: Neighbouring values are alike (numbers in order), so a small step makes sense.

    Raises:
        SpaceError: If the values are empty, repeated or of mixed kinds, or lack the default.
    """

    name: str
    kind: str
    values: tuple[ParamValue, ...]
    default: ParamValue
    ordered: bool

    def __post_init__(self) -> None:
        if not self.values:
            raise SpaceError(f"parameter {self.name} has no value")
        if len(self.values) > MAX_VALUES:
            raise SpaceError(f"parameter {self.name} has more than {MAX_VALUES} values")
        if len({(type(value), value) for value in self.values}) != len(self.values):
            raise SpaceError(f"parameter {self.name} lists a value twice")
        if self.index(self.default) is None:
            raise SpaceError(
                f"parameter {self.name}: default {self.default!r} is not one of {self.describe()}"
            )

    def describe(self) -> str:
        """The values in words, shortened where there are many."""
        shown = [str(value) for value in self.values]
        return ", ".join(shown if len(shown) <= 20 else [*shown[:10], "...", shown[-1]])

    def index(self, value: ParamValue) -> int | None:
        """Position of a value of exactly that type (1, 1.0 and True differ), or None."""
        for position, candidate in enumerate(self.values):
            if type(candidate) is type(value) and candidate == value:
                return position
        return None

    def nearest(self, value: object) -> int:
        """Position of the value closest to any object; the default's where none is close."""
        if isinstance(value, (bool, int, float, str)):
            exact = self.index(value)
            if exact is not None:
                return exact
        if self.ordered and isinstance(value, (int, float)):
            gaps = [abs(float(item) - float(value)) for item in self.values]
            return gaps.index(min(gaps))
        position = self.index(self.default)
        assert position is not None  # checked on construction
        return position


def pow2(name: str, low: int, high: int, default: int) -> Param:
    """Powers of two from `low` to `high`, both included.

    Raises:
        SpaceError: If a bound is not a power of two or they are in the wrong order.
    """
    for bound in (low, high):
        if bound < 1 or bound & (bound - 1) or bound > 2**62:
            raise SpaceError(f"parameter {name}: {bound} is not a power of two")
    values = tuple(1 << power for power in range(low.bit_length() - 1, high.bit_length()))
    return Param(name=name, kind="pow2", values=values, default=default, ordered=True)


def stepped(name: str, low: int, high: int, step: int, default: int) -> Param:
    """Integers from `low` to at most `high` in steps.

    Raises:
        SpaceError: If the step is not positive or the bounds are in the wrong order.
    """
    if step < 1:
        raise SpaceError(f"parameter {name}: step {step} is not positive")
    if (high - low) // step >= MAX_VALUES:
        raise SpaceError(f"parameter {name} has more than {MAX_VALUES} values")
    values = tuple(range(low, high + 1, step))
    return Param(name=name, kind="range", values=values, default=default, ordered=True)


def listed(name: str, values: Sequence[ParamValue], default: ParamValue) -> Param:
    """An explicit list; numbers in rising or falling order count as ordered.

    Raises:
        SpaceError: If numbers, texts and truth values are mixed.
    """
    groups = {
        "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
        for value in values
    }
    if len(groups) > 1:
        raise SpaceError(f"parameter {name} mixes {' and '.join(sorted(groups))}")
    ordered = False
    if groups == {"number"}:
        rising = sorted(values, key=float)
        ordered = list(values) in (rising, rising[::-1])
    return Param(name=name, kind="values", values=tuple(values), default=default, ordered=ordered)


def flag(name: str, default: bool) -> Param:
    """False or true."""
    return Param(name=name, kind="bool", values=(False, True), default=default, ordered=False)

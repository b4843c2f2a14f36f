"""The valid parameter sets of one template on one device: size, samples, neighbours, repair.

Nothing here enumerates a large product: see `evo.constraints` for how points are found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.constraints import Component, Constraint, Point, refuse_empty, split
from evo.errors import SpaceError, TemplateError
from evo.expressions import compile_expression, suggest
from evo.genome import ParamValue
from evo.params import Param

Params = dict[str, ParamValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSize:
    """Number of valid points; `exact` is False where it is an estimate."""

    count: int
    exact: bool


class Space:
    """A parameter set is valid iff every constraint holds in every context.

    Args:
        params: The parameters, in the template's order.
        constraints: Conditions over parameters and the names in the contexts.
        contexts: One mapping per workload: dimensions, scalars and "device".

    Raises:
        SpaceError: If no valid point exists (names the constraint that excludes most), or a
            parameter's name is given twice.
        TemplateError: If a constraint cannot be compiled or names something unknown.
    """

    def __init__(
        self,
        *,
        params: Sequence[Param],
        constraints: Sequence[str] = (),
        contexts: Sequence[Mapping[str, Any]] = ({},),
    ) -> None:
        self.params = tuple(params)
        self.constraints = tuple(constraints)
        self.contexts = tuple(dict(context) for context in contexts)
        self._by_name = {param.name: param for param in self.params}
        if len(self._by_name) != len(self.params):
            raise SpaceError("a parameter is given twice")
        self._constraints = [self._bind(text) for text in self.constraints]
        self._components = split(self.params, self._constraints)
        self._size: SpaceSize | None = None
        self._defaults = self._find_defaults()

    def _bind(self, text: str) -> Constraint:
        expression = compile_expression(text)
        known = set(self._by_name).union(*(self.contexts[:1] or ({},)))
        for name in sorted(expression.names):
            everywhere = all(name in context for context in self.contexts)
            if name not in self._by_name and not (everywhere and self.contexts):
                raise TemplateError(
                    f"in constraint {expression.text!r}: unknown name {name!r} "
                    f"{suggest(name, known)}"
                )
        return Constraint(
            expression, params=frozenset(self._by_name), contexts=self.contexts or ({},)
        )

    def _find_defaults(self) -> Params:
        for constraint in self._constraints:
            if not constraint.params and not constraint.holds({}):
                raise SpaceError(
                    f"no valid point: constraint {constraint.text!r} does not hold on this device "
                    "and these workloads, whatever the parameters"
                )
        repaired = self._assemble({param.name: param.default for param in self.params}, None)
        if isinstance(repaired, Component):
            raise refuse_empty(repaired)
        return repaired

    @property
    def constraint_evaluations(self) -> int:
        """How many times a constraint has been evaluated, for tests and profiles."""
        return sum(constraint.evaluations for constraint in self._constraints)

    @property
    def product_size(self) -> int:
        """Number of combinations, valid or not."""
        return math.prod(len(param.values) for param in self.params)

    def size(self) -> SpaceSize:
        """Number of valid points, exact where that is feasible."""
        if self._size is None:
            counts = [component.count() for component in self._components]
            self._size = SpaceSize(
                count=math.prod(count for count, _ in counts),
                exact=all(exact for _, exact in counts),
            )
        return self._size

    def defaults(self) -> Params:
        """The parameters' defaults, or the nearest valid point where they break a constraint."""
        return dict(self._defaults)

    def is_valid(self, params: Mapping[str, ParamValue]) -> bool:
        """True if all names and values are known and every constraint holds."""
        return self.violated(params) is None

    def violated(self, params: Mapping[str, ParamValue]) -> str | None:
        """Says what is wrong with a parameter set: the first problem found, or None."""
        for name in params:
            if name not in self._by_name:
                return f"unknown parameter {name!r} {suggest(name, self._by_name)}"
        for param in self.params:
            if param.name not in params:
                return f"parameter {param.name} is missing"
            if param.index(params[param.name]) is None:
                value = params[param.name]
                return f"parameter {param.name}: {value!r} is not one of {param.describe()}"
        for constraint in self._constraints:
            if not constraint.holds(params):
                return f"constraint {constraint.text!r} does not hold"
        return None

    def sample(self, rng: np.random.Generator) -> Params:
        """Draws a valid point, uniformly wherever valid points are not extremely rare.

        Raises:
            SpaceError: If none could be found within the search limits.
        """
        chosen: Params = {}
        for component in self._components:
            point = component.sample(rng)
            if point is None:
                raise refuse_empty(component)
            chosen.update(component.values(point))
        return self._ordered(chosen)

    def neighbours(self, params: Mapping[str, ParamValue], radius: int = 1) -> list[Params]:
        """Returns valid points with one parameter changed, the nearest moves first.

        An ordered parameter moves to the `radius` nearest values in each direction that are valid;
        an unordered one to any. The relation is symmetric between valid points.

        Raises:
            SpaceError: If a name or value is not of this space.
        """
        moves: list[tuple[int, int, Params]] = []
        for component in self._components:
            point = self._point(component, params)
            for index, param in enumerate(component.params):
                for step, position in self._moves(component, point, index, radius):
                    moved = {**params, param.name: param.values[position]}
                    moves.append((step, self.params.index(param), self._ordered(moved)))
        moves.sort(key=lambda move: move[:2])
        return [moved for _, _, moved in moves]

    def _moves(
        self, component: Component, point: Point, index: int, radius: int
    ) -> Iterator[tuple[int, int]]:
        """Yields (rank, position) of the valid moves of one parameter."""

        def valid(position: int) -> bool:
            return component.holds((*point[:index], position, *point[index + 1 :]))

        here, size = point[index], len(component.params[index].values)
        if not component.params[index].ordered:
            yield from ((1, i) for i in range(size) if i != here and valid(i))
            return
        for direction in (range(here - 1, -1, -1), range(here + 1, size)):
            found = 0
            for position in direction:
                if found == radius:
                    break
                if valid(position):
                    found += 1
                    yield found, position

    def enumerate(self) -> Iterator[Params]:
        """Yields every valid point once, in a fixed order; lazily."""
        # Components that are cheap to repeat are the inner loops.
        components = sorted(self._components, key=lambda component: component.is_listed)

        def extend(depth: int, chosen: Params) -> Iterator[Params]:
            if depth == len(components):
                yield self._ordered(chosen)
                return
            for point in components[depth].iterate():
                yield from extend(depth + 1, {**chosen, **components[depth].values(point)})

        return extend(0, {})

    def repair(
        self, params: Mapping[str, Any], rng: np.random.Generator | None = None
    ) -> Params | None:
        """Returns the nearest valid point, or None if none was found.

        Unknown names are dropped, missing ones and foreign values become the default or, for
        ordered parameters, the closest value.
        """
        result = self._assemble(params, rng)
        return None if isinstance(result, Component) else result

    def _assemble(
        self, params: Mapping[str, Any], rng: np.random.Generator | None
    ) -> Params | Component:
        """Repairs every component; returns the first that has no valid point."""
        chosen: Params = {}
        for component in self._components:
            target = tuple(
                param.nearest(params.get(param.name, param.default)) for param in component.params
            )
            point = component.nearest(target, rng=rng)
            if point is None:
                return component
            chosen.update(component.values(point))
        return self._ordered(chosen)

    def corners(self) -> Iterator[Params]:
        """Yields the defaults, and valid points at the extremes of every parameter.

        For each parameter: the nearest valid point to the defaults with the parameter at its lowest
        and its highest value that any valid point has (unordered ones: at every value). Then the
        valid points nearest to all lowest and all highest.
        """
        seen: set[tuple[ParamValue, ...]] = set()
        for point in self._corner_candidates():
            key = tuple(point.values())
            if key not in seen:
                seen.add(key)
                yield point

    def _corner_candidates(self) -> Iterator[Params]:
        yield self.defaults()
        for component in self._components:
            home = self._point(component, self._defaults)
            for index, param in enumerate(component.params):
                positions = range(len(param.values))
                if param.ordered:
                    extremes = [
                        self._pinned(component, home, index, positions),
                        self._pinned(component, home, index, reversed(positions)),
                    ]
                else:
                    extremes = [self._pinned(component, home, index, (i,)) for i in positions]
                for point in extremes:
                    if point is not None:
                        yield self._ordered({**self._defaults, **component.values(point)})
        for end in (0, -1):
            corner = self.repair({param.name: param.values[end] for param in self.params})
            if corner is not None:
                yield corner

    @staticmethod
    def _pinned(component: Component, home: Point, index: int, positions: Any) -> Point | None:
        """Nearest valid point to `home` at the first of `positions` that has one."""
        for position in positions:
            target = (*home[:index], position, *home[index + 1 :])
            point = component.nearest(target, pinned=index)
            if point is not None:
                return point
        return None

    def _point(self, component: Component, params: Mapping[str, ParamValue]) -> Point:
        positions = []
        for param in component.params:
            position = param.index(params[param.name]) if param.name in params else None
            if position is None:
                raise SpaceError(self.violated(params) or f"parameter {param.name} is missing")
            positions.append(position)
        return tuple(positions)

    def _ordered(self, params: Mapping[str, ParamValue]) -> Params:
        return {param.name: params[param.name] for param in self.params}

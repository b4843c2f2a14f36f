"""Constraints bound to contexts, and the independent groups of parameters they form.

A constraint couples the parameters it names; parameters that no chain of constraints connects can
be chosen independently. A component small enough to list is listed once and then exact; a larger
one is searched with each constraint checked as soon as its last parameter is known.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.errors import SpaceError, TemplateError
from evo.expressions import Expression
from evo.genome import ParamValue
from evo.intervals import ANYTHING, Interval, may_hold, of_value
from evo.params import Param

Point = tuple[int, ...]
"""Value positions, one per parameter of a component."""

LISTED_PRODUCT = 16_384
"""Components with at most this many combinations are enumerated once."""
REJECTION_TRIES = 1_000
RESTARTS = 6
NODE_LIMIT = 2_000
"""Constraint checks of the first randomised backtracking attempt; doubled with each restart."""
NEAREST_LIMIT = 4_000
COUNT_LIMIT = 200_000
PROBES = 400


class Constraint:
    """A constraint with every name but the parameters filled in, for all contexts.

    Args:
        expression: Condition that must be true.
        params: Names of the space's parameters.
        contexts: Other names (dimensions, device, ...); it must hold in every one of them.
    """

    def __init__(
        self,
        expression: Expression,
        *,
        params: frozenset[str],
        contexts: Sequence[Mapping[str, Any]],
    ) -> None:
        self.text = expression.text
        self.params = expression.names & params
        self.evaluations = 0
        self._expression = expression
        self._scopes: list[dict[str, Any]] = []
        for context in contexts:  # contexts that look the same to this constraint are one
            scope = {name: context[name] for name in expression.names - params}
            if scope not in self._scopes:
                self._scopes.append(scope)

    def holds(self, values: Mapping[str, ParamValue]) -> bool:
        """True if the condition holds in every context; one that cannot be computed does not."""
        self.evaluations += 1
        own = {name: values[name] for name in self.params}
        try:
            return all(self._expression({**scope, **own}) for scope in self._scopes)
        except TemplateError:  # such as a remainder by zero at this point
            return False

    def may_hold(self, ranges: Mapping[str, Interval]) -> bool:
        """False only if no choice of parameters within the ranges makes it hold."""
        self.evaluations += 1
        return all(may_hold(self._expression.tree, ranges, scope) for scope in self._scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One assignment of a backtracking walk.

    Attributes:
        index: Which parameter.
        decided: Constraints all of whose parameters are then known.
        narrowed: Constraints on it with other parameters still unknown.
    """

    index: int
    decided: list[Constraint]
    narrowed: list[Constraint]


class Component:
    """Parameters coupled by constraints, and the points among them that are valid.

    Args:
        params: The coupled parameters, in the space's order.
        constraints: Every constraint on them.
    """

    def __init__(self, params: Sequence[Param], constraints: Sequence[Constraint]) -> None:
        self.params = tuple(params)
        self.constraints = tuple(constraints)
        self.product = math.prod(len(param.values) for param in self.params)
        self._listed: tuple[Point, ...] | None = None
        self._plan = self._make_plan()

    @property
    def is_listed(self) -> bool:
        """True if the component is small enough to be known exactly."""
        return self.product <= LISTED_PRODUCT

    def points(self) -> tuple[Point, ...]:
        """All valid points of a listed component, computed once."""
        if self._listed is None:
            self._listed = tuple(sorted(self._walk(range(len(self.params)))))
        return self._listed

    def iterate(self) -> Iterator[Point]:
        """Yields all valid points, without keeping those of a large component."""
        yield from self.points() if self.is_listed else self._walk(range(len(self.params)))

    def values(self, point: Point) -> dict[str, ParamValue]:
        """Parameter values at a point."""
        return {param.name: param.values[i] for param, i in zip(self.params, point, strict=True)}

    def holds(self, point: Point) -> bool:
        """True if every constraint holds."""
        values = self.values(point)
        return all(constraint.holds(values) for constraint in self.constraints)

    def sample(self, rng: np.random.Generator) -> Point | None:
        """Draws a valid point: uniformly, unless valid ones are too rare to be hit by chance.

        Listed components and rejection sampling are uniform. Where fewer than about one in
        `REJECTION_TRIES` combinations is valid, randomised backtracking finds one, with a bias
        towards points whose early choices leave little room.
        """
        if self.is_listed:
            points = self.points()
            return points[int(rng.integers(len(points)))] if points else None
        sizes = [len(param.values) for param in self.params]
        for _ in range(REJECTION_TRIES):
            point = tuple(rng.integers(sizes).tolist())
            if self.holds(point):
                return point
        return self._restart(rng, pins={})

    def _restart(self, rng: np.random.Generator, *, pins: Mapping[int, int]) -> Point | None:
        """Randomised backtracking with growing limits, until found or proven not to exist."""
        for restart in range(RESTARTS):
            limit = NODE_LIMIT << restart
            end = self._evaluations() + limit
            found = self._search(rng, pins=pins, limit=limit)
            if found is not None or self._evaluations() <= end:
                return found
        return None

    def nearest(
        self,
        target: Point,
        *,
        pinned: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> Point | None:
        """Returns the valid point closest to `target`, or None if there is none (or none found).

        Distance counts steps between positions, and one for any change of an unordered parameter.
        In a large component whose valid points are far from `target`, the answer is a valid point
        moved towards it as far as single steps go.

        Args:
            target: Positions wished for.
            pinned: Index of a parameter that must keep its position.
            rng: Breaks ties; without it the first in order wins.
        """
        if self.holds(target):
            return target
        if self.is_listed:
            candidates = [
                point
                for point in self.points()
                if pinned is None or point[pinned] == target[pinned]
            ]
            if not candidates:
                return None
            distances = [self._distance(point, target) for point in candidates]
            best = [p for p, d in zip(candidates, distances, strict=True) if d == min(distances)]
            return best[0] if rng is None else best[int(rng.integers(len(best)))]
        pins = {} if pinned is None else {pinned: target[pinned]}
        found = self._restart(rng or np.random.default_rng(0), pins=pins)
        if found is None:
            return None
        close = self._spread(target, pinned=pinned, rng=rng)
        return self._approach(found, target) if close is None else close

    def _approach(self, point: Point, target: Point) -> Point:
        """Moves a valid point towards `target`, step by step, as far as that stays valid."""
        moved = True
        while moved:
            moved = False
            for index, param in enumerate(self.params):
                here, goal = point[index], target[index]
                steps = range(goal, here, 1 if here > goal else -1) if param.ordered else [goal]
                for position in steps if here != goal else []:
                    trial = (*point[:index], position, *point[index + 1 :])
                    if self.holds(trial):
                        point, moved = trial, True
                        break
        return point

    def count(self) -> tuple[int, bool]:
        """Number of valid points, and whether it is exact or an estimate."""
        if self.is_listed:
            return len(self.points()), True
        end = self._evaluations() + COUNT_LIMIT
        total = sum(1 for _ in self._walk(self._plan, limit=COUNT_LIMIT))
        if self._evaluations() <= end:
            return total, True
        return max(total, self._estimate()), False

    def excludes_most(self, rng: np.random.Generator) -> tuple[str, float]:
        """Names the constraint that most combinations fail, and the fraction that fails it."""
        sizes = [len(param.values) for param in self.params]
        if self.is_listed and self.product <= 2_000:
            points = list(itertools.product(*(range(size) for size in sizes)))
        else:
            points = [tuple(rng.integers(sizes).tolist()) for _ in range(2_000)]
        failing = {
            constraint.text: sum(not constraint.holds(self.values(point)) for point in points)
            for constraint in self.constraints
        }
        worst = max(failing, key=lambda text: failing[text])
        return worst, failing[worst] / len(points)

    def _evaluations(self) -> int:
        return sum(constraint.evaluations for constraint in self.constraints)

    def _distance(self, point: Point, target: Point) -> int:
        return sum(
            abs(a - b) if param.ordered else a != b
            for param, a, b in zip(self.params, point, target, strict=True)
        )

    def _make_plan(self) -> tuple[int, ...]:
        """Order of assignment that completes constraints early."""
        waiting = [
            {i for i, param in enumerate(self.params) if param.name in constraint.params}
            for constraint in self.constraints
        ]
        order: list[int] = []
        while waiting:
            chosen = min(waiting, key=lambda group: (len(group - set(order)), sorted(group)))
            order.extend(sorted(chosen - set(order), key=lambda i: len(self.params[i].values)))
            waiting.remove(chosen)
        order.extend(i for i in range(len(self.params)) if i not in order)
        return tuple(order)

    def _steps(self, order: Sequence[int]) -> list[_Step]:
        """Sorts constraints by the assignment that decides them, and those it only narrows."""
        steps: list[_Step] = []
        known: set[str] = set()
        for index in order:
            name = self.params[index].name
            known.add(name)
            touched = [item for item in self.constraints if name in item.params]
            decided = [item for item in touched if item.params <= known]
            # In a listed component trying all points costs less than reasoning about ranges.
            narrowed = [] if self.is_listed else [c for c in touched if not c.params <= known]
            steps.append(_Step(index=index, decided=decided, narrowed=narrowed))
        return steps

    def _walk(
        self,
        order: Sequence[int],
        *,
        choices: Callable[[int], Iterable[int]] | None = None,
        limit: int | None = None,
    ) -> Iterator[Point]:
        """Backtracks through all points, dropping a branch as soon as a constraint fails.

        Args:
            order: Indices of the parameters in the order of assignment.
            choices: Index of a parameter -> positions to try, in order; all of them by default.
            limit: Ends the walk after this many constraint evaluations.
        """
        steps = self._steps(order)
        end = math.inf if limit is None else self._evaluations() + limit
        values: dict[str, ParamValue] = {}
        unknown = {param.name: _range(param) for param in self.params}
        ranges = dict(unknown)
        point = [0] * len(self.params)

        def descend(depth: int) -> Iterator[Point]:
            if depth == len(steps):
                yield tuple(point)
                return
            step = steps[depth]
            param = self.params[step.index]
            for position in choices(step.index) if choices else range(len(param.values)):
                if self._evaluations() > end:
                    break
                point[step.index] = position
                value = values[param.name] = param.values[position]
                ranges[param.name] = of_value(value)
                if all(item.holds(values) for item in step.decided) and all(
                    item.may_hold(ranges) for item in step.narrowed
                ):
                    yield from descend(depth + 1)
            ranges[param.name] = unknown[param.name]

        return descend(0)

    def _search(
        self, rng: np.random.Generator, *, pins: Mapping[int, int], limit: int
    ) -> Point | None:
        """Finds one valid point by backtracking with values in random order, within a limit."""

        def choices(index: int) -> list[int]:
            if index in pins:
                return [pins[index]]
            order: list[int] = rng.permutation(len(self.params[index].values)).tolist()
            return order

        return next(self._walk(self._plan, choices=choices, limit=limit), None)

    def _spread(
        self, target: Point, *, pinned: int | None, rng: np.random.Generator | None
    ) -> Point | None:
        """Looks at points in order of their distance from `target`, up to `NEAREST_LIMIT`.

        Parameters move in index order and only away from the target, so each point comes up once.
        """
        ticket = itertools.count()

        def entry(cost: int, point: Point, last: int) -> tuple[int, float, int, Point, int]:
            return cost, 0.0 if rng is None else float(rng.random()), next(ticket), point, last

        queue = [entry(0, target, 0)]
        for _ in range(NEAREST_LIMIT):
            if not queue:
                return None
            cost, _tie, _ticket, point, last = heapq.heappop(queue)
            if self.holds(point):
                return point
            for index in range(last, len(self.params)):
                if index == pinned:
                    continue
                for position in self._away(index, point[index], target[index]):
                    moved = (*point[:index], position, *point[index + 1 :])
                    heapq.heappush(queue, entry(cost + 1, moved, index))
        return None

    def _away(self, index: int, position: int, target: int) -> list[int]:
        size = len(self.params[index].values)
        if not self.params[index].ordered:
            return [i for i in range(size) if i != target] if position == target else []
        steps = [-1, 1] if position == target else [1 if position > target else -1]
        return [position + step for step in steps if 0 <= position + step < size]

    def _estimate(self) -> int:
        """Estimates the number of valid points by random descents of the backtracking tree.

        Knuth, "Estimating the efficiency of backtrack programs", 1975: the product of the numbers
        of admissible children along a random descent is an unbiased estimate of the leaves.
        """
        rng = np.random.default_rng(0)
        steps = self._steps(self._plan)
        total = 0
        for _ in range(PROBES):
            values: dict[str, ParamValue] = {}
            ranges = {param.name: _range(param) for param in self.params}
            weight = 1
            for step in steps:
                param = self.params[step.index]
                admissible = []
                for value in param.values:
                    values[param.name] = value
                    ranges[param.name] = of_value(value)
                    if all(item.holds(values) for item in step.decided) and all(
                        item.may_hold(ranges) for item in step.narrowed
                    ):
                        admissible.append(value)
                weight *= len(admissible)
                if not admissible:
                    break
                values[param.name] = admissible[int(rng.integers(len(admissible)))]
                ranges[param.name] = of_value(values[param.name])
            total += weight
        return round(total / PROBES)


def _range(param: Param) -> Interval:
    """Interval that covers all of a parameter's values."""
    intervals = [of_value(value) for value in param.values]
    if ANYTHING in intervals:
        return ANYTHING
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def split(params: Sequence[Param], constraints: Sequence[Constraint]) -> tuple[Component, ...]:
    """Groups parameters into independent components, ordered by their first parameter."""
    group = {param.name: {param.name} for param in params}
    for constraint in constraints:
        merged = set().union(*(group[name] for name in constraint.params))
        for name in merged:
            group[name] = merged
    components = []
    done: set[str] = set()
    for param in params:
        if param.name in done:
            continue
        names = group[param.name]
        done |= names
        components.append(
            Component(
                [item for item in params if item.name in names],
                [item for item in constraints if item.params and item.params <= names],
            )
        )
    return tuple(components)


def refuse_empty(component: Component) -> SpaceError:
    """Builds the error for a component without a valid point."""
    text, fraction = component.excludes_most(np.random.default_rng(0))
    names = ", ".join(param.name for param in component.params)
    return SpaceError(
        f"no valid point for {names}: constraint {text!r} excludes {100 * fraction:.3g} % "
        "of the combinations; widen the parameters or relax it"
    )

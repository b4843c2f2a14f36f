"""Can a constraint still hold when some parameters are only known by their range?

Interval arithmetic over an expression's syntax tree: cheap and sound (it never calls a satisfiable
constraint impossible), not complete. It lets a search drop `p * q * r <= 64` as soon as `p * q` is
too large, instead of trying every r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes

from evo.expressions import BINARY, HELPERS, arithmetic

Interval = tuple[float, float]
"""Smallest and largest possible value; a truth value is 0 or 1."""

ANYTHING: Interval = (-math.inf, math.inf)
_MAYBE: Interval = (0, 1)


def may_hold(tree: nodes.Node, ranges: Mapping[str, Interval], scope: Mapping[str, Any]) -> bool:
    """False only if the expression is false for all values within the ranges.

    Args:
        tree: Syntax tree of a compiled expression.
        ranges: Name -> interval, for parameters.
        scope: Name -> value, for everything else.
    """
    low, high = _interval(tree, ranges, scope)
    return not low == high == 0


def of_value(value: Any) -> Interval:
    """Interval of one value; text can be anything."""
    return (value, value) if isinstance(value, (bool, int, float)) else ANYTHING


def _interval(
    node: nodes.Node, ranges: Mapping[str, Interval], scope: Mapping[str, Any]
) -> Interval:
    def inner(child: nodes.Node) -> Interval:
        return _interval(child, ranges, scope)

    match node:
        case nodes.Const(value=value):
            return of_value(value)
        case nodes.Name(name=name):
            return ranges[name] if name in ranges else of_value(scope.get(name))
        case nodes.Getattr(attr=attribute):
            return of_value(getattr(scope.get("device"), attribute, None))
        case nodes.BinExpr(operator=symbol) if symbol in BINARY:
            return _binary(symbol, inner(node.left), inner(node.right))
        case nodes.Neg():
            low, high = inner(node.node)
            return -high, -low
        case nodes.Not():
            low, high = _truth(inner(node.node))
            return 1 - high, 1 - low
        case nodes.And():
            (a, b), (c, d) = inner(node.left), inner(node.right)
            return (min(a, c), min(b, d)) if _is_truth(a, b, c, d) else ANYTHING
        case nodes.Or():
            (a, b), (c, d) = inner(node.left), inner(node.right)
            return (max(a, c), max(b, d)) if _is_truth(a, b, c, d) else ANYTHING
        case nodes.CondExpr(expr2=nodes.Node() as other):
            test = _truth(inner(node.test))
            chosen = [node.expr1] * (test[1] == 1) + [other] * (test[0] == 0)
            parts = [inner(child) for child in chosen]
            return min(low for low, _ in parts), max(high for _, high in parts)
        case nodes.Compare(ops=[operand]) if operand.op in _COMPARISONS:
            return _COMPARISONS[operand.op](inner(node.expr), inner(operand.expr))
        case nodes.Compare():
            return _MAYBE
        case nodes.Call(node=nodes.Name(name=name)):
            return _call(name, [inner(child) for child in node.args])
    return ANYTHING


def _is_truth(*bounds: float) -> bool:
    return all(0 <= bound <= 1 for bound in bounds)


def _truth(value: Interval) -> Interval:
    low, high = value
    return (0 if low <= 0 <= high else 1), (0 if low == high == 0 else 1)


def _corners(function: Callable[[Any, Any], Any], a: Interval, b: Interval) -> Interval:
    """Range of a function that is monotone in each argument on these intervals."""
    try:
        values = [function(x, y) for x in a for y in b]
    except ValueError:  # out of bounds: what the exact evaluation will say is left to it
        return ANYTHING
    return min(values), max(values)


def _binary(symbol: str, a: Interval, b: Interval) -> Interval:
    if not all(math.isfinite(bound) for bound in (*a, *b)):
        return ANYTHING
    if symbol in ("+", "-", "*") or (a[0] == a[1] and b[0] == b[1]):
        return _corners(lambda x, y: arithmetic(symbol, x, y), a, b)
    if (symbol == "//" and b[0] > 0) or (symbol == "**" and a[0] >= 1 and b[0] >= 0):
        return _corners(lambda x, y: arithmetic(symbol, x, y), a, b)
    if symbol == "%" and b[0] > 0:
        return 0, b[1]
    return ANYTHING


def _call(name: str, args: list[Interval]) -> Interval:
    if not all(math.isfinite(bound) for arg in args for bound in arg):
        return ANYTHING
    if name in ("min", "max"):
        choose = min if name == "min" else max
        return choose(low for low, _ in args), choose(high for _, high in args)
    if name == "ceil_div":
        return _corners(HELPERS[name], *args)
    if name == "round_up" and args[1][0] > 0:
        return args[0][0], args[0][1] + args[1][1]
    if name == "log2":
        return _corners(lambda x, _: HELPERS[name](x), args[0], (0, 0))
    return ANYTHING


def _below(a: Interval, b: Interval) -> Interval:
    return int(a[1] < b[0]), int(a[0] < b[1])


def _at_most(a: Interval, b: Interval) -> Interval:
    return int(a[1] <= b[0]), int(a[0] <= b[1])


def _equal(a: Interval, b: Interval) -> Interval:
    same = a[0] == a[1] == b[0] == b[1]
    return int(same), int(a[0] <= b[1] and b[0] <= a[1])


def _unequal(a: Interval, b: Interval) -> Interval:
    low, high = _equal(a, b)
    return 1 - high, 1 - low


_COMPARISONS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "lt": _below,
    "lteq": _at_most,
    "gt": lambda a, b: _below(b, a),
    "gteq": lambda a, b: _at_most(b, a),
    "eq": _equal,
    "ne": _unequal,
}

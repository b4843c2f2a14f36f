"""Arithmetic over names, for constraints, launch geometry, shapes and byte counts.

The grammar is Jinja's, so that a template has one expression language; the meaning is a small tree
of closures built from a whitelist of syntax nodes. Nothing is evaluated as Python code, so an
expression written by a language model can do no more than arithmetic: constants, names, `+ - * //
% **`, comparisons (`in` a literal list included), `and`/`or`/`not`, `a if c else b`,
`device.<field>` and the helper functions. Numbers are bounded, so `9 ** 9 ** 9` is an error and not
a hang.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evo.errors import TemplateError
from evo.job import DeviceInfo

Value = bool | int | float | str
Scope = Mapping[str, Any]

MAX_LENGTH = 1000
"""Characters in one expression."""
MAX_DEPTH = 80
MAX_MAGNITUDE = 2**100
"""Bound on every intermediate number; a product of two such still costs nothing."""

DEVICE_FIELDS = frozenset(
    item.name for item in dataclasses.fields(DeviceInfo) if item.name != "max_block"
)
"""What `device.<field>` may name: the scalar fields of `DeviceInfo`."""

_Closure = Callable[[Scope], Any]


class _Fault(ValueError):
    """Reason an expression cannot be compiled or evaluated, without its text."""


def _number(value: Any) -> int | float:
    if not isinstance(value, (int, float)):
        raise _Fault(f"{value!r} is not a number")
    return value


def _integer(value: Any, function: str) -> int:
    if not isinstance(value, int):
        raise _Fault(f"{function} takes integers, got {value!r}")
    return value


def bounded(value: Any) -> Any:
    """Passes a number through if it is finite and not absurd.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the result is not finite")
    if abs(value) > MAX_MAGNITUDE:
        raise ValueError("the result is larger than 2**100")
    return value


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b; b must be positive."""
    if _integer(b, "ceil_div") <= 0:
        raise _Fault(f"ceil_div needs a positive divisor, got {b}")
    return -(-_integer(a, "ceil_div") // b)


def round_up(a: int, b: int) -> int:
    """Smallest multiple of b not below a; b must be positive."""
    if _integer(b, "round_up") <= 0:
        raise _Fault(f"round_up needs a positive multiple, got {b}")
    return -(-_integer(a, "round_up") // b) * b


def log2(a: int) -> int:
    """Floor of the binary logarithm; a must be positive."""
    if _integer(a, "log2") <= 0:
        raise _Fault(f"log2 needs a positive integer, got {a}")
    return a.bit_length() - 1


def _minimum(*values: float) -> float:
    return min(_number(value) for value in values)


def _maximum(*values: float) -> float:
    return max(_number(value) for value in values)


HELPERS: dict[str, Callable[..., Any]] = {
    "ceil_div": ceil_div,
    "round_up": round_up,
    "min": _minimum,
    "max": _maximum,
    "log2": log2,
}
_ARITY = {"ceil_div": (2, 2), "round_up": (2, 2), "log2": (1, 1), "min": (1, 99), "max": (1, 99)}

RESERVED = frozenset(
    (
        *HELPERS,
        *("device", "range", "loop", "self", "super", "caller", "varargs", "kwargs"),
        *("true", "false", "none", "True", "False", "None"),
        *("and", "or", "not", "in", "is", "if", "else", "for", "set", "macro", "call", "recursive"),
    )
)
"""Names that dimensions, parameters, scalars and buffers cannot take."""


def power(base: Any, exponent: Any) -> Any:
    """`base ** exponent` for a non-negative integer exponent, refused before it gets expensive.

    Raises:
        ValueError: If the result would be out of bounds.
    """
    if not isinstance(exponent, int) or exponent < 0:
        raise ValueError(f"** takes an exponent of 0 or more, got {exponent!r}")
    if exponent > 100 and abs(base) > 1:
        raise ValueError("the result is larger than 2**100")
    return base**exponent


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": power,
}


def arithmetic(symbol: str, left: Any, right: Any) -> Any:
    """Applies a binary operator to two numbers with bounds.

    Raises:
        ValueError: If an operand is no number, a division is by zero or the result out of bounds.
    """
    for operand in (left, right):
        if not isinstance(operand, (int, float)):
            raise ValueError(f"{symbol} takes numbers, got {operand!r}")
    try:
        return bounded(BINARY[symbol](left, right))
    except ZeroDivisionError:
        raise ValueError(f"division by zero in {symbol}") from None
    except OverflowError:
        raise ValueError("the result is out of range") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A compiled expression.

    Attributes:
        text: As written.
        names: Free names, "device" included and helpers excluded.
        tree: Its syntax tree, for analyses other than evaluation.
    """

    text: str
    names: frozenset[str]
    tree: nodes.Node
    _closure: _Closure

    def __call__(self, scope: Scope) -> Value:
        """Evaluates with the values in `scope`.

        Raises:
            TemplateError: With the text and the reason.
        """
        try:
            result = self._closure(scope)
        except (ValueError, TypeError) as error:
            raise TemplateError(f"in expression {self.text!r}: {error}") from None
        return result  # type: ignore[no-any-return]

    def integer(self, scope: Scope, *, minimum: int = 0) -> int:
        """Evaluates to an integer of at least `minimum`.

        Raises:
            TemplateError: If it is anything else.
        """
        value = self(scope)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TemplateError(f"in expression {self.text!r}: {value!r} is not an integer")
        if value < minimum:
            raise TemplateError(f"in expression {self.text!r}: {value} is below {minimum}")
        return value


def compile_expression(text: Value) -> Expression:
    """Compiles an expression once; a number from YAML is an expression too.

    Raises:
        TemplateError: On a syntax error or a construct that is not allowed.
    """
    return _compile(str(text).strip())


def evaluate(text: Value, scope: Scope) -> Value:
    """Compiles (cached) and evaluates."""
    return compile_expression(text)(scope)


def names(text: Value) -> frozenset[str]:
    """Returns an expression's free names, "device" included and helpers excluded."""
    return compile_expression(text).names


def suggest(name: str, allowed: Iterable[str]) -> str:
    """Returns "(did you mean 'x'? allowed: ...)" for an error message."""
    options = sorted(allowed)
    listed = ", ".join(options) or "none"
    close = difflib.get_close_matches(name, options, n=1)
    return f"(did you mean {close[0]!r}? allowed: {listed})" if close else f"(allowed: {listed})"


_ENVIRONMENT = ImmutableSandboxedEnvironment()


@lru_cache(maxsize=4096)
def _compile(text: str) -> Expression:
    try:
        if not text:
            raise _Fault("it is empty")
        if len(text) > MAX_LENGTH:
            raise _Fault(f"longer than {MAX_LENGTH} characters")
        parser = Parser(_ENVIRONMENT, text, state="variable")
        tree = parser.parse_expression()
        if not parser.stream.eos:
            raise _Fault(f"unexpected {parser.stream.current.value!r}")
        _check_depth(tree)
        found: set[str] = set()
        closure = _build(tree, found)
    except TemplateSyntaxError as error:
        raise TemplateError(f"in expression {_clip(text)!r}: {error.message}") from None
    except ValueError as error:
        raise TemplateError(f"in expression {_clip(text)!r}: {error}") from None
    except RecursionError:
        raise TemplateError(f"in expression {_clip(text)!r}: nested too deeply") from None
    return Expression(text=text, names=frozenset(found), tree=tree, _closure=closure)


def _check_depth(tree: nodes.Node) -> None:
    """Refuses trees whose closures could exhaust the stack when called."""
    level: list[nodes.Node] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise _Fault("nested too deeply")


def _clip(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


def _build(node: nodes.Node, found: set[str]) -> _Closure:
    """Turns a whitelisted syntax node into a closure; collects free names in `found`."""
    match node:
        case nodes.Const(value=bool() | int() | float() | str() as value):
            constant = bounded(value) if not isinstance(value, str) else value
            return lambda scope: constant
        case nodes.Name(name=name):
            return _build_name(name, found)
        case nodes.BinExpr(operator=symbol) if symbol in BINARY:
            left, right = _build(node.left, found), _build(node.right, found)
            return lambda scope: arithmetic(symbol, left(scope), right(scope))
        case nodes.Neg():
            inner = _build(node.node, found)
            return lambda scope: -_number(inner(scope))
        case nodes.Pos():
            inner = _build(node.node, found)
            return lambda scope: _number(inner(scope))
        case nodes.Not():
            inner = _build(node.node, found)
            return lambda scope: not inner(scope)
        case nodes.And():
            left, right = _build(node.left, found), _build(node.right, found)
            return lambda scope: left(scope) and right(scope)
        case nodes.Or():
            left, right = _build(node.left, found), _build(node.right, found)
            return lambda scope: left(scope) or right(scope)
        case nodes.CondExpr(expr2=nodes.Node() as other):
            test, chosen = _build(node.test, found), _build(node.expr1, found)
            otherwise = _build(other, found)
            return lambda scope: chosen(scope) if test(scope) else otherwise(scope)
        case nodes.CondExpr():
            raise _Fault("an inline if needs an else")
        case nodes.Compare():
            return _build_comparison(node, found)
        case nodes.Getattr(node=nodes.Name(name="device"), attr=attribute):
            if attribute not in DEVICE_FIELDS:
                raise _Fault(f"unknown device field {suggest(attribute, DEVICE_FIELDS)}")
            found.add("device")
            return lambda scope: getattr(_lookup(scope, "device"), attribute)
        case nodes.Call():
            return _build_call(node, found)
    raise _Fault(
        f"{type(node).__name__} is not allowed: arithmetic (+ - * // % **), comparisons, "
        "and/or/not, inline if, device.<field> and " + ", ".join(sorted(HELPERS))
    )


def _lookup(scope: Scope, name: str) -> Any:
    try:
        return scope[name]
    except KeyError:
        raise _Fault(f"unknown name {name!r} {suggest(name, scope)}") from None


def _build_name(name: str, found: set[str]) -> _Closure:
    if name in HELPERS:
        raise _Fault(f"{name} is a function: call it")
    if name == "device":
        raise _Fault("device needs a field, as in device.local_mem_bytes")
    found.add(name)
    return lambda scope: _lookup(scope, name)


def _build_call(node: nodes.Call, found: set[str]) -> _Closure:
    function = node.node
    if not isinstance(function, nodes.Name) or function.name not in HELPERS:
        called = function.name if isinstance(function, nodes.Name) else type(function).__name__
        raise _Fault(f"{called} cannot be called {suggest(called, HELPERS)}")
    if node.kwargs or node.dyn_args is not None or node.dyn_kwargs is not None:
        raise _Fault(f"{function.name} takes positional arguments only")
    low, high = _ARITY[function.name]
    if not low <= len(node.args) <= high:
        raise _Fault(f"{function.name} takes {low} argument(s), got {len(node.args)}")
    helper = HELPERS[function.name]
    args = tuple(_build(item, found) for item in node.args)
    return lambda scope: bounded(helper(*(arg(scope) for arg in args)))


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda item, options: item in options,
    "notin": lambda item, options: item not in options,
}


def _build_comparison(node: nodes.Compare, found: set[str]) -> _Closure:
    first = _build(node.expr, found)
    rest: list[tuple[Callable[[Any, Any], bool], _Closure]] = []
    for operand in node.ops:
        if operand.op in ("in", "notin"):
            if not isinstance(operand.expr, (nodes.List, nodes.Tuple)):
                raise _Fault("in takes a literal list, as in mode in ['a', 'b']")
            items = tuple(_build(item, found) for item in operand.expr.items)
            rest.append((_COMPARISONS[operand.op], _build_list(items)))
        else:
            rest.append((_COMPARISONS[operand.op], _build(operand.expr, found)))

    def compare(scope: Scope) -> bool:
        left = first(scope)
        for test, closure in rest:
            right = closure(scope)
            if not test(left, right):
                return False
            left = right
        return True

    return compare


def _build_list(items: tuple[_Closure, ...]) -> _Closure:
    return lambda scope: [item(scope) for item in items]

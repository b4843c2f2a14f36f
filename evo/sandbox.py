"""The Jinja dialect of kernel templates, reduced to what cannot do harm.

Template text may come from a language model. Only a whitelist of syntax is accepted: output,
`if`, `for`, `set`, `macro`, arithmetic, comparisons, string joining with `~`, literal lists, the
helper functions and `range`. There are no attributes but those of `device` and `loop`, no filters,
no tests, no imports. Loop passes, calls, string lengths and output are bounded per rendering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from jinja2 import Template as JinjaTemplate
from jinja2 import meta, nodes
from jinja2.exceptions import TemplateSyntaxError, UndefinedError
from jinja2.runtime import Context, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evo.errors import TemplateError
from evo.expressions import BINARY, DEVICE_FIELDS, HELPERS, arithmetic, suggest

MAX_STEPS = 100_000
"""Loop passes plus calls in one rendering."""
MAX_STRING = 65_536
MAX_OUTPUT = 1_000_000
MAX_TEXT = 200_000
"""Characters in a template."""

LOOP_FIELDS = ("index", "index0", "revindex", "revindex0", "first", "last", "length")
BODY_NAMES = frozenset((*HELPERS, "range", "device"))
"""Names every body may use beside parameters, dimensions and scalars."""

_ALLOWED: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign),
    *(nodes.Macro, nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Compare, nodes.Operand),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg, nodes.Pos),
    *(nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.Concat, nodes.Call, nodes.Keyword),
    *(nodes.Getattr, nodes.Getitem),
)
_BOUNDED, _JOINED = "_kelites_bounded", "_kelites_joined"


class _Budget:
    """Counts what one rendering does."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise ValueError(f"more than {MAX_STEPS} loop passes and calls")

    def bounded(self, items: Any) -> list[Any]:
        """What `for` loops over."""
        if not isinstance(items, (list, tuple, range)):
            raise ValueError(f"for takes a list or range(...), got {items!r}")
        self.spend(len(items))
        return list(items)


def _joined(*parts: Any) -> str:
    return _short("".join(str(_printable(part)) for part in parts))


def _formatted(pattern: str, values: Any) -> str:
    """`"south%d" % step` with plain %d and %s: widths could ask for gigabytes."""
    if not re.fullmatch(r"([^%]|%[ds%])*", pattern):
        raise ValueError(f"only %d, %s and %% may stand in the format {pattern!r}")
    items = values if isinstance(values, tuple) else (values,)
    return _short(pattern % tuple(_printable(item) for item in items))


def _short(text: str) -> str:
    if len(text) > MAX_STRING:
        raise ValueError(f"a string is longer than {MAX_STRING} characters")
    return text


def _printable(value: Any) -> Any:
    """Accepts what may be printed; truth values print as 1 and 0, right in every C family."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float, str, Undefined)):
        return value
    raise ValueError(f"a {type(value).__name__} cannot be printed")


def _python_printable(value: Any) -> Any:
    return value if isinstance(value, bool) else _printable(value)


class _KernelEnvironment(ImmutableSandboxedEnvironment):
    """Delimiters that leave C and Python valid, and bounded operators."""

    intercepted_binops = frozenset(BINARY)

    def __init__(self, language: str) -> None:
        super().__init__(
            block_start_string="<%",
            block_end_string="%>",
            variable_start_string="${",
            variable_end_string="}",
            comment_start_string="<#",
            comment_end_string="#>",
            line_statement_prefix="#%" if language == "python" else "//%",
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            undefined=StrictUndefined,
            finalize=_python_printable if language == "python" else _printable,
            optimized=False,
            autoescape=False,
            cache_size=0,
        )
        self.globals.clear()

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for operand in (left, right):
            if isinstance(operand, Undefined):
                str(operand)  # raises with the name
        if isinstance(left, str) and operator == "%":
            return _formatted(left, right)
        if isinstance(left, str) and isinstance(right, str) and operator == "+":
            return _joined(left, right)
        return arithmetic(operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        context["_kelites_budget"].spend(1)
        result = super().call(context, obj, *args, **kwargs)
        return _short(result) if isinstance(result, str) else result

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(obj, (list, tuple)) or not isinstance(argument, int):
            raise ValueError("only a list can be indexed, by an integer")
        if not -len(obj) <= argument < len(obj):
            raise ValueError(f"index {argument} is outside a list of {len(obj)}")
        return obj[argument]


_ENVIRONMENTS = {language: _KernelEnvironment(language) for language in ("c", "python")}


class Body:
    """A compiled template body (or any other text with `${...}` in it).

    Args:
        text: Body text; its line numbers are those of the messages.
        language: "c" or "python".
        where: File name for messages.

    Raises:
        TemplateError: On a syntax error or a construct that is not allowed (names file and line).
    """

    def __init__(self, text: str, *, language: str, where: str, first_line: int = 1) -> None:
        self._where = where
        self._offset = first_line - 1
        if len(text) > MAX_TEXT:
            raise TemplateError(f"{where}: longer than {MAX_TEXT} characters")
        environment = _ENVIRONMENTS[language]
        try:
            tree = environment.parse(text)
            self._check(tree)
            self.names = frozenset(meta.find_undeclared_variables(tree))
            self._name_lines = {
                node.name: node.lineno for node in reversed(list(tree.find_all(nodes.Name)))
            }
            self._template = environment.from_string(_bound(tree))
        except TemplateSyntaxError as error:
            raise self._error(error.lineno, error.message or "syntax error") from None
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise self._error(1, reason) from None

    def _error(self, line: int, reason: str) -> TemplateError:
        return TemplateError(f"{self._where}:{line + self._offset}: {reason}")

    def _check(self, tree: nodes.Template) -> None:
        for node in _descendants(tree):
            if not isinstance(node, _ALLOWED):
                raise self._error(
                    node.lineno, f"{type(node).__name__} is not allowed in a template"
                )
            match node:
                case nodes.Getattr(node=nodes.Name(name="device"), attr=attribute):
                    allowed = [*DEVICE_FIELDS, "max_block"]
                    if attribute not in allowed:
                        reason = f"unknown device field {attribute!r} {suggest(attribute, allowed)}"
                        raise self._error(node.lineno, reason)
                case nodes.Getattr(node=nodes.Name(name="loop"), attr=attribute):
                    if attribute not in LOOP_FIELDS:
                        reason = (
                            f"unknown loop field {attribute!r} {suggest(attribute, LOOP_FIELDS)}"
                        )
                        raise self._error(node.lineno, reason)
                case nodes.Getattr(attr=attribute):
                    reason = f"attribute {attribute!r}: only device and loop have attributes"
                    raise self._error(node.lineno, reason)
                case nodes.Call(node=called):
                    if not isinstance(called, nodes.Name):
                        raise self._error(node.lineno, "only a function's name can be called")
                case nodes.For(recursive=True):
                    raise self._error(node.lineno, "recursive loops are not allowed")
                case nodes.Name(name=name) | nodes.Macro(name=name) if name.startswith("_kelites"):
                    raise self._error(node.lineno, f"{name} is reserved")
                case nodes.Name(name=name, ctx="store" | "param") | nodes.Macro(name=name):
                    if name in BODY_NAMES:
                        raise self._error(node.lineno, f"{name} cannot be assigned")

    def require(self, known: frozenset[str]) -> None:
        """Checks every free name, in branches not taken too.

        Raises:
            TemplateError: For the first unknown one (names file and line).
        """
        for name in sorted(self.names - known - BODY_NAMES, key=self._line_of):
            raise self._error(
                self._line_of(name), f"unknown name {name!r} {suggest(name, known | BODY_NAMES)}"
            )

    def _line_of(self, name: str) -> int:
        return self._name_lines.get(name, 1)

    def render(self, values: Mapping[str, Any]) -> str:
        """Renders with the values given.

        Raises:
            TemplateError: On an undefined name, a failing operation or a bound (file and line).
        """
        budget = _Budget()
        scope: dict[str, Any] = {
            **HELPERS,
            "range": _range,
            **values,
            _BOUNDED: budget.bounded,
            _JOINED: _joined,
            "_kelites_budget": budget,
        }
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.root_render_func(self._template.new_context(scope)):
                length += len(part)
                if length > MAX_OUTPUT:
                    raise ValueError(f"the output is longer than {MAX_OUTPUT} characters")
                parts.append(part)
        except RecursionError:
            raise TemplateError(f"{self._where}: a macro calls itself without end") from None
        except UndefinedError as error:
            raise self._error(_line(error, self._template), str(error)) from None
        except (ValueError, TypeError, ArithmeticError) as error:
            raise self._error(_line(error, self._template), str(error)) from None
        return "".join(parts)


def _range(*bounds: int) -> range:
    for bound in bounds:
        if not isinstance(bound, int):
            raise ValueError(f"range takes integers, got {bound!r}")
    return range(*bounds)


def _descendants(tree: nodes.Node) -> list[nodes.Node]:
    found: list[nodes.Node] = [tree]
    for node in found:  # grows while it is read: breadth first, without recursion
        found.extend(node.iter_child_nodes())
    return found


def _bound(tree: nodes.Template) -> nodes.Template:
    """Routes what loops walk over, and what `~` joins, through functions that count."""
    for loop in tree.find_all(nodes.For):
        loop.iter = _call(_BOUNDED, [cast(nodes.Expr, loop.iter)], loop.lineno)
    for node in _descendants(tree):
        for name, child in list(node.iter_fields()):
            if isinstance(child, nodes.Concat):
                setattr(node, name, _call(_JOINED, child.nodes, child.lineno))
            elif isinstance(child, list):
                child[:] = [
                    _call(_JOINED, item.nodes, item.lineno)
                    if isinstance(item, nodes.Concat)
                    else item
                    for item in child
                ]
    return tree


def _call(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    function = nodes.Name(name, "load", lineno=line)
    return nodes.Call(function, args, [], None, None, lineno=line)


def _line(error: BaseException, template: JinjaTemplate) -> int:
    """Template line on which an error arose."""
    line = 1
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line

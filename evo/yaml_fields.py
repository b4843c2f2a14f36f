"""Strict reading of YAML: every value is asked for by name and type, the rest is an error.

Messages name file, line and key and say what is allowed. YAML is read the 1.2 way where 1.1
surprises (`1e-5` is a number, `no` is a string, `010` is not octal); repeated keys and aliases are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import yaml

from evo.errors import EvoError
from evo.expressions import RESERVED, Expression, Value, compile_expression, suggest

_MISSING: Any = object()
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

KeyPath = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema of YAML 1.2, without aliases and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"(true|True|false|False)\Z", "tTfF"),
    ("null", r"(~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)\Z", "-+0123456789"),
    (
        "float",
        r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)|[0-9]+\.[0-9]*|\.[0-9]+[eE][-+]?[0-9]+)"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z",
        "-+0123456789.",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def read_yaml(text: str, *, where: str, error: type[EvoError], first_line: int = 1) -> Fields:
    """Parses YAML whose root is a mapping.

    Args:
        text: The YAML.
        where: File name for messages.
        error: Class of the errors raised, here and by the `Fields` returned.
        first_line: Line of the file on which `text` starts.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines: dict[KeyPath, int] = {}
            if node is not None:
                _collect_lines(node, (), lines, first_line)
            value = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark or failure.context_mark
        line = first_line + (mark.line if mark else 0)
        raise error(f"{where}:{line}: {failure.problem or failure.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as failure:
        reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        raise error(f"{where}:{first_line}: not readable as YAML: {reason}") from None
    if not isinstance(value, dict):
        raise error(f"{where}:{first_line}: expected a mapping of keys to values")
    return Fields(value, where=where, error=error, lines=lines, path=())


def _collect_lines(node: Any, path: KeyPath, lines: dict[KeyPath, int], first_line: int) -> None:
    lines.setdefault(path, first_line + node.start_mark.line)
    if isinstance(node, yaml.MappingNode):
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key must be text", problem_mark=key.start_mark
                )
            lines[(*path, key.value)] = first_line + key.start_mark.line
            _collect_lines(item, (*path, key.value), lines, first_line)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines(item, (*path, index), lines, first_line)


class Fields:
    """A YAML mapping from which values are taken by name and type.

    Args:
        data: The mapping.
        where: File name for messages.
        error: Class of the errors raised.
        lines: Path of keys -> line in the file.
        path: Path of this mapping.
    """

    def __init__(
        self,
        data: dict[Any, Any],
        *,
        where: str,
        error: type[EvoError],
        lines: dict[KeyPath, int],
        path: KeyPath,
    ) -> None:
        self._where = where
        self._error = error
        self._lines = lines
        self._path = path
        self._asked: list[str] = []
        self._data = data
        for key in data:
            if not isinstance(key, str):
                raise self.fail(f"key {key!r} must be text")

    def fail(self, message: str, *keys: str | int) -> EvoError:
        """Returns (to raise) an error that names file, line and the path of `keys`."""
        path = (*self._path, *keys)
        lookup = path
        while lookup and lookup not in self._lines:
            lookup = lookup[:-1]
        line = self._lines.get(lookup, 1)
        label = ""
        for part in path:
            label += f"[{part}]" if isinstance(part, int) else f".{part}" if label else part
        return self._error(f"{self._where}:{line}: {label + ': ' if label else ''}{message}")

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """Returns a raw value; without a default the key is required."""
        self._asked.append(key)
        if key in self._data:
            return self._data[key]
        if default is _MISSING:
            raise self.fail(f"missing key {key!r}")
        return default

    def _typed(self, key: str, default: Any, kind: type | tuple[type, ...], what: str) -> Any:
        value = self.value(key, default)
        if key in self._data and (
            not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        ):
            raise self.fail(f"expected {what}, got {value!r}", key)
        return value

    def text(self, key: str, default: str = _MISSING) -> str:
        """Returns a string."""
        result: str = self._typed(key, default, str, "text")
        return result

    def integer(self, key: str, default: int = _MISSING) -> int:
        """Returns an integer."""
        result: int = self._typed(key, default, int, "an integer")
        return result

    def number(self, key: str, default: float = _MISSING) -> float:
        """Returns a number as it was written, int or float."""
        result: float = self._typed(key, default, (int, float), "a number")
        return result

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """Returns true or false."""
        result: bool = self._typed(key, default, bool, "true or false")
        return result

    def choice(self, key: str, allowed: Sequence[str], default: str = _MISSING) -> str:
        """Returns one of the strings allowed."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.fail(f"unknown value {value!r} {suggest(value, allowed)}", key)
        return value

    def items(self, key: str, default: list[Any] = _MISSING) -> list[Any]:
        """Returns a list of anything."""
        result: list[Any] = self._typed(key, default, list, "a list")
        return result

    def texts(self, key: str, default: list[str] = _MISSING) -> tuple[str, ...]:
        """Returns a list of strings."""
        values = self.items(key, default)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self.fail(f"expected text, got {value!r}", key, index)
        return tuple(values)

    def expression(self, key: str, default: Value = _MISSING) -> Expression:
        """Returns a compiled expression."""
        return self._compile(self.value(key, default), key)

    def expressions(self, key: str, default: list[Value] = _MISSING) -> tuple[Expression, ...]:
        """Returns a list of compiled expressions."""
        values = self.items(key, default)
        return tuple(self._compile(value, key, index) for index, value in enumerate(values))

    def _compile(self, value: Any, *keys: str | int) -> Expression:
        if not isinstance(value, (bool, int, float, str)):
            raise self.fail(f"expected an expression, got {value!r}", *keys)
        try:
            return compile_expression(value)
        except EvoError as error:
            raise self.fail(str(error), *keys) from None

    def section(self, key: str, default: dict[str, Any] = _MISSING) -> Fields:
        """Returns a mapping."""
        value = self._typed(key, default, dict, "a mapping of keys to values")
        return self._child(value, key)

    def sections(self, key: str, default: list[Any] = _MISSING) -> list[Fields]:
        """Returns a list of mappings."""
        result = []
        for index, value in enumerate(self.items(key, default)):
            if not isinstance(value, dict):
                raise self.fail(f"expected a mapping of keys to values, got {value!r}", key, index)
            result.append(self._child(value, key, index))
        return result

    def _child(self, value: dict[Any, Any], *keys: str | int) -> Fields:
        return Fields(
            value,
            where=self._where,
            error=self._error,
            lines=self._lines,
            path=(*self._path, *keys),
        )

    def named_sections(self) -> Iterator[tuple[str, Fields]]:
        """Yields every name with its mapping, for mappings whose keys the user chooses."""
        for name in self._data:
            yield self.identifier(name), self.section(name)

    def identifier(self, name: str) -> str:
        """Returns `name` if it can be a name in expressions and in kernel code."""
        if not _IDENTIFIER.match(name):
            raise self.fail(f"{name!r} is not a name: letters, digits and _ only")
        if name in RESERVED:
            raise self.fail(f"the name {name!r} is reserved")
        return name

    def finish(self) -> None:
        """Fails on the first key that nobody asked for."""
        for key in self._data:
            if key not in self._asked:
                raise self.fail(f"unknown key {suggest(key, self._asked)}", key)

"""The YAML in a template's leading comment: parameters, constraints, scratch, launches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from evo import params
from evo.errors import EvoError, TemplateError
from evo.expressions import Expression
from evo.params import KINDS, Param
from evo.task import DTYPES
from evo.yaml_fields import Fields, read_yaml

C_OPEN, C_CLOSE = "/*---", "---*/"
PYTHON_MARK = "#---"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchSpec:
    """A work buffer; `elements` is an expression."""

    name: str
    dtype: str
    elements: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A launch whose geometry is still expressions (1 to 3 per tuple)."""

    entry: str
    args: tuple[str, ...]
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared_bytes: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMatter:
    """What a template declares about itself.

    Attributes:
        fields: The YAML it was read from, for errors that name a line.
    """

    description: str
    params: tuple[Param, ...]
    constraints: tuple[Expression, ...]
    scratch: tuple[ScratchSpec, ...]
    build_options: tuple[str, ...]
    launches: tuple[LaunchSpec, ...]
    fields: Fields = field(repr=False, compare=False)


def split_text(text: str, *, language: str, where: str) -> tuple[FrontMatter, str]:
    """Separates front matter and body.

    Args:
        text: Whole template.
        language: "c" or "python": which comment holds the front matter.
        where: File name for messages.

    Returns:
        The front matter, and the body with empty lines in the front matter's place, so that line
        numbers in the body are those of the file.

    Raises:
        TemplateError: If there is no front matter, or it is malformed (names file and line).
    """
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip()), 0)
    opening, closing = (PYTHON_MARK, PYTHON_MARK) if language == "python" else (C_OPEN, C_CLOSE)
    if lines[start].strip() != opening:
        raise TemplateError(
            f"{where}:{start + 1}: a template starts with front matter: a line {opening!r}, YAML, "
            f"and a line {closing!r}"
        )
    end = next((i for i in range(start + 1, len(lines)) if lines[i].strip() == closing), None)
    if end is None:
        raise TemplateError(f"{where}:{start + 1}: the front matter is not closed by {closing!r}")
    inside = lines[start + 1 : end]
    if language == "python":
        inside = [_uncomment(line, where, start + 2 + i) for i, line in enumerate(inside)]
    for number, line in enumerate(lines[end + 1 :], start=end + 2):
        if line.strip() in (opening, closing):
            raise TemplateError(f"{where}:{number}: {line.strip()!r} a second time")
    root = read_yaml("\n".join(inside), where=where, error=TemplateError, first_line=start + 2)
    return _read(root), "\n".join([""] * (end + 1) + lines[end + 1 :])


def _uncomment(line: str, where: str, number: int) -> str:
    if line.startswith("# "):
        return line[2:]
    if line.strip() == "#":
        return ""
    raise TemplateError(f"{where}:{number}: a line of the front matter starts with '# '")


def _read(root: Fields) -> FrontMatter:
    front = FrontMatter(
        description=root.text("description", ""),
        params=tuple(
            _read_param(name, fields)
            for name, fields in root.section("params", {}).named_sections()
        ),
        constraints=root.expressions("constraints", []),
        scratch=tuple(
            _read_scratch(name, fields)
            for name, fields in root.section("scratch", {}).named_sections()
        ),
        build_options=root.texts("build_options", []),
        launches=tuple(_read_launch(fields) for fields in root.sections("launches")),
        fields=root,
    )
    if not front.launches:
        raise root.fail("needs at least one launch", "launches")
    root.finish()
    return front


def _read_param(name: str, fields: Fields) -> Param:
    kinds = [kind for kind in KINDS if kind in fields]
    if len(kinds) != 1:
        raise fields.fail(f"needs exactly one of {', '.join(KINDS)}")
    kind = kinds[0]
    try:
        if kind == "bool":
            if not fields.flag("bool"):
                raise fields.fail("write bool: true", "bool")
            param = params.flag(name, fields.flag("default"))
        elif kind == "values":
            values = fields.items("values")
            for index, value in enumerate([*values, fields.value("default")]):
                if not isinstance(value, (bool, int, float, str)):
                    message = f"expected a number, text, true or false, got {value!r}"
                    raise fields.fail(message, "values", index)
            param = params.listed(name, values, fields.value("default"))
        else:
            low, high = _read_bounds(fields, kind)
            default = fields.integer("default")
            if kind == "pow2":
                param = params.pow2(name, low, high, default)
            else:
                param = params.stepped(name, low, high, fields.integer("step", 1), default)
    except TemplateError:
        raise
    except EvoError as error:
        raise fields.fail(str(error)) from None
    fields.finish()
    return param


def _read_bounds(fields: Fields, kind: str) -> tuple[int, int]:
    bounds = fields.items(kind)
    if len(bounds) != 2 or any(isinstance(b, bool) or not isinstance(b, int) for b in bounds):
        raise fields.fail("expected two integers, [lowest, highest]", kind)
    if bounds[0] > bounds[1]:
        raise fields.fail("the lowest value is above the highest", kind)
    return bounds[0], bounds[1]


def _read_scratch(name: str, fields: Fields) -> ScratchSpec:
    spec = ScratchSpec(
        name=name,
        dtype=fields.choice("dtype", DTYPES),
        elements=fields.expression("elements"),
    )
    fields.finish()
    return spec


def _read_launch(fields: Fields) -> LaunchSpec:
    entry = fields.text("entry")
    if not re.fullmatch(r"[A-Za-z_]\w*", entry, re.ASCII):
        raise fields.fail(f"{entry!r} is not a function name", "entry")
    sides = {}
    for key in ("grid", "block"):
        sides[key] = fields.expressions(key)
        if not 1 <= len(sides[key]) <= 3:
            raise fields.fail("takes 1 to 3 expressions", key)
    spec = LaunchSpec(
        entry=entry,
        args=fields.texts("args"),
        grid=sides["grid"],
        block=sides["block"],
        shared_bytes=fields.expression("shared_bytes", 0),
    )
    fields.finish()
    return spec

"""Source code without what a compiler does not see: comments, strings, disabled blocks.

No preprocessor: macros whose value is not in the text stay undecided, and both branches of what
depends on them are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_C_IGNORED = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*)$")
_DEFINE = re.compile(r"^(\w+)(?:\(([^)]*)\))?[ \t]*(.*)$")
_TYPEDEF = re.compile(r"\btypedef\s+(\w+)\s+(\w+)\s*;")
_MAX_DEPTH = 8
_MAX_TEXT = 1 << 20
_NUMBER = re.compile(r"\(*\s*(\d+)[uUlL]*\s*\)*")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_HEAD = re.compile(r"([A-Za-z_]\w*)\s*\(")
_NEVER = re.compile(r"\b(?:if|while)\s*\(\s*(?:0|false)\s*\)")


def strip_c(source: str) -> str:
    """Blanks comments and literals, splices lines, drops blocks under `#if 0` and the like.

    Literals become "" so that code around them still parses; line numbers are not kept.
    """
    spliced = source.replace("\\\r\n", "").replace("\\\n", "")
    text = _C_IGNORED.sub(lambda m: '""' if m[0][0] == '"' else " ", spliced)
    return "\n".join(_enabled(text.split("\n")))


def used_code(source: str, entries: tuple[str, ...]) -> str:
    """Returns the bodies of the entries and of functions they call, macros and typedefs expanded.

    Args:
        source: C-family source.
        entries: Functions to start from; those that are missing are ignored.
    """
    macros: dict[str, _Macro] = {}
    lines = []
    for line in strip_c(source).split("\n"):
        directive = _DIRECTIVE.match(line)
        if directive and directive[1] == "define" and (define := _DEFINE.match(directive[2])):
            names = tuple(name.strip() for name in define[2].split(",")) if define[2] else None
            macros[define[1]] = _Macro(names, define[3].strip())
        elif not directive or directive[1] == "pragma":
            lines.append(line)
    text = "\n".join(lines)
    for kind, name in _TYPEDEF.findall(text):
        macros.setdefault(name, _Macro(None, kind))
    functions = _functions(_TYPEDEF.sub(" ", text))
    wanted = [name for name in entries if name in functions]
    found: dict[str, str] = {}
    while wanted:
        name = wanted.pop(0)
        found[name] = _without_dead_branches(_expand(functions[name], macros))
        for word in dict.fromkeys(_WORD.findall(found[name])):
            if word in functions and word not in found and word not in wanted:
                wanted.append(word)
    return "\n".join(found.values())


@dataclass(frozen=True, slots=True)
class _Macro:
    """A macro: parameter names (None for one without brackets) and text."""

    names: tuple[str, ...] | None
    text: str


def _expand(text: str, macros: dict[str, _Macro]) -> str:
    """Expands macros, nested ones a few levels deep; stops when the text gets out of hand."""
    for _ in range(_MAX_DEPTH):
        parts, at, changed = [], 0, False
        for match in _WORD.finditer(text):
            macro = macros.get(match[0])
            if match.start() < at or macro is None:
                continue
            end, value = match.end(), macro.text
            if macro.names is not None:
                opening = re.compile(r"\s*\(").match(text, end)
                if not opening:
                    continue
                closing = _closing(text, opening.end() - 1)
                given = _arguments(text[opening.end() : closing])
                value = _bind(value, dict(zip(macro.names, given, strict=False)))
                end = closing + 1
            parts += [text[at : match.start()], value]
            at, changed = end, True
        if not changed:
            return text
        text = "".join(parts) + text[at:]
        if len(text) > _MAX_TEXT:
            return text
    return text


def _bind(text: str, given: dict[str, str]) -> str:
    return _WORD.sub(lambda match: given.get(match[0], match[0]), text)


def _arguments(text: str) -> list[str]:
    found, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append(text[start:index].strip())
            start = index + 1
    return [*found, text[start:].strip()]


def _enabled(lines: list[str]) -> list[str]:
    """Follows #if, #ifdef and their kin as far as the text alone decides them."""
    kept: list[str] = []
    values: dict[str, str] = {}
    # Per open #if: is this branch live, and has a branch surely been taken?
    stack: list[tuple[bool, bool]] = []
    for line in lines:
        directive = _DIRECTIVE.match(line)
        word, rest = (directive[1], directive[2].strip()) if directive else ("", "")
        if word in ("if", "ifdef", "ifndef"):
            known = _decide(word, rest, values)
            stack.append((known is not False, known is True))
        elif word in ("elif", "else", "endif"):
            taken = stack.pop()[1] if stack else False
            if word != "endif":
                known = True if word == "else" else _decide("if", rest, values)
                stack.append((not taken and known is not False, taken or known is True))
        elif all(live for live, _ in stack):
            if word == "define" and (define := _DEFINE.match(rest)):
                values[define[1]] = define[3]
            elif word == "undef":
                values.pop(rest, None)
            kept.append(line)
    return kept


def _decide(word: str, rest: str, values: dict[str, str]) -> bool | None:
    """Truth of a condition, None where it depends on what the text does not say."""
    if word == "ifdef":
        return True if rest in values else None
    if word == "ifndef":
        return False if rest in values else None
    number = _NUMBER.fullmatch(values.get(rest, rest).strip())
    return bool(int(number[1])) if number else None


def _functions(text: str) -> dict[str, str]:
    """Name -> parameters and body of every function defined at the outermost level."""
    found: dict[str, str] = {}
    at = 0
    while True:
        opening = text.find("{", at)
        if opening < 0:
            return found
        closing = _closing(text, opening)
        head = text[at:opening].rpartition(";")[2]
        name = ""
        for match in _HEAD.finditer(head):
            if not match[1].startswith("__attribute"):
                name = name or match[1]
        if name:
            found[name] = head[head.index(name) + len(name) :] + text[opening : closing + 1]
        at = closing + 1


def _closing(text: str, opening: int) -> int:
    pairs = {"{": "}", "(": ")"}
    close, depth = pairs[text[opening]], 0
    for index in range(opening, len(text)):
        depth += (text[index] == text[opening]) - (text[index] == close)
        if depth == 0:
            return index
    return len(text) - 1


def _without_dead_branches(body: str) -> str:
    """Drops what stands under `if (0)`; an `else` after it stays."""
    while match := _NEVER.search(body):
        end = match.end()
        while end < len(body) and body[end].isspace():
            end += 1
        if body[end : end + 1] == "{":
            stop = _closing(body, end)
        else:
            stop = body.find(";", end)
            stop = len(body) - 1 if stop < 0 else stop
        body = body[: match.start()] + " " + body[stop + 1 :]
    return body

"""What OpenCL code must not contain, read from text where the driver gives no bitcode.

A kernel that keeps state between calls can replay an old result instead of computing. On a CPU
device, inline assembly could make system calls. Where there is bitcode,
`workers.features_llvm.forbidden_constructs` sees more.
"""

from __future__ import annotations

import re

_COMMENTS_AND_STRINGS = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', re.DOTALL
)
_INLINE_ASM = re.compile(r"\b(?:__asm__|__asm|asm)\b")
# A line that declares a variable; the driver calls strings of printf "_$_str".
_PTX_VARIABLE = re.compile(
    r"^\s*(?:\.(?!global|param)\w+\s+)*\.global\s[^;=\[\n,]*?\s(?!_\$_str\d*\[)([\w$]+)\s*[\[;=]",
    re.MULTILINE,
)
# Not a typedef, and no bracket before an initialiser: that would be a function.
_GLOBAL_VARIABLE = re.compile(r"(?!typedef\b)(?=[^=(]*\b(?:__)?global\b)[^(]*(?:=|$)")


def forbidden_in_text(source: str, binary: bytes, device_kind: str) -> str:
    """Returns one line on the first forbidden thing, or "".

    Exact on variables for NVIDIA's driver, whose binary is PTX; otherwise it looks for `global`
    variables outside of all brackets in the source, which a macro can hide.

    Args:
        source: OpenCL C.
        binary: What the driver made of it.
        device_kind: "cpu" or "gpu"; inline assembly is harmless on the latter.
    """
    code = _COMMENTS_AND_STRINGS.sub(" ", source)
    if device_kind == "cpu" and _INLINE_ASM.search(code):
        return "inline assembly is not allowed"
    if b".version" in binary[:4096] and b".target" in binary[:4096]:
        if "$" in code:  # could pose as one of the driver's names
            return "names with a dollar sign are not allowed"
        match = _PTX_VARIABLE.search(binary.decode(errors="replace"))
        return f"the program-scope variable '{match.group(1)}' is writable" if match else ""
    for statement in _program_scope_statements(code):
        if _GLOBAL_VARIABLE.match(statement):
            return f"the program-scope variable in '{statement}' is writable"
    return ""


def _program_scope_statements(code: str) -> list[str]:
    """Returns what stands outside of functions; contents of brackets are dropped."""
    code = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", code, flags=re.MULTILINE)
    code = re.sub(r"\b__attribute__\s*\(\(.*?\)\)", " ", code, flags=re.DOTALL)
    kept, depth = [], 0
    for character in code:
        if character in "({":
            kept.append("(" if depth == 0 and character == "(" else "")
            depth += 1
        elif character in ")}":
            depth = max(depth - 1, 0)
            kept.append(";" if depth == 0 and character == "}" else "")
        elif depth == 0:
            kept.append(character)
    return [" ".join(statement.split()) for statement in "".join(kept).split(";")]

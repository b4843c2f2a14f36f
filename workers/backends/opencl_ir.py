"""What OpenCL code must not contain: memory that outlives a call, and ways around the language.

A kernel that keeps state between calls can replay an old result instead of computing. On a CPU
device, inline assembly could make system calls.
"""

from __future__ import annotations

import re

_COMMENTS_AND_STRINGS = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', re.DOTALL
)
_INLINE_ASM = re.compile(r"\b(?:call|invoke|callbr)\b[^\n\"]*\basm\b")
# @name = linkage and attributes, then "global" or "constant", type and initial value.
_GLOBAL_KIND = re.compile(r'@(?:"[^"]*"|\S+) = (?:[\w.]+(?:\([^)]*\))? )*?(global|constant) ')
# Strings for printf are called $str.
_PTX_VARIABLE = re.compile(
    r"^\s*(?:\.(?!global)\w+\s+)*\.global\s[^;=\[]*?\s(?!\$str)([\w$]+)\s*[\[;=]", re.MULTILINE
)
# Not a typedef, and no bracket before an initialiser: that would be a function.
_GLOBAL_VARIABLE = re.compile(r"(?!typedef\b)(?=[^=(]*\b(?:__)?global\b)[^(]*(?:=|$)")
# LLVM's own bookkeeping globals; constructors are not among them.
_HARMLESS_GLOBALS = ("llvm.used", "llvm.compiler.used")


def forbidden_in_bitcode(bitcode: bytes) -> str:
    """Returns one line on the first forbidden thing in LLVM bitcode from PoCL, or "".

    A local variable is a module global as well, but only program-scope variables have a value to
    start from: the language zeroes them, and forbids initialisers of local ones.
    """
    import llvmlite.binding as llvm

    module = llvm.parse_bitcode(bitcode)
    for variable in module.global_variables:
        if variable.is_declaration or variable.name in _HARMLESS_GLOBALS:
            continue
        text = str(variable)
        match = _GLOBAL_KIND.match(text)
        if match and match.group(1) == "constant":
            continue
        if text.split(", align")[0].endswith(" undef"):
            continue
        return f"the program-scope variable '{variable.name}' is writable"
    text = str(module)
    if "\nmodule asm" in text or _INLINE_ASM.search(text):
        return "inline assembly is not allowed"
    return ""


def forbidden_in_text(source: str, binary: bytes) -> str:
    """Returns one line on the first forbidden thing where the driver gives no bitcode, or "".

    Exact for NVIDIA's driver, whose binary is PTX; otherwise it looks for `global` variables
    outside of all brackets in the source, which a macro can hide.
    """
    if b".version" in binary[:4096] and b".target" in binary[:4096]:
        match = _PTX_VARIABLE.search(binary.decode(errors="replace"))
        return f"the program-scope variable '{match.group(1)}' is writable" if match else ""
    for statement in _program_scope_statements(source):
        if _GLOBAL_VARIABLE.match(statement):
            return f"the program-scope variable in '{statement}' is writable"
    return ""


def _program_scope_statements(source: str) -> list[str]:
    """Returns what stands outside of functions; contents of brackets are dropped."""
    code = _COMMENTS_AND_STRINGS.sub(" ", source)
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

"""What compiled device code must not contain.

Memory that outlives a call would let a kernel replay an old result instead of computing one. On a
CPU device a kernel is host code: a call that leaves the driver's library, or inline assembly, could
do anything the process can. The rules are by permission: what is not known to be harmless is
refused.
"""

from __future__ import annotations

import re

from workers.llvm_text import Module

# What the driver's context and printf need; the names are the driver's, and none has a value.
_DRIVER_GLOBAL = re.compile(
    r"@_(?:(?:global_offset|group_id|local_id|local_size|num_groups)_[xyz]|work_dim"
    r"|printf_buffer(?:_capacity|_position)?|pocl_sub_group_size)"
)
_BOOKKEEPING = frozenset({"@llvm.used", "@llvm.compiler.used"})
# Functions without a body that only the driver's own printf and barrier may end in.
_DRIVER_EXTERNALS = frozenset({"pocl.barrier", "snprintf"})
_DRIVER_FUNCTION = re.compile(r"__pocl_\w+|printf|_Z\d+(?:work_group_)?barrierj.*")
_HARMLESS_INTRINSIC = re.compile(
    r"llvm\.(?:"
    # arithmetic
    r"(?:fma|fmuladd|fabs|sqrt|floor|ceil|trunc|rint|nearbyint|round|roundeven|copysign|minnum"
    r"|maxnum|minimum|maximum|minimumnum|maximumnum|canonicalize|is\.fpclass|ldexp|frexp|modf"
    r"|pow|powi|exp|exp2|exp10|log|log2|log10|sin|cos|tan|sincos|asin|acos|atan|atan2|sinh|cosh"
    r"|tanh|abs|smax|smin|umax|umin|ctpop|ctlz|cttz|bswap|bitreverse|fshl|fshr|lrint|llrint"
    r"|lround|llround|fptosi\.sat|fptoui\.sat|convert\.(?:to|from)\.fp16|scmp|ucmp)\.[\w.]+"
    r"|(?:sadd|uadd|ssub|usub|smul|umul|sshl|ushl)\.(?:sat|with\.overflow|fix(?:\.sat)?)\.[\w.]+"
    # vectors and memory
    r"|(?:vector|masked|experimental\.vector)\.[\w.]+"
    r"|(?:memcpy|memmove|memset)\.[\w.]+|(?:lifetime|invariant|launder|strip)\.[\w.]+"
    r"|prefetch(?:\.\w+)?|stacksave(?:\.\w+)?|stackrestore(?:\.\w+)?|objectsize\.[\w.]+|ptrmask\.[\w.]+"
    # remarks to the optimiser
    r"|assume|expect(?:\.[\w.]+)?|dbg\.\w+|experimental\.noalias\.scope\.decl|annotation\.[\w.]+"
    r"|is\.constant\.[\w.]+|sideeffect|donothing|ssa\.copy\.[\w.]+|va_start(?:\.\w+)?|va_end(?:\.\w+)?"
    # the CPU's arithmetic, which the library is made of; not its control registers or caches
    r"|x86\.(?:sse|sse2|sse3|ssse3|sse41|sse42|avx|avx2|avx512|avx512\w+|fma|f16c)\."
    r"(?!ldmxcsr|stmxcsr|clflush|\w*fence|pause|monitor|mwait)[\w.]+"
    r"|aarch64\.neon\.[\w.]+"
    r")"
)
_INDIRECT = re.compile(r"\b(?:call|invoke|callbr)\b(?![^@]*\basm\b)[^@(]* %[-\w.$\"]+\(")
_INLINE_ASM = re.compile(r"\b(?:call|invoke|callbr)\b[^\"]*\basm\b")
_LOCAL_ARRAY = re.compile(
    r"internal (?:unnamed_addr )?(?:addrspace\(3\) )?global .* (?:undef|poison)"
)


def forbidden_in_module(module: Module, kernels: frozenset[str]) -> str:
    """Returns one line on the first thing that is not allowed in a module, or "".

    Args:
        module: Program and driver library, linked.
        kernels: Functions that may own work-group variables, which are named after them.
    """
    if module.others:
        kind = "inline assembly" if module.others[0].startswith("module asm") else "an alias"
        return f"{kind} at program scope is not allowed"
    for name, text in module.globals.items():
        if reason := _global_problem(name, text, kernels):
            return reason
    for name in sorted(module.declared):
        if not name.startswith("llvm.") and name not in _DRIVER_EXTERNALS:
            return f"the function '{name}' has no body and is not part of OpenCL"
        if name.startswith("llvm.") and not _HARMLESS_INTRINSIC.fullmatch(name):
            return f"the compiler builtin '{name}' is not allowed"
    for name, lines in module.bodies.items():
        if reason := _function_problem(name, lines):
            return reason
    return ""


def is_kernel(header: str) -> bool:
    """A function's `define` line is that of a kernel."""
    return "kernel_arg_addr_space" in header or re.search(r"\b\w+_kernel\b", header) is not None


def _global_problem(name: str, text: str, kernels: frozenset[str]) -> str:
    if name in _BOOKKEEPING:
        return ""
    plain = name[1:].strip('"')
    external = text.startswith("external ")
    if external and _DRIVER_GLOBAL.fullmatch(name):
        return ""
    if external:
        return f"the program-scope variable '{plain}' is declared but not defined"
    if re.match(r"(?:\w+ )*?(?:addrspace\(\d+\) )?constant ", text):
        return ""
    if plain.rpartition(".")[0] and _LOCAL_ARRAY.match(text):
        owner = next((k for k in kernels if plain.startswith(k + ".")), "")
        if owner:
            return ""
    return f"the program-scope variable '{plain}' is writable"


def _function_problem(name: str, lines: list[str]) -> str:
    of_driver = _DRIVER_FUNCTION.fullmatch(name)
    for line in lines[1:]:
        if " call " not in line and "invoke" not in line and "callbr" not in line:
            continue
        if _INLINE_ASM.search(line):
            return f"inline assembly is not allowed (in '{name}')"
        if _INDIRECT.search(line):
            return f"a call through a pointer is not allowed (in '{name}')"
        if not of_driver:
            for external in _DRIVER_EXTERNALS:
                if f"@{external}(" in line:
                    return f"'{name}' calls '{external}', which is the driver's"
    return ""

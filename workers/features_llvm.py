"""Facts, identity and admission of a kernel from the LLVM bitcode its driver compiled it to.

PoCL keeps a program's bitcode in its binaries. It is optimised as at -O2, except that loops are
unrolled only where the source says `#pragma unroll` and nothing is vectorised: what is seen is the
author's structure, without dead code, comments or names. `evo/descriptor.py` lists the features.

Features are those of the entries and of the program's own functions they call; the driver's
library, linked into the same module, is only part of the hash.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import llvmlite.binding as llvm

from evo.descriptor import FEATURES
from evo.errors import WorkerError
from evo.evaluation import CodeFeatures
from workers.llvm_admission import forbidden_in_module, is_kernel
from workers.llvm_facts import FunctionFacts, count_facts
from workers.llvm_flow import Base, builtin_name
from workers.llvm_text import Function, Module, parse_module, symbol_in

_BITCODE_MAGIC = b"BC\xc0\xde"
_PROGRAM_FILE = b"/program.bc"
_NOT_THE_PROGRAMS = re.compile(r"^(?:_Z\d+_cl_|_Z\d+__pocl|__pocl|pocl\.|llvm\.|Sleef_|printf$)")
_LIBRARY_PREFIXES = ("get_", "barrier", "work_group_", "mem_fence", "read_mem_", "write_mem_")
_LIBRARY_NAMES = frozenset({"wait_group_events", "async_work_group_copy"})
_SPACES = {1: "global", 2: "constant", 3: "local"}

# llvmlite prints a warning per module with old debug information unless told not to look at it.
llvm.set_option("", "-disable-auto-upgrade-debug-info")


def bitcode_from_pocl_binary(binary: bytes) -> bytes | None:
    """Returns the program's bitcode held in a PoCL program binary; None if it is no such binary."""
    if not binary.startswith(b"poclbin"):
        return None
    at = binary.find(_PROGRAM_FILE)
    while at >= 0:
        start = at + len(_PROGRAM_FILE) + 4
        if binary[start : start + 4] == _BITCODE_MAGIC:
            (size,) = struct.unpack_from("<I", binary, start - 4)
            return binary[start : start + size] if start + size <= len(binary) else None
        at = binary.find(_PROGRAM_FILE, at + 1)
    return None


def features_from_bitcode(bitcode: bytes, entries: Sequence[str]) -> CodeFeatures:
    """Reads the facts `evo.descriptor` needs.

    Args:
        bitcode: An LLVM module.
        entries: Kernels that are launched. One that the module lacks counts nothing.

    Raises:
        WorkerError: If this is no bitcode LLVM can read.
    """
    return _features(_module_of(bitcode), entries)


def features_from_ir(text: str, entries: Sequence[str]) -> CodeFeatures:
    """As `features_from_bitcode`, from textual IR."""
    return _features(parse_module(text), entries)


def _features(module: Module, entries: Sequence[str]) -> CodeFeatures:
    known = [entry for entry in dict.fromkeys(entries) if entry in module.bodies]
    facts: dict[str, FunctionFacts] = {}
    bases = _Bases(module)
    kernels = 0
    for entry in known:
        writes = False
        for function in _reachable(module, entry):
            if function.name not in facts:
                facts[function.name] = count_facts(function, bases.of(function))
                bases.pass_on(function, facts[function.name])
            writes = writes or facts[function.name].writes_global
        kernels += writes
    counts = _sum(list(facts.values()))
    counts["kernels"] = float(kernels)
    return CodeFeatures(origin="llvm-ir", counts=counts)


def code_hash(bitcode: bytes, entries: Sequence[str]) -> str:
    """Hashes what the entries do, in the order given: 16 hex digits.

    Names of values, variables, functions and entries, metadata and paths are left out; types,
    constants, attributes, local arrays, argument spaces and a required work-group size are in.
    Launch geometry is not part of the code: whoever compares programs adds it.

    Raises:
        WorkerError: If this is no bitcode LLVM can read.
    """
    module = _module_of(bitcode)
    digest = hashlib.sha256()
    for line in _normalised(module, [e for e in entries if e in module.bodies]):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=1)
def _module_of(bitcode: bytes) -> Module:
    """Reads a module; the last one is kept, because a compilation asks three things of it."""
    try:
        with llvm.parse_bitcode(bitcode, llvm.create_context()) as module:
            return parse_module(str(module))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise WorkerError(f"LLVM cannot read the bitcode: {reason}") from None


def _is_library(name: str) -> bool:
    plain = builtin_name(name)
    return (
        bool(_NOT_THE_PROGRAMS.match(name))
        or (name.startswith("_Z") and plain.startswith(_LIBRARY_PREFIXES))
        or plain in _LIBRARY_NAMES
    )


def _reachable(module: Module, entry: str, library: bool = False) -> Iterator[Function]:
    """The entry and the program's own functions it calls, callers before callees.

    With `library`, the driver's as well.
    """
    seen, queue = {entry}, [entry]
    while queue:
        function = module.function(queue.pop(0))
        yield function
        for instruction in function:
            name = instruction.callee
            if name in module.bodies and name not in seen and (library or not _is_library(name)):
                seen.add(name)
                queue.append(name)


class _Bases:
    """What parameters and globals point into."""

    def __init__(self, module: Module):
        self._module = module
        self._passed: dict[tuple[str, str], Base] = {}

    def of(self, function: Function) -> dict[str, Base]:
        """Name -> base, for a function's parameters and all globals."""
        known = {name: Base(name, _space(text)) for name, text in self._module.globals.items()}
        for index, parameter in enumerate(function.parameters):
            if base := self._passed.get((function.name, parameter.name)):
                known[parameter.name] = base
                continue
            space = 0
            if index < len(function.address_spaces):
                space = function.address_spaces[index]
            elif match := re.search(r"addrspace\((\d+)\)", parameter.type):
                space = int(match[1])
            if "ptr" in parameter.type or "*" in parameter.type:
                name = f"{function.name}:{parameter.name}"
                known[parameter.name] = Base(name, _SPACES.get(space, "unknown"))
        return known

    def pass_on(self, function: Function, facts: FunctionFacts) -> None:
        """Tells callees what their parameters point into; the first caller decides."""
        for instruction in function:
            if instruction.callee not in self._module.bodies or _is_library(instruction.callee):
                continue
            callee = self._module.function(instruction.callee)
            for parameter, part in zip(callee.parameters, instruction.parts, strict=False):
                if base := facts.flow.base(symbol_in(part)):
                    self._passed.setdefault((callee.name, parameter.name), base)


def _space(text: str) -> str:
    if match := re.search(r"addrspace\((\d+)\)", text):
        return {1: "global", 2: "constant", 3: "local", 4: "constant"}.get(int(match[1]), "global")
    if re.search(r"\bconstant\b", text):
        return "constant"
    return "local" if is_local_array(text) else "global"


def is_local_array(text: str) -> bool:
    """A global variable's text is that of a work-group variable; only those lack a value."""
    return text.startswith("internal ") and bool(re.search(r" (?:undef|poison)(?:,|$)", text))


@dataclass(slots=True)
class _Shared:
    """What the functions of a program do to one work-group array."""

    loads: int = 0
    stores: int = 0
    tile_stores: int = 0
    copies_in: int = 0
    copies_out: int = 0


_MOST = ("chains", "unroll")
_BUSIEST = ("loaded_values", "results", "reuse_ratio", "work_ratio")


def _sum(facts: Sequence[FunctionFacts]) -> dict[str, float]:
    counts: dict[str, float] = dict.fromkeys(FEATURES, 0.0)
    arrays: dict[str, _Shared] = defaultdict(_Shared)
    waits = 0
    busiest = 0.0
    for item in facts:
        waits += item.waits
        for name, value in item.counts.items():
            if name in _MOST:
                counts[name] = max(counts[name], value)
            elif name not in _BUSIEST:
                counts[name] += value
        work = item.counts["results"] * item.counts["reuse_ratio"] * item.counts["loaded_values"]
        if work > busiest:
            busiest = work
            counts.update({name: item.counts[name] for name in _BUSIEST})
        for base, what in item.local_uses:
            shared = arrays[base]
            setattr(shared, what, getattr(shared, what) + 1)
    for array in arrays.values():
        filled = array.stores + (array.copies_in if waits else 0)
        drained = array.loads + (array.copies_out if waits else 0)
        counts["local_shared"] += bool(filled and drained)
        counts["local_tiles"] += bool(array.tile_stores and array.loads)
        if waits:
            counts["async_copies"] += array.copies_in if drained else 0
            counts["async_copies"] += array.copies_out if filled else 0
    return {name: float(value) for name, value in counts.items()}


@dataclass(slots=True)
class _Names:
    """Numbers names in the order they are met."""

    prefix: str
    numbers: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        return self.numbers.setdefault(name, f"{self.prefix}{len(self.numbers)}")


_ANY_NAME = re.compile(r'[%@](?:"[^"]*"|[-\w.$]+)')
_HEADER_NOISE = re.compile(
    r" (?:dso_local|local_unnamed_addr|unnamed_addr|#\d+|\{)|![\w.]+ !\d+|\bspir_kernel\b"
)


def _normalised(module: Module, entries: Sequence[str]) -> Iterator[str]:
    functions, variables = _Names("@f"), _Names("@g")
    ours = {"@" + entry for entry in entries}
    order: dict[str, Function] = {}
    for entry in entries:
        # The library too: a program's own function may bear a name that looks like one of its.
        for function in _reachable(module, entry, library=True):
            order.setdefault(function.name, function)
            ours.add("@" + function.name)
    for function in order.values():
        local = _Names("%")

        def rename(match: re.Match[str], local: _Names = local) -> str:
            name = match[0]
            if name[0] == "%":
                return local(name)
            if name in ours:
                return functions(name)
            return variables(name) if name in module.globals else name

        yield _ANY_NAME.sub(rename, _HEADER_NOISE.sub("", function.header)).strip()
        yield f"{function.address_spaces} {function.required_size}"
        # Flushing of denormals and the like are attributes; they are the same for equal code.
        yield from (module.attributes.get(g, "") for g in re.findall(r"#\d+", function.header))
        for label, block in function.blocks.items():
            yield f"{local(label)}:"
            for instruction in block:
                result = f"{local(instruction.result)} = " if instruction.result else ""
                yield result + _ANY_NAME.sub(rename, instruction.text)
    done = 0
    while done < len(variables.numbers):  # a variable's value may name more of them
        name = list(variables.numbers)[done]
        done += 1
        text = _HEADER_NOISE.sub("", " " + module.globals[name])
        # A string constant may hold "%d", which only looks like a name.
        renamed = _ANY_NAME.sub(lambda m: variables(m[0]) if m[0] in module.globals else m[0], text)
        yield f"{variables(name)} ={renamed}"


def forbidden_constructs(bitcode: bytes, entries: Sequence[str]) -> str:
    """Returns one line on the first thing device code must not contain, or "".

    Writable program-scope variables, calls that leave the driver's library or go through pointers,
    inline assembly and privileged builtins are refused; see `workers/llvm_admission.py`.

    Raises:
        WorkerError: If this is no bitcode LLVM can read.
    """
    module = _module_of(bitcode)
    kernels = {name for name, lines in module.bodies.items() if is_kernel(lines[0])}
    return forbidden_in_module(module, frozenset({*kernels, *entries}))

"""Facts read from source text, where a driver does not show the code it made of it.

The fallback: coarser than compiled code and easier to mislead, so the record names its origin.
Comments, strings, disabled blocks, `if (0)` and functions nobody calls are out, and so are arrays
nobody reads; dead code that takes an optimiser to see is not. Only levels are aimed at: counts are
of occurrences in the text. `evo/descriptor.py` lists the features; some a text can't give.

A language is one entry of `LANGUAGES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evo.errors import ProtocolError
from evo.evaluation import CodeFeatures
from workers.cleaning import used_code

_ATOMIC_TARGET = re.compile(r"\batom(?:ic)?_(?!init)\w+\s*\(\s*&?\s*(?:\([^)]*\)\s*)?(\w+)")
_VECTOR_TYPE = r"(?:float|double|half|u?int|u?long|u?short|u?char)(2|3|4|8|16)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How a language's text tells features.

    Attributes:
        used: Reduces a source to the code its entries use.
        patterns: Feature name -> pattern; each match counts one.
        special: Features that take more than a pattern.
    """

    used: Callable[[str, tuple[str, ...]], str]
    patterns: dict[str, re.Pattern[str]]
    special: Callable[[str], dict[str, float]]


def features_from_source(source: str, language: str, entries: Sequence[str]) -> CodeFeatures:
    """Estimates the facts `evo.descriptor` needs.

    Args:
        source: Rendered source.
        language: A key of `LANGUAGES`.
        entries: Kernels that are launched.

    Raises:
        ProtocolError: If the language is unknown.
    """
    if language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise ProtocolError(f"no source features for language {language!r}, known are {known}")
    rules = LANGUAGES[language]
    code = rules.used(source, tuple(entries))
    counts = {name: float(len(p.findall(code))) for name, p in rules.patterns.items()}
    counts.update(rules.special(code))
    present = [e for e in dict.fromkeys(entries) if rules.used(source, (e,))]
    counts["kernels"] = float(len(present))
    return CodeFeatures(origin="source", counts=counts)


def _opencl_special(code: str) -> dict[str, float]:
    """Work-group arrays, vectors, accumulators and loops of OpenCL C."""
    found: dict[str, float] = {}
    local = set(re.findall(r"\b(?:__)?local\b[^;(){}=]*?\b(\w+)\s*(?:\[|[,;)=])", code))
    written = {n for n in local if re.search(rf"\b{n}\s*(?:\[[^;]*?\])+\s*[-+*/|&^]?=(?!=)", code)}
    written |= {n for n in local if re.search(rf"\bvstore\w*\s*\([^;]*\b{n}\b[^;]*\)\s*;", code)}
    staged = {n for n in written if _staged(code, n)}
    copied = {n for n in local if re.search(rf"\basync_work_group_\w+\s*\(\s*&?\s*{n}\b", code)}
    uses = re.sub(r"\b(?:__)?local\b[^;(){}=]*;", " ", code)
    read = {n for n in local if _reads(uses, n)}
    found["local_shared"] = len((written | copied) & read)
    found["local_tiles"] = len(staged & read)
    waits = re.search(r"\bwait_group_events\s*\(", code)
    copies = len(re.findall(r"\basync_work_group_(?:strided_)?copy\s*\(", code))
    found["async_copies"] = copies if waits and (copied & read or written) else 0

    widths = re.findall(r"\bv(?:load|store)a?(?:_half)?(\d+)\w*\s*\(", code)
    pointers = re.findall(rf"\b(?:__)?global\b[^;,(){{}}]*?\b{_VECTOR_TYPE}\b[^;,(){{}}]*?\*", code)
    found["global_vector_accesses"] = len(widths) + len(pointers)
    found["global_vector_values"] = sum(map(int, [*widths, *pointers]))
    found["global_values"] = found["global_vector_values"] + 1

    vectors = re.findall(rf"(?<![\w(*]){_VECTOR_TYPE}\s+\w+\s*=", code)
    found["data_vector_values"] = found["data_values"] = sum(map(int, vectors))
    loops = _loop_bodies(code)
    found["loops"] = len(loops)
    sums = [_accumulators(body) for body in loops]
    found["chains"] = max((len(names) for names in sums), default=0)
    unrolls = [int(n or 2) for n in re.findall(r"#\s*pragma\s+unroll\b[ \t]*\(?(\d*)", code)]
    found["unroll"] = max(unrolls, default=1)
    found["results"], found["work_ratio"] = _blocking(loops, _widths(code))
    strides = r"(?:get_global_size|get_num_groups)\s*\("
    found["grid_stride_loops"] = len(re.findall(rf"\bfor\s*\([^;]*;[^;]*;[^;{{]*{strides}", code))
    found["global_atomics"] = sum(
        1
        for target in re.findall(
            r"\batom(?:ic)?_(?!init)\w+\s*\(\s*&?\s*(?:\([^)]*\)\s*)?(\w+)", code
        )
        if target not in local
    )
    return {name: float(value) for name, value in found.items()}


def _staged(code: str, name: str) -> bool:
    """Something indexed or vector-loaded, nothing accumulated, is stored to the array."""
    stores = re.findall(rf"\b{name}\s*(?:\[[^;=]*?\])+\s*=(?!=)\s*([^;]*);", code)
    return any(re.search(r"\w\s*\[|\bvload", value) and name not in value for value in stores)


def _reads(code: str, name: str) -> bool:
    indexed = re.findall(rf"\b{name}\s*(?:\[[^;=\]]*\])+(\s*=(?!=))?", code)
    loaded = re.search(rf"\bvload\w*\s*\([^;]*\b{name}\b", code)
    passed = re.search(rf"=\s*&?\s*{name}\b\s*(?:[-+;\[]|$)", code)
    return any(not assigned for assigned in indexed) or bool(loaded) or bool(passed)


def _loop_bodies(code: str) -> list[str]:
    """Bodies of innermost loops, roughly: what follows a `for` or `while` up to its end."""
    bodies = []
    for match in re.finditer(r"\b(?:for|while)\s*\(", code):
        depth, at = 1, match.end()
        while at < len(code) and depth:
            depth += (code[at] == "(") - (code[at] == ")")
            at += 1
        while at < len(code) and code[at].isspace():
            at += 1
        if code[at : at + 1] == "{":
            depth, end = 1, at + 1
            while end < len(code) and depth:
                depth += (code[end] == "{") - (code[end] == "}")
                end += 1
        else:
            end = code.find(";", at) + 1 or len(code)
        bodies.append(code[at:end])
    return [body for body in bodies if not re.search(r"\b(?:for|while)\s*\(", body)] or bodies


def _accumulators(body: str) -> set[str]:
    plain = re.findall(r"\b([A-Za-z_]\w*(?:\[\w+\])*)\s*\+=", body)
    fused = re.findall(r"\b([A-Za-z_]\w*)\s*=\s*(?:fma|mad)\s*\([^;]*\b\1\s*\)", body)
    local_names = set(re.findall(r"\bint\s+(\w+)", body))
    return {name for name in (*plain, *fused) if name not in local_names}


def _widths(code: str) -> dict[str, int]:
    """Name -> elements, of the vectors declared."""
    return {
        name: int(width)
        for width, declared in re.findall(rf"\b{_VECTOR_TYPE}\s+(\w[^;{{}}]*)", code)
        for name in re.findall(r"(?:^|,)\s*(\w+)", declared)
    }


def _blocking(loops: list[str], widths: dict[str, int]) -> tuple[float, float]:
    """Products per value in the loop with most of them: results, and products per value."""
    value = r"(\w+(?:\s*\[[^;\]]*\])*)"
    added = re.compile(rf"\b{value}\s*\+=\s*{value}\s*\*\s*{value}\s*;")
    fused = re.compile(rf"\b{value}\s*=\s*(?:fma|mad)\s*\(\s*{value}\s*,\s*{value}\s*,\s*\1\s*\)")
    best = (0.0, 0.0)
    for body in loops:
        found = {*added.findall(body), *fused.findall(body)}
        products = {item for item in found if item[1] != item[2]}  # a square combines nothing
        factors = {factor for _, *pair in products for factor in pair}
        results = sum(widths.get(name, 1) for name in {name for name, *_ in products})
        if results > best[0]:
            loaded = sum(widths.get(factor, 1) for factor in factors)
            best = (float(results), results / loaded)
    return best


LANGUAGES: dict[str, Language] = {
    "opencl": Language(
        used=used_code,
        patterns={
            "barriers": re.compile(r"\b(?:work_group_)?barrier\s*\("),
            "work_group_ops": re.compile(
                r"\bwork_group_(?:reduce|scan|broadcast|all|any)\w*\s*\(|\basync_work_group_\w+\s*\("
            ),
            "sub_group_ops": re.compile(r"\b(?:intel_)?sub_group_(?!barrier)\w+\s*\("),
            "matrix_ops": re.compile(
                r"\bintel_sub_group_\w*(?:matrix_mad|dpas)\w*\s*\(|\b__spirv_\w*MatrixM\w+\s*\("
            ),
        },
        special=_opencl_special,
    )
}
"""Language -> how to read it."""

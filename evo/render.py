"""From template and parameters to a program: source and launches with all numbers known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from evo.errors import EvoError, TemplateError
from evo.expressions import Expression, suggest
from evo.front_matter import LaunchSpec, ScratchSpec
from evo.genome import ParamValue
from evo.job import DeviceInfo, Launch, Program, Scratch, WorkloadProgram
from evo.serial import content_hash
from evo.task import Task, Workload
from evo.template import Template, language_of

MAX_SIDE = 2**31 - 1
"""Largest grid or block side, and largest scratch buffer in elements."""


def build_program(
    task: Task,
    template: Template,
    params: Mapping[str, ParamValue],
    device: DeviceInfo,
) -> Program:
    """Renders a parameter set for every workload of the task, confirm ones included.

    Constraints are the space's business; this only refuses what cannot be rendered.

    Raises:
        TemplateError: If names do not fit the template, or rendering or the geometry fails.
    """
    declared = {param.name for param in template.front.params}
    for name in declared ^ set(params):
        problem = "is missing" if name in declared else "is unknown"
        raise TemplateError(
            f"{template.path}: parameter {name!r} {problem} {suggest(name, declared)}"
        )
    # Most templates take the dimensions as arguments: one text then serves all workloads.
    shared = not template.body_names & set(task.dims)
    programs: list[WorkloadProgram] = []
    for workload in task.workloads:
        if shared and programs:
            source, options = programs[0].source, programs[0].build_options
        else:
            source = template.render(params, workload.dims, task.scalar_values, device)
            options = template.render_options(_scope(task, workload, params, device))
        programs.append(
            _workload_program(task, workload, template, params, device, source, options)
        )
    return Program(backend=template.backend, template=template.name, workloads=tuple(programs))


def _scope(
    task: Task, workload: Workload, params: Mapping[str, ParamValue], device: DeviceInfo
) -> dict[str, Any]:
    return {**workload.dims, **task.scalar_values, **params, "device": device}


def _workload_program(
    task: Task,
    workload: Workload,
    template: Template,
    params: Mapping[str, ParamValue],
    device: DeviceInfo,
    source: str,
    options: tuple[str, ...],
) -> WorkloadProgram:
    scope = _scope(task, workload, params, device)
    try:
        return WorkloadProgram(
            workload=workload.name,
            source=source,
            launches=tuple(_launch(spec, scope) for spec in template.front.launches),
            scratch=tuple(_scratch(spec, scope) for spec in template.front.scratch),
            build_options=options,
        )
    except EvoError as error:
        raise TemplateError(f"{template.path}: workload {workload.name}: {error}") from None


def _launch(spec: LaunchSpec, scope: Mapping[str, Any]) -> Launch:
    return Launch(
        entry=spec.entry,
        args=spec.args,
        grid=_sides(spec.grid, scope),
        block=_sides(spec.block, scope),
        shared_bytes=_bounded(spec.shared_bytes, scope, minimum=0),
    )


def _scratch(spec: ScratchSpec, scope: Mapping[str, Any]) -> Scratch:
    elements = _bounded(spec.elements, scope, minimum=1)
    return Scratch(name=spec.name, dtype=spec.dtype, elements=elements)


def _sides(expressions: tuple[Expression, ...], scope: Mapping[str, Any]) -> tuple[int, int, int]:
    sides = [_bounded(item, scope, minimum=1) for item in expressions]
    x, y, z = [*sides, 1, 1][:3]
    return x, y, z


def _bounded(expression: Expression, scope: Mapping[str, Any], *, minimum: int) -> int:
    value = expression.integer(scope, minimum=minimum)
    if value > MAX_SIDE:
        raise TemplateError(f"in expression {expression.text!r}: {value} is above {MAX_SIDE}")
    return value


_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<newline>\n)
    |(?P<blank>\s+)
    |(?P<word>\.?\d(?:[eEpP][+-]|[\w.])*|\w+)
    |(?P<mark><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||\#\#|[-+*/%&|^]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)


def normalise_source(source: str, language: str) -> str:
    """Strips comments and layout, so that equal code has equal text.

    C family: tokens joined by one blank; preprocessor lines keep their own line, since their ends
    matter. Python: only comment lines, trailing blanks and empty lines go.
    """
    if language == "python":
        lines = (line.rstrip() for line in source.splitlines())
        return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    joined = source.replace("\\\r\n", "").replace("\\\n", "")
    lines_out: list[str] = []
    for line in _token_lines(joined):
        directive = line[0] == "#"
        if lines_out and not directive and not lines_out[-1].startswith("#"):
            lines_out[-1] += " " + " ".join(line)
        else:
            lines_out.append(("" if directive else " ").join(line).strip())
    return "\n".join(lines_out)


def _token_lines(source: str) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    for match in _TOKEN.finditer(source):
        if match.lastgroup == "newline":
            lines.append([])
        elif match.lastgroup in ("text", "word", "mark"):
            lines[-1].append(match.group())
        elif lines[-1] and lines[-1][0] == "#" and lines[-1][-1] != " ":
            lines[-1].append(" ")  # `#define f (x)` and `#define f(x)` differ
    return [line for line in lines if line]


def source_hash(program: Program) -> str:
    """Hash that is equal for programs with the same code, launches, scratch and build options.

    Comments and layout do not count, nor does the name of the template.
    """
    language = language_of(program.backend)
    normal: dict[str, str] = {}
    for item in program.workloads:
        if item.source not in normal:
            normal[item.source] = normalise_source(item.source, language)
    parts = [
        [item.workload, normal[item.source], item.launches, item.scratch, item.build_options]
        for item in program.workloads
    ]
    return content_hash([program.backend, parts])

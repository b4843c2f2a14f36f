"""Kernel templates: front matter that declares, and a body that becomes device code.

File names are `<backend>[_<variant>].<ext>.j2`; the part before the first dot is the template's
name. Loading checks everything that can be checked without a device, so that a template written by
hand or by a language model fails early, with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evo.errors import ConfigError, SpaceError, TaskError, TemplateError
from evo.expressions import Expression, suggest
from evo.front_matter import FrontMatter, split_text
from evo.genome import ParamValue
from evo.job import DeviceInfo
from evo.sandbox import Body
from evo.serial import content_hash
from evo.space import Space
from evo.task import Task

SUFFIX = ".j2"
_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9_]+)?")
_PYTHON_BACKENDS = ("triton",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A parsed template.

    Attributes:
        name: E.g. "opencl_online".
        backend: E.g. "opencl".
        text: The whole text, front matter included.
        hash: Content hash of the text with line ends and trailing blanks normalised.
        front: What it declares.
        path: File name for messages; the name where there is no file.
    """

    name: str
    backend: str
    text: str = field(repr=False)
    hash: str
    front: FrontMatter = field(repr=False)
    path: str
    _body: Body = field(repr=False, compare=False)
    _options: tuple[Body, ...] = field(repr=False, compare=False)

    @property
    def language(self) -> str:
        """Comment style: "c" or "python"."""
        return language_of(self.backend)

    @property
    def body_names(self) -> frozenset[str]:
        """Free names of body and build options: what a rendering depends on."""
        return self._body.names.union(*(option.names for option in self._options))

    def render(
        self,
        params: Mapping[str, ParamValue],
        workload_dims: Mapping[str, int],
        scalars: Mapping[str, float],
        device: DeviceInfo,
    ) -> str:
        """Renders the body to source code.

        Raises:
            TemplateError: If a name is undefined or an operation fails (names file and line).
        """
        values = {**workload_dims, **scalars, **params, "device": device}
        return self._body.render(values).strip("\n") + "\n"

    def render_options(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Renders the build options with the same names as the body."""
        return tuple(option.render(values) for option in self._options)

    def space(self, task: Task, device: DeviceInfo) -> Space:
        """Returns the valid parameter sets for all workloads of the task on a device.

        Raises:
            SpaceError: If no valid point exists there.
        """
        contexts = [
            {**workload.dims, **task.scalar_values, "device": device} for workload in task.workloads
        ]
        try:
            return Space(
                params=self.front.params,
                constraints=[item.text for item in self.front.constraints],
                contexts=contexts,
            )
        except SpaceError as error:
            raise SpaceError(f"{self.path}: {error}") from None

    def check(self, task: Task) -> None:
        """Checks names, arguments and entry points against a task.

        Raises:
            TemplateError: With file and line.
        """
        front, fail = self.front, self.front.fields.fail
        values = frozenset((*task.dims, *task.scalar_values))
        tensors = frozenset(tensor.name for tensor in (*task.inputs, *task.outputs))
        buffers = frozenset(item.name for item in front.scratch)
        for name in (param.name for param in front.params):
            if name in values | tensors:
                raise fail(f"the task {task.name} already uses the name {name!r}", "params", name)
        own = frozenset(param.name for param in front.params)
        for name in buffers & (values | tensors | own):
            raise fail(f"the name {name!r} is already in use", "scratch", name)
        self._check_expressions(values | own)
        self._body.require(values | own)
        for option in self._options:
            option.require(values | own)
        passable = values | tensors | buffers
        for index, launch in enumerate(front.launches):
            for position, arg in enumerate(launch.args):
                if arg not in passable:
                    message = f"unknown argument {arg!r} {suggest(arg, passable)}"
                    raise fail(message, "launches", index, "args", position)
            if not re.search(rf"\b{launch.entry}\b", self._body_text()):
                message = f"the body has no function {launch.entry!r}"
                raise fail(message, "launches", index, "entry")
        passed = {arg for launch in front.launches for arg in launch.args}
        for name in (output.name for output in task.outputs):
            if name not in passed:
                raise fail(f"no launch takes the output {name!r}", "launches")

    def _body_text(self) -> str:
        return split_text(self.text, language=self.language, where=self.path)[1]

    def _check_expressions(self, known: frozenset[str]) -> None:
        front = self.front
        placed: list[tuple[Expression, tuple[str | int, ...]]] = [
            (item, ("constraints", i)) for i, item in enumerate(front.constraints)
        ]
        placed += [(item.elements, ("scratch", item.name, "elements")) for item in front.scratch]
        for index, launch in enumerate(front.launches):
            for key, side in (("grid", launch.grid), ("block", launch.block)):
                placed += [(item, ("launches", index, key, i)) for i, item in enumerate(side)]
            placed.append((launch.shared_bytes, ("launches", index, "shared_bytes")))
        for expression, keys in placed:
            for name in sorted(expression.names - known - {"device"}):
                message = f"in {expression.text!r}: unknown name {name!r} {suggest(name, known)}"
                raise front.fields.fail(message, *keys)


def language_of(backend: str) -> str:
    """Comment style of a backend's templates: "c" or "python"."""
    return "python" if backend in _PYTHON_BACKENDS else "c"


def parse_template(name: str, text: str, path: str | Path | None = None) -> Template:
    """Parses a template that may or may not lie in a file.

    Raises:
        TemplateError: With file (or name) and line.
    """
    where = str(path) if path is not None else name
    if not _NAME.fullmatch(name):
        raise TemplateError(
            f"{where}: {name!r} is not a template name: <backend>[_<variant>], lower case"
        )
    backend = name.split("_")[0]
    language = language_of(backend)
    normal = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    front, body = split_text("\n".join(text.splitlines()) + "\n", language=language, where=where)
    options = tuple(
        Body(option, language=language, where=f"{where}: build_options[{index}]")
        for index, option in enumerate(front.build_options)
    )
    return Template(
        name=name,
        backend=backend,
        text=text,
        hash=content_hash(normal),
        front=front,
        path=where,
        _body=Body(body, language=language, where=where),
        _options=options,
    )


def load_templates(task: Task, backend: str) -> tuple[Template, ...]:
    """Loads and checks all of a task's templates for a backend, sorted by name.

    Raises:
        TaskError: If the task came without its folder.
        ConfigError: If it has no template for the backend.
        TemplateError: If one is malformed (names file and line).
    """
    if task.folder is None:
        raise TaskError(f"task {task.name} came as a bundle: its templates are with the controller")
    templates: dict[str, Template] = {}
    backends: set[str] = set()
    for file in sorted(task.folder.glob(f"*{SUFFIX}")):
        name = file.name.split(".")[0]
        backends.add(name.split("_")[0])
        if name.split("_")[0] != backend:
            continue
        where = "/".join(file.resolve().parts[-3:])
        if name in templates:
            raise TemplateError(f"{where}: a second template called {name!r}")
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TemplateError(f"{where}: not readable: {error}") from None
        templates[name] = parse_template(name, text, where)
        templates[name].check(task)
    if not templates:
        raise ConfigError(
            f"task {task.name} has no template for backend {backend!r} {suggest(backend, backends)}"
        )
    return tuple(templates[name] for name in sorted(templates))

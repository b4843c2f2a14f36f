"""What a kernel has to compute: tensors, workloads, tolerance and reference.

A task is a folder with `task.yaml` and `reference.py` (kernel templates lie beside them). The two
files travel to workers as a `TaskBundle`, so a worker needs no copy of the folder.
"""

from __future__ import annotations

import importlib.resources
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import EvoError, TaskError
from evo.expressions import compile_expression, evaluate, suggest
from evo.genome import ParamValue
from evo.job import TaskBundle
from evo.serial import content_hash
from evo.yaml_fields import Fields, read_yaml

logger = logging.getLogger(__name__)

TASK_FILE = "task.yaml"
REFERENCE_FILE = "reference.py"
TASK_SCHEMA = 1

DTYPES = (
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
FAMILIES = ("normal", "uniform", "offset", "spikes", "integers", "blocks", "special")
"""Input families; "special" (infinities, NaN) only where non-finite values propagate."""
NONFINITE = ("excluded", "propagate")
MAX_DIM = 2**31 - 1
"""Dimensions are passed to kernels as int32."""

Reference = Callable[[dict[str, Any], dict[str, int], dict[str, float]], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input or output.

    Attributes:
        name: Name in kernel arguments and in the reference.
        dtype: A name of `DTYPES`.
        shape: One expression over the dimensions per axis.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]

    def resolve(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape on a workload's dimensions.

        Raises:
            TemplateError: If an axis is not a positive integer.
        """
        return tuple(compile_expression(axis).integer(dims, minimum=1) for axis in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A constant passed by value to kernels that name it."""

    name: str
    dtype: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sizes a kernel is run on; `confirm` ones are never used in search."""

    name: str
    dims: dict[str, int]
    confirm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest error allowed, relative to the root mean square of the reference output."""

    max_rel: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSpec:
    """The plain template a speed-up is measured against; parameters not given are defaults."""

    template: str
    params: dict[str, ParamValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A loaded, validated task.

    Attributes:
        dims: Names of the symbolic dimensions.
        families: Input families used in search; a confirm uses all that apply.
        nonfinite: "excluded", or "propagate" where infinities and NaN have a specified result.
        bytes_expr: Minimal memory traffic in bytes, over the dimensions.
        flops_expr: Floating-point operations, over the dimensions.
        deterministic: Repeated runs must agree bit for bit.
        baseline: Backend -> baseline.
        bundle: The files that travel to workers, and their hash.
        folder: Where it was loaded from; None for a task that came as a bundle.
    """

    name: str
    description: str
    dims: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    scalars: tuple[Scalar, ...]
    workloads: tuple[Workload, ...]
    families: tuple[str, ...]
    nonfinite: str
    tolerance: Tolerance
    bytes_expr: str
    flops_expr: str
    deterministic: bool
    baseline: dict[str, BaselineSpec]
    bundle: TaskBundle
    folder: Path | None

    @property
    def search_workloads(self) -> tuple[Workload, ...]:
        """Workloads a search may see."""
        return tuple(item for item in self.workloads if not item.confirm)

    @property
    def all_families(self) -> tuple[str, ...]:
        """Input families that apply to this task."""
        return tuple(f for f in FAMILIES if f != "special" or self.nonfinite == "propagate")

    @property
    def scalar_values(self) -> dict[str, float]:
        """Scalar name -> value."""
        return {item.name: item.value for item in self.scalars}

    def workload(self, name: str) -> Workload:
        """Returns a workload by name.

        Raises:
            TaskError: If there is none.
        """
        for item in self.workloads:
            if item.name == name:
                return item
        allowed = [item.name for item in self.workloads]
        raise TaskError(f"task {self.name} has no workload {name!r} {suggest(name, allowed)}")

    def bytes(self, workload: Workload) -> float:
        """Minimal memory traffic on a workload, bytes."""
        return float(evaluate(self.bytes_expr, workload.dims))

    def flops(self, workload: Workload) -> float:
        """Floating-point operations on a workload."""
        return float(evaluate(self.flops_expr, workload.dims))


def list_tasks() -> list[str]:
    """Names of the shipped tasks."""
    root = importlib.resources.files("templates")
    return sorted(
        entry.name for entry in root.iterdir() if entry.is_dir() and (entry / TASK_FILE).is_file()
    )


def load_task(name_or_path: str | os.PathLike[str]) -> Task:
    """Loads a shipped task by name, or any task folder by path.

    Raises:
        TaskError: If there is no such task or its files are malformed.
    """
    text = os.fspath(name_or_path)
    shipped = list_tasks()
    if text in shipped:
        folder = Path(str(importlib.resources.files("templates") / text))
    else:
        folder = Path(text)
        if not text or not folder.is_dir():
            raise TaskError(
                f"unknown task {text!r} {suggest(text, shipped)}; a path to a task folder works too"
            )
    files: dict[str, str] = {}
    for file in (TASK_FILE, REFERENCE_FILE):
        try:
            files[file] = (folder / file).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise TaskError(f"task folder {folder} has no {file}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{folder / file}: not readable: {error}") from None
    task = _parse(files, where=str(folder / TASK_FILE), folder=folder)
    _check_baselines(task, folder)
    return task


def make_bundle(name: str, files: Mapping[str, str]) -> TaskBundle:
    """Packs a task's files under their content hash."""
    return TaskBundle(name=name, task_hash=content_hash(dict(files)), files=dict(files))


def task_from_bundle(bundle: TaskBundle) -> Task:
    """Loads a task from the files that travelled, as a worker does.

    Raises:
        TaskError: If files are missing, changed on the way or malformed.
    """
    if content_hash(bundle.files) != bundle.task_hash:
        raise TaskError(f"task {bundle.name}: the files do not fit the hash {bundle.task_hash}")
    if set(bundle.files) != {TASK_FILE, REFERENCE_FILE}:
        raise TaskError(f"task {bundle.name}: needs {TASK_FILE} and {REFERENCE_FILE}, no others")
    return _parse(bundle.files, where=f"{bundle.name}/{TASK_FILE}", folder=None)


def load_reference(task: Task) -> Reference:
    """Executes the task's `reference.py` and returns its `reference` function.

    The file is the task author's and trusted like any module; candidates never touch it.

    Raises:
        TaskError: If it does not execute or defines no such function.
    """
    where = f"{task.name}/{REFERENCE_FILE}"
    scope: dict[str, Any] = {"__name__": f"kelites_reference_{task.bundle.task_hash}"}
    try:
        exec(compile(task.bundle.files[REFERENCE_FILE], where, "exec", dont_inherit=True), scope)
    except SyntaxError as error:
        raise TaskError(f"{where}:{error.lineno}: {error.msg}") from None
    except Exception as error:
        raise TaskError(f"{where}: {type(error).__name__}: {error}") from error
    function = scope.get("reference")
    if not callable(function):
        raise TaskError(f"{where}: defines no function reference(inputs, dims, scalars)")
    return function  # type: ignore[no-any-return]


def _parse(files: Mapping[str, str], *, where: str, folder: Path | None) -> Task:
    root = read_yaml(files[TASK_FILE], where=where, error=TaskError)
    schema = root.integer("schema")
    if schema != TASK_SCHEMA:
        raise root.fail(f"unknown schema {schema} (allowed: {TASK_SCHEMA})", "schema")
    name = root.identifier(root.text("name"))
    dims = tuple(root.identifier(dim) for dim in root.texts("dims"))
    inputs, outputs = _read_tensors(root, "inputs"), _read_tensors(root, "outputs")
    scalars = tuple(_read_scalars(root.section("scalars", {})))
    tensor_names = [tensor.name for tensor in (*inputs, *outputs)]
    _check_unique(root, [*dims, *tensor_names, *(scalar.name for scalar in scalars)])
    tolerance_fields = root.section("tolerance")
    tolerance = Tolerance(max_rel=float(tolerance_fields.number("max_rel")))
    if not 0 < tolerance.max_rel < 1:
        raise tolerance_fields.fail("must lie between 0 and 1", "max_rel")
    tolerance_fields.finish()
    task = Task(
        name=name,
        description=root.text("description"),
        dims=dims,
        inputs=inputs,
        outputs=outputs,
        scalars=scalars,
        workloads=_read_workloads(root, dims),
        nonfinite=root.choice("nonfinite", NONFINITE, "excluded"),
        families=_read_families(root),
        tolerance=tolerance,
        bytes_expr=root.expression("bytes").text,
        flops_expr=root.expression("flops").text,
        deterministic=root.flag("deterministic", True),
        baseline=_read_baselines(root.section("baseline", {})),
        bundle=make_bundle(name, files),
        folder=folder,
    )
    root.finish()
    _check_expressions(root, task)
    if "special" in task.families and task.nonfinite != "propagate":
        raise root.fail("the family 'special' needs nonfinite: propagate", "families")
    if all(not item.confirm for item in task.workloads):
        logger.warning("%s: no workload is marked confirm, so none is held back", where)
    return task


def _read_tensors(root: Fields, key: str) -> tuple[TensorSpec, ...]:
    tensors = []
    for name, fields in root.section(key).named_sections():
        dtype = fields.choice("dtype", DTYPES)
        shape = tuple(axis.text for axis in fields.expressions("shape"))
        if not shape:
            raise fields.fail("needs at least one axis", "shape")
        fields.finish()
        tensors.append(TensorSpec(name=name, dtype=dtype, shape=shape))
    if not tensors:
        raise root.fail("needs at least one tensor", key)
    return tuple(tensors)


def _read_scalars(section: Fields) -> Iterable[Scalar]:
    for name, fields in section.named_sections():
        dtype, value = fields.choice("dtype", DTYPES), fields.number("value")
        if not math.isfinite(value):
            raise fields.fail("must be finite", "value")
        if not dtype.startswith("float") and not isinstance(value, int):
            raise fields.fail(f"{dtype} needs an integer, got {value!r}", "value")
        fields.finish()
        yield Scalar(name=name, dtype=dtype, value=value)


def _read_workloads(root: Fields, dims: tuple[str, ...]) -> tuple[Workload, ...]:
    workloads: list[Workload] = []
    for fields in root.sections("workloads"):
        name = fields.text("name")
        if not name or any(item.name == name for item in workloads):
            raise fields.fail("workload names must be given and unique", "name")
        sizes = fields.section("dims")
        values = {dim: sizes.integer(dim) for dim in dims}
        for dim, value in values.items():
            if not 1 <= value <= MAX_DIM:
                raise sizes.fail(f"must lie between 1 and {MAX_DIM}, got {value}", dim)
        sizes.finish()
        workloads.append(Workload(name=name, dims=values, confirm=fields.flag("confirm", False)))
        fields.finish()
    if all(item.confirm for item in workloads):
        raise root.fail("needs at least one workload that is not marked confirm", "workloads")
    return tuple(workloads)


def _read_families(root: Fields) -> tuple[str, ...]:
    families = root.texts("families", ["normal", "offset", "integers"])
    for index, family in enumerate(families):
        if family not in FAMILIES:
            raise root.fail(f"unknown family {suggest(family, FAMILIES)}", "families", index)
    if not families or len(set(families)) != len(families):
        raise root.fail("needs at least one family, each once", "families")
    return families


def _read_baselines(section: Fields) -> dict[str, BaselineSpec]:
    baselines = {}
    for backend in section:
        fields = section.section(backend)
        params = fields.section("params", {})
        values: dict[str, ParamValue] = {}
        for name in params:
            value = params.value(name)
            if not isinstance(value, (bool, int, float, str)):
                raise params.fail(f"expected a number, text, true or false, got {value!r}", name)
            values[name] = value
        baselines[backend] = BaselineSpec(template=fields.text("template"), params=values)
        fields.finish()
    return baselines


def _check_unique(root: Fields, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise root.fail(f"the name {name!r} is used twice among dims, tensors and scalars")


def _check_expressions(root: Fields, task: Task) -> None:
    """Evaluates shapes, bytes and flops on every workload, so that none fails in a search."""
    for workload in task.workloads:
        for key, tensors in (("inputs", task.inputs), ("outputs", task.outputs)):
            for tensor in tensors:
                try:
                    shape = tensor.resolve(workload.dims)
                except EvoError as error:
                    message = f"workload {workload.name}: {error}"
                    raise root.fail(message, key, tensor.name, "shape") from None
                if math.prod(shape) > MAX_DIM:
                    message = f"workload {workload.name}: more than {MAX_DIM} elements"
                    raise root.fail(message, key, tensor.name, "shape")
        for key, expression in (("bytes", task.bytes_expr), ("flops", task.flops_expr)):
            try:
                value = evaluate(expression, workload.dims)
            except EvoError as error:
                raise root.fail(f"workload {workload.name}: {error}", key) from None
            if isinstance(value, (bool, str)) or value < 0 or (key == "bytes" and value == 0):
                raise root.fail(f"workload {workload.name}: got {value!r}", key)


def _check_baselines(task: Task, folder: Path) -> None:
    available = sorted({file.name.split(".")[0] for file in folder.glob("*.j2")})
    for backend, spec in task.baseline.items():
        if spec.template not in available:
            raise TaskError(
                f"{folder / TASK_FILE}: baseline.{backend}: "
                f"no template {spec.template!r} {suggest(spec.template, available)}"
            )

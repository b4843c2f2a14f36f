"""Shared by the template tests: load, compile, run and compare one configuration on PoCL."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np

from evo.job import DeviceInfo, WorkloadProgram
from evo.space import Space
from evo.task import Task, Workload, list_tasks, load_task
from evo.template import Template, load_templates
from workers.execution import Compiled
from workers.executor import Executor
from workers.measure.correctness import compare_output
from workers.measure.reference import ReferenceCache

BACKEND = "opencl"
TIMEOUT_S = 60.0

SMALL_GPU = DeviceInfo(
    backend=BACKEND,
    name="a GPU with little of everything",
    kind="gpu",
    compute_units=8,
    max_work_group_size=256,
    max_block=(256, 256, 64),
    local_mem_bytes=32 * 1024,
    sub_group_size=32,
    vector_width=1,
)


@cache
def task_of(name: str) -> Task:
    return load_task(name)


@cache
def templates_of(task: str) -> dict[str, Template]:
    return {t.name: t for t in load_templates(task_of(task), BACKEND)}


def all_templates() -> list[tuple[str, str]]:
    return [(task, name) for task in list_tasks() for name in templates_of(task)]


def space_of(task: str, template: str, device: DeviceInfo) -> Space:
    return templates_of(task)[template].space(task_of(task), device)


class Bench:
    """Compiles each source once and runs it in an executor child, between guard bands."""

    def __init__(self) -> None:
        self.executor = Executor(backend=BACKEND)
        self.references = ReferenceCache()
        self._compiled: dict[str, Compiled] = {}

    @property
    def device(self) -> DeviceInfo:
        return self.executor.device

    def compile(self, program: WorkloadProgram) -> Compiled:
        key = self._key(program)
        if key not in self._compiled:
            self._compiled[key] = self.executor.compile(
                source=program.source,
                build_options=program.build_options,
                entries=list(dict.fromkeys(launch.entry for launch in program.launches)),
                timeout_s=TIMEOUT_S,
            )
        return self._compiled[key]

    def error(self, task: Task, program: WorkloadProgram, family: str, seed: int = 7) -> float:
        """Returns |error| / rms of a run that left guards, inputs and its own duties intact."""
        workload = task.workload(program.workload)
        compiled = self.compile(program)
        assert compiled.ok, compiled.log
        expected = self.references.get(task, workload, family, seed)
        set_id = f"{task.name}/{workload.name}/{family}/{seed}"
        self.executor.upload(set_id, expected.inputs, TIMEOUT_S)
        key = self._key(program)
        self.executor.load(key, compiled.binary, program.source, program.build_options, TIMEOUT_S)
        result = self.executor.run(
            code_key=key,
            program=program,
            set_id=set_id,
            outputs={s.name: (s.dtype, s.resolve(workload.dims)) for s in task.outputs},
            numbers=numbers_of(task, workload),
            poison=0,
            timeout_s=TIMEOUT_S,
        )
        assert result.guard_violations == ()
        assert result.changed_inputs == ()
        assert set(result.unwritten.values()) == {0}
        worst = 0.0
        for spec in task.outputs:
            errors = compare_output(
                result.outputs[spec.name],
                expected.outputs[spec.name],
                expected.rms[spec.name],
                spec.dtype,
            )
            assert not errors.reason, errors.reason
            worst = max(worst, errors.max_rel)
        return worst

    def close(self) -> None:
        self.executor.close()

    @staticmethod
    def _key(program: WorkloadProgram) -> str:
        text = "\0".join((program.source, *program.build_options))
        return hashlib.sha256(text.encode()).hexdigest()


def numbers_of(task: Task, workload: Workload) -> dict[str, tuple[str, float | int]]:
    dims: dict[str, tuple[str, float | int]] = {k: ("int32", v) for k, v in workload.dims.items()}
    return dims | {s.name: (s.dtype, s.value) for s in task.scalars}


def sample(space: Space, count: int, seed: int) -> list[dict]:
    """Distinct valid parameter sets, as many as asked for or as come up in a bounded search."""
    rng = np.random.default_rng(seed)
    found: list[dict] = []
    for _ in range(20 * count):
        params = space.sample(rng)
        if params not in found:
            found.append(params)
        if len(found) == count:
            break
    return found

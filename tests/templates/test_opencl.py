"""Every OpenCL template: renders, compiles, stays inside its buffers, is right."""

from __future__ import annotations

import zlib

import pytest

from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.evaluation import CodeFeatures
from evo.job import Program
from evo.render import build_program
from evo.space import Space
from evo.task import list_tasks
from tests.templates.kernels import (
    SMALL_GPU,
    Bench,
    all_templates,
    sample,
    space_of,
    task_of,
    templates_of,
)

each_template = pytest.mark.parametrize(("task", "template"), all_templates())


def render(task: str, template: str, params: dict, device) -> Program:
    return build_program(task_of(task), templates_of(task)[template], params, device)


def ends(space: Space) -> list[dict]:
    """Defaults, all lowest and all highest values, each as near as constraints let it be."""
    corners = list(space.corners())
    return [corners[0], *corners[-2:]]


def seed_of(*labels: str) -> int:
    return zlib.crc32("/".join(labels).encode())


@each_template
def test_has_four_to_eight_parameters_that_all_matter(task, template, bench: Bench):
    space = space_of(task, template, bench.device)
    assert 4 <= len(space.params) <= 8
    starts = [space.defaults(), *sample(space, 5, seed_of(task, template))]
    idle = {param.name for param in space.params}
    for start in starts:
        here = render(task, template, start, bench.device)
        for near in space.neighbours(start):
            moved = {name for name in near if near[name] != start[name]}
            if moved <= idle and render(task, template, near, bench.device) != here:
                idle -= moved
        if not idle:
            return
    pytest.fail(f"changing {', '.join(sorted(idle))} changes neither code nor launch")


@each_template
def test_renders_at_every_corner_within_the_device(task, template):
    """On a GPU with little local memory and small work-groups."""
    space = space_of(task, template, SMALL_GPU)
    for params in (*space.corners(), *sample(space, 20, seed_of(task, template))):
        for on in render(task, template, params, SMALL_GPU).workloads:
            for launch in on.launches:
                width, height, depth = launch.block
                assert width * height * depth <= SMALL_GPU.max_work_group_size


@each_template
def test_compiles_at_the_ends_of_its_space(task, template, bench: Bench):
    """Defaults on every workload, all lowest and all highest values on the odd one."""
    space = space_of(task, template, bench.device)
    for params in ends(space):
        for on in render(task, template, params, bench.device).workloads:
            if on.workload == "prime" or params == space.defaults():
                compiled = bench.compile(on)
                assert compiled.ok, f"{params}: {compiled.log}"
                assert not compiled.forbidden


@each_template
def test_local_memory_fits_a_small_gpu(task, template, bench: Bench):
    space = space_of(task, template, SMALL_GPU)
    *_, highest = space.corners()
    # Where local memory depends on the workload, the longest side needs the most.
    longest = max(task_of(task).workloads, key=lambda workload: max(workload.dims.values()))
    compiled = bench.compile(render(task, template, highest, SMALL_GPU).on(longest.name))
    assert compiled.ok, compiled.log
    used = compiled.resources.local_mem_bytes
    assert used is not None
    assert used <= SMALL_GPU.local_mem_bytes


@each_template
def test_defaults_are_right_on_every_workload(task, template, bench: Bench):
    what = task_of(task)
    params = space_of(task, template, bench.device).defaults()
    for on in render(task, template, params, bench.device).workloads:
        assert bench.error(what, on, "spikes") <= what.tolerance.max_rel, on.workload


@each_template
def test_other_configurations_are_right_on_odd_sizes(task, template, bench: Bench):
    what = task_of(task)
    space = space_of(task, template, bench.device)
    for params in (*ends(space)[1:], *sample(space, 1, seed_of(template, task))):
        on = render(task, template, params, bench.device).on("prime")
        for family in ("normal", "blocks"):
            assert bench.error(what, on, family) <= what.tolerance.max_rel, params


@pytest.mark.parametrize("task", list_tasks())
def test_templates_and_parameters_reach_eight_cells(task, bench: Bench):
    cells, by_default = set(), set()
    for template in templates_of(task):
        space = space_of(task, template, bench.device)
        for params in (*ends(space), *sample(space, 1, seed_of(template, task))):
            on = render(task, template, params, bench.device).on("prime")
            features = bench.compile(on).features
            assert features is not None
            launches = {"kernels": max(features.counts.get("kernels", 0.0), len(on.launches))}
            cell = DEFAULT_DESCRIPTOR.cell(
                CodeFeatures(origin=features.origin, counts=features.counts | launches)
            )
            cells.add(cell)
            if params == space.defaults():
                by_default.add(cell)
    assert len(cells) >= 8, cells
    assert len(by_default) >= 4, by_default

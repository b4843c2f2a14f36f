"""`kelites-elites task check`: does a task hold what its folder promises?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evo.errors import EvoError
from evo.job import DeviceInfo
from evo.render import build_program
from evo.task import Task
from evo.template import Template, load_templates

# A plain device, so that a check needs none: the limits any OpenCL 1.2 CPU or GPU device exceeds.
PLAIN_DEVICE = DeviceInfo(
    backend="opencl",
    name="plain device",
    kind="gpu",
    compute_units=2,
    max_work_group_size=256,
    max_block=(256, 256, 64),
    local_mem_bytes=32768,
    global_mem_bytes=1 << 30,
    sub_group_size=32,
    vector_width=4,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCheck:
    """Outcome for one template.

    Attributes:
        template: Its name.
        space: Size of its valid space, "about" when estimated.
        corners: Parameter sets rendered on every workload.
        error: One line on the first failure; empty if there was none.
    """

    template: str
    space: str
    corners: int
    error: str = ""


def check_templates(
    task: Task, backend: str, device: DeviceInfo = PLAIN_DEVICE
) -> Iterator[TemplateCheck]:
    """Renders every template of a backend at all corners of its space, on every workload."""
    for template in load_templates(task, backend):
        yield _check(task, template, device)


def _check(task: Task, template: Template, device: DeviceInfo) -> TemplateCheck:
    size, corners = "?", 0
    try:
        space = template.space(task, device)
        count = space.size()
        size = f"{'' if count.exact else 'about '}{count.count:,}"
        for params in space.corners():
            build_program(task, template, params, device)
            corners += 1
    except EvoError as error:
        return TemplateCheck(
            template=template.name, space=size, corners=corners, error=" ".join(str(error).split())
        )
    return TemplateCheck(template=template.name, space=size, corners=corners)

"""Prints the cell of every shipped OpenCL template, at its defaults and over sampled parameters.

Run: python experiments/descriptor/cells.py [task ...] [--samples N] [--facts]
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
import pyopencl as cl

from evo.descriptor import DEFAULT_DESCRIPTOR, cell_key
from evo.evaluation import CodeFeatures
from evo.genome import ParamValue
from evo.job import DeviceInfo
from evo.task import Task, list_tasks, load_task
from evo.template import Template, load_templates
from workers.backends.opencl import OpenCLBackend
from workers.features_llvm import bitcode_from_pocl_binary, features_from_bitcode
from workers.features_source import features_from_source


def features(
    context: cl.Context,
    task: Task,
    template: Template,
    params: dict[str, ParamValue],
    device: DeviceInfo,
) -> tuple[CodeFeatures, CodeFeatures]:
    """Renders for the first workload, builds, and reads the code and the source."""
    dims = task.workloads[0].dims
    source = template.render(params, dims, task.scalar_values, device)
    program = cl.Program(context, source).build(cache_dir=False)
    entries = [launch.entry for launch in template.front.launches]
    bitcode = bitcode_from_pocl_binary(program.get_info(cl.program_info.BINARIES)[0])
    from_source = features_from_source(source, "opencl", entries)
    if bitcode is None:
        return from_source, from_source
    return features_from_bitcode(bitcode, entries), from_source


def main() -> None:
    """Prints one row per template."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", help="all if none is named")
    parser.add_argument("--samples", type=int, default=10, help="sampled points per template")
    parser.add_argument("--facts", action="store_true", help="print the defaults' features too")
    options = parser.parse_args()
    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    device = OpenCLBackend().open(0).info
    rng = np.random.default_rng(0)
    for name in options.tasks or list_tasks():
        task = load_task(name)
        reached: set[str] = set()
        print(f"\n{'template':28} {'defaults':9} {'source':7} sampled")
        for template in load_templates(task, "opencl"):
            space = template.space(task, device)
            code, source = features(context, task, template, space.defaults(), device)
            cell = DEFAULT_DESCRIPTOR.cell(code)
            tally: Counter[str] = Counter([cell_key(cell)])
            for _ in range(options.samples):
                sampled, _ = features(context, task, template, space.sample(rng), device)
                tally[cell_key(DEFAULT_DESCRIPTOR.cell(sampled))] += 1
            reached |= set(tally)
            others = " ".join(f"{key} x{count}" for key, count in sorted(tally.items()))
            by_source = cell_key(DEFAULT_DESCRIPTOR.cell(source))
            label = f"{name}/{template.name.removeprefix('opencl_')}"
            print(f"{label:28} {cell_key(cell):9} {by_source:7} {others}")
            if options.facts:
                print("   ", {k: v for k, v in code.counts.items() if v})
        print(f"{name}: {len(reached)} cells reached")


if __name__ == "__main__":
    main()

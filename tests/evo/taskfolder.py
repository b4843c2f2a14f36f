"""A small task in a folder, for tests of loading; every part can be replaced."""

from __future__ import annotations

from pathlib import Path

from evo.job import DeviceInfo

TASK_YAML = """\
schema: 1
name: scale
description: y = factor * x
dims: [rows, cols]
inputs:
  x: {dtype: float32, shape: [rows, "cols + 1"]}
outputs:
  y: {dtype: float32, shape: [rows * (cols + 1)]}
scalars:
  factor: {dtype: float32, value: 2.5}
workloads:
  - {name: small, dims: {rows: 4, cols: 7}}
  - {name: prime, dims: {rows: 3, cols: 13}}
  - {name: large, dims: {rows: 8, cols: 31}, confirm: true}
families: [normal, integers]
nonfinite: excluded
tolerance: {max_rel: 1e-6}
bytes: 8 * rows * (cols + 1)
flops: rows * (cols + 1)
deterministic: true
baseline:
  opencl: {template: opencl_plain, params: {wg: 32}}
"""

REFERENCE = """\
def reference(inputs, dims, scalars):
    return {"y": (inputs["x"] * scalars["factor"]).reshape(-1)}
"""

TEMPLATE = """\
/*---
description: One element per work-item
params:
  wg: {pow2: [16, 256], default: 64}
  per: {values: [1, 2, 4], default: 2}
  fast: {bool: true, default: false}
constraints:
  - wg <= device.max_work_group_size
  - wg * per <= 512
scratch:
  partial: {dtype: float32, elements: "rows * per"}
build_options: ["-cl-std=CL1.2", "-DWG=${wg}"]
launches:
  - entry: scale
    args: [x, y, rows, cols, factor, partial]
    grid: ["ceil_div(rows * (cols + 1), wg * per)"]
    block: [wg]
---*/
//% if fast
#define STEP ${per}
//% endif
__kernel void scale(__global const float* x, __global float* y, const int rows, const int cols,
                    const float factor, __global float* partial) {
//% for i in range(per)
  y[get_global_id(0) * ${per} + ${i}] = factor * x[get_global_id(0) * ${per} + ${i}];
//% endfor
}
"""

DEVICE = DeviceInfo(
    backend="opencl", name="test", kind="cpu", max_work_group_size=128, local_mem_bytes=32768
)


def write_task(
    root: Path,
    *,
    task_yaml: str = TASK_YAML,
    reference: str | None = REFERENCE,
    templates: dict[str, str] | None = None,
) -> Path:
    """Writes a task folder called `scale` under root; templates are file name -> text."""
    folder = root / "scale"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.yaml").write_text(task_yaml, encoding="utf-8")
    if reference is not None:
        (folder / "reference.py").write_text(reference, encoding="utf-8")
    for name, text in (
        {"opencl_plain.cl.j2": TEMPLATE} if templates is None else templates
    ).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder

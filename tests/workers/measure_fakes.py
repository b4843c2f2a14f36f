"""Builders shared by the tests of the measuring code."""

from __future__ import annotations

from evo.task import Task, make_bundle, task_from_bundle

TASK = """\
schema: 1
name: scale
description: Twice the input
dims: [rows, cols]
inputs:
  x: {{dtype: {dtype}, shape: [rows, cols]}}
outputs:
  y: {{dtype: {dtype}, shape: [rows, cols]}}
workloads:
  - {{name: small, dims: {{rows: 8, cols: 12}}}}
  - {{name: prime, dims: {{rows: 7, cols: 13}}}}
  - {{name: held, dims: {{rows: 3, cols: 5}}, confirm: true}}
families: [{families}]
nonfinite: {nonfinite}
tolerance: {{max_rel: {max_rel}}}
bytes: "8 * rows * cols"
flops: "rows * cols"
deterministic: {deterministic}
"""

REFERENCE = "def reference(inputs, dims, scalars):\n    return {'y': 2 * inputs['x']}\n"


def make_task(
    *,
    reference: str = REFERENCE,
    dtype: str = "float32",
    families: str = "normal, offset, integers",
    nonfinite: str = "excluded",
    max_rel: str = "1.0e-6",
    deterministic: str = "true",
) -> Task:
    """Returns a small task, `y = 2 x` unless another reference is given."""
    text = TASK.format(
        dtype=dtype,
        families=families,
        nonfinite=nonfinite,
        max_rel=max_rel,
        deterministic=deterministic,
    )
    return task_from_bundle(make_bundle("scale", {"task.yaml": text, "reference.py": reference}))

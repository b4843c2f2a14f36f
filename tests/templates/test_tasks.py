"""The shipped tasks: definition, reference, tolerance."""

from __future__ import annotations

import numpy as np
import pytest

from evo.task import list_tasks
from tests.templates.kernels import BACKEND, SMALL_GPU, space_of, task_of, templates_of
from workers.measure.lint import lint_task, require_sound
from workers.measure.reference import ReferenceCache

TASKS = list_tasks()


def is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


def test_the_five_first_tasks_ship():
    assert {"softmax", "rmsnorm", "matmul", "stencil2d", "reduce_sum"} <= set(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_workloads_show_tails_and_keep_some_back(name):
    task = task_of(name)
    assert len(task.search_workloads) >= 3
    assert any(w.confirm for w in task.workloads)
    assert any(
        any(is_prime(size) and size > 2 for size in w.dims.values()) for w in task.search_workloads
    )
    shapes = [tuple(w.dims.values()) for w in task.workloads]
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("name", TASKS)
def test_traffic_covers_every_tensor_once(name):
    task = task_of(name)
    for workload in task.workloads:
        tensors = sum(
            np.prod(spec.resolve(workload.dims)) * np.dtype(spec.dtype).itemsize
            for spec in (*task.inputs, *task.outputs)
        )
        assert task.bytes(workload) == tensors
        assert task.flops(workload) > 0


@pytest.mark.parametrize("name", TASKS)
def test_the_check_tells_right_from_wrong(name):
    report = lint_task(task_of(name))
    require_sound(report)
    # Room on both sides: reordered sums pass, the mildest wrong answer fails by far.
    assert report.natural_error * 4 <= report.tolerance
    assert report.nearest_mutant >= report.tolerance * 3


@pytest.mark.parametrize("name", TASKS)
def test_has_a_baseline_and_structurally_different_rivals(name):
    task = task_of(name)
    templates = templates_of(name)
    baseline = task.baseline[BACKEND]
    assert baseline.template in templates
    assert len(templates) >= 3  # the least is two; a search wants more to choose from
    space = space_of(name, baseline.template, SMALL_GPU)
    assert space.is_valid(space.defaults() | baseline.params)


def test_softmax_rows_sum_to_one():
    task = task_of("softmax")
    for workload in task.search_workloads:
        y = ReferenceCache().get(task, workload, "offset", 1).outputs["y"]
        np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-12)
        assert (y > 0).all()


def test_rmsnorm_of_a_scaled_input_is_the_same():
    task = task_of("rmsnorm")
    expected = ReferenceCache().get(task, task.workload("prime"), "normal", 1)
    x, w, y = expected.inputs["x"], expected.inputs["w"], expected.outputs["y"]
    np.testing.assert_allclose(np.mean((y / w.astype(np.float64)) ** 2, axis=1), 1.0, rtol=1e-4)
    assert np.array_equal(np.sign(y), np.sign(x) * np.sign(w))


def test_matmul_agrees_with_numpy():
    task = task_of("matmul")
    expected = ReferenceCache().get(task, task.workload("prime"), "integers", 1)
    a, b = (expected.inputs[n].astype(np.int64) for n in ("a", "b"))
    assert np.array_equal(expected.outputs["c"], a @ b)


def test_stencil_leaves_harmonic_functions_and_edges_alone():
    from evo.task import load_reference

    torch = pytest.importorskip("torch")
    task = task_of("stencil2d")
    rows = torch.arange(6, dtype=torch.float64)[:, None]
    cols = torch.arange(9, dtype=torch.float64)[None, :]
    harmonic = 2 * rows - 3 * cols + rows * cols
    reference = load_reference(task)
    dims = {"height": 6, "width": 9}
    v = reference({"u": harmonic}, dims, task.scalar_values)["v"]
    torch.testing.assert_close(v, harmonic)
    bump = torch.zeros(5, 5, dtype=torch.float64)
    bump[2, 2] = 4.0
    v = reference({"u": bump}, {"height": 5, "width": 5}, {"omega": 0.75})["v"]
    assert v[2, 2] == 1.0
    assert v[1, 2] == v[3, 2] == v[2, 1] == v[2, 3] == 0.75
    assert v.sum() == 4.0


def test_reduce_sum_agrees_with_exact_integers():
    task = task_of("reduce_sum")
    expected = ReferenceCache().get(task, task.workload("prime"), "integers", 1)
    exact = expected.inputs["x"].astype(np.int64).sum(axis=1)
    assert np.array_equal(expected.outputs["total"], exact)

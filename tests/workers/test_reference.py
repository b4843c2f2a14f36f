from __future__ import annotations

import numpy as np
import pytest

from evo.errors import TaskError
from evo.task import load_reference
from tests.workers.measure_fakes import make_task
from workers.measure.reference import ReferenceCache, evaluate_reference


def wrong(body: str) -> str:
    return f"def reference(inputs, dims, scalars):\n    {body}\n"


def test_computes_in_float64_on_the_given_bits() -> None:
    task = make_task()
    expected = ReferenceCache().get(task, task.workload("small"), "normal", 5)
    assert expected.inputs["x"].dtype == np.float32
    assert expected.outputs["y"].dtype == np.float64
    np.testing.assert_array_equal(
        expected.outputs["y"], 2 * expected.inputs["x"].astype(np.float64)
    )
    assert expected.rms["y"] == pytest.approx(np.sqrt(np.mean(expected.outputs["y"] ** 2)))


def test_integers_stay_integers() -> None:
    task = make_task(dtype="int32")
    expected = ReferenceCache().get(task, task.workload("small"), "integers", 5)
    assert expected.outputs["y"].dtype == np.int64


def test_a_lower_precision_can_be_asked_for() -> None:
    import torch

    task = make_task(reference=wrong("return {'y': inputs['x'] / 3}"))
    inputs = ReferenceCache().get(task, task.workload("small"), "normal", 5).inputs
    half = evaluate_reference(
        task, load_reference(task), inputs, task.workload("small"), torch.float16
    )
    full = evaluate_reference(task, load_reference(task), inputs, task.workload("small"))
    assert 1e-5 < np.abs(half["y"] - full["y"]).max() < 1e-2


def test_remembers_and_evicts_by_bytes() -> None:
    task = make_task()
    cache = ReferenceCache(max_bytes=3 * 8 * 12 * 12)
    small = task.workload("small")
    first = cache.get(task, small, "normal", 1)
    assert cache.get(task, small, "normal", 1) is first
    assert cache.evaluations == 1
    for seed in range(2, 8):
        cache.get(task, small, "normal", seed)
    cache.get(task, small, "normal", 7)
    assert cache.evaluations == 7
    cache.get(task, small, "normal", 1)
    assert cache.evaluations == 8


def test_another_reference_is_another_entry() -> None:
    cache = ReferenceCache()
    one, two = make_task(), make_task(reference=wrong("return {'y': 3 * inputs['x']}"))
    a = cache.get(one, one.workload("small"), "normal", 1)
    b = cache.get(two, two.workload("small"), "normal", 1)
    np.testing.assert_array_equal(a.inputs["x"], b.inputs["x"])
    np.testing.assert_allclose(a.outputs["y"] * 1.5, b.outputs["y"])


def test_results_cannot_be_changed() -> None:
    task = make_task()
    expected = ReferenceCache().get(task, task.workload("small"), "normal", 1)
    with pytest.raises(ValueError, match="read-only"):
        expected.outputs["y"][0, 0] = 0.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {}", "returns no output 'y'"),
        ("return inputs['x']", "returns no output 'y'"),
        ("return {'y': inputs['x'][:2]}", r"gives y the shape \(2, 12\), declared is \(8, 12\)"),
        ("raise KeyError('k')", "raised KeyError: 'k'"),
    ],
)
def test_a_reference_that_does_not_fit_is_the_tasks_fault(body: str, message: str) -> None:
    task = make_task(reference=wrong(body))
    with pytest.raises(TaskError, match=message) as caught:
        ReferenceCache().get(task, task.workload("small"), "normal", 1)
    assert "\n" not in str(caught.value)
    assert "workload small" in str(caught.value)

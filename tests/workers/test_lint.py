from __future__ import annotations

import numpy as np
import pytest

from evo.errors import TaskError
from evo.task import make_bundle, task_from_bundle
from tests.workers.measure_fakes import TASK, make_task
from workers import corpus
from workers.measure.lint import lint_task, require_sound, round_mantissa


def reference(body: str) -> str:
    return (
        f"def reference(inputs, dims, scalars):\n    x = inputs['x']\n    return {{'y': {body}}}\n"
    )


def failed(**settings: str) -> list[str]:
    report = lint_task(make_task(**settings))
    return [check.name for check in report.checks if not check.passed]


def test_a_sound_task_passes_with_evidence() -> None:
    report = lint_task(task_from_bundle(corpus.bundle()))
    assert report.passed
    require_sound(report)
    names = [check.name for check in report.checks]
    assert names[0] == "honest"
    assert {
        "constant_zero",
        "constant_mean",
        "row_mean",
        "identity",
        "skip_last_2_percent",
        "ignore_last_2_percent_of_inputs",
        "one_sided",
        "swapped_rows",
        "inputs_rounded_to_fp16_or_tf32",
        "inputs_rounded_to_bf16",
        "accumulates_in_float16",
    } == set(names[1:])
    assert 0 < report.natural_error < report.tolerance < report.nearest_mutant


def test_a_tolerance_of_half_precision_lets_half_precision_in() -> None:
    # bf16 is coarser still, and rejected.
    assert failed(reference=reference("x / 3"), max_rel="5.0e-3") == [
        "inputs_rounded_to_fp16_or_tf32",
        "accumulates_in_float16",
    ]


def test_constants_fail_whatever_the_tolerance() -> None:
    # The largest value is never below the rms, to which errors are relative.
    assert not {"constant_zero", "constant_mean"} & set(failed(max_rel="0.99"))


def test_the_identity_as_task_is_refused() -> None:
    report = lint_task(make_task(reference=reference("x")))
    with pytest.raises(TaskError, match=r"task scale refused: mutant identity passes the check"):
        require_sound(report)


def test_an_operation_without_effect_on_one_sided_inputs_is_refused() -> None:
    assert failed(reference=reference("2 * x.abs()")) == ["one_sided"]


def test_an_output_that_ignores_its_inputs_is_refused() -> None:
    names = failed(reference=reference("x * 0 + 3"))
    assert {"constant_mean", "one_sided", "ignore_last_2_percent_of_inputs"} <= set(names)


def test_exact_inputs_alone_hide_low_precision() -> None:
    names = failed(families="integers")
    assert "inputs_rounded_to_bf16" in names


def test_a_tolerance_below_the_natural_error_is_refused() -> None:
    report = lint_task(make_task(reference=reference("x / 3"), max_rel="1.0e-9"))
    with pytest.raises(TaskError, match="framework's own result does not pass") as caught:
        require_sound(report)
    assert "\n" not in str(caught.value)


def test_mutants_are_tried_on_search_workloads_only() -> None:
    # The held-back workload would expose the shortcut, but no search ever runs it.
    text = TASK.format(
        dtype="float32",
        families="normal",
        nonfinite="excluded",
        max_rel="1.0e-6",
        deterministic="true",
    )
    shortcut = reference("x if dims['cols'] != 5 else 2 * x")
    task = task_from_bundle(make_bundle("scale", {"task.yaml": text, "reference.py": shortcut}))
    assert "identity" in [c.name for c in lint_task(task).checks if not c.passed]


def test_half_precision_tasks_are_not_blamed_for_being_half() -> None:
    report = lint_task(make_task(dtype="float16", max_rel="1.0e-3"))
    assert report.passed
    names = {check.name for check in report.checks}
    assert "inputs_rounded_to_bf16" in names
    assert "inputs_rounded_to_fp16_or_tf32" not in names


def test_round_mantissa_agrees_with_half_and_bfloat() -> None:
    import torch

    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(
        round_mantissa(values, 10), values.astype(np.float16).astype(np.float32)
    )
    bf16 = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(round_mantissa(values, 7), bf16)
    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(round_mantissa(special, 7), special)

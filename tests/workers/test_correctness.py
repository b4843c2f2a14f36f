from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evo.task import Task
from tests.workers.measure_fakes import make_task
from workers.measure.correctness import Checker, compare_output
from workers.measure.reference import Expected, ReferenceCache

TASK = make_task()
SMALL = TASK.workload("small")


def expected(task: Task = TASK, family: str = "normal") -> Expected:
    return ReferenceCache().get(task, task.workload("small"), family, 11)


def right(task: Task = TASK, family: str = "normal") -> np.ndarray:
    return expected(task, family).outputs["y"].astype(task.outputs[0].dtype)


def run(output: np.ndarray, task: Task = TASK, family: str = "normal") -> Checker:
    checker = Checker(task=task)
    checker.check({"y": output}, expected(task, family), task.workload("small"), family)
    return checker


reals = hnp.arrays(np.float32, (3, 4), elements=st.floats(-100, 100, width=32))


@given(reals, reals)
def test_errors_are_what_their_names_say(output: np.ndarray, reference: np.ndarray) -> None:
    want = reference.astype(np.float64)
    rms = float(np.sqrt(np.mean(want**2)))
    errors = compare_output(output, want, rms, "float32")
    difference = np.abs(output.astype(np.float64) - want)
    assert errors.reason == ""
    assert errors.max_abs == difference.max()
    assert difference[errors.index] == difference.max()
    if rms > 0:
        assert errors.max_rel == pytest.approx(difference.max() / rms)
        assert errors.norm_ratio == pytest.approx(
            np.linalg.norm(difference) / np.linalg.norm(want), rel=1e-6
        )
    else:
        assert errors.max_rel == (0.0 if difference.max() == 0 else math.inf)


@given(hnp.arrays(np.float64, (6,), elements=st.sampled_from([0.5, np.nan, np.inf, -np.inf])))
def test_special_values_must_match_in_place_and_kind(reference: np.ndarray) -> None:
    output = reference.astype(np.float32)
    assert compare_output(output, reference, 0.5, "float32").reason == ""
    for place in range(reference.size):
        for value in (0.5, np.nan, np.inf, -np.inf):
            other = output.copy()
            other[place] = value
            same = np.array_equal(other, output, equal_nan=True)
            found = compare_output(other, reference, 0.5, "float32").reason
            assert (found == "") == same
            if not same:
                assert f"[{place}]" in found


def test_right_answer_passes() -> None:
    checker = run(right())
    result = checker.result()
    assert result.passed
    assert result.max_rel is not None
    assert result.max_rel <= 1e-6
    assert result.worst == "workload small, inputs normal"


def test_message_names_place_but_no_value() -> None:
    output = right()
    output[2, 3] += 0.5
    checker = run(output)
    assert not checker.result().passed
    assert checker.failure.startswith("output y wrong (workload small, inputs normal): error 0.2")
    assert "at [2, 3], allowed 1e-06" in checker.failure
    assert str(output[2, 3]) not in checker.failure


@pytest.mark.parametrize("position", [(0, 0), (3, 5), (7, 11)])
def test_one_bad_element_anywhere_is_found(position: tuple[int, int]) -> None:
    output = right()
    output[position] *= 1.01
    assert not run(output).result().passed


def test_wrong_shape_and_dtype() -> None:
    assert "shape (12, 8) instead of (8, 12)" in run(right().T).failure
    assert "dtype float64 instead of float32" in run(right().astype(np.float64)).failure


def test_nan_is_never_a_wildcard() -> None:
    output = right()
    output[1, 1] = np.nan
    checker = run(output)
    assert "nan at [1, 1]" in checker.failure
    assert checker.result().max_abs is None


def test_non_finite_reference_where_it_propagates() -> None:
    task = make_task(nonfinite="propagate", families="special")
    checker = run(right(task, "special"), task, "special")
    assert checker.result().passed
    output = right(task, "special")
    place = tuple(np.argwhere(np.isnan(output))[0])
    output[place] = 0.0
    assert not run(output, task, "special").result().passed


def test_integers_must_be_equal() -> None:
    task = make_task(dtype="int32", max_rel="0.5")
    assert run(right(task), task).result().passed
    output = right(task)
    output[0, 1] += 1
    assert "differs at [0, 1]" in run(output, task).failure


def test_the_first_failure_stays() -> None:
    checker = Checker(task=TASK)
    output = right()
    output[0, 0] = 9
    checker.check({"y": output}, expected(), SMALL, "normal")
    first = checker.failure
    checker.fail("later")
    assert checker.failure == first


def test_unwritten_elements_are_counted() -> None:
    checker = Checker(task=TASK)
    assert checker.unwritten({"y": 0}, SMALL, "normal")
    assert not checker.unwritten({"y": 3}, SMALL, "normal")
    assert checker.failure == ("output y: 3 elements never written (workload small, inputs normal)")


def test_repeats_are_compared_bit_by_bit() -> None:
    checker = Checker(task=TASK)
    zero, minus = np.zeros((2, 2), np.float32), -np.zeros((2, 2), np.float32)
    nan = np.full((2, 2), np.nan, np.float32)
    assert checker.repeated({"y": nan}, {"y": nan.copy()})
    assert checker.deterministic
    assert not checker.repeated({"y": zero}, {"y": minus})
    assert not checker.result().deterministic


def test_nothing_checked_is_not_passed() -> None:
    assert not Checker(task=TASK).result().passed

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import TaskError
from evo.task import FAMILIES as TASK_FAMILIES
from evo.task import Workload
from tests.workers.measure_fakes import make_task
from workers.measure.inputs import FAMILIES, INTEGER_LIMIT, make_inputs, seeded

TASK = make_task()
LARGE = Workload(name="large", dims={"rows": 200, "cols": 301})
REAL = [name for name in FAMILIES if name != "special"]


def draw(family: str, workload: Workload = LARGE, seed: int = 3) -> np.ndarray:
    return make_inputs(TASK, workload, family, seeded(seed, family))["x"]


def test_families_are_those_a_task_may_name() -> None:
    assert tuple(FAMILIES) == TASK_FAMILIES


@given(
    family=st.sampled_from(list(FAMILIES)),
    rows=st.integers(1, 40),
    cols=st.integers(1, 40),
    dtype=st.sampled_from(["float16", "float32", "float64", "int32", "uint8"]),
    seed=st.integers(0, 2**53),
)
def test_shape_dtype_and_repeatability(
    family: str, rows: int, cols: int, dtype: str, seed: int
) -> None:
    task = make_task(dtype=dtype)
    workload = Workload(name="w", dims={"rows": rows, "cols": cols})
    first = make_inputs(task, workload, family, seeded(seed, "a"))["x"]
    again = make_inputs(task, workload, family, seeded(seed, "a"))["x"]
    assert first.shape == (rows, cols)
    assert first.dtype == np.dtype(dtype)
    assert first.flags.c_contiguous
    assert first.tobytes() == again.tobytes()
    if family != "special":
        assert np.isfinite(first.astype(np.float64)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_another_seed_or_label_gives_other_data(family: str) -> None:
    base = draw(family)
    assert draw(family, seed=4).tobytes() != base.tobytes()
    other = make_inputs(TASK, LARGE, family, seeded(3, "elsewhere"))["x"]
    assert other.tobytes() != base.tobytes()


@pytest.mark.parametrize("family", [f for f in REAL if f not in ("offset", "blocks")])
def test_both_signs(family: str) -> None:
    values = draw(family)
    assert 0.3 < (values > 0).mean() < 0.7 or family == "integers"
    assert values.min() < 0 < values.max()


def test_normal_has_unit_scale() -> None:
    values = draw("normal")
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02


def test_uniform_stays_in_range() -> None:
    assert np.abs(draw("uniform")).max() <= 1.0


def test_offset_is_off_centre() -> None:
    assert all(abs(draw("offset", seed=seed).mean()) > 0.9 for seed in range(6))


def test_spikes_are_few_large_and_elsewhere_each_time() -> None:
    first, second = draw("spikes", seed=1), draw("spikes", seed=2)
    high = [np.abs(values) > 5.0 for values in (first, second)]
    assert all(0 < mask.mean() < 0.01 for mask in high)
    assert (high[0] & high[1]).sum() < high[0].sum() / 2


def test_integers_are_small_and_exact() -> None:
    values = draw("integers")
    assert set(np.unique(values)) == set(range(-INTEGER_LIMIT, INTEGER_LIMIT + 1))


def test_blocks_are_runs() -> None:
    flat = draw("blocks").reshape(-1)
    changes = np.count_nonzero(np.diff(flat))
    assert 0 < changes < flat.size / 4


def test_special_holds_every_kind() -> None:
    values = draw("special")
    assert np.isnan(values).any()
    assert np.isposinf(values).any()
    assert np.isneginf(values).any()
    assert np.isfinite(values).mean() > 0.9


def test_unsigned_integers_are_not_negative() -> None:
    task = make_task(dtype="uint32")
    values = make_inputs(task, LARGE, "normal", seeded(1))["x"]
    assert values.max() <= INTEGER_LIMIT


def test_unknown_family_names_what_is_allowed() -> None:
    with pytest.raises(TaskError, match=r"unknown input family 'weird'; allowed: normal, uniform"):
        make_inputs(TASK, LARGE, "weird", seeded(1))


def test_inputs_are_drawn_in_order() -> None:
    spec = TASK.inputs[0]
    two = dataclasses.replace(TASK, inputs=(spec, dataclasses.replace(spec, name="z")))
    values = make_inputs(two, LARGE, "normal", seeded(1))
    assert list(values) == ["x", "z"]
    assert not np.array_equal(values["x"], values["z"])

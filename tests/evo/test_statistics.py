from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evo.statistics import SINGLE_BLOCK_HALF_WIDTH, interval

logs = st.floats(-5.0, 5.0)


@given(st.lists(logs, min_size=2, max_size=40), st.floats(0.5, 0.999))
def test_agrees_with_scipy(samples: list[float], confidence: float) -> None:
    got = interval(samples, confidence)
    mean, sem = np.mean(samples), np.std(samples, ddof=1) / math.sqrt(len(samples))
    half = stats.t.ppf(0.5 + confidence / 2, len(samples) - 1) * sem
    assert got.mean == pytest.approx(mean, abs=1e-12)
    assert got.high - got.mean == pytest.approx(half, rel=1e-6, abs=1e-9)
    assert got.low <= got.mean <= got.high
    assert got.blocks == len(samples)


@given(logs, st.integers(2, 30))
def test_equal_samples_have_no_width(value: float, count: int) -> None:
    got = interval([value] * count)
    assert got.low == got.mean == got.high == value


def test_one_block_is_wide() -> None:
    got = interval([0.3])
    assert (got.low, got.high) == (0.3 - SINGLE_BLOCK_HALF_WIDTH, 0.3 + SINGLE_BLOCK_HALF_WIDTH)


def test_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(1000):
        got = interval(list(rng.normal(0.2, 0.05, size=6)))
        hits += got.low <= 0.2 <= got.high
    assert 925 <= hits <= 975  # 95 % of 1000, plus or minus 3.6 sigma


@pytest.mark.parametrize(
    ("samples", "confidence"),
    [([], 0.95), ([0.0, math.nan], 0.95), ([math.inf, 1.0], 0.95), ([0.1, 0.2], 1.0)],
)
def test_refuses_nonsense(samples: list[float], confidence: float) -> None:
    with pytest.raises(ValueError, match=r"sample|confidence"):
        interval(samples, confidence)

from __future__ import annotations

import math

import pytest

from evo import formatting
from evo.archives.base import Interval


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        *((1.0, "1.00x"), (2.306, "2.31x"), (0.4, "0.40x"), (0.0123, "0.012x")),
        *((9.999, "10.0x"), (19.42, "19.4x"), (134.4, "134x"), (0.0996, "0.10x")),
    ],
)
def test_ratio(factor: float, text: str) -> None:
    assert formatting.ratio(math.log(factor)) == text


def test_speedup_keeps_the_interval_next_to_it() -> None:
    interval = Interval(mean=math.log(2.31), low=math.log(2.25), high=math.log(2.38), blocks=9)
    assert formatting.speedup(interval) == "2.31x [2.25, 2.38]"
    assert formatting.speedup(None) == "-"


@pytest.mark.parametrize(
    ("value_us", "text"),
    [
        *((4.123, "4.12 us"), (16.34, "16.3 us"), (999.0, "999 us"), (1000.0, "1.00 ms")),
        *((2.5e6, "2.50 s"), (None, "-"), (math.nan, "-"), (math.inf, "-"), (9.999, "10.0 us")),
    ],
)
def test_latency(value_us: float | None, text: str) -> None:
    assert formatting.latency(value_us) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        *((0.0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (185.0, "3m05s"), (7620.0, "2h07m")),
        *((None, "-"), (math.inf, "-"), (-3.0, "0s")),
    ],
)
def test_duration(value_s: float | None, text: str) -> None:
    assert formatting.duration(value_s) == text


def test_a_cpu_time_is_called_one() -> None:
    assert formatting.time_kind("cpu") == "CPU time"
    assert formatting.time_kind("gpu") == "GPU time"
    assert "unknown" in formatting.time_kind("")


def test_parameters_read_as_yaml() -> None:
    assert formatting.params({"wg": 64, "cache": True, "mode": "a"}) == "wg=64 cache=true mode=a"

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from evo.archives.base import Interval
from evo.display import (
    LiveDisplay,
    NullDisplay,
    PlainDisplay,
    ProgressState,
    format_line,
    make_display,
    render,
)
from evo.errors import ConfigError

STATE = ProgressState(
    title="softmax on opencl",
    device="fake-cpu (CPU time)",
    evaluations=120,
    budget_evaluations=300,
    elapsed_s=60.0,
    status_counts={"ok": 90, "incorrect": 20, "timeout": 5, "infra_error": 5, "hack": 5},
    num_elites=11,
    cells=64,
    best=Interval(mean=0.8373, low=0.8109, high=0.8671, blocks=12),
    best_id="c000042",
    in_flight=1,
)


def text_of(renderable: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_line_says_everything_once() -> None:
    assert format_line(STATE) == (
        "search 120/300 evaluations | valid 75% | cells 11/64 | best 2.31x [2.25, 2.38] | 2.0/s"
        " | 1m00s gone, 1m30s left | failed: incorrect 20, hack 5, infra_error 5, timeout 5"
    )


def test_line_before_the_first_result_has_no_numbers_made_up() -> None:
    line = format_line(ProgressState(title="t", cells=64, budget_evaluations=10))
    assert line == ("search 0/10 evaluations | valid - | cells 0/64 | best - | - | 0s gone, - left")


def test_rate_and_eta_leave_earlier_sessions_out() -> None:
    resumed = replace(STATE, resumed_evaluations=100, resumed_s=20.0)
    assert resumed.rate == pytest.approx(20 / 40)
    assert resumed.eta_s == pytest.approx(180 / 0.5)


def test_eta_is_the_limit_that_comes_first() -> None:
    assert replace(STATE, budget_s=70.0).eta_s == pytest.approx(10.0)
    assert replace(STATE, budget_s=10_000.0).eta_s == pytest.approx(90.0)
    assert replace(STATE, budget_evaluations=None).eta_s is None
    assert replace(STATE, evaluations=400).eta_s == 0


def test_fraction_follows_the_nearer_limit_and_stays_below_one() -> None:
    assert STATE.fraction == pytest.approx(0.4)
    assert replace(STATE, budget_s=80.0).fraction == pytest.approx(0.75)
    assert replace(STATE, evaluations=999).fraction == 1.0


@pytest.mark.parametrize("width", [120, 80])
def test_panel_holds_the_facts(width: int) -> None:
    text = text_of(render(STATE), width)
    for fact in ("softmax on opencl", "fake-cpu (CPU time)", "120/300", "2.31x [2.25, 2.38]"):
        assert fact in text
    for fact in ("c000042", "11/64", "75%", "incorrect 20", "in flight 1/1"):
        assert fact in text
    assert max(map(len, text.splitlines())) <= width


def test_plain_display_prints_at_intervals_and_at_the_end() -> None:
    now_s = 0.0
    stream = io.StringIO()
    display = PlainDisplay(
        console=Console(file=stream, width=40), interval_s=5.0, clock=lambda: now_s
    )
    for step in range(1, 13):
        now_s = float(step)
        display.update(replace(STATE, evaluations=step))
    display.close()
    display.close()
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/300", "6/300", "11/300", "12/300"]


def test_messages_are_not_read_as_markup() -> None:
    stream = io.StringIO()
    PlainDisplay(console=Console(file=stream, width=200)).message("x [red] [/nothing] y")
    assert stream.getvalue() == "x [red] [/nothing] y\n"


def test_live_display_leaves_the_last_state() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    display = make_display("auto", console=console)
    assert isinstance(display, LiveDisplay)
    display.update(replace(STATE, evaluations=1))
    display.message("resumed")
    display.update(STATE)
    display.close()
    display.close()
    assert "resumed" in stream.getvalue()
    assert "120/300" in stream.getvalue()


def test_live_display_can_be_closed_unused() -> None:
    LiveDisplay(console=Console(file=io.StringIO(), force_terminal=True)).close()


def test_choice_of_display() -> None:
    pipe = Console(file=io.StringIO())
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(make_display("auto", console=pipe), PlainDisplay)
    assert isinstance(make_display("plain", console=terminal), PlainDisplay)
    quiet = make_display("none", console=terminal)
    assert isinstance(quiet, NullDisplay)
    quiet.update(STATE)
    quiet.message("x")
    quiet.close()
    assert terminal.file.getvalue() == ""  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="display='fancy': allowed are auto, plain, none"):
        make_display("fancy")

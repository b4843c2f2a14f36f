"""Small inline SVG charts for the report: no scripts, colours from the page's CSS variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value over the evaluations so far, with an interval where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


def line_chart(
    points: Sequence[Point],
    *,
    label: str,
    y_text: Callable[[float], str],
    ticks: Sequence[float] | None = None,
) -> Markup:
    """Draws one series as a stepped line, its intervals as a band.

    Args:
        points: In order of x; empty gives a note instead of a chart.
        label: What the values are, for screen readers and the point tooltips.
        y_text: Formats a y value.
        ticks: Marks on the y axis; chosen evenly when None.
    """
    if not points:
        return Markup('<p class="faint">No steps recorded.</p>')
    lows = [point.y if point.low is None else point.low for point in points]
    highs = [point.y if point.high is None else point.high for point in points]
    marks = list(ticks) if ticks is not None else nice_ticks(min([0.0, *lows]), max(highs))
    low = min([*lows, *marks])
    high = max([*highs, *marks])
    high = high if high > low else low + 1.0
    x_marks = nice_ticks(0.0, points[-1].x)
    right = max(points[-1].x, x_marks[-1], 1.0)

    def px(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / right

    def py(y: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - y) / (high - low)

    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="'
        f'{escape(label)}">'
    ]
    for mark in marks:
        y = py(mark)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(y_text(mark))}</text>"
        )
    for mark in x_marks:
        parts.append(
            f'<text class="tick" x="{px(mark):.1f}" y="{_HEIGHT - _BOTTOM + 16}"'
            f' text-anchor="middle">{mark:g}</text>'
        )
    parts.append(
        f'<text class="tick" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 2}"'
        ' text-anchor="middle">evaluations</text>'
    )
    if any(point.low is not None for point in points):
        upper = _steps([(px(p.x), py(h)) for p, h in zip(points, highs, strict=True)])
        lower = _steps([(px(p.x), py(v)) for p, v in zip(points, lows, strict=True)])
        outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
        parts.append(f'<polygon class="band" points="{outline}"/>')
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in _steps([(px(p.x), py(p.y)) for p in points]))
    parts.append(f'<polyline class="line" points="{line}"/>')
    for point in points:
        tip = f"{label} after {point.x:g} evaluations: {y_text(point.y)}"
        if point.low is not None and point.high is not None:
            tip += f" [{y_text(point.low)}, {y_text(point.high)}]"
        parts.append(
            f'<circle class="dot" cx="{px(point.x):.1f}" cy="{py(point.y):.1f}" r="2.6">'
            f"<title>{escape(tip)}</title></circle>"
        )
    parts.append("</svg>")
    return Markup("".join(parts))


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Holds each value until the next one is known: a record does not rise between two steps."""
    stepped: list[tuple[float, float]] = []
    for x, y in points:
        if stepped:
            stepped.append((x, stepped[-1][1]))
        stepped.append((x, y))
    return stepped


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns round numbers that span low to high; about `count` of them."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low, low + 1.0]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def factor_ticks(low_log: float, high_log: float) -> list[float]:
    """Returns logs of 1x, 2x, 4x, ... (or halves) that span two log ratios, at most nine."""
    first = math.floor(low_log / math.log(2) + 1e-9)
    last = max(first + 1, math.ceil(high_log / math.log(2) - 1e-9))
    stride = max(1, math.ceil((last - first) / 8))
    marks = list(range(first, last + stride, stride))
    return [mark * math.log(2) for mark in marks]

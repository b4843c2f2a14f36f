"""The archive as a picture: one slice per level of the last axis, one square per cell."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from evo.archives.base import Cell, Elite
from evo.errors import ArchiveError
from evo.formatting import ratio

# Orange: slower than the baseline. White: equal. Blue: faster. Told apart by colour-blind eyes.
_SLOWER_FASTER = LinearSegmentedColormap.from_list(
    "slower_faster",
    # An odd number, so that white is the middle.
    [
        *("#8c4504", "#c8690f", "#f1a340", "#fee0b6", "#f7f7f7"),
        *("#c6dbef", "#5598cc", "#1f5fa8", "#0b2f6b"),
    ],
)
_EMPTY = "#ececec"
_INK = "#1d2733"
_FAINT = "#5b6773"
# Inches: a cell's side, the gap between slices, and the margins around them.
_CELL, _GAP, _LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.2, 1.85, 1.0, 1.05, 1.0


class AxisLike(Protocol):
    """What the pictures need of a descriptor axis."""

    @property
    def name(self) -> str:
        """Axis name."""
        ...

    @property
    def levels(self) -> Sequence[str]:
        """Level names, lowest first."""
        ...


def archive_figure(
    elites: Iterable[Elite], axes: Sequence[AxisLike], title: str = "", subtitle: str = ""
) -> Figure:
    """Draws the archive.

    Rows of a slice are the first axis (level 0 at the bottom), columns the second, slices the
    third; with two axes there is one slice. The colour is the log speed-up: white at 1x, each side
    scaled to the archive's own extreme. Grey cells are empty.

    Args:
        elites: What to draw; cells have as many entries as there are axes.
        axes: Two or three axes.
        title: Bold first line.
        subtitle: Second line; device and kind of time belong here.

    Raises:
        ArchiveError: If there are not two or three axes.
    """
    if len(axes) not in (2, 3):
        raise ArchiveError(f"a heatmap needs 2 or 3 axes, not {len(axes)}")
    by_cell = {elite.cell: elite for elite in elites}
    slices = len(axes[2].levels) if len(axes) == 3 else 1
    rows, columns = len(axes[0].levels), len(axes[1].levels)
    width = _LEFT + slices * columns * _CELL + (slices - 1) * _GAP + _RIGHT
    height = _BOTTOM + rows * _CELL + _TOP
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    FigureCanvasAgg(figure)
    norm = _norm([elite.objective.mean for elite in by_cell.values()])
    best = max(by_cell.values(), key=lambda elite: elite.objective.low, default=None)
    for index in range(slices):
        left = _LEFT + index * (columns * _CELL + _GAP)
        panel = figure.add_axes(
            (left / width, _BOTTOM / height, columns * _CELL / width, rows * _CELL / height)
        )
        suffix = (index,) if len(axes) == 3 else ()
        _draw_slice(panel, by_cell, suffix, rows, columns, norm, best)
        panel.set_xticks(range(columns), axes[1].levels, rotation=28, ha="right", fontsize=9)
        panel.set_yticks(range(rows), axes[0].levels if index == 0 else [""] * rows, fontsize=9)
        panel.tick_params(length=0, colors=_INK)
        if len(axes) == 3:
            name = f"{axes[2].name}: " if index == 0 else ""
            panel.set_title(name + axes[2].levels[index], fontsize=10.5, color=_INK, pad=6)
    grey: dict[str, Any] = {"fontsize": 10.5, "color": _INK}
    middle = (_LEFT + width - _RIGHT) / 2 / width
    figure.text(middle, 0.12 / height, axes[1].name, ha="center", **grey)
    centre = (_BOTTOM + rows * _CELL / 2) / height
    figure.text(0.16 / width, centre, axes[0].name, va="center", rotation=90, **grey)
    figure.text(
        0.16 / width,
        1 - 0.24 / height,
        title,
        fontsize=13,
        fontweight="bold",
        color=_INK,
        va="center",
    )
    figure.text(0.16 / width, 1 - 0.52 / height, subtitle, fontsize=9.5, color=_FAINT, va="center")
    _colour_bar(
        figure,
        norm,
        (1 - (_RIGHT - 0.25) / width, _BOTTOM / height, 0.14 / width, rows * _CELL / height),
    )
    return figure


def _norm(values: Sequence[float]) -> Normalize:
    """Centres the colours on 1x; an archive all on one side keeps a short other side."""
    low = min([*values, -0.1])
    high = max([*values, 0.1])
    return TwoSlopeNorm(vmin=low, vcenter=0.0, vmax=high)


def _draw_slice(
    panel: Any,
    by_cell: dict[Cell, Elite],
    suffix: Cell,
    rows: int,
    columns: int,
    norm: Normalize,
    best: Elite | None,
) -> None:
    panel.set_xlim(-0.5, columns - 0.5)
    panel.set_ylim(-0.5, rows - 0.5)
    panel.set_aspect("equal")
    for spine in panel.spines.values():
        spine.set_visible(False)
    for row in range(rows):
        for column in range(columns):
            elite = by_cell.get((row, column, *suffix))
            colour = _SLOWER_FASTER(norm(elite.objective.mean)) if elite else _EMPTY
            winner = elite is not None and elite is best
            panel.add_patch(
                Rectangle(
                    (column - 0.47, row - 0.47),
                    0.94,
                    0.94,
                    facecolor=colour,
                    edgecolor="#d7263d" if winner else "none",
                    linewidth=2.2 if winner else 0,
                    zorder=3 if winner else 2,
                )
            )
            if elite:
                panel.text(
                    column,
                    row,
                    ratio(elite.objective.mean),
                    ha="center",
                    va="center",
                    fontsize=10.5,
                    fontweight="bold" if winner else "normal",
                    color="white" if _is_dark(colour) else _INK,
                    zorder=4,
                )


def _is_dark(colour: Any) -> bool:
    red, green, blue = colour[:3]
    return bool(0.299 * red + 0.587 * green + 0.114 * blue < 0.55)


def _colour_bar(figure: Figure, norm: Normalize, box: tuple[float, float, float, float]) -> None:
    panel = figure.add_axes(box)
    steps = np.linspace(float(norm.vmin or 0), float(norm.vmax or 0), 256)
    panel.imshow(
        _SLOWER_FASTER(norm(steps))[:, None, :],
        aspect="auto",
        origin="lower",
        extent=(0, 1, float(steps[0]), float(steps[-1])),
    )
    marks = _marks(float(steps[0]), float(steps[-1]))
    panel.set_xticks([])
    panel.yaxis.tick_right()
    panel.set_yticks(marks, [ratio(mark) for mark in marks], fontsize=8.5)
    panel.tick_params(length=2, colors=_INK)
    for spine in panel.spines.values():
        spine.set_visible(False)
    panel.set_title("speed-up", fontsize=8.5, color=_INK, pad=6)


def _marks(low: float, high: float) -> list[float]:
    """Chooses tick marks: the ends and 1x, without marks that would overlap."""
    gap = (high - low) * 0.09
    return [0.0, *(end for end in (low, high) if abs(end) > gap)]


def figure_png(figure: Figure) -> bytes:
    """Renders a figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def figure_rgb(figure: Figure) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Renders a figure to an array (height, width, 3) of bytes."""
    canvas: Any = figure.canvas  # FigureCanvasAgg, which matplotlib leaves untyped
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def colour_hex(log_speedup: float, values: Sequence[float]) -> tuple[str, bool]:
    """Returns the colour of one cell as "#rrggbb" and whether it is dark (for HTML tables).

    Args:
        log_speedup: The cell's value.
        values: All values in the archive, which set the scale.
    """
    rgba = _SLOWER_FASTER(_norm(values)(log_speedup))
    text = "#" + "".join(f"{math.floor(255 * part + 0.5):02x}" for part in rgba[:3])
    return text, _is_dark(rgba)

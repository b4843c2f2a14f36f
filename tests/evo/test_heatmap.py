from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image

from evo.descriptor import DEFAULT_DESCRIPTOR
from evo.errors import ArchiveError
from evo.tracking.heatmap import archive_figure, colour_hex, figure_png, figure_rgb
from tests.evo.fakes import demo_archive, make_elite

AXES = DEFAULT_DESCRIPTOR.axes


def texts(figure: object) -> list[str]:
    from matplotlib.text import Text

    found = figure.findobj(Text)  # type: ignore[attr-defined]
    return [text.get_text() for text in found if text.get_text()]


def test_every_level_and_every_elite_is_labelled() -> None:
    archive = demo_archive()
    shown = texts(archive_figure(archive, AXES, "a title", "a device (CPU time)"))
    for axis in AXES:
        for level in axis.levels:
            assert any(level in text for text in shown)
        assert any(axis.name in text for text in shown)
    for elite in archive:
        mean = math.exp(elite.objective.mean)
        assert f"{mean:.2f}x" in shown
    assert "a title" in shown
    assert "a device (CPU time)" in shown


def test_picture_is_wide_enough_to_read() -> None:
    figure = archive_figure(demo_archive(), AXES)
    pixels = figure_rgb(figure)
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
    assert 1200 <= pixels.shape[1] <= 1400
    picture = Image.open(io.BytesIO(figure_png(figure)))
    assert picture.size == (pixels.shape[1], pixels.shape[0])


def test_an_elite_colours_its_own_square_only() -> None:
    empty = figure_rgb(archive_figure([], AXES)).astype(int)
    one = figure_rgb(archive_figure([make_elite(1, (3, 0, 1), (1.0, 1.0))], AXES)).astype(int)
    bar = int(empty.shape[1] * 0.92)  # the colour bar's scale changes too
    changed = np.argwhere(np.abs(empty - one)[:, :bar].sum(axis=2) > 30)
    height, width = changed.max(axis=0) - changed.min(axis=0)
    assert 50 <= height <= 70
    assert 50 <= width <= 70


def test_empty_archive_and_a_single_value_draw() -> None:
    assert figure_png(archive_figure([], AXES)).startswith(b"\x89PNG")
    assert figure_png(archive_figure([make_elite(log_speedups=(0.0, 0.0))], AXES))


def test_two_axes_make_one_slice() -> None:
    figure = archive_figure([make_elite(1, (1, 2))], AXES[:2])
    assert AXES[2].levels[0] not in texts(figure)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ArchiveError, match="2 or 3 axes, not 1"):
        archive_figure([], AXES[:1])


def test_colours_tell_slower_from_faster() -> None:
    values = [-1.0, 0.0, 2.0]
    slow, even, fast = (colour_hex(value, values) for value in values)
    assert int(slow[0][1:3], 16) > int(slow[0][5:7], 16)  # more red than blue
    assert int(fast[0][1:3], 16) < int(fast[0][5:7], 16)
    assert min(int(even[0][i : i + 2], 16) for i in (1, 3, 5)) > 0xE0
    assert fast[1]
    assert not even[1]

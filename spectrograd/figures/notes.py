"""Notes in the panels: words with an arrow to a point, placed where they cover no line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from spectrograd.figures.axes import Values
from spectrograd.figures.page import DPI, get_renderer, settle
from spectrograd.figures.style import FAINT, INK, Size


@dataclass(frozen=True, slots=True)
class Note:
    """Words beside a point of a panel, and smaller ones beneath (may be empty): `lines` they may not cover, `at` the arrow points."""

    axes: Axes
    lines: Sequence[Line2D]
    at: tuple[float, float]
    text: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Lower left corner and size of a note in pixels within its panel, width and foot of its larger words, and its smaller words."""

    corner: Values
    box: Values
    main: float
    below: float
    detail: str
    is_clear: bool


def annotate(figure: Figure, size: Size, notes: Sequence[Note], engine: ConstrainedLayoutEngine) -> None:
    """Write notes with their arrows where they cover no line; call after `finish`, with its engine.

    Where a panel has no such place, every panel gets room above its lines: all by the same share, so that heights stay comparable and 0
    stays where it is in all.
    """
    places = [_find_place(figure, size, note) for note in notes]
    if not all(place.is_clear for place in places):
        em = DPI * size.text / 72
        share = max(float(place.box[1] + 1.2 * em) / note.axes.bbox.height for place, note in zip(places, notes, strict=True))
        for axes in figure.axes:
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + (high - low) * share / (1 - min(share, 0.6)))
        settle(figure, engine)
        places = [_find_place(figure, size, note) for note in notes]
    for note, place in zip(notes, places, strict=True):
        _write(size, note, place)


def _find_place(figure: Figure, size: Size, note: Note) -> _Place:
    """Return where a note has its place, from the size that its words have when drawn."""
    renderer = get_renderer(figure)
    frame = note.axes.get_window_extent(renderer)

    def measure(text: str, points: float) -> Bbox:
        probe = figure.text(0, 0, text, fontsize=points, linespacing=1.15)
        box = probe.get_window_extent(renderer)
        probe.remove()
        return box

    detail = note.detail
    main, lower = measure(note.text, size.small), measure(detail, size.smallest)
    if lower.width > 0.6 * frame.width:
        detail = detail.replace(" ", "\n", 1)
        lower = measure(detail, size.smallest)
    below = 1.1 * lower.height if detail else 0.0
    box = np.array([max(main.width, lower.width), main.height + below])
    point = np.asarray(note.axes.transData.transform(note.at)) - frame.p0
    corner, is_clear = _clear_corner(note.lines, frame, box, point, DPI * size.text / 72)
    return _Place(corner, box, main.width, below, detail, is_clear)


def _write(size: Size, note: Note, place: _Place) -> None:
    """Write a note at its place; the arrow starts at the nearest point of its box."""
    frame = note.axes.bbox
    panel = np.array([frame.width, frame.height])
    point = np.asarray(note.axes.transData.transform(note.at)) - frame.p0
    foot = place.corner + np.array([place.box[0] / 2, place.below])
    start = (np.clip(point, place.corner, place.corner + place.box) - foot) / (place.main, place.box[1] - place.below) + (0.5, 0.0)
    words: dict[str, Any] = {"ha": "center", "va": "bottom", "linespacing": 1.15, "in_layout": False, "zorder": 5}
    x, y = (float(side) for side in foot / panel)
    arrow = {"arrowstyle": "-|>,head_width=0.16,head_length=0.36", "color": INK, "linewidth": 0.09 * size.text, "shrinkA": 1, "shrinkB": 1}
    arrow |= {"patchA": None, "relpos": (float(start[0]), float(start[1]))}
    more: dict[str, Any] = {
        "color": INK,
        "fontsize": size.small,
        "annotation_clip": False,
        "textcoords": "axes fraction",
        "arrowprops": arrow,
    }
    note.axes.annotate(note.text, xy=note.at, xytext=(x, y), **words, **more)
    if place.detail:
        foot_y = float(place.corner[1] / frame.height)
        note.axes.text(x, foot_y, place.detail, transform=note.axes.transAxes, color=FAINT, fontsize=size.smallest, **words)


def _clear_corner(lines: Sequence[Line2D], frame: Bbox, box: Values, point: Values, em: float) -> tuple[Values, bool]:
    """Return the lower left corner (pixels in the frame) of the nearest place for a box that covers no line, and if there is one."""
    cell = 2.0
    rows = np.ceil(np.array(frame.size) / cell).astype(int) + 1
    filled = np.zeros(rows)
    for line in lines:
        at = np.floor((_dense(line) - frame.p0) / cell).astype(int)
        at = at[((at >= 0) & (at < rows)).all(axis=1)]
        filled[at[:, 0], at[:, 1]] = 1
    filled[:, int(np.clip(point[1] / cell, 0, rows[1] - 1))] = 1  # the zero line
    sums = np.pad(filled.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    pad = 0.35 * em
    room = np.maximum(np.array(frame.size) - box - pad, pad)
    x, y = np.meshgrid(np.linspace(pad, room[0], 60), np.linspace(pad, room[1], 60), indexing="ij")
    i0, i1 = (np.clip(np.round(edge / cell).astype(int), 0, rows[0]) for edge in (x - pad, x + box[0] + pad))
    j0, j1 = (np.clip(np.round(edge / cell).astype(int), 0, rows[1]) for edge in (y - pad, y + box[1] + pad))
    covered = sums[i1, j1] - sums[i0, j1] - sums[i1, j0] + sums[i0, j0]
    distance = np.hypot(point[0] - np.clip(point[0], x, x + box[0]), point[1] - np.clip(point[1], y, y + box[1]))
    cost = 1e4 * (covered > 0) + 50 * covered + 30 * np.maximum(0.0, 2 * em - distance) + distance
    best = np.unravel_index(np.argmin(cost.round(3)), cost.shape)
    corner: Values = np.array([x[best], y[best]], dtype=np.float64)
    return corner, bool(covered[best] == 0)


def _dense(line: Line2D) -> Values:
    """Return pixels along a line, close enough that no gap between them hides a word."""
    assert line.axes is not None
    xy: Values = np.asarray(line.axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]).astype(float)))
    xy = xy[np.isfinite(xy).all(axis=1)]
    if len(xy) < 2:
        return np.asarray(xy, dtype=np.float64)
    steps = np.linspace(0, 1, 24)[:, None, None]
    dense: Values = (xy[:-1] + (xy[1:] - xy[:-1]) * steps).reshape(-1, 2)
    return dense

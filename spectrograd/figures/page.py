"""The page around the panels: title, legend and caption take their own room, and nothing covers a line."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from spectrograd.figures.axes import Values
from spectrograd.figures.style import FAINT, INK, Size, shorten

DPI = 150
PAPER = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5}
"""Behind a note, for the panel that has no free place for it."""


def new_figure(size: Size) -> Figure:
    """Return an empty figure of the page's width; `finish` gives it its height."""
    return Figure(figsize=(size.width, size.height or 2 * size.width), dpi=DPI, layout="constrained", facecolor="white")


def finish(
    figure: Figure, size: Size, panels: float, title: str, lines: Sequence[Line2D], labels: Sequence[str], sentences: Sequence[str]
) -> None:
    """Set title and legend above the panels and the caption below, give the panels what they need, and fix the layout.

    Parameters
    ----------
    figure : Figure
        With its axes drawn.
    size : Size
        Measures of the page.
    panels : float
        Height of all panels with their labels, in inches; a page of fixed height grows only where they would be squeezed.
    title, lines, labels, sentences
        What to write, whose legend entries to show, and what the caption says.
    """
    renderer = _renderer(figure)
    edge = 0.6 * size.text / 72
    room = size.width - 2 * edge
    heading = _place(figure, _wrap(figure, renderer, title, room, size.title, "bold"), size.title, "title", weight="bold")
    caption = _place(figure, _wrap(figure, renderer, ". ".join(sentences) + ".", room, size.small), size.small, "caption", color=FAINT)
    legend = _legend(figure, renderer, size, lines, labels, room)
    extent = {artist: artist.get_window_extent(renderer) for artist in (heading, caption, legend)}
    wide = {artist: box.width / DPI for artist, box in extent.items()}
    high = {artist: box.height / DPI for artist, box in extent.items()}
    gap = 0.6 * size.text / 72
    beside = wide[heading] + wide[legend] + 2 * gap <= room and high[legend] <= 2 * high[heading]
    top = edge + (max(high[heading], high[legend]) if beside else high[heading] + high[legend] + 0.5 * gap) + gap
    bottom = edge + high[caption] + gap
    height = max(size.height, top + (0.75 if size.height else 1.0) * panels + bottom)
    figure.set_size_inches(size.width, height)
    left, right = edge / size.width, 1 - edge / size.width
    heading.set_position((left, 1 - edge / height))
    caption.set_position((left, (edge + high[caption]) / height))
    down = edge + (max(0.0, (high[heading] - high[legend]) / 2) if beside else high[heading] + 0.5 * gap)
    legend.set_bbox_to_anchor((right, 1 - down / height), transform=figure.transFigure)
    for artist in (heading, caption, legend):
        artist.set_in_layout(False)
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        pad = 0.35 * size.text / 72
        engine.set(rect=(left, bottom / height, right - left, 1 - (top + bottom) / height), w_pad=pad, h_pad=pad, wspace=0.02, hspace=0.02)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:  # the solver's last bits differ from process to process, and names in an SVG are made of them
        axes.set_position(Bbox.from_bounds(*(round(float(side), 5) for side in axes.get_position().bounds)))


def _renderer(figure: Figure) -> RendererBase:
    """Return what measures text, at the figure's own resolution."""
    canvas: Any = FigureCanvasAgg(figure)
    renderer: RendererBase = canvas.get_renderer()
    return renderer


def _place(figure: Figure, text: str, points: float, gid: str, **look: Any) -> Text:
    return figure.text(0, 1, text, fontsize=points, va="top", ha="left", gid=gid, linespacing=1.25, **look)


def _wrap(figure: Figure, renderer: RendererBase, text: str, room: float, points: float, weight: str = "normal") -> str:
    """Return text with line breaks, as wide as it is drawn; a word wider than the page is broken."""
    probe = figure.text(0, 0, "", fontsize=points, weight=weight)

    def fits(line: str) -> bool:
        probe.set_text(line)
        return bool(probe.get_window_extent(renderer).width <= 0.985 * room * DPI)

    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}".strip()
        if fits(joined):
            lines[-1] = joined
            continue
        rest = word
        while not fits(rest):
            head = next(n for n in range(len(rest) - 1, 0, -1) if n == 1 or fits(rest[:n]))
            lines.append(rest[:head])
            rest = rest[head:]
        lines.append(rest)
    probe.remove()
    return "\n".join(line for line in lines if line)


def _legend(figure: Figure, renderer: RendererBase, size: Size, lines: Sequence[Line2D], labels: Sequence[str], room: float) -> Legend:
    """Return the legend, top right, in as many columns as fit; many long names are cut until no more than eight rows are needed."""
    style: dict[str, Any] = {"loc": "upper right", "frameon": False, "borderpad": 0, "borderaxespad": 0, "handlelength": 2.4}
    style |= {"columnspacing": 1.4, "handletextpad": 0.5, "labelspacing": 0.35, "fontsize": size.text if len(labels) <= 8 else size.small}
    for most, columns in itertools.product((60, 40, 30, 22), range(min(len(labels), 8), 0, -1)):
        if len(labels) > 8 * columns and most > 22:
            continue
        legend = figure.legend(lines, shorten(labels, most), ncols=columns, **style)
        if legend.get_window_extent(renderer).width <= 0.985 * room * DPI:
            return legend
        legend.remove()
    return figure.legend(lines, shorten(labels, 22), ncols=1, **style)


# ---------------------------------------------------------------- annotations
def fit_titles(panels: Sequence[Axes], names: Sequence[str], counts: Sequence[str]) -> None:
    """Cut the names in the panels' titles to the panels' width; call after `finish`."""
    for axes, name, count in zip(panels, names, counts, strict=True):
        figure = axes.get_figure(root=True)
        assert figure is not None
        renderer = _renderer(figure)
        room = 1.08 * axes.get_window_extent(renderer).width
        most = len(name)
        while (width := axes.title.get_window_extent(renderer).width) > room and most > 8:
            most = max(8, min(most - 1, int(most * room / width)))
            axes.title.set_text(shorten([name], most)[0] + count)


def annotate(axes: Axes, size: Size, lines: Sequence[Line2D], at: tuple[float, float], text: str, detail: str) -> None:
    """Write beside a point of the axes, with an arrow to it, where no line is covered; call after `finish`.

    Parameters
    ----------
    axes : Axes
        The panel; the arrow points at `at` in its data.
    size : Size
        Measures of the page.
    lines : sequence of Line2D
        What must not be covered.
    at : tuple of float
        Where the arrow points.
    text, detail : str
        The words, and smaller ones beneath them (may be empty); in a narrow panel these break after the first.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = _renderer(figure)
    frame = axes.get_window_extent(renderer)
    words: dict[str, Any] = {"ha": "center", "va": "bottom", "linespacing": 1.15, "in_layout": False, "zorder": 5, "bbox": PAPER}
    main = axes.text(0, 0, text, transform=axes.transAxes, color=INK, fontsize=size.small, **words)
    small = axes.text(0, 0, detail, transform=axes.transAxes, color=FAINT, fontsize=max(6.0, 0.88 * size.small), **words)
    if small.get_window_extent(renderer).width > 0.6 * frame.width:
        small.set_text(detail.replace(" ", "\n", 1))
    upper, lower = main.get_window_extent(renderer), small.get_window_extent(renderer)
    below = 1.1 * lower.height if detail else 0.0
    box = np.array([max(upper.width, lower.width), upper.height + below])
    point = np.asarray(axes.transData.transform(at)) - frame.p0
    corner = _clear_corner(lines, frame, box, point, DPI * size.text / 72)
    foot = corner + np.array([box[0] / 2, below])
    place = foot / np.array(frame.size)
    start = (np.clip(point, corner, corner + box) - foot) / (upper.width, upper.height) + (0.5, 0.0)
    main.remove()
    arrow = {"arrowstyle": "-|>,head_width=0.16,head_length=0.36", "color": INK, "linewidth": 0.09 * size.text, "shrinkA": 1, "shrinkB": 1}
    arrow |= {"patchA": None, "relpos": (float(start[0]), float(start[1]))}
    words |= {"color": INK, "fontsize": size.small, "annotation_clip": False, "textcoords": "axes fraction", "arrowprops": arrow}
    axes.annotate(text, xy=at, xytext=(float(place[0]), float(place[1])), **words)
    if detail:
        small.set_position((float(place[0]), float(corner[1] / frame.height)))
    else:
        small.remove()


def _clear_corner(lines: Sequence[Line2D], frame: Bbox, box: Values, point: Values, em: float) -> Values:
    """Return the lower left corner (pixels within the frame) of the nearest place for a box that covers no line, nor the zero line."""
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
    return corner


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

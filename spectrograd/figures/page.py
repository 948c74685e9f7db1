"""The page around the panels: title, legend and caption take their own room, and nothing covers a line."""

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from spectrograd.figures.style import FAINT, Size, shorten

DPI = 150


def new_figure(size: Size) -> Figure:
    """Return an empty figure of the page's width; `finish` gives it its height."""
    return Figure(figsize=(size.width, size.height or 2 * size.width), dpi=DPI, layout="constrained", facecolor="white")


def finish(
    figure: Figure, size: Size, panels: float, title: str, lines: Sequence[Line2D], labels: Sequence[str], sentences: Sequence[str]
) -> ConstrainedLayoutEngine:
    """Set title and legend above the panels and the caption below, lay out the panels, and return the engine that did (`settle`).

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
    renderer = get_renderer(figure)
    edge = 0.6 * size.text / 72
    room = size.width - 2 * edge
    heading = _place(figure, _wrap(figure, renderer, title, room, size.title, "bold"), size.title, "title", weight="bold")
    caption = set_caption(figure, size, sentences)
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
    rect = (left, bottom / height, right - left, 1 - (top + bottom) / height)
    pad = 0.35 * size.text / 72
    engine = ConstrainedLayoutEngine(rect=rect, w_pad=pad, h_pad=pad, wspace=0.02, hspace=0.02)
    settle(figure, engine)
    return engine


def set_caption(figure: Figure, size: Size, sentences: Sequence[str]) -> Text:
    """Write the caption, in place of one that is there; a new one is placed by `finish`."""
    renderer = get_renderer(figure)
    room = size.width - 1.2 * size.text / 72
    text = _wrap(figure, renderer, ". ".join(sentences) + ".", room, size.small)
    for old in figure.texts:
        if old.get_gid() == "caption":
            old.set_text(text)
            return old
    return _place(figure, text, size.small, "caption", color=FAINT)


def settle(figure: Figure, engine: ConstrainedLayoutEngine) -> None:
    """Lay the panels out, then fix them, so that notes can be placed and a saved figure is what was measured."""
    for axes in figure.axes:
        axes.set_in_layout(True)
    figure.set_layout_engine(engine)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:  # the solver's last bits differ from process to process, and names in an SVG are made of them
        axes.set_position(Bbox.from_bounds(*(round(float(side), 5) for side in axes.get_position().bounds)))


def get_renderer(figure: Figure) -> RendererBase:
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


def fit_titles(panels: Sequence[Axes], names: Sequence[str], counts: Sequence[str]) -> None:
    """Cut the names in the panels' titles to the panels' width; call after `finish`."""
    for axes, name, count in zip(panels, names, counts, strict=True):
        figure = axes.get_figure(root=True)
        assert figure is not None
        renderer = get_renderer(figure)
        room = 1.08 * axes.get_window_extent(renderer).width
        most = len(name)
        while (width := axes.title.get_window_extent(renderer).width) > room and most > 8:
            most = max(8, min(most - 1, int(most * room / width)))
            axes.title.set_text(shorten([name], most)[0] + count)

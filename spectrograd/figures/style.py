"""How every figure looks: sizes, typography, colours, lines, bands. Nothing here knows a table."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from spectrograd.figures.axes import Values

RUN_COLORS = ("#00609F", "#E69F00", "#009E73", "#CC3311", "#9C5FB5", "#56B4E9", "#333333")
"""Okabe and Ito's order (the first three differ in lightness too), with a red, a purple and a grey that stand on white."""
RUN_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
RUN_LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
RED, BLUE = "#B2182B", "#2166AC"
INK, FAINT, GREY = "#222222", "#444444", "#777777"


@dataclass(frozen=True, slots=True)
class Size:
    """Measures of a page: inches and points. `height` is fixed (a slide) or 0: as high as its content."""

    width: float
    height: float
    panel: float
    title: float
    text: float
    small: float
    line: float
    marker: float
    columns: int

    @property
    def smallest(self) -> float:
        """Points of the smallest text; none is under 6."""
        return max(6.0, 0.88 * self.small)


SIZES = {
    "single": Size(3.35, 0, 1.75, 8.0, 7.0, 6.0, 1.0, 2.8, 1),
    "double": Size(7.0, 0, 2.6, 10.0, 8.0, 6.8, 1.3, 3.8, 4),
    "slide": Size(13.33, 7.5, 4.6, 20.0, 16.0, 12.5, 2.6, 8.0, 4),
}


FILES: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "spectrograd",
    "svg.id": None,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "path.simplify": True,
}
"""Settings that are read when a figure is written: text stays text, equal figures give equal bytes."""
MISSING_GLYPH = r"Glyph \d+ .* missing from font"
"""A run may be named in a script that DejaVu Sans lacks: an SVG shows it all the same, a PNG or PDF shows boxes."""


@contextmanager
def settings(chosen: dict[str, Any]) -> Iterator[None]:
    """Draw or write with these settings of matplotlib, and without its warnings of missing letters."""
    with warnings.catch_warnings(), matplotlib.rc_context(cast(Any, chosen)):
        warnings.filterwarnings("ignore", MISSING_GLYPH)
        yield


def rc(size: Size) -> dict[str, Any]:
    """Return matplotlib settings that depend on nobody's matplotlibrc; names are text as they stand, never formulas."""
    default = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith(("backend", "savefig", "interactive"))}
    return default | {
        "font.family": ["DejaVu Sans", "sans-serif"],
        "font.size": size.text,
        "text.parse_math": False,
        "axes.labelsize": size.text,
        "axes.titlesize": size.text,
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.08 * size.text,
        "axes.spines.top": False,
        "text.color": INK,
        "xtick.labelsize": size.small,
        "ytick.labelsize": size.small,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "xtick.major.width": 0.08 * size.text,
        "ytick.major.width": 0.08 * size.text,
        "xtick.minor.width": 0.06 * size.text,
        "xtick.major.size": 0.4 * size.text,
        "ytick.major.size": 0.4 * size.text,
        "xtick.minor.size": 0.25 * size.text,
        "legend.fontsize": size.text,
        **FILES,
    }


def run_style(index: int) -> dict[str, Any]:
    """Return colour, marker and line style of the run with this place in the legend; 350 differ."""
    n = len(RUN_COLORS)
    return {
        "color": RUN_COLORS[index % n],
        "marker": RUN_MARKERS[index % len(RUN_MARKERS)],
        "linestyle": RUN_LINES[index // n % len(RUN_LINES)],
    }


def pick_marks(axes: Axes, x: Values, values: Values, most: int = 16, phase: float = 0.0) -> list[int]:
    """Return which samples carry a marker: all of a few, else about `most` evenly over the width as drawn.

    The first, the last, and each that stands alone always do. `phase` in [0, 1) shifts the others, so that the markers of several
    lines do not pile up.
    """
    finite = np.flatnonzero(np.isfinite(values))
    if len(finite) <= 1.25 * most:
        return [int(i) for i in finite]
    shown = axes.xaxis.get_transform().transform(x[finite])
    gap = (shown[-1] - shown[0]) / most
    targets = shown[0] + gap * (np.arange(1, most - 1) + phase)
    chosen = finite[np.abs(shown[None, :] - targets[:, None]).argmin(axis=1)]
    return sorted({int(finite[0]), int(finite[-1]), *(int(i) for i in chosen), *(int(i) for i in _alone(values))})


def _alone(values: Values) -> NDArray[np.intp]:
    finite = np.r_[False, np.isfinite(values), False]
    return np.flatnonzero(finite[1:-1] & ~finite[:-2] & ~finite[2:])


def explain_marks(lines: Iterable[Line2D]) -> list[str]:
    """Return what a caption says of markers: that they are not all the samples, where that is so."""
    thinned = any(len(cast(list[int], line.get_markevery())) < np.isfinite(np.asarray(line.get_ydata(), float)).sum() for line in lines)
    return ["Lines join all checkpoints, of which some carry a marker"] if thinned else []


def draw_zero(axes: Axes) -> None:
    """Draw the zero line, under everything."""
    axes.axhline(0, color=GREY, linewidth=axes.spines["left"].get_linewidth(), zorder=0.9, label="zero")


def draw_curve(
    axes: Axes, x: Values, curve: Sequence[Values], look: dict[str, Any], size: Size, label: str, marks: tuple[int, float], shade: float
) -> Line2D:
    """Draw a line with its markers and its interval as a thin band; a sample that stands alone gets its interval as a bar.

    `curve` holds values, lower and upper ends; `marks` is how many markers the line has room for, and their shift (`pick_marks`);
    `shade` is the opacity of the band. The axis has its scale already.
    """
    values, low, high = curve
    bounded = np.isfinite(values) & np.isfinite(low) & np.isfinite(high)
    if bounded.any():
        axes.fill_between(x, low, high, where=bounded, color=look["color"], alpha=shade, linewidth=0, zorder=1.5)
        alone = [i for i in _alone(np.where(bounded, values, np.nan)) if bounded[i]]
        if alone:
            axes.vlines(x[alone], low[alone], high[alone], color=look["color"], alpha=0.5, linewidth=size.line, zorder=1.6)
    (line,) = axes.plot(
        x, values, **look, label=label, linewidth=size.line, markersize=size.marker, markevery=pick_marks(axes, x, values, *marks),
        markeredgecolor="white", markeredgewidth=0.12 * size.marker, zorder=2.5, solid_joinstyle="round",
    )  # fmt: skip
    return line


def shorten(names: Sequence[str], most: int) -> list[str]:
    """Return names cut in the middle to at most so many characters; uncut where that would make two of them equal."""

    def cut(name: str) -> str:
        name = " ".join(name.split())
        head = most // 3
        return name if len(name) <= most else f"{name[:head]}…{name[head + 1 - most :]}"

    short = [cut(name) for name in names]
    return short if len(set(short)) == len(set(names)) else [" ".join(name.split()) for name in names]

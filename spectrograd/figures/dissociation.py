"""Two-Timescale Dissociation: stable rank and spectral shape over depth against the training step, one panel a run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spectrograd.dynamics import find_crossings, headline
from spectrograd.figures import gradient
from spectrograd.figures.axes import (
    Scale,
    Values,
    acts_early,
    align_zeros,
    format_step,
    leaves_frame,
    set_step_axis,
    set_value_axis,
    value_limits,
)
from spectrograd.figures.curves import (
    AXIS_LABELS,
    Curve,
    Curves,
    NothingToDrawError,
    Options,
    describe,
    find_curves,
    gradient_label,
    metric_label,
    name_some,
)
from spectrograd.figures.notes import Note, annotate
from spectrograd.figures.page import finish, fit_titles, new_figure, set_caption
from spectrograd.figures.style import BLUE, RED, SIZES, Size, draw_curve, draw_zero, explain_marks
from spectrograd.results import Results

NAME = "dissociation"
TITLE = "Two-Timescale Dissociation: Transient Compression vs Persistent Spectral Shape"
NEEDS: Mapping[str, tuple[str, ...]] = {
    "gradients": (*gradient.NEEDS["gradients"], "early_mean", "late_mean"),
}
LEFT, RIGHT = "stable_rank", "alpha_rank"
LOOKS: dict[str, dict[str, Any]] = {
    LEFT: {"color": RED, "marker": "o", "linestyle": "-"},
    RIGHT: {"color": BLUE, "marker": "s", "linestyle": (0, (5, 1.2))},
}
UNITS = {"step": "step {}", "epoch": "epoch {}", "ordinal": "checkpoint {}", "tokens": "{} tokens"}
MOST_COMPANIONS = 12
COMPARABLE = 3.0
"""Ranges that differ by less than this factor share an axis, so that panels can be compared by eye."""


@dataclass(slots=True)
class Panel:
    """One run: its curves by metric, and what is needed to annotate it once the layout stands."""

    curves: dict[str, Curve]
    lines: list[tuple[Axes, dict[str, Line2D]]] = field(default_factory=list)

    @property
    def curve(self) -> Curve:
        """Either curve: they are of one run."""
        return next(iter(self.curves.values()))

    @property
    def x(self) -> Values:
        """The steps of both curves."""
        return np.concatenate([curve.x for curve in self.curves.values()])

    def limits(self, metric: str) -> tuple[float, float]:
        """Return the range of the curve of a metric."""
        return value_limits(self.curves[metric].extent)


def draw(results: Results, options: Options) -> Figure:
    """Return the figure: a panel a run, smallest first, and with it the same over logarithmic steps where most happens early.

    Raises
    ------
    UnknownNameError
        If the table lacks both metrics, or the group.
    NothingToDrawError
        If neither metric has a finite sample.
    """
    size, found = SIZES[options.size], _find_both(results, options)
    panels, kind = _pair(found), found[0].kind
    curves = [curve for panel in panels for curve in panel.curves.values()]
    early = 2 * sum(acts_early(c.x, c.column("gradient")) for c in curves) >= len(curves) and len(panels) <= MOST_COMPANIONS
    scales: list[Scale] = ["log"] if options.x == "log" else ["linear", "log"] if early else ["linear"]
    shape, cells = _arrange(len(panels), len(scales), size)
    limits, shared = _set_limits(panels)
    reach = _set_reach(panels)

    figure = new_figure(size)
    grid: Any = figure.subplots(*shape, squeeze=False)
    titled: list[tuple[Axes, Curve]] = []
    for place in np.ndindex(*shape):
        axes: Axes = grid[place]
        if place not in cells:
            axes.remove()
            continue
        number, scale = cells[place]
        panel = panels[number]
        is_last = place[1] + 1 == shape[1]
        set_step_axis(axes, reach[number], scales[scale], 3 if shape[1] > 2 or size.columns == 1 else 6)
        panel.lines.append((axes, _draw_panel(axes, panel, limits[number], place[1] == 0, is_last, shared, size)))
        is_lowest = scale + 1 == len(scales) and (place[0] + len(scales), place[1]) not in cells
        if is_lowest or len(scales) > 1:
            axes.set_xlabel(AXIS_LABELS[kind] + (" (log scale)" if scales[scale] == "log" else ""))
        if scale == 0:
            titled.append((axes, panel.curve))
            axes.set_title(panel.curve.name + panel.curve.count, pad=0.4 * size.text)

    entries = {f"{metric_label(metric)} gradient": line for panel in panels for _, lines in panel.lines for metric, line in lines.items()}
    if shape[0] <= 6:  # it takes the square of their number
        figure.align_ylabels(list(grid[:, 0]))
    height = shape[0] * (0.6 if size.columns > 1 else 0.85) * size.panel + 0.4
    sentences = describe(found, options.group)
    engine = finish(figure, size, height, TITLE, list(entries.values()), list(entries), sentences + _explain_axes(panels))
    fit_titles([axes for axes, _ in titled], [curve.name for _, curve in titled], [curve.count for _, curve in titled])
    annotate(figure, size, [note for panel in panels for note in _note_crossing(panel, kind)], engine)
    set_caption(figure, size, sentences + _explain_axes(panels))  # where notes needed room, fewer bands leave the frame
    return figure


def _find_both(results: Results, options: Options) -> list[Curves]:
    """Return the curves of the metrics that can be drawn; those left out of one are named with its metric."""
    found, reasons = [], []
    for metric in (LEFT, RIGHT):
        try:
            found.append(find_curves(results, metric, options))
        except NothingToDrawError as error:
            reasons.append(error)
    if not found:
        raise reasons[0]
    return found


def _pair(found: list[Curves]) -> list[Panel]:
    """Return a panel for each run and stack, smallest model first."""
    by_name: dict[tuple[float, str, str], Panel] = {}
    for curves in found:
        for curve in curves.curves:
            by_name.setdefault(curve.sort_key, Panel({})).curves[curves.metric] = curve
    return [by_name[key] for key in sorted(by_name)]


def _arrange(count: int, scales: int, size: Size) -> tuple[tuple[int, int], dict[tuple[int, int], tuple[int, int]]]:
    """Return rows and columns of the grid, and for each filled place its panel and scale."""
    if size.columns == 1:
        return (count, scales), {(k, s): (k, s) for k in range(count) for s in range(scales)}
    columns = count if count <= size.columns else 3 if count in (5, 6, 9) else size.columns
    places = {(k // columns * scales + s, k % columns): (k, s) for k in range(count) for s in range(scales)}
    return (math.ceil(count / columns) * scales, columns), places


def _set_limits(panels: list[Panel]) -> tuple[list[dict[str, tuple[float, float]]], bool]:
    """Return each panel's ranges, 0 at one height in all, and whether the left one is shared too; the right one always is."""

    def widest(ranges: list[tuple[float, float]]) -> tuple[float, float]:
        return min((low for low, _ in ranges), default=-1.0), max((high for _, high in ranges), default=1.0)

    own = [panel.limits(LEFT) if LEFT in panel.curves else None for panel in panels]
    known = [limit for limit in own if limit is not None]
    right = widest([panel.limits(RIGHT) for panel in panels if RIGHT in panel.curves])
    spans = [high - low for low, high in known]
    shared = not spans or max(spans) <= COMPARABLE * min(spans)
    lefts = [widest(known) if shared or limit is None else limit for limit in own]
    *aligned, right = align_zeros(*lefts, right)
    return [{LEFT: left, RIGHT: right} for left in aligned], shared


def _set_reach(panels: list[Panel]) -> list[Values]:
    """Return the steps that each panel's axis spans: those of all runs, unless their lengths are of different orders."""
    spans = [float(np.ptp(panel.x)) for panel in panels]
    if max(spans) <= COMPARABLE * min(spans):
        return [np.concatenate([panel.x for panel in panels])] * len(panels)
    return [panel.x for panel in panels]


def _draw_panel(
    axes: Axes, panel: Panel, limits: dict[str, tuple[float, float]], is_first: bool, is_last: bool, shared: bool, size: Size
) -> dict[str, Line2D]:
    """Draw both curves on two axes with one zero line, and return the lines by metric."""
    draw_zero(axes)
    lines = {}
    for metric, on in ((LEFT, axes), (RIGHT, axes.twinx())):
        left = metric == LEFT
        if metric in panel.curves:
            curve = panel.curves[metric]
            values = [curve.column(name) for name in ("gradient", "ci_low", "ci_high")]
            lines[metric] = draw_curve(
                on, curve.x, values, LOOKS[metric], size, f"{metric_label(metric)} gradient", (13, 0.0 if left else 0.5), 0.16
            )
        color, side = LOOKS[metric]["color"], "left" if left else "right"
        set_value_axis(on, limits[metric])
        on.spines[["left", "right", "top", "bottom"]].set_visible(False)
        on.spines[side].set(visible=True, color=color)
        named = (is_first or not shared) if left else is_last
        on.tick_params(axis="y", color=color, labelcolor=color, labelleft=left and named, labelright=not left and named)
        if is_first if left else is_last:
            on.set_ylabel(
                gradient_label(metric).replace(" (", "\n("), color=color, fontsize=size.small, labelpad=(0.3 if left else 0.7) * size.text
            )
    axes.spines["bottom"].set_visible(True)
    axes.set_zorder(1)  # above its twin, so that no band covers what is written
    axes.patch.set_visible(False)
    return lines


def _explain_axes(panels: list[Panel]) -> list[str]:
    """Return what a caption says of the axes as they are now."""
    beyond = []
    for panel in panels:
        ends = [(line.axes, panel.curves[metric]) for metric, line in panel.lines[0][1].items()]
        if any(on is not None and leaves_frame(on.get_ylim(), curve.column("ci_low"), curve.column("ci_high")) for on, curve in ends):
            beyond.append(panel.curve.name)
    clipped = [f"Axes follow the lines; bands leave the frame ({name_some(beyond)})"] if beyond else []
    marks = explain_marks(line for panel in panels for _, lines in panel.lines for line in lines.values())
    return ["One zero line serves both axes", *marks, *clipped]


def _note_crossing(panel: Panel, kind: str) -> list[Note]:
    """Return notes on the first confident zero crossing of the stable-rank gradient, with its bracket; none where there is none."""
    crossing = headline(find_crossings(panel.curves[LEFT].frame)) if LEFT in panel.curves else None
    if crossing is None:
        return []
    low, high = crossing.between
    text = f"{metric_label(LEFT)} crosses 0\n{UNITS[kind].format(format_step(crossing.step))}"
    detail = f"between {format_step(low)} and {format_step(high)}" if low < high else ""
    return [Note(axes, list(lines.values()), (crossing.step, 0.0), text, detail) for axes, lines in panel.lines]

"""Compression Gradient Evolution: one line a run, the gradient of a metric over depth against the training step."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spectrograd.figures.axes import Scale, acts_early, leaves_frame, set_step_axis, set_value_axis, value_limits
from spectrograd.figures.curves import AXIS_LABELS, Options, describe, find_curves, gradient_label, name_some
from spectrograd.figures.page import finish, new_figure
from spectrograd.figures.style import SIZES, draw_curve, draw_zero, explain_marks, run_style
from spectrograd.results import Results

NAME = "gradient"
TITLE = "Compression Gradient Evolution"
NEEDS: Mapping[str, tuple[str, ...]] = {
    "gradients": ("run", "stack", "step", "step_kind", "depth", "num_params", "group", "metric", "bands", "gradient", "ci_low", "ci_high"),
}


def draw(results: Results, options: Options) -> Figure:
    """Return the figure: one axis, and beside it the same over logarithmic steps where most happens in the first tenth.

    Raises
    ------
    UnknownNameError
        If the table lacks the metric or the group.
    NothingToDrawError
        If no curve has a finite sample.
    """
    found = find_curves(results, options.metric or "stable_rank", options)
    size, curves = SIZES[options.size], found.curves
    early = options.x != "log" and 2 * sum(acts_early(c.x, c.column("gradient")) for c in curves) >= len(curves)
    scales: list[Scale] = ["log"] if options.x == "log" else ["linear", "log"] if early else ["linear"]
    stacked = len(scales) > 1 and size.columns == 1

    figure = new_figure(size)
    shape = (len(scales), 1) if stacked else (1, len(scales))
    panels: list[Axes] = list(figure.subplots(*shape, sharey=True, squeeze=False).flat)
    limits = value_limits(np.concatenate([curve.extent for curve in curves]))
    for axes, scale in zip(panels, scales, strict=True):
        axes.spines["right"].set_visible(False)
        draw_zero(axes)
        set_step_axis(axes, np.concatenate([curve.x for curve in curves]), scale, 5 if len(panels) > 1 else 6)
        axes.set_xlabel(AXIS_LABELS[found.kind] + (" (log scale)" if scale == "log" else ""))
        set_value_axis(axes, limits)
        lines = []
        for i, curve in enumerate(curves):
            values = [curve.column(name) for name in ("gradient", "ci_low", "ci_high")]
            marks, shade = (14, i / len(curves)), max(0.03, 0.16 * min(1.0, 4 / len(curves)))
            lines.append(draw_curve(axes, curve.x, values, run_style(i), size, curve.name + curve.count, marks, shade))
        if axes is panels[0] or stacked:
            axes.set_ylabel(gradient_label(found.metric))
    sentences = describe([found], options.group) + explain_marks(lines)
    beyond = [c.name for c in curves if leaves_frame(limits, c.column("ci_low"), c.column("ci_high"))]
    if beyond:
        sentences.append(f"Axes follow the lines; bands leave the frame ({name_some(beyond)})")
    finish(figure, size, size.panel * (2 if stacked else 1) + 0.3, TITLE, lines, [c.name + c.count for c in curves], sentences)
    return figure

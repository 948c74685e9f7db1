"""The axes of a figure: number formats, step axes that keep 0 on a logarithm, ranges that share a zero line."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from numpy.typing import NDArray

from spectrograd.records import format_count

Values = NDArray[np.float64]
Scale = Literal["linear", "log"]


# ---------------------------------------------------------------- numbers
def format_step(value: float) -> str:
    """Return a step with its thousands marked, in any locale: `1,712`, `2.5`, `12.5M`."""
    if abs(value) >= 1e6:
        return format_count(value)
    return f"{value:,.1f}" if abs(value) < 20 and abs(value - round(value)) > 0.05 else f"{value:,.0f}"


class SignedFormatter(ticker.Formatter):
    """Tick labels with a true minus, a point in any locale, and as many decimals as the ticks need."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of one value by itself."""
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks, with the decimals that tell them apart."""
        locs = np.unique(np.asarray(values, dtype=float))
        gap = float(np.min(np.diff(locs))) if len(locs) > 1 else float(np.abs(locs).max(initial=0.0))
        decimals = next((d for d in range(6) if abs(gap * 10**d - round(gap * 10**d)) < 1e-6 * gap * 10**d), 6)
        pattern = ".1e" if gap < 1e-4 or np.abs(locs).max(initial=0.0) >= 1e6 else f",.{decimals}f"
        return ["0" if abs(x) <= 1e-9 * gap else f"{x:{pattern}}".replace("-", "−") for x in values]


# ---------------------------------------------------------------- the axes
def set_step_axis(axes: Axes, x: Values, scale: Scale, most_ticks: int) -> None:
    """Set scale, limits and ticks of a step axis; a logarithmic one keeps 0, linear up to the first positive step."""
    low, high = float(x.min()), float(x.max())
    positive = x[x > 0]
    if scale == "log" and len(positive) and low < high:
        first = float(positive.min())
        axes.set_xscale("symlog", linthresh=first, linscale=0.4, subs=[])
        powers = range(math.floor(math.log10(first)), math.ceil(math.log10(high)) + 1)
        within = [
            value for value in (m * 10.0**k for k in powers for m in range(1, 10)) if first * (1 - 1e-9) <= value <= high * (1 + 1e-9)
        ]
        decades = [value for value in within if round(math.log10(value), 9).is_integer()]
        if len(decades) < 2:
            decades = [value for value in within if f"{value:e}"[0] in "125"] or [first]
        elif decades[0] > 2.5 * first:
            decades.insert(0, first)
        decades = decades[:: math.ceil(len(decades) / max(most_ticks, 4))]
        axes.xaxis.set_major_locator(ticker.FixedLocator([*([0.0] if low <= 0 else []), *decades]))
        axes.xaxis.set_minor_locator(ticker.FixedLocator(within))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: format_count(value)))
    else:
        if low == high:
            axes.xaxis.set_major_locator(ticker.FixedLocator([low]))
        else:
            axes.xaxis.set_major_locator(ticker.MaxNLocator(most_ticks, integer=True, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: format_step(value)))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    transform = axes.xaxis.get_transform()
    start, stop = transform.transform(np.array([low, high]))
    pad = 0.035 * (stop - start) or 1.0
    axes.set_xlim(*transform.inverted().transform(np.array([start - pad, stop + pad])))


def set_value_axis(axes: Axes, limits: tuple[float, float]) -> None:
    """Set limits and ticks of an axis of numbers."""
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(SignedFormatter())


def value_limits(values: Values, margin: float = 0.07) -> tuple[float, float]:
    """Return limits that hold these values and 0, with a margin; NaN does not count."""
    finite = values[np.isfinite(values)]
    low, high = min(0.0, float(finite.min(initial=0.0))), max(0.0, float(finite.max(initial=0.0)))
    pad = margin * (high - low) or 1.0
    return low - pad, high + pad


def align_zeros(*ranges: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the ranges, each widened as little as can be, with 0 at one height in all, so that one zero line serves them."""
    best, aligned = math.inf, list(ranges)
    for share in np.linspace(0.02, 0.98, 97):
        spans = [max(-low / share, high / (1 - share)) for low, high in ranges]
        waste = sum(span / (high - low) for span, (low, high) in zip(spans, ranges, strict=True))
        if waste < best - 1e-12:
            best, aligned = waste, [(-float(share) * span, (1 - float(share)) * span) for span in spans]
    return aligned


def acts_early(x: Values, values: Values) -> bool:
    """Tell whether a curve does most of what it does in the first tenth of the steps, and was sampled there.

    True where the samples after the first tenth span less than half of what the whole curve spans (which noise does not hide), or
    less than half of all ups and downs lie among them.
    """
    keep = np.isfinite(values)
    x, values = x[keep], values[keep]
    if len(x) < 8:
        return False
    late = x > x[0] + 0.1 * (x[-1] - x[0])
    if (~late).sum() < 4 or not late.any():
        return False
    span, path = float(np.ptp(values)), np.abs(np.diff(values))
    return float(np.ptp(values[late])) < 0.5 * span or float(path[late[1:]].sum()) < 0.5 * float(path.sum())


def leaves_frame(limits: tuple[float, float], low: Values, high: Values) -> bool:
    """Tell whether a band goes beyond the limits of its axis."""
    ends = np.concatenate([low, high])
    ends = ends[np.isfinite(ends)]
    return bool(len(ends)) and bool(ends.min() < limits[0] or ends.max() > limits[1])

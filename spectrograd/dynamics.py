"""Gradients over steps → events: crossings, peaks and troughs, where a curve settles, where it ends."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spectrograd.errors import UnknownNameError

ZERO = 1e-6
"""A gradient of at most this fraction of |early| + |late| is zero."""
SETTLED = 0.05
"""A curve has settled from where it stays under this fraction of its largest magnitude."""
LATER_SAMPLES = 3
"""So many samples must follow for a curve to count as settled."""

Signs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A change of sign: its step, by linear interpolation, and the samples that bracket it.

    `confident`: one of an odd number of crossings between two samples whose intervals exclude 0 on opposite sides, the
    middle one; `between` are those two samples then, else the neighbouring ones.
    """

    step: float
    direction: Literal["up", "down"]
    confident: bool
    between: tuple[int, int]
    spans_missing: bool
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "between": list(self.between)}


@dataclass(frozen=True, slots=True)
class Extreme:
    """A value of a curve and its step, with its interval (NaN without one)."""

    value: float
    step: int
    ci_low: float
    ci_high: float


def select_curve(gradients: pd.DataFrame, run: str, metric: str, group: str, stack: str | None = None) -> pd.DataFrame:
    """Return one run's curve, in order of its steps.

    Rows without a step are left out. Of several kinds of step the most frequent is taken; of several stacks the one asked
    for, else `decoder`, else the first by name; of several seeds the mean over them; of several stages all, in order.

    Raises
    ------
    UnknownNameError
        If the table has no such run, metric, group or stack.
    """
    curve = gradients
    for column, name in (("run", run), ("metric", metric), ("group", group)):
        curve = curve[curve[column] == name]
        if curve.empty:
            raise UnknownNameError(f"cannot find {column} {name!r} of run {run!r} in the gradients table")
    stacks = sorted(curve["stack"].dropna().unique())
    if stack is not None and stack not in stacks:
        raise UnknownNameError(f"cannot find stack {stack!r} of run {run!r}: its stacks are {', '.join(stacks) or 'not named'}")
    if stacks:
        curve = curve[curve["stack"] == (stack or ("decoder" if "decoder" in stacks else stacks[0]))]
    if curve["seed"].nunique() > 1:
        curve = curve[curve["seed"].isna()]
    curve = curve[curve["step"].notna()]
    if curve["step_kind"].nunique() > 1:
        curve = curve[curve["step_kind"] == curve["step_kind"].mode()[0]]
    return curve.sort_values("step", ignore_index=True, kind="stable")


def find_crossings(curve: pd.DataFrame) -> list[Crossing]:
    """Return every change of sign of a curve, in order of steps.

    Between neighbouring samples of opposite sign the step is interpolated linearly; an exact zero between two signs is one
    crossing at that sample, a run of zeros one at its middle, a touch without a change of sign none. Samples that are
    undefined are passed over and the crossing says so (`spans_missing`). Between two successive samples whose intervals
    exclude 0 on opposite sides the middle crossing is confident. Where no sample has an interval every sign counts.
    """
    steps, gradient = curve["step"].to_numpy(np.int64), curve["gradient"].to_numpy(np.float64)
    signs, defined = _signs(curve), np.isfinite(gradient)
    found: list[Crossing] = []
    neighbours: list[tuple[int, int]] = []
    for a, b in pairwise(np.flatnonzero(signs)):
        if signs[a] == signs[b]:
            continue
        zeros = [i for i in range(a + 1, b) if defined[i]]
        if zeros:
            at = (steps[zeros[0]] + steps[zeros[-1]]) / 2
        else:
            at = steps[a] + (steps[b] - steps[a]) * gradient[a] / (gradient[a] - gradient[b])
        direction: Literal["up", "down"] = "up" if signs[b] > 0 else "down"
        missing = not bool(defined[a:b].all())
        found.append(Crossing(float(at), direction, False, (int(steps[a]), int(steps[b])), missing))
        neighbours.append((int(a), int(b)))
    return _judge(found, neighbours, curve, signs)


def _signs(curve: pd.DataFrame) -> Signs:
    """Return −1, 0 or 1 for each sample; 0 also where it is undefined."""
    gradient = curve["gradient"].to_numpy(np.float64)
    scale = curve["early_mean"].abs().to_numpy(np.float64) + curve["late_mean"].abs().to_numpy(np.float64)
    zero = ~np.isfinite(gradient) | (np.abs(gradient) <= ZERO * np.nan_to_num(scale)) | (gradient == 0)
    return np.where(zero, 0, np.sign(np.nan_to_num(gradient))).astype(np.int64)


def _judge(found: list[Crossing], neighbours: list[tuple[int, int]], curve: pd.DataFrame, signs: Signs) -> list[Crossing]:
    """Return the crossings with those marked that lie between samples of confident and opposite sign.

    `neighbours` holds, for each crossing, the places in the curve of the samples around it.
    """
    low, high = curve["ci_low"].to_numpy(np.float64), curve["ci_high"].to_numpy(np.float64)
    if not np.any(np.isfinite(low) & np.isfinite(high)):
        return [replace(crossing, confident=True, note="no interval") for crossing in found]
    steps, result = curve["step"].to_numpy(np.int64), list(found)
    sure = np.flatnonzero((signs != 0) & ((low > 0) | (high < 0)))
    for a, b in pairwise(sure):
        if signs[a] != signs[b]:
            inside = [i for i, (start, end) in enumerate(neighbours) if a <= start and end <= b]
            middle = inside[len(inside) // 2]
            result[middle] = replace(result[middle], confident=True, between=(int(steps[a]), int(steps[b])))
    return result


def headline(crossings: Sequence[Crossing]) -> Crossing | None:
    """Return the first confident crossing, if there is one."""
    return next((crossing for crossing in crossings if crossing.confident), None)


def find_peak(curve: pd.DataFrame) -> Extreme | None:
    """Return the largest gradient of a curve, the first of equals; None where none is defined."""
    return _extreme(curve, 1.0)


def find_trough(curve: pd.DataFrame) -> Extreme | None:
    """Return the smallest gradient of a curve, the first of equals; None where none is defined."""
    return _extreme(curve, -1.0)


def find_final(curve: pd.DataFrame) -> Extreme | None:
    """Return the last sample of a curve with its interval; its value is NaN where it is undefined."""
    return None if curve.empty else _sample(curve, len(curve) - 1)


def find_settled(curve: pd.DataFrame) -> int | None:
    """Return the step from which |gradient| stays under 5 % of its largest value.

    None where that is not identified: fewer than three samples follow, or one of them is undefined.
    """
    size = curve["gradient"].abs().to_numpy(np.float64)
    if not np.any(np.isfinite(size)) or not np.nanmax(size) > 0:
        return None
    above = np.flatnonzero(~(size < SETTLED * np.nanmax(size)))
    first = int(above[-1]) + 1
    return int(curve["step"].iloc[first]) if len(size) - first > LATER_SAMPLES else None


def _extreme(curve: pd.DataFrame, sign: float) -> Extreme | None:
    gradient = sign * curve["gradient"].to_numpy(np.float64)
    return _sample(curve, int(np.nanargmax(gradient))) if np.any(np.isfinite(gradient)) else None


def _sample(curve: pd.DataFrame, i: int) -> Extreme:
    value, low, high = (float(curve[name].to_numpy(np.float64)[i]) for name in ("gradient", "ci_low", "ci_high"))
    return Extreme(value, int(curve["step"].iloc[i]), low, high)

"""Which curves a figure draws: rows of the gradients table, one frame a run and stack, over one kind of step."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from spectrograd.dynamics import select_curve
from spectrograd.errors import SpectrogradError, UnknownNameError
from spectrograd.figures.axes import Values
from spectrograd.records import GROUPS, format_count
from spectrograd.results import Results

AXIS_LABELS = {"step": "Training Step", "epoch": "Epoch", "ordinal": "Checkpoint", "tokens": "Tokens"}
METRICS = {
    "stable_rank": ("SR", "SR: stable rank Σσ²/σ₁²"),
    "alpha_rank": ("alpha_rank", "alpha_rank: −slope of ln σ_j on ln j"),
}
"""Of the study's two metrics, what an axis calls it and what a caption says; any other goes by its column's name."""
_BANDS = {"thirds": "max(1,\u00a0L//3)", "halves": "max(1,\u00a0L//2)", "quarters": "max(1,\u00a0L//4)"}


class NothingToDrawError(SpectrogradError):
    """The tables hold nothing that this figure could show; the text says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a reader may choose about a figure. None of it changes a number.

    Attributes
    ----------
    metric : str, optional
        Column that `gradient` draws, `stable_rank` by default; `dissociation` always draws its two.
    group : str
        Group of matrices, as the gradients table names it.
    x : {"linear", "log", "tokens"}
        Steps, steps on a logarithmic axis that keeps 0, or tokens as the trainer logged them.
    size : {"single", "double", "slide"}
        A column of 3.35 inches, a page of 7 inches, a slide of 13.33 × 7.5.
    """

    metric: str | None = None
    group: str = "all"
    x: Literal["linear", "log", "tokens"] = "linear"
    size: Literal["single", "double", "slide"] = "double"

    def __post_init__(self) -> None:
        for name, allowed in (("x", ("linear", "log", "tokens")), ("size", ("single", "double", "slide"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: its samples in order, and the row of the table that says whose it is."""

    run: str
    stack: str | None
    frame: pd.DataFrame
    over_seeds: bool = False

    @property
    def name(self) -> str:
        """The run, and the stack where the run has several, in characters that can be written to any file."""
        name = self.run if self.stack is None else f"{self.run} {self.stack}"
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in name)

    @property
    def count(self) -> str:
        """` (30.4M)`, or nothing where the number of parameters is unknown."""
        known = self.frame["num_params"].dropna()
        return f" ({format_count(int(known.iloc[0]))})" if len(known) else ""

    @property
    def sort_key(self) -> tuple[float, str, str]:
        """By size, then by name."""
        known = self.frame["num_params"].dropna()
        return float(known.iloc[0]) if len(known) else np.inf, self.run, self.stack or ""

    def column(self, name: str) -> Values:
        """Return a column as floats; what is not finite is NaN, so that a line breaks there."""
        values = self.frame[name].to_numpy(dtype=float, na_value=np.nan)
        return np.where(np.isfinite(values), values, np.nan)

    @property
    def x(self) -> Values:
        """Steps (epochs, checkpoints, tokens)."""
        return self.column("step")

    @property
    def extent(self) -> Values:
        """What an axis must hold: the line, and the interval too where the line is a single point."""
        values = self.column("gradient")
        alone = np.isfinite(values).sum() == 1
        return np.concatenate([values, self.column("ci_low"), self.column("ci_high")]) if alone else values

    @property
    def drawable(self) -> bool:
        """Whether any sample is finite."""
        return bool(np.isfinite(self.column("gradient")).any())


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one metric, what their x axis counts, and what was left out."""

    metric: str
    kind: str
    curves: tuple[Curve, ...]
    left_out: tuple[str, ...]


def find_curves(results: Results, metric: str, options: Options) -> Curves:
    """Return the curves of a metric, smallest model first, over the kind of step that most runs have.

    Raises
    ------
    UnknownNameError
        If the table has no such metric or group.
    NothingToDrawError
        If no curve has a finite sample.
    """
    table = results.gradients
    if table.empty:
        raise NothingToDrawError("nothing to draw: the gradients table is empty; a gradient needs a run with at least two layers")
    _check_name("metric", metric, table["metric"].unique())
    _check_name("group", options.group, table["group"].unique())
    rows = table[(table["metric"] == metric) & (table["group"] == options.group)]
    if rows.empty:
        raise NothingToDrawError(f"nothing to draw: no run has {metric} for the group {options.group}")
    placed = rows[rows["step"].notna()]
    if placed.empty:
        raise NothingToDrawError(f"nothing to draw: no checkpoint of {name_some(rows['run'].unique())} says at which step it was saved")
    runs_by_kind = placed.groupby("step_kind")["run"].nunique()
    kind = max(("step", "epoch", "ordinal"), key=lambda k: (int(runs_by_kind.get(k, 0)), k == "step", k == "epoch"))
    placed = placed[placed["step_kind"] == kind]
    other = sorted(set(rows["run"]) - set(placed["run"]))
    left_out = [f"{name_some(other)} ({'no step' if len(runs_by_kind) == 1 else 'no step of this kind'})"] if other else []

    curves: list[Curve] = []
    dropped: list[Curve] = []
    unlogged: list[str] = []
    for run in placed["run"].unique():
        stacks = placed.loc[placed["run"] == run, "stack"]
        for stack in [None if pd.isna(s) else s for s in stacks.unique()]:
            own = placed[placed["stack"].isna() if stack is None else placed["stack"] == stack]
            frame = select_curve(own, run, metric, options.group, stack)
            if options.x == "tokens":
                frame = _over_tokens(results, run, frame)
            curve = Curve(run, stack, frame, over_seeds=placed.loc[placed["run"] == run, "seed"].nunique() > 1)
            if frame.empty:
                unlogged.append(curve.name)
                continue
            (curves if curve.drawable else dropped).append(curve)
    if not curves:
        if unlogged:
            raise NothingToDrawError(f"nothing to draw over tokens: no token counts are known for {name_some(unlogged)}; draw over steps")
        why = next((note for curve in dropped for note in curve.frame["note"] if note), "")
        reason = f" ({why})" if why else "; a gradient needs at least two layers"
        raise NothingToDrawError(f"nothing to draw: every {metric} gradient of {name_some(c.name for c in dropped)} is undefined{reason}")
    if dropped:
        left_out.append(f"{name_some(c.name for c in dropped)} (undefined)")
    if unlogged:
        left_out.append(f"{name_some(unlogged)} (no token counts)")
    return Curves(metric, "tokens" if options.x == "tokens" else kind, tuple(sorted(curves, key=lambda c: c.sort_key)), tuple(left_out))


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    names = sorted({*known, *(GROUPS if what == "group" else ())})
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise UnknownNameError(f"cannot draw {what} {name!r}: the gradients table does not have it; {hint}")


def name_some(names: Iterable[str]) -> str:
    """Return three names, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _over_tokens(results: Results, run: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples whose step a log gives tokens for, these in place of the step; nothing is interpolated."""
    tokens: dict[int, float] = {}
    for name in ("checkpoints", "history"):
        if results.has(name):
            table: pd.DataFrame = getattr(results, name)
            table = table[(table["run"] == run) & table["tokens"].notna() & table["step"].notna()]
            tokens |= dict(zip(table["step"].astype(int), table["tokens"].astype(float), strict=True))
    frame = frame.assign(step=[tokens.get(int(step), np.nan) for step in frame["step"]])
    return frame[frame["step"].notna()].sort_values("step", kind="stable", ignore_index=True)


# ---------------------------------------------------------------- words
def metric_label(metric: str) -> str:
    """Return what an axis calls the metric."""
    return METRICS[metric][0] if metric in METRICS else metric


def gradient_label(metric: str) -> str:
    """Return the label of a gradient's axis."""
    return f"{metric_label(metric)} Gradient (late − early)"


def describe(found: Iterable[Curves], group: str) -> list[str]:
    """Return the sentences that a caption owes its reader: metrics, gradient, bands, interval, group, and what is missing."""
    shown = list(found)
    frame = pd.concat([curve.frame for curves in shown for curve in curves.curves], ignore_index=True)
    sentences = [METRICS[c.metric][1] if c.metric in METRICS else f"{c.metric}: as spectrograd defines it (columns.md)" for c in shown]
    bands = [_BANDS.get(name, f"max(1, {name})" if not name.isdigit() else name) for name in map(str, frame["bands"].dropna().unique())]
    cut = " or ".join(bands) or "few"
    sentences.append(f"Gradient: over depth, mean of the last b of L layers − mean of the first b, b\u00a0=\u00a0{cut}{_counts(shown[0])}")
    if np.isfinite(frame["ci_low"].to_numpy(dtype=float, na_value=np.nan)).any():
        seeds = {curve.over_seeds for curves in shown for curve in curves.curves}
        units = " or ".join(word for word, some in (("layers", False), ("seeds", True)) if some in seeds)
        sentences.append(f"Shaded: 95 % interval, Student's t over {units}")
    else:
        sentences.append("No interval is known")
    members = {"all": "all attention, MLP and SSM matrices", **{name: f"{name} matrices" for name in ("attn", "mlp", "ssm")}}
    roles = GROUPS.get(group, (group,))
    sentences.append(f"Group {group}: {members.get(group, ' and '.join(roles) + ' matrices')}")
    left_out = dict.fromkeys(text for curves in shown for text in curves.left_out)
    if left_out:
        sentences.append(f"Not drawn: {'; '.join(left_out)}")
    return sentences


def _counts(found: Curves) -> str:
    """Return how many layers a band has, for up to four runs."""
    if len(found.curves) > 4:
        return ""
    parts = []
    for curve in found.curves:
        row = curve.frame.dropna(subset=["num_early", "num_late", "depth"])
        if row.empty:
            return ""
        early, late, depth = (int(row[name].iloc[-1]) for name in ("num_early", "num_late", "depth"))
        parts.append(f"{early}\u00a0of\u00a0{depth}" if early == late else f"{late} and {early}\u00a0of\u00a0{depth}")
    return f" ({', '.join(parts)})"

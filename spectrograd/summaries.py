"""Events → the tables that `compare` prints."""

import difflib
import math
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import pandas as pd

from spectrograd.dynamics import Extreme, find_crossings, find_final, find_peak, find_settled, find_trough, headline, select_curve
from spectrograd.errors import TableError, UnknownNameError
from spectrograd.records import format_count, join_notes
from spectrograd.results import Results

STEEPNESS = "alpha_rank"
COMPRESSION = "stable_rank"
WHOLE = ("depth", "num_params", "checkpoints", "sr_trough_step", "sr_peak_step", "sr_settled_step")


def summarize_runs(results: Results, group: str = "all") -> pd.DataFrame:
    """Return one row a run, in order of size: what it is, and the events of its two gradients.

    Columns: run, depth, width, num_params, checkpoints (samples of the curve), step_kind; of the gradient of stable rank
    sr_trough, sr_peak, each with its step, crossings (as JSON has them), sr_crossing_step and sr_crossing_between (the
    headline), sr_settled_step, sr_final with its interval; alpha_final (of `alpha_rank`) with its interval; notes. Whole
    numbers are nullable. Which rows make a run's curve is told at `dynamics.select_curve`; what it leaves out is noted.

    Raises
    ------
    UnknownNameError
        If no run has this group.
    TableError
        If no run has a gradient at all.
    """
    gradients = results.gradients
    if gradients.empty:
        raise TableError("cannot compare runs: the gradients table is empty; a gradient needs matrices that belong to layers")
    rows = [_summarize(gradients, str(run), group) for run in gradients["run"].unique()]
    known = [row for row in rows if row is not None]
    if not known:
        groups = sorted(gradients["group"].unique())
        near = difflib.get_close_matches(group, groups, 1)
        hint = f"did you mean {near[0]}?" if near else f"groups are {', '.join(groups)}"
        raise UnknownNameError(f"cannot compare group {group!r}: no run has it; {hint}")
    frame = pd.DataFrame(known)
    widths: dict[Any, Any] = {}
    if results.has("checkpoints"):
        known_widths = results.checkpoints.dropna(subset=["width"]).groupby("run")["width"]
        widths = {run: width.mode().iloc[-1] for run, width in known_widths}
    frame.insert(2, "width", pd.Series([widths.get(run) for run in frame["run"]], dtype="Int32"))
    return frame.astype(dict.fromkeys(WHOLE, "Int64")).sort_values(["num_params", "run"], ignore_index=True)


def _summarize(gradients: pd.DataFrame, run: str, group: str) -> dict[str, Any] | None:
    here = gradients[(gradients["run"] == run) & (gradients["group"] == group)]
    if here.empty:
        return None
    rank = _select(here, run, COMPRESSION, group)
    alpha = _select(here, run, STEEPNESS, group)
    shown = next((curve for curve in (rank, alpha, here) if len(curve)), here)
    shown = shown[shown["gradient"].notna()] if shown["gradient"].notna().any() else shown
    crossings = find_crossings(rank)
    first = headline(crossings)
    return {
        "run": run,
        "depth": shown["depth"].iloc[0],
        "num_params": shown["num_params"].iloc[0],
        "checkpoints": len(rank),
        "step_kind": rank["step_kind"].iloc[0] if len(rank) else None,
        **_name("sr_trough", find_trough(rank), step=True),
        **_name("sr_peak", find_peak(rank), step=True),
        "sr_crossing_step": first.step if first else math.nan,
        "sr_crossing_between": list(first.between) if first else None,
        "sr_settled_step": find_settled(rank),
        **_name("sr_final", find_final(rank), interval=True),
        **_name("alpha_final", find_final(alpha), interval=True),
        "crossings": [crossing.as_dict() for crossing in crossings],
        "notes": join_notes(*_explain(rank), *_explain_choice(here[here["metric"] == COMPRESSION], rank)),
    }


def _select(here: pd.DataFrame, run: str, metric: str, group: str) -> pd.DataFrame:
    return select_curve(here, run, metric, group) if (here["metric"] == metric).any() else here.iloc[:0]


def _name(name: str, event: Extreme | None, step: bool = False, interval: bool = False) -> dict[str, float | int | None]:
    columns: dict[str, float | int | None] = {name: event.value if event else math.nan}
    if step:
        columns[f"{name}_step"] = event.step if event else None
    if interval:
        columns |= {f"{name}_ci_low": event.ci_low if event else math.nan, f"{name}_ci_high": event.ci_high if event else math.nan}
    return columns


def _explain(curve: pd.DataFrame) -> Iterator[str]:
    """Yield what keeps events from being identified."""
    if len(curve) < 2:
        yield "a crossing needs at least two checkpoints"
    if len(curve) and (curve["note"] == "one layer").all():
        yield "one layer: no gradient over depth"
        return
    undefined = int(curve["gradient"].isna().sum())
    if undefined:
        yield f"undefined at {undefined} of {len(curve)} checkpoints"
    if undefined < len(curve) and curve["ci_low"].isna().all():
        yield "no interval"


def _explain_choice(rows: pd.DataFrame, curve: pd.DataFrame) -> Iterator[str]:
    """Yield which of a run's rows its curve was made of, where it has others."""
    stacks = sorted(rows["stack"].dropna().unique())
    if len(stacks) > 1 and len(curve):
        yield f"stack {curve['stack'].iloc[0]} of {', '.join(stacks)}"
    left = rows
    if rows["seed"].nunique() > 1:
        yield f"mean over {rows['seed'].nunique()} seeds"
        left = rows[rows["seed"].notna()]
    kinds = left["step_kind"].where(left["step"].notna())
    if len(curve):
        kinds = kinds[kinds != curve["step_kind"].iloc[0]]
    without, other = left["checkpoint"][left["step"].isna()].nunique(), left.loc[kinds.dropna().index, "checkpoint"].nunique()
    if without:
        yield f"{without} without a step left out"
    if other and len(curve):
        yield f"{other} at another kind of step left out"


def to_records(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as JSON has them: NaN and missing values are None. Keys are the columns of `summarize_runs`."""
    return [{str(key): _plain(value) for key, value in row.items()} for row in summary.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, str)) or value is None:
        return value
    return None if pd.isna(value) else int(value) if isinstance(value, Integral) else float(value)


def to_display(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the summary as text for people: one row a run, numbers rounded, intervals in brackets."""
    return pd.DataFrame([_show(row) for row in to_records(summary)])


def _show(row: dict[str, Any]) -> dict[str, str]:
    count = f" ({format_count(row['num_params'])})" if row["num_params"] else ""
    return {
        "Run": f"{row['run']}{count}",
        "Depth": _number(row["depth"]),
        "Width": _number(row["width"]),
        "Checkpoints": _number(row["checkpoints"]),
        "SR gradient trough": _at(row["sr_trough"], row["sr_trough_step"]),
        "SR gradient peak": _at(row["sr_peak"], row["sr_peak_step"]),
        "SR gradient crosses 0": _cross(row),
        "SR gradient settled": "not identified" if row["sr_settled_step"] is None else f"step {row['sr_settled_step']:,}",
        "SR gradient, final": _interval(row, "sr_final"),
        "alpha_rank gradient, final": _interval(row, "alpha_final"),
        "Notes": row["notes"],
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}"


def _short(value: float | None) -> str:
    if value is None:
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text.replace("-", "−")


def _at(value: float | None, step: int | None) -> str:
    return "–" if value is None or step is None else f"{_short(value)} at {step:,}"


def _cross(row: dict[str, Any]) -> str:
    if row["checkpoints"] < 2 or row["sr_trough"] is None:  # nothing that could cross
        return "–"
    if row["sr_crossing_step"] is None:
        unsure = len(row["crossings"])
        return f"not confidently ({unsure} within the interval)" if unsure else "no"
    low, high = row["sr_crossing_between"]
    return f"step {row['sr_crossing_step']:,.0f} (between {low:,} and {high:,})"


def _interval(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_ci_low"], row[f"{name}_ci_high"]
    return _short(row[name]) + ("" if low is None or high is None else f" [{_short(low)}, {_short(high)}]")

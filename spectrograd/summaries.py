"""Events → the tables that `compare` prints."""

import math
from typing import Any

import pandas as pd

from spectrograd.dynamics import Extreme, find_crossings, find_final, find_peak, find_settled, find_trough, headline, select_curve
from spectrograd.errors import UnknownNameError
from spectrograd.records import format_count
from spectrograd.results import Results

STEEPNESS = "alpha_rank"
COMPRESSION = "stable_rank"


def summarize_runs(results: Results, group: str = "all") -> pd.DataFrame:
    """Return one row a run, in order of size: what it is, and the events of its two gradients.

    Columns: run, depth, width, num_params, checkpoints (samples of the curve), step_kind; of the gradient of stable rank
    sr_trough, sr_peak, each with its step, crossings (as JSON has them), sr_crossing_step and sr_crossing_between (the
    headline), sr_settled_step, sr_final with its interval; alpha_final (of `alpha_rank`) with its interval; notes.

    Raises
    ------
    UnknownNameError
        If no run has this group.
    """
    gradients = results.gradients
    rows = [_summarize(gradients, str(run), group) for run in gradients["run"].unique()]
    known = [row for row in rows if row is not None]
    if not known:
        groups = ", ".join(sorted(gradients["group"].unique()))
        raise UnknownNameError(f"cannot compare group {group!r}: no run has it; groups are {groups}")
    frame = pd.DataFrame(known)
    widths = results.checkpoints.groupby("run")["width"].max() if results.has("checkpoints") else pd.Series(dtype="Int32")
    frame.insert(2, "width", pd.Series([widths.get(run) for run in frame["run"]], dtype="Int32"))
    return frame.sort_values(["num_params", "run"], ignore_index=True)


def _summarize(gradients: pd.DataFrame, run: str, group: str) -> dict[str, Any] | None:
    here = gradients[(gradients["run"] == run) & (gradients["group"] == group)]
    if here.empty:
        return None
    rank = select_curve(here, run, COMPRESSION, group) if (here["metric"] == COMPRESSION).any() else here.iloc[:0]
    alpha = select_curve(here, run, STEEPNESS, group) if (here["metric"] == STEEPNESS).any() else here.iloc[:0]
    crossings = find_crossings(rank)
    first = headline(crossings)
    return {
        "run": run,
        "depth": here["depth"].iloc[0],
        "num_params": here["num_params"].iloc[0],
        "checkpoints": len(rank),
        "step_kind": rank["step_kind"].iloc[0] if len(rank) else None,
        **_name("sr_trough", find_trough(rank), step=True),
        **_name("sr_peak", find_peak(rank), step=True),
        "sr_crossing_step": first.step if first else None,
        "sr_crossing_between": list(first.between) if first else None,
        "sr_settled_step": find_settled(rank),
        **_name("sr_final", find_final(rank), interval=True),
        **_name("alpha_final", find_final(alpha), interval=True),
        "crossings": [crossing.as_dict() for crossing in crossings],
        "notes": _explain(rank),
    }


def _name(name: str, event: Extreme | None, step: bool = False, interval: bool = False) -> dict[str, float | int | None]:
    columns: dict[str, float | int | None] = {name: event.value if event else math.nan}
    if step:
        columns[f"{name}_step"] = event.step if event else None
    if interval:
        columns |= {f"{name}_ci_low": event.ci_low if event else math.nan, f"{name}_ci_high": event.ci_high if event else math.nan}
    return columns


def _explain(curve: pd.DataFrame) -> str:
    """Return what keeps events from being identified."""
    notes = []
    if len(curve) < 2:
        notes.append("a crossing needs at least two checkpoints")
    if len(curve) and (curve["note"] == "one layer").all():
        notes.append("one layer: no gradient over depth")
    elif len(curve) and curve["ci_low"].isna().all():
        notes.append("no interval")
    elif curve["gradient"].isna().any():
        notes.append(f"undefined at {int(curve['gradient'].isna().sum())} of {len(curve)} checkpoints")
    return "; ".join(notes)


def to_records(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as JSON has them: NaN and missing values are None. Keys are the columns of `summarize_runs`."""
    return [{str(key): _plain(value) for key, value in row.items()} for row in summary.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, dict, str, bool)) or value is None:
        return value
    if pd.isna(value):
        return None
    return int(value) if float(value) == int(value) and not isinstance(value, float) else float(value)


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
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _at(value: float | None, step: int | None) -> str:
    return "–" if value is None or step is None else f"{_short(value)} at {step:,}"


def _cross(row: dict[str, Any]) -> str:
    if row["sr_crossing_step"] is None:
        unsure = len(row["crossings"])
        return f"not confidently ({unsure} within the interval)" if unsure else "no"
    low, high = row["sr_crossing_between"]
    return f"step {row['sr_crossing_step']:,.0f} (between {low:,} and {high:,})"


def _interval(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_ci_low"], row[f"{name}_ci_high"]
    return _short(row[name]) + ("" if low is None or high is None else f" [{_short(low)}, {_short(high)}]")

"""Trainer logs → loss, learning rate and tokens by step."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from spectrograd.records import Run

# our column: what trainers call it, in order of trust
NAMES = {
    "step": ("step", "global_step", "iter", "iter_num", "iteration"),
    "epoch": ("epoch",),
    "tokens": ("tokens", "num_input_tokens_seen", "tokens_seen", "total_tokens"),
    "loss": ("loss", "train_loss", "train/loss"),
    "val_loss": ("val_loss", "eval_loss", "val/loss", "validation_loss"),
    "learning_rate": ("learning_rate", "lr"),
}


def read_history(run: Run) -> list[dict[str, Any]]:
    """Return the rows of `history.parquet` for one run, in order of steps; none where no log lies beside it.

    Read are `loss.csv` in the run's folder, the `log_history` of the last `trainer_state.json`, and nanochat's
    `meta_*.json`. What a log does not hold is None.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for source, entry in _entries(run):
        known = {column: _number(entry, names) for column, names in NAMES.items()}
        step = known.pop("step")
        if step is None or all(value is None for value in known.values()):
            continue
        row = rows.setdefault(
            (source, int(step)), {"run": run.name, "step": int(step), "step_kind": "step", "source": source, **dict.fromkeys(known)}
        )
        row |= {column: value for column, value in known.items() if value is not None}
    for row in rows.values():
        row["tokens"] = None if row["tokens"] is None else int(row["tokens"])
    return sorted(rows.values(), key=lambda row: (row["step"], row["source"]))


def _entries(run: Run) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every entry of every log, with the name of the log."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    table = run.path / "loss.csv"
    if table.is_file():
        found += [(table.name, {str(k): v for k, v in row.items()}) for row in _read_csv(table)]
    states = [state for c in run.checkpoints if (state := c.path / "trainer_state.json").is_file()]
    if states:
        log = _read_json(states[-1]).get("log_history", [])
        found += [("trainer_state.json", entry) for entry in log if isinstance(entry, dict)]
    for meta in sorted(run.path.glob("meta_*.json")):
        found.append(("meta_*.json", _read_json(meta)))
    return found


def _read_csv(path: Path) -> list[dict[Any, Any]]:
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError):
        return []
    return frame.to_dict("records")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(entry: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Return the first finite number under one of these names."""
    for name in names:
        value = entry.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != float("inf"):
            return float(value)
    return None

"""Facts about one unit of weights: its step, by order of trust, its configuration, its layout."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spectrograd.errors import CheckpointError
from spectrograd.readers import find_reader
from spectrograd.records import Entry, StepKind
from spectrograd.scan.find import Unit

IN_FILE_STEPS = ("global_step", "iter_num", "step_count", "global_steps", "iteration", "step")
LARGEST_STEP = 2**63 - 1  # the tables' int64
SIDECAR_STEPS = {"trainer_state.json": "global_step"}


@dataclass(slots=True)
class Facts:
    """What files and sidecars say of a unit, before its names are asked."""

    entries: dict[Path, list[Entry]] = field(default_factory=dict)
    step: int | None = None
    step_kind: StepKind | None = None
    source: str = ""
    epoch: float | None = None
    tokens: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    format: str = ""
    layout: str = ""


def read_facts(unit: Unit, run_folder: Path) -> Facts:
    """Return what the headers of a unit's files and the sidecars beside them say.

    Raises
    ------
    CheckpointError
        If a file cannot be read.
    """
    facts = Facts()
    inside: dict[str, Any] = {}
    for file in unit.files:
        reader = find_reader(file)
        facts.entries[file] = reader.entries(file)
        facts.format = reader.NAME + (" shards" if unit.sharded else "")
        inside |= reader.metadata(file)
    facts.config = read_config(unit, run_folder) | {k: v for k, v in inside.items() if isinstance(v, Mapping)}
    for key in IN_FILE_STEPS:
        if (step := _whole(inside.get(key))) is not None:
            facts.step, facts.step_kind, facts.source = step, "step", f"{key} in the file"
            break
    if isinstance(inside.get("epoch"), (int, float)):
        facts.epoch = float(inside["epoch"])
    for sidecar, key in _sidecars(unit).items():
        content = read_json(sidecar)
        if (step := _whole(content.get(key))) is not None and facts.step is None:
            facts.step, facts.step_kind, facts.source = step, "step", sidecar.name
        if isinstance(content.get("epoch"), (int, float)):
            facts.epoch = float(content["epoch"])
        if isinstance(content.get("model_config"), dict):
            facts.config["model_config"] = content["model_config"]
    facts.layout = _name_layout(unit, inside)
    return facts


def read_config(unit: Unit, run_folder: Path) -> dict[str, Any]:
    """Return the nearest `config.json`: beside the weights, else in the run's folder."""
    for folder in (unit.folder, unit.folder.parent, run_folder):
        if (found := read_json(folder / "config.json")) and folder.is_relative_to(run_folder):
            return found
    return {}


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty where the file is missing, damaged or something else: a sidecar is a help, no duty."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _sidecars(unit: Unit) -> dict[Path, str]:
    """Return the sidecars of a unit, each with the key that holds its step."""
    found = {unit.folder / name: key for name, key in SIDECAR_STEPS.items()}
    if unit.stem.startswith("model_"):  # nanochat: model_000500.pt beside meta_000500.json
        found[unit.folder / f"meta_{unit.stem.removeprefix('model_')}.json"] = "step"
    return {path: key for path, key in found.items() if path.is_file()}


def _name_layout(unit: Unit, inside: Mapping[str, Any]) -> str:
    if any(path.name.startswith("meta_") for path in _sidecars(unit)):
        return "nanochat"
    if "iter_num" in inside:
        return "nanoGPT"
    if unit.folder.name.startswith("checkpoint-") or (unit.folder / "trainer_state.json").is_file():
        return "HF Trainer"
    return "files" if len(unit.files) == 1 else "shards"


def _whole(value: Any) -> int | None:
    """Return a step as it may be written, as a number or as text (safetensors headers hold text alone)."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_STEP else None


def describe_error(error: CheckpointError, path: Path) -> str:
    """Return the reason of a refusal without repeating the path that the ledger already has."""
    text = str(error)
    for lead in (f"cannot read {path}: ", f"refused {path}: "):
        if text.startswith(lead):
            return f"{path.name}: {text.removeprefix(lead)}"
    return text

"""Spectra table → gradients table: mean over the late layers − mean over the early layers, with its interval."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from spectrograd.errors import UnknownNameError
from spectrograd.records import GROUPS, join_notes
from spectrograd.results import GRADIENTS, to_frame

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
PARTS = {"thirds": 3, "halves": 2, "quarters": 4}
CURVE = ["run", "seed", "stage", "stack", "group", "metric"]
WHOLE = {"seed": "Int64", "step": "Int64", "depth": "Int16", "num_params": "Int64", "num_early": "Int16", "num_late": "Int16"}
NUMBERS = ("early_mean", "late_mean", "gradient", "ci_low", "ci_high")


def parse_bands(bands: str) -> str:
    """Return a specification of bands: `thirds`, `halves`, `quarters` or a number of layers a side.

    Raises
    ------
    UnknownNameError
        If it is none of these.
    """
    if bands in PARTS or (bands.isdecimal() and int(bands) > 0):
        return bands
    near = difflib.get_close_matches(bands, PARTS, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UnknownNameError(f"cannot read bands {bands!r}: write {', '.join(PARTS)} or a number of layers{hint}")


def band_size(bands: str, num_layers: int) -> int:
    """Return how many layers count as early, and as late; 0 where there is no gradient (one layer)."""
    if num_layers < 2:
        return 0
    if bands in PARTS:
        return max(1, num_layers // PARTS[bands])
    return min(int(bands), num_layers // 2)


def compute_gradients(spectra: pd.DataFrame, metrics: Sequence[str], bands: str = "thirds") -> pd.DataFrame:
    """Return the gradients table: one row per checkpoint, stack, group and metric, in the columns of `results.GRADIENTS`.

    gradient = mean over the late band of layers − mean over the early band. A band's mean takes the matrices of a role
    within a layer first, then the layers of each role, then the roles. Roles and layers are fixed for run, group and
    metric: where one of them is undefined, so is the gradient, and the note names it. A matrix that is missing at a
    checkpoint counts as undefined there; at one with another number of layers than most of the run all gradients are.

    Parameters
    ----------
    spectra : DataFrame
        The spectra table; rows without a layer are left out.
    metrics : sequence of str
        Its columns to take.
    bands : str
        `thirds` (the first and last max(1, L // 3) of L layers), `halves`, `quarters`, or a number of layers.

    Raises
    ------
    UnknownNameError
        If `bands` is none of these.

    Notes
    -----
    95 % interval, the layer as the unit: each role is centred by the mean of its layers in both bands, the roles are
    averaged in each layer, and Student's t is taken on the pooled variance of the two bands' layers with (layers − 2)
    degrees of freedom. A run with several seeds also has rows with seed null: mean and t interval over its seeds.

    References
    ----------
    Student 1908, doi:10.1093/biomet/6.1.1.
    """
    parse_bands(bands)
    inside = spectra[spectra["layer"].notna()]
    parts: list[pd.DataFrame] = []
    for place, rows in inside.groupby(["run", "seed", "stage", "stack"], dropna=False, sort=True):
        odd = _find_odd(rows)
        usual = rows[~rows["checkpoint"].isin(odd)]
        frame = _tabulate(_locate(rows, usual, odd), usual, metrics, bands)
        if len(frame):
            names: dict[str, Any] = dict(zip(("run", "seed", "stage", "stack"), place, strict=True))
            parts.append(frame.assign(**names))
    if not parts:
        return to_frame(GRADIENTS.empty_table())
    single: pd.DataFrame = pd.concat(parts, ignore_index=True).astype(WHOLE)
    table: pd.DataFrame = pd.concat([single, *_over_seeds(single)], ignore_index=True)[GRADIENTS.names]
    return table.sort_values([*CURVE, "step", "checkpoint"], ignore_index=True, kind="stable")


# Shapes: C checkpoints, R roles, L layers, b layers a band.
@dataclass(frozen=True, slots=True)
class _Grid:
    """Where the matrices of one run, seed, stage and stack lie: rows of the table in an array of (C, R, L)."""

    checkpoints: pd.DataFrame
    roles: tuple[str, ...]
    layers: NDArray[np.int64]
    index: NDArray[np.int64]
    odd: dict[str, str]

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.checkpoints), len(self.roles), len(self.layers)

    def add_up(self, weights: Array | None = None) -> Array:
        """Return the number of matrices in each cell, (C, R, L), or the sum of one value of each."""
        return np.bincount(self.index, weights, int(np.prod(self.shape))).astype(np.float64).reshape(self.shape)


def _find_odd(rows: pd.DataFrame) -> dict[str, str]:
    """Return the checkpoints with another number of layers than most of the run, and what their note says: bands differ there."""
    depths = rows.drop_duplicates("checkpoint").set_index("checkpoint")["depth"].dropna()
    if depths.nunique() < 2:
        return {}
    most = int(depths.mode().max())
    return {str(name): f"{depth} layers, most checkpoints of this run have {most}" for name, depth in depths.items() if depth != most}


def _locate(every: pd.DataFrame, rows: pd.DataFrame, odd: dict[str, str]) -> _Grid:
    """Return the places of `rows`, with a line for each checkpoint of `every`."""
    checkpoints = every.drop_duplicates("checkpoint").sort_values(["step", "checkpoint"], ignore_index=True)
    roles = tuple(sorted(rows["role"].unique()))
    layers = np.sort(rows["layer"].unique().astype(np.int64))
    at = pd.Index(checkpoints["checkpoint"]).get_indexer(rows["checkpoint"])
    role = pd.Index(roles).get_indexer(rows["role"])
    layer = np.searchsorted(layers, rows["layer"].to_numpy(np.int64))
    index = np.ravel_multi_index((at, role, layer), (len(checkpoints), len(roles), len(layers)))
    # a stack has at least the blocks of which matrices are seen; more where some block has none that can be analysed
    depth = checkpoints["depth"].fillna(0).clip(lower=len(layers)) if "depth" in checkpoints else len(layers)
    kept = checkpoints[["step", "step_kind", "checkpoint", "num_params"]].assign(depth=depth)
    return _Grid(kept, roles, layers, index, odd)


def _tabulate(grid: _Grid, rows: pd.DataFrame, metrics: Sequence[str], bands: str) -> pd.DataFrame:
    """Return the rows of one stack: for each metric and group those of all checkpoints."""
    num_steps, _, num_layers = grid.shape
    size = band_size(bands, num_layers)
    edge = np.r_[0:size, num_layers - size : num_layers]
    groups = {name: [i for i, role in enumerate(grid.roles) if role in members] for name, members in GROUPS.items()}
    groups = {name: chosen for name, chosen in groups.items() if chosen}
    count = grid.add_up()
    most = count.max(axis=0)
    labels: list[tuple[str, str]] = []
    blocks: list[Array] = []
    notes: list[str] = []
    for metric in metrics:
        with np.errstate(invalid="ignore"):  # a cell without a matrix: 0 / 0
            values = grid.add_up(rows[metric].to_numpy(np.float64, na_value=np.nan)) / np.where(count == most, count, np.nan)
        values[~np.isfinite(values)] = np.nan
        for group, chosen in groups.items():
            banded = values[:, chosen][:, :, edge]
            member = _fix_members(banded, (most[chosen] > 0)[:, edge], size)
            labels.append((group, metric))
            blocks.append(_summarize(banded, member, size))
            texts = _explain(banded, member, [grid.roles[i] for i in chosen], grid.layers[edge])
            notes += [grid.odd.get(name, text) for name, text in zip(grid.checkpoints["checkpoint"], texts, strict=True)]
    frame = grid.checkpoints.iloc[np.tile(np.arange(num_steps), len(labels))].reset_index(drop=True)
    numbers = np.concatenate(blocks, axis=1) if blocks else np.empty((7, 0))
    frame = frame.assign(bands=bands, note=notes, **dict(zip((*NUMBERS, "num_early", "num_late"), numbers, strict=True)))
    return frame.assign(**{name: np.repeat([label[i] for label in labels], num_steps) for i, name in enumerate(("group", "metric"))})


def _fix_members(values: Array, exists: Mask, size: int) -> Mask:
    """Return (R, 2b): which roles and layers take part, the same at every step.

    A role takes part if it has a value in both bands at some step, then with every layer in which the run has it: a layer
    that is never defined makes the gradient undefined, and does not silently drop out.
    """
    known = np.isfinite(values)
    role = np.any(known[:, :, :size].any(axis=2) & known[:, :, size:].any(axis=2), axis=0)
    member: Mask = exists & role[:, None]
    return member


def _summarize(values: Array, member: Mask, size: int) -> Array:
    """Return means, gradient, interval and numbers of layers, (7, C), from the two bands, (C, R, 2b)."""
    taken = member.any(axis=1)
    if not taken.any():
        return np.vstack([np.full((5, len(values)), np.nan), np.zeros((2, len(values)))])
    values, member = values[:, taken], member[taken]
    known = np.where(member, values, 0)
    early, late = ((known[:, :, s].sum(axis=2) / member[:, s].sum(axis=1)).mean(axis=1) for s in (np.s_[:size], np.s_[size:]))
    center = known.sum(axis=2) / member.sum(axis=1)
    present: Mask = np.any(member, axis=0)
    layers = np.where(member, values - center[:, :, None], 0).sum(axis=1)[:, present] / member.sum(axis=0)[present]
    num_early, num_late = int(present[:size].sum()), int(present[size:].sum())
    sides = layers[:, :num_early], layers[:, num_early:]
    squares = sum(((side - side.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) for side in sides)
    freedom = num_early + num_late - 2
    half = np.full(len(values), np.nan)
    if min(num_early, num_late) > 1:  # a side with one layer says nothing of its spread
        half = stdtrit(freedom, 0.975) * np.sqrt(squares / freedom * (1 / num_early + 1 / num_late))
    gradient = late - early
    counts = np.full((2, len(values)), [[num_early], [num_late]])
    return np.vstack([early, late, gradient, gradient - half, gradient + half, counts])


def _explain(values: Array, member: Mask, roles: list[str], layers: NDArray[np.int64]) -> list[str]:
    """Return the note of each checkpoint: which fixed members are undefined there, and in the first what is left out."""
    if not len(layers):
        return ["one layer"] * len(values)
    left = ", ".join(role for role, at in zip(roles, member, strict=True) if not at.any())
    if not member.any():
        return [f"never defined in both bands: {left}"] * len(values)
    gone = member & ~np.isfinite(values)
    notes = [""] * len(values)
    texts: dict[bytes, str] = {}
    for i in np.flatnonzero(gone.any(axis=(1, 2))):
        key = gone[i].tobytes()
        if key not in texts:
            texts[key] = _name_members(gone[i], roles, layers)
        notes[i] = texts[key]
    if left:
        notes[0] = join_notes(notes[0], f"left out, never defined in both bands: {left}")
    return notes


def _name_members(gone: Mask, roles: list[str], layers: NDArray[np.int64]) -> str:
    """Return the roles and layers that are undefined: `o undefined in layers 0-2, 5`."""
    where: dict[str, list[str]] = {}
    for role, lost in zip(roles, gone, strict=True):
        if lost.any():
            where.setdefault(_list_layers(layers[lost]), []).append(role)
    return "; ".join(f"{', '.join(names)} undefined in {text}" for text, names in where.items())


def _list_layers(layers: NDArray[np.int64]) -> str:
    """Return ascending layer numbers with runs shortened: `layers 0-2, 5`."""
    spans = np.split(layers, np.flatnonzero(np.diff(layers) != 1) + 1)
    text = ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    return f"layer {text}" if len(layers) == 1 else f"layers {text}"


def _over_seeds(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the rows with seed null of runs that have several seeds: mean over those that share a step, t interval.

    Where one of them is undefined the mean is too.
    """
    placed = table[table["step"].notna() & table["seed"].notna()]
    total = placed.groupby("run")["seed"].nunique()
    several = placed[placed["run"].isin(total.index[total > 1])]
    if several.empty:
        return
    keys = ["run", "stage", "stack", "group", "metric", "step", "step_kind"]
    frame = several.groupby(keys, dropna=False, sort=True).agg(
        depth=("depth", "first"), num_params=("num_params", "first"), bands=("bands", "first"), num_early=("num_early", "first"),
        num_late=("num_late", "first"), early_mean=("early_mean", "mean"), late_mean=("late_mean", "mean"), gradient=("gradient", "mean"),
        spread=("gradient", "std"), defined=("gradient", "count"), size=("gradient", "size"),
    ).reset_index()  # fmt: skip
    frame = frame[frame["size"] > 1].reset_index(drop=True)
    whole, size = frame["defined"] == frame["size"], frame["size"].to_numpy(np.int64)
    for name in ("early_mean", "late_mean", "gradient"):
        frame[name] = frame[name].where(whole)
    half = stdtrit(size - 1, 0.975) * frame["spread"] / np.sqrt(size)
    frame["ci_low"], frame["ci_high"] = frame["gradient"] - half, frame["gradient"] + half
    counts = [f"{n}" if n == of else f"{n} of {of}" for n, of in zip(size, frame["run"].map(total), strict=True)]
    notes = [f"mean of {count} seeds" for count in counts]
    frame["note"] = [note if ok else f"{note}, undefined in one or more" for note, ok in zip(notes, whole, strict=True)]
    frame["checkpoint"] = "seeds at " + frame["step_kind"].astype(str) + " " + frame["step"].astype(str)
    frame["seed"] = pd.array([pd.NA] * len(frame), dtype="Int64")
    yield frame.drop(columns=["spread", "defined", "size"]).astype(WHOLE)

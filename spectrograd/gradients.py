"""Spectra table → gradients table: mean over the late layers − mean over the early layers, with its interval."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from spectrograd.errors import UnknownNameError
from spectrograd.records import GROUPS
from spectrograd.results import GRADIENTS

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
PARTS = {"thirds": 3, "halves": 2, "quarters": 4}
CURVE = ["run", "seed", "stage", "stack", "group", "metric"]
WHOLE = {"seed": "Int64", "step": "Int64", "depth": "Int16", "num_params": "Int64", "num_early": "Int16", "num_late": "Int16"}


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


@dataclass(frozen=True, slots=True)
class _Model:
    """The values of one run, seed, stage and stack: (metrics, checkpoints, roles, layers), NaN where undefined.

    `exists`, (roles, layers), tells where the run has a matrix at all.
    """

    values: Array
    exists: Mask
    roles: tuple[str, ...]
    layers: NDArray[np.int64]
    checkpoints: pd.DataFrame


def compute_gradients(spectra: pd.DataFrame, metrics: Sequence[str], bands: str = "thirds") -> pd.DataFrame:
    """Return the gradients table: one row per checkpoint, stack, group and metric.

    gradient = mean over the late band of layers − mean over the early band. A band's mean takes the matrices of a role
    within a layer first, then the layers of each role, then the roles. Roles and layers are fixed for run, group and
    metric: where one of them is undefined, so is the gradient, and the note names it.

    Parameters
    ----------
    spectra : DataFrame
        The spectra table; rows without a layer are left out.
    metrics : sequence of str
        Its columns to take.
    bands : str
        `thirds` (the first and last max(1, L // 3) of L layers), `halves`, `quarters`, or a number of layers.

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
        model = _arrange(rows, metrics)
        for group, members in GROUPS.items():
            chosen = [i for i, role in enumerate(model.roles) if role in members]
            if chosen:
                parts += _describe(model, chosen, group, place, metrics, bands)
    if not parts:
        return pd.DataFrame({name: [] for name in GRADIENTS.names}).astype(WHOLE)
    single: pd.DataFrame = pd.concat(parts, ignore_index=True).astype(WHOLE)
    table: pd.DataFrame = pd.concat([single, *_over_seeds(single)], ignore_index=True)[GRADIENTS.names]
    return table.sort_values([*CURVE, "step", "checkpoint"], ignore_index=True, kind="stable")


def _arrange(rows: pd.DataFrame, metrics: Sequence[str]) -> _Model:
    """Return the values of a stack as one array; several matrices of a role in a layer (experts) are averaged."""
    first = rows.drop_duplicates("checkpoint").sort_values(["step", "checkpoint"], ignore_index=True)
    place = {name: i for i, name in enumerate(first["checkpoint"])}
    roles = tuple(sorted(rows["role"].unique()))
    layers = np.sort(rows["layer"].unique().astype(np.int64))
    index = (
        rows["checkpoint"].map(place).to_numpy(np.int64),
        rows["role"].map({role: i for i, role in enumerate(roles)}).to_numpy(np.int64),
        np.searchsorted(layers, rows["layer"].to_numpy(np.int64)),
    )
    shape = (len(place), len(roles), len(layers))
    count = np.zeros(shape)
    np.add.at(count, index, 1)
    values = np.zeros((len(metrics), *shape))
    for i, metric in enumerate(metrics):
        np.add.at(values[i], index, rows[metric].to_numpy(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(np.isfinite(values), values, np.nan) / np.where(count > 0, count, np.nan)
    return _Model(values, count.max(axis=0) > 0, roles, layers, first)


def _describe(
    model: _Model, chosen: list[int], group: str, place: tuple[object, ...], metrics: Sequence[str], bands: str
) -> Iterator[pd.DataFrame]:
    """Yield the rows of one group, a frame for each metric."""
    num_layers, num_steps = len(model.layers), len(model.checkpoints)
    size = band_size(bands, num_layers)
    early, late = model.values[:, :, chosen, :size], model.values[:, :, chosen, num_layers - size :]
    roles = [model.roles[i] for i in chosen]
    exists = model.exists[chosen]
    fixed = _fix_members(early, late, exists[:, :size], exists[:, num_layers - size :])
    numbers = _summarize(early, late, *fixed)
    base = {
        **dict(zip(("run", "seed", "stage", "stack"), place, strict=True)),
        **{name: model.checkpoints[name].to_numpy() for name in ("step", "step_kind", "checkpoint", "num_params")},
        "depth": num_layers, "group": group, "bands": bands,
    }  # fmt: skip
    bands_layers = (model.layers[:size], model.layers[num_layers - size :])
    for i, metric in enumerate(metrics):
        masks = (fixed[0][i], fixed[1][i])
        notes = _explain(early[i], late[i], masks, roles, bands_layers, num_layers) if num_steps else []
        counts = {"num_early": int(masks[0].any(axis=0).sum()), "num_late": int(masks[1].any(axis=0).sum())}
        yield pd.DataFrame({**base, "metric": metric, **{name: value[i] for name, value in numbers.items()}, **counts, "note": notes})


def _fix_members(early: Array, late: Array, in_early: Mask, in_late: Mask) -> tuple[Mask, Mask]:
    """Return (metrics, roles, layers of the band): which roles and layers take part, the same at every step.

    A role takes part if it has a value in both bands at some step, then with every layer in which the run has it: a layer
    that is never defined makes the gradient undefined, and does not silently drop out.
    """
    role: Mask = np.any(np.isfinite(early).any(axis=3) & np.isfinite(late).any(axis=3), axis=1)[:, :, None]
    return in_early & role, in_late & role


def _summarize(early: Array, late: Array, in_early: Mask, in_late: Mask) -> dict[str, Array]:
    """Return means, gradient and interval, (metrics, checkpoints) each."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = []
        for values, mask in ((early, in_early), (late, in_late)):
            member = mask[:, None]
            of_role = np.where(member, values, 0).sum(axis=3) / member.sum(axis=3)
            roles = member.any(axis=3)
            means.append(np.where(roles, of_role, 0).sum(axis=2) / roles.sum(axis=2))
        both = np.concatenate([early, late], axis=3)
        member = np.concatenate([in_early, in_late], axis=2)[:, None]
        center = np.where(member, both, 0).sum(axis=3, keepdims=True) / member.sum(axis=3, keepdims=True)
        layers = np.where(member, both - center, 0).sum(axis=2) / member.sum(axis=2)
        present, size = member.max(axis=2), early.shape[3]
        squares, count = [], []
        for x, here in ((layers[..., :size], present[..., :size]), (layers[..., size:], present[..., size:])):
            n = here.sum(axis=2)
            mean = np.where(here, x, 0).sum(axis=2) / n
            squares.append(np.where(here, (x - mean[..., None]) ** 2, 0).sum(axis=2))
            count.append(np.broadcast_to(n, mean.shape))
        freedom = count[0] + count[1] - 2
        error = np.sqrt((squares[0] + squares[1]) / freedom * (1 / count[0] + 1 / count[1]))
        half = np.where((count[0] > 1) & (count[1] > 1), stats.t.ppf(0.975, np.maximum(freedom, 1)) * error, np.nan)
    gradient = means[1] - means[0]
    return {
        "early_mean": means[0], "late_mean": means[1], "gradient": gradient, "ci_low": gradient - half, "ci_high": gradient + half,
    }  # fmt: skip


def _explain(
    early: Array,
    late: Array,
    masks: tuple[Mask, Mask],
    roles: list[str],
    layers: tuple[NDArray[np.int64], NDArray[np.int64]],
    num_layers: int,
) -> list[str]:
    """Return the note of each checkpoint of one metric: which fixed members are undefined there."""
    if num_layers < 2:
        return ["one layer"] * len(early)
    member = np.concatenate(masks, axis=1)
    if not member.any():
        return ["undefined in every layer of a band"] * len(early)
    gone = member & ~np.isfinite(np.concatenate([early, late], axis=2))
    numbers = np.concatenate(layers)
    notes = []
    for lost in gone:
        names = [f"{role} undefined in layers {_list_layers(numbers[at])}" for role, at in zip(roles, lost, strict=True) if at.any()]
        notes.append("; ".join(names))
    left = [role for role, at in zip(roles, member, strict=True) if not at.any()]
    if left:
        notes[0] = "; ".join(filter(None, [notes[0], f"left out, never defined in both bands: {', '.join(left)}"]))
    return notes


def _list_layers(layers: NDArray[np.int64]) -> str:
    """Return layer numbers with runs shortened: `0-2, 5`."""
    numbers = sorted({int(layer) for layer in layers})
    breaks = [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1]
    spans = [numbers[a:b] for a, b in zip([0, *breaks], [*breaks, len(numbers)], strict=True)]
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)


def _over_seeds(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the rows with seed null of runs that have several seeds: mean over the seeds that share a step, t interval."""
    seeds = table.groupby("run")["seed"].nunique()
    several = table[table["run"].isin(seeds.index[seeds > 1]) & table["step"].notna() & table["seed"].notna()]
    keys = ["run", "stage", "stack", "group", "metric", "step", "step_kind"]
    if several.empty:
        return
    grouped = several.groupby(keys, dropna=False, sort=True)
    frame = grouped.agg(
        depth=("depth", "first"), num_params=("num_params", "first"), bands=("bands", "first"), num_early=("num_early", "first"),
        num_late=("num_late", "first"), early_mean=("early_mean", "mean"), late_mean=("late_mean", "mean"), gradient=("gradient", "mean"),
        spread=("gradient", "std"), count=("gradient", "count"), size=("gradient", "size"),
    ).reset_index()  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        half = stats.t.ppf(0.975, np.maximum(frame["count"] - 1, 1)) * frame["spread"] / np.sqrt(frame["count"])
    frame["ci_low"], frame["ci_high"] = frame["gradient"] - half, frame["gradient"] + half
    frame["note"] = [f"mean of {count} seeds" for count in frame["count"]]
    frame["checkpoint"] = "seeds at " + frame["step_kind"].astype(str) + " " + frame["step"].astype(str)
    frame["seed"] = pd.array([pd.NA] * len(frame), dtype="Int64")
    yield frame.drop(columns=["spread", "count", "size"]).astype(WHOLE)

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from spectrograd.errors import UnknownNameError
from spectrograd.gradients import band_size, compute_gradients, parse_bands
from spectrograd.results import GRADIENTS

METRIC = "stable_rank"


def spectra(values: dict[tuple[int, str, int], float], run: str = "r", **columns: object) -> pd.DataFrame:
    """Return a spectra table from (step, role, layer) → value."""
    rows = [
        {"run": run, "seed": pd.NA, "stage": None, "step": step, "step_kind": "step", "checkpoint": f"step_{step}", "stack": None,
         "layer": layer, "role": role, "depth": 0, "num_params": 10, METRIC: value, **columns}
        for (step, role, layer), value in values.items()
    ]  # fmt: skip
    return pd.DataFrame(rows).astype({"seed": "Int64", "step": "Int64", "layer": "Int16", "depth": "Int16", "num_params": "Int64"})


def gradient(table: pd.DataFrame, group: str, step: int | None = None) -> pd.Series:
    rows = table[(table["group"] == group) & (table["step"] == step if step is not None else True)]
    assert len(rows) == 1
    return rows.iloc[0]


def naive(values: np.ndarray, size: int) -> tuple[float, float, float]:
    """Gradient and interval of (roles, layers), by the words of the definition, one number at a time."""
    roles, layers = values.shape
    early, late = range(size), range(layers - size, layers)
    mean = [np.mean([np.mean([values[r, layer] for layer in band]) for r in range(roles)]) for band in (early, late)]
    centre = [np.mean([values[r, layer] for layer in (*early, *late)]) for r in range(roles)]
    averaged = {layer: np.mean([values[r, layer] - centre[r] for r in range(roles)]) for layer in (*early, *late)}
    squares = sum(sum((averaged[i] - np.mean([averaged[j] for j in band])) ** 2 for i in band) for band in (early, late))
    half = stats.t.ppf(0.975, 2 * size - 2) * np.sqrt(squares / (2 * size - 2) * 2 / size)
    return mean[1] - mean[0], mean[1] - mean[0] - half, mean[1] - mean[0] + half


@pytest.mark.parametrize(("depth", "expected"), [(8, 6.0), (12, 8.0), (16, 11.0), (4, 3.0), (3, 2.0), (2, 1.0), (1, np.nan)])
def test_thirds_are_rounded_down(depth: int, expected: float) -> None:
    table = compute_gradients(spectra({(1, "mlp_up", i): i + 1 for i in range(depth)}), [METRIC])
    row = gradient(table, "mlp_up")
    assert row["gradient"] == pytest.approx(expected, nan_ok=True)
    assert row["depth"] == depth
    assert (row["note"] == "one layer") == (depth == 1)


@pytest.mark.parametrize(("bands", "d8", "d16"), [("halves", 4, 8), ("quarters", 6, 12), ("3", 5, 13), ("100", 4, 8)])
def test_other_bands(bands: str, d8: float, d16: float) -> None:
    for depth, expected in ((8, d8), (16, d16)):
        row = gradient(compute_gradients(spectra({(1, "q", i): i + 1 for i in range(depth)}), [METRIC], bands), "q")
        assert (row["gradient"], row["bands"]) == (pytest.approx(expected), bands)


def test_bands_that_do_not_exist() -> None:
    with pytest.raises(UnknownNameError, match="did you mean thirds"):
        parse_bands("third")
    for wrong in ("0", "-1", "1.5", ""):
        with pytest.raises(UnknownNameError):
            parse_bands(wrong)
    assert band_size("thirds", 1) == 0


def test_numbers_and_intervals_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(5)
    roles = ("q", "k", "v", "o", "mlp_up", "mlp_down")
    for depth in (4, 7, 12):
        drawn = {step: rng.normal(10, 3, (len(roles), depth)) for step in (0, 10, 200)}
        frame = spectra(
            {(step, role, layer): v[i, layer] for step, v in drawn.items() for i, role in enumerate(roles) for layer in range(depth)}
        )
        table = compute_gradients(frame.sample(frac=1, random_state=1), [METRIC])
        size = max(1, depth // 3)
        for group, members in {"all": range(6), "attn": range(4), "qk": (0, 1), "vo": (2, 3), "mlp": (4, 5), "k": (1,)}.items():
            for step, v in drawn.items():
                row = gradient(table, group, step)
                if size > 1:
                    assert row[["gradient", "ci_low", "ci_high"]].tolist() == pytest.approx(naive(v[list(members)], size), rel=1e-12)
                else:
                    assert np.isnan(row["ci_low"])
                assert (row["num_early"], row["num_late"]) == (size, size)
                assert row["late_mean"] - row["early_mean"] == pytest.approx(row["gradient"])
        assert table.columns.tolist() == GRADIENTS.names


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_interval_covers_what_it_says(correlation: float) -> None:
    """95 % intervals of 600 draws whose true gradient is 0, roles of a layer correlated or not: 93-97 % hold it."""
    rng = np.random.default_rng(11)
    draws = 600
    layer_part = rng.normal(0, np.sqrt(correlation), (draws, 1, 12))
    values = layer_part + rng.normal(0, np.sqrt(1 - correlation), (draws, 4, 12))
    frame = spectra({(s, role, layer): values[s, i, layer] for s in range(draws) for i, role in enumerate("qkvo") for layer in range(12)})
    rows = compute_gradients(frame, [METRIC]).query("group == 'attn'")
    covered = ((rows["ci_low"] <= 0) & (rows["ci_high"] >= 0)).mean()
    assert 0.93 <= covered <= 0.97


def test_zero_at_initialisation_makes_its_groups_undefined_there() -> None:
    values = {(step, "mlp_up", i): i + 1.0 for step in (0, 100) for i in range(6)}
    values |= {(0, "o", i): np.nan for i in range(6)} | {(100, "o", i): 6.0 - i for i in range(6)}
    table = compute_gradients(spectra(values), [METRIC])
    for group in ("o", "attn", "vo", "all"):
        assert np.isnan(gradient(table, group, 0)["gradient"])
        assert gradient(table, group, 0)["note"] == "o undefined in layers 0-1, 4-5"
    assert [gradient(table, group, 100)["gradient"] for group in ("o", "attn", "vo", "all")] == pytest.approx([-4, -4, -4, 0])
    for step in (0, 100):
        assert gradient(table, "mlp", step)["gradient"] == pytest.approx(4)


def test_a_curve_never_jumps_because_its_members_changed() -> None:
    values = {(step, "mlp_up", i): i + 1.0 for step in (100, 200, 300) for i in range(6)}
    values[200, "mlp_up", 4] = values[200, "mlp_up", 1] = np.nan
    table = compute_gradients(spectra(values), [METRIC])
    assert [gradient(table, "all", step)["gradient"] for step in (100, 300)] == pytest.approx([4, 4])
    lost = gradient(table, "all", 200)
    assert np.isnan(lost["gradient"])
    assert lost["note"] == "mlp_up undefined in layers 1, 4"
    del values[200, "mlp_up", 4], values[200, "mlp_up", 1]  # a matrix that is not there counts as undefined
    assert np.isnan(gradient(compute_gradients(spectra(values), [METRIC]), "all", 200)["gradient"])


def test_a_role_without_both_bands_is_left_out_and_named_once() -> None:
    values = {(step, "q", i): i + 1.0 for step in (1, 2) for i in range(6)} | {(step, "k", i): np.nan for step in (1, 2) for i in range(6)}
    table = compute_gradients(spectra(values), [METRIC])
    assert gradient(table, "qk", 1)["gradient"] == pytest.approx(4)
    assert gradient(table, "qk", 1)["note"] == "left out, never defined in both bands: k"
    assert gradient(table, "qk", 2)["note"] == ""


def test_experts_of_a_layer_are_averaged_first() -> None:
    experts = pd.concat(
        [
            spectra({(1, "mlp_up", i): float(i) for i in range(3)}, expert=0),
            spectra({(1, "mlp_up", i): 3.0 * i for i in range(3)}, expert=1),
        ]
    )
    assert gradient(compute_gradients(experts, [METRIC]), "mlp_up")["gradient"] == pytest.approx(4)
    experts.loc[experts["expert"].eq(1) & experts["layer"].eq(2), METRIC] = np.nan
    assert np.isnan(gradient(compute_gradients(experts, [METRIC]), "mlp_up")["gradient"])


def test_stacks_stay_apart_and_embeddings_out() -> None:
    parts = [spectra({(1, "q", i): sign * i for i in range(3)}, stack=stack) for stack, sign in (("decoder", 1.0), ("encoder", -1.0))]
    embedding = spectra({(1, "embed", 0): 100.0})
    embedding["layer"] = pd.array([pd.NA], dtype="Int16")
    table = compute_gradients(pd.concat([*parts, embedding], ignore_index=True), [METRIC]).query("group == 'q'")
    assert dict(zip(table["stack"], table["gradient"], strict=True)) == {"decoder": pytest.approx(2), "encoder": pytest.approx(-2)}


def test_seeds_get_a_mean_with_an_interval_over_seeds() -> None:
    frame = pd.concat([spectra({(step, "q", i): seed * i for step in (0, 10) for i in range(3)}, seed=seed) for seed in (1, 2, 4)])
    table = compute_gradients(frame.astype({"seed": "Int64"}), [METRIC]).query("group == 'q' and step == 10")
    singles, mean = table[table["seed"].notna()], table[table["seed"].isna()].iloc[0]
    assert singles["gradient"].tolist() == pytest.approx([2, 4, 8])
    assert mean["gradient"] == pytest.approx(14 / 3)
    half = stats.t.ppf(0.975, 2) * np.std([2, 4, 8], ddof=1) / np.sqrt(3)
    assert mean["ci_high"] - mean["gradient"] == pytest.approx(half)
    assert not table.duplicated(["run", "seed", "checkpoint", "group", "metric"]).any()


def test_an_empty_table_gives_an_empty_table() -> None:
    frame = spectra({(1, "q", 0): 1.0})
    assert compute_gradients(frame.iloc[:0], [METRIC]).columns.tolist() == GRADIENTS.names

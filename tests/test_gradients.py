import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from spectrograd.errors import UnknownNameError
from spectrograd.gradients import band_size, compute_gradients, parse_bands
from spectrograd.results import GRADIENTS, to_frame

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


def test_an_expert_that_is_missing_at_one_checkpoint_is_undefined_there() -> None:
    experts = pd.concat([spectra({(step, "mlp_up", i): 10.0 * e + i for step in (1, 2) for i in range(3)}, expert=e) for e in (0, 1)])
    gone = experts["step"].eq(2) & experts["expert"].eq(1) & experts["layer"].eq(2)
    table = compute_gradients(experts[~gone], [METRIC])
    assert gradient(table, "mlp_up", 1)["gradient"] == pytest.approx(2)
    assert np.isnan(gradient(table, "mlp_up", 2)["gradient"])
    assert gradient(table, "mlp_up", 2)["note"] == "mlp_up undefined in layer 2"


def test_a_layer_that_is_never_defined_does_not_drop_out() -> None:
    values = {(step, "q", i): np.nan if i == 1 else i + 1.0 for step in (1, 2) for i in range(6)}
    rows = compute_gradients(spectra(values), [METRIC]).query("group == 'q'")
    assert rows["gradient"].isna().all()
    assert rows["note"].tolist() == ["q undefined in layer 1"] * 2


def test_members_are_fixed_for_each_metric_alone() -> None:
    frame = spectra({(1, role, i): i + 1.0 for role in "qk" for i in range(6)})
    frame["alpha_rank"] = frame[METRIC].where(frame["role"] == "q")
    table = compute_gradients(frame, [METRIC, "alpha_rank"]).query("group == 'qk'").set_index("metric")
    assert table["gradient"].to_dict() == {METRIC: pytest.approx(4), "alpha_rank": pytest.approx(4)}
    assert table["note"].to_dict() == {METRIC: "", "alpha_rank": "left out, never defined in both bands: k"}


def test_roles_in_different_layers_as_hybrid_models_have_them() -> None:
    """Attention in every second layer, SSM in the others: each role's mean counts once, layers count where a role is."""
    values = {(1, "ssm_in" if i % 2 else "q", i): float(i**2) for i in range(12)}
    row = gradient(compute_gradients(spectra(values), [METRIC]), "all")
    q, ssm = np.mean([64, 100]) - np.mean([0, 4]), np.mean([81, 121]) - np.mean([1, 9])
    assert row["gradient"] == pytest.approx((q + ssm) / 2)
    assert (row["num_early"], row["num_late"]) == (4, 4)
    assert row["ci_low"] < row["gradient"] < row["ci_high"]


def test_roles_undefined_in_the_same_layers_share_a_note() -> None:
    values = {(step, role, i): np.nan if step == 0 and role != "q" else 1.0 for step in (0, 1) for role in "qkv" for i in range(3)}
    assert gradient(compute_gradients(spectra(values), [METRIC]), "attn", 0)["note"] == "k, v undefined in layers 0, 2"


def test_seeds_that_share_a_step_and_one_that_is_undefined() -> None:
    steps = {0: (0, 10, 20, 30), 1: (0, 10, 30), 2: (0, 30)}
    frame = pd.concat([spectra({(step, "q", i): (seed + 1.0) * i for step in steps[seed] for i in range(3)}, seed=seed) for seed in steps])
    frame.loc[frame["seed"].eq(2) & frame["step"].eq(30), METRIC] = np.nan
    table = compute_gradients(frame.astype({"seed": "Int64"}), [METRIC])
    mean = table[table["seed"].isna() & table["group"].eq("q")].set_index("step")
    assert mean["gradient"].to_dict() == {0: pytest.approx(4), 10: pytest.approx(3), 30: pytest.approx(np.nan, nan_ok=True)}
    assert mean["note"].to_dict() == {0: "mean of 3 seeds", 10: "mean of 2 of 3 seeds", 30: "mean of 3 seeds, undefined in one or more"}


def test_rows_are_sorted_and_fit_the_schema() -> None:
    timeless = spectra({(5, "q", i): 1.0 for i in range(3)}, checkpoint="final").assign(
        step=pd.array([pd.NA] * 3, dtype="Int64"), step_kind=None
    )
    runs = [spectra({(step, "q", i): 1.0 for step in (100, 20) for i in range(3)}, run=run) for run in ("b", "a")]
    table = compute_gradients(pd.concat([timeless, *runs], ignore_index=True), [METRIC])
    order = table.query("group == 'q'")[["run", "checkpoint"]].agg(" ".join, axis=1).tolist()
    assert order == ["a step_20", "a step_100", "b step_20", "b step_100", "r final"]
    for frame in (table, compute_gradients(timeless.iloc[:0], [METRIC])):
        again = to_frame(pa.Table.from_pandas(frame, schema=GRADIENTS, preserve_index=False))
        pd.testing.assert_frame_equal(again.astype(object).fillna("null"), frame.astype(object).fillna("null"), check_dtype=False)
        assert {name: str(frame[name].dtype) for name in ("seed", "step", "depth", "num_early")} == {
            "seed": "Int64", "step": "Int64", "depth": "Int16", "num_early": "Int16",
        }  # fmt: skip


def test_depth_counts_blocks_without_matrices_too() -> None:
    assert gradient(compute_gradients(spectra({(1, "q", i): 1.0 for i in (0, 1, 5)}).assign(depth=6), [METRIC]), "q")["depth"] == 6


def test_no_interval_where_a_side_has_one_layer() -> None:
    frame = spectra({(1, "q", i): float(i**2) for i in (0, 1, 2, 3, 4, 5, 6)} | {(1, "ssm_in", i): float(i) for i in (1, 4, 5)})
    table = compute_gradients(frame, [METRIC])
    assert np.isfinite(gradient(table, "q")["ci_low"])
    row = gradient(table, "ssm")  # layer 1 against layer 5
    assert (row["gradient"], row["num_early"], row["num_late"]) == (pytest.approx(4), 1, 1)
    assert np.isnan(row["ci_low"])
    wider = gradient(compute_gradients(frame, [METRIC], "3"), "ssm")  # layer 1 against layers 4 and 5
    assert (wider["gradient"], wider["num_early"], wider["num_late"]) == (pytest.approx(3.5), 1, 2)
    assert np.isnan(wider["ci_low"])

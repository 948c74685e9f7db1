import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spectrograd.errors import TableError, UnknownNameError
from spectrograd.results import CHECKPOINTS, GRADIENTS, Results, open_results
from spectrograd.summaries import summarize_runs, to_display, to_records


def rows(
    run: str, points: dict[int | None, float], half: float = np.nan, level: float = 10.0, **columns: object
) -> list[dict[str, object]]:
    """Return rows of the gradients table, one a step, with intervals of this half width."""
    base = {"run": run, "step_kind": "step", "depth": 6, "num_params": 1000, "group": "all", "metric": "stable_rank", "bands": "thirds",
            "num_early": 2, "num_late": 2, "note": ""}  # fmt: skip
    return [
        {**base, "step": step, "checkpoint": f"at {step}", "gradient": g, "ci_low": g - half, "ci_high": g + half, "early_mean": level,
         "late_mean": level + g, **columns}
        for step, g in points.items()
    ]  # fmt: skip


def results(folder: Path, *runs: list[dict[str, object]]) -> Results:
    pq.write_table(pa.Table.from_pylist([row for run in runs for row in run], schema=GRADIENTS), folder / "gradients.parquet")
    return open_results(folder)


def summary_of(folder: Path, *runs: list[dict[str, object]]) -> dict[str, object]:
    [record] = to_records(summarize_runs(results(folder, *runs)))
    return record


def test_a_run_in_one_row(tmp_path: Path) -> None:
    falling = {0: 60.0, 50: -10.0, 200: -200.0, 1000: -50.0, 4000: 3.0, 5000: 2.0, 6000: 1.0, 7000: 0.5}
    alpha = rows("D8", {0: -0.25, 7000: -0.1}, half=0.02, metric="alpha_rank")
    record = summary_of(tmp_path, rows("D8", falling, half=5.0, num_params=30_400_000), alpha)
    assert {key: value for key, value in record.items() if key != "crossings"} == {
        "run": "D8", "depth": 6, "width": None, "num_params": 30_400_000, "checkpoints": 8, "step_kind": "step", "sr_trough": -200,
        "sr_trough_step": 200, "sr_peak": 60, "sr_peak_step": 0, "sr_crossing_step": pytest.approx(50 * 60 / 70),
        "sr_crossing_between": [0, 50], "sr_settled_step": 4000, "sr_final": 0.5, "sr_final_ci_low": -4.5, "sr_final_ci_high": 5.5,
        "alpha_final": -0.1, "alpha_final_ci_low": pytest.approx(-0.12), "alpha_final_ci_high": pytest.approx(-0.08), "notes": "",
    }  # fmt: skip
    assert [(c["direction"], c["confident"], c["between"]) for c in record["crossings"]] == [
        ("down", True, [0, 50]),
        ("up", False, [1000, 4000]),
    ]


@pytest.mark.parametrize(
    ("points", "steps", "shown"),
    [
        ({0: -2, 100: -1, 300: 3}, [150], "step 150 (between 100 and 300)"),
        ({0: 1, 100: 2, 200: 1.5}, [], "no"),
        ({10: -1, 30: 1}, [20], "step 20 (between 10 and 30)"),
        ({10: -1}, [], "–"),
        ({0: 1, 50: -3}, [12.5], "step 12 (between 0 and 50)"),
    ],
)
def test_crossings_of_curves_without_intervals(tmp_path: Path, points: dict[int | None, float], steps: list[float], shown: str) -> None:
    summary = summarize_runs(results(tmp_path, rows("r", points)))
    [record] = to_records(summary)
    assert [crossing["step"] for crossing in record["crossings"]] == steps
    assert record["sr_crossing_step"] == (steps[0] if steps else None)
    assert "no interval" in record["notes"]
    assert ("needs at least two checkpoints" in record["notes"]) == (len(points) < 2)
    assert to_display(summary)["SR gradient crosses 0"].tolist() == [shown]


def test_whole_numbers_stay_whole_beside_missing_ones(tmp_path: Path) -> None:
    """A run whose steps are known beside one that never settles: 4,000 and not 4000.0, in JSON and for people."""
    settles = rows("a", {0: 100, 4000: 1, 5000: 1, 6000: 1, 7000: 1}, half=0.5)
    never = rows("b", {0: np.nan, 10: np.nan}, num_params=None)
    summary = summarize_runs(results(tmp_path, settles, never))
    text = json.dumps(to_records(summary), allow_nan=False)
    assert '"sr_settled_step": 4000,' in text
    assert '"sr_trough_step": 4000,' in text
    shown = to_display(summary).iloc[0]
    assert shown["SR gradient settled"] == "step 4,000"
    assert shown["SR gradient trough"] == "1 at 4,000"
    assert to_display(summary).iloc[1].tolist() == [
        "b", "6", "–", "2", "–", "–", "–", "not identified", "–", "–", "undefined at 2 of 2 checkpoints",
    ]  # fmt: skip


def test_runs_come_in_order_of_size_with_their_widths(tmp_path: Path) -> None:
    table = results(
        tmp_path, *(rows(run, {0: 1.0, 1: 2.0}, num_params=n) for run, n in (("big", 92_800_000), ("z", 115_000), ("a", 115_000)))
    )
    ledger = [{"run": "big", "width": 768}, {"run": "big", "width": None}, {"run": "a", "width": 64}]
    pq.write_table(pa.Table.from_pylist(ledger, schema=CHECKPOINTS), tmp_path / "checkpoints.parquet")
    assert to_display(summarize_runs(table))["Run"].tolist() == ["a (115K)", "z (115K)", "big (92.8M)"]
    assert [record["width"] for record in to_records(summarize_runs(table))] == [64, None, 768]


def test_numbers_for_people(tmp_path: Path) -> None:
    shown = to_display(summarize_runs(results(tmp_path, rows("r", {300: -3125.4, 2000: 0.123456}, half=0.5)))).iloc[0]
    assert shown["SR gradient trough"] == "−3,125 at 300"
    assert shown["SR gradient peak"] == "0.123 at 2,000"
    assert shown["SR gradient, final"] == "0.123 [−0.377, 0.623]"
    assert shown["alpha_rank gradient, final"] == "–"


def test_crossings_within_the_interval_are_no_headline(tmp_path: Path) -> None:
    summary = summarize_runs(results(tmp_path, rows("r", {0: -1, 10: 1, 20: -1}, half=2.0)))
    assert to_display(summary)["SR gradient crosses 0"].tolist() == ["not confidently (2 within the interval)"]
    assert to_records(summary)[0]["sr_crossing_between"] is None


def test_what_a_curve_leaves_out_is_noted(tmp_path: Path) -> None:
    decoder = rows("r", {0: 1.0, 10: 2.0}, half=0.1, stack="decoder", depth=4)
    loose = rows("r", {None: 5.0}, stack="decoder", step_kind=None)
    epoch = rows("r", {1: 5.0}, stack="decoder", step_kind="epoch", checkpoint="e1")
    encoder = rows("r", {0: 7.0, 10: 9.0}, stack="encoder", depth=2)
    record = summary_of(tmp_path, encoder, loose, epoch, decoder)
    assert record["notes"] == "stack decoder of decoder, encoder; 1 without a step left out; 1 at another kind of step left out"
    assert (record["depth"], record["sr_final"], record["checkpoints"]) == (4, 2.0, 2)


def test_seeds_are_summarised_by_their_mean(tmp_path: Path) -> None:
    seeds = [rows("r", {0: g, 10: g}, half=0.1, seed=seed) for seed, g in ((0, 1.0), (1, 3.0), (None, 2.0))]
    record = summary_of(tmp_path, *seeds)
    assert (record["sr_final"], record["checkpoints"], record["notes"]) == (2.0, 2, "mean over 2 seeds")


def test_one_layer_and_no_step_are_said(tmp_path: Path) -> None:
    summary = summarize_runs(
        results(tmp_path, rows("shallow", {0: np.nan, 1: np.nan}, note="one layer"), rows("timeless", {None: 1.0}, step_kind=None))
    )
    assert summary["notes"].tolist() == [
        "one layer: no gradient over depth",
        "a crossing needs at least two checkpoints; 1 without a step left out",
    ]
    assert to_display(summary)["SR gradient crosses 0"].tolist() == ["–", "–"]


def test_a_group_that_no_run_has(tmp_path: Path) -> None:
    table = results(tmp_path, rows("r", {0: 1.0}, group="mlp_up"))
    with pytest.raises(UnknownNameError, match=r"cannot compare group 'mlp_upp'.*did you mean mlp_up\?"):
        summarize_runs(table, "mlp_upp")
    with pytest.raises(UnknownNameError, match="groups are mlp_up"):
        summarize_runs(table)
    with pytest.raises(TableError, match="the gradients table is empty"):
        summarize_runs(results(tmp_path))


def test_display_has_a_text_in_every_cell(tmp_path: Path) -> None:
    shown = to_display(summarize_runs(results(tmp_path, rows("r", {0: np.nan}), rows("s", {0: 1.0, 1: -1.0}, half=0.1))))
    assert all(isinstance(cell, str) for cell in shown.to_numpy().ravel())
    assert pd.Index(shown["Run"]).is_unique

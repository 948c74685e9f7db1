from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectrograd.dynamics import find_crossings, find_final, find_peak, find_settled, find_trough, headline, select_curve
from spectrograd.errors import UnknownNameError


def curve(points: dict[int, float], half: float | list[float] = np.nan, level: float = 10.0) -> pd.DataFrame:
    """Return a curve with intervals of this half width; `level` is the size of the means that the gradient is taken of."""
    g = np.array(list(points.values()), dtype=float)
    return pd.DataFrame({
        "step": pd.array(list(points), dtype="Int64"), "gradient": g, "ci_low": g - half, "ci_high": g + half,
        "early_mean": np.full(len(g), level), "late_mean": level + g,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("points", "steps", "directions"),
    [
        ({0: -2, 100: -1, 300: 3}, [150], ["up"]),
        ({0: 1, 100: 2, 200: 1.5}, [], []),
        ({10: -1, 30: 1}, [20], ["up"]),
        ({10: -1}, [], []),
        ({0: 1, 50: -3}, [12.5], ["down"]),
        ({0: 1, 10: 0, 20: -1}, [10], ["down"]),  # an exact zero between two signs
        ({0: 1, 10: 0, 20: 1}, [], []),  # a touch
        ({0: 1, 10: 0, 20: 0, 40: 0, 50: -1}, [25], ["down"]),  # a run of zeros: its middle
        ({0: 0, 10: 0, 20: 1}, [], []),  # zeros at the start
        ({0: 1, 10: -1, 20: 1}, [5, 15], ["down", "up"]),
        ({0: 1e-7, 10: -1e-7}, [], []),  # rounding of means of 10
        ({}, [], []),
    ],
)
def test_crossings_without_intervals(points: dict[int, float], steps: list[float], directions: list[str]) -> None:
    found = find_crossings(curve(points))
    assert [crossing.step for crossing in found] == pytest.approx(steps)
    assert [crossing.direction for crossing in found] == directions
    assert all(crossing.confident and crossing.note == "no interval" for crossing in found)


def test_a_crossing_over_an_undefined_sample_says_so() -> None:
    [crossing] = find_crossings(curve({0: 1, 10: np.nan, 20: -1}))
    assert crossing.spans_missing
    assert crossing.step == 10
    assert crossing.as_dict() == {
        "step": 10.0,
        "direction": "down",
        "confident": True,
        "between": [0, 20],
        "spans_missing": True,
        "note": "no interval",
    }


def test_the_middle_of_the_crossings_between_confident_samples_is_confident() -> None:
    points = {0: -5, 10: -5, 20: 1, 30: -1, 40: 1, 50: 5, 60: 5}
    found = find_crossings(curve(points, half=2.0))
    assert [crossing.confident for crossing in found] == [False, True, False]
    assert headline(found) == found[1]
    assert found[1].between == (10, 50)
    assert found[1].step == 25
    assert (found[0].between, found[2].between) == ((10, 20), (30, 40))


def test_signs_within_the_interval_cross_without_confidence() -> None:
    found = find_crossings(curve({0: -1, 10: 1, 20: -1}, half=2.0))
    assert [crossing.confident for crossing in found] == [False, False]
    assert headline(found) is None


def test_the_headline_is_the_first_confident_one() -> None:
    found = find_crossings(curve({0: 5, 10: -5, 20: 5}, half=1.0))
    assert headline(found) == found[0]
    assert found[0].between == (0, 10)


@given(st.lists(st.sampled_from([-3.0, -1.0, 0.0, 1.0, 3.0, float("nan")]), max_size=30))
def test_confident_crossings_alternate_with_the_confident_signs(values: list[float]) -> None:
    table = curve({10 * i: value for i, value in enumerate(values)}, half=2.0)
    found = find_crossings(table)
    assert [crossing.step for crossing in found] == sorted(crossing.step for crossing in found)
    assert all(a.direction != b.direction for a, b in pairwise(found))
    sure = [value for value in values if abs(value) == 3]
    changes = sum(a != b for a, b in pairwise(sure))
    if any(np.isfinite(value) for value in values):
        assert sum(crossing.confident for crossing in found) == changes


def test_extremes_and_end() -> None:
    table = curve({0: 1, 10: -4, 20: 6, 30: 2}, half=0.5)
    assert (find_trough(table).value, find_trough(table).step) == (-4, 10)
    assert (find_peak(table).value, find_peak(table).step) == (6, 20)
    assert (find_final(table).value, find_final(table).ci_low, find_final(table).ci_high) == (2, 1.5, 2.5)
    empty, undefined = curve({}), curve({0: np.nan})
    assert find_peak(empty) is find_trough(empty) is find_final(empty) is find_peak(undefined) is None
    assert np.isnan(find_final(undefined).value)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([100, 50, 4, 3, 2, 1], 20),
        ([100, 50, 4, 3, 2], None),  # two later samples
        ([100, 4, 50, 4, 3, 2, 1], 30),
        ([100, 50, 20], None),
        ([100, 4, np.nan, 3, 2, 1, 1], 30),  # undefined is not under the bar
        ([0, 0, 0, 0, 0], None),
        ([np.nan] * 5, None),
    ],
)
def test_settled(values: list[float], step: int | None) -> None:
    assert find_settled(curve({10 * i: value for i, value in enumerate(values)})) == step


def test_select_curve_takes_one_kind_one_stack_and_the_mean_of_seeds() -> None:
    def row(step: object, value: float, **columns: object) -> dict[str, object]:
        base = {
            "run": "a",
            "metric": "m",
            "group": "all",
            "stack": None,
            "seed": None,
            "step": step,
            "step_kind": "step",
            "gradient": value,
        }
        return base | columns

    rows = [
        row(20, 2, stack="decoder"), row(10, 1, stack="decoder"), row(10, 9, stack="encoder"),
        row(None, 8, stack="decoder", step_kind=None),
        row(1, 7, stack="decoder", step_kind="epoch"),
    ]  # fmt: skip
    table = pd.DataFrame(rows).astype({"step": "Int64", "seed": "Int64"})
    assert select_curve(table, "a", "m", "all")["gradient"].tolist() == [1, 2]
    assert select_curve(table, "a", "m", "all", stack="encoder")["gradient"].tolist() == [9]
    seeds = pd.DataFrame([row(10, 1, seed=0), row(10, 3, seed=1), row(10, 2)]).astype({"step": "Int64", "seed": "Int64"})
    assert select_curve(seeds, "a", "m", "all")["gradient"].tolist() == [2]
    with pytest.raises(UnknownNameError, match="metric 'n'"):
        select_curve(table, "a", "n", "all")


def test_a_stack_that_does_not_exist() -> None:
    table = pd.DataFrame(
        {"run": ["a"], "metric": ["m"], "group": ["all"], "stack": ["decoder"], "seed": [None], "step": [1], "step_kind": ["step"]}
    )
    with pytest.raises(UnknownNameError, match="its stacks are decoder"):
        select_curve(table, "a", "m", "all", "encoder")

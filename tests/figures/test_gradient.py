"""Compression Gradient Evolution, read back from its artists."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures.golden import STEPS, caption, curve, study_rows, write
from matplotlib.collections import FillBetweenPolyCollection

from spectrograd import figures
from spectrograd.figures.axes import acts_early
from spectrograd.figures.style import RUN_COLORS
from spectrograd.results import Results


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return write(tmp_path / "results", study_rows())


def lines(axes: Any) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_label() != "zero"]


def test_lines_hold_the_numbers_of_the_table(results: Results) -> None:
    figure = figures.draw("gradient", results)
    table = results.gradients
    for axes in figure.axes:
        for line, run in zip(lines(axes), ("D8", "D12", "D16"), strict=True):
            rows = table[(table["run"] == run) & (table["metric"] == "stable_rank")]
            assert np.array_equal(line.get_xdata(), rows["step"].to_numpy(float))
            assert np.array_equal(line.get_ydata(), rows["gradient"].to_numpy(float))
            assert len(line.get_markevery()) == len(STEPS)
    assert "marker" not in caption(figure)


def test_words_colours_and_markers(results: Results) -> None:
    figure = figures.draw("gradient", results)
    axes = figure.axes[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["D8 (115K)", "D12 (365K)", "D16 (840K)"]
    assert [line.get_color() for line in lines(axes)] == list(RUN_COLORS[:3])
    assert [line.get_marker() for line in lines(axes)] == ["o", "s", "^"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Training Step", "SR Gradient (late − early)")
    zero = next(line for line in axes.get_lines() if line.get_label() == "zero")
    assert list(zero.get_ydata()) == [0, 0]
    assert len([c for c in axes.collections if isinstance(c, FillBetweenPolyCollection)]) == 3
    words = caption(figure)
    assert words.startswith(
        "SR: stable rank Σσ²/σ₁². Gradient: over depth, mean of the last b of L layers − mean of the first b, b = max(1, L//3)"
    )
    assert (
        "(2 of 8, 4 of 12, 5 of 16)" in words and "95 % interval, Student's t over layers" in words and "Group all: all attention" in words
    )


def test_colours_differ_in_grey(results: Results) -> None:
    grey = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in RUN_COLORS[:3])]
    assert min(abs(a - b) for i, a in enumerate(grey) for b in grey[:i]) > 20


def test_thirty_runs_have_thirty_looks() -> None:
    looks = [figures.style.run_style(i) for i in range(70)]
    assert len({tuple(map(str, look.values())) for look in looks}) == 70


def test_another_metric_and_group(tmp_path: Path) -> None:
    rows = curve("A", 6, 1000, "alpha_rank", range(5), range(5), 0.1, group="qk") + curve(
        "A", 6, 1000, "nuclear_norm", range(5), range(5), 0.1
    )
    results = write(tmp_path, rows)
    figure = figures.draw("gradient", results, metric="alpha_rank", group="qk")
    assert figure.axes[0].get_ylabel() == "alpha_rank Gradient (late − early)"
    assert "alpha_rank: −slope of ln σ_j on ln j" in caption(figure) and "Group qk: q and k matrices" in caption(figure)
    assert "α" not in caption(figure)
    assert "nuclear_norm: as spectrograd defines it (columns.md)" in caption(figures.draw("gradient", results, metric="nuclear_norm"))


@pytest.mark.parametrize(("bands", "text"), [("halves", "max(1, L//2)"), ("quarters", "max(1, L//4)"), ("2", "b = 2")])
def test_the_caption_says_which_bands(bands: str, text: str, tmp_path: Path) -> None:
    assert text in caption(
        figures.draw("gradient", write(tmp_path, curve("A", 6, 1000, "stable_rank", range(5), range(5), 0.1, bands=bands)))
    )


def test_axes_follow_the_lines_and_a_clipped_band_is_named(tmp_path: Path) -> None:
    results = write(
        tmp_path,
        curve("A", 6, 1000, "stable_rank", range(5), [0, 1, 2, 3, 10], 500.0) + curve("B", 6, 1000, "stable_rank", range(5), range(5), 0.1),
    )
    figure = figures.draw("gradient", results)
    low, high = figure.axes[0].get_ylim()
    assert -1 < low < 0 and 10 < high < 12
    assert "bands leave the frame (A)" in caption(figure)
    assert "leave the frame" not in caption(
        figures.draw("gradient", write(tmp_path / "b", curve("B", 6, 1000, "stable_rank", range(5), range(5), 0.1)))
    )


def test_without_intervals_there_is_no_band_and_that_is_said(tmp_path: Path) -> None:
    figure = figures.draw("gradient", write(tmp_path, curve("A", 2, 1000, "stable_rank", range(5), range(5), np.nan)))
    assert not figure.axes[0].collections
    assert "No interval is known" in caption(figure)


def test_a_lone_checkpoint_is_seen_with_its_interval(tmp_path: Path) -> None:
    figure = figures.draw("gradient", write(tmp_path, curve("A", 6, 1000, "stable_rank", [500], [3.0], 1.0)))
    (axes,) = figure.axes
    (line,) = lines(axes)
    assert line.get_markevery() == [0] and line.get_marker() == "o"
    assert axes.get_xlim()[0] < 500 < axes.get_xlim()[1] and axes.get_ylim()[1] > 4.0
    assert [label.get_text() for label in axes.get_xticklabels()] == ["500"]


def test_undefined_samples_break_the_line_and_lone_ones_are_marked(tmp_path: Path) -> None:
    values = np.arange(100.0)
    values[50] = values[52] = np.nan
    values[70] = np.inf
    (line,) = lines(figures.draw("gradient", write(tmp_path, curve("A", 6, 1000, "stable_rank", range(100), values, 0.1))).axes[0])
    assert np.isnan(np.asarray(line.get_ydata())[[50, 52, 70]]).all()
    assert 51 in line.get_markevery()


def test_many_samples_get_few_markers_spread_over_the_axis(tmp_path: Path) -> None:
    results = write(tmp_path, curve("A", 6, 1000, "stable_rank", range(0, 10_001, 25), np.arange(401.0), 1.0))
    for x in ("linear", "log"):
        figure = figures.draw("gradient", results, x=x)
        (line,) = lines(figure.axes[0])
        marks = line.get_markevery()
        assert "some carry a marker" in caption(figure)
        assert 10 <= len(marks) <= 16 and marks[0] == 0 and marks[-1] == 400
        assert (np.asarray(marks) < 100).sum() > 5 if x == "log" else (np.asarray(marks) < 100).sum() < 6


# ---------------------------------------------------------------- the logarithmic axis
def test_log_keeps_step_0(results: Results) -> None:
    (axes,) = figures.draw("gradient", results, x="log").axes
    assert axes.get_xscale() == "symlog" and axes.xaxis.get_transform().linthresh == 20
    assert axes.get_xlim()[0] < 0
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "20", "100", "1K"]
    assert axes.get_xlabel() == "Training Step (log scale)"
    assert lines(axes)[0].get_xdata()[0] == 0


def test_log_without_step_0_has_no_tick_there(tmp_path: Path) -> None:
    (axes,) = figures.draw(
        "gradient", write(tmp_path, curve("A", 6, 1000, "stable_rank", [100, 1000, 10_000], [1, 2, 3], 0.1)), x="log"
    ).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "1K", "10K"]


def test_a_log_companion_comes_where_most_happens_early(results: Results, tmp_path: Path) -> None:
    assert [axes.get_xscale() for axes in figures.draw("gradient", results).axes] == ["linear", "symlog"]
    steady = write(tmp_path, curve("A", 6, 1000, "stable_rank", range(0, 10_001, 25), np.linspace(-5, 5, 401), 1.0))
    assert [axes.get_xscale() for axes in figures.draw("gradient", steady).axes] == ["linear"]


def test_what_counts_as_early() -> None:
    x = np.arange(0.0, 1001.0, 10.0)
    noise = np.random.default_rng(0).normal(0, 0.02, len(x))
    assert acts_early(x, np.exp(-x / 30) + noise)  # its span says so, although the noise goes up and down for ever
    assert acts_early(x, np.where(x <= 100, np.sin(x / 5), (x - 100) / 500))  # its ups and downs say so, although it rises far later
    assert not acts_early(x, x / 1000)
    assert not acts_early(x[::40], np.exp(-x / 30)[::40])  # nothing was sampled there

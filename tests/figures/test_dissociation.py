"""Two-Timescale Dissociation, read back from its artists."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures.golden import both, caption, curve, study_rows, write
from matplotlib.text import Annotation

from spectrograd import figures
from spectrograd.figures.style import BLUE, RED
from spectrograd.results import Results


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return write(tmp_path / "results", study_rows())


def lines(axes: Any) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_label() != "zero"]


def panels(figure: Any) -> list[tuple[Any, Any]]:
    """Return left and right axes of each panel."""
    half = len(figure.axes) // 2
    assert all(a.bbox.bounds == b.bbox.bounds for a, b in zip(figure.axes[:half], figure.axes[half:], strict=True))
    return list(zip(figure.axes[:half], figure.axes[half:], strict=True))


def test_lines_hold_the_numbers_of_the_table(results: Results) -> None:
    table = results.gradients
    found = panels(figures.draw("dissociation", results))
    assert len(found) == 6
    for (left, right), run in zip(found, ("D8", "D12", "D16", "D8", "D12", "D16"), strict=True):
        for axes, metric, color, marker in ((left, "stable_rank", RED, "o"), (right, "alpha_rank", BLUE, "s")):
            (line,) = lines(axes)
            rows = table[(table["run"] == run) & (table["metric"] == metric)]
            assert np.array_equal(line.get_xdata(), rows["step"].to_numpy(float))
            assert np.array_equal(line.get_ydata(), rows["gradient"].to_numpy(float))
            assert (line.get_color(), line.get_marker()) == (color, marker)
            assert len(axes.collections) == 1


def test_words(results: Results) -> None:
    figure = figures.draw("dissociation", results)
    found = panels(figure)
    assert [left.get_title() for left, _ in found[:3]] == ["D8 (115K)", "D12 (365K)", "D16 (840K)"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SR gradient", "alpha_rank gradient"]
    assert [left.get_ylabel() for left, _ in found[:3]] == ["SR Gradient\n(late − early)", "", ""]
    assert [right.get_ylabel() for _, right in found[:3]] == ["", "", "alpha_rank Gradient\n(late − early)"]
    assert [left.get_xlabel() for left, _ in found] == ["Training Step"] * 3 + ["Training Step (log scale)"] * 3
    words = caption(figure)
    assert words.startswith("SR: stable rank Σσ²/σ₁². alpha_rank: −slope of ln σ_j on ln j. Gradient: over depth,")
    texts = [text.get_text() for axes in figure.axes for text in axes.texts] + [words]
    assert not any("α" in text for text in texts)


def test_right_range_is_shared_and_one_zero_line_serves_both_axes(results: Results) -> None:
    found = panels(figures.draw("dissociation", results))
    assert len({right.get_ylim() for _, right in found}) == 1
    for left, right in found:
        heights = [axes.transData.transform((0, 0))[1] for axes in (left, right)]
        assert heights[0] == pytest.approx(heights[1])
        assert sum(line.get_label() == "zero" for axes in (left, right) for line in axes.get_lines()) == 1


def test_left_range_is_shared_only_where_it_is_comparable(tmp_path: Path) -> None:
    near = panels(
        figures.draw("dissociation", write(tmp_path / "near", both("A", params=1) + both("B", values=np.arange(10) * 2.0, params=2)))
    )
    far = panels(
        figures.draw("dissociation", write(tmp_path / "far", both("A", params=1) + both("B", values=np.arange(10) * 50.0, params=2)))
    )
    assert near[0][0].get_ylim() == near[1][0].get_ylim()
    assert far[0][0].get_ylim()[1] < far[1][0].get_ylim()[1] / 10
    assert len({right.get_ylim() for _, right in far}) == 1


def crossings(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts if isinstance(text, Annotation)]


def test_an_arrow_points_at_the_crossing(tmp_path: Path) -> None:
    rows = both("A", steps=[0, 1000, 1500, 2000, 3000], values=[5.0, 4.0, 2.12, -2.88, -4.0], half=0.5)
    (left, _), *_ = panels(figures.draw("dissociation", write(tmp_path, rows)))
    assert crossings(left) == ["SR crosses 0\nstep 1,712"]
    assert "between 1,500 and 2,000" in [text.get_text() for text in left.texts]
    (arrow,) = [text for text in left.texts if isinstance(text, Annotation)]
    assert arrow.xy == (pytest.approx(1712), 0.0) and arrow.arrow_patch is not None


def test_there_is_no_arrow_without_a_sure_crossing(tmp_path: Path) -> None:
    for k, (values, half) in enumerate((([1.0, 2.0, 3.0], 0.1), ([1.0, -1.0, 1.0], 5.0))):
        for left, _ in panels(figures.draw("dissociation", write(tmp_path / str(k), both(steps=range(3), values=values, half=half)))):
            assert not left.texts


@pytest.mark.parametrize(("kind", "text"), [("epoch", "epoch 1.5"), ("ordinal", "checkpoint 1.5")])
def test_the_arrow_counts_what_the_axis_counts(kind: str, text: str, tmp_path: Path) -> None:
    rows = both(steps=range(4), values=[2.0, 1.0, -1.0, -2.0], half=0.1, step_kind=kind)
    assert crossings(panels(figures.draw("dissociation", write(tmp_path, rows)))[0][0]) == [f"SR crosses 0\n{text}"]


def notes_cover_nothing(left: Any, right: Any) -> None:
    for text in left.texts:
        box = super(Annotation, text).get_window_extent() if isinstance(text, Annotation) else text.get_window_extent()
        for axes in (left, right):
            (line,) = lines(axes)
            pixels = axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]))
            dense = np.concatenate([a + (b - a) * np.linspace(0, 1, 50)[:, None] for a, b in pairwise(pixels)])
            assert not ((dense > box.p0).all(axis=1) & (dense < box.p1).all(axis=1)).any()


@pytest.mark.parametrize("size", ["single", "double", "slide"])
def test_notes_cover_no_line(size: str, results: Results) -> None:
    for left, right in panels(figures.draw("dissociation", results, size=size)):
        assert left.texts
        notes_cover_nothing(left, right)


@pytest.mark.parametrize(
    ("count", "rows", "columns"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (5, 2, 3), (6, 2, 3), (7, 2, 4), (8, 2, 4), (9, 3, 3), (30, 8, 4)]
)
def test_panels_wrap_into_rows(count: int, rows: int, columns: int, tmp_path: Path) -> None:
    table = [row for i in range(count) for row in both(f"r{i:02d}", params=1000)]
    found = panels(figures.draw("dissociation", write(tmp_path, table)))
    assert [left.get_title() for left, _ in found] == [f"r{i:02d} (1K)" for i in range(count)]
    assert len({round(left.bbox.y0) for left, _ in found}) == rows and len({round(left.bbox.x0) for left, _ in found}) == columns


def test_a_column_has_one_run_a_row(results: Results) -> None:
    figure = figures.draw("dissociation", results, size="single", x="log")
    assert len({round(left.bbox.x0) for left, _ in panels(figure)}) == 1
    assert [left.get_xscale() for left, _ in panels(figure)] == ["symlog"] * 3


def test_a_run_with_one_metric_has_one_line(tmp_path: Path) -> None:
    results = write(tmp_path, both("A", params=1) + curve("B", 6, 2, "alpha_rank", range(10), np.full(10, -0.1), 0.01))
    (_, _), (left, right) = panels(figures.draw("dissociation", results))
    assert not lines(left) and len(lines(right)) == 1


def test_a_crowded_panel_gets_room_for_its_note(tmp_path: Path) -> None:
    t = np.arange(200.0)
    rows = curve("A", 6, 1, "stable_rank", t, np.where(t < 100, 5.0, -5.0) * (1 + np.cos(t)), 20 / (1 + t))
    rows += curve("A", 6, 1, "alpha_rank", t, np.sin(1.3 * t), 0.1)
    for size in ("single", "double"):
        figure = figures.draw("dissociation", write(tmp_path / size, rows), size=size)
        ((left, right),) = panels(figure)
        (line,) = lines(left)
        assert crossings(left) and left.get_ylim()[1] > 1.3 * np.nanmax(line.get_ydata())
        notes_cover_nothing(left, right)
        assert left.transData.transform((0, 0))[1] == pytest.approx(right.transData.transform((0, 0))[1])

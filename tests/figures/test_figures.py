"""Every member of FIGURES: one battery; then what both share: names, options, files."""

import locale
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from figures import golden
from figures.golden import both, caption, study_rows, write

from spectrograd import figures
from spectrograd.errors import SpectrogradError, StorageError, UnknownNameError
from spectrograd.figures import FIGURES, NothingToDrawError, Options
from spectrograd.figures.curves import METRICS
from spectrograd.metrics import METRICS as METRIC_MODULES
from spectrograd.results import CHECKPOINTS, GRADIENTS, HISTORY, Results

NAMES = [figure.NAME for figure in FIGURES]
GAPS = [3.0, 2.0, np.nan, 1.0, np.nan, -1.0, -2.0, np.inf, -3.0, -2.0]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return write(tmp_path / "results", study_rows())


# ---------------------------------------------------------------- the battery
@pytest.mark.parametrize("name", NAMES)
def test_needs_name_tables_and_columns_that_exist(name: str) -> None:
    schemas = {"gradients": GRADIENTS, "history": HISTORY, "checkpoints": CHECKPOINTS}
    needs = figures.get_figure(name).NEEDS
    assert needs
    for table, columns in needs.items():
        assert set(columns) <= set(schemas[table].names)


CASES = {
    "one checkpoint": both(steps=[500], values=[3.0]),
    "two checkpoints": both(steps=[0, 1], values=[3.0, -2.0]),
    "gaps": both(values=GAPS),
    "no interval": both(half=np.nan),
    "all zero": both(values=np.zeros(10)),
    "nothing but step 0": both(steps=[0], values=[1.0]),
    "long name": both(run="a-very-long-name-of-a-run-" * 6),
    "odd names": both(run="实验 $x_1$ для\n\udce4".encode("utf-8", "replace").decode()) + both(run="_hidden") + both(run="$"),
    "unknown size": both(depth=None, params=None),
    "no bands": both(bands=None, num_early=None, num_late=None),
    "huge steps": both(steps=[s * 10**9 for s in range(10)]),
    "tiny values": both(values=np.linspace(-1e-7, 1e-7, 10), half=1e-8),
    "thirty runs": [row for i in range(30) for row in both(run=f"run-{i:02d}-with-a-long-name", values=np.arange(10) - i, params=1000 * i)],
    "of very different lengths": both("A", steps=range(10)) + both("B", steps=[s * 1000 for s in range(10)]),
    "several stacks": both(stack="encoder") + both(stack="decoder") + both("B"),
    "epochs": both(step_kind="epoch"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_draws_and_saves_whatever_the_table_holds(name: str, case: str, tmp_path: Path) -> None:
    results = write(tmp_path, CASES[case])
    for x, size in (("linear", "double"), ("log", "single")):
        figure = figures.draw(name, results, x=x, size=size)
        figures.save(figure, tmp_path / "figure.svg")
        ET.parse(tmp_path / "figure.svg")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "width"), [("single", 3.35), ("double", 7.0), ("slide", 13.33)])
@pytest.mark.parametrize("x", ["linear", "log"])
def test_no_text_is_cut_off_or_covers_another(name: str, size: str, width: float, x: str, results: Results) -> None:
    figure = figures.draw(name, results, size=size, x=x)
    assert figure.get_figwidth() == width
    page = figure.bbox
    panels = [axes.get_window_extent() for axes in figure.axes]
    for text in figure.texts:
        box = text.get_window_extent()
        assert page.x0 <= box.x0 and box.x1 <= page.x1 + 1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert not any(box.overlaps(panel) for panel in panels)
    legend = figure.legends[0].get_window_extent()
    assert page.x0 <= legend.x0 and legend.y1 <= page.y1
    assert not any(legend.overlaps(panel) for panel in panels)
    assert not any(legend.overlaps(text.get_window_extent()) for text in figure.texts)
    labels = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title, axes.xaxis.label)]
    for label in labels:
        assert label.get_fontsize() >= 6
    for axes in figure.axes:
        assert page.contains(*axes.get_tightbbox().p0) and page.contains(*axes.get_tightbbox().p1)
        shown = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text() and label.get_visible()]
        assert not any(a.overlaps(b) for i, a in enumerate(shown) for b in shown[:i])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", figures.FORMATS)
def test_equal_figures_give_equal_bytes_whatever_the_users_settings(name: str, suffix: str, results: Results, tmp_path: Path) -> None:
    figures.save(figures.draw(name, results), tmp_path / f"a.{suffix}")
    with matplotlib.rc_context(
        {"font.size": 30, "axes.grid": True, "lines.linewidth": 9, "svg.fonttype": "path", "axes.spines.bottom": False}
    ):
        figures.save(figures.draw(name, results), tmp_path / f"b.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.skipif(matplotlib.__version__ != golden.MATPLOTLIB, reason=f"the golden pictures were drawn by matplotlib {golden.MATPLOTLIB}")
@pytest.mark.parametrize("name", NAMES)
def test_looks_as_it_did(name: str, results: Results, tmp_path: Path) -> None:
    figures.save(figures.draw(name, results), tmp_path / "now.svg")
    assert (tmp_path / "now.svg").read_bytes() == (golden.GOLDEN / f"{name}.svg").read_bytes(), "look at it, then `make golden`"


@pytest.mark.parametrize("name", NAMES)
def test_svg_text_is_text_and_says_what_is_drawn(name: str, results: Results, tmp_path: Path) -> None:
    figures.save(figures.draw(name, results), tmp_path / "figure.svg")
    root = ET.parse(tmp_path / "figure.svg").getroot()
    texts = "".join(root.itertext())
    title = root.findtext("{http://www.w3.org/2000/svg}title")
    description = root.findtext(".//{http://purl.org/dc/elements/1.1/}description")
    assert title in {"Compression Gradient Evolution", "Two-Timescale Dissociation: Transient Compression vs Persistent Spectral Shape"}
    assert description is not None and "SR: stable rank Σσ²/σ₁²" in description
    assert "D8 (115K)" in texts and "Training Step" in texts and "dc:date" not in texts


@pytest.mark.parametrize("name", NAMES)
def test_tells_why_there_is_nothing_to_draw(name: str, tmp_path: Path) -> None:
    note = "one layer has no gradient"
    with pytest.raises(NothingToDrawError, match=f"every stable_rank gradient of A is undefined \\({note}\\)"):
        figures.draw(name, write(tmp_path / "one", both(values=[np.nan] * 10, note=note)))
    with pytest.raises(NothingToDrawError, match="the gradients table is empty"):
        figures.draw(name, write(tmp_path / "empty", []))
    with pytest.raises(NothingToDrawError, match="no run has stable_rank for the group ssm"):
        figures.draw(name, write(tmp_path / "group", study_rows()), group="ssm")
    with pytest.raises(NothingToDrawError, match="no checkpoint of A says at which step it was saved"):
        figures.draw(name, write(tmp_path / "step", [{**row, "step": None, "step_kind": None} for row in both()]))
    with pytest.raises(NothingToDrawError, match="no token counts are known for D8, D12, D16"):
        figures.draw(name, write(tmp_path / "tokens", study_rows()), x="tokens")


@pytest.mark.parametrize("name", NAMES)
def test_draws_over_the_tokens_of_the_log(name: str, tmp_path: Path) -> None:
    logged = [{"run": "A", "step": s, "tokens": s * 2_000_000} for s in range(0, 10, 2)]
    results = write(tmp_path, both(values=[4, 3, 2, 1, -1, -2, -2, -1, -1, -1]) + both("B"), history=(HISTORY, logged))
    figure = figures.draw(name, results, x="tokens")
    line = next(line for line in figure.axes[0].get_lines() if line.get_label() != "zero")
    assert list(line.get_xdata()) == [s * 2e6 for s in range(0, 10, 2)]
    assert list(line.get_ydata()) == [4, 2, -1, -2, -1]
    assert figure.axes[0].get_xlabel() == "Tokens"
    assert "Not drawn: B (no token counts)" in caption(figure)


@pytest.mark.parametrize("name", NAMES)
def test_one_kind_of_step_is_drawn_and_the_rest_is_named(name: str, tmp_path: Path) -> None:
    results = write(tmp_path, both("A") + both("B") + both("C", step_kind="epoch"))
    figure = figures.draw(name, results)
    assert "Not drawn: C (no step of this kind)" in caption(figure)
    assert {axes.get_xlabel() for axes in figure.axes} - {""} == {"Training Step"}
    assert "Epoch" in {axes.get_xlabel() for axes in figures.draw(name, write(tmp_path / "e", both(step_kind="epoch"))).axes}
    assert "Checkpoint" in {axes.get_xlabel() for axes in figures.draw(name, write(tmp_path / "o", both(step_kind="ordinal"))).axes}


@pytest.mark.parametrize("name", NAMES)
def test_runs_with_seeds_are_drawn_by_their_mean(name: str, tmp_path: Path) -> None:
    rows = both(seed=0) + both(seed=1, values=np.arange(10) + 2.0) + both(seed=None, values=np.arange(10) + 1.0)
    figure = figures.draw(name, write(tmp_path, rows))
    line = next(line for line in figure.axes[0].get_lines() if line.get_label() != "zero")
    assert list(line.get_ydata()) == list(np.arange(10) + 1.0)
    assert "Student's t over seeds" in caption(figure)


# ---------------------------------------------------------------- names, options, files
def test_a_near_miss_is_named(results: Results) -> None:
    with pytest.raises(UnknownNameError, match="cannot draw figure 'gradent': no such figure; did you mean 'gradient'"):
        figures.get_figure("gradent")
    with pytest.raises(UnknownNameError, match="there are gradient, dissociation"):
        figures.get_figure("x")
    with pytest.raises(UnknownNameError, match="metric 'stable_rnk': the gradients table does not have it; did you mean 'stable_rank'"):
        figures.draw("gradient", results, metric="stable_rnk")
    with pytest.raises(UnknownNameError, match="group 'atn': the gradients table does not have it; did you mean 'attn'"):
        figures.draw("gradient", results, group="atn")
    assert issubclass(NothingToDrawError, SpectrogradError)


def test_wrong_options_are_the_programmers() -> None:
    with pytest.raises(ValueError, match="x must be one of linear, log, tokens, not 'loglog'"):
        Options(x="loglog")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size must be one of"):
        Options(size="A4")  # type: ignore[arg-type]


def test_saving_where_nothing_can_be_written_is_said(results: Results, tmp_path: Path) -> None:
    figure = figures.draw("gradient", results)
    with pytest.raises(StorageError, match="cannot write"):
        figures.save(figure, tmp_path / "missing" / "figure.png")
    with pytest.raises(ValueError, match="suffix must be one of png, svg, pdf"):
        figures.save(figure, tmp_path / "figure.jpg")


def test_png_is_at_300_dots_an_inch(results: Results, tmp_path: Path) -> None:
    figures.save(figures.draw("gradient", results, size="single"), tmp_path / "figure.png")
    header = (tmp_path / "figure.png").read_bytes()[16:20]
    assert int.from_bytes(header, "big") == int(3.35 * 300)


def test_labels_and_definitions_are_those_of_the_metrics() -> None:
    columns = {column.name: column for module in METRIC_MODULES for column in module.COLUMNS}
    assert columns["stable_rank"].label == METRICS["stable_rank"][0]
    assert columns["stable_rank"].definition.replace(" ", "") in METRICS["stable_rank"][1]
    assert columns["alpha_rank"].definition.startswith(METRICS["alpha_rank"][1].removeprefix("alpha_rank: "))


def test_numbers_have_a_point_in_any_locale(results: Results) -> None:
    before = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("de_DE.UTF-8", "fr_FR.UTF-8"):
            try:
                locale.setlocale(locale.LC_ALL, name)
            except locale.Error:
                continue
        with matplotlib.rc_context({"axes.formatter.use_locale": True}):
            figure = figures.draw("dissociation", results)
        labels = [label.get_text() for label in figure.axes[-1].get_yticklabels()]
    finally:
        locale.setlocale(locale.LC_ALL, before)
    assert {"−0.2", "0", "0.2"} <= set(labels)

"""README and docs held to the code: commands, columns, figures, formats, the tree, the example of a metric."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic import write_run

import spectrograd
from spectrograd.cli import main
from spectrograd.commands.compare import compare
from spectrograd.figures import FIGURES
from spectrograd.metrics import COLUMNS
from spectrograd.readers import READERS, torch_zip
from spectrograd.records import Spectrum
from spectrograd.summaries import summarize_runs, to_records

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
COLUMNS_PAGE = (ROOT / "spectrograd/docs/columns.md").read_text("utf-8")


def _commands(text: str) -> list[list[str]]:
    """Return the spectrograd command lines that a text shows."""
    lines = re.findall(r"^\s*(?:\$ )?(spectrograd (?:scan|analyze|plot|compare)\b[^`\n→]*?)(?:\s{3,}.*)?$", text, re.MULTILINE)
    return [shlex.split(line.split(" | ")[0])[1:] for line in lines]


@pytest.mark.parametrize("source", ["README", *main.list_commands(None)])
def test_every_command_shown_parses(source: str) -> None:
    text = README if source == "README" else CliRunner().invoke(main, [source, "--help"]).output
    shown = [words for words in _commands(text) if "PATH" not in " ".join(words)]
    assert shown
    for words in shown:
        command = main.get_command(None, words[0])
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= options, words


def test_every_command_is_in_the_readme() -> None:
    for name in main.list_commands(None):
        assert f"spectrograd {name}" in README


def test_the_table_of_columns_is_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", README, re.MULTILINE)
    assert {name: (definition, source) for name, definition, source in rows if name in COLUMNS} == {
        column.name: (column.definition, column.source) for column in COLUMNS.values()
    }


def test_the_json_keys_of_compare_are_documented(tmp_path: Path) -> None:
    results = spectrograd.analyze(write_run(tmp_path / "r", {1: [1, 2, 3], 2: [3, 2, 1]}), tmp_path / "results")
    [record] = to_records(summarize_runs(results))
    json.dumps(record)
    rows = re.findall(r"^\| (`.*?) \|", COLUMNS_PAGE.split("prints one object a run")[1], re.MULTILINE)
    keys = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert set(record) == keys
    assert compare.name == "compare"


def test_figures_and_formats_are_named() -> None:
    for figure in FIGURES:
        assert f"sample_checkpoints/figures/{figure.NAME}.png" in README
        assert (ROOT / f"sample_checkpoints/figures/{figure.NAME}.png").is_file()
    for reader in READERS:
        assert f"| {reader.NAME}" in README
    for suffix in torch_zip.SUFFIXES:
        assert f"`{suffix}`" in README


def test_the_tree_names_every_module() -> None:
    tree = README.split("## The tree")[1].split("##")[0]
    for item in sorted((ROOT / "spectrograd").iterdir()):
        if item.name.startswith(("__pycache__", ".", "py.typed")):
            continue
        assert re.search(rf"^\s+{re.escape(item.name)}/?\s", tree, re.MULTILINE), item.name


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "sample_checkpoints/README.md", *(ROOT / "spectrograd/docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


def test_the_example_of_a_metric_works() -> None:
    code = re.search(r"```python\n(\"\"\"The gap.*?)```", README, re.DOTALL)
    assert code is not None
    module: dict[str, object] = {}
    exec(code[1], module)
    spectrum = Spectrum(np.array([4.0, 2.0]), 2, 2, "float64", "float64")
    assert module["compute"](spectrum) == ({"spectral_gap": 2.0}, "")  # type: ignore[operator]


def test_the_library_in_six_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(import spectrograd\n.*?)```", README, re.DOTALL)
    assert code is not None
    write_run(tmp_path / "runs/D8", {0: [1, 2, 3], 1000: [3, 2, 1]})
    monkeypatch.chdir(tmp_path)
    exec(code[1], {"weight": np.eye(9)})
    assert (tmp_path / "gradient.svg").stat().st_size > 1000

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner, Result
from synthetic import diagonal, write_run, write_safetensors

from spectrograd.cli import main


def call(*arguments: object, width: int = 80) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": str(width)}, catch_exceptions=True)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs/small", {0: [1, 2, 5], 100: [1, 2, 1], 9000: [3, 2, 1], 10000: [1, 2, 2]})
    write_run(tmp_path / "runs/large", {0: [1, 2, 5, 6, 7, 8], 100: [9, 2, 1, 3, 4, 1]})
    return tmp_path / "runs"


@pytest.fixture
def results(runs: Path, tmp_path: Path) -> Path:
    assert call("analyze", runs, "-o", tmp_path / "results").exit_code == 0
    return tmp_path / "results"


def test_help_names_every_command_with_an_example() -> None:
    text = call("--help").output
    for command in ("scan", "analyze", "plot", "compare"):
        assert f"spectrograd {command} " in text
        assert f"spectrograd {command} " in call(command, "--help").output
    assert call("--version").output.startswith("spectrograd, version ")


def test_scan_shows_runs_in_80_columns(runs: Path) -> None:
    result = call("scan", runs)
    assert result.exit_code == 0
    assert "0 … 10,000 (4)" in result.stdout
    assert "3 layers, width 16" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if str(runs) not in line)


def test_scan_json_names_every_tensor_without_a_row(runs: Path) -> None:
    found = json.loads(call("scan", runs, "--json").stdout)
    assert [run["name"] for run in found["runs"]] == ["large", "small"]
    checkpoint = found["runs"][1]["checkpoints"][0]
    assert checkpoint["step"] == 0
    assert [matrix["role"] for matrix in checkpoint["matrices"]] == ["mlp_up"] * 3
    assert checkpoint["skipped"] == []


def test_analyze_summary_goes_to_stderr(runs: Path, tmp_path: Path) -> None:
    result = call("analyze", runs, "-o", tmp_path / "results")
    assert result.stdout == ""
    assert "6 checkpoints, 24 matrices" in result.stderr
    assert f"spectrograd plot {tmp_path / 'results'} -o figures/" in result.stderr
    again = call("analyze", runs, "-o", tmp_path / "results")
    assert "up to date  6 checkpoints" in again.stderr
    assert call("analyze", runs, "-o", tmp_path / "results", "--quiet").output == ""


def test_analyze_counts_what_it_did_in_words(tmp_path: Path) -> None:
    weights = {"transformer.h.0.mlp.c_fc.weight": diagonal(2), "a.bias": torch.ones(4), "b.bias": torch.ones(1)}
    write_safetensors(tmp_path / "run/step_1/model.safetensors", weights)
    result = call("analyze", tmp_path / "run", "-o", tmp_path / "results")
    assert "reading     1 checkpoint, 1 matrix, 1.02 kB" in result.stderr
    assert "recorded    1 checkpoint, 1 matrix in" in result.stderr
    assert "no row for  2 tensors: 1-D" in result.stderr
    assert "up to date  1 checkpoint, " in call("analyze", tmp_path / "run", "-o", tmp_path / "results").stderr


def test_analyze_names_what_has_no_numbers_and_what_is_there_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", {step: [1, 2, max(step, 2)] for step in range(13)})
    weights = {"transformer.h.0.mlp.c_fc.weight": torch.full((4, 4), float("nan")), "transformer.h.1.mlp.c_fc.weight": diagonal(2)}
    write_safetensors(run / "step_99/model.safetensors", weights)
    for _ in range(2):
        result = call("analyze", run, "-o", tmp_path / "results")
        assert "no numbers  for 1 matrix: r step_99 transformer.h.0.mlp.c_fc.weight (16 NaN)" in result.stderr
        assert "problem     r step_1 and 1 more: the same weights as step_0" in result.stderr
    ledger = pq.read_table(tmp_path / "results/checkpoints.parquet").to_pandas().set_index("step")["problems"]
    assert [step for step in ledger.index if len(ledger[step])] == [1, 2, 99]
    assert ledger[99].tolist() == [
        "unlike most checkpoints of this run: 1 matrix fewer (transformer.h.2.mlp.c_fc.weight), "
        "1 matrix of another shape (transformer.h.0.mlp.c_fc.weight: 4×4, not 16×16)"
    ]
    assert ledger[2].tolist() == ["the same weights as step_0"]
    write_run(tmp_path / "same", {step: [1, 2, 3] for step in range(15)})
    same = call("analyze", tmp_path / "same", "-o", tmp_path / "other")
    assert "problem     same step_1 and 13 more: the same weights as step_0" in same.stderr


def test_tables_are_remade_only_where_there_are_recordings(results: Path, tmp_path: Path) -> None:
    assert "remade      tables of 6 checkpoints" in call("analyze", "-o", results).stderr
    never = call("analyze", "-o", tmp_path / "never")
    assert never.exit_code == 1
    assert "it holds no recordings" in never.stderr
    assert not (tmp_path / "never").exists()


def test_labels(runs: Path, tmp_path: Path) -> None:
    call("analyze", f"baseline={runs / 'small'}", "-o", tmp_path / "results")
    assert (tmp_path / "results/singular_values/run=baseline").is_dir()
    twice = call("analyze", f"D={runs / 'small'}", f"D={runs / 'large'}", "-o", tmp_path / "results")
    assert twice.exit_code == 2
    assert "cannot name 2 runs 'D'" in twice.stderr


@pytest.mark.parametrize("name", ["run[1]", "[red]x", "[bold]", "a|b"])
def test_names_are_no_markup(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / name, {0: [1, 2, 5], 100: [1, 2, 1]})
    assert f"{name}  " in call("scan", tmp_path / name, width=200).stdout
    assert call("analyze", tmp_path / name, "-o", tmp_path / "results").exit_code == 0
    assert name in call("compare", tmp_path / "results").stdout
    assert call("plot", tmp_path / "results", "-o", tmp_path / "f").exit_code == 0


@pytest.mark.parametrize("figure", ["gradient", "dissociation"])
def test_plot_writes_pictures_and_prints_their_paths(results: Path, tmp_path: Path, figure: str) -> None:
    result = call(
        "plot", results, "-o", tmp_path / "f", "--figure", figure, "--format", "png", "--format", "svg", "--format", "pdf", "--x", "log"
    )
    assert result.exit_code == 0
    assert result.stdout.split() == [str(tmp_path / f"f/{figure}.{ending}") for ending in ("png", "svg", "pdf")]
    assert all(Path(line).stat().st_size > 1000 for line in result.stdout.split())


def test_plot_of_gradients_alone(results: Path, tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (results / "gradients.parquet").rename(tmp_path / "only/gradients.parquet")
    assert call("plot", tmp_path / "only", "-o", tmp_path / "f").exit_code == 0
    assert call("compare", tmp_path / "only").exit_code == 0


def test_a_near_miss_gets_a_suggestion(results: Path, tmp_path: Path) -> None:
    for option, wrong, right in (
        ("--metric", "stable_rnk", "stable_rank"),
        ("--group", "mlp_upp", "mlp_up"),
        ("--figure", "gradent", "gradient"),
    ):
        result = call("plot", results, "-o", tmp_path / "f", option, wrong)
        assert result.exit_code == 2
        assert right in result.stderr
    assert "Did you mean 'analyze'?" in call("analyse").stderr


def test_compare_in_every_form(results: Path, tmp_path: Path) -> None:
    table = call("compare", results)
    assert table.exit_code == 0
    assert all(len(line) <= 80 for line in table.stdout.splitlines())
    rows = json.loads(call("compare", results, "--format", "json").stdout)
    small = next(row for row in rows if row["run"] == "small")
    assert small["checkpoints"] == 4
    assert [crossing["direction"] for crossing in small["crossings"]] == ["down", "up"]
    assert set(small["crossings"][0]) == {"step", "direction", "confident", "between", "spans_missing", "note"}
    assert {row["run"] for row in csv.DictReader(io.StringIO(call("compare", results, "--format", "csv").stdout))} == {"small", "large"}
    assert call("compare", results, "--format", "markdown").stdout.startswith("| Run |")
    call("compare", results, "--format", "json", "-o", tmp_path / "out.json", "--figure", tmp_path / "out.pdf")
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == rows
    assert (tmp_path / "out.pdf").stat().st_size > 1000


def test_a_run_with_one_checkpoint_and_a_run_with_one_layer(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/single", {500: [1, 2, 3]})
    write_run(tmp_path / "runs/shallow", {0: [3], 10: [2]})
    assert call("analyze", tmp_path / "runs", "-o", tmp_path / "results").exit_code == 0
    rows = {row["run"]: row for row in json.loads(call("compare", tmp_path / "results", "--format", "json").stdout)}
    assert rows["single"]["crossings"] == rows["shallow"]["crossings"] == []
    assert "needs at least two checkpoints" in str(rows["single"])
    assert "one layer" in str(rows["shallow"])
    assert call("plot", tmp_path / "results", "-o", tmp_path / "f").exit_code == 0


def test_nothing_to_draw_is_said_and_is_no_failure(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/zero", {1: [0, 0, 0], 2: [0, 0, 0]})
    call("analyze", tmp_path / "runs", "-o", tmp_path / "results")
    result = call("plot", tmp_path / "results", "-o", tmp_path / "f")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0].startswith("gradient: nothing to draw")
    assert result.stderr.count("nothing to draw") == 2


# ---------------------------------------------------------------- bad input: exit codes of the design
def test_nothing_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("x")
    (tmp_path / "other/optimizer.pt").write_bytes(b"x")
    for folder in ("empty", "other"):
        for command in (("scan", tmp_path / folder), ("analyze", tmp_path / folder, "-o", tmp_path / "results")):
            result = call(*command)
            assert result.exit_code == 1
            assert result.stderr.startswith("Error: cannot find a checkpoint in")


def test_results_that_are_a_file(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "results").touch()
    result = call("analyze", runs, "-o", tmp_path / "results")
    assert result.exit_code == 2
    assert "it is a file" in result.stderr
    assert call("plot", tmp_path / "results", "-o", tmp_path / "f").exit_code == 2


def test_some_refused(runs: Path, tmp_path: Path) -> None:
    file = runs / "small/step_100/model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    result = call("analyze", runs, "-o", tmp_path / "results")
    assert result.exit_code == 3
    assert f"refused {file.parent}: model.safetensors: truncated" in result.stderr
    assert set(pq.read_table(tmp_path / "results/spectra.parquet")["step"].to_pylist()) == {0, 100, 9000, 10000}


def test_all_refused(tmp_path: Path) -> None:
    (tmp_path / "r/step_1").mkdir(parents=True)
    (tmp_path / "r/step_1/model.safetensors").write_bytes(b"")
    result = call("analyze", tmp_path / "r", "-o", tmp_path / "results")
    assert result.exit_code == 1
    assert "the file is empty" in result.stderr


def test_steps_that_match_nothing(runs: Path, tmp_path: Path) -> None:
    result = call("analyze", runs, "-o", tmp_path / "results", "--steps", "7")
    assert result.exit_code == 1
    assert "--steps 7 leaves none of the steps 0, 100, 9000, 10000" in result.stderr
    assert call("analyze", runs, "-o", tmp_path / "results", "--steps", "every tenth").exit_code == 2


def test_wrong_usage(runs: Path, tmp_path: Path) -> None:
    for arguments in (
        ("analyze", runs),
        ("analyze", runs, "-o", tmp_path / "r", "--bands", "fifths"),
        ("analyze", runs, "-o", tmp_path / "r", "--shard", "3/2"),
        ("plot", tmp_path),
    ):
        assert call(*arguments).exit_code == 2


def test_a_table_of_another_version(results: Path, tmp_path: Path) -> None:
    path = results / "gradients.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata({"spectrograd.schema_version": "7"}), path)
    for command in (("plot", results, "-o", tmp_path / "f"), ("compare", results)):
        result = call(*command)
        assert result.exit_code == 1
        assert "schema version 7" in result.stderr


def test_diagonal_has_the_stable_rank_it_says() -> None:
    values = diagonal(2.5).numpy().diagonal()
    assert float((values**2).sum()) == pytest.approx(2.5)

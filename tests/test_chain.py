"""The whole chain in real processes, a kill in the middle included."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from synthetic import assert_same_tables, write_run

ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "spectrograd", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)


@pytest.fixture(scope="module")
def slow_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty checkpoints that take a while each."""
    path = tmp_path_factory.mktemp("slow") / "run"
    generator = torch.Generator().manual_seed(0)
    for step in range(0, 3000, 100):
        folder = path / f"step_{step}"
        folder.mkdir(parents=True)
        weights = {
            f"transformer.h.{i}.attn.c_{name}.weight": torch.randn(160, 160, generator=generator) for i in range(3) for name in "qkv"
        }
        save_file(weights, folder / "model.safetensors")
    return path


@pytest.fixture(scope="module")
def undisturbed(slow_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "results"
    assert run("analyze", slow_run, "-o", out).returncode == 0
    return out


def _stop_in_the_middle(slow_run: Path, out: Path, signal_number: int) -> subprocess.CompletedProcess[str]:
    """Start an analysis and stop it when a few of the thirty checkpoints are recorded."""
    process = subprocess.Popen(
        command("analyze", slow_run, "-o", out, "--workers", 1), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    deadline = time.monotonic() + 60
    while len(list((out / "singular_values").rglob("step*.parquet"))) < 4:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal_number)
    output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, output, errors)


def test_from_checkpoints_to_pictures_and_comparison(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", {0: [1, 2, 5], 100: [1, 2, 1], 9000: [3, 2, 1]})
    write_run(tmp_path / "runs/b", {0: [1, 2, 5, 6], 100: [9, 2, 1, 3]})
    analysis = run("analyze", tmp_path / "runs", "-o", tmp_path / "results")
    assert (analysis.returncode, analysis.stdout) == (0, ""), analysis.stderr
    plot = run("plot", tmp_path / "results", "-o", tmp_path / "figures")
    assert plot.returncode == 0, plot.stderr
    assert [Path(line).name for line in plot.stdout.split()] == ["gradient.png", "dissociation.png"]
    assert all(Path(line).read_bytes().startswith(b"\x89PNG") for line in plot.stdout.split())
    compare = run("compare", tmp_path / "results", "--format", "markdown")
    assert compare.returncode == 0
    assert "| a " in compare.stdout


def test_a_log_without_display_locale_or_home(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {0: [2, 2, 1], 1: [2, 2, 1], 1000: [1, 2, 3]})
    poor = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C",
        "LANG": "C",
        "DISPLAY": "localhost:64.0",
        "MPLBACKEND": "TkAgg",
        "PYTHONIOENCODING": "cp1252",
        "PYTHONUTF8": "0",
    }
    for arguments in (
        ("analyze", tmp_path / "run", "-o", tmp_path / "r"),
        ("plot", tmp_path / "r", "-o", tmp_path / "f"),
        ("compare", tmp_path / "r"),
        ("scan", tmp_path / "run"),
    ):
        done = subprocess.run(command(*arguments), capture_output=True, env=poor, check=False)
        assert done.returncode == 0, (arguments, done.stderr.decode(errors="replace"))
        assert b"Traceback" not in done.stderr


def test_sigkill_loses_nothing_finished_and_a_rerun_repeats_nothing(slow_run: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert _stop_in_the_middle(slow_run, out, signal.SIGKILL).returncode == -signal.SIGKILL
    recorded = {path: path.stat().st_mtime_ns for path in (out / "singular_values").rglob("step*.parquet")}
    assert 4 <= len(recorded) < 30
    for path in recorded:
        assert pq.read_table(path).num_rows == 9
    again = run("analyze", slow_run, "-o", out)
    assert again.returncode == 0, again.stderr
    assert f"up to date  {len(recorded)} checkpoints" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in recorded} == recorded
    assert_same_tables(out, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_finished_in_the_tables(slow_run: Path, undisturbed: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "results"
    stopped = _stop_in_the_middle(slow_run, out, number)
    assert stopped.returncode == 130, stopped.stderr
    assert "run the same command again to go on" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert pq.read_table(out / "spectra.parquet").num_rows >= 4 * 9
    assert run("analyze", slow_run, "-o", out).returncode == 0
    assert_same_tables(out, undisturbed)


def test_two_analyses_of_one_folder_at_once(slow_run: Path, undisturbed: Path, tmp_path: Path) -> None:
    both = [subprocess.Popen(command("analyze", slow_run, "-o", tmp_path / "r", "-q"), env=ENVIRONMENT) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert_same_tables(tmp_path / "r", undisturbed)


def test_no_room_is_a_plain_message(slow_run: Path, tmp_path: Path) -> None:
    limited = f"ulimit -f 4; exec {' '.join(command('analyze', slow_run, '-o', tmp_path / 'r'))}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 4, done.stderr
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "r").rglob("*.tmp"))

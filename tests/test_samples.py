"""The sample runs: what they claim to be, and their numbers against a plain float64 SVD."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import spectrograd
from spectrograd.results import Results

SAMPLES = Path(__file__).parents[1] / "sample_checkpoints"
STEPS = [0, 25, 50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 10000]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return spectrograd.analyze(SAMPLES, tmp_path_factory.mktemp("samples") / "results")


def load_weights(run: str, step: int) -> dict[str, torch.Tensor]:
    """Return the weights by the libraries' own loaders."""
    if run == "D12":
        weights: dict[str, torch.Tensor] = torch.load(SAMPLES / run / f"model_{step:06d}.pt", weights_only=True)
        return weights
    return {name: tensor for file in (SAMPLES / run / f"step_{step:05d}").glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(("run", "depth"), [("D8", 8), ("D12", 12), ("D16", 16)])
def test_the_runs_are_what_their_readme_says(results: Results, run: str, depth: int) -> None:
    ledger = results.checkpoints.query("run == @run")
    assert ledger["step"].tolist() == STEPS
    assert set(ledger["depth"]) == {depth}
    assert set(ledger["width"]) == {4 * depth}
    assert set(ledger["num_matrices"]) == {6 * depth + 2}
    config = json.loads((SAMPLES / run / "config.json").read_text("utf-8"))
    assert set(ledger["num_params"]) == {config["training"]["parameters"]}
    assert f"{config['training']['parameters']:,}" in (SAMPLES / "README.md").read_text("utf-8")
    loss = results.history.query("run == @run")["loss"].to_numpy()
    assert loss[0] > 5.4  # ln 256 = 5.55: it knew nothing
    assert loss[-1] < 2.5


@pytest.mark.parametrize("run", ["D8", "D12", "D16"])
def test_every_matrix_agrees_with_a_plain_float64_svd(results: Results, run: str) -> None:
    spectra = results.spectra.query("run == @run")
    recordings = results.singular_values(run).set_index(["step", "tensor"])
    compared = 0
    for step, rows in spectra.groupby("step"):
        weights = load_weights(run, int(step))
        assert set(rows["tensor"]) == set(weights)
        for row in rows.itertuples():
            matrix = weights[row.tensor].double().numpy()
            sigma = np.linalg.svd(matrix, compute_uv=False)
            m, n = matrix.shape
            floor = 2 * (math.sqrt(m) + math.sqrt(n)) * math.sqrt(2.0**-16 * float(np.sum(matrix**2)) / (3 * m * n))
            kept = sigma[sigma > floor]
            assert row.stable_rank == pytest.approx(float(np.sum(sigma**2)) / sigma[0] ** 2, rel=1e-8)
            slope = np.polynomial.Polynomial.fit(np.log(np.arange(1, len(kept) + 1)), np.log(kept), 1).convert().coef[1]
            assert row.alpha_rank == pytest.approx(-slope, rel=1e-8)
            assert row.numerical_rank == len(kept)
            values = recordings.loc[(step, row.tensor), "singular_values"]
            assert np.all(np.abs(values - sigma)[: len(kept)] <= 1e-8 * kept + 4 * 2.0**-52 * sigma[0] ** 2 / kept)
            compared += 1
    assert compared == len(STEPS) * len(set(spectra["tensor"]))


def test_the_samples_are_small_enough() -> None:
    assert (
        sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file() and not path.relative_to(SAMPLES).parts[0].startswith("."))
        < 45e6
    )

"""Soft ranks: how many directions a matrix uses."""

import math

import numpy as np

from spectrograd.records import Column, Spectrum

COLUMNS: tuple[Column, ...] = (
    Column("stable_rank", "SR", "1", 0, "Σσ² / σ₁²", "Rudelson & Vershynin 2007, doi:10.1145/1255443.1255449"),
    Column(
        "stable_rank_relative", "relative SR", "1", 0, "stable_rank · (√m + √n)² / (mn): 1 for a Gaussian matrix of that shape",
        "Marchenko & Pastur 1967, doi:10.1070/SM1967v001n04ABEH001994",
    ),
    Column("effective_rank", "effective rank", "1", 0, "exp(−Σ p ln p), p = σ/Σσ", "Roy & Vetterli 2007, EUSIPCO, pp. 606-610"),
    Column("participation_ratio", "participation ratio", "1", 0, "(Σλ)² / Σλ², λ = σ²", "Bell & Dean 1970, doi:10.1039/DF9705000055"),
    Column("numerical_rank", "numerical rank", "1", 0, "number of σ above the noise floor of the stored dtype", "docs/columns.md"),
)  # fmt: skip


def compute(spectrum: Spectrum) -> tuple[dict[str, float], str]:
    """Return the soft ranks; NaN for a zero matrix, whose numerical rank is 0."""
    sigma = spectrum.singular_values
    rank = float(np.count_nonzero(sigma > spectrum.noise_floor))
    if sigma[0] == 0:
        return {column.name: math.nan for column in COLUMNS} | {"numerical_rank": 0.0}, ""
    m, n = spectrum.rows, spectrum.cols
    relative = sigma / sigma[0]
    lam = relative**2
    p = relative[relative > 0] / relative.sum()
    stable = float(lam.sum())
    return {
        "stable_rank": stable,
        "stable_rank_relative": stable * (math.sqrt(m) + math.sqrt(n)) ** 2 / (m * n),
        "effective_rank": float(np.exp(-np.sum(p * np.log(p)))),
        "participation_ratio": stable**2 / float(np.sum(lam**2)),
        "numerical_rank": rank,
    }, ""

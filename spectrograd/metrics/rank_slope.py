"""The decay of singular values over their rank: σ_j ∝ j^(−α)."""

import math

import numpy as np
from numpy.typing import NDArray

from spectrograd.records import Column, Spectrum

FEWEST = 8
FLAT = 1e-12
SOURCE = "docs/columns.md; the α of arXiv:2604.22778"
COLUMNS: tuple[Column, ...] = (
    Column("alpha_rank", "α_rank", "1", 0, "−slope of ln σ_j on ln j over all σ above the noise floor, ordinary least squares", SOURCE),
    Column(
        "alpha_rank_stderr",
        "standard error of α_rank",
        "1",
        0,
        "standard error of that slope from its residuals, not sampling error",
        SOURCE,
    ),
    Column("alpha_rank_r2", "r² of α_rank", "1", 0, "share of the variance of ln σ_j that the line explains", SOURCE),
    Column("alpha_bulk", "α_bulk", "1", 0, "as alpha_rank, over ranks ⌈0.1r⌉ … ⌊0.9r⌋ of the r values", SOURCE),
)


def compute(spectrum: Spectrum) -> tuple[dict[str, float], str]:
    """Return the slope with its residual error and r², and the slope of the middle ranks."""
    sigma = spectrum.singular_values
    log_sigma = np.log(sigma[sigma > spectrum.noise_floor])
    r = len(log_sigma)
    if r < FEWEST:
        return dict.fromkeys((column.name for column in COLUMNS), math.nan), "too few singular values for an exponent"
    log_rank = np.log(np.arange(1, r + 1))
    slope, stderr, r2 = _fit(log_rank, log_sigma)
    middle = slice(math.ceil(0.1 * r) - 1, math.floor(0.9 * r))
    bulk = _fit(log_rank[middle], log_sigma[middle])[0] if len(log_rank[middle]) >= FEWEST else math.nan
    return {"alpha_rank": 0.0 - slope, "alpha_rank_stderr": stderr, "alpha_rank_r2": r2, "alpha_bulk": 0.0 - bulk}, ""


def _fit(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return slope, its standard error and r² of ordinary least squares; r² is NaN where y is flat."""
    dx, dy = x - x.mean(), y - y.mean()
    sxx, syy = float(dx @ dx), float(dy @ dy)
    slope = float(dx @ dy) / sxx
    residual = float(np.sum((dy - slope * dx) ** 2))
    r2 = 1 - residual / syy if float(np.ptp(y)) >= FLAT else math.nan
    return slope, math.sqrt(residual / (len(x) - 2) / sxx), r2

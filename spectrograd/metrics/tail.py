"""Power-law tails of the eigenvalues λ = σ²: their density falls as λ^(−α)."""

import math

import numpy as np
from numpy.typing import NDArray

from spectrograd.records import Column, Spectrum

FEWEST = 8
LEAST_SPREAD = 0.05
FLAT = 1e-12
PROBES = 24
CLAUSET = "Clauset, Shalizi & Newman 2009, doi:10.1137/070710111"
COLUMNS: tuple[Column, ...] = (
    Column(
        "alpha_tail", "α_tail", "1", 0, "exponent of a power-law tail of λ: maximum likelihood, xmin by least Kolmogorov-Smirnov distance",
        f"{CLAUSET}; Martin & Mahoney 2021, arXiv:1810.01075",
    ),
    Column("alpha_tail_stderr", "standard error of α_tail", "1", 0, "(alpha_tail − 1) / √alpha_tail_count", CLAUSET),
    Column("alpha_tail_xmin", "xmin of α_tail", "weights²", 2, "smallest λ of the tail", CLAUSET),
    Column("alpha_tail_ks", "KS distance of α_tail", "1", 0, "left-limit Kolmogorov-Smirnov distance of tail and power law", CLAUSET),
    Column("alpha_tail_count", "size of the tail", "1", 0, "number of λ at or above xmin", CLAUSET),
    Column(
        "alpha_hill", "α_hill", "1", 0, "1 + h / Σ_{i≤h} ln(λ_i/λ_{h+1}), h = ⌊r/2⌋ of the r values of λ above the floor",
        "Hill 1975, doi:10.1214/aos/1176343247",
    ),
)  # fmt: skip


def compute(spectrum: Spectrum) -> tuple[dict[str, float], str]:
    """Return the maximum-likelihood tail and Hill's estimate on the upper half of the values."""
    values = {column.name: math.nan for column in COLUMNS}
    sigma = spectrum.singular_values
    kept = sigma[sigma > spectrum.noise_floor]
    if len(kept) < FEWEST:
        return values, "too few singular values for an exponent"
    lam = (kept / kept[0]) ** 2
    h = len(lam) // 2
    total = float(np.sum(np.log(lam[:h] / lam[h])))
    if total > FLAT * h:
        values["alpha_hill"] = 1 + h / total
    if lam[0] - lam[-1] < LEAST_SPREAD * lam[0]:
        return values, "flat spectrum: no tail"
    alpha, xmin, distance, count = fit_tail(lam[::-1])
    values |= {
        "alpha_tail": alpha,
        "alpha_tail_stderr": (alpha - 1) / math.sqrt(count),
        "alpha_tail_xmin": xmin * float(kept[0]) * float(kept[0]),  # a power would raise where a product is inf
        "alpha_tail_ks": distance,
        "alpha_tail_count": float(count),
    }
    return values, ""


def fit_tail(x: NDArray[np.float64]) -> tuple[float, float, float, int]:
    """Return exponent, xmin, KS distance and size of the best power-law tail of ascending positive values.

    Every value but the last is tried as xmin: α = 1 + n/(Σ ln x_j − n ln xmin) over the n values from xmin on, distance
    D = max_j |1 − (x_j/xmin)^(1−α) − j/n|, j = 0 … n−1; the first xmin of least D wins.

    Notes
    -----
    D at a few probe points bounds D from below; only candidates whose bound does not exceed the best D so far are
    evaluated whole. The answer is that of the full scan.

    References
    ----------
    Clauset, Shalizi & Newman 2009, doi:10.1137/070710111.
    """
    log_x = np.log(x)
    total = len(x)
    n = total - np.arange(total - 1)
    # Σ ln x_j − n ln xmin from the gaps between neighbours: nothing cancels, whatever the scale
    excess = np.cumsum(((n - 1) * np.diff(log_x))[::-1])[::-1]
    with np.errstate(divide="ignore"):
        alpha = np.where(excess > FLAT * n, 1 + n / excess, np.inf)  # equal but for rounding is no tail
    steep = np.where(np.isfinite(alpha), alpha - 1, 0.0)
    start = np.arange(total - 1)[:, None]
    probe = start + (np.linspace(0, 1, PROBES) * (n[:, None] - 1)).astype(np.int64)
    model = 1 - np.exp(-steep[:, None] * (log_x[probe] - log_x[:-1, None]))
    bound = np.max(np.abs(model - (probe - start) / n[:, None]), axis=1)
    bound[~np.isfinite(alpha)] = np.inf
    best, winner = math.inf, 0
    for i in np.argsort(bound, kind="stable"):
        if bound[i] > best:
            break
        tail = 1 - np.exp(-steep[i] * (log_x[i:] - log_x[i])) - np.arange(n[i]) / n[i]
        distance = float(np.max(np.abs(tail)))
        if (distance, i) < (best, winner):
            best, winner = distance, int(i)
    return float(alpha[winner]), float(x[winner]), best, int(n[winner])

"""The Marchenko-Pastur law of pure noise, fitted to the bulk of a spectrum."""

import math
from functools import lru_cache

import numpy as np

from spectrograd.records import Column, Spectrum

FEWEST = 8
TRACY_WIDOM_99 = 2.0234
LAW = "Marchenko & Pastur 1967, doi:10.1070/SM1967v001n04ABEH001994"
COLUMNS: tuple[Column, ...] = (
    Column(
        "mp_sigma", "σ of the bulk", "of the weights", 1, "standard deviation of the noise: σ² = median(λ)/(N·med), spikes removed",
        LAW,
    ),
    Column("mp_edge", "upper edge of the bulk", "weights²", 2, "mp_sigma² (√N + √k)²", LAW),
    Column(
        "mp_spikes", "spikes", "1", 0, "number of λ above the 99 % point of the largest eigenvalue of noise",
        "Johnstone 2001, doi:10.1214/aos/1009210544",
    ),
    Column("mp_softrank", "soft rank of the bulk", "1", 0, "mp_edge / λ₁; may exceed 1", "Martin & Mahoney 2021, arXiv:1810.01075"),
)  # fmt: skip


def compute(spectrum: Spectrum) -> tuple[dict[str, float], str]:
    """Return scale, edge, spikes and soft rank; NaN under 8 values or where most of them are rounding noise."""
    sigma = spectrum.singular_values
    k, long = min(spectrum.rows, spectrum.cols), max(spectrum.rows, spectrum.cols)
    if k < FEWEST or np.count_nonzero(sigma > spectrum.noise_floor) < k / 2:
        return {column.name: math.nan for column in COLUMNS}, ""
    top = float(sigma[0])
    lam = (sigma / top) ** 2
    spikes = 0
    for _ in range(k):
        variance = float(np.median(lam[spikes:])) / ((long - spikes) * law_median((k - spikes) / (long - spikes)))
        found = int(np.count_nonzero(lam > variance * _largest_of_noise(k - spikes, long - spikes)))
        if found <= spikes or k - found < FEWEST:
            break
        spikes = found
    edge = variance * (math.sqrt(long - spikes) + math.sqrt(k - spikes)) ** 2
    return {
        "mp_sigma": math.sqrt(variance) * top,
        "mp_edge": edge * top * top,  # a power would raise where a product is inf
        "mp_spikes": float(spikes),
        "mp_softrank": edge,
    }, ""


def _largest_of_noise(k: int, n: int) -> float:
    """Return the 99 % point of the largest eigenvalue of X Xᵀ, X k×n with unit variance (Tracy-Widom)."""
    a, b = math.sqrt(n - 0.5), math.sqrt(k - 0.5)
    return float((a + b) ** 2 + TRACY_WIDOM_99 * (a + b) * (1 / a + 1 / b) ** (1 / 3))


@lru_cache(maxsize=1024)
def law_median(ratio: float) -> float:
    """Return the median of the Marchenko-Pastur law with unit variance: the root of its distribution function at ½.

    Parameters
    ----------
    ratio : float
        Short side over long side, in (0, 1].
    """
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if distribution(middle, ratio) < 0.5 else (low, middle)
    return 0.5 * (low + high)


def distribution(x: float, ratio: float) -> float:
    """Return the Marchenko-Pastur distribution function at x, unit variance, in closed form."""
    c, root = ratio, 2 * math.sqrt(ratio)
    a, b = (1 - math.sqrt(c)) ** 2, (1 + math.sqrt(c)) ** 2
    if x <= a or x >= b:
        return float(x >= b)

    def angle(y: float) -> float:
        return math.asin(min(1.0, max(-1.0, y))) + math.pi / 2

    first = (1 + c) * angle((x - 1 - c) / root)
    second = (1 - c) * angle(((1 + c) * x - (1 - c) ** 2) / (root * x))
    return (math.sqrt((b - x) * (x - a)) + first - second) / (2 * math.pi * c)

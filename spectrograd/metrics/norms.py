"""Matrix norms from singular values."""

import numpy as np

from spectrograd.records import Column, Spectrum

COLUMNS: tuple[Column, ...] = (
    Column("spectral_norm", "spectral norm", "of the weights", 1, "σ₁, the largest singular value", "Horn & Johnson, Matrix Analysis"),
    Column("frobenius_norm", "Frobenius norm", "of the weights", 1, "√Σσ²", "Horn & Johnson, Matrix Analysis"),
    Column("nuclear_norm", "nuclear norm", "of the weights", 1, "Σσ", "Horn & Johnson, Matrix Analysis"),
)


def compute(spectrum: Spectrum) -> tuple[dict[str, float], str]:
    """Return σ₁, √Σσ² and Σσ; all 0 for a zero matrix. Sums are taken relative to σ₁, so they cannot overflow."""
    sigma = spectrum.singular_values
    top = float(sigma[0])
    relative = sigma / top if top else sigma
    frobenius, nuclear = top * float(np.sqrt(np.sum(relative**2))), top * float(relative.sum())
    return {"spectral_norm": top, "frobenius_norm": frobenius, "nuclear_norm": nuclear}, ""

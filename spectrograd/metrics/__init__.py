"""Numbers of one spectrum, one module a family. A family knows a spectrum and not the layer it came from."""

from itertools import chain
from typing import Protocol

from spectrograd.metrics import marchenko_pastur, norms, rank_slope, ranks, tail
from spectrograd.records import Column, Spectrum, join_notes

METRICS_VERSION = 1
"""Another number makes `analyze` compute every metric again, from the recordings."""


class Family(Protocol):
    """What a metric family provides."""

    COLUMNS: tuple[Column, ...]

    def compute(self, spectrum: Spectrum) -> tuple[dict[str, float], str]:
        """Return the family's columns, NaN where undefined, and a note that says why they are, else empty."""
        ...


METRICS: tuple[Family, ...] = (norms, ranks, rank_slope, tail, marchenko_pastur)
COLUMNS: dict[str, Column] = {column.name: column for column in chain.from_iterable(family.COLUMNS for family in METRICS)}


def measure_spectrum(spectrum: Spectrum) -> tuple[dict[str, float], str]:
    """Return every metric of a spectrum by column name, NaN where undefined, and a note on what is.

    A spectrum without values (its matrix held NaN or inf) has no defined metric at all.
    """
    if not len(spectrum.singular_values):
        return dict.fromkeys(COLUMNS, float("nan")), ""
    values: dict[str, float] = {}
    notes: list[str] = []
    for family in METRICS:
        found, note = family.compute(spectrum)
        values |= found
        notes += [note] if note not in notes else []
    return values, join_notes(*notes)

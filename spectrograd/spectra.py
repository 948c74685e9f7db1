"""Matrix → singular values: Gram matrix on the short side in float64, then its eigenvalues.

A float32 Gram matrix is wrong in the tail and is never used. Where even the float64 one loses digits that matter, the
matrix is done again by a float64 SVD.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spectrograd.errors import SpectrumError
from spectrograd.records import PRECISIONS, Spectrum, format_precision, join_notes

if TYPE_CHECKING:
    import torch

    Matrix = torch.Tensor | NDArray[Any]

BLOCK = 2**20
"""Elements that are widened to float64 at a time where the short side is small: 8 MiB, which stays in the cache."""
WHOLE = 2**23
"""Elements up to which a matrix is decomposed in one piece by the SVD: 64 MiB."""
LOSES_DIGITS = 1e-5
"""Under this fraction of the largest value, eigenvalues of a float64 Gram matrix have lost digits."""
SAFE_EXPONENT = 200
"""Between 2⁻²⁰⁰ and 2²⁰⁰ squares are far from the ends of float64: scaling would change no bit."""
UNRESOLVED = 1e-7
"""Under this fraction a float64 Gram matrix says nothing: its eigenvalues there are rounding."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a first look at the values says: their largest magnitude, and the dtype whose rounding they carry."""

    largest: float
    precision: str
    bad: str

    @property
    def is_sound(self) -> bool:
        """Whether there is a spectrum to compute."""
        return not self.bad and self.largest > 0


def compute_spectrum(matrix: "Matrix", dtype: str) -> tuple[Spectrum, str]:
    """Return all singular values of a matrix, and a note on what is missing or doubtful.

    Parameters
    ----------
    matrix : torch.Tensor or ndarray, shape (rows, cols)
        Any floating dtype that `records.PRECISIONS` lists; on the CPU.
    dtype : str
        The dtype that the file stores, which decides the noise floor.

    Returns
    -------
    Spectrum, str
        Float64 values, descending; none where the matrix holds NaN or inf, which the note counts.

    Notes
    -----
    The values agree with a float64 SVD within 1e-8·σ + 4·2⁻⁵²·σ₁²/σ above the noise floor.
    """
    return compute_spectra([(matrix, dtype)])[0]


def compute_spectra(matrices: "Sequence[tuple[Matrix, str]]", device: str = "cpu") -> list[tuple[Spectrum, str]]:
    """Return spectrum and note of each (matrix, stored dtype); see `compute_spectrum`.

    Parameters
    ----------
    matrices : sequence of (torch.Tensor or ndarray, str)
        On the CPU; a matrix is copied to the device in the dtype that it has.
    device : str
        `cpu` computes with NumPy; any torch device name with torch, eigenvalues batched over equal short sides.
        Changes speed alone: both agree within the bound of `compute_spectrum`.
    """
    for matrix, dtype in matrices:
        _check(matrix, dtype)
    if device == "cpu":
        return [_finish(matrix, dtype, *_from_gram_numpy(matrix, dtype)) for matrix, dtype in matrices]
    scans = [_scan(matrix, dtype) for matrix, dtype in matrices]
    sound = [i for i, scan in enumerate(scans) if scan.is_sound]
    values = dict(zip(sound, _from_gram_torch([(matrices[i][0], scans[i].largest) for i in sound], device), strict=True))
    return [_finish(matrix, dtype, scan, values.get(i)) for i, ((matrix, dtype), scan) in enumerate(zip(matrices, scans, strict=True))]


def _check(matrix: "Matrix", dtype: str) -> None:
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise SpectrumError(f"cannot compute the spectrum of shape {tuple(matrix.shape)}: a matrix with rows and columns is needed")
    if dtype not in PRECISIONS:
        raise SpectrumError(f"cannot compute the spectrum of {dtype}: floating dtypes are {', '.join(PRECISIONS)}")


def _finish(matrix: "Matrix", dtype: str, scan: _Scan, values: NDArray[np.float64] | None) -> tuple[Spectrum, str]:
    """Return spectrum and note from the values of the Gram matrix, done again by SVD where they do not suffice."""
    rows, cols = matrix.shape
    if scan.bad:
        return Spectrum(np.empty(0), rows, cols, dtype, dtype), scan.bad
    if scan.largest == 0:
        return Spectrum(np.zeros(min(rows, cols)), rows, cols, dtype, dtype), "zero"
    note = format_precision(dtype, scan.precision)
    if values is not None and np.isfinite(values[0]):
        spectrum = Spectrum(values, rows, cols, dtype, scan.precision)
        if not _loses_digits(spectrum):
            return spectrum, note
    try:
        values = _from_svd(matrix, scan.largest)
    except np.linalg.LinAlgError as error:
        return Spectrum(np.empty(0), rows, cols, dtype, scan.precision), join_notes(note, f"singular values did not converge: {error}")
    if not np.isfinite(values[0]):
        return Spectrum(np.empty(0), rows, cols, dtype, scan.precision), join_notes(note, "singular values exceed float64")
    return Spectrum(values, rows, cols, dtype, scan.precision), note


def _loses_digits(spectrum: Spectrum) -> bool:
    """Tell whether a value that counts lies where the Gram matrix has lost its digits."""
    sigma, floor = spectrum.singular_values, spectrum.noise_floor
    small = sigma < LOSES_DIGITS * sigma[0]
    return bool(np.any(small if floor < UNRESOLVED * sigma[0] else small & (sigma > floor)))


# ---------------------------------------------------------------- values in blocks
def _blocks(matrix: "Matrix", rows: int | None = None) -> Iterator[NDArray[np.float64]]:
    """Yield the matrix with its long side down, in float64, some rows at a time: each block only until the next is asked for."""
    is_tall = matrix.shape[0] >= matrix.shape[1]
    tall = matrix if is_tall else matrix.T
    length, side = tall.shape
    step = min(length, rows or max(BLOCK // side, side // 2, 1))  # half the side: products of blocks cost more than adding them up
    buffer = np.empty((step, side)) if is_tall else np.empty((side, step)).T  # laid out as the matrix is: copied without turning
    for start in range(0, length, step):
        block: Any = tall[start : start + step]
        wide = buffer[: len(block)]
        if isinstance(block, np.ndarray):
            np.copyto(wide, block)
        else:
            import torch

            torch.from_numpy(wide).copy_(block.detach())
        yield wide


def _scan(matrix: "Matrix", dtype: str, gram: NDArray[np.float64] | None = None) -> _Scan:
    """Return what a first look says; add the Gram matrix of the values as they are to `gram` on the way."""
    candidates = ["bfloat16", "float16"] if dtype in ("float32", "float64") else []
    largest, num_nan, num_inf = 0.0, 0, 0
    for block in _blocks(matrix):
        top = max(float(block.max()), -float(block.min()))  # NaN if there is one
        if not np.isfinite(top):
            num_nan += int(np.isnan(block).sum())
            num_inf += int(np.isinf(block).sum())
        largest = max(largest, top)
        candidates = [name for name in candidates if _holds(block, name)]
        if gram is not None and not (num_nan or num_inf):
            gram += block.T @ block
    bad = ", ".join(f"{count} {what}" for count, what in ((num_nan, "NaN"), (num_inf, "inf")) if count)
    return _Scan(largest, candidates[0] if candidates else dtype, bad)


def _holds(block: NDArray[np.float64], precision: str) -> bool:
    """Tell whether every value is one of a coarser dtype; a few values usually settle it."""
    for values in (block[:1], block):
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = values.astype(np.float16 if precision == "float16" else np.float32)
            if precision == "bfloat16":
                narrow = (narrow.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
            if not np.array_equal(narrow.astype(np.float64), values):
                return False
    return True


def _power_of_two(largest: float) -> int:
    """Return e so that squares of values · 2ᵉ and their sums neither overflow nor vanish; 0, no scaling, where they are safe."""
    exponent = int(np.frexp(largest)[1])
    return 0 if abs(exponent) < SAFE_EXPONENT else -exponent


# ---------------------------------------------------------------- the two ways
def _from_gram_numpy(matrix: "Matrix", dtype: str) -> tuple[_Scan, NDArray[np.float64] | None]:
    """Return what a look at the values says and the descending singular values, None where there are none or the solver failed."""
    gram = np.zeros(2 * [min(matrix.shape)])
    with np.errstate(all="ignore"):  # what overflows or vanishes is done again
        scan = _scan(matrix, dtype, gram)
    if not scan.is_sound:
        return scan, None
    exponent = _power_of_two(scan.largest)
    if exponent:
        gram[:] = 0
        for block in _blocks(matrix):
            scaled = np.ldexp(block, exponent)
            gram += scaled.T @ scaled
    try:
        return scan, _roots(np.linalg.eigvalsh(gram), exponent)
    except np.linalg.LinAlgError:
        return scan, None


def _from_gram_torch(work: "Sequence[tuple[Matrix, float]]", device: str) -> list[NDArray[np.float64] | None]:
    """Return the same, computed by torch on a device, one batch of eigenvalue problems for each short side."""
    import torch

    by_side: dict[int, list[int]] = {}
    for i, (matrix, _) in enumerate(work):
        by_side.setdefault(min(matrix.shape), []).append(i)
    found: list[NDArray[np.float64] | None] = [None] * len(work)
    for side, members in by_side.items():
        grams = torch.empty(len(members), side, side, dtype=torch.float64, device=device)
        for slot, i in enumerate(members):
            matrix, largest = work[i]
            values = np.ascontiguousarray(matrix) if isinstance(matrix, np.ndarray) else matrix.detach()
            half = _power_of_two(largest) // 2  # in two steps: 2¹⁰⁷³, which lifts the smallest float64, is no float64 itself
            wide = torch.as_tensor(values).to(device).double() * 2.0**half * 2.0 ** (_power_of_two(largest) - half)
            grams[slot] = wide.T @ wide if wide.shape[0] >= wide.shape[1] else wide @ wide.T
        try:
            eigenvalues = torch.linalg.eigvalsh(grams).cpu().numpy()
        except RuntimeError:
            continue  # each of them is done again by SVD on the CPU
        for slot, i in enumerate(members):
            found[i] = _roots(eigenvalues[slot], _power_of_two(work[i][1]))
    return found


def _roots(eigenvalues: NDArray[Any], exponent: int) -> NDArray[np.float64]:
    return _unscale(np.sqrt(np.maximum(eigenvalues[::-1], 0.0)), exponent)


def _unscale(values: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # inf where the largest values are beyond float64, which `_finish` says
        unscaled: NDArray[np.float64] = np.ldexp(values, -exponent)
    return unscaled


def _from_svd(matrix: "Matrix", largest: float) -> NDArray[np.float64]:
    """Return singular values by a float64 SVD; of a long matrix by QR of its blocks, then the SVD of R."""
    exponent, length, side = _power_of_two(largest), max(matrix.shape), min(matrix.shape)
    corner = np.empty((0, side))
    for block in _blocks(matrix, length if length * side <= WHOLE else max(WHOLE // side, side)):
        scaled = np.ldexp(block, exponent)
        corner = scaled if len(block) == length else np.asarray(np.linalg.qr(np.concatenate([corner, scaled]), mode="r"))
    return _unscale(np.linalg.svd(corner, compute_uv=False), exponent)

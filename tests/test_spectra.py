import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spectrograd import spectra
from spectrograd.errors import SpectrumError
from spectrograd.records import format_precision, parse_precision
from spectrograd.spectra import compute_spectra, compute_spectrum

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def with_values(sigma: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a dense square matrix of these singular values."""
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal(2 * [len(sigma)]))[0] for _ in range(2))
    return (u * sigma) @ v.T


def assert_agrees(found: np.ndarray, matrix: np.ndarray, floor: float) -> None:
    """The bound of the design, against a float64 SVD, for every value above the noise floor."""
    sigma = np.linalg.svd(matrix, compute_uv=False)
    kept = sigma > floor
    assert found.shape == sigma.shape
    error = np.abs(found - sigma)[kept]
    assert np.all(error <= 1e-8 * sigma[kept] + 4 * 2.0**-52 * sigma[0] ** 2 / sigma[kept])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(48, 48), (96, 32), (32, 96), (1, 7), (7, 1), (1, 1), (130, 3)])
def test_against_a_float64_svd(dtype: str, shape: tuple[int, int]) -> None:
    tensor = torch.tensor(np.random.default_rng(1).standard_normal(shape)).to(DTYPES[dtype])
    spectrum, note = compute_spectrum(tensor, dtype)
    assert_agrees(spectrum.singular_values, tensor.double().numpy(), spectrum.noise_floor)
    assert np.all(np.diff(spectrum.singular_values) <= 0)
    assert (spectrum.rows, spectrum.cols, spectrum.dtype, note) == (*shape, dtype, "")


@pytest.mark.parametrize("decades", [3, 6, 8, 12, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_condition_is_done_again_by_svd(decades: int, dtype: str) -> None:
    tensor = torch.tensor(with_values(np.logspace(0, -decades, 64))).to(DTYPES[dtype])
    spectrum, _ = compute_spectrum(tensor, dtype)
    assert_agrees(spectrum.singular_values, tensor.double().numpy(), spectrum.noise_floor)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1), st.integers(-100, 100))
def test_transposition_orthogonal_factors_and_scale(m: int, n: int, seed: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((m, n))
    sigma = compute_spectrum(matrix, "float64")[0].singular_values
    q = np.linalg.qr(rng.standard_normal((m, m)))[0]
    assert compute_spectrum(matrix.T.copy(), "float64")[0].singular_values == pytest.approx(sigma, rel=1e-9, abs=1e-12)
    assert compute_spectrum(q @ matrix, "float64")[0].singular_values == pytest.approx(sigma, rel=1e-6, abs=1e-10)
    assert np.array_equal(compute_spectrum(np.ldexp(matrix, exponent), "float64")[0].singular_values, np.ldexp(sigma, exponent))


def test_a_solver_that_fails_is_replaced_and_then_said(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(0).standard_normal((9, 9))

    def fail(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(np.linalg, "eigvalsh", fail)
    spectrum, note = compute_spectrum(matrix, "float64")
    assert_agrees(spectrum.singular_values, matrix, 0)
    assert note == ""
    monkeypatch.setattr(np.linalg, "svd", fail)
    spectrum, note = compute_spectrum(matrix, "float64")
    assert len(spectrum.singular_values) == 0
    assert "did not converge" in note


def test_nan_and_inf_are_counted_and_never_decomposed() -> None:
    matrix = torch.eye(6, dtype=torch.bfloat16)
    matrix[0, 1] = matrix[2, 3] = float("nan")
    matrix[5, 0] = float("-inf")
    spectrum, note = compute_spectrum(matrix, "bfloat16")
    assert (len(spectrum.singular_values), note) == (0, "2 NaN, 1 inf")


def test_zero_has_zero_values() -> None:
    spectrum, note = compute_spectrum(torch.zeros(3, 5), "float32")
    assert (spectrum.singular_values.tolist(), note, spectrum.noise_floor) == ([0, 0, 0], "zero", 0)


@pytest.mark.parametrize(("base", "sigma1", "stable_rank"), [(60, 3.9954882003e28, 1.0002781352), (200, 9.2817481828e36, 1.0000250322)])
def test_squares_that_overflow_float32(base: int, sigma1: float, stable_rank: float) -> None:
    b = np.linspace(-base, base, 13)
    tensor = torch.tensor(np.stack([b ** (k + 1) for k in range(16)]), dtype=torch.float32)
    sigma = compute_spectrum(tensor, "float32")[0].singular_values
    assert sigma[0] == pytest.approx(sigma1, rel=1e-5)
    assert np.sum((sigma / sigma[0]) ** 2) == pytest.approx(stable_rank, rel=1e-5)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("scale", [1e-300, 1e300, 1e308, 1e-310, 5e-324])
def test_the_ends_of_float64(scale: float, device: str) -> None:
    [(spectrum, _)] = compute_spectra([(np.eye(4) * scale, "float64")], device)
    assert spectrum.singular_values.tolist() == [scale] * 4


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_values_beyond_float64_are_said(device: str) -> None:
    [(spectrum, note)] = compute_spectra([(np.full((4, 4), np.pi * 5e307), "float64")], device)
    assert (len(spectrum.singular_values), note) == (0, "singular values exceed float64")


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_how_a_matrix_lies_in_memory_does_not_matter(rng: np.random.Generator, device: str) -> None:
    plain = rng.standard_normal((6, 4))
    sigma = np.linalg.svd(plain, compute_uv=False)
    tensor = torch.tensor(plain)
    wide = torch.tensor(np.repeat(plain, 2, axis=1))
    for same in (plain[::-1], np.asfortranarray(plain), plain.T, tensor.T, wide[:, ::2], torch.nn.Parameter(tensor)):
        [(spectrum, _)] = compute_spectra([(same, "float64")], device)
        assert spectrum.singular_values == pytest.approx(sigma, rel=1e-12)


def test_no_matrices_no_spectra() -> None:
    assert compute_spectra([]) == compute_spectra([], "cpu:0") == []


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_spectrum_does_not_depend_on_its_company(rng: np.random.Generator, device: str) -> None:
    work = [(rng.standard_normal((8, 8 + i)), "float64") for i in range(5)]
    work.insert(2, (np.full((8, 8), np.nan), "float64"))
    work.insert(4, (np.zeros((8, 8)), "float64"))
    for alone, (together, note) in zip(work, compute_spectra(work, device), strict=True):
        [(spectrum, its_note)] = compute_spectra([alone], device)
        assert spectrum.singular_values == pytest.approx(together.singular_values, rel=1e-14)
        assert note == its_note


def test_a_batch_that_fails_on_a_device_is_done_again_by_svd(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    work = [(rng.standard_normal((5, 9)), "float64"), (rng.standard_normal((5, 5)), "float64"), (np.eye(3), "float64")]
    monkeypatch.setattr(torch.linalg, "eigvalsh", fail)
    for (matrix, _), (spectrum, _) in zip(work, compute_spectra(work, "cpu:0"), strict=True):
        assert_agrees(spectrum.singular_values, matrix, 0)


def count_svds(monkeypatch: pytest.MonkeyPatch, matrix: torch.Tensor, dtype: str) -> int:
    """Return how often the matrix was done by SVD."""
    calls = []
    svd = np.linalg.svd
    with monkeypatch.context() as patch:
        patch.setattr(np.linalg, "svd", lambda *args, **options: (calls.append(1), svd(*args, **options))[1])
        compute_spectrum(matrix, dtype)
    return len(calls)


@pytest.mark.parametrize(
    ("dtype", "decades", "svds"),
    [("float64", 4, 0), ("float64", 6, 1), ("float64", 8, 1), ("float32", 4, 0), ("float32", 6, 1), ("bfloat16", 8, 0), ("float16", 8, 0)],
)
def test_only_values_that_count_are_done_again(monkeypatch: pytest.MonkeyPatch, dtype: str, decades: int, svds: int) -> None:
    tensor = torch.tensor(with_values(np.logspace(0, -decades, 64))).to(DTYPES[dtype])
    assert count_svds(monkeypatch, tensor, dtype) == svds


def test_blocks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    for matrix in (rng.standard_normal((200, 12)), rng.standard_normal((12, 200)), with_values(np.logspace(0, -9, 20))):
        whole = compute_spectrum(matrix, "float64")[0].singular_values
        with monkeypatch.context() as patch:
            patch.setattr(spectra, "BLOCK", 50)
            blocks = compute_spectrum(matrix, "float64")[0].singular_values
        assert blocks == pytest.approx(whole, rel=1e-7, abs=1e-14)


def test_a_very_tall_matrix_costs_its_short_side() -> None:
    columns = np.where(np.arange(64) < 16, 1.0, 0.5)
    tall = torch.zeros(262144, 64, dtype=torch.bfloat16)
    tall[torch.arange(262144), torch.arange(262144) % 64] = torch.tensor(np.tile(columns, 4096), dtype=torch.bfloat16)
    sigma = compute_spectrum(tall, "bfloat16")[0].singular_values
    assert sigma[0] == pytest.approx(64)
    assert np.sum((sigma / sigma[0]) ** 2) == pytest.approx(28)


@pytest.mark.parametrize(
    ("values", "stored", "precision"),
    [
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "float32", "float16"),
        ("bfloat16", "float64", "bfloat16"),
        ("float32", "float64", "float64"),
        ("float32", "float32", "float32"),
    ],
)
def test_a_tensor_that_was_cast_up_is_recognised(values: str, stored: str, precision: str) -> None:
    tensor = torch.tensor(np.random.default_rng(4).standard_normal((40, 40))).to(DTYPES[values]).to(DTYPES[stored])
    spectrum, note = compute_spectrum(tensor, stored)
    assert spectrum.precision == precision
    assert note == ("" if precision == stored else f"{stored} holding {precision} values")
    assert parse_precision(stored, f"tied; {note}") == precision
    assert format_precision(stored, precision) == note


@pytest.mark.parametrize(("dtype", "rank"), [("float64", 9), ("float32", 9), ("bfloat16", 9), ("float16", 12)])
def test_the_noise_floor_cuts_a_diagonal_of_powers_of_two(dtype: str, rank: int) -> None:
    spectrum, _ = compute_spectrum(torch.tensor(np.diag(2.0 ** -np.arange(24))).to(DTYPES[dtype]), dtype)
    assert np.count_nonzero(spectrum.singular_values > spectrum.noise_floor) == rank


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_noise_floor_finds_the_true_rank(dtype: str) -> None:
    rng = np.random.default_rng(0)
    low = torch.tensor(rng.standard_normal((256, 64)) @ rng.standard_normal((64, 1024)) / 8).to(DTYPES[dtype])
    spectrum, _ = compute_spectrum(low, dtype)
    assert np.count_nonzero(spectrum.singular_values > spectrum.noise_floor) == 64


def test_what_is_no_matrix_is_refused() -> None:
    for bad in (np.zeros(3), np.zeros((2, 2, 2)), np.zeros((0, 4))):
        with pytest.raises(SpectrumError, match="a matrix with rows and columns is needed"):
            compute_spectrum(bad, "float64")
    with pytest.raises(SpectrumError, match="int64"):
        compute_spectrum(torch.ones(2, 2, dtype=torch.int64), "int64")


def _check_device(device: str) -> None:
    """Values on a device agree with a float64 SVD as those of the CPU do, in one batch of many shapes."""
    rng = np.random.default_rng(7)
    work = [
        (torch.tensor(rng.standard_normal(shape)).to(DTYPES[dtype]), dtype)
        for shape in ((24, 24), (24, 60), (60, 24), (8, 8))
        for dtype in DTYPES
    ]
    work += [
        (torch.tensor(with_values(np.logspace(0, -9, 24))), "float64"),
        (torch.zeros(4, 4), "float32"),
        (torch.full((4, 4), torch.nan), "float32"),
    ]
    for (tensor, _), (spectrum, _) in zip(work, compute_spectra(work, device), strict=True):
        if len(spectrum.singular_values):
            assert_agrees(spectrum.singular_values, tensor.double().numpy(), spectrum.noise_floor)
        else:
            assert tensor.isnan().any()


def test_the_torch_way_on_the_cpu() -> None:
    _check_device("cpu:0")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_torch_way_on_a_gpu() -> None:
    _check_device("cuda")

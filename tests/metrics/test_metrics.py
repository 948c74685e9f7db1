"""One battery over all families, then values that are known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectrograd.metrics import COLUMNS, METRICS, measure_spectrum
from spectrograd.metrics.marchenko_pastur import distribution, law_median
from spectrograd.metrics.tail import fit_tail
from spectrograd.records import Column, Spectrum


def spectrum(sigma: np.ndarray | list[float], rows: int = 0, cols: int = 0, dtype: str = "float64") -> Spectrum:
    values = np.sort(np.asarray(sigma, dtype=float))[::-1]
    return Spectrum(values, rows or len(values), cols or len(values), dtype, dtype)


def power(n: int, a: float) -> np.ndarray:
    return np.arange(1, n + 1, dtype=float) ** -a


spectra = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60).map(spectrum)


# ---------------------------------------------------------------- the battery
@pytest.mark.parametrize("family", METRICS, ids=lambda family: family.__name__.split(".")[-1])
class TestEveryFamily:
    def test_describes_its_columns(self, family: object) -> None:
        for column in family.COLUMNS:
            assert isinstance(column, Column)
            assert all((column.name, column.label, column.unit, column.definition, column.source))
            assert COLUMNS[column.name] is column

    def test_computes_exactly_its_columns(self, family: object) -> None:
        for sigma in ([3.0], [0.0, 0.0], power(40, 1), np.ones(20)):
            values, note = family.compute(spectrum(sigma))
            assert set(values) == {column.name for column in family.COLUMNS}
            assert all(isinstance(value, float) and not math.isinf(value) for value in values.values())
            assert isinstance(note, str)

    @pytest.mark.parametrize("exponent", [-60, 3, 60])
    def test_scaling_follows_the_degree(self, family: object, exponent: int) -> None:
        sigma = np.abs(np.random.default_rng(0).standard_normal(50)) + 0.01
        before, after = family.compute(spectrum(sigma))[0], family.compute(spectrum(np.ldexp(sigma, exponent)))[0]
        for column in family.COLUMNS:
            assert after[column.name] == pytest.approx(before[column.name] * 2.0 ** (exponent * column.degree), rel=1e-12, nan_ok=True)


def test_no_values_no_numbers() -> None:
    values, note = measure_spectrum(spectrum([]))
    assert set(values) == set(COLUMNS)
    assert all(math.isnan(value) for value in values.values())
    assert note == ""


def test_a_zero_matrix_has_norms_and_nothing_else() -> None:
    values, _ = measure_spectrum(spectrum(np.zeros(20)))
    defined = {name for name, value in values.items() if not math.isnan(value)}
    assert defined == {"spectral_norm", "frobenius_norm", "nuclear_norm", "numerical_rank"}
    assert all(values[name] == 0 for name in defined)


@settings(max_examples=100)
@given(spectra)
def test_the_chain_of_ranks(s: Spectrum) -> None:
    v, _ = measure_spectrum(s)
    slack = 1 + 1e-9
    positive = np.count_nonzero(s.singular_values > 0)
    assert 1 <= v["stable_rank"] * slack
    assert v["stable_rank"] <= v["nuclear_norm"] / v["spectral_norm"] * slack
    assert v["nuclear_norm"] / v["spectral_norm"] <= v["effective_rank"] * slack
    assert v["effective_rank"] <= positive * slack


# ---------------------------------------------------------------- known values
@pytest.mark.parametrize(
    ("a", "stable_rank", "alpha_tail"), [(0.5, 6.124345, 2.014632), (1.0, 1.641035, 1.507316), (1.5, 1.202049, 1.338211)]
)
def test_an_exact_power_law(a: float, stable_rank: float, alpha_tail: float) -> None:
    v, _ = measure_spectrum(spectrum(power(256, a)))
    assert v["alpha_rank"] == pytest.approx(a, abs=1e-12)
    assert v["alpha_bulk"] == pytest.approx(a, abs=1e-12)
    assert v["alpha_rank_r2"] == pytest.approx(1)
    assert v["alpha_rank_stderr"] == pytest.approx(0, abs=1e-12)
    assert v["stable_rank"] == pytest.approx(stable_rank, rel=1e-6)
    assert v["alpha_tail"] == pytest.approx(alpha_tail, rel=1e-6)
    assert v["alpha_tail"] == pytest.approx(1 + 256 / (2 * a * (256 * math.log(256) - math.lgamma(257))), rel=1e-12)
    assert (v["alpha_tail_count"], v["alpha_tail_xmin"]) == (256, pytest.approx(256.0 ** (-2 * a)))
    assert v["alpha_tail_stderr"] == pytest.approx((v["alpha_tail"] - 1) / 16)
    assert v["numerical_rank"] == 256


def test_flat_and_cut_off_spectra() -> None:
    identity, note = measure_spectrum(spectrum(np.ones(64)))
    assert (identity["stable_rank"], identity["alpha_rank"]) == (64, 0)
    assert math.isnan(identity["alpha_rank_r2"])
    assert math.isnan(identity["alpha_tail"])
    assert math.isnan(identity["alpha_hill"])
    assert note == "flat spectrum: no tail"
    near, _ = measure_spectrum(spectrum(1.02 - 0.0015 * np.arange(12)))
    assert near["stable_rank"] == pytest.approx(11.806977, rel=1e-6)
    assert math.isnan(near["alpha_tail"])
    cut, _ = measure_spectrum(spectrum(np.r_[power(16, 1), np.zeros(48)]))
    assert (cut["numerical_rank"], cut["alpha_rank"]) == (16, pytest.approx(1))
    half, _ = measure_spectrum(spectrum(np.r_[np.ones(32), np.zeros(32)]))
    assert (half["stable_rank"], half["numerical_rank"], half["alpha_rank"]) == (32, 32, 0)


def test_too_few_values_have_no_exponent() -> None:
    for sigma in ([5.0], [3.0, 1.0], [7.0, 6, 5, 4, 3, 2, 1]):
        v, note = measure_spectrum(spectrum(sigma))
        assert all(math.isnan(v[name]) for name in COLUMNS if name.startswith(("alpha", "mp")))
        assert note == "too few singular values for an exponent"
    assert measure_spectrum(spectrum([3.0, 1.0]))[0]["stable_rank"] == pytest.approx(10 / 9)


@pytest.mark.parametrize("shape", [(512, 512), (256, 1024), (64, 4096), (1024, 64)])
def test_gaussian_matrices_reach_the_limit(shape: tuple[int, int]) -> None:
    sigma = np.linalg.svd(np.random.default_rng(1).standard_normal(shape) * 0.02, compute_uv=False)
    v, _ = measure_spectrum(spectrum(sigma, *shape))
    assert v["stable_rank_relative"] == pytest.approx(1, abs=0.06)
    assert v["mp_sigma"] == pytest.approx(0.02, rel=0.03)
    assert v["mp_spikes"] <= 1


def test_hill_by_hand() -> None:
    sigma = np.array([9.0, 8, 7, 6, 5, 4, 3, 2, 1])
    lam = sigma**2
    assert measure_spectrum(spectrum(sigma))[0]["alpha_hill"] == pytest.approx(1 + 4 / sum(math.log(lam[i] / lam[4]) for i in range(4)))


def test_effective_rank_and_participation_by_hand() -> None:
    v, _ = measure_spectrum(spectrum([2.0, 1.0, 1.0]))
    assert v["effective_rank"] == pytest.approx(math.exp(1.5 * math.log(2)))
    assert v["participation_ratio"] == pytest.approx(36 / 18)
    assert (v["frobenius_norm"], v["nuclear_norm"]) == (pytest.approx(math.sqrt(6)), 4)


def full_scan(x: np.ndarray) -> tuple[float, float, float, int]:
    """Every candidate xmin evaluated whole, the words of the definition."""
    best = (math.inf, 0)
    alphas = []
    for i in range(len(x) - 1):
        tail = x[i:]
        n = len(tail)
        excess = np.log(tail / x[i]).sum()
        alphas.append(1 + n / excess if excess > 0 else math.inf)
        if excess <= 0:
            continue
        distance = np.max(np.abs(1 - (tail / x[i]) ** (1 - alphas[i]) - np.arange(n) / n))
        best = min(best, (float(distance), i))
    return alphas[best[1]], x[best[1]], best[0], len(x) - best[1]


def test_the_pruned_search_is_the_full_scan() -> None:
    rng = np.random.default_rng(9)
    draws = [rng.pareto(2, n) + 1 for n in (8, 9, 30, 200, 500)] + [rng.lognormal(0, 2, 100), np.repeat(rng.pareto(3, 20) + 1, 3)]
    draws += [np.linalg.svd(rng.standard_normal((n, 2 * n)), compute_uv=False) ** 2 for n in (16, 64, 256)]
    for x in draws:
        alpha, xmin, distance, count = fit_tail(np.sort(x))
        expected = full_scan(np.sort(x))
        assert (alpha, distance) == pytest.approx((expected[0], expected[2]), rel=1e-9)
        assert (xmin, count) == (pytest.approx(expected[1]), expected[3])


def test_median_of_the_marchenko_pastur_law() -> None:
    assert [law_median(ratio) for ratio in (1, 0.5, 0.25)] == pytest.approx([0.65278, 0.83047, 0.91600], abs=1e-5)


@pytest.mark.parametrize("ratio", [1.0, 0.7, 0.25, 0.01])
def test_the_closed_form_is_the_integral_of_the_density(ratio: float) -> None:
    a, b = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    for x in np.linspace(a + 0.1 * (b - a), b, 7):
        t = np.linspace(0, 1, 20001)[1:]
        y = a + (x - a) * t**4  # the density of a square matrix is not bounded at 0
        density = np.sqrt(np.maximum((b - y) * (y - a), 0)) / (2 * math.pi * ratio * y) * 4 * (x - a) * t**3
        assert distribution(x, ratio) == pytest.approx(np.trapezoid(density, t), abs=2e-4)


@pytest.mark.parametrize("shape", [(400, 400), (200, 800)])
def test_planted_spikes_are_found(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    m, n = shape
    u, v = np.linalg.qr(rng.standard_normal((m, 40)))[0], np.linalg.qr(rng.standard_normal((n, 40)))[0]
    planted = rng.standard_normal(shape) + (u * np.linspace(3, 6, 40) * (math.sqrt(m) + math.sqrt(n)) / 2) @ v.T
    values, _ = measure_spectrum(spectrum(np.linalg.svd(planted, compute_uv=False), *shape))
    assert values["mp_spikes"] == 40
    assert values["mp_sigma"] == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("scale", [1e308, 1e200, 1e-200, 1e-310, 5e-324])
def test_any_scale_of_float64_has_its_degree_0_metrics(scale: float) -> None:
    shape = np.linspace(1, 0.5, 32)
    expected, _ = measure_spectrum(spectrum(shape))
    found, _ = measure_spectrum(spectrum(shape * scale))
    assert found["spectral_norm"] == scale
    if scale > 1e-300:  # under that the values themselves have lost their digits
        for name in (name for name, column in COLUMNS.items() if column.degree == 0):
            assert found[name] == pytest.approx(expected[name], rel=1e-9, nan_ok=True), name


def test_the_distribution_rises_from_0_to_1() -> None:
    for ratio in (1.0, 0.5, 0.01):
        a, b = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
        values = [distribution(x, ratio) for x in np.linspace(a - 0.1, b + 0.1, 400)]
        assert (values[0], values[-1]) == (0, 1)
        assert np.all(np.diff(values) >= -1e-12)
        assert distribution(law_median(ratio), ratio) == pytest.approx(0.5, abs=1e-9)


def test_equal_values_that_differ_by_rounding_are_no_tail(rng: np.random.Generator) -> None:
    sigma = np.r_[1 + 2.0**-52 * rng.integers(-3, 4, 32), 0.5 + 2.0**-53 * rng.integers(-3, 4, 32)]
    v, _ = measure_spectrum(spectrum(sigma))
    assert v["alpha_tail_count"] >= 32
    assert v["alpha_tail"] < 100


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 10**4), min_size=8, max_size=80), st.sampled_from([1e-6, 1.0, 1e6]))
def test_the_pruned_search_finds_the_distance_of_the_full_scan(values: list[int], scale: float) -> None:
    x = np.sort(np.asarray(values)) * scale
    if x[-1] - x[0] < 0.05 * x[-1]:
        return
    alpha, xmin, distance, count = fit_tail(x)
    assert distance == pytest.approx(full_scan(x)[2], rel=1e-9)
    tail = x[len(x) - count :]
    assert (tail[0], len(tail)) == (xmin, count)
    assert alpha == pytest.approx(1 + count / np.sum(np.log(tail / xmin)), rel=1e-9)

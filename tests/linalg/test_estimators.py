import pytest
import torch
from torch import Generator, Tensor

from lapwing.linalg.estimators import Estimate, diagonal, log_determinant, trace
from lapwing.linalg.operators import Dense, Diagonal, LowRank
from lapwing.runtime import memory

N = 60


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def psd(n: int, decay: float, seed: int = 1) -> Tensor:
    """A positive semi-definite matrix with eigenvalues 100 / i^decay."""
    vectors = torch.linalg.qr(normal(n, n, seed=seed))[0]
    matrix = vectors * (100 * torch.arange(1, n + 1).double() ** -decay) @ vectors.mT
    return (matrix + matrix.mT) / 2


MATRIX = psd(N, 1.0)
TRUE_TRACE = float(MATRIX.trace())
TRUE_LOG_DETERMINANT = float(torch.linalg.slogdet(torch.eye(N).double() + MATRIX).logabsdet)
LOGARITHM = torch.linalg.eigh(torch.eye(N).double() + MATRIX)
LOGARITHM = LOGARITHM.eigenvectors * LOGARITHM.eigenvalues.log() @ LOGARITHM.eigenvectors.mT
SCALARS = {
    "trace": (lambda probes, g: trace(Dense(MATRIX), probes=probes, generator=g), TRUE_TRACE),
    "log det": (
        lambda probes, g: log_determinant(Dense(MATRIX), probes=probes, steps=20, generator=g),
        TRUE_LOG_DETERMINANT,
    ),
}


def hutchinson_variance(matrix: Tensor) -> float:
    """Variance of vᵀAv for random signs v and symmetric A: 2 Σ_{i≠j} a_ij²."""
    return float(2 * (matrix.square().sum() - matrix.diagonal().square().sum()))


@pytest.mark.parametrize("name", SCALARS)
def test_estimates_lie_within_five_standard_errors(name):
    estimator, truth = SCALARS[name]
    for seed in range(20):
        estimate = estimator(40, seeded(seed))
        assert isinstance(estimate, Estimate)
        assert abs(estimate.value - truth) <= 5 * estimate.standard_error


@pytest.mark.parametrize("name", SCALARS)
def test_errors_shrink_with_the_root_of_the_probes_and_are_as_large_as_claimed(name):
    estimator, truth = SCALARS[name]
    rms = {}
    for probes in (8, 72):
        estimates = [estimator(probes, seeded(1000 + seed)) for seed in range(120)]
        rms[probes] = torch.tensor([e.value - truth for e in estimates]).square().mean().sqrt()
        claimed = torch.tensor([e.standard_error for e in estimates]).square().mean().sqrt()
        # an rms of 120 near-normal errors has relative standard error 1/√240 = 6.5 %; five of them
        assert rms[probes] / claimed == pytest.approx(1, abs=0.33)
    assert rms[8] / rms[72] == pytest.approx(3, rel=0.46)  # five times √2 · 6.5 %


def test_the_variance_of_hutchinson_is_that_of_the_theory():
    estimates = torch.tensor([trace(Dense(MATRIX), probes=8, generator=seeded(seed)).value for seed in range(400)])
    expected = hutchinson_variance(MATRIX) / 8
    assert float((estimates - TRUE_TRACE).square().mean()) / expected == pytest.approx(1, abs=5 * (2 / 400) ** 0.5)


def test_traces_of_matrices_without_symmetry_or_sign():
    matrix = normal(N, N, seed=3)
    estimate = trace(Dense(matrix), probes=2000, generator=seeded(4))
    assert abs(estimate.value - float(matrix.trace())) <= 5 * estimate.standard_error


def test_random_signs_are_exact_on_diagonal_matrices():
    values = torch.linspace(0.1, 5, 12, dtype=torch.float64)
    operator = Diagonal(values)
    exact = trace(operator, probes=2, generator=seeded(0))
    assert exact.value == pytest.approx(float(values.sum()), rel=1e-15)
    assert exact.standard_error <= 1e-14
    entries = diagonal(operator, probes=3, generator=seeded(0))
    torch.testing.assert_close(entries.value, values, rtol=1e-15, atol=0)
    assert entries.standard_error.max() <= 1e-15
    depth = log_determinant(operator, probes=2, steps=12, generator=seeded(0))
    assert depth.value == pytest.approx(float(values.log1p().sum()), rel=1e-13)
    assert depth.standard_error <= 1e-12


def test_the_diagonal_comes_with_an_error_for_every_entry():
    estimates = diagonal(Dense(MATRIX), probes=500, generator=seeded(2))
    z = (estimates.value - MATRIX.diagonal()) / estimates.standard_error
    assert len(estimates) == N
    assert z.abs().max() <= 5
    off = MATRIX - torch.diag(MATRIX.diagonal())
    theory = off.square().sum(1).sqrt() / 500**0.5
    # a standard deviation from 500 near-normal terms has relative standard error 1/√1000; five of them
    torch.testing.assert_close(estimates.standard_error, theory, rtol=0.16, atol=0)
    assert estimates[7] == Estimate(float(estimates.value[7]), float(estimates.standard_error[7]))


def test_the_diagonal_improves_with_the_root_of_the_probes():
    def rms(probes: int, seed: int) -> float:
        estimates = diagonal(Dense(MATRIX), probes=probes, generator=seeded(seed))
        return float((estimates.value - MATRIX.diagonal()).square().mean())

    few, many = (sum(rms(probes, seed) for seed in range(20)) for probes in (50, 800))
    # each sum varies by 6 % (measured over seeds), the root of their quotient by 4 %; five of them
    assert (few / many) ** 0.5 == pytest.approx(4, rel=0.2)


def test_full_depth_lanczos_takes_the_logarithm_exactly():
    """The same probes give the same number as Hutchinson's estimator of the dense logarithm."""
    quadrature = log_determinant(Dense(MATRIX), probes=5, steps=N, generator=seeded(7))
    dense = trace(Dense(LOGARITHM), probes=5, generator=seeded(7))
    assert quadrature.value == pytest.approx(dense.value, rel=1e-12)
    assert quadrature.standard_error == pytest.approx(dense.standard_error, rel=1e-10)
    deeper = log_determinant(Dense(MATRIX), probes=5, steps=3 * N, generator=seeded(7))
    assert deeper.value == pytest.approx(dense.value, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_the_standard_error_covers_the_truncation(steps):
    """A quadrature that has not converged knows: its bracket holds the truth whatever the depth."""
    quadrature = log_determinant(Dense(MATRIX), probes=50, steps=steps, generator=seeded(8))
    dense = trace(Dense(LOGARITHM), probes=50, generator=seeded(8))
    assert quadrature.standard_error > 1.001 * dense.standard_error or steps == 8
    assert abs(quadrature.value - dense.value) <= quadrature.standard_error  # no chance in it: the same probes


def test_log_determinants_of_low_rank_identical_and_zero_matrices():
    root = normal(N, 3, seed=9)
    low = log_determinant(LowRank(root, root), probes=400, steps=20, generator=seeded(9))
    truth = float(torch.linalg.slogdet(torch.eye(3).double() + root.mT @ root).logabsdet)
    assert abs(low.value - truth) <= 5 * low.standard_error
    same = log_determinant(Diagonal(torch.full((N,), 3.0).double()), probes=2, steps=9, generator=seeded(0))
    assert same.value == pytest.approx(N * torch.tensor(4.0).double().log().item(), rel=1e-13)
    nothing = log_determinant(Diagonal(torch.zeros(N).double()), probes=2, steps=9, generator=seeded(0))
    assert (nothing.value, nothing.standard_error) == (0, 0)


def test_log_determinant_at_scale():
    """Within 1 % of slogdet at d = 500 with 30 probes and 40 steps, and the error bar covers.

    Here the standard error is 0.2 %; with eigenvalues 100 / i it would be 1 %, and 1 % no law.
    """
    matrix = psd(500, 0.5, seed=2)
    truth = float(torch.linalg.slogdet(torch.eye(500).double() + matrix).logabsdet)
    for seed in range(5):
        estimate = log_determinant(Dense(matrix), probes=30, steps=40, generator=seeded(seed))
        assert abs(estimate.value - truth) <= 0.01 * truth
        assert abs(estimate.value - truth) <= 5 * estimate.standard_error
        assert estimate.standard_error <= 0.002 * 1.7 * truth  # 30 probes: within five of its own 13 %


def test_single_precision_is_enough_for_three_digits():
    estimate = log_determinant(Dense(MATRIX.float()), probes=40, steps=35, generator=seeded(0))
    double = log_determinant(Dense(MATRIX), probes=40, steps=35, generator=seeded(0))
    assert estimate.value == pytest.approx(double.value, rel=1e-4)


def test_one_dimension():
    operator = Dense(torch.tensor([[2.0]]).double())
    assert trace(operator, probes=2, generator=seeded(0)).value == 2
    assert diagonal(operator, probes=2, generator=seeded(0)).value.tolist() == [2]
    depth = log_determinant(operator, probes=2, steps=5, generator=seeded(0))
    assert depth.value == pytest.approx(1.0986122886681098, rel=1e-14)


def test_wrong_arguments_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"an operator of shape \(5, 7\) and 4 probes, expected a square operator"):
        trace(Dense(normal(5, 7)), probes=4, generator=seeded(0))
    with pytest.raises(ValueError, match="at least 2 probes, without which there is no standard error"):
        diagonal(Dense(MATRIX), probes=1, generator=seeded(0))
    with pytest.raises(ValueError, match="steps is 0"):
        log_determinant(Dense(MATRIX), probes=2, steps=0, generator=seeded(0))
    with pytest.raises(ValueError, match="positive semi-definite"):
        log_determinant(Dense(-MATRIX), probes=2, steps=9, generator=seeded(0))
    monkeypatch.setattr(memory, "available_bytes", lambda: 70_000)
    with pytest.raises(MemoryError, match="use fewer probes a call"):
        log_determinant(Dense(MATRIX), probes=3000, steps=9, generator=seeded(0))


def test_the_inverse_root_is_exact_at_full_depth_and_close_before(generator):
    from lapwing.linalg.estimators import inverse_root

    root = torch.randn(9, 9, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(9)
    columns = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    columns[:, 2] = 0
    values, vectors = torch.linalg.eigh(matrix)
    expected = vectors / values.sqrt() @ vectors.mT @ columns
    torch.testing.assert_close(inverse_root(Dense(matrix), columns, steps=50), expected, rtol=1e-9, atol=1e-11)
    errors = [float((inverse_root(Dense(matrix), columns, steps=steps) - expected).norm()) for steps in (2, 4, 6, 8)]
    assert errors == sorted(errors, reverse=True)
    double = torch.block_diag(2 * torch.eye(3), 5 * torch.eye(4)).double()  # two eigenvalues: two steps are enough
    ones = torch.ones(7, 2, dtype=torch.float64)
    torch.testing.assert_close(inverse_root(Dense(double), ones, steps=6), double.diagonal().rsqrt()[:, None] * ones)
    with pytest.raises(ValueError, match="not positive definite"):
        inverse_root(Dense(matrix - 50 * torch.eye(9)), columns, steps=9)

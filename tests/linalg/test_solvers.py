import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, Stacked
from lapwing.linalg.solvers import ConjugateGradients, Deflation, NotConverged, Nystrom

N, RANK, COLUMNS, SHIFT = 37, 9, 4, 0.05


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_spectrum(values: Tensor, seed: int = 1) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with these eigenvalues, and its eigenvectors."""
    vectors = torch.linalg.qr(normal(len(values), len(values), seed=seed))[0]
    matrix = vectors * values @ vectors.mT
    return (matrix + matrix.mT) / 2, vectors


SPECTRUM = torch.logspace(2, -6, N, dtype=torch.float64)
PSD, VECTORS = with_spectrum(SPECTRUM)
SYSTEM = PSD + SHIFT * torch.eye(N).double()
B = torch.cat([normal(N, COLUMNS - 1, seed=2), torch.zeros(N, 1).double()], dim=1)
NYSTROM = Nystrom.of(Dense(PSD), rank=RANK, shift=SHIFT, generator=torch.Generator().manual_seed(3))
DEFLATION = Deflation(VECTORS[:, :RANK], SPECTRUM[:RANK], SHIFT)
SOLVERS = {
    "cg": ConjugateGradients(rtol=1e-9),
    "cg, Nyström": ConjugateGradients(rtol=1e-9, preconditioner=NYSTROM),
    "cg, deflation": ConjugateGradients(rtol=1e-9, preconditioner=DEFLATION),
}


@dataclass(frozen=True)
class Inverse:
    """The perfect preconditioner."""

    matrix: Tensor

    def solve(self, x: Tensor) -> Tensor:
        return torch.linalg.solve(self.matrix, x)


@dataclass(frozen=True, eq=False)
class Counting(LinearOperator):
    """An operator that notes the width of every product."""

    matrix: Tensor
    widths: list[int]

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def like(self) -> Tensor:
        return self.matrix

    def matmat(self, x: Tensor) -> Tensor:
        self.widths.append(x.shape[1])
        return self.matrix @ x

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.matrix.mT @ y


@pytest.fixture(params=SOLVERS.values(), ids=SOLVERS.keys())
def solver(request):
    return request.param


def test_every_column_has_the_true_residual_it_promises(solver):
    solution = solver.solve(Dense(SYSTEM), B)
    size = B.norm(dim=0)
    true = (B - SYSTEM @ solution.checked()).norm(dim=0) / torch.where(size > 0, size, 1)
    assert solution.converged
    assert (true <= 1e-9 + 1e-14).all()
    torch.testing.assert_close(solution.residuals, true, rtol=0, atol=1e-12)  # κ eps of round-off between the two
    assert (solution.x[:, -1] == 0).all()
    assert solution.residuals[-1] == 0
    # ‖x − x*‖ ≤ ‖r‖ / λ_min
    error = (solution.x - torch.linalg.solve(SYSTEM, B)).norm(dim=0)
    assert (error <= 1.001e-9 * size / SHIFT + 1e-13).all()


def test_the_order_of_the_columns_is_irrelevant(solver):
    order = torch.tensor([2, 3, 0, 1])
    straight, permuted = (solver.solve(Dense(SYSTEM), b).x for b in (B, B[:, order]))
    torch.testing.assert_close(permuted, straight[:, order], rtol=0, atol=2.002e-9 * float(B.norm(dim=0).max()) / SHIFT)


def test_one_unknown_and_no_columns(solver):
    if isinstance(solver, ConjugateGradients):
        solver = replace(solver, preconditioner=None)
    one = solver.solve(Dense(torch.tensor([[4.0]]).double()), torch.tensor([[2.0]]).double())
    assert one.checked().item() == pytest.approx(0.5, rel=1e-15)
    none = solver.solve(Dense(SYSTEM), B[:, :0])
    assert none.checked().shape == (N, 0)


def test_a_perfect_preconditioner_solves_in_one_step():
    exact = ConjugateGradients(rtol=1e-9, preconditioner=Inverse(SYSTEM)).solve(Dense(SYSTEM), B)
    assert exact.checked().shape == B.shape
    assert exact.steps == 1
    assert ConjugateGradients(rtol=1e-9).solve(Dense(SYSTEM), B).steps > 10


def test_complete_subspaces_are_perfect_preconditioners():
    full = Nystrom.of(Dense(PSD), rank=N, shift=SHIFT, generator=torch.Generator().manual_seed(4))
    for preconditioner in (full, Deflation(VECTORS, SPECTRUM, SHIFT)):
        solution = ConjugateGradients(rtol=1e-9, preconditioner=preconditioner).solve(Dense(SYSTEM), B)
        assert solution.checked().shape == B.shape
        assert solution.steps == 1


def test_the_error_obeys_the_chebyshev_bound():
    """‖e_k‖_A ≤ 2 ((√κ − 1)/(√κ + 1))^k ‖e_0‖_A."""
    spectrum = torch.logspace(0, 3, N, dtype=torch.float64)
    matrix, _ = with_spectrum(spectrum)
    truth = torch.linalg.solve(matrix, B[:, :3])
    rate = (math.sqrt(1000) - 1) / (math.sqrt(1000) + 1)

    def energy(x: Tensor) -> Tensor:
        return (x * (matrix @ x)).sum(0).sqrt()

    for steps in (1, 2, 5, 10, 20, 30):
        solution = ConjugateGradients(rtol=1e-14, max_steps=steps).solve(Dense(matrix), B[:, :3])
        assert solution.steps == steps
        assert (energy(solution.x - truth) <= 2 * rate**steps * energy(truth)).all()


def test_as_many_steps_as_distinct_eigenvalues_suffice():
    matrix, _ = with_spectrum(torch.tensor([1.0, 3.0, 10.0]).double()[torch.arange(N) % 3])
    assert ConjugateGradients(rtol=1e-11).solve(Dense(matrix), B).steps == 3


def test_converged_columns_leave_the_products():
    operator = Counting(SYSTEM, [])
    easy_and_hard = torch.stack([VECTORS[:, 0], torch.zeros(N).double(), normal(N, seed=5)], dim=1)
    solution = ConjugateGradients(rtol=1e-9).solve(operator, easy_and_hard)
    assert solution.checked().shape == (N, 3)
    assert operator.widths == [2] + (solution.steps - 1) * [1] + [2]  # the zero column is in none
    assert solution.passes == len(operator.widths)


def test_a_good_start_saves_steps_and_a_perfect_one_needs_none():
    truth = torch.linalg.solve(SYSTEM, B)
    assert ConjugateGradients(rtol=1e-9).solve(Dense(SYSTEM), B, start=truth).steps == 0
    far = ConjugateGradients(rtol=1e-9).solve(Dense(SYSTEM), B)
    near = ConjugateGradients(rtol=1e-9).solve(Dense(SYSTEM), B, start=truth + 1e-8 * normal(N, COLUMNS, seed=6))
    assert 0 < near.steps < far.steps
    start = normal(N, COLUMNS, seed=7)
    kept = start.clone()
    assert (
        ConjugateGradients().solve(Dense(SYSTEM), B, start=start).checked()[:, -1] == 0
    ).all()  # a zero column has solution zero
    assert torch.equal(start, kept)


def test_a_recurrence_that_drifted_is_restarted_from_the_truth():
    # a start of size 1e9 leaves round-off of about 1e9 eps λ_max = 2e-5 in the recurrence
    operator = Counting(SYSTEM, [])
    solution = ConjugateGradients(rtol=1e-10).solve(operator, B, start=1e9 * normal(N, COLUMNS, seed=8))
    assert solution.checked().shape == B.shape
    assert solution.passes > solution.steps + 2  # checked at the start, after the first descent, and again
    assert solution.passes == len(operator.widths)


def test_a_tolerance_below_round_off_is_reported_and_does_not_loop():
    solution = ConjugateGradients(rtol=1e-19, max_steps=10_000).solve(Dense(SYSTEM), B)
    assert not solution.converged
    assert solution.steps < 1000
    # at best eps ‖A‖ ‖x‖ / ‖b‖ ≤ eps κ
    assert solution.residuals.max() <= torch.finfo(torch.float64).eps * 100 / SHIFT


def test_too_few_steps_raise_with_the_numbers():
    solution = ConjugateGradients(rtol=1e-9, max_steps=5).solve(Dense(SYSTEM), B)
    assert not solution.converged
    assert solution.steps == 5
    true = (B - SYSTEM @ solution.x)[:, :-1].norm(dim=0) / B[:, :-1].norm(dim=0)
    torch.testing.assert_close(solution.residuals[:-1], true, rtol=1e-10, atol=0)
    with pytest.raises(NotConverged, match=r"3 of 4 columns did not converge in 5 steps.*asked for 1\.0e-09") as caught:
        solution.checked()
    assert caught.value.solution is solution


def test_columns_of_any_size_are_solved():
    scales = torch.tensor([1e-250, 1.0, 1e250], dtype=torch.float64)
    solution = ConjugateGradients(rtol=1e-9).solve(Dense(SYSTEM), B[:, :3] * scales)
    torch.testing.assert_close(
        solution.checked() / scales, torch.linalg.solve(SYSTEM, B[:, :3]), rtol=0, atol=1e-9 * 10 / SHIFT
    )


def test_single_precision_is_kept():
    for solver in (
        ConjugateGradients(rtol=1e-3),
        ConjugateGradients(rtol=1e-3, preconditioner=_single(NYSTROM)),
    ):
        x = solver.solve(Dense(SYSTEM.float()), B.float()).checked()
        assert x.dtype == torch.float32
        # half of it for the residual, half for the round-off in SYSTEM and its products
        error = ((x.double() - torch.linalg.solve(SYSTEM, B)).norm(dim=0)) / B.norm(dim=0).clamp_min(1)
        assert (error <= 2e-3 / SHIFT).all()


def _single(preconditioner: Nystrom) -> Nystrom:
    return Nystrom(torch.linalg.qr(preconditioner.vectors.float())[0], preconditioner.values.float(), SHIFT)


def test_the_solution_does_not_depend_on_how_the_data_are_batched():
    rows = normal(61, N, seed=9)

    def system(size: int) -> LinearOperator:
        batches = [(rows[start : start + size],) for start in range(0, 61, size)]
        streamed = Stacked(Dense, batches, tuple(len(part) for (part,) in batches), N, rows)
        return streamed.T @ streamed + Diagonal(torch.ones(N).double())

    one, many = (ConjugateGradients(rtol=1e-12).solve(system(size), B).checked() for size in (61, 7))
    # residuals of 1e-12 ‖b‖ each, and λ_min ≥ 1
    torch.testing.assert_close(one, many, rtol=0, atol=2e-12 * float(B.norm(dim=0).max()))


@pytest.mark.parametrize("matrix", [SYSTEM - 60 * torch.eye(N).double(), -SYSTEM, torch.zeros(N, N).double()])
def test_an_indefinite_operator_is_refused(matrix):
    with pytest.raises(ValueError, match=r"Dense of shape \(37, 37\) is not positive definite"):
        ConjugateGradients(rtol=1e-9).solve(Dense(matrix), B)


def test_an_indefinite_preconditioner_is_refused():
    with pytest.raises(ValueError, match="the preconditioner is not positive definite"):
        ConjugateGradients(preconditioner=Inverse(-SYSTEM)).solve(Dense(SYSTEM), B)


def test_values_that_are_not_numbers_are_reported():
    broken = SYSTEM.clone()
    broken[3, 4] = torch.nan
    with pytest.raises(FloatingPointError, match=r"Dense of shape .* not a number in 3 of 3 columns at step 1"):
        ConjugateGradients().solve(Dense(broken), B)
    with pytest.raises(FloatingPointError, match="not a number in 4 of 4 columns at step 0"):
        ConjugateGradients().solve(Dense(broken), B, start=B + 1)
    with pytest.raises(ValueError, match="b holds values that are infinite or not a number"):
        ConjugateGradients().solve(Dense(SYSTEM), B + torch.inf)


def test_wrong_arguments_are_refused():
    for operator, b in ((Dense(normal(5, 7)), normal(5, 2)), (Dense(SYSTEM), B[:-1]), (Dense(SYSTEM), B[:, 0])):
        with pytest.raises(ValueError, match="expected a square operator and a matrix with as many rows"):
            ConjugateGradients().solve(operator, b)
    with pytest.raises(ValueError, match=r"start has shape \(37, 3\), expected that of b, \(37, 4\)"):
        ConjugateGradients().solve(Dense(SYSTEM), B, start=B[:, :3])
    with pytest.raises(ValueError, match="expected rtol > 0"):
        ConjugateGradients(rtol=0.0)


def conditioning(preconditioner: Deflation | Nystrom) -> float:
    """λ_max / λ_min of P^{-½} A P^{-½}, by dense algebra."""
    inverse = preconditioner.solve(torch.eye(N).double())
    torch.testing.assert_close(inverse, inverse.mT, rtol=0, atol=1e-12)
    root = torch.linalg.cholesky((inverse + inverse.mT) / 2)
    values = torch.linalg.eigvalsh(root.mT @ SYSTEM @ root)
    return float(values[-1] / values[0])


def test_nystrom_approximates_from_below_and_conditions_as_the_theory_says():
    approximation = NYSTROM.vectors * NYSTROM.values @ NYSTROM.vectors.mT
    gap = torch.linalg.eigvalsh(PSD - approximation)
    assert gap[0] >= -1e-11  # round-off and the nudge, of order √n eps ‖A‖
    assert gap[-1] < SPECTRUM[RANK - 4]  # close to the best that rank 9 can do, which is SPECTRUM[9]
    error, smallest = float(gap[-1]), float(NYSTROM.values[-1])
    # Frangella et al., proposition 5.3; and for Deflation P^{-½}(Â + μI)P^{-½} = μI leaves 1 + ‖A − Â‖/μ
    assert conditioning(NYSTROM) <= (smallest + SHIFT + error) / SHIFT * (1 + 1e-9)
    assert conditioning(Deflation(NYSTROM.vectors, NYSTROM.values, SHIFT)) <= (1 + error / SHIFT) * (1 + 1e-9)
    assert conditioning(DEFLATION) <= (1 + float(SPECTRUM[RANK]) / SHIFT) * (1 + 1e-9)


def test_preconditioners_save_steps_and_serve_another_shift():
    plain = ConjugateGradients(rtol=1e-9).solve(Dense(SYSTEM), B).steps
    for preconditioner in (NYSTROM, DEFLATION):
        assert ConjugateGradients(rtol=1e-9, preconditioner=preconditioner).solve(Dense(SYSTEM), B).steps < plain
    other = PSD + 0.5 * torch.eye(N).double()
    moved = ConjugateGradients(rtol=1e-9, preconditioner=replace(NYSTROM, shift=0.5)).solve(Dense(other), B)
    assert moved.checked().shape == B.shape
    assert moved.steps < ConjugateGradients(rtol=1e-9).solve(Dense(other), B).steps


def test_nystrom_is_exact_on_low_rank_and_on_nothing():
    low = normal(N, 5, seed=10) @ normal(N, 5, seed=10).mT
    exact = Nystrom.of(Dense(low), rank=7, shift=1.0, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(exact.vectors * exact.values @ exact.vectors.mT, low, rtol=0, atol=1e-11)
    assert (exact.values[5:] <= 1e-11).all()
    nothing = Nystrom.of(Dense(0 * low), rank=2, shift=1.0, generator=torch.Generator().manual_seed(0))
    assert (nothing.values <= 1e-300).all()
    torch.testing.assert_close(nothing.solve(B), B)


def test_wrong_subspaces_are_refused():
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="with rank 38"):
        Nystrom.of(Dense(PSD), rank=38, shift=1.0, generator=generator)
    with pytest.raises(ValueError, match="not positive semi-definite"):
        Nystrom.of(Dense(-PSD), rank=5, shift=1.0, generator=generator)
    with pytest.raises(ValueError, match="not orthonormal"):
        Deflation(2 * VECTORS, SPECTRUM, SHIFT)
    with pytest.raises(ValueError, match="expected a positive shift"):
        Deflation(VECTORS, SPECTRUM, 0.0)
    with pytest.raises(ValueError, match=r"expected \(n, rank\) and \(rank,\)"):
        Deflation(VECTORS, SPECTRUM[:-1], SHIFT)


@pytest.mark.parametrize("size", [1e12, 1e18, 1e24])
def test_a_preconditioner_stays_positive_where_its_factors_are_below_round_off(size):
    """Columns inside V: ⟨x, P⁻¹x⟩ = Σ c² · shift / (values + shift), whatever round-off would make of (I − V Vᵀ) x."""
    values = size * torch.linspace(1, 3, RANK, dtype=torch.float64)
    inside = normal(RANK, COLUMNS, seed=4)
    x = VECTORS[:, :RANK] @ inside
    found = (x * Deflation(VECTORS[:, :RANK], values, 1.0).solve(x)).sum(0)
    expected = (inside.square() / (values + 1)[:, None]).sum(0)
    # what is left outside has the size of the round-off of a round-off, so its product with x has eps²
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=float(100 * torch.finfo(x.dtype).eps ** 2))

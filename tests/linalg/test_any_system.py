"""Systems of any size, spectrum and scale are solved to what is said, or said not to be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense
from lapwing.linalg.solvers import ConjugateGradients, Deflation, NotConverged, NotPositive, Nystrom

EPS = torch.finfo(torch.float64).eps
SEEDS = st.integers(0, 2**31)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def systems(draw: st.DrawFn) -> tuple[Tensor, Tensor, float]:
    """A positive definite matrix with repeated and far-flung eigenvalues, right-hand sides of any size, and rtol."""
    n, seed = draw(st.integers(1, 12)), draw(SEEDS)
    decades = st.floats(-draw(st.sampled_from([0.0, 3.0, 8.0, 12.0])), 0)
    values = torch.tensor([10 ** draw(decades) for _ in range(n)], dtype=torch.float64)
    values = values[torch.randint(n, (n,), generator=torch.Generator().manual_seed(seed))]  # some of them twice
    vectors = torch.linalg.qr(normal(n, n, seed=seed))[0]
    matrix = 10 ** draw(st.floats(-20, 20)) * (vectors * values @ vectors.mT)
    b = normal(n, draw(st.integers(0, 4)), seed=seed + 1)
    sizes = [draw(st.sampled_from([0.0, 1e-150, 1.0, 1e150])) for _ in range(b.shape[1])]
    return (matrix + matrix.mT) / 2, b * torch.tensor(sizes, dtype=torch.float64), 10 ** draw(st.floats(-12, -1))


def check_residuals(matrix: Tensor, b: Tensor, solve, rtol: float) -> None:
    """The residuals told are the true ones, and the promise is kept or an error says that it is not."""
    try:
        solution = solve(Dense(matrix), b)
    except NotPositive:
        values = torch.linalg.eigvalsh(matrix)
        assert values[0] <= 1e2 * len(matrix) * EPS * values[-1]  # in double precision nobody can tell
        return
    size = b.abs().amax(0) if len(b) else b[:0]
    scale = torch.where(size > 0, size, 1)
    true = (b / scale - matrix @ (solution.x / scale)).norm(dim=0)
    length = (b / scale).norm(dim=0)
    true = true / torch.where(length > 0, length, 1)
    # a product of n terms is known to n eps ‖A‖ ‖x‖
    known = len(matrix) * EPS * matrix.abs().max() * (solution.x / scale).norm(dim=0) * len(matrix) ** 0.5
    assert ((solution.residuals - true).abs() <= 10 * known / torch.where(length > 0, length, 1) + EPS).all()
    assert (solution.x[:, size == 0] == 0).all()
    if solution.converged:
        assert (solution.residuals <= rtol).all()
        assert torch.equal(solution.checked(), solution.x)
    else:
        with pytest.raises(NotConverged, match="did not converge"):
            solution.checked()


@settings(max_examples=150, deadline=None)
@given(systems())
def test_conjugate_gradients_tell_the_true_residual(system: tuple[Tensor, Tensor, float]) -> None:
    matrix, b, rtol = system
    check_residuals(matrix, b, ConjugateGradients(rtol=rtol, max_steps=200).solve, rtol)


@settings(max_examples=80, deadline=None)
@given(systems(), st.integers(1, 12), st.floats(-6, 2), SEEDS)
def test_a_preconditioner_of_any_rank_changes_the_steps_and_not_the_answer(system, rank, shift, seed) -> None:
    matrix, b, _ = system
    matrix, b = matrix / matrix.abs().max(), b.sign()
    n, rank, alpha = len(matrix), min(rank, len(matrix)), 10**shift
    values, vectors = torch.linalg.eigh(matrix)
    whole = matrix + alpha * torch.eye(n, dtype=torch.float64)
    expected, sharpest = torch.linalg.solve(whole, b), float(values.clamp_min(0)[-1] + alpha) / alpha
    for preconditioner in (
        Nystrom.of(Dense(matrix), rank=rank, shift=alpha, generator=torch.Generator().manual_seed(seed)),
        Deflation(vectors[:, n - rank :], values[n - rank :].clamp_min(0), alpha),
    ):
        found = (
            ConjugateGradients(rtol=1e-9, max_steps=1000, preconditioner=preconditioner)
            .solve(Dense(whole), b)
            .checked()
        )
        # ‖x − x⋆‖ ≤ ‖r‖ / λ_min, and the expectation has an error of its own
        error = (1e-9 + 10 * n * EPS * sharpest) * b.norm(dim=0) / alpha
        assert ((found - expected).norm(dim=0) <= error).all()


@st.composite
def regressions(draw: st.DrawFn) -> tuple[Tensor, krylov.StartBlock, float, float]:
    """Features of any rank, tall or wide, with noise and targets, and two precisions."""
    n, d, seed = draw(st.integers(1, 14)), draw(st.integers(1, 14)), draw(SEEDS)
    rank = draw(st.integers(0, min(n, d)))
    decades = draw(st.sampled_from([0.0, 2.0, 4.0]))
    values = torch.logspace(0, -decades, max(rank, 1), dtype=torch.float64)[:rank]
    features = normal(n, rank, seed=seed) * values @ normal(rank, d, seed=seed + 1)
    draws, targets = draw(st.integers(1, 4)), draw(st.sampled_from([None, 1, 2]))
    block = krylov.StartBlock(
        normal(d, draws, seed=seed + 2), normal(n, draws, seed=seed + 3),
        None if targets is None else normal(n, targets, seed=seed + 4),
    )  # fmt: skip
    return features, block, 10 ** draw(st.floats(-2, 2)), 10 ** draw(st.floats(-2, 2))


@settings(max_examples=150, deadline=None)
@given(regressions(), st.integers(1, 6))
def test_a_krylov_space_of_any_depth_tells_its_residuals_and_encloses_variances(given_one, steps) -> None:
    features, block, alpha, beta = given_one
    operator, d = Dense(features), features.shape[1]
    space = krylov.grow(operator, block, steps)
    precision = beta * features.mT @ features + alpha * torch.eye(d, dtype=torch.float64)
    draws, mean = krylov.draws_and_mean(space, alpha=alpha, beta=beta, operator=operator)
    noise = beta**0.5 * features.mT @ block.data_noise + alpha**0.5 * block.prior_noise
    sides = [noise] if block.targets is None else [noise, beta * features.mT @ block.targets]
    found = torch.cat([draws, mean], dim=1)
    true = (torch.cat(sides, dim=1) - precision @ found).norm(dim=0)
    told = krylov.residuals(space, alpha, beta)
    largest = float(torch.linalg.matrix_norm(features, 2)) ** 2
    sizes = found.norm(dim=0) + block.prior_noise.norm() / alpha**0.5 + 1 / alpha
    known = 1e3 * EPS * (beta * largest + alpha) * sizes
    # on the dual side the norm outside the space is a difference of squares: its own square is known to eps of theirs
    inside = (found - torch.nn.functional.pad(block.prior_noise, (0, mean.shape[1])) / alpha**0.5).norm(dim=0)
    square = 0.0 if space.side == "primal" else (EPS * largest) ** 0.5 * torch.linalg.matrix_norm(space.coupling)
    assert ((told - true).abs() <= known + 1e-6 * true + 30 * beta * square * inside).all()
    # what is wrong with the functions: the bound of the residual, and round-off
    exact = torch.linalg.solve(precision, torch.cat(sides, dim=1))
    moved = beta**0.5 * (features @ (found - exact)).norm(dim=0)
    assert (moved <= (1 + 1e-6) * true / (2 * alpha**0.5) + known / alpha**0.5).all()
    rows = normal(5, d, seed=steps)
    bounds = krylov.variances(space, rows, alpha=alpha, beta=beta, operator=operator)
    variance = (rows * torch.linalg.solve(precision, rows.mT).mT).sum(1)
    # and a direction of the space is known there to eps of the largest eigenvalue over its own
    seen = space.ritz[space.ritz > space.chain.roundoff]
    sharpest = largest / float(seen.min()) if space.side == "dual" and len(seen) else 1.0
    slack = 1e3 * EPS * (sharpest + beta * largest / alpha + 1) * rows.square().sum(1) / alpha
    assert (bounds.lower <= variance + slack).all()
    assert (bounds.upper >= variance - slack).all()


@settings(max_examples=40, deadline=None)
@given(regressions(), st.integers(1, 3), st.integers(1, 3))
def test_a_space_grown_in_two_goes_is_the_same(given_one, first, second) -> None:
    features, block, alpha, beta = given_one
    operator = Dense(features)
    once = krylov.grow(operator, block, first + second)
    twice = krylov.grow(operator, krylov.grow(operator, block, first), second)
    one, two = (krylov.draws_and_mean(space, alpha=alpha, beta=beta, operator=operator) for space in (once, twice))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))

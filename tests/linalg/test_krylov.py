"""The shared block-Krylov space against dense linear algebra, at every depth and on both sides."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import scipy.sparse
import torch
from torch import Tensor

from lapwing.linalg import krylov
from lapwing.linalg.krylov import Space, StartBlock
from lapwing.linalg.operators import Dense, LinearOperator, as_operator
from lapwing.runtime.memory import counting_on

EPS = torch.finfo(torch.float64).eps
PRECISIONS = [(0.3, 1.0), (2.0, 0.5), (0.04, 3.0)]  # (alpha, beta), of prior and noise
SHAPES = {"tall": (67, 43), "wide": (43, 67)}
DRAWS, TARGETS, ROWS = 3, 2, 5  # so that a block has 8 columns, and the spaces 6 steps


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def matrix(generator: torch.Generator, n: int, d: int, *, decades: float = 1.5, largest: float = 3.0) -> Tensor:
    """A matrix with singular values falling evenly by that many decades."""
    u, _, vh = torch.linalg.svd(normal(generator, n, d), full_matrices=False)
    return u * largest * torch.logspace(0, -decades, len(vh), dtype=torch.float64) @ vh


def block(generator: torch.Generator, n: int, d: int, draws: int = DRAWS, targets: int = TARGETS) -> StartBlock:
    return StartBlock(normal(generator, d, draws), normal(generator, n, draws), 4 * normal(generator, n, targets))


@dataclass(frozen=True)
class Problem:
    g: Tensor
    block: StartBlock
    rows: Tensor

    @property
    def operator(self) -> LinearOperator:
        return Dense(self.g)

    def space(self, steps: int) -> Space:
        return krylov.grow(self.operator, self.block, steps)

    def precision(self, alpha: float, beta: float) -> Tensor:
        return beta * self.g.mT @ self.g + alpha * torch.eye(self.g.shape[1], dtype=torch.float64)

    def sides(self, alpha: float, beta: float) -> Tensor:
        """Right-hand sides of the draws and the means."""
        noise = beta**0.5 * self.g.mT @ self.block.data_noise + alpha**0.5 * self.block.prior_noise
        return torch.cat([noise, beta * self.g.mT @ self.block.targets], dim=1)

    def truth(self, alpha: float, beta: float) -> Tensor:
        """Draws and means by dense perturb-and-solve."""
        return torch.linalg.solve(self.precision(alpha, beta), self.sides(alpha, beta))

    def solved(self, space: Space, alpha: float, beta: float) -> Tensor:
        return torch.cat(krylov.draws_and_mean(space, alpha=alpha, beta=beta, operator=self.operator), dim=1)

    def tolerance(self, alpha: float, beta: float) -> float:
        """Of a relative error: a hundred times eps and the condition number of the system."""
        return 100 * EPS * float(1 + beta * torch.linalg.matrix_norm(self.g, 2) ** 2 / alpha)


def problem(shape: str, seed: int = 0, **spectrum: float) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    n, d = SHAPES[shape]
    return Problem(matrix(generator, n, d, **spectrum), block(generator, n, d), normal(generator, ROWS, d))


def close(actual: Tensor, expected: Tensor, relative: float) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).norm()) <= relative * float(expected.norm())


@pytest.fixture(params=SHAPES)
def case(request: pytest.FixtureRequest) -> Problem:
    return problem(request.param)


def test_one_full_space_reproduces_exact_draws_and_means_at_every_precision(case):
    space = case.space(steps=6)
    assert space.exhausted
    assert space.side == ("primal" if case.g.shape[0] > case.g.shape[1] else "dual")
    for alpha, beta in PRECISIONS:
        close(case.solved(space, alpha, beta), case.truth(alpha, beta), case.tolerance(alpha, beta))


def test_the_dual_draw_is_matherons_formula():
    case, alpha = problem("wide"), 0.3
    (n, _), xi, theta = case.g.shape, case.block.data_noise, case.block.prior_noise / alpha**0.5
    kernel = case.g @ case.g.mT + alpha * torch.eye(n, dtype=torch.float64)
    exact = theta + case.g.mT @ torch.linalg.solve(kernel, xi - case.g @ theta)
    close(case.solved(case.space(6), alpha, 1.0)[:, :DRAWS], exact, case.tolerance(alpha, 1.0))


@pytest.mark.parametrize(("alpha", "beta"), PRECISIONS)
def test_combinations_of_the_starting_block_are_solved(case, alpha, beta, generator):
    g, parts = case.g, case.block
    start = g.mT @ torch.cat([parts.data_noise, g @ parts.prior_noise, parts.targets], dim=1)
    mix = normal(generator, start.shape[1], 4)
    exact = torch.linalg.solve(case.precision(alpha, beta), start @ mix)
    found = krylov.solve(case.space(6), mix, alpha=alpha, beta=beta, operator=case.operator)
    close(found, exact, case.tolerance(alpha, beta))


@pytest.mark.parametrize(("alpha", "beta"), PRECISIONS)
def test_a_full_space_reproduces_the_quadratic_forms_of_its_probes(case, alpha, beta):
    values, vectors = torch.linalg.eigh(beta / alpha * case.g @ case.g.mT)
    values, weights = values.clamp_min(0), (vectors.mT @ case.block.data_noise).square().mean(1)
    space, tolerance = case.space(6), case.tolerance(alpha, beta)
    for found, terms in [
        (krylov.effective_dimension(space, alpha, beta), values / (1 + values)),
        (krylov.log_determinant(space, alpha, beta), values.log1p()),
    ]:
        assert found.value == pytest.approx(float((weights * terms).sum()), rel=tolerance)
        variance = 2 * float((weights * terms.square()).sum()) / DRAWS
        assert found.standard_error == pytest.approx(variance**0.5, rel=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_estimates_agree_with_traces_and_determinants_within_their_errors(shape):
    (n, d), alpha, beta, draws = SHAPES[shape], 0.3, 1.5, 400
    generator = torch.Generator().manual_seed(5)
    case = Problem(matrix(generator, n, d), block(generator, n, d, draws), normal(generator, ROWS, d))
    space, precision = case.space(1), case.precision(alpha, beta)
    fitted = torch.linalg.solve(precision, beta * case.g.mT @ case.g)
    for found, exact, variance in [
        (krylov.effective_dimension(space, alpha, beta), fitted.trace(), 2 * (fitted @ fitted).trace()),
        (
            krylov.log_determinant(space, alpha, beta),
            torch.linalg.slogdet(precision / alpha).logabsdet,
            2 * torch.linalg.eigvalsh(precision / alpha).log().square().sum(),
        ),
    ]:
        assert abs(found.value - float(exact)) <= 5 * found.standard_error
        assert found.standard_error == pytest.approx((float(variance) / draws) ** 0.5, rel=0.1)


def test_estimates_rise_with_depth(case):
    spaces = [case.space(steps) for steps in range(1, 7)]
    for function in (krylov.effective_dimension, krylov.log_determinant):
        values = [function(space, 0.04, 3.0).value for space in spaces]
        assert all(a < b * (1 + 1e-9) for a, b in pairwise(values))
        assert values[0] < 0.9 * values[-1]


@pytest.mark.parametrize("decades", [1.5, 3.0])
def test_primal_and_dual_agree_at_every_depth(generator, decades):
    wide = problem("wide", decades=decades)
    below = torch.zeros(30, wide.g.shape[1], dtype=torch.float64)  # rows of zeros change the side, and nothing else
    noise, targets = normal(generator, 30, DRAWS), normal(generator, 30, TARGETS)
    parts = StartBlock(
        wide.block.prior_noise,
        torch.cat([wide.block.data_noise, noise]),
        torch.cat([wide.block.targets, targets]),
    )
    tall = Problem(torch.cat([wide.g, below]), parts, wide.rows)
    for steps in range(1, 6):  # one more, and primal keeps a direction of round-off in which G is zero
        dual, primal = wide.space(steps), tall.space(steps)
        assert (dual.side, primal.side) == ("dual", "primal")
        close(dual.ritz, primal.ritz, 1e-11)
        for alpha, beta in PRECISIONS:
            tolerance = 10 * wide.tolerance(alpha, beta)
            close(wide.solved(dual, alpha, beta), tall.solved(primal, alpha, beta), tolerance)
            scale = float(wide.sides(alpha, beta).norm())
            left, right = (krylov.residuals(space, alpha, beta) for space in (dual, primal))
            assert float((left - right).norm()) <= tolerance * scale
            left, right = (krylov.log_determinant(space, alpha, beta) for space in (dual, primal))
            assert left.value == pytest.approx(right.value, rel=tolerance)
            left = krylov.variances(dual, wide.rows, alpha=alpha, beta=beta, operator=wide.operator)
            right = krylov.variances(primal, wide.rows, alpha=alpha, beta=beta)
            close(left.upper, right.upper, tolerance)
            close(left.sampled, right.sampled, tolerance)
            close(left.lower, right.lower, 100 * EPS * 10 ** (2 * decades))  # as well as the space itself is known


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_residuals_are_those_of_the_solutions(case, steps):
    space = case.space(steps)
    for alpha, beta in PRECISIONS:
        residual = case.sides(alpha, beta) - case.precision(alpha, beta) @ case.solved(space, alpha, beta)
        found, scale = krylov.residuals(space, alpha, beta), float(case.sides(alpha, beta).norm())
        assert found.shape == (DRAWS + TARGETS,)
        assert float((found - residual.norm(dim=0)).abs().max()) <= case.tolerance(alpha, beta) * scale
        assert float(residual.norm()) > 1e-3 * scale or steps > 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_errors_bound_the_error_of_functions_and_closely(shape, seed):
    case = problem(shape, seed, decades=0.5 + seed)
    for steps in range(1, 7):
        space = case.space(steps)
        for alpha, beta in PRECISIONS:
            spread = krylov.effective_dimension(space, alpha, beta).value ** 0.5
            wrong = case.solved(space, alpha, beta) - case.truth(alpha, beta)
            true = beta**0.5 * (case.g @ wrong).norm(dim=0) / spread
            bound = krylov.errors(space, alpha, beta)
            assert bool((true <= bound * (1 + 1e-9) + case.tolerance(alpha, beta)).all())
            # the bound replaces √s / (s + α) by its largest possible value, 1 / (2√α)
            s = beta * torch.linalg.svdvals(case.g).square()
            loose = float((s.sqrt() / (s + alpha)).min()) * 2 * alpha**0.5
            assert bool((true >= loose * bound * (1 - 1e-6) - case.tolerance(alpha, beta)).all())


@pytest.mark.parametrize("rtol", [0.3, 1e-2, 1e-5])
def test_build_stops_at_its_tolerance_and_not_long_after(case, rtol):
    phases: list[str] = []
    alpha, beta = 0.6, 0.5
    space = krylov.build(case.operator, case.block, alpha=alpha, beta=beta, rtol=rtol, report=phases.append)
    assert space.limited_by is None
    assert float(krylov.errors(space, alpha, beta).max()) <= rtol
    assert space.steps == 1 or float(krylov.errors(case.space(space.steps - 1), alpha, beta).max()) > rtol
    exact = case.truth(alpha, beta)
    spread = krylov.effective_dimension(space, alpha, beta).value ** 0.5
    wrong = beta**0.5 * (case.g @ (case.solved(space, alpha, beta) - exact)).norm(dim=0)
    assert float(wrong.max()) <= rtol * spread
    assert 1 <= len(phases) <= space.steps
    assert f"{space.chain.passes} passes, {len(space.ritz)} directions" in phases[-1]


def test_a_space_grows_when_a_smaller_precision_is_asked_for(case):
    first = krylov.build(case.operator, case.block, alpha=20.0)
    second = krylov.build(case.operator, first, alpha=0.05)
    assert second.steps > first.steps
    assert torch.equal(second.ritz, krylov.build(case.operator, case.block, alpha=0.05).ritz)
    assert krylov.build(case.operator, second, alpha=20.0).steps == second.steps


def test_variance_bounds_enclose_the_truth_at_every_depth_and_close_in(case):
    for alpha, beta in PRECISIONS:
        covariance, widths = torch.linalg.inv(case.precision(alpha, beta)), []
        exact = (case.rows @ covariance * case.rows).sum(1)
        slack = case.tolerance(alpha, beta) * float(exact.max())
        for steps in range(1, 7):
            space = case.space(steps)
            found = krylov.variances(space, case.rows, alpha=alpha, beta=beta, operator=case.operator)
            assert bool((found.lower <= exact + slack).all())
            assert bool((found.upper >= exact - slack).all())
            draws = case.solved(space, alpha, beta)[:, :DRAWS]
            close(found.sampled, (case.rows @ draws).square().mean(1), case.tolerance(alpha, beta))
            widths.append(float((found.upper - found.lower).max()))
        assert widths == sorted(widths, reverse=True)
        close(found.upper, exact, 10 * case.tolerance(alpha, beta))
        if space.side == "primal":  # the dual space leaves out where G is zero, and has no lower bound there
            close(found.lower, exact, case.tolerance(alpha, beta))


@pytest.mark.parametrize("cut", [1, 3])
def test_growing_in_two_goes_is_growing_in_one(case, cut):
    once, twice = case.space(5), krylov.grow(case.operator, case.space(cut), 5 - cut)
    for name in ("ritz", "rotation", "start", "probes", "coupling", "remainder"):
        assert torch.equal(getattr(once, name), getattr(twice, name)), name
    assert (once.chain.passes, once.chain.columns) == (twice.chain.passes, twice.chain.columns)


def test_growing_leaves_the_smaller_space_as_it_was(case):
    space = case.space(2)
    before = case.solved(space, 0.3, 1.0)
    krylov.grow(case.operator, space, 2)
    assert torch.equal(case.solved(space, 0.3, 1.0), before)


@pytest.mark.parametrize("decades", [1.5, 6.0])  # a Gram matrix of condition number 1e3, 1e12
def test_bases_are_orthonormal_and_satisfy_the_recurrence(decades):
    for case in (problem(shape, decades=decades) for shape in SHAPES):
        gram = case.g.mT @ case.g if case.g.shape[0] > case.g.shape[1] else case.g @ case.g.mT
        for steps in (2, 4, 6):
            chain = case.space(steps).chain
            basis = torch.cat([*chain.blocks, chain.ahead], dim=1)
            assert float((basis.mT @ basis - torch.eye(basis.shape[1]).double()).abs().max()) < 100 * EPS
            m = len(chain.projected)
            left = gram @ basis[:, :m] - basis[:, :m] @ chain.projected
            left[:, m - chain.coupling.shape[1] :] -= chain.ahead @ chain.coupling
            assert float(left.abs().max()) < 100 * EPS * float(torch.linalg.matrix_norm(gram, 2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("alpha", [1e-2, 1e-6, 1e-9])
@pytest.mark.parametrize("decades", [6.0, 12.0])
def test_ill_conditioned_problems_are_solved_or_say_that_they_are_not(shape, alpha, decades):
    case = problem(shape, decades=decades, largest=1.0)
    space = krylov.build(case.operator, case.block, alpha=alpha, rtol=1e-11)
    assert space.limited_by == (None if alpha == 1e-2 else "precision")
    spread = krylov.effective_dimension(space, alpha).value ** 0.5
    # singular values of G itself: the reference must not lose what it is to judge
    u, s, vh = torch.linalg.svd(case.g, full_matrices=False)
    s, xi, theta, y = s[:, None], u.mT @ case.block.data_noise, vh @ case.block.prior_noise, u.mT @ case.block.targets
    inside = torch.cat([s * xi + alpha**0.5 * theta, s * y], dim=1) / (s.square() + alpha)
    found = case.solved(space, alpha, 1.0)
    wrong = (case.g @ found - u @ (s * inside)).norm(dim=0) / spread
    assert bool((wrong <= 5 * krylov.errors(space, alpha)).all())  # round-off is an estimate there, not a bound
    assert float(wrong.max()) < 1e-11 + 20 * EPS / alpha * len(u) ** 0.5
    close(vh @ found, inside, 1e-11 + 100 * EPS / alpha)
    if shape == "wide" and decades == 12:
        assert not space.exhausted  # it saw that more steps would not help


def test_dependent_columns_of_the_block_are_left_out(case, generator):
    n, d = case.g.shape
    xi, theta, y = normal(generator, n, 2), normal(generator, d, 2), normal(generator, n, 2)
    doubled = StartBlock(
        torch.cat([theta, theta, 0 * theta], 1), torch.cat([xi, 2 * xi, 0 * xi], 1), torch.cat([y, 0 * y, xi], 1)
    )
    same, plain = replace(case, block=doubled), replace(case, block=StartBlock(theta, xi, y))
    for steps in (1, 3):
        space, expected = same.space(steps), plain.space(steps)
        assert [part.shape[1] for part in space.chain.blocks] == [6] * steps
        close(space.ritz, expected.ritz, 1e-11)
        found = same.solved(space, 0.3, 1.0)
        close(found[:, :2], plain.solved(expected, 0.3, 1.0)[:, :2], 1e-11)
        assert float((found[:, 4:6] - same.block.prior_noise[:, 4:6]).abs().max()) < EPS
    close(same.solved(same.space(9), 0.3, 1.0), same.truth(0.3, 1.0), same.tolerance(0.3, 1.0))


def test_columns_of_very_different_size_are_all_kept(case):
    parts = StartBlock(case.block.prior_noise, case.block.data_noise, case.block.targets * torch.tensor([1e12, 1e-12]))
    scaled = replace(case, block=parts)
    found, exact = scaled.solved(scaled.space(6), 0.3, 1.0), scaled.truth(0.3, 1.0)
    for column in range(DRAWS + TARGETS):
        close(found[:, column], exact[:, column], case.tolerance(0.3, 1.0))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_invariant_space_is_recognised(shape):
    full = problem(shape)
    u, s, vh = torch.linalg.svd(full.g, full_matrices=False)
    low = replace(full, g=u[:, :11] * s[:11] @ vh[:11])
    space = low.space(50)
    assert space.exhausted
    assert len(space.ritz) < 40
    assert int((space.ritz > 1e-12 * space.ritz.max()).sum()) == 11
    assert krylov.grow(low.operator, space, 3).steps == space.steps
    assert bool((krylov.residuals(space, 0.3) == 0).all())
    close(low.solved(space, 0.3, 2.0), low.truth(0.3, 2.0), low.tolerance(0.3, 2.0))


@pytest.mark.parametrize(
    ("name", "shape"), [("zeros", (7, 4)), ("zeros", (4, 7)), ("repeated", (9, 6)), ("repeated", (4, 10))]
)
def test_zero_rows_and_repeated_features(name, shape, generator):
    (n, d), alpha, beta = shape, 0.7, 1.3
    g = torch.zeros(n, d, dtype=torch.float64)
    if name == "repeated":
        g[: n - 1] = normal(generator, n - 1, d // 2).repeat(1, 2)
    case = Problem(g, block(generator, n, d), normal(generator, ROWS, d))
    space = krylov.build(case.operator, case.block, alpha=alpha, beta=beta, rtol=1e-9)
    assert space.limited_by is None
    exact = case.truth(alpha, beta)
    assert float((case.solved(space, alpha, beta) - exact).norm()) < 1e-8 * float(exact.norm())
    found = krylov.variances(space, case.rows, alpha=alpha, beta=beta, operator=case.operator)
    covariance = torch.linalg.inv(case.precision(alpha, beta))
    close(found.upper, (case.rows @ covariance * case.rows).sum(1), 1e-8)
    if name == "zeros":
        assert krylov.effective_dimension(space, alpha, beta).value == 0
        assert krylov.log_determinant(space, alpha, beta).value == 0


@pytest.mark.parametrize("shape", [(1, 1), (6, 1), (1, 6), (5, 5)])
@pytest.mark.parametrize("targets", [0, 1])
def test_axes_of_length_one_and_equal_axes(shape, targets, generator):
    (n, d), alpha, beta = shape, 0.7, 1.3
    case = Problem(normal(generator, n, d), block(generator, n, d, 1, targets), normal(generator, 1, d))
    space = krylov.build(case.operator, case.block, alpha=alpha, beta=beta, rtol=1e-12)
    found, exact = case.solved(space, alpha, beta), case.truth(alpha, beta)
    assert found.shape == (d, 1 + targets)
    close(found, exact, 1e-10)
    assert krylov.errors(space, alpha, beta).shape == (1 + targets,)
    assert 0 < krylov.effective_dimension(space, alpha, beta).standard_error < torch.inf  # from one probe
    assert krylov.variances(space, case.rows, alpha=alpha, beta=beta, operator=case.operator).upper.shape == (1,)


def test_targets_can_be_left_out(case):
    parts = StartBlock(case.block.prior_noise, case.block.data_noise)
    draws, mean = krylov.draws_and_mean(krylov.grow(case.operator, parts, 9), alpha=0.3, operator=case.operator)
    assert mean.shape == (case.g.shape[1], 0)
    close(draws, case.truth(0.3, 1.0)[:, :DRAWS], case.tolerance(0.3, 1.0))


def test_what_stopped_a_space_is_said(case):
    def build(**limits: float) -> Space:
        return krylov.build(case.operator, case.block, alpha=0.04, beta=3.0, rtol=1e-4, **limits)

    few = build(max_steps=2)
    assert (few.limited_by, few.steps) == ("steps", 2)
    with counting_on(2):
        tiny = build()
    assert (tiny.limited_by, tiny.steps) == ("memory", 1)
    with counting_on(2 * int(krylov.needed_bytes(few, 1))):
        middle = build()
    assert (middle.limited_by, middle.steps) == ("memory", 3)
    assert float(krylov.errors(middle, 0.04, 3.0).max()) > 1e-4
    assert build().limited_by is None
    assert krylov.build(case.operator, middle, alpha=1e9).limited_by is None


@pytest.mark.parametrize("shape", [(3000, 40), (40, 3000)])
def test_memory_is_foreseen(shape, generator):
    operator = Dense(normal(generator, *shape))
    space = krylov.grow(operator, block(generator, *shape), 2)
    chain = krylov.grow(operator, space, 2).chain
    parts = [*chain.blocks, chain.ahead, chain.projected, *([] if chain.image is None else [chain.image])]
    held = 8 * sum(part.numel() for part in parts)
    assert held <= krylov.needed_bytes(space, 2) <= 10 * held


@dataclass(frozen=True, eq=False)
class InBatches(LinearOperator):
    """A matrix multiplied a batch of rows at a time, counting its products."""

    matrix: Tensor
    size: int
    counted: list[int]

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def like(self) -> Tensor:
        return self.matrix

    def matmat(self, x: Tensor) -> Tensor:
        self.counted.append(x.shape[1])
        return torch.cat([rows @ x for rows in self.matrix.split(self.size)])

    def rmatmat(self, y: Tensor) -> Tensor:
        self.counted.append(y.shape[1])
        parts = zip(self.matrix.split(self.size), y.split(self.size), strict=True)
        return torch.stack([rows.mT @ part for rows, part in parts]).sum(0)


@pytest.mark.parametrize("size", [2, 13])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_batching_changes_nothing_and_products_are_counted(case, size, steps):
    operator = InBatches(case.g, size, [])
    space = krylov.grow(operator, case.block, steps)
    assert (space.chain.passes, space.chain.columns) == (len(operator.counted), sum(operator.counted))
    assert space.chain.passes <= 2 + 2 * steps
    for alpha, beta in PRECISIONS:
        expected = case.solved(case.space(steps), alpha, beta)
        found = torch.cat(krylov.draws_and_mean(space, alpha=alpha, beta=beta, operator=operator), dim=1)
        close(found, expected, case.tolerance(alpha, beta))


def test_sparse_operators_give_the_same(case):
    g = torch.where(case.g.abs() > 0.15, case.g, 0)
    sparse, dense = as_operator(scipy.sparse.csr_array(g.numpy())), replace(case, g=g)
    space = krylov.grow(sparse, case.block, 4)
    found = torch.cat(krylov.draws_and_mean(space, alpha=0.3, operator=sparse), dim=1)
    close(found, dense.solved(dense.space(4), 0.3, 1.0), dense.tolerance(0.3, 1.0))


def test_solves_after_growing_touch_the_data_once_or_never(case):
    operator = InBatches(case.g, 10, [])
    space = krylov.grow(operator, case.block, 3)
    operator.counted.clear()
    krylov.errors(space, 0.3), krylov.effective_dimension(space, 0.3), krylov.log_determinant(space, 0.3)
    assert operator.counted == []
    krylov.draws_and_mean(space, alpha=0.3, operator=operator)
    assert operator.counted == ([] if space.side == "primal" else [DRAWS + TARGETS])


def test_an_explicit_space_needs_no_operator():
    case = problem("wide")
    space = case.space(3)
    stored = krylov.explicit(case.operator, space)
    (basis,) = stored.chain.blocks
    close(basis.mT @ basis, torch.eye(basis.shape[1]).double(), 1e-11)
    for alpha, beta in PRECISIONS:
        found = torch.cat(krylov.draws_and_mean(stored, alpha=alpha, beta=beta), dim=1)
        close(found, case.solved(space, alpha, beta), case.tolerance(alpha, beta))
        assert torch.equal(krylov.errors(stored, alpha, beta), krylov.errors(space, alpha, beta))
        found = krylov.variances(stored, case.rows, alpha=alpha, beta=beta)
        expected = krylov.variances(space, case.rows, alpha=alpha, beta=beta, operator=case.operator)
        for name in ("lower", "upper", "sampled"):
            close(getattr(found, name), getattr(expected, name), case.tolerance(alpha, beta))
    assert krylov.explicit(case.operator, stored) is stored
    with pytest.raises(ValueError, match="an explicit space cannot grow"):
        krylov.grow(case.operator, stored, 1)
    with pytest.raises(ValueError, match="needs operator=G"):
        krylov.draws_and_mean(space, alpha=0.3)
    tall = problem("tall").space(2)
    assert krylov.explicit(case.operator, tall) is tall


@pytest.mark.parametrize("alpha", [0.1, 1e-5])
def test_single_precision_is_kept_and_its_limits_are_said(case, alpha):
    single = replace(case, g=case.g.float())
    space = krylov.build(single.operator, case.block, alpha=alpha, rtol=1e-3)
    assert {part.dtype for part in space.chain.blocks} == {torch.float32}
    assert {space.ritz.dtype, space.start.dtype, space.rotation.dtype} == {torch.float64}
    assert space.limited_by == (None if alpha == 0.1 else "precision")
    found = single.solved(space, alpha, 1.0)
    assert found.dtype == torch.float32
    same = replace(case, g=single.g.double())
    wrong = (same.g @ (found.double() - same.truth(alpha, 1.0))).norm(dim=0)
    spread = krylov.effective_dimension(space, alpha).value ** 0.5
    assert bool((wrong <= 2 * spread * krylov.errors(space, alpha)).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_products_that_are_not_finite_are_refused(case, bad):
    broken = case.g.clone()
    broken[3, 5] = bad
    with pytest.raises(ValueError, match=r"the product of Dense of shape .* not finite in 3 of 3 columns"):
        krylov.grow(Dense(broken), case.block, 2)
    with pytest.raises(ValueError, match="hold values that are not finite"):
        StartBlock(case.block.prior_noise, case.block.data_noise * bad)


def test_wrong_arguments_are_refused(case):
    theta, xi, y = case.block.prior_noise, case.block.data_noise, case.block.targets
    for parts in [(theta[:, :2], xi), (theta[:, :0], xi[:, :0]), (theta, xi, y[:, 0])]:
        with pytest.raises(ValueError, match=r"prior_noise, data_noise and targets have shapes .* expected matrices"):
            StartBlock(*parts)
    for parts in [StartBlock(xi, theta), StartBlock(theta, xi, y[:4])]:
        with pytest.raises(ValueError, match=r"rows, expected \[.*\] for G of shape"):
            krylov.grow(case.operator, parts, 1)
    with pytest.raises(ValueError, match="steps is 0, expected at least 1"):
        krylov.grow(case.operator, case.block, 0)
    for alpha, beta in [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (float("inf"), 1.0)]:
        with pytest.raises(ValueError, match="expected positive finite precisions"):
            krylov.errors(case.space(1), alpha, beta)

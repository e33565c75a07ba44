from dataclasses import dataclass, replace
from itertools import combinations, islice

import pytest
import scipy.sparse
import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lapwing.linalg.operators import BlockDiagonal, Dense, Diagonal, LinearOperator, LowRank, as_operator
from lapwing.linalg.solvers import ConjugateGradients, NotConverged
from lapwing.linalg.stochastic import (
    DualDescent,
    Minibatches,
    Objective,
    StochasticGradients,
    best_fraction,
    gradient_moments,
    gradient_variances,
    stable_length,
)


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Streamed(LinearOperator):
    """Rows that can only be had in consecutive blocks."""

    matrix: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def like(self) -> Tensor:
        return self.matrix

    def matmat(self, x: Tensor) -> Tensor:
        return self.matrix @ x

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.matrix.mT @ y

    def rows(self, start: int, stop: int) -> Tensor:
        return self.matrix[start:stop]


N, D, K = 82, 13, 3
ROWS = normal(N, D)
HOLES = torch.where(normal(N, D, seed=1) > 0, ROWS, 0.0)
ROOT, SCALE = normal(N, seed=2).abs() + 0.5, normal(D, seed=3).abs() + 0.5
FEATURES = {
    "dense": (Dense(ROWS), ROWS),
    "sparse": (as_operator(scipy.sparse.csr_array(HOLES.numpy())), HOLES),
    "scaled": (Diagonal(ROOT) @ (Dense(ROWS) @ Diagonal(SCALE)) * 2.0, 2 * ROOT[:, None] * ROWS * SCALE),
    "streamed": (Streamed(ROWS), ROWS),
    "low rank": (LowRank(ROWS[:, :4], normal(D, 4, seed=4)), ROWS[:, :4] @ normal(D, 4, seed=4).mT),
    "blocks": (
        BlockDiagonal(normal(41, 2, 2, seed=5)) @ Dense(ROWS),
        torch.block_diag(*normal(41, 2, 2, seed=5)) @ ROWS,
    ),
}


@pytest.fixture(params=FEATURES.values(), ids=FEATURES.keys())
def features(request):
    return request.param


def objective(features: LinearOperator, precision: float = 2.0, columns: int = K, seed: int = 10) -> Objective:
    """Standard normal targets and anchors drawn with the precision: the minimisers are posterior draws."""
    n, d = features.shape
    return Objective(
        features, normal(n, columns, seed=seed), normal(d, columns, seed=seed + 1) / precision**0.5, precision
    )


def hessian(features: Tensor, problem: Objective) -> Tensor:
    return features.mT @ features + problem.precision * torch.eye(features.shape[1]).double()


def right_side(features: Tensor, problem: Objective) -> Tensor:
    return features.mT @ problem.targets + problem.precision * problem.anchors


def minimiser(features: Tensor, problem: Objective) -> Tensor:
    return torch.linalg.solve(hessian(features, problem), right_side(features, problem))


def energy_error(features: Tensor, problem: Objective, z: Tensor) -> float:
    """Relative error in the norm of the Hessian, all columns together."""
    truth, H = minimiser(features, problem), hessian(features, problem)
    return float((((z - truth) * (H @ (z - truth))).sum() / (truth * (H @ truth)).sum()).sqrt())


def precision_for(features: Tensor, dimension: float) -> float:
    """α at which the effective dimension Σ λ/(λ + α) is as given."""
    values = torch.linalg.eigvalsh(features.mT @ features)
    low, high = -10.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if float((values / (values + 10**middle)).sum()) > dimension else (low, middle)
    return 10**middle


def test_the_gradient_does_not_depend_on_where_the_targets_stand(features):
    """And it is that of the formula, by automatic differentiation."""
    operator, dense = features
    problem, z = objective(operator), normal(D, K, seed=20).requires_grad_()
    value = (problem.targets - dense @ z).square().sum() / 2
    value = value + problem.precision * (z - problem.anchors).square().sum() / 2
    (expected,) = torch.autograd.grad(value, z)
    for fraction in (1.0, 0.0, 0.3):
        gradient = replace(problem, fraction=fraction).gradient(z.detach())
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fraction", [1.0, 0.0, 0.3])
def test_the_mean_over_an_epoch_of_minibatches_is_the_full_gradient(features, fraction):
    """Every row once, the short batches included."""
    problem, z = replace(objective(features[0]), fraction=fraction), normal(D, K, seed=20)
    batches = Minibatches(problem.features, batch_size=9, momentum=0.9)
    stream = batches.stream(seeded(0))
    for _ in range(2):
        epoch = list(islice(stream, batches.count))
        assert batches.count == 10
        assert torch.cat([rows for rows, _ in epoch]).sort().values.tolist() == list(range(N))
        for rows, part in epoch:
            torch.testing.assert_close(part.dense(), features[1][rows], rtol=0, atol=1e-12)
        fits = [batches.count * problem.fit_gradient(z, rows, part) for rows, part in epoch]
        mean = torch.stack(fits).mean(0) + problem.precision * z - problem.pull()
        torch.testing.assert_close(mean, problem.gradient(z), rtol=0, atol=1e-10)


def test_independent_batches_repeat_rows_and_stored_rows_are_scattered():
    def epoch(features: LinearOperator, reshuffled: bool) -> Tensor:
        batches = Minibatches(features, batch_size=9, momentum=0.9, reshuffled=reshuffled)
        return torch.cat([rows for rows, _ in islice(batches.stream(seeded(0)), batches.count)])

    assert len(epoch(Dense(ROWS), False).unique()) < N
    assert len(epoch(Streamed(ROWS), False).unique()) < N
    assert (epoch(Dense(ROWS), True).diff() != 1).sum() > 60  # a random order has one or so neighbours in sequence
    assert (epoch(Streamed(ROWS), True).diff() != 1).sum() <= 9


def test_gradient_variances_are_exact():
    """Against the mean over every batch there is."""
    rows, z = ROWS[:7], normal(D, K, seed=20)
    problem = replace(objective(Dense(rows)), fraction=0.4)
    full = problem.gradient(z)
    for size in (1, 3, 6, 7):
        estimates = [
            7 / size * problem.fit_gradient(z, torch.tensor(chosen), Dense(rows[list(chosen)]))
            + problem.precision * z
            - problem.pull()
            for chosen in combinations(range(7), size)
        ]
        expected = (torch.stack(estimates) - full).square().sum(1).mean(0)
        torch.testing.assert_close(gradient_variances(problem, z, size), expected, rtol=1e-10, atol=1e-10)


@dataclass(frozen=True)
class Expectation:
    """Exact expectations over standard normal targets and anchors: quadratic, so sums over unit columns."""

    features: Tensor
    precision: float

    @property
    def problem(self) -> Objective:
        n, d = self.features.shape
        columns = torch.eye(n + d, dtype=torch.float64)
        return Objective(Dense(self.features), columns[:n], columns[n:] / self.precision**0.5, self.precision)

    @property
    def weights(self) -> Tensor:
        return self.features.square().sum(1)

    @property
    def leverages(self) -> Tensor:
        return (self.features * torch.linalg.solve(hessian(self.features, self.problem), self.features.mT).mT).sum(1)

    def moment(self, fraction: float) -> float:
        problem = replace(self.problem, fraction=fraction)
        return float(gradient_moments(problem, minimiser(self.features, problem)).sum())

    def variance(self, fraction: float, batch_size: int) -> float:
        problem = replace(self.problem, fraction=fraction)
        return float(gradient_variances(problem, minimiser(self.features, problem), batch_size).sum())


VARIANCE_CASES = {  # n, d, γ; the last is the one where moving all the noise to the anchor loses
    "γ = n/18": (1000, 100, 55.0),
    "γ = n/10": (1000, 130, 100.0),
    "γ = n/2": (200, 110, 99.0),
    "γ = 0.83 n": (120, 100, 99.9),
}


@pytest.mark.parametrize("case", VARIANCE_CASES)
def test_variance_ratios_follow_the_leverages(case):
    """Var(L) / Var(L′) = Σ w (1 − h) / Σ w h, near n/γ − 1; the mixture beats both."""
    n, d, dimension = VARIANCE_CASES[case]
    features = normal(n, d, seed=30)
    exact = Expectation(features, precision_for(features, dimension))
    w, h = exact.weights, exact.leverages
    assert float(h.sum()) == pytest.approx(dimension, rel=1e-6)
    mixed = best_fraction(w, h)
    for fraction in (1.0, 0.0, mixed, 0.37):
        theory = float((w * (h - 2 * fraction * h + fraction**2)).sum())
        assert exact.moment(fraction) == pytest.approx(theory, rel=1e-7)
    predicted = float((w * (1 - h)).sum() / (w * h).sum())
    measured = exact.variance(1.0, 20) / exact.variance(0.0, 20)
    assert measured == pytest.approx(predicted, rel=0.05)
    assert predicted == pytest.approx(n / dimension - 1, rel=0.05)
    assert (measured < 1) == (dimension > n / 2)
    assert exact.moment(mixed) <= min(exact.moment(0.0), exact.moment(1.0))
    assert exact.variance(mixed, 20) <= min(exact.variance(0.0, 20), exact.variance(1.0, 20))


def test_variance_ratios_of_actual_draws():
    """From 200 draws from normal noise."""
    features = normal(1000, 100, seed=30)
    problem = objective(Dense(features), precision_for(features, 55.0), columns=200)
    truth = minimiser(features, problem)
    low, high = (float(gradient_variances(replace(problem, fraction=c), truth, 50).mean()) for c in (0.0, 1.0))
    w, h = features.square().sum(1), Expectation(features, problem.precision).leverages
    assert high / low == pytest.approx(float((w * (1 - h)).sum() / (w * h).sum()), rel=0.05)
    # the leverages, and with them the fraction, can be had from draws: 55 directions, 200 draws, 1 %; five of them
    from_draws = best_fraction(w, (features @ truth).square().mean(1))
    assert from_draws == pytest.approx(best_fraction(w, h), rel=5 * (2 / (200 * 55)) ** 0.5)


def test_only_the_weighted_fraction_never_loses():
    """A few long rows that the data determine, many short ones they do not: γ/n is the wrong fraction."""
    features = torch.cat([30 * torch.eye(5, 9).double(), 0.02 * normal(60, 9, seed=40)])
    exact = Expectation(features, 0.5)
    w, h = exact.weights, exact.leverages
    assert exact.moment(float(h.sum()) / 65) > 100 * exact.moment(1.0)
    assert exact.moment(best_fraction(w, h)) <= min(exact.moment(0.0), exact.moment(1.0))


@pytest.mark.slow
def test_low_variance_beats_a_batch_four_times_as_large():
    """Energy-norm errors of 0.08 and 0.12 with batches drawn independently; the mixture is better still."""
    features = normal(2000, 200, seed=50)
    problem = objective(Dense(features), precision_for(features, 175.0), columns=8)

    def error(fraction: float, batch_size: int, reshuffled: bool = False) -> float:
        solver = StochasticGradients(batch_size=batch_size, steps=3000, averaging=0.01, reshuffled=reshuffled)
        solution = solver.solve(replace(problem, fraction=fraction), generator=seeded(0))
        return energy_error(features, problem, solution.x)

    plain, low, mixed = error(1.0, 400), error(0.0, 100), error(175 / 2000, 100)
    shuffled = error(0.0, 100, reshuffled=True)
    assert low < plain
    assert low == pytest.approx(0.08, rel=0.25)
    assert plain == pytest.approx(0.12, rel=0.25)
    assert mixed < 1.02 * low  # theory: 4.5 % less; the same batches, so most of the chance cancels
    assert shuffled < low / 4


def test_with_all_rows_in_one_batch_it_is_nesterovs_method():
    problem, steps, length = objective(Dense(ROWS)), 7, 1e-3
    solution = StochasticGradients(batch_size=N, steps=steps, averaging=0.3, step_length=length).solve(
        problem, generator=seeded(0)
    )
    z, velocity, average = problem.anchors, 0 * problem.anchors, problem.anchors
    for step in range(steps):
        gradient = problem.gradient(z + 0.9 * velocity)
        velocity = 0.9 * velocity - length * (1 - 0.97 * step / (steps - 1)) * gradient
        z = z + velocity
        average = 0.7 * average + 0.3 * z
    torch.testing.assert_close(solution.x, average, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fraction", [1.0, 0.0, 0.2])
def test_sgd_finds_the_minimiser_of_every_kind_of_features(features, fraction):
    operator, dense = features
    problem = replace(objective(operator, precision=10.0), fraction=fraction)
    solution = StochasticGradients(batch_size=20, steps=800, rtol=0.05).solve(problem, generator=seeded(0))
    true = (right_side(dense, problem) - hessian(dense, problem) @ solution.checked()).norm(dim=0)
    torch.testing.assert_close(solution.residuals, true / right_side(dense, problem).norm(dim=0), rtol=1e-8, atol=0)
    error = (solution.x - minimiser(dense, problem)).norm(dim=0)
    assert (error <= 0.05 * right_side(dense, problem).norm(dim=0) / 10.0).all()  # ‖e‖ ≤ ‖r‖/λ_min
    assert solution.steps == 800


@pytest.mark.parametrize("shape", [(17, 61), (150, 29)], ids=["wide", "tall"])
@pytest.mark.parametrize("batch_size", [1, 5, 200])
def test_dual_descent_converges_to_the_exact_draw(shape, batch_size):
    dense = normal(*shape, seed=60)
    problem = objective(Dense(dense), precision=25.0)
    rough, fine = (
        DualDescent(batch_size=batch_size, steps=steps, rtol=1e-5).solve(problem, generator=seeded(0))
        for steps in (600, 4000)
    )
    assert fine.checked().shape == (shape[1], K)
    # ‖e‖_H ≤ ‖r‖/√α, and the energy of the minimiser is at least ‖b‖/√λ_max
    largest = float(torch.linalg.matrix_norm(dense, 2)) ** 2 + 25.0
    assert energy_error(dense, problem, fine.x) <= 1e-5 * (largest / 25.0) ** 0.5
    assert fine.residuals.max() < 1e-2 * rough.residuals.max() or rough.residuals.max() < 1e-12


def test_dual_descent_works_on_every_kind_of_features_and_any_fraction(features):
    operator, dense = features
    problem = objective(operator, precision=60.0)
    solution = DualDescent(batch_size=20, steps=1800, rtol=1e-5).solve(problem, generator=seeded(0))
    error = (solution.checked() - minimiser(dense, problem)).norm(dim=0)
    assert (error <= 1e-5 * right_side(dense, problem).norm(dim=0) / 60.0).all()  # ‖e‖ ≤ ‖r‖/λ_min
    one, other = (
        DualDescent(batch_size=20, steps=30).solve(replace(problem, fraction=c), generator=seeded(0)).x
        for c in (1.0, 0.3)
    )
    assert torch.equal(one, other)  # the dual does not see the fraction


def test_the_system_is_symmetric_and_definite_and_other_solvers_agree(features):
    """The three routes to one minimiser."""
    operator, dense = features
    problem = objective(operator)
    system, right = problem.system()
    u, v = normal(D, 5, seed=70), normal(D, 5, seed=71)
    torch.testing.assert_close(u.mT @ (system @ v), (v.mT @ (system @ u)).mT, rtol=0, atol=1e-10)
    assert ((u * (system @ u)).sum(0) >= problem.precision * u.square().sum(0) * (1 - 1e-12)).all()
    torch.testing.assert_close(
        ConjugateGradients(rtol=1e-12).solve(system, right).checked(), minimiser(dense, problem), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("solver", [StochasticGradients(batch_size=8, steps=300), DualDescent(batch_size=8, steps=300)])
def test_a_solve_repeats_and_writes_to_nothing(solver):
    problem = objective(Dense(ROWS))
    before = [x.clone() for x in (ROWS, problem.targets, problem.anchors)]
    one, two, other = (solver.solve(problem, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.x, two.x)
    assert not torch.equal(one.x, other.x)
    assert all(torch.equal(x, y) for x, y in zip(before, (ROWS, problem.targets, problem.anchors), strict=True))


def test_steps_too_long_are_noticed_and_said():
    problem = objective(Dense(ROWS))
    for solver in (StochasticGradients(batch_size=9, step_length=1.0), DualDescent(batch_size=9, step_length=10.0)):
        solution = solver.solve(problem, generator=seeded(0))
        assert not solution.converged
        assert solution.steps < solver.steps
        with pytest.raises(NotConverged, match=r"3 of 3 columns .* diverged with step length 1\.0e\+0[01]"):
            solution.checked()


def test_too_few_steps_are_said():
    solution = StochasticGradients(batch_size=9, steps=3).solve(objective(Dense(ROWS)), generator=seeded(0))
    with pytest.raises(NotConverged, match=r"in 3 steps.*allow more steps, larger batches"):
        solution.checked()


@pytest.mark.parametrize("solver", [StochasticGradients, DualDescent])
@pytest.mark.parametrize("batch_size", [1, 4, 30])
def test_rows_of_very_different_length_do_not_make_it_diverge(solver, batch_size):
    dense = normal(90, 11, seed=80) * torch.exp(1.5 * normal(90, 1, seed=81))
    problem = objective(Dense(dense), precision=5.0)
    solution = solver(batch_size=batch_size, steps=1000).solve(problem, generator=seeded(0))
    assert solution.residuals.isfinite().all()
    assert "diverged" not in solution.advice
    assert energy_error(dense, problem, solution.x) < energy_error(dense, problem, problem.anchors)


def test_a_start_near_the_end_helps():
    problem = objective(Dense(ROWS))
    solver = StochasticGradients(batch_size=40, steps=60, averaging=0.5)
    warm = solver.solve(problem, generator=seeded(0), start=minimiser(ROWS, problem) + 1e-3)
    cold = solver.solve(problem, generator=seeded(0))
    assert energy_error(ROWS, problem, warm.x) < energy_error(ROWS, problem, cold.x)


@pytest.mark.parametrize("solver", [StochasticGradients(batch_size=5, steps=400), DualDescent(batch_size=5, steps=400)])
def test_edges(solver):
    single = Objective(Dense(ROWS[:1].float()), torch.ones(1, 1), torch.zeros(D, 1), 3.0)
    solution = solver.solve(single, generator=seeded(0))
    assert solution.x.dtype == torch.float32
    expected = ROWS[:1].mT / (3.0 + ROWS[:1].square().sum())  # z = gᵀ(α + g gᵀ)⁻¹ for a target of one
    torch.testing.assert_close(solution.checked().double(), expected, rtol=0, atol=1e-4)
    nothing = Objective(Dense(torch.zeros(4, 6).double()), normal(4, 2), normal(6, 2), 3.0)
    torch.testing.assert_close(
        solver.solve(nothing, generator=seeded(0)).checked(), nothing.anchors, rtol=0, atol=1e-12
    )
    silent = Objective(Dense(ROWS), 0 * normal(N, K), 0 * normal(D, K), 3.0)
    assert (solver.solve(silent, generator=seeded(0)).checked() == 0).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"expected \(82, k\) and \(13, k\)"):
        Objective(Dense(ROWS), normal(N, 2), normal(D, 3), 1.0)
    with pytest.raises(ValueError, match="precision is 0.0"):
        Objective(Dense(ROWS), normal(N, 2), normal(D, 2), 0.0)
    with pytest.raises(ValueError, match=r"fraction 1\.5"):
        replace(objective(Dense(ROWS)), fraction=1.5)
    with pytest.raises(ValueError, match="batch_size is 83, expected a number of rows from 1 to 82"):
        gradient_variances(objective(Dense(ROWS)), normal(D, K), 83)
    for settings in ({"batch_size": 0}, {"steps": 0}, {"momentum": 1.0}):
        for solver in (StochasticGradients, DualDescent):
            with pytest.raises(ValueError, match="expected at least 1, at least 1"):
                solver(**settings)


def second_moments(step: float, curvature: float, variance: float, momentum: float) -> Tensor:
    """What one step of Nesterov's method on a random curvature does to E z², E z z₋, E z₋²."""
    kept, square = 1 - step * curvature, (1 - step * curvature) ** 2 + step**2 * variance
    m = momentum
    rows = [
        [square * (1 + m) ** 2, -2 * square * m * (1 + m), square * m**2],
        [kept * (1 + m), -kept * m, 0],
        [1, 0, 0],
    ]
    return torch.tensor(rows, dtype=torch.float64)


def radius(matrix: Tensor) -> float:
    return float(torch.linalg.eigvals(matrix).abs().max())


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3, 1.0, 4.0, 90.0])
def test_the_stable_length_is_the_edge_of_stability(momentum, spread):
    """Below it all curvatures up to the largest are stable in mean square, above it one of them is not."""
    curvatures = [*torch.logspace(-5, 0, 100).tolist(), 1.0]
    length = stable_length(3.0, 3.0 * spread, momentum)

    def worst(step: float) -> float:
        return max(radius(second_moments(step, 3 * x, 9 * x * spread, momentum)) for x in curvatures)

    assert worst(0.999 * length) < 1
    assert worst(1.02 * length) > 1


CURVED = {
    "alike": normal(9, 2, seed=90),
    "one long row": torch.cat([normal(8, 2, seed=91), 6 * normal(1, 2, seed=92)]),
    "one direction": torch.cat([normal(9, 1, seed=93) + 4, 0.3 * normal(9, 1, seed=94)], dim=1),
}


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_at_its_own_step_length_is_stable_in_mean_square(name, size, momentum):
    """The exact second-moment operator over every batch there is, all directions coupled: (2d)² × (2d)²."""
    rows, count, precision, d = CURVED[name], 9 // size, 0.1, 2
    batches = Minibatches(Dense(rows), size, momentum, reshuffled=False)
    length, total, chosen = batches.step_length(precision, seeded(0)), 0.0, list(combinations(range(9), size))
    identity = torch.eye(d, dtype=torch.float64)
    for batch in chosen:
        part = rows[list(batch)]
        kept = identity - length * (count * part.mT @ part + precision * identity)
        step = torch.cat(
            [
                torch.cat([(1 + momentum) * kept, -momentum * kept], dim=1),
                torch.cat([identity, 0 * identity], dim=1),
            ]
        )
        total = total + torch.kron(step, step) / len(chosen)
    assert radius(total) < 1


def test_a_single_batch_is_drawn_like_one_of_an_epoch():
    """Without repetition, every row with probability 1 / count, short and long batches in their share."""
    for features in (Dense(ROWS), Streamed(ROWS)):
        batches = Minibatches(features, batch_size=9, momentum=0.9, reshuffled=False)
        drawn = [rows for rows, _ in islice(batches.stream(seeded(0)), 4000)]
        assert all(len(rows.unique()) == len(rows) for rows in drawn)
        assert {len(rows) for rows in drawn} == {8, 9}
        hits = torch.bincount(torch.cat(drawn), minlength=N) / 4000
        z = (hits - 1 / batches.count) / (0.1 * 0.9 / 4000) ** 0.5
        assert z.abs().max() < 5
    whole = Minibatches(Dense(ROWS), batch_size=N, momentum=0.9, reshuffled=False)
    assert next(whole.stream(seeded(0)))[0].sort().values.tolist() == list(range(N))


def test_a_single_batch_does_not_cost_a_look_at_every_row():
    """A hundred million rows that are never made: a permutation of them alone would take 800 MB."""

    class Endless(LinearOperator):
        shape, like = (10**8, D), ROWS

        def matmat(self, x):
            raise AssertionError

        rmatmat = matmat

        def rows(self, start, stop):
            return torch.full((stop - start, D), float(start), dtype=torch.float64)

    batches = Minibatches(Endless(), batch_size=100, momentum=0.9, reshuffled=False)
    wide = Minibatches(Dense(ROWS[:1].expand(10**7, D)), batch_size=100, momentum=0.9, reshuffled=False)
    with Largest() as seen:
        starts = [int(rows[0]) for rows, _ in islice(batches.stream(seeded(0)), 20)]
        assert next(wide.stream(seeded(0)))[1].shape == (100, D)
    assert len(set(starts)) == 20
    assert seen.elements <= 100 * D


class Largest(TorchDispatchMode):
    """The size of the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result

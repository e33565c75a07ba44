"""Every likelihood keeps the one protocol: derivatives, surrogate models, expectations, files."""

import numpy as np
import pytest
import scipy.integrate
import torch

import lapwing as lw
from lapwing.bayes.likelihoods import GammaHyperprior, Gaussian, Likelihood, restored
from lapwing.bayes.likelihoods.spread import Spread
from lapwing.bayes.predictive import Observation, Prediction, from_draws
from lapwing.linalg.operators import Dense, Diagonal, Product

EXPONENTIAL = lw.likelihood(lambda f, y: f - y * f.exp())
SHARED = lw.likelihood(lambda f, y: -0.5 * (y - f[:, 0] - f[:, 1]) ** 2 - 0.1 * f[:, 1] ** 4, outputs=2)
STUDENT = lw.likelihood(lambda f, y: -2.5 * (1 + (y - f) ** 2 / 4).log(), fisher=lambda f: torch.full_like(f, 5 / 7))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


N = 5
CASES = {  # a likelihood, outputs as it takes them, targets
    "unit noise": (Gaussian(), normal(N), normal(N, seed=1)),
    "noise": (Gaussian(0.3), normal(N, 2), normal(N, 2, seed=1)),
    "noise per output": (Gaussian([0.3, 2.0]), normal(N, 2), normal(N, 2, seed=1)),
    "noise per datum": (Gaussian(normal(N, 1).exp()), normal(N, 2), normal(N, 2, seed=1)),
    "labels": (lw.Bernoulli(), normal(N, 2), (normal(N, 2, seed=1) > 0).double()),
    "one label": (lw.Bernoulli(), normal(N), (normal(N, seed=1) > 0).double()),
    "classes": (lw.Categorical(), normal(N, 3), torch.tensor([0, 2, 1, 1, 0])),
    "pairs": (lw.BradleyTerry(), normal(N, 2), torch.tensor([0, 0, 1, 0, 1])),
    "counts": (lw.Poisson(), normal(N), torch.tensor([0.0, 2, 1, 1, 5]).double()),
    "varied counts": (lw.NegativeBinomial(0.7), normal(N), torch.tensor([0.0, 2, 1, 1, 5]).double()),
    "positive": (lw.Gamma(2.5), normal(N), normal(N, seed=1).exp()),
    "successes": (lw.Binomial(6), normal(N), torch.tensor([0.0, 2, 1, 6, 5]).double()),
    "levels": (lw.Ordinal((-0.7, 0.1, 1.3)), normal(N), torch.tensor([0.0, 2, 1, 3, 3]).double()),
    "two heads": (lw.HeteroscedasticGaussian(), normal(N, 2), normal(N, seed=1)),
    "four heads": (lw.HeteroscedasticGaussian(), normal(N, 4), normal(N, 2, seed=1)),
    "own": (EXPONENTIAL, normal(N), normal(N, seed=1).exp()),
    "own of two outputs": (SHARED, normal(N, 2), normal(N, seed=1)),
}
EACH = pytest.mark.parametrize("name", list(CASES))


def hessians(of: Likelihood, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # (n c, n c)
    def energy(flat: torch.Tensor) -> torch.Tensor:
        return -of.log_density(flat.reshape(outputs.shape), targets).sum()

    return torch.autograd.functional.hessian(energy, outputs.reshape(-1))


def test_all_are_members_of_one_family():
    names = {kind.__name__ for kind in Likelihood.__subclasses__()}
    assert names == {
        "Gaussian", "Categorical", "Bernoulli", "Poisson", "HeteroscedasticGaussian", "OwnLikelihood",
        "NegativeBinomial", "Gamma", "Binomial", "Ordinal",
    }  # fmt: skip
    told = {
        name: (of.constant_curvature, of.is_discrete, of.log_concave, of.tunes_noise)
        for name, (of, _, _) in CASES.items()
    }
    assert told["unit noise"] == (True, False, True, True)
    assert told["noise"] == (True, False, True, False)
    assert told["labels"] == told["classes"] == told["counts"] == (False, True, True, False)
    assert told["two heads"] == (False, False, False, False)
    assert told["own"] == (False, False, True, False)
    assert not STUDENT.log_concave


@EACH
def test_derivatives_are_those_of_the_log_density(name):
    of, outputs, targets = CASES[name]
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5, 3.0]).double()
    at = outputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(of.log_prob(at, targets, weights), at)
    torch.testing.assert_close(of.gradient(outputs, targets, weights), slope, rtol=1e-10, atol=1e-12)
    units = torch.eye(outputs.numel(), dtype=torch.float64).reshape(*outputs.shape, -1)
    b = of.hessian_product(outputs, units, weights, targets).reshape(outputs.numel(), -1)
    root = of.hessian_root(outputs, units, weights, targets).reshape(outputs.numel(), -1)
    adjoint = of.hessian_root_adjoint(outputs, units, weights, targets).reshape(outputs.numel(), -1)
    torch.testing.assert_close(root @ root.mT, b, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(adjoint, root.mT, rtol=1e-9, atol=1e-10)
    diagonal = of.hessian_diagonal(outputs, weights, targets).reshape(-1)
    torch.testing.assert_close(diagonal, b.diagonal(), rtol=1e-10, atol=1e-12)
    if of.log_concave:
        each = weights.repeat_interleave(outputs[0].numel())
        torch.testing.assert_close(b, each * hessians(of, outputs, targets), rtol=1e-9, atol=1e-10)


@EACH
def test_a_surrogate_has_the_same_curvature(name):
    of, outputs, targets = CASES[name]
    features, weights = normal(outputs.numel(), 4, seed=3), torch.tensor([1.0, 2.0, 0.0, 0.5, 3.0]).double()
    found = of.gaussian_surrogate(Dense(features), outputs.reshape(-1), targets, weights)
    units = torch.eye(outputs.numel(), dtype=torch.float64).reshape(*outputs.shape, -1)
    b = of.hessian_product(outputs, units, weights, targets).reshape(outputs.numel(), -1)
    rows = found.features @ torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(rows.mT @ rows, features.mT @ b @ features, rtol=1e-9, atol=1e-10)
    assert found.targets.shape == found.noise_of.shape == (outputs.numel(),)
    if not of.constant_curvature:
        assert found.counts.tolist() == [0]
        assert found.log_weight == 0
        assert not bool(found.targets.any())
        with pytest.raises(ValueError, match="depends on the outputs"):
            of.gaussian_surrogate(Dense(features), None, targets, weights)


def test_a_surrogate_of_gaussian_noise_is_the_model_in_units_of_its_noise():
    features, targets = Dense(normal(6, 4)), normal(3, 2, seed=1)
    plain = Gaussian().gaussian_surrogate(features, None, targets, torch.ones(3).double())
    assert plain.features is features
    assert plain.targets.tolist() == targets.reshape(-1).tolist()
    assert plain.counts.tolist() == [6]
    assert plain.log_weight == 0
    each = Gaussian(per_output=True).gaussian_surrogate(features, None, targets, torch.tensor([1.0, 2.0, 0.5]).double())
    assert each.noise_of.tolist() == [0, 1] * 3
    assert each.counts.tolist() == [3.5, 3.5]
    weights = normal(3, 2, seed=2).exp()
    given = Gaussian([0.5, 2.0]).gaussian_surrogate(features, None, targets, weights)
    assert isinstance(given.features, Product)
    assert isinstance(given.features.left, Diagonal)
    precision = torch.tensor([4.0, 0.25]).double().expand(3, 2)
    torch.testing.assert_close(given.targets, ((precision * weights).sqrt() * targets).reshape(-1))
    torch.testing.assert_close(given.counts, weights.sum().reshape(1))
    assert given.log_weight == pytest.approx(0.5 * float((weights * precision.log()).sum()))


def over_normal(function, mean: float, variance: float) -> float:
    std = variance**0.5
    density = lambda f: np.exp(-0.5 * ((f - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))  # noqa: E731
    ends = (mean - 12 * std, mean + 12 * std)
    return scipy.integrate.quad(lambda f: function(f) * density(f), *ends, epsabs=1e-12, epsrel=1e-11, limit=500)[0]


@pytest.mark.parametrize(
    "name", ["unit noise", "one label", "counts", "varied counts", "positive", "successes", "levels", "own"]
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 9.0])
def test_expectations_of_one_output_are_those_of_quadrature(name, scale):
    of, mean, targets = CASES[name]
    variance = scale * torch.tensor([0.5, 1.0, 2.0, 0.1, 1.5]).double()
    found = of.expected(mean, variance, targets)
    assert found.standard_error == 0
    for i in range(N):

        def at(f: float, i: int = i) -> torch.Tensor:
            return torch.full_like(mean, f), targets[i].expand(N)

        m, v = float(mean[i]), float(variance[i])
        for part, function in (
            (found.log_density, lambda f: float(of.log_density(*at(f))[0])),
            (found.gradient, lambda f: float(of.gradient(*at(f))[0])),
            (found.curvature, lambda f: float(of.hessian_diagonal(at(f)[0], None, at(f)[1])[0])),
        ):
            assert float(part[i]) == pytest.approx(over_normal(function, m, v), rel=1e-8, abs=1e-9)


def test_the_curvature_that_is_expected_is_the_hessian_and_not_the_fisher_information():
    mean, variance, y = torch.tensor([[0.2], [0.7], [3.0]], dtype=torch.float64)
    found = STUDENT.expected(mean, variance, y)
    second = lambda f: 5 * (4 - (3 - f) ** 2) / (4 + (3 - f) ** 2) ** 2  # noqa: E731
    assert float(found.curvature) == pytest.approx(over_normal(second, 0.2, 0.7), rel=1e-8)


def by_grid(of, mean, covariance, targets, points=60):
    """E log p, E ∂log p and E −∂² log p of each datum by Gauss and Hermite over two outputs."""
    z, w = np.polynomial.hermite_e.hermegauss(points)
    w = w / w.sum()
    nodes = torch.tensor([[a, b] for a in z for b in z]).double()
    weights = torch.tensor([a * b for a in w for b in w]).double()
    parts = []
    for i in range(len(mean)):
        at = mean[i] + nodes @ torch.linalg.cholesky(covariance[i]).mT
        given = targets[i : i + 1].expand(len(at), *targets.shape[1:])

        def alone(row, target):
            return of.log_density(row[None], target[None]).sum()

        slope = torch.func.vmap(torch.func.grad(alone))(at, given)
        bend = -torch.func.vmap(torch.func.hessian(alone))(at, given)
        parts.append((weights @ of.log_density(at, given), weights @ slope, torch.einsum("k,kab->ab", weights, bend)))
    return [torch.stack(part) for part in zip(*parts, strict=True)]


def covariances(n: int, c: int) -> torch.Tensor:
    root = 0.5 * normal(n, c, c, seed=7)
    return root @ root.mT + 0.1 * torch.eye(c, dtype=torch.float64)


def test_expectations_of_mean_and_variance_heads_are_closed_form():
    of, mean, targets = CASES["two heads"]
    covariance = covariances(N, 2)
    found, expected = of.expected(mean, covariance, targets), by_grid(of, mean, covariance, targets)
    for part, value in zip((found.log_density, found.gradient, found.curvature), expected, strict=True):
        torch.testing.assert_close(part, value, rtol=1e-9, atol=1e-10)
    assert found.standard_error == 0
    of, mean, targets = CASES["four heads"]
    wide = covariances(N, 4)
    many = of.expected(mean, wide, targets)
    for k in range(2):
        pick = [k, k + 2]
        one = of.expected(mean[:, pick], wide[:, pick][:, :, pick], targets[:, k])
        torch.testing.assert_close(many.log_density[:, k], one.log_density)
        torch.testing.assert_close(many.gradient[:, pick], one.gradient)
        torch.testing.assert_close(many.curvature[:, pick][:, :, pick], one.curvature)
    assert not bool(many.curvature[:, 0, 1].any())


def test_expectations_of_two_classes_are_by_quadrature():
    of, mean, targets = CASES["classes"]
    mean, targets, covariance = mean[:, :2], targets.clamp_max(1), covariances(N, 2)
    found, expected = of.expected(mean, covariance, targets), by_grid(of, mean, covariance, targets)
    for part, value in zip((found.log_density, found.gradient, found.curvature), expected, strict=True):
        torch.testing.assert_close(part, value, rtol=1e-9, atol=1e-9)
    assert found.standard_error == 0


class Contrasts:
    """Three classes as a density of the two contrasts of their logits, which is all it depends on."""

    def __init__(self, of):
        self.of, self.columns = of, of.contrasts(3)

    def log_density(self, contrasts, targets):
        return self.of.log_density(contrasts @ self.columns.mT, targets)


@pytest.mark.parametrize("name", ["classes", "own of two outputs"])
def test_expectations_over_several_outputs_come_with_their_error(name):
    of, mean, targets = CASES[name]
    if name == "classes":
        columns, wide = of.contrasts(3), covariances(N, 3)
        torch.testing.assert_close(columns.mT @ columns, torch.eye(2).double())
        assert float(columns.sum(0).abs().max()) < 1e-15
        grid = by_grid(Contrasts(of), mean @ columns, columns.mT @ wide @ columns, targets)
        expected = [grid[0], grid[1] @ columns.mT, columns @ grid[2] @ columns.mT]
    else:
        mean, wide = mean[:, :2], covariances(N, 2)
        expected = by_grid(of, mean, wide, targets)
    found = of.expected(mean, wide, targets)
    assert 0 < found.standard_error < 0.2
    assert abs(float(found.log_density.mean() - expected[0].mean())) < 5 * found.standard_error
    torch.testing.assert_close(found.gradient, expected[1], rtol=0.1, atol=0.1)
    torch.testing.assert_close(found.curvature, expected[2], rtol=0.15, atol=0.15)
    again = of.expected(mean, wide, targets)
    assert torch.equal(found.curvature, again.curvature)


def test_points_agree_with_many_plain_ones_within_their_error():
    """Whitened Sobol points against 2¹⁵ independent normals, whose standard errors bound what may be between them."""
    of, mean, targets = CASES["classes"]
    wide = covariances(N, 3)
    found = of.expected(mean, wide, targets)
    z = normal(2**15, 3, seed=21)
    at = mean[:, None] + z @ torch.linalg.cholesky(wide).mT  # (n, points, 3)
    p = at.softmax(2)
    own = torch.nn.functional.one_hot(targets, 3).double()[:, None]
    values = ((at * own).sum(2) - at.logsumexp(2), own - p, torch.diag_embed(p) - p[..., :, None] * p[..., None, :])
    for part, each in zip((found.log_density, found.gradient, found.curvature), values, strict=True):
        error = each.std(1) / 2**7.5
        assert bool(((part - each.mean(1)).abs() <= 5 * error).all())


@pytest.mark.parametrize("name", ["classes", "own of two outputs"])
def test_gradient_and_curvature_over_points_are_the_derivatives_of_the_sum(name):
    """In the mean, and −2 ∂/∂V: by central differences, whose error is h² and round-off over h."""
    of, mean, targets = CASES[name]
    c, h = mean.shape[1], 1e-5
    wide = covariances(N, c)
    found = of.expected(mean, wide, targets)
    shift = torch.eye(c, dtype=torch.float64)

    def slope(step, turn):
        up, down = (of.expected(mean + s * step, wide + s * turn, targets).log_density for s in (h, -h))
        return (up - down) / (2 * h)

    nothing = torch.zeros(c, c).double()
    gradient = torch.stack([slope(shift[k], nothing) for k in range(c)], 1)
    torch.testing.assert_close(found.gradient, gradient, rtol=1e-6, atol=1e-8)
    for a in range(c):
        for b in range(a + 1):
            turn = torch.outer(shift[a], shift[b])
            half = slope(torch.zeros(c).double(), 0.5 * (turn + turn.mT))
            torch.testing.assert_close(found.curvature[:, a, b], -2 * half, rtol=1e-6, atol=1e-7)


def test_expectations_of_outputs_that_stand_alone_take_covariances_too():
    of, mean, targets = CASES["labels"]
    covariance = covariances(N, 2)
    variance = covariance.diagonal(dim1=1, dim2=2)
    for likelihood, y in ((of, targets), (Gaussian([0.3, 2.0]), targets), (lw.Poisson(), targets)):
        alone, whole = likelihood.expected(mean, variance, y), likelihood.expected(mean, covariance, y)
        torch.testing.assert_close(alone.log_density, whole.log_density)
        torch.testing.assert_close(torch.diag_embed(alone.curvature), whole.curvature)
        assert alone.gradient.shape == alone.curvature.shape == (N, 2)


def test_a_noise_is_put_where_it_is_to_be_tuned():
    four = torch.tensor([4.0]).double()
    assert Gaussian().at_noise(four, None).noise_std == 0.5
    assert Gaussian(3.0).at_noise(four, None).noise_std == 1.5
    assert Gaussian(per_output=True).at_noise(torch.tensor([4.0, 16.0]), 2).noise_std.tolist() == [0.5, 0.25]
    assert Gaussian(per_output=True).at_noise(four, None).noise_std.shape == ()
    assert Gaussian([0.5, 2.0]).at_least(torch.tensor([1.0, 1.0])).noise_std.tolist() == [1, 2]
    assert Gaussian(0.5).at_least(torch.tensor([1.0])).noise_std == 1
    assert Gaussian().at_least(four).noise_std is None
    assert Gaussian().with_tuned(2.0).noise_std == 2
    assert Gaussian(1.0).with_tuned(2.0).noise_std == 1
    of = lw.Poisson()
    assert of is of.at_noise(four, None) is of.at_least(four) is of.with_tuned(1.0) is of.at_unit_noise()
    assert of.noise_groups(torch.zeros(2, 2), 4).tolist() == [0] * 4
    assert of.hyperprior is None
    assert of.weight_shapes(torch.zeros(3, 2)) == ((3,),)
    assert Gaussian().weight_shapes(torch.zeros(3, 2)) == ((3,), (3, 2))


def test_layouts_are_said_by_the_likelihood():
    pixels = torch.zeros(2, 3, 4, 5)
    assert lw.Categorical(dim=1).class_axis(pixels) == -3
    assert lw.Categorical(dim=1).as_rows(pixels).shape == (2, 4, 5, 3)
    assert lw.Categorical(dim=1).to_output_layout(torch.zeros(120), pixels).shape == pixels.shape
    assert lw.Categorical(dim=1).class_axis(torch.zeros(2, 3)) == lw.Bernoulli().class_axis(pixels) == -1
    assert lw.Categorical().ignored(torch.tensor([1, -100])).tolist() == [False, True]
    assert lw.Poisson().ignored(torch.tensor([1.0, -100])).tolist() == [False, False]
    assert lw.Categorical().flat_targets(torch.zeros(2, 4, 5)).shape == (40,)
    assert lw.Bernoulli().flat_targets(torch.zeros(2, 4, 5)).shape == (2, 20)
    assert not Gaussian().are_linked(pixels)
    assert not lw.Bernoulli().are_linked(pixels)
    assert lw.Bernoulli().are_linked(torch.zeros(2, 3))
    assert lw.Categorical().are_linked(pixels)


@pytest.mark.parametrize("of", [
    Gaussian(), Gaussian([0.5, 1.0], hyperprior=GammaHyperprior(1.0, 0.1)), Gaussian(per_output=True), lw.Bernoulli(),
    lw.Categorical(dim=1, ignore_index=9), lw.Poisson(), lw.HeteroscedasticGaussian(),
], ids=lambda of: type(of).__name__)  # fmt: skip
def test_likelihoods_come_back_from_what_they_save(of):
    assert repr(restored(of.saved())) == repr(of)


def test_a_likelihood_of_your_own_is_not_saved():
    with pytest.raises(ValueError, match="OwnLikelihood cannot be saved: it can for .*Gaussian"):
        EXPONENTIAL.saved()


def predicted(of: Likelihood, mean: torch.Tensor, variance: torch.Tensor, prior: torch.Tensor) -> Prediction:
    spread = Spread(variance, torch.diag_embed(variance) if mean.ndim > 1 else None)
    return Prediction(
        of.observed(mean), of.observed(variance), of.observed(prior), Observation(of, of.links[0], spread, mean)
    )


def test_predictions_say_what_they_are():
    ones = torch.ones(4, 6).double()
    heads = "mean, std, interval(0.9), epistemic_variance, novelty, log_prob(y)"
    classes = "probs, entropy, mutual_information, novelty, log_prob(y)"
    counts = "expectation, interval(0.9), epistemic_variance, novelty, log_prob(y)"
    for of, expected in (
        (Gaussian(0.5), f"Prediction(4 inputs, 6 outputs): {heads}"),
        (lw.HeteroscedasticGaussian(), f"Prediction(4 inputs, 3 outputs): {heads}"),
        (lw.Categorical(), f"Prediction(4 inputs, 6 classes): {classes}"),
        (lw.Bernoulli(), f"Prediction(4 inputs, 6 labels): {classes}"),
        (lw.Poisson(), f"Prediction(4 inputs, 6 counts): {counts}"),
    ):
        assert repr(predicted(of, ones, ones, 2 * ones)) == expected
    one = predicted(Gaussian(0.5), ones[:, 0], ones[:, 0], ones[:, 0])
    assert repr(one) == f"Prediction(4 inputs, 1 output): {heads}"
    unknown = from_draws(torch.zeros(3, 2, 5), lw.Categorical(), "not known")
    assert repr(unknown) == "Prediction(2 inputs, 5 classes): probs, entropy, mutual_information, log_prob(y)"


def test_novelty_is_one_number_an_input():
    variance, prior = torch.tensor([[1.0, 3.0], [0.0, 0.0]]).double(), torch.tensor([[4.0, 4.0], [0.0, 0.0]]).double()
    found = predicted(Gaussian(1.0), torch.zeros(2, 2).double(), variance, prior)
    assert found.novelty.tolist() == [0.5, 0]
    assert found.to_frame()["novelty"].tolist() == [0.5, 0]
    one = predicted(Gaussian(1.0), torch.zeros(2).double(), variance[:, 1], prior[:, 1])
    assert one.novelty.tolist() == [0.75, 0]


def test_a_label_has_no_standard_deviation():
    ones = torch.ones(4, 3).double()
    for of in (lw.Categorical(), lw.Bernoulli()):
        with pytest.raises(ValueError, match="standard deviation of a label is not defined"):
            _ = predicted(of, ones, ones, ones).std
    assert predicted(lw.Poisson(), ones, ones, ones).std.tolist() == ones.tolist()


def test_a_noise_given_to_a_prediction_stays_with_its_inputs():
    mean, noise = normal(4, 2), normal(4, seed=2).exp()
    plain = predicted(Gaussian(torch.ones(4, 2)), mean, torch.ones(4, 2).double(), torch.ones(4, 2).double())
    with pytest.raises(ValueError, match="given per datum"):
        _ = plain.std
    with pytest.raises(ValueError, match="given per datum"):
        plain.log_prob(mean)
    found = plain.with_noise(noise).to("cpu")
    torch.testing.assert_close(found.variance, 1 + noise.square()[:, None].expand(4, 2))
    part = found[[2, 0]]
    torch.testing.assert_close(part.aleatoric_variance, noise[[2, 0], None].square().expand(2, 2))
    torch.testing.assert_close(part.log_prob(mean[[2, 0]]), found.log_prob(mean)[[2, 0]])
    torch.testing.assert_close(part.mutual_information, found.mutual_information[[2, 0]])
    pixels = predicted(Gaussian(0.1), normal(2, 1, 3, 2), torch.ones(2, 1, 3, 2), torch.ones(2, 1, 3, 2))
    assert pixels.with_noise(normal(2, 1, 3, 2).exp()).log_prob(pixels.mean).shape == (2, 1, 3, 2)


def test_draws_of_numbers_and_of_labels_make_predictions_alike():
    drawn = normal(40, 6, 3)
    numbers, labels = (from_draws(drawn, of, normal(30, 6, 3, seed=1)) for of in (Gaussian(0.5), lw.Categorical()))
    torch.testing.assert_close(numbers.epistemic_variance, drawn.var(0))
    torch.testing.assert_close(numbers.distribution.variance, drawn.var(0) + 0.25)
    torch.testing.assert_close(labels.epistemic_variance, drawn.var(0))
    torch.testing.assert_close(labels.probs, drawn.softmax(2).mean(0))
    assert numbers.samples.shape == (40, 6, 3)
    assert labels.samples.shape == (40, 6)


@EACH
def test_columns_of_a_root_and_the_misfit(name):
    of, outputs, targets = CASES[name]
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5, 3.0]).double()
    rows = outputs.reshape(N, -1)
    given = targets.reshape(rows.shape) if targets.numel() == rows.numel() else targets
    columns, units = of.root_columns(rows, given), torch.eye(rows.shape[1], dtype=torch.float64).expand(N, -1, -1)
    torch.testing.assert_close(
        columns @ columns.mT, of.hessian_product(rows, units, None, given), rtol=1e-9, atol=1e-10
    )
    counts, log_weight = of.totals(targets, weights)
    total = -0.5 * of.misfit(outputs.reshape(-1), targets, weights).sum() + log_weight
    total = total - 0.5 * counts.sum() * np.log(2 * np.pi)
    torch.testing.assert_close(total, of.log_prob(outputs, targets, weights), rtol=1e-10, atol=1e-10)


def test_the_misfit_is_summed_by_noise_group():
    outputs, targets = normal(3, 2), normal(3, 2, seed=1)
    found = Gaussian(per_output=True).misfit(outputs.reshape(-1), targets, torch.ones(3).double())
    torch.testing.assert_close(found, (outputs - targets).square().sum(0))

"""Networks under every likelihood that is not plain Gaussian, against dense Jacobians and torch's own distributions."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, vmap

import lapwing as lw
from lapwing import CG, Bernoulli, Categorical, Exact, Gaussian, Isotropic, Krylov, LinearModel, fit, infer
from lapwing.bayes.likelihoods import HeteroscedasticGaussian, Poisson, likelihood
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.families import variational
from lapwing.training import log_prob
from tests import reference
from tests.network.networks import normal, seeded
from tests.network.test_labels import dense_mode, to_round_off
from tests.network.test_linearisation import dense_jacobian, flat_weights

METHODS = [Exact("primal"), Exact("dual"), Krylov(rtol=1e-9), CG(rtol=1e-11)]
DISTRIBUTIONS = torch.distributions


@dataclass
class Case:
    """A likelihood, its network, and log p of every target by torch's distributions."""

    of: Any
    outputs: int
    targets: Tensor
    log_density: Any
    expected: bool = False  # whether B is the expected Hessian
    sampler: Any = None

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return (self.sampler or self.of).sampled(outputs, uniform).double()

    def problem(self) -> tuple[nn.Module, Tensor]:
        layers = lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, self.outputs))  # noqa: E731
        return seeded(layers, normal(len(self.targets), 3, seed=1))


def gaussian_heads(f: Tensor, y: Tensor) -> Tensor:
    half = f.shape[-1] // 2
    std = (f[..., half:] / 2).exp()
    return DISTRIBUTIONS.Normal(f[..., :half], std, validate_args=False).log_prob(y.reshape(*f.shape[:-1], half))


def exponential(f: Tensor, y: Tensor) -> Tensor:
    return DISTRIBUTIONS.Exponential(f.exp()).log_prob(y)


def picked(f: Tensor, y: Tensor) -> Tensor:
    """Class labels by a function of one's own."""
    return f.log_softmax(-1).gather(-1, y.long()[..., None])[..., 0]


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


CASES = {
    "poisson": Case(
        Poisson(), 2, (6 * random(7, 2)).floor(), lambda f, y: DISTRIBUTIONS.Poisson(f.exp()).log_prob(y)
    ),
    "poisson, one output": Case(
        Poisson(), 1, (6 * random(7)).floor()[:, None], lambda f, y: DISTRIBUTIONS.Poisson(f.exp()).log_prob(y)
    ),
    "heteroscedastic": Case(HeteroscedasticGaussian(), 2, random(7), gaussian_heads, True),
    "heteroscedastic, several targets": Case(HeteroscedasticGaussian(), 4, random(7, 2), gaussian_heads, True),
    "multi-label": Case(
        Bernoulli(), 3, (2 * random(7, 3)).floor(), lambda f, y: DISTRIBUTIONS.Bernoulli(logits=f).log_prob(y)
    ),
    "your own": Case(
        likelihood(lambda f, y: f - y * f.exp(), sample=lambda f, u: -(1 - u).log() * (-f).exp()), 2, random(7, 2),
        exponential,
    ),
    "your own, several outputs": Case(likelihood(picked, outputs=3), 3, (3 * random(7)).floor(), picked, sampler=Categorical()),
    "your own, by Fisher": Case(
        likelihood(
            lambda f, y: gaussian_heads(f, y)[..., 0], outputs=2,
            fisher=lambda f: torch.diag_embed(torch.stack([(-f[:, 1]).exp(), torch.full_like(f[:, 1], 0.5)], 1)),
        ), 2, random(7), gaussian_heads, True, sampler=HeteroscedasticGaussian(),
    ),
}  # fmt: skip
each_likelihood = pytest.mark.parametrize("name", CASES)


def curvature(case: Case, outputs: Tensor) -> Tensor:  # (n · c, n · c)
    """−∂² log p in the outputs of every datum, or its mean over targets, by torch.func."""

    def of_datum(f: Tensor, y: Tensor) -> Tensor:
        return -case.log_density(f, y).sum()

    if case.expected:  # quadratic in the targets, so three nodes with the moments of a normal are exact
        half = case.outputs // 2
        nodes, weights = (-(3**0.5), 0.0, 3**0.5), (1 / 6, 2 / 3, 1 / 6)
        std = (outputs[:, half:] / 2).exp()
        blocks = sum(
            w * vmap(hessian(of_datum))(outputs, outputs[:, :half] + z * std)
            for z, w in zip(nodes, weights, strict=True)
        )
    else:
        blocks = vmap(hessian(of_datum))(outputs, case.targets)
    return torch.block_diag(*blocks)


def dense_loss(case: Case, precision: float):
    """−log p(y | f − J w̄ + J θ) + ½ α ‖θ‖² as a function of θ, with J, w̄ and B at the network's outputs."""
    model, inputs = case.problem()
    jacobian, w = dense_jacobian(model, inputs), flat_weights(model)
    outputs = model(inputs).detach()
    offset = outputs.reshape(-1) - jacobian @ w

    def loss(theta: Tensor) -> Tensor:
        at = (offset + jacobian @ theta).reshape(outputs.shape)
        return -case.log_density(at, case.targets).sum() + 0.5 * precision * theta.square().sum()

    return loss, jacobian, w, curvature(case, outputs)


@each_likelihood
def test_draws_equal_dense_perturb_and_solve(name):
    case = CASES[name]
    model, inputs = case.problem()
    given = {"prior": Isotropic(0.7), "draws": 4, "seed": 5, "curvature": "network"}
    _, jacobian, _, b = dense_loss(case, 0.7)
    values, vectors = torch.linalg.eigh(b)
    features = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT @ jacobian  # the symmetric root of B
    ones, prior = torch.ones(len(features)).double(), torch.full((jacobian.shape[1],), 0.7, dtype=torch.float64)
    xi, theta = Noise(5, DATA).rows(0, len(features), 4), Noise(5, PRIOR).rows(0, len(prior), 4)
    expected = reference.perturb_and_solve(features, ones, prior, xi, theta)
    for method in METHODS:
        posterior = fit(model, (inputs, case.targets), case.of, method=method, **given)
        assert float((posterior.gaussian.deviations - expected).norm() / expected.norm()) < 1e-6, method


@each_likelihood
def test_covariance_mode_and_evidence_agree_with_dense_references(name):
    case = CASES[name]
    model, inputs = case.problem()
    posterior = fit(model, (inputs, case.targets), case.of, prior=Isotropic(0.9), draws=2, curvature="network")
    loss, jacobian, w, b = dense_loss(case, 0.9)
    system = 0.9 * torch.eye(len(w)).double() + jacobian.mT @ b @ jacobian
    new = normal(4, 3, seed=20)
    rows = dense_jacobian(model, new)
    covariance = rows @ torch.linalg.solve(system, rows.mT)
    prediction = posterior.predict(new)
    c = case.outputs
    blocks = torch.stack([covariance[i : i + c, i : i + c] for i in range(0, len(rows), c)])
    torch.testing.assert_close(prediction.observation.spread.covariance, blocks, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(prediction.epistemic_variance, case.of.observed(blocks.diagonal(dim1=1, dim2=2)))
    torch.testing.assert_close(prediction.mean, case.of.observed(model(new).detach()))
    mode = dense_mode(loss, w.clone())
    if case.expected:  # steps end where one more gains 1e-10 nats, a share of all; the loss curves by 0.8 or more
        assert -1e-11 <= float(loss(posterior.mean) - loss(mode)) < 1e-8
        torch.testing.assert_close(posterior.mean, mode, rtol=0, atol=(2e-8 / 0.8) ** 0.5)
    else:
        torch.testing.assert_close(posterior.mean, mode, rtol=1e-5, atol=1e-6)
    evidence = -float(loss(mode)) - 0.5 * float(torch.linalg.slogdet(system / 0.9)[1])
    assert posterior.log_evidence.value == pytest.approx(evidence, rel=1e-8)
    determined = float(torch.trace(torch.eye(len(w)).double() - 0.9 * torch.linalg.inv(system)))
    assert posterior.effective_dimension.value == pytest.approx(determined, rel=1e-7)
    assert posterior.diagnostics.curvature == ("Fisher information" if case.expected else "Hessian")


def check_best_around_the_network(case, posterior):
    """The evidence of a Gaussian around the network's own weights is largest, and nothing is NaN without a mode."""

    def evidence(precision: float) -> float:
        loss, jacobian, w, b = dense_loss(case, precision)
        system = torch.eye(len(w)).double() + jacobian.mT @ b @ jacobian / precision
        return -float(loss(w)) - 0.5 * float(torch.linalg.slogdet(system)[1])

    alpha = float(posterior.prior.precision)
    assert evidence(alpha) >= max(evidence(alpha * 0.99), evidence(alpha * 1.01))
    assert bool(posterior.mean.isfinite().all())
    assert bool(posterior.draws.isfinite().all())
    assert isfinite(float(posterior.log_evidence.value))


@each_likelihood
def test_the_tuned_precision_maximises_the_dense_evidence_at_the_mode(name):
    case = CASES[name]
    model, inputs = case.problem()
    if case.expected:  # seven data with a variance of their own each: nothing bounds their density
        with pytest.warns(UserWarning, match="has no mode"):
            posterior = fit(model, (inputs, case.targets), case.of, prior=Isotropic(), draws=2)
        check_best_around_the_network(case, posterior)
        return
    posterior = fit(model, (inputs, case.targets), case.of, prior=Isotropic(), draws=2, curvature="network")
    alpha = float(posterior.prior.precision)
    start = posterior.mean  # where the loss has several minima, the one that was found

    def evidence(precision: float) -> float:
        loss, jacobian, w, b = dense_loss(case, precision)
        system = torch.eye(len(w)).double() + jacobian.mT @ b @ jacobian / precision
        return -float(loss(dense_mode(loss, start.clone()))) - 0.5 * float(torch.linalg.slogdet(system)[1])

    if alpha == float("inf"):
        assert evidence(1e6) >= max(evidence(1e3), evidence(10.0))
    else:
        assert posterior.log_evidence.value == pytest.approx(evidence(alpha), rel=1e-7)
        assert evidence(alpha) >= max(evidence(alpha * 0.9), evidence(alpha * 1.1))


HELD_OUT = [(name, Exact()) for name in CASES]
HELD_OUT += [(name, method) for name in ("poisson", "multi-label") for method in (Krylov(rtol=1e-6), CG(rtol=1e-8))]


@pytest.mark.parametrize(("name", "method"), HELD_OUT, ids=[f"{name}, {type(m).__name__}" for name, m in HELD_OUT])
def test_held_out_tuning_finds_the_best_point_of_its_own_predictions(name, method):
    case = CASES[name]
    model, inputs = case.problem()
    data, held = (inputs, case.targets), normal(40, 3, seed=21)
    functions = fit(model, data, case.of, prior=Isotropic(2.0), draws=40, curvature="network").functions(held)
    outputs = functions[torch.arange(40), torch.arange(40)]  # every datum from a function of its own
    uniform = torch.rand(40, *case.targets.shape[1:], generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    labels = case.sampled(outputs, uniform)
    given = {"prior": Isotropic(), "validation": (held, labels), "draws": 24, "curvature": "network"}
    posterior = fit(model, data, case.of, method=method, **given)

    def score(precision: float) -> float:
        found = posterior.at_multiple(precision / best, 1.0).predict(held)
        return float(found.log_prob(labels).sum()) / len(labels)

    curve, best = posterior.curve, float(posterior.prior.precision)
    step = 10**0.5 if isinstance(method, CG) else 2  # CG solves at nine points, half a decade apart
    assert score(best) >= max(score(best * step), score(best / step)) - 1e-9
    middle = len(curve.precision) // 2
    scale = labels.numel() / len(labels)  # the mean over targets, not over data
    expected = score(float(curve.precision[middle]))
    assert scale * float(curve.held_out[middle]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert (posterior.diagnostics.temperature_scaling is not None) == (name == "multi-label")


def test_class_labels_of_your_own_are_categorical():
    case = CASES["your own, several outputs"]
    model, inputs = case.problem()
    new = normal(4, 3, seed=20)
    own = fit(model, (inputs, case.targets), case.of, prior=Isotropic(1.1), curvature="network")
    known = fit(model, (inputs, case.targets.long()), Categorical(), prior=Isotropic(1.1), curvature="network")
    torch.testing.assert_close(own.mean, known.mean)
    assert own.log_evidence.value == pytest.approx(known.log_evidence.value, rel=1e-9)
    targets = torch.tensor([2, 0, 1, 1])
    torch.testing.assert_close(
        own.predict(new).log_prob(targets.double()), known.predict(new, link="monte carlo").log_prob(targets)
    )


def test_one_output_and_targets_in_a_row_or_a_column_are_the_same():
    case = CASES["poisson, one output"]
    model, inputs = case.problem()
    row, column = (fit(model, (inputs, y), case.of, prior=Isotropic(1.1)) for y in (case.targets[:, 0], case.targets))
    torch.testing.assert_close(row.draws, column.draws, rtol=0, atol=0)


COUNTED = [(name, "network") for name in CASES]  # and no bound where the curvature is an expected one
COUNTED += [(name, "expected") for name, case in CASES.items() if not case.expected]


@pytest.mark.parametrize(("name", "curvature"), COUNTED)
def test_weights_and_total_count_data_that_often(name, curvature):
    """A part of the data keeps Laplace's curvature unless another is asked for."""
    case = CASES[name]
    model, inputs = case.problem()
    twice = (torch.cat([inputs, inputs]), torch.cat([case.targets, case.targets]))
    part = fit(model, (inputs, case.targets), case.of, prior=Isotropic(1.1), dataset_size=14, draws=2)
    assert part.diagnostics.curvature != "expected over the posterior"
    given = {"prior": Isotropic(1.1), "draws": 2, "curvature": curvature}
    if not case.expected:
        given["method"] = to_round_off(curvature)
    doubled = fit(model, twice, case.of, **given)
    counted = fit(model, (inputs, case.targets), case.of, dataset_size=14, **given)
    assert doubled.log_evidence.value == pytest.approx(counted.log_evidence.value, rel=1e-9)
    torch.testing.assert_close(doubled.mean, counted.mean, rtol=1e-6, atol=1e-8)


@each_likelihood
def test_low_rank_and_diagonal_structures_take_every_likelihood(name):
    case = CASES[name]
    model, inputs = case.problem()
    data, new = (inputs, case.targets), normal(4, 3, seed=20)
    exact = fit(model, data, case.of, prior=Isotropic(1.1), draws=2, curvature="network").predict(new)
    whole = fit(
        model, data, case.of, prior=Isotropic(1.1), draws=2, method=lw.LowRank(len(flat_weights(model)))
    ).predict(new)
    torch.testing.assert_close(whole.epistemic_variance, exact.epistemic_variance, rtol=1e-6, atol=1e-9)
    _, jacobian, _, b = dense_loss(case, 1.1)
    variance = 1 / (1.1 + (jacobian.mT @ b @ jacobian).diagonal())
    rows = dense_jacobian(model, new)
    diagonal = fit(model, data, case.of, prior=Isotropic(1.1), draws=2, method=lw.Diagonal()).predict(new)
    expected = case.of.observed((rows.square() @ variance).reshape(4, case.outputs))
    torch.testing.assert_close(diagonal.epistemic_variance, expected, rtol=1e-6, atol=1e-9)


@each_likelihood
def test_training_uses_the_same_log_density(name):
    case = CASES[name]
    model, inputs = case.problem()
    outputs = model(inputs)
    expected = case.log_density(outputs, case.targets).sum()
    torch.testing.assert_close(log_prob(case.of, outputs, case.targets), expected)


def test_a_linear_model_of_counts_has_its_curvature_at_its_mode():
    x, y = normal(12, 4, seed=1), (5 * random(12)).floor()
    posterior = infer(LinearModel(x, y, Poisson()), prior=Isotropic(1.3), curvature="mode")

    def loss(theta: Tensor) -> Tensor:
        return -DISTRIBUTIONS.Poisson((x @ theta).exp()).log_prob(y).sum() + 0.65 * theta.square().sum()

    mode = dense_mode(loss, torch.zeros(4).double())
    torch.testing.assert_close(posterior.mean, mode, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(posterior.covariance, torch.linalg.inv(hessian(loss)(mode)), rtol=1e-5, atol=1e-7)


BAD = {
    "negative counts": (Poisson(), torch.full((7, 2), -1.0), "takes counts 0, 1, 2, …, got 14 other values"),
    "fractional counts": (Poisson(), torch.full((7, 2), 0.5), "the first 0.5"),
    "NaN counts": (Poisson(), torch.full((7, 2), float("nan")), "NaN"),
    "too few counts": (Poisson(), torch.zeros(7), r"Poisson expects targets of shape \(7, 2\)"),
    "too many numbers": (HeteroscedasticGaussian(), torch.zeros(7, 2), r"expects targets of shape \(7,\)"),
    "infinite numbers": (HeteroscedasticGaussian(), torch.full((7,), float("inf")), "NaN or infinite"),
    "labels of 2": (Bernoulli(), torch.full((7, 2), 2.0), "targets of 0 and 1"),
    "one label for two outputs": (Bernoulli(), torch.zeros(7), r"Bernoulli expects targets of shape \(7, 2\)"),
    "NaN labels": (Bernoulli(), torch.full((7, 2), float("nan")), "NaN"),
    "targets that are not valid": (
        likelihood(exponential, valid=lambda y: y >= 0), torch.full((7, 2), -2.0), "14 targets are not valid",
    ),
    "outputs that do not fit": (likelihood(picked, outputs=3), torch.zeros(7), r"expected \(n, 3\)"),
    "not convex": (
        likelihood(lambda f, y: -(1 + (y - f).square()).log()), torch.full((7, 2), 9.0), "make the likelihood with fisher=",
    ),
    "a Fisher information with a negative value": (
        likelihood(exponential, fisher=lambda f: -torch.ones_like(f)), torch.ones(7, 2), "never has negative eigenvalues",
    ),
    "a Fisher information of another shape": (
        likelihood(exponential, fisher=lambda f: torch.eye(2).double()), torch.ones(7, 2), "fisher returned shape",
    ),
    "a log density that is summed": (
        likelihood(lambda f, y: (f - y * f.exp()).sum()), torch.ones(7, 2), "one log density for each target",
    ),
    "a log density that is NaN": (
        likelihood(lambda f, y: f * (f - 1e3).log()), torch.ones(7, 2), "NaN or infinite values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_reason(name):
    of, targets, message = BAD[name]
    model, inputs = CASES["poisson"].problem()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        fit(model, (inputs, targets.double()), of)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_an_odd_number_of_outputs_has_no_variances():
    model, inputs = CASES["multi-label"].problem()
    with pytest.raises(ValueError, match=r"outputs of shape \(7, 3\) cannot be means and log variances"):
        fit(model, (inputs, torch.zeros(7)), HeteroscedasticGaussian())
    with pytest.raises(ValueError, match="two outputs for each target"):
        LinearModel(normal(7, 3, seed=1), torch.zeros(7), HeteroscedasticGaussian())


def test_what_cannot_be_done_says_so(tmp_path):
    from lapwing.app import recording

    case = CASES["poisson"]
    model, inputs = case.problem()
    posterior = fit(model, (inputs, case.targets), case.of, prior=Isotropic(1.0), draws=2)
    with pytest.raises(ValueError, match="temperature is for class labels"):
        posterior.tune((inputs, case.targets), temperature=2.0)
    with pytest.raises(ValueError, match="link is 'bridge'"):
        posterior.tune((inputs, case.targets), link="bridge")
    with pytest.raises(ValueError, match="a record holds numbers with Gaussian noise or class labels"):
        recording.predict(posterior, inputs)
    assert recording.influence(posterior, case.targets) is None
    with pytest.raises(ValueError, match="not Poisson"):
        variational.fit(model, (inputs, case.targets), case.of, epochs=1)
    with pytest.raises(ValueError, match="outputs is 0"):
        likelihood(exponential, outputs=0)
    own = fit(model, (inputs, random(7, 2)), likelihood(exponential), prior=Isotropic(1.0), draws=2)
    with pytest.raises(ValueError, match="cannot be saved"):
        own.save(tmp_path / "own.safetensors")


def noisy() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    model, inputs = CASES["poisson"].problem()
    return model, inputs, normal(7, 2, seed=4), 0.3 + random(7)


def test_noise_per_datum_is_that_of_every_output_of_it():
    model, inputs, targets, noise_std = noisy()
    new = normal(4, 3, seed=20)
    row, column, every = (
        fit(model, (inputs, targets), Gaussian(std), prior=Isotropic(0.9), draws=2)
        for std in (noise_std, noise_std[:, None], noise_std[:, None].expand(7, 2))
    )
    jacobian = dense_jacobian(model, inputs)
    precision = noise_std.pow(-2).repeat_interleave(2)
    system = 0.9 * torch.eye(jacobian.shape[1]).double() + jacobian.mT @ (precision[:, None] * jacobian)
    rows = dense_jacobian(model, new)
    expected = (rows * torch.linalg.solve(system, rows.mT).mT).sum(1).reshape(4, 2)
    for posterior in (row, column, every):
        torch.testing.assert_close(posterior.predict(new).epistemic_variance, expected)
        assert posterior.log_evidence.value == pytest.approx(row.log_evidence.value, rel=1e-12)


def test_noise_per_datum_is_given_again_at_new_inputs():
    model, inputs, targets, noise_std = noisy()
    posterior = fit(model, (inputs, targets), Gaussian(noise_std), prior=Isotropic(0.9), draws=2)
    prediction = posterior.predict(inputs)
    with pytest.raises(ValueError, match=r"prediction.with_noise\(noise_std\)"):
        _ = prediction.std
    known = prediction.with_noise(noise_std)
    variance = prediction.epistemic_variance + noise_std.square()[:, None]
    torch.testing.assert_close(known.variance, variance)
    expected = DISTRIBUTIONS.Normal(prediction.mean, variance.sqrt()).log_prob(targets)
    torch.testing.assert_close(known.log_prob(targets), expected)
    torch.testing.assert_close(known[[4, 1]].variance, variance[[4, 1]])
    with pytest.raises(ValueError, match="does not fit"):
        prediction.with_noise(torch.ones(5))
    with pytest.raises(ValueError, match="Gaussian noise only"):
        fit(model, (inputs, CASES["poisson"].targets), Poisson(), prior=Isotropic(1.0)).predict(inputs).with_noise(1.0)


@pytest.mark.parametrize("method", [Exact(), CG(rtol=1e-8)], ids=["exact", "cg"])
def test_noise_per_datum_is_given_with_the_held_out_data(method):
    model, inputs, targets, noise_std = noisy()
    held, wanted, their_std = normal(5, 3, seed=21), normal(5, 2, seed=22), 0.2 + random(5)
    posterior = fit(
        model, (inputs, targets), Gaussian(noise_std), validation=(held, wanted, their_std), method=method, draws=24
    )

    def score(precision: float) -> float:
        return float(posterior.at(precision=precision).predict(held).with_noise(their_std).log_prob(wanted).mean())

    best, step = float(posterior.prior.precision), 2 if method == Exact() else 10**0.5
    assert score(best) >= max(score(best * step), score(best / step)) - 1e-9
    with pytest.raises(ValueError, match="is for Gaussian noise that was given per datum"):
        fit(model, (inputs, targets), Gaussian(), validation=(held, wanted, their_std))
    with pytest.raises(ValueError, match=r"validation=\(inputs, targets, noise_std\)"):
        fit(model, (inputs, targets), Gaussian(noise_std), validation=(held, wanted))


@pytest.mark.parametrize(
    "name", ["poisson", "poisson, one output", "heteroscedastic", "heteroscedastic, several targets"]
)
@pytest.mark.parametrize("method", [Exact(), CG(rtol=1e-10)], ids=["exact", "cg"])
def test_a_saved_posterior_predicts_the_same(name, method, tmp_path):
    case = CASES[name]
    model, inputs = case.problem()
    posterior = fit(model, (inputs, case.targets), case.of, prior=Isotropic(1.2), draws=3, method=method)
    loaded = lw.load(posterior.save(tmp_path / "posterior.safetensors"), model)
    new, targets = normal(7, 3, seed=20), case.targets
    assert loaded.likelihood == case.of
    torch.testing.assert_close(loaded.predict(new).log_prob(targets), posterior.predict(new).log_prob(targets))


@pytest.mark.parametrize("name", ["poisson", "heteroscedastic", "your own", "your own, several outputs"])
def test_leaving_a_datum_out_is_one_newton_step_from_the_mode(name):
    case = CASES[name]
    model, inputs = case.problem()
    posterior = fit(model, (inputs, case.targets), case.of, prior=Isotropic(1.2), draws=2, curvature="network")
    found = posterior.leave_one_out()
    _, jacobian, w, _ = dense_loss(case, 1.2)
    offset, theta, c = model(inputs).detach().reshape(-1) - jacobian @ w, posterior.mean, case.outputs
    outputs = (offset + jacobian @ theta).reshape(7, c)
    b = curvature(case, outputs)
    slope = torch.func.grad(lambda f: case.log_density(f, case.targets).sum())(outputs)
    for i in (0, 4):
        own = slice(i * c, (i + 1) * c)
        rest = torch.tensor([k for k in range(7 * c) if not own.start <= k < own.stop])
        system = 1.2 * torch.eye(len(w)).double() + jacobian[rest].mT @ b[rest][:, rest] @ jacobian[rest]
        step = torch.linalg.solve(system, jacobian[own].mT @ slope[i])  # the gradient of the loss of the others there
        expected = outputs[i] - jacobian[own] @ step
        torch.testing.assert_close(found.mean[i].reshape(-1), expected, rtol=1e-4, atol=1e-4)
        variance = (jacobian[own] @ torch.linalg.solve(system, jacobian[own].mT)).diagonal()
        torch.testing.assert_close(found.epistemic_variance[i].reshape(-1), variance, rtol=1e-4, atol=1e-5)

"""Posteriors of networks with class labels, against dense Jacobians, Hessians by torch.func and independent optimisers."""

import math

import pytest
import scipy.optimize
import torch
from torch import nn
from torch.func import hessian
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import lapwing as lw
from lapwing import CG, Bernoulli, Categorical, Exact, Isotropic, Krylov, fit, infer, linearise
from lapwing.bayes.fits.newton import NewtonSteps
from lapwing.bayes.noise import DATA, PRIOR, Noise
from tests import reference
from tests.network.networks import NETWORKS, normal
from tests.network.test_linearisation import dense_jacobian, flat_weights

METHODS = [Exact("primal"), Exact("dual"), Krylov(rtol=1e-9), CG(rtol=1e-11)]


def to_round_off(curvature: str | None) -> Exact:
    """By default one more step towards the best Gaussian may gain 1e-6 nats, or 1e-3 of several outputs."""
    return Exact() if curvature == "network" else Exact(newton=NewtonSteps(1e-20))


def class_problem(name: str):
    model, inputs = NETWORKS[name]()
    classes = model(inputs).shape[1]
    return model, inputs, torch.randint(classes, (len(inputs),), generator=torch.Generator().manual_seed(3))


def binary_problem(name: str):
    model, inputs = NETWORKS[name]()
    shape = model(inputs).shape
    return model, inputs, torch.randint(2, shape, generator=torch.Generator().manual_seed(4)).double()


def softmax_root(probabilities: torch.Tensor) -> torch.Tensor:  # (n, c) -> (n · c, n · c)
    roots = probabilities.sqrt()
    return torch.block_diag(*(torch.diag(r) - torch.outer(p, r) for p, r in zip(probabilities, roots, strict=True)))


def dense_loss(model, inputs, targets, precision):
    """−log p(y | f − J w̄ + J θ) + ½ α ‖θ‖², as a function of θ."""
    jacobian, w = dense_jacobian(model, inputs), flat_weights(model)
    offset = model(inputs).detach().reshape(-1) - jacobian @ w

    def loss(theta: torch.Tensor) -> torch.Tensor:
        outputs = (offset + jacobian @ theta).reshape(len(inputs), -1)
        if targets.is_floating_point():
            fit_ = binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
        else:
            fit_ = cross_entropy(outputs, targets, reduction="sum")
        return fit_ + 0.5 * precision * theta.square().sum()

    return loss, jacobian, w


def dense_mode(loss, start: torch.Tensor) -> torch.Tensor:
    """The minimum by BFGS on autograd's gradients: nothing of ours."""

    def value(x):
        theta = torch.from_numpy(x).requires_grad_()
        result = loss(theta)
        (gradient,) = torch.autograd.grad(result, theta)
        return float(result.detach()), gradient.numpy()

    options = {"maxiter": 20_000, "maxcor": 50, "ftol": 0, "gtol": 1e-11, "maxfun": 50_000}
    return torch.from_numpy(
        scipy.optimize.minimize(value, start.numpy(), jac=True, method="L-BFGS-B", options=options).x
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__ + str(getattr(method, "side", "")))
@pytest.mark.parametrize("name", NETWORKS)
def test_draws_equal_dense_perturb_and_solve(name, method):
    model, inputs, targets = class_problem(name)
    posterior = fit(
        model,
        (inputs, targets),
        Categorical(),
        prior=Isotropic(0.7),
        method=method,
        draws=4,
        seed=5,
        curvature="network",
    )
    jacobian, probabilities = dense_jacobian(model, inputs), model(inputs).detach().softmax(1)
    features = softmax_root(probabilities).mT @ jacobian  # SᵀJ, with S Sᵀ the Hessian of −log p
    ones, prior = torch.ones(len(features)).double(), torch.full((jacobian.shape[1],), 0.7, dtype=torch.float64)
    xi, theta = Noise(5, DATA).rows(0, len(features), 4), Noise(5, PRIOR).rows(0, len(prior), 4)
    expected = reference.perturb_and_solve(features, ones, prior, xi, theta)
    assert float((posterior.gaussian.deviations - expected).norm() / expected.norm()) < 1e-6
    new = normal(4, *inputs.shape[1:], seed=20)
    functions = model(new).detach() + (dense_jacobian(model, new) @ expected).mT.reshape(4, 4, -1)
    torch.testing.assert_close(posterior.functions(new), functions, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [class_problem, binary_problem], ids=["classes", "binary"])
@pytest.mark.parametrize("name", NETWORKS)
def test_covariance_mode_and_evidence_agree_with_dense_references(name, make):
    model, inputs, targets = make(name)
    likelihood = Bernoulli() if targets.is_floating_point() else Categorical()
    posterior = fit(model, (inputs, targets), likelihood, prior=Isotropic(0.9), draws=2, curvature="network")
    loss, _, w = dense_loss(model, inputs, targets, 0.9)
    curvature = hessian(loss)(w)  # at θ = w̄ the outputs are the network's own
    new = normal(4, *inputs.shape[1:], seed=20)
    rows = dense_jacobian(model, new)
    covariance = rows @ torch.linalg.solve(curvature, rows.mT)
    prediction = posterior.predict(new)
    torch.testing.assert_close(
        prediction.epistemic_variance.reshape(-1), covariance.diagonal(), rtol=1e-7, atol=1e-12
    )  # fmt: skip
    classes = prediction.mean.shape[1]
    blocks = torch.stack([covariance[i : i + classes, i : i + classes] for i in range(0, len(rows), classes)])
    torch.testing.assert_close(prediction.observation.spread.covariance, blocks, rtol=1e-7, atol=1e-10)
    mode = dense_mode(loss, torch.zeros_like(w))
    torch.testing.assert_close(posterior.mean, mode, rtol=1e-5, atol=1e-6)
    evidence = -float(loss(mode)) - 0.5 * float(torch.linalg.slogdet(curvature / 0.9)[1])
    assert posterior.log_evidence.value == pytest.approx(evidence, rel=1e-8)
    determined = float(torch.trace(torch.eye(len(w)).double() - 0.9 * torch.linalg.inv(curvature)))
    assert posterior.effective_dimension.value == pytest.approx(determined, rel=1e-7)
    linear = posterior.predict(new, mean="linear").mean
    torch.testing.assert_close(
        linear.reshape(-1), model(new).detach().reshape(-1) + rows @ (mode - w), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied"])
def test_the_tuned_precision_maximises_the_dense_evidence_at_the_mode(name):
    model, inputs, targets = class_problem(name)
    posterior = fit(model, (inputs, targets), Categorical(), prior=Isotropic(), draws=2, curvature="network")
    alpha = float(posterior.prior.precision)

    def evidence(precision: float) -> float:
        loss, _, w = dense_loss(model, inputs, targets, precision)
        curvature = hessian(loss)(w)
        return -float(loss(dense_mode(loss, torch.zeros_like(w)))) - 0.5 * float(
            torch.linalg.slogdet(curvature / precision)[1]
        )

    if alpha == float("inf"):
        assert evidence(1e6) >= max(evidence(1e3), evidence(10.0))
    else:
        assert posterior.log_evidence.value == pytest.approx(evidence(alpha), rel=1e-7)
        assert evidence(alpha) >= max(evidence(alpha * 0.9), evidence(alpha * 1.1))


@pytest.mark.parametrize("curvature", ["expected", "network"])
def test_two_classes_are_one_bernoulli_of_their_difference(curvature):
    """softmax of (−f/2, f/2) and σ(f) are the same model; so are their posteriors."""
    model, inputs = NETWORKS["mlp"]()
    targets = torch.tensor([0, 1, 1, 0, 1, 0, 1])[: len(inputs)]

    class Half(torch.nn.Module):
        def __init__(self, inner, both):
            super().__init__()
            self.inner, self.both = inner, both

        def forward(self, x):
            f = self.inner(x)[:, :1]
            return torch.cat([-f / 2, f / 2], dim=1) if self.both else f

    given = {"prior": Isotropic(1.5), "method": to_round_off(curvature), "curvature": curvature}
    one = fit(Half(model, False).eval(), (inputs, targets[:, None]), Bernoulli(), **given)
    two = fit(Half(model, True).eval(), (inputs, targets), Categorical(), **given)
    new = normal(4, *inputs.shape[1:], seed=20)
    ones, twos = (found.predict(new, link=found.likelihood.links[0]).probs for found in (one, two))
    torch.testing.assert_close(ones[:, 0], twos[:, 1], rtol=1e-9, atol=1e-12)
    if curvature == "expected":  # by quadrature, and by 512 points: five of their standard errors
        variance = one.predict(new).epistemic_variance[:, 0]
        error = 5 * 0.25 * variance.sqrt() / 512**0.5  # σ rises by a quarter at most
        assert bool(((one.predict(new).probs[:, 0] - two.predict(new).probs[:, 1]).abs() <= error).all())
    assert one.log_evidence.value == pytest.approx(two.log_evidence.value, rel=1e-9)


def test_held_out_tuning_finds_the_best_point_of_its_own_predictions():
    """Around the network, at whose outputs the curvature is taken: one decomposition for all precisions."""
    model, inputs, targets = class_problem("residual")
    held = normal(31, *inputs.shape[1:], seed=21)
    labels = torch.randint(3, (31,), generator=torch.Generator().manual_seed(6))
    given = {"prior": Isotropic(), "validation": (held, labels), "curvature": "network"}
    posterior = fit(model, (inputs, targets), Categorical(), **given)

    def score(precision: float) -> float:
        return float(posterior.at(precision=precision).predict(held).log_prob(labels).mean())

    best = float(posterior.prior.precision)
    assert posterior.diagnostics.held_out == pytest.approx(score(best), abs=2e-3)
    assert score(best) >= max(score(best * 2), score(best / 2)) - 1e-9
    curve = posterior.curve
    middle = len(curve.precision) // 2
    assert float(curve.held_out[middle]) == pytest.approx(score(float(curve.precision[middle])), rel=1e-9)


def test_temperature_scaling_is_reported_beside():
    model, inputs, targets = class_problem("residual")
    held, labels = normal(31, *inputs.shape[1:], seed=21), torch.arange(31) % 3
    posterior = fit(model, (inputs, targets), Categorical(), validation=(held, labels))
    found = posterior.diagnostics.temperature_scaling
    outputs = model(held).detach()

    def nll(t: float) -> float:
        return float(cross_entropy(outputs / t, labels))

    grid = torch.logspace(-1.5, 2.2, 400, dtype=torch.float64)
    best = min(nll(t) for t in grid.clamp(0.2, 20))  # where it is looked for: few data would choose any
    assert 0.2 <= found["temperature"] <= 20
    assert -found["held_out"] <= best + 1e-6
    assert -found["held_out"] == pytest.approx(nll(found["temperature"]), rel=1e-9)
    assert -found["held_out_plain"] == pytest.approx(nll(1.0), rel=1e-9)
    assert posterior.temperature == 1.0


@pytest.mark.parametrize("curvature", ["expected", "network"])
def test_weights_and_total_count_data_that_often(curvature):
    model, inputs, targets = class_problem("cnn")
    twice = (torch.cat([inputs, inputs]), torch.cat([targets, targets]))
    given = {"prior": Isotropic(1.1), "draws": 2, "method": to_round_off(curvature), "curvature": curvature}
    doubled = fit(model, twice, Categorical(), **given)
    counted = fit(model, (inputs, targets), Categorical(), dataset_size=2 * len(inputs), **given)
    new = normal(4, *inputs.shape[1:], seed=20)
    torch.testing.assert_close(doubled.predict(new).probs, counted.predict(new).probs, rtol=1e-8, atol=1e-12)
    assert doubled.log_evidence.value == pytest.approx(counted.log_evidence.value, rel=1e-9)


def test_fit_is_linearise_then_infer():
    model, inputs, targets = class_problem("mlp")
    whole = fit(model, (inputs, targets), Categorical(), prior=Isotropic(2.0), seed=3)
    by_hand = infer(linearise(model, (inputs, targets), Categorical()), prior=Isotropic(2.0), seed=3)
    torch.testing.assert_close(whole.draws, by_hand.draws, rtol=0, atol=0)


def test_an_interpolating_network_has_a_best_gaussian_and_no_mode_without_validation():
    model, inputs, _ = class_problem("residual")

    class Sure(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 400 * self.inner(x)

    sure = Sure(model).eval()
    targets = model(inputs).argmax(1)
    assert float(sure(inputs).detach().softmax(1).max(1).values.mean()) > 0.99
    with pytest.warns(UserWarning, match="fits its training data perfectly"):
        around = fit(sure, (inputs, targets), Categorical(), curvature="network")
    cost = -float(around.predict(inputs).log_prob(targets).mean())
    assert cost <= 0.03 + 1e-3  # its training labels stay likely, within the tolerance of the search for the precision
    best = fit(sure, (inputs, targets), Categorical())
    assert best.log_evidence.value > len(inputs) * math.log(1 / 3)  # these data do say something about the weights
    assert best.effective_dimension.value > 1
    for given in ({"curvature": "network"}, {}):
        fit(sure, (inputs, targets), Categorical(), prior=Isotropic(10.0), draws=2, **given)
        fit(sure, (inputs, targets), Categorical(), validation=(inputs, targets), draws=2, **given)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.full((9,), 3), "class numbers from 0 to 2"),
        (torch.full((9,), -1), "class numbers from 0 to 2"),
        (torch.full((9,), 0.5), "class numbers from 0 to 2"),
        (torch.zeros(9, 3), r"from one-hot labels they are targets.argmax\(-1\)"),
        (torch.full((9,), float("nan")), "NaN"),
    ],
    ids=["too large", "negative", "fraction", "one-hot", "nan"],
)
def test_labels_that_do_not_fit_are_refused(targets, message):
    model, inputs = NETWORKS["residual"]()
    with pytest.raises(ValueError, match=message):
        fit(model, (inputs, targets), Categorical())


@pytest.mark.parametrize(
    "likelihood", ["classification", Categorical, nn.CrossEntropyLoss()], ids=["word", "class", "loss"]
)
def test_a_likelihood_is_a_value(likelihood):
    model, inputs, targets = class_problem("residual")
    with pytest.raises(ValueError, match=r"expected a value: Categorical\(\) for classes"):
        fit(model, (inputs, targets), likelihood)


def test_a_prediction_is_shown_in_a_line():
    model, inputs, targets = class_problem("residual")
    prediction = fit(model, (inputs, targets), Categorical(), prior=Isotropic(0.5), draws=3).predict(inputs)
    shown = repr(prediction)
    assert shown.startswith("Prediction(9 inputs, 3 classes): probs")
    assert len(shown.splitlines()) == 1


def test_predictions_of_labels():
    model, inputs, targets = class_problem("residual")
    posterior = fit(model, (inputs, targets), Categorical(), prior=Isotropic(0.5), draws=300)
    new = normal(4, *inputs.shape[1:], seed=20)
    prediction = posterior.predict(new, link="monte carlo")
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(4).double())
    # labels drawn from every function draw have the probabilities of the draws
    frequencies = torch.stack([(prediction.samples == k).double().mean(0) for k in range(3)], dim=1)
    softmax = prediction.draws.softmax(-1)
    error = (softmax * (1 - softmax)).sum(0).sqrt() / len(softmax)
    assert float(((frequencies - softmax.mean(0)) / error).abs().max()) < 4.5
    assert bool((prediction.mutual_information <= prediction.entropy + 1e-9).all())
    with pytest.raises(ValueError, match="entropy − mutual_information"):
        _ = prediction.aleatoric_variance
    with pytest.raises(ValueError, match="no interval"):
        prediction.interval(0.9)
    some = prediction[[2, 0]]
    torch.testing.assert_close(some.probs, prediction.probs[[2, 0]])
    assert list(prediction.to_frame().columns[:2]) == ["label", "prob_0"]
    assert isinstance(prediction.distribution, torch.distributions.Categorical)
    log_probs = prediction.log_prob(torch.tensor([0, 2, 1, 1]))
    torch.testing.assert_close(log_probs, prediction.probs.log()[range(4), [0, 2, 1, 1]])


def test_a_linear_model_of_labels_has_its_curvature_at_its_mode():
    x, y = normal(12, 4, seed=1), torch.tensor([0, 1, 2] * 4)
    features = torch.kron(x, torch.eye(3).double())
    posterior = infer(lw.LinearModel(features, y, Categorical()), prior=Isotropic(1.3), curvature="mode")

    def loss(theta):
        return cross_entropy((features @ theta).reshape(12, 3), y, reduction="sum") + 0.65 * theta.square().sum()

    mode = dense_mode(loss, torch.zeros(12).double())
    torch.testing.assert_close(posterior.mean, mode, rtol=1e-5, atol=1e-6)
    expected = torch.linalg.inv(hessian(loss)(mode))
    torch.testing.assert_close(posterior.covariance, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["cnn", "tied"])
def test_a_krylov_space_finds_the_same_optimum_of_the_evidence(name):
    """With every direction in the space γ is exact, and so is MacKay's fixed point."""
    model, inputs, targets = class_problem(name)
    exact = fit(model, (inputs, targets), Categorical(), prior=Isotropic(), draws=2, curvature="network")
    space = fit(model, (inputs, targets), Categorical(), prior=Isotropic(), method=Krylov(rtol=1e-9), draws=60)
    assert bool(exact.prior.precision.isfinite())  # these data do say something about the weights
    # the search ends where MacKay's step is below one per cent; draws estimate γ
    error = 0.02 + 3 * space.effective_dimension.standard_error / space.effective_dimension.value
    assert float((space.prior.precision / exact.prior.precision).log().abs()) < error

"""Posteriors of networks by structured curvatures, against the dense matrices that the structures stand for."""

from dataclasses import replace
from math import log, pi

import pytest
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.func import functional_call

import lapwing as lw
from lapwing import (
    EKFAC,
    KFAC,
    Bernoulli,
    Categorical,
    Diagonal,
    Exact,
    Gaussian,
    Isotropic,
    LinearModel,
    LowRank,
    PerGroup,
    fit,
    infer,
    linearise,
)
from lapwing.bayes.methods import outputs, structured_fits
from lapwing.bayes.priors import GPrior
from lapwing.network.jacobian import Network
from lapwing.network.kfac import eigencorrected, factorise, root_of
from lapwing.training import adam, train
from tests.network.networks import NETWORKS, normal, seeded
from tests.network.test_kfac import dense_ggn
from tests.network.test_labels import dense_loss, dense_mode
from tests.network.test_linearisation import dense_jacobian, flat_weights
from tests.properties import check_covariance

PRECISION, NOISE = 0.9, 1.7**-0.5
LIKELIHOODS = {"gaussian": Gaussian(NOISE), "categorical": Categorical(), "bernoulli": Bernoulli()}
METHODS = {"diagonal": Diagonal(), "kfac": KFAC(), "ekfac": EKFAC(), "low rank": LowRank(9, rtol=1e-11)}


def problem(kind: str):
    """A small perceptron, its inputs and targets of every kind."""
    model, inputs = NETWORKS["mlp"]()
    if kind == "gaussian":
        return model, inputs, model(inputs).detach() + normal(7, 2, seed=9)
    if kind == "categorical":
        return model, inputs, torch.tensor([0, 1, 1, 0, 1, 0, 1])
    return model, inputs, torch.tensor([[0, 1], [1, 1], [1, 0], [0, 0], [1, 1], [0, 1], [1, 0]]).double()


def dense_curvature(method, kind: str, model: nn.Module, inputs: Tensor) -> Tensor:  # (p, p)
    whole = dense_ggn(model, inputs, kind)
    if isinstance(method, Diagonal):
        return whole.sum(0).diagonal().diag()
    if isinstance(method, LowRank):
        values, vectors = torch.linalg.eigh(whole.sum(0))
        return (vectors * values)[:, -method.rank :] @ vectors[:, -method.rank :].mT
    if isinstance(method, KFAC):
        return dense_kronecker(whole, model, inputs)
    root = root_of(LIKELIHOODS[kind], normal(7, 2, seed=1))
    network = Network.of(model)
    return eigencorrected(network, [inputs], root, factorise(network, [inputs], root)).dense()


def dense_kronecker(whole: Tensor, model: nn.Module, inputs: Tensor) -> Tensor:
    """A ⊗ G / N layer by layer: G from the block of the bias, whose Jacobian is that of the layer's output."""
    result, start, a = torch.zeros_like(whole[0]), 0, inputs
    for layer in model:
        if isinstance(layer, nn.Linear):
            o, i = layer.weight.shape
            weight, bias = torch.arange(start, start + o * i), torch.arange(start + o * i, start + o * (i + 1))
            g = whole[:, bias[:, None], bias].sum(0)
            ones = torch.cat([a, torch.ones(len(a), 1).double()], dim=1)
            block = torch.kron(g, ones.mT @ ones / len(a))
            place = torch.cat([weight.reshape(o, i), bias[:, None]], dim=1).flatten()
            result[place[:, None], place] = block
            start += o * (i + 1)
        a = layer(a).detach()
    return result


def dense_objective(kind: str, model: nn.Module, inputs: Tensor, targets: Tensor, precision: float, noise: float = 1.7):
    """−log p(y | h(θ)) + ½ α ‖θ‖² over the weights of the linear model, without what does not depend on θ or α."""
    if kind != "gaussian":
        return dense_loss(model, inputs, targets, precision)[0]
    jacobian, w = dense_jacobian(model, inputs), flat_weights(model)
    offset = model(inputs).detach().reshape(-1) - jacobian @ w

    def loss(theta: Tensor) -> Tensor:
        residual = targets.reshape(-1) - offset - jacobian @ theta
        constant = 0.5 * len(residual) * log(2 * pi / noise)
        return 0.5 * noise * residual.square().sum() + constant + 0.5 * precision * theta.square().sum()

    return loss


def dense_evidence(loss, at: Tensor, curvature: Tensor, precision: float) -> float:
    ratio = torch.eye(len(at)).double() + curvature / precision
    return float(-loss(at) - 0.5 * torch.linalg.slogdet(ratio).logabsdet)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_structured_posterior_is_that_of_its_dense_matrix(kind, method):
    model, inputs, targets = problem(kind)
    posterior = fit(
        model, (inputs, targets), LIKELIHOODS[kind], prior=Isotropic(PRECISION), method=method, draws=4000, seed=3
    )
    curvature, w = dense_curvature(method, kind, model, inputs), flat_weights(model)
    precision = curvature + PRECISION * torch.eye(len(w)).double()
    covariance = torch.linalg.inv(precision)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-7, atol=1e-9)
    check_covariance(posterior.gaussian.deviations, covariance)
    check_covariance((posterior.sample(4000) - posterior.mean).mT, covariance)
    new = normal(4, 3, seed=20)
    rows = dense_jacobian(model, new).reshape(4, 2, -1)
    blocks, prediction = rows @ covariance @ rows.mT, posterior.predict(new)
    torch.testing.assert_close(prediction.epistemic_variance, blocks.diagonal(dim1=1, dim2=2), rtol=1e-7, atol=1e-10)
    assert prediction.standard_error is None
    if kind != "gaussian":
        torch.testing.assert_close(prediction.observation.spread.covariance, blocks, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(prediction.mean, model(new).detach(), rtol=1e-12, atol=1e-12)
    loss = dense_objective(kind, model, inputs, targets, PRECISION)
    mode = dense_mode(loss, w)
    torch.testing.assert_close(posterior.mean, mode, rtol=1e-4, atol=1e-5)
    assert posterior.log_evidence.value == pytest.approx(dense_evidence(loss, mode, curvature, PRECISION), rel=1e-8)
    determined = float((covariance @ curvature).trace())
    assert posterior.effective_dimension.value == pytest.approx(determined, rel=1e-7)


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_the_evidence_at_the_weights_is_the_naive_one(kind):
    model, inputs, targets = problem(kind)
    posterior = fit(
        model, (inputs, targets), LIKELIHOODS[kind], prior=Isotropic(), method=KFAC(evidence_at="weights"), draws=2
    )
    alpha, w = float(posterior.prior.precision), flat_weights(model)
    curvature = dense_curvature(KFAC(), kind, model, inputs)
    torch.testing.assert_close(posterior.mean, w, rtol=0, atol=0)

    def evidence(precision: float) -> float:
        return dense_evidence(dense_objective(kind, model, inputs, targets, precision), w, curvature, precision)

    assert posterior.log_evidence.value == pytest.approx(evidence(alpha), rel=1e-9)
    best = scipy.optimize.minimize_scalar(lambda x: -evidence(2.718281828**x), bounds=(-8, 8), method="bounded")
    assert alpha == pytest.approx(2.718281828**best.x, rel=1e-3)
    assert posterior.at(precision=2.0).log_evidence.value == pytest.approx(evidence(2.0), rel=1e-9)
    assert posterior.diagnostics.evidence_at == "weights"


@pytest.mark.parametrize("method", [Diagonal(), KFAC(), EKFAC()], ids=repr)
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_the_tuned_precision_maximises_the_evidence_at_the_mode(kind, method):
    model, inputs, targets = problem(kind)
    posterior = fit(model, (inputs, targets), LIKELIHOODS[kind], prior=Isotropic(), method=method, draws=2)
    alpha, curvature = float(posterior.prior.precision), dense_curvature(method, kind, model, inputs)

    def evidence(precision: float) -> float:
        loss = dense_objective(kind, model, inputs, targets, precision)
        return dense_evidence(loss, dense_mode(loss, flat_weights(model)), curvature, precision)

    others = [1e6, 100.0, 1.0, 0.01] if alpha == torch.inf else [alpha * factor for factor in (0.1, 0.9, 1.1, 10.0)]
    here = evidence(min(alpha, 1e8))
    assert here >= max(map(evidence, others)) - 1e-7
    assert posterior.log_evidence.value == pytest.approx(here, rel=1e-6)


@pytest.mark.parametrize("method", [Diagonal(), KFAC(), LowRank(20)], ids=repr)
def test_tuned_precision_and_noise_are_mackays_fixed_point(method):
    """α_g = γ_g / ‖θ⋆_g‖² in every group and β = (N − γ) / ‖y − h‖²."""
    (model, _), inputs = NETWORKS["mlp"](), normal(40, 3, seed=8)
    targets = model(inputs).detach() + 0.3 * normal(40, 2, seed=9)
    posterior = fit(
        model, (inputs, targets), Gaussian(), prior=PerGroup("layer", hyperprior=lw.GammaHyperprior(1e-3, 1e-3)), method=method,
        draws=2,
    )  # fmt: skip
    beta, mean = float(posterior.gaussian.noise_precision), posterior.mean
    for number, alpha in enumerate(posterior.prior.precision.tolist()):
        group = posterior.prior.group_of == number
        determined = float((1 - alpha * posterior.covariance.diagonal())[group].sum())
        expected = (determined + 2e-3) / (float(mean[group].square().sum()) + 2e-3)
        assert alpha == pytest.approx(expected, rel=1e-4)
    linear = posterior.predict(inputs, mean="linear").mean
    wanted = (targets.numel() - posterior.effective_dimension.value) / float((targets - linear).square().sum())
    assert beta == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_as_many_pairs_as_weights_are_exact(kind):
    model, inputs, targets = problem(kind)
    p = len(flat_weights(model))
    exact, same = (
        fit(model, (inputs, targets), LIKELIHOODS[kind], prior=GPrior(), method=method, draws=2, curvature="network")
        for method in (Exact(), LowRank(p, rtol=1e-10))
    )
    torch.testing.assert_close(same.prior.precision, exact.prior.precision, rtol=1e-5, atol=0)
    assert same.log_evidence.value == pytest.approx(exact.log_evidence.value, rel=1e-8)
    new = normal(4, 3, seed=20)
    torch.testing.assert_close(
        same.predict(new).epistemic_variance, exact.predict(new).epistemic_variance, rtol=1e-5, atol=1e-9
    )
    assert same.verify(new).relative_error < 1e-5


def test_a_raised_precision_is_said_to_have_another_evidence_than_models_are_compared_by():
    x, noise = normal(60, 3, seed=0), 0.5 * normal(60, 2, seed=1)
    y = (x[:, 0] + noise[:, 0] > 0).long() + (x[:, 1] + noise[:, 1] > 1).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    model = train(model, (x, y), Categorical(), epochs=60, optimiser=adam(1e-2), progress=False)
    posterior = fit(model, (x, y), Categorical(), method=KFAC())
    assert "raised" in posterior.diagnostics.tuned_by
    shown = " ".join(repr(posterior).split())
    assert "compare models by curve.log_evidence.max()" in shown
    assert "KFAC(sharing='expand') (as asked)" in shown
    assert float(posterior.curve.log_evidence.max()) > posterior.log_evidence.value + 1


@pytest.mark.parametrize("method", [Diagonal(), KFAC(), LowRank(9)], ids=repr)
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_the_held_out_curve_is_that_of_predictions_at_each_precision(kind, method):
    model, inputs, targets = problem(kind)
    likelihood, prior = (Gaussian(), Isotropic()) if kind == "gaussian" else (Categorical(), PerGroup("layer"))
    new = normal(5, 3, seed=21)
    held = model(new).detach() + normal(5, 2, seed=22) if kind == "gaussian" else torch.tensor([0, 1, 1, 0, 1])
    posterior = fit(model, (inputs, targets), likelihood, prior=prior, method=method, validation=(new, held), draws=2)
    curve, best = posterior.curve, replace(posterior, alternative=None).predict(new).log_prob(held).mean()
    assert posterior.diagnostics.tuned_by == "held-out density"
    ratio = posterior.prior.precision / posterior.prior.precision[0]
    for number in range(5, len(curve.precision), 9):
        noise = {} if kind == "categorical" else {"noise_std": noise_at(posterior, float(curve.noise[number]), curve)}
        other = posterior.at(precision=(curve.precision[number] * ratio).tolist(), **noise)
        assert float(other.predict(new).log_prob(held).mean()) == pytest.approx(float(curve.held_out[number]), abs=1e-7)
        if kind == "gaussian":  # that of class labels is left out where a mode takes long
            assert other.log_evidence.value == pytest.approx(float(curve.log_evidence[number]), rel=1e-6)
    assert float(best) >= float(curve.held_out.max()) - 1e-6


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_tuned_on_held_out_data_a_structure_finds_no_mode_and_is_the_same(kind):
    """What a precision tuned on held-out data is does not depend on where the evidence would be taken."""
    model, inputs, targets = problem(kind)
    held = {"gaussian": normal(5, 2, seed=22), "categorical": torch.tensor([0, 1, 1, 0, 1]),
            "bernoulli": torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1]]).double()}[kind]  # fmt: skip
    options = {"prior": Isotropic(), "validation": (normal(5, 3, seed=21), held), "draws": 2}
    quick, full = (
        fit(model, (inputs, targets), LIKELIHOODS[kind], method=KFAC(evidence_at=at), **options)
        for at in (None, "mode")
    )
    assert (quick.diagnostics.evidence_at, full.diagnostics.evidence_at) == ("weights", "mode")
    torch.testing.assert_close(quick.mean, flat_weights(model), rtol=0, atol=0)
    assert float((full.mean - quick.mean).norm()) > 0.01 * float(quick.mean.norm())
    torch.testing.assert_close(quick.prior.precision, full.prior.precision, rtol=1e-3, atol=0)
    ours, theirs = (posterior.predict(inputs).epistemic_variance for posterior in (quick, full))
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=0)


@pytest.mark.parametrize("method", [Diagonal(), KFAC(), EKFAC()], ids=repr)
def test_networks_in_single_precision_lose_only_its_round_off(method):
    """Variances are sums of squares, so nothing cancels: the error is that of the factors, far below their size."""
    model, inputs, targets = problem("categorical")
    prior, new = Isotropic(0.9), normal(4, 3, seed=20)
    double = fit(model, (inputs, targets), Categorical(), prior=prior, method=method, draws=2)
    single = fit(model.float(), (inputs.float(), targets), Categorical(), prior=prior, method=method, draws=2)
    found, expected = (
        posterior.predict(x).epistemic_variance for posterior, x in ((single, new.float()), (double, new))
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)
    assert not torch.equal(found.double(), expected)


@pytest.mark.parametrize("full", [True, False], ids=["covariances", "variances"])
@pytest.mark.parametrize("method", [KFAC(), LowRank(9)], ids=repr)
def test_eigenvalues_shared_out_over_a_grid_give_the_same_spreads(method, full, monkeypatch):
    """To a step squared over eight, 2e-4, of the diagonal."""
    model, inputs, targets = problem("categorical")
    posterior = fit(model, (inputs, targets), Categorical(), prior=Isotropic(0.9), method=method, draws=2)
    new = normal(5, 3, seed=21)
    arguments = (posterior.gaussian.whitened, posterior.map.features_at(new), (5, 2), torch.zeros(32, 2).double(), 0)
    direct = outputs.over_ratio(*arguments, full=full)
    monkeypatch.setattr(outputs, "DIRECTIONS", 0)
    binned = outputs.over_ratio(*arguments, full=full)
    for ratio in (1e-6, 0.03, 1.0, 50.0, 1e7):
        expected, found = direct(ratio), binned(ratio)
        torch.testing.assert_close(found.variance, expected.variance, rtol=2e-4, atol=0)
        if full:
            sizes = expected.variance.sqrt()
            error = (found.covariance - expected.covariance).abs() / (sizes[:, :, None] * sizes[:, None])
            assert float(error.max()) <= 2e-4
            assert float(error.max()) > 0
        else:
            assert found.covariance is None


def noise_at(posterior, multiple: float, curve) -> float:
    """The noise of a point on the curve, whose multiples are of the noise that the search began with."""
    return float(posterior.likelihood.noise_std) * (curve.best_noise / multiple) ** 0.5


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_another_precision_needs_no_data(method):
    model, inputs, targets = problem("gaussian")
    one, other = (
        fit(model, (inputs, targets), Gaussian(noise), prior=Isotropic(alpha), method=method, draws=3)
        for alpha, noise in ((0.9, 0.5), (3.0, 1.25))
    )
    moved = one.at(precision=3.0, noise_std=1.25)
    torch.testing.assert_close(moved.covariance, other.covariance, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(moved.mean, other.mean, rtol=1e-7, atol=1e-9)
    assert moved.log_evidence.value == pytest.approx(other.log_evidence.value, rel=1e-9)


def test_several_precisions_and_the_scale_of_the_g_prior_are_those_of_the_dense_matrix():
    model, inputs, targets = problem("categorical")
    linear, curvature = (
        linearise(model, (inputs, targets), Categorical()),
        dense_curvature(KFAC(), "categorical", model, inputs),
    )
    grouped = infer(linear, prior=PerGroup("layer"), method=KFAC(), draws=2).at(precision=[0.7, 3.0])
    expected = torch.linalg.inv(curvature + grouped.prior.std.pow(-2).diag())
    torch.testing.assert_close(grouped.covariance, expected, rtol=1e-8, atol=1e-10)
    scaled = infer(linear, prior=GPrior(0.8, scale_per="weight"), method=KFAC(), draws=2)
    assert scaled.diagnostics.prior_scale_moved > 1.01  # a Kronecker product cannot hold every scale
    expected = torch.linalg.inv(curvature + scaled.prior.std.pow(-2).diag())
    torch.testing.assert_close(scaled.covariance, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("prior", [Isotropic(), PerGroup("layer")], ids=["one", "layers"])
def test_modes_by_conjugate_gradients_are_those_of_a_decomposition(prior, monkeypatch):
    model, inputs, targets = problem("gaussian")
    direct = fit(model, (inputs, targets), Gaussian(NOISE), prior=prior, method=KFAC(), draws=2)
    monkeypatch.setattr(structured_fits, "DIRECT_SIZE", 1)
    solved = fit(model, (inputs, targets), Gaussian(NOISE), prior=prior, method=KFAC(), draws=2)
    assert isinstance(solved.gaussian.fit, structured_fits.IteratedFit)
    torch.testing.assert_close(solved.mean, direct.mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(solved.prior.precision, direct.prior.precision, rtol=1e-4, atol=0)
    assert solved.log_evidence.value == pytest.approx(direct.log_evidence.value, rel=1e-8)


def test_data_that_count_more_often_are_repeated_data():
    model, inputs, targets = problem("categorical")
    weighted = fit(
        model, (inputs, targets), Categorical(), prior=Isotropic(0.9), method=KFAC(), dataset_size=21, draws=2
    )
    repeated = (inputs.repeat(3, 1), targets.repeat(3))
    expected = fit(model, repeated, Categorical(), prior=Isotropic(0.9), method=KFAC(), draws=2)
    torch.testing.assert_close(weighted.covariance, expected.covariance, rtol=1e-9, atol=1e-12)
    assert weighted.log_evidence.value == pytest.approx(expected.log_evidence.value, rel=1e-8)


def test_diagnostics_say_which_layers_got_what():
    model, inputs = NETWORKS["cnn"]()
    targets = torch.tensor([0, 1, 2, 2, 1, 0, 1, 2])
    posterior = fit(model, (inputs, targets), Categorical(), prior=Isotropic(1.0), method=KFAC(), draws=2)
    assert posterior.diagnostics.structure["blocks"] == {"kronecker": ["0", "4"], "exact": ["1"], "diagonal": []}
    assert "KFAC" in repr(posterior)
    low = fit(model, (inputs, targets), Categorical(), prior=Isotropic(1.0), method=LowRank(5), draws=0)
    assert low.diagnostics.rank == 5
    assert low.diagnostics.largest_left_out > 0


def test_noise_that_runs_to_zero_is_reported():
    """Few eigenpairs pay too small an Occam factor for a mode that fits every target."""
    model, inputs = NETWORKS["cnn"]()
    targets = model(inputs).detach() + 0.3 * normal(8, 3, seed=9)
    posterior = fit(model, (inputs, targets), Gaussian(), prior=Isotropic(), method=LowRank(10), draws=0)
    assert posterior.diagnostics.noise_at_floor
    assert not posterior.diagnostics.converged


def test_parts_of_a_network_and_structures_go_together():
    model, inputs, targets = problem("categorical")
    head = fit(model, (inputs, targets), Categorical(), select=lw.last_layer(model), method=KFAC(), draws=2)
    assert len(head.mean) == 12
    mask = lw.subnetwork(model, (inputs, targets), Categorical(), 10, score="predictive")
    part = fit(model, (inputs, targets), Categorical(), select=mask, prior=Isotropic(0.9), method=Diagonal(), draws=2)
    whole = dense_ggn(model, inputs, "categorical").sum(0).diagonal()[mask]
    torch.testing.assert_close(part.covariance, (1 / (whole + 0.9)).diag(), rtol=1e-9, atol=1e-12)


def test_held_out_noise_of_a_network_is_that_of_its_own_outputs():
    """The predictive mean is the network's output, so held-out residuals are those of the network, offset or not."""
    model, inputs, targets = problem("gaussian")
    new = normal(40, 3, seed=21)
    held = model(new).detach() + 0.3 * normal(40, 2, seed=22)
    tight = fit(model, (inputs, targets), Gaussian(), method=Exact(), validation=(new, held), draws=2)
    prediction, residual = tight.predict(new), float((held - model(new).detach()).square().mean())
    assert float(prediction.variance.mean()) == pytest.approx(residual, rel=0.2)
    assert float(prediction.log_prob(held).mean()) == pytest.approx(float(tight.curve.held_out.max()), abs=1e-3)


def calls():
    model, inputs, targets = problem("gaussian")
    design = LinearModel(normal(6, 3, seed=1), normal(6, seed=2), Gaussian(0.1))
    mask = torch.ones(len(flat_weights(model)), dtype=torch.bool)
    mask[3] = False
    data, split = (inputs, targets), PerGroup({"a": slice(0, 7), "b": slice(7, 32)})
    fixed = fit(model, data, Gaussian(0.1), prior=Isotropic(1.0), method=KFAC(), draws=2)
    zero, _ = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), inputs)
    with torch.no_grad():
        zero[0].weight.zero_(), zero[0].bias.fill_(-1)
    dead = linearise(zero, data, Gaussian(0.1), select=lambda name: name.startswith("0"))
    return {
        "KFAC of a design": (lambda: infer(design, method=KFAC()), "needs a network with layers"),
        "KFAC of a mask": (lambda: fit(model, data, Gaussian(0.1), select=mask, method=KFAC()), "whole tensors"),
        "too many pairs": (lambda: fit(model, data, Gaussian(0.1), method=LowRank(99)), "rank is 99, expected 1 to 32"),
        "noise per output": (lambda: fit(model, data, Gaussian(per_output=True), method=KFAC()), "one noise for all"),
        "split layers": (lambda: fit(model, data, Gaussian(0.1), prior=split, method=KFAC()), "one Kronecker block"),
        "evidence at": (lambda: fit(model, data, Gaussian(0.1), method=KFAC(evidence_at="w")), "expected 'mode'"),
        "no weights": (lambda: infer(design, method=LowRank(2, evidence_at="weights")), "linearised network"),
        "residuals": (lambda: fixed.residuals(), "solve no equation"),
        "leave one out": (lambda: fixed.leave_one_out(), "Exact"),
        "bounds": (lambda: fixed.predict(inputs, bounds=True), "Krylov"),
        "no curvature": (lambda: infer(dead, method=KFAC()), "the curvature is zero"),
    }


@pytest.mark.parametrize("name", calls())
def test_what_cannot_be_done_is_refused(name):
    call, message = calls()[name]
    with pytest.raises(ValueError, match=message):
        call()


def trained(make, inputs: Tensor, loss, steps: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().double()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(inputs)).backward()
        optimiser.step()
    return model.eval()


@pytest.mark.parametrize("method", [KFAC(), LowRank(60)], ids=repr)
def test_error_bars_grow_in_a_gap_and_sampled_networks_fail(method):
    """1-D regression with a gap, two layers of 50 tanh units."""
    x = torch.cat([torch.linspace(-2, -0.9, 40), torch.linspace(0.9, 2, 40)])[:, None].double()
    y = torch.sin(3 * x) + 0.1 * normal(80, 1, seed=1)
    model = trained(
        lambda: nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1)), x,
        lambda outputs: (outputs - y).square().mean() + 1e-5 * outputs.square().mean(), 600,
    )  # fmt: skip
    posterior = fit(model, (x, y), Gaussian(), prior=Isotropic(), method=method, draws=8)
    inside = posterior.predict(x).epistemic_variance.sqrt().mean()
    centre = posterior.predict(torch.zeros(2, 1).double()).epistemic_variance.sqrt().mean()
    assert centre >= 2 * inside
    linearised = (posterior.predict(x).mean - y).square().mean().sqrt()
    names = [name for name, _ in model.named_parameters()]
    shapes = [weight.shape for weight in model.parameters()]
    sampled = []
    for draw in (flat_weights(model)[:, None] + posterior.gaussian.deviations).mT:
        parts = draw.split([shape.numel() for shape in shapes])
        weights = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        sampled.append(functional_call(model, weights, (x,)).detach())
    assert (torch.stack(sampled) - y).square().mean().sqrt() >= 5 * linearised


def test_confidence_far_from_two_clusters_is_below_that_of_the_network():
    """Everywhere outside of the data, the posterior is less sure than the network."""
    centres = torch.tensor([[-1.5, 0.0], [1.5, 0.5]]).double()
    x = (centres[:, None] + 0.6 * normal(2, 30, 2, seed=4)).flatten(0, 1)
    labels = torch.arange(2).repeat_interleave(30)
    model = trained(
        lambda: nn.Sequential(nn.Linear(2, 15), nn.Tanh(), nn.Linear(15, 2)), x,
        lambda outputs: nn.functional.cross_entropy(outputs, labels), 150,
    )  # fmt: skip
    posterior = fit(model, (x, labels), Categorical(), prior=Isotropic(), method=KFAC(), draws=2)
    angles = torch.linspace(0, 6.2, 25).double()
    far = 8 * torch.stack([angles.cos(), angles.sin()], dim=1)
    sure = model(far).detach().softmax(1).amax(1)
    assert bool((posterior.predict(far).probs.amax(1) < sure).all())

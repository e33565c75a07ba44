"""Held-out data under the best Gaussian: its curve, the candidates, and what predictions follow from them."""

import math
from dataclasses import replace

import pytest
import torch

import lapwing as lw
from lapwing import Categorical, Isotropic, Krylov, fit
from lapwing.bayes.posterior import held_out as held_out_module
from lapwing.bayes.posterior.alternatives import ScaledNetwork
from tests.network.networks import normal
from tests.network.test_labels import class_problem
from tests.network.test_linearisation import dense_jacobian
from tests.network.test_other_likelihoods import CASES

OWN, HELD_OUT = "posterior", "posterior, precision by held-out data"
LAPLACE = "Laplace around the network, precision by held-out data"
CONCAVE = [name for name, case in CASES.items() if not case.expected]
SLOW = {"your own": pytest.mark.slow}  # its derivatives are automatic; those by hand walk the same lines


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in CONCAVE])
def test_the_best_point_of_the_curve_is_above_its_neighbours(name):
    """Points are found to 1e-2 nats of the bound, which moves a held-out density by no more than twice that here."""
    case = CASES[name]
    model, inputs = case.problem()
    data, held = (inputs, case.targets), normal(40, 3, seed=21)
    functions = fit(model, data, case.of, prior=Isotropic(2.0), draws=40, curvature="network").functions(held)
    uniform = torch.rand(40, *case.targets.shape[1:], generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    labels = case.sampled(functions[torch.arange(40), torch.arange(40)], uniform)
    posterior = fit(model, data, case.of, prior=Isotropic(), validation=(held, labels), draws=2)
    curve, told = posterior.curve, posterior.diagnostics
    best = int(curve.held_out.argmax())
    assert float(curve.precision[best]) == curve.best_precision
    assert told.held_out == float(curve.held_out[best])
    if curve.best_precision == float("inf"):  # these data say nothing about the weights
        return
    for point in sorted({0, best - 1, best, min(best + 1, len(curve.precision) - 1)}):
        found = posterior.at(precision=float(curve.precision[point])).predict(held)
        score = float(found.log_prob(labels).sum()) / labels.numel()
        assert float(curve.held_out[point]) == pytest.approx(score, abs=0.02)


@pytest.mark.parametrize("method", [None, Krylov(rtol=1e-6), lw.KFAC()], ids=["exact", "krylov", "kfac"])
@pytest.mark.parametrize("seed", range(3))
def test_predictions_average_the_candidates_by_how_well_held_out_data_like_them(method, seed):
    model, inputs, targets = class_problem("tied")
    held = normal(31, *inputs.shape[1:], seed=21 + seed)
    classes = model(held).shape[1]
    labels = torch.randint(classes, (31,), generator=torch.Generator().manual_seed(seed))
    if seed:  # labels that the network knows, or knows too little of
        labels = torch.distributions.Categorical(logits=model(held).detach() * (3.0 if seed == 1 else 0.3)).mode
    posterior = fit(
        model, (inputs, targets), Categorical(), prior=Isotropic(), validation=(held, labels), method=method
    )
    told = posterior.diagnostics
    assert told.candidates[told.candidate] == max(told.candidates.values())
    assert (OWN in told.candidates) == (method is None)
    assert told.shares == pytest.approx(akaike(told.candidates, 31), abs=0.01)
    found = posterior.predict(held)
    expected = torch.zeros_like(found.probs)
    for share, part in zip(*averaged_parts(posterior, told), strict=True):
        expected += share * replace(posterior, alternative=part).predict(held).probs
    torch.testing.assert_close(found.probs, expected, rtol=1e-9, atol=1e-12)
    if method is None and told.candidate != HELD_OUT:  # the best of the curve is not what is used
        assert told.edge_of_range is None
    outputs = model(held).detach()
    for temperature in (1.0, told.temperature_scaling["temperature"]):
        alone = replace(posterior, alternative=ScaledNetwork(temperature)).predict(held)
        torch.testing.assert_close(alone.probs, (outputs / temperature).softmax(1), rtol=1e-9, atol=1e-12)
    # what is asked for by name is the posterior's own, and so is a posterior at a precision that is given
    assert posterior.predict(held, mean="network").simpler is None
    if bool(posterior.prior.precision.isfinite()):
        other = posterior.at(precision=2.0)
        assert other.predict(held).simpler is None
        assert other.diagnostics.candidate is None


def akaike(candidates, size):
    """Shares by hand: the likelihood of all held-out labels, over e for every number that was chosen on them."""
    tuned = {"raw network": 0, OWN: 0, "temperature scaling": 1, HELD_OUT: 1, LAPLACE: 1}
    weights = {name: math.exp(size * score - tuned[name]) for name, score in candidates.items()}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def averaged_parts(posterior, told):
    """Shares that are not zero and what they are of."""
    shares = [share for share in told.shares.values() if share]
    if posterior.alternative is None:
        return [1.0], [None]
    return (shares, posterior.alternative.parts) if len(shares) > 1 else (shares, [posterior.alternative])


def test_counts_are_predicted_by_the_best_candidate_alone():
    """A mixture of counts has no entropy in closed form."""
    case = next(case for case in CASES.values() if isinstance(case.of, lw.Poisson))
    model, inputs = case.problem()
    held = normal(29, 3, seed=22)
    labels = model(held).detach().exp().round()
    posterior = fit(model, (inputs, case.targets), case.of, validation=(held, labels), draws=3)
    told = posterior.diagnostics
    assert told.shares == {max(told.candidates, key=lambda name: told.candidates[name]): 1.0}
    assert posterior.predict(held).entropy.isfinite().all()


def laplace_problem(classes: bool):
    """A network, data and held-out data; a sixth of the labels of both are wrong."""
    likelihood = lw.Categorical() if classes else lw.Bernoulli()
    with torch.random.fork_rng():
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4)).double().eval()
    with torch.no_grad():
        for number, tensor in enumerate(model.parameters()):
            tensor.copy_(normal(*tensor.shape, seed=number) * (1 + number))
    inputs, held = normal(23, 3, seed=5), normal(31, 3, seed=6)
    seed = torch.Generator().manual_seed(8)
    targets, labels = (
        torch.distributions.Categorical(logits=model(x).detach()).mode if classes else (model(x) > 0).double()
        for x in (inputs, held)
    )
    for known in (targets, labels):
        wrong = torch.randperm(len(known), generator=seed)[: len(known) // 6]
        known[wrong] = (known[wrong] + 1) % 4 if classes else 1 - known[wrong]
    return model, likelihood, (inputs, targets), (held, labels)


@pytest.mark.parametrize("classes", [True, False], ids=["classes", "labels"])
def test_laplace_around_the_network_is_the_dense_one(classes, tmp_path):
    """Variances J (α + JᵀBJ)⁻¹ Jᵀ with the curvature B at the network's outputs, and probabilities by the probit link."""
    model, of, data, held_out = laplace_problem(classes)
    inputs, held = data[0], held_out[0]
    posterior = fit(model, data, of, prior=Isotropic(), validation=held_out)
    alternative = _around_network(model, of, data, held_out)
    prior = alternative.gaussian.prior
    precision = float(prior.precision[0])
    jacobian, new = dense_jacobian(model, inputs), dense_jacobian(model, held)
    outputs = model(inputs).detach()
    if classes:
        p = outputs.softmax(1)
        blocks = [torch.diag(row) - torch.outer(row, row) for row in p]
    else:
        p = outputs.sigmoid()
        blocks = [torch.diag(row) for row in p * (1 - p)]
    precisions = precision * torch.eye(jacobian.shape[1]).double() + jacobian.mT @ torch.block_diag(*blocks) @ jacobian
    variance = (new @ torch.linalg.inv(precisions) * new).sum(1).reshape(len(held), -1)
    shrunk = model(held).detach() / (1 + torch.pi / 8 * variance).sqrt()
    chosen = replace(posterior, alternative=replace(alternative, link="probit"))
    found = chosen.predict(held)
    torch.testing.assert_close(found.simpler.spread.variance, variance, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.probs, shrunk.softmax(1) if classes else shrunk.sigmoid(), rtol=1e-9, atol=0)
    chosen = replace(posterior, alternative=alternative)
    found = chosen.predict(held)
    score = float(found.log_prob(held_out[1]).mean())  # at a precision that is at least as good as the grid's best
    assert score - 1e-3 < posterior.diagnostics.candidates[LAPLACE] <= score + 1e-9
    # what ranks inputs is the posterior's, and a file keeps both
    torch.testing.assert_close(found.novelty, replace(posterior, alternative=None).predict(held).novelty)
    again = lw.load(chosen.save(tmp_path / "chosen.lapwing"), model)
    torch.testing.assert_close(again.predict(held).probs, found.probs)
    torch.testing.assert_close(again.predict(held).novelty, found.novelty)


def _around_network(model, of, data, held_out):
    """The candidate itself, whichever wins."""
    posterior = fit(model, data, of, prior=Isotropic())
    features = posterior.map.features(held_out[0])
    held, _ = held_out_module._observed(posterior, held_out)
    outputs = of.as_rows(model(held_out[0]).detach())
    known = held_out_module._held_out(posterior, of, held, posterior.link, features, outputs)
    (candidate,) = held_out_module._around_network(posterior, known, features, held, outputs).values()
    return candidate.alternative


def test_every_candidate_is_compared_and_printed():
    model, of, data, held_out = laplace_problem(True)
    posterior = fit(model, data, of, prior=Isotropic(), validation=held_out)
    names = {"raw network", "temperature scaling", LAPLACE, OWN, HELD_OUT}
    assert set(posterior.diagnostics.candidates) == names
    assert all(name in repr(posterior) for name in names)


def test_a_posterior_without_its_data_is_compared_with_what_needs_none(tmp_path):
    model, of, data, held_out = laplace_problem(True)
    again = lw.load(fit(model, data, of, prior=Isotropic()).save(tmp_path / "posterior.lapwing"), model)
    assert set(again.tune(held_out).diagnostics.candidates) == {"raw network", "temperature scaling", OWN, HELD_OUT}

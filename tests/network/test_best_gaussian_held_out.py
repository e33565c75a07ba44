"""Held-out data under the best Gaussian: its curve, the candidates, and what predictions follow from them."""

import pytest
import torch

import lapwing as lw
from lapwing import Categorical, Isotropic, Krylov, fit
from tests.network.networks import normal
from tests.network.test_labels import class_problem
from tests.network.test_other_likelihoods import CASES

OWN, HELD_OUT = "posterior", "posterior, precision by held-out data"
CONCAVE = [name for name, case in CASES.items() if not case.expected]


@pytest.mark.parametrize("name", CONCAVE)
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
    for precision, density in zip(curve.precision.tolist(), curve.held_out.tolist(), strict=True):
        found = posterior.at(precision=precision).predict(held)
        score = float(found.log_prob(labels).sum()) / labels.numel()
        assert density == pytest.approx(score, abs=0.02)


@pytest.mark.parametrize("method", [None, Krylov(rtol=1e-6), lw.KFAC()], ids=["exact", "krylov", "kfac"])
@pytest.mark.parametrize("seed", range(3))
def test_predictions_are_those_of_the_candidate_that_held_out_data_prefer(method, seed):
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
    found = posterior.predict(held)
    assert float(found.log_prob(labels).mean()) == pytest.approx(told.candidates[told.candidate], abs=0.02)
    outputs, scaled = model(held).detach(), told.candidate not in (OWN, HELD_OUT)
    assert (found.simpler is not None) == scaled
    if method is None and told.candidate != HELD_OUT:  # the best of the curve is not what is used
        assert told.edge_of_range is None
    if scaled:
        temperature = 1.0 if told.candidate == "raw network" else told.temperature_scaling["temperature"]
        torch.testing.assert_close(found.probs, (outputs / temperature).softmax(1), rtol=1e-9, atol=1e-12)
    # what is asked for by name is the posterior's own, and so is a posterior at a precision that is given
    assert posterior.predict(held, mean="network").simpler is None
    if bool(posterior.prior.precision.isfinite()):
        other = posterior.at(precision=2.0)
        assert other.predict(held).simpler is None
        assert other.diagnostics.candidate is None

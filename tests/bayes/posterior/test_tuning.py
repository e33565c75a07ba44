import pytest
import torch

from lapwing import Gaussian, Isotropic, LinearModel, PerGroup, infer
from tests.problems import PROBLEMS, TALL, WIDE, linear


def held_out_density(posterior, data):
    return float(posterior.predict(data.inputs).log_prob(data.held_out).mean())


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("likelihood", [Gaussian(), Gaussian(0.9)], ids=["noise free", "noise given"])
def test_tuning_maximises_the_held_out_density(name, likelihood):
    data = PROBLEMS[name]
    posterior = infer(LinearModel(data.features, data.targets, likelihood), prior=Isotropic(), draws=2)
    tuned = posterior.tune((data.inputs, data.held_out))
    best = held_out_density(tuned, data)
    assert best >= held_out_density(posterior, data)
    points = tuned.curve.held_out
    assert best >= float(points.max()) - 1e-12
    # between its points a concave curve rises no further than by the slope towards the highest
    near = points[max(0, int(points.argmax()) - 1) : int(points.argmax()) + 2]
    assert best <= float(2 * near.max() - near.min()) + 1e-12
    assert float(near.max() - near.min()) < 0.05
    factors = (0.8, 0.95, 1.05, 1.25)
    precision, noise_std = float(tuned.prior.precision), tuned.likelihood.noise_std
    edges = tuned.curve.precision
    inside = float(edges.min()) * 2 < precision < float(edges.max()) / 2
    for factor in factors if inside else ():
        assert held_out_density(tuned.at(precision=precision * factor), data) <= best + 1e-9
    if likelihood.noise_std is None:
        for factor in factors:
            assert held_out_density(tuned.at(noise_std=noise_std * factor), data) <= best + 1e-9
    else:
        assert float(noise_std) == 0.9
    assert tuned.diagnostics.tuned_by == "held-out density"


def test_the_curve_is_what_predictions_at_its_points_score():
    posterior = infer(LinearModel(TALL.features, TALL.targets, Gaussian()), prior=Isotropic(), draws=0)
    curve = posterior.tune((TALL.inputs, TALL.held_out)).curve
    for index in (20, 45, 60):
        noise_std = float(posterior.likelihood.noise_std) * float(curve.noise[index]) ** -0.5
        there = posterior.at(precision=float(curve.precision[index]), noise_std=noise_std)
        assert held_out_density(there, TALL) == pytest.approx(float(curve.held_out[index]), rel=1e-8)
        assert there.log_evidence.value == pytest.approx(float(curve.log_evidence[index]), rel=1e-8)


def test_infer_with_validation_is_infer_then_tune():
    model = LinearModel(WIDE.features, WIDE.targets, Gaussian())
    together = infer(model, validation=(WIDE.inputs, WIDE.held_out))
    apart = infer(model).tune((WIDE.inputs, WIDE.held_out))
    assert torch.equal(together.draws, apart.draws)


def test_several_precisions_keep_their_proportions():
    data = linear(30, 2, 9, seed=4)
    prior = PerGroup({"a": slice(0, 4), "b": slice(4, 9)})
    posterior = infer(LinearModel(data.features, data.targets, Gaussian(per_output=True)), prior=prior)
    tuned = posterior.tune((data.inputs, data.held_out))
    ratio = tuned.prior.precision / posterior.prior.precision
    assert float(ratio[0]) == pytest.approx(float(ratio[1]), rel=1e-12)
    assert held_out_density(tuned, data) >= held_out_density(posterior, data)


def test_validation_that_does_not_fit_is_refused():
    posterior = infer(LinearModel(TALL.features, TALL.targets, Gaussian()))
    with pytest.raises(ValueError, match="11 outputs and 7 targets"):
        posterior.tune((TALL.inputs, TALL.held_out[:7]))
    per_datum = infer(LinearModel(TALL.features, TALL.targets, Gaussian(torch.ones(40))))
    with pytest.raises(ValueError, match="given per datum"):
        per_datum.tune((TALL.inputs, TALL.held_out))


def test_held_out_data_that_want_no_error_bars_are_reported():
    """Targets that are the predictive mean itself leave nothing for the weights' uncertainty to explain."""
    posterior = infer(LinearModel(TALL.features, TALL.targets, Gaussian(0.9)), prior=Isotropic(), draws=2)
    stiff = infer(LinearModel(TALL.features, 0 * TALL.targets, Gaussian(0.9)), prior=Isotropic(1.0), draws=2)
    tuned = stiff.tune((TALL.inputs, torch.zeros_like(TALL.held_out)))
    assert tuned.diagnostics.edge_of_range == tuned.curve.edge == "stiffest"
    assert "Largest value tried: on your validation data the uncertainty" in " ".join(repr(tuned).split())
    assert max(map(len, repr(tuned).splitlines())) <= 79  # on a terminal of eighty columns nothing is cut
    assert posterior.tune((TALL.inputs, TALL.held_out)).diagnostics.edge_of_range is None

"""What a record says of a posterior, by another route."""

import numpy as np
import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing import recording, records, report


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(90, 2, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval()
    return model, x, torch.stack([x[:, 0].sin(), x[:, 1]], 1) + 0.2 * noise


def test_layers_have_the_variance_that_their_own_weights_cause(problem):
    model, x, y = problem
    posterior = lw.fit(model, (x[:60], y[:60]), lw.Gaussian(0.2), prior=lw.Isotropic(1.0), draws=16)
    names = [name for name, _ in model.named_parameters()]
    jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x[:24],)))(
        dict(model.named_parameters())
    )
    own, start = {}, 0
    for name in names:
        flat = jacobian[name].reshape(48, -1).detach()
        draws = posterior.deviations[start : start + flat.shape[1]]
        start += flat.shape[1]
        layer = name.partition(".")[0]
        own[layer] = own.get(layer, 0) + flat @ draws
    variances = {layer: float(part.square().mean()) for layer, part in own.items()}
    found = recording.layers(posterior, x)
    assert [layer.name for layer in found] == ["0", "2"]
    for layer in found:
        assert layer.share == pytest.approx(variances[layer.name] / sum(variances.values()), rel=1e-8)


def test_what_the_others_say_of_a_training_point_is_what_a_refit_says(problem):
    model, x, y = problem
    options = {"prior": lw.Isotropic(1.0)}
    posterior = lw.fit(model, (x[:60], y[:60]), lw.Gaussian(0.2), **options)
    found = recording.influence(posterior, y[:60])
    rest = torch.arange(60) != 17
    without = lw.fit(model, (x[:60][rest], y[:60][rest]), lw.Gaussian(0.2), **options)
    expected = without.predict(x[17:18], mean="linear").mean[0, 0]
    assert found.predicted[17] == pytest.approx(float(expected), abs=1e-6)
    assert found.targets[17] == pytest.approx(float(y[17, 0]))
    assert found.leverage.sum() == pytest.approx(posterior.effective_dimension.value, rel=1e-6)


def test_evaluations_hold_what_predict_says(problem):
    model, x, y = problem
    posterior = lw.fit(model, (x[:60], y[:60]), lw.Gaussian())
    found = recording.evaluation("test", posterior, x[60:], y[60:])
    expected = posterior.predict(x[60:])
    assert np.allclose(found.method("lapwing").std, expected.std)
    assert np.allclose(found.method("MAP").std, expected.aleatoric_variance.sqrt())
    assert np.allclose(found.method("lapwing").scores["novelty"], expected.novelty.mean(1), atol=1e-6)
    record = recording.record("both", posterior, [found], inputs=x, targets=y[:60])
    assert record.solve.noise_std == pytest.approx([float(posterior.likelihood.noise_std)])
    assert record.solve.log_evidence.value == pytest.approx(sum(record.solve.evidence_parts.values()))
    assert record.curve.chosen == pytest.approx(float(posterior.curve.best_precision))
    assert report.page([record])


def test_several_labels_per_input_are_refused(problem):
    model, x, y = problem
    posterior = lw.fit(model, (x[:60], (y[:60] > 0).double()), lw.Bernoulli(), prior=lw.GPrior(1.0))
    with pytest.raises(ValueError, match="one label per input"):
        recording.evaluation("test", posterior, x[60:])


def test_batches_do_not_matter(problem, monkeypatch):
    model, x, y = problem
    posterior = lw.fit(model, (x[:60], (y[:60, 0] > 0).long()), lw.Categorical(), prior=lw.GPrior(1.0))
    whole, shares = recording.predict(posterior, x), []
    monkeypatch.setattr(recording, "BATCH", 7)
    parts = recording.predict(posterior, x, shares.append)
    assert np.allclose(whole.probs, parts.probs, atol=1e-12)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert isinstance(recording.record("classes", posterior), records.Record)

"""What a record says of a posterior, by another route."""

import numpy as np
import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.app import recording, records, report


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
        draws = posterior.gaussian.deviations[start : start + flat.shape[1]]
        start += flat.shape[1]
        layer = name.partition(".")[0]
        own[layer] = own.get(layer, 0) + flat @ draws
    variances = {layer: float(part.square().mean()) for layer, part in own.items()}
    found = recording.layers(posterior, x)
    assert [layer.name for layer in found] == ["0 (Linear)", "2 (Linear)"]
    for layer in found:
        assert layer.share == pytest.approx(variances[layer.name.split()[0]] / sum(variances.values()), rel=1e-8)


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
    assert np.allclose(found.method("raw network").std, expected.aleatoric_variance.sqrt())
    assert np.allclose(found.method("lapwing").scores["novelty"], expected.novelty, atol=1e-6)
    record = recording.record("both", posterior, [found], inputs=x[:60], targets=y[:60])
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


@pytest.mark.parametrize("total", [None, 180])
def test_leverages_of_class_labels_are_those_of_a_refit(problem, total):
    model, x, y = problem
    labels, options = (y[:60, 0] > 0.2).long(), {"prior": lw.Isotropic(2.0), "curvature": "network"}
    posterior = lw.fit(model, (x[:60], labels), lw.Categorical(), dataset_size=total, **options)
    found = recording.influence(posterior, labels)
    assert found.leverage.sum() == pytest.approx(posterior.effective_dimension.value, rel=1e-6)
    rest = torch.arange(60) != 17
    smaller = None if total is None else 177  # three copies of one datum less
    without = lw.fit(model, (x[:60][rest], labels[rest]), lw.Categorical(), dataset_size=smaller, **options)
    covariance = without.predict(x[17:18]).observation.spread.covariance[0]
    probs, count = model(x[17:18]).detach().softmax(1)[0], 1 if total is None else 3
    curvature = count * (torch.diag(probs) - torch.outer(probs, probs))
    inverse = torch.linalg.inv(torch.eye(2).double() + covariance @ curvature)
    assert found.leverage[17] == pytest.approx(float(torch.trace(inverse @ covariance @ curvature)), rel=1e-6)
    slope = count * (probs - torch.nn.functional.one_hot(labels[17], 2))
    logits = model(x[17:18]).detach()[0] + covariance @ slope
    left_out = posterior.leave_one_out(mean="network")
    torch.testing.assert_close(left_out.mean[17], logits, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(left_out.prediction.observation.spread.covariance[17], covariance, rtol=1e-6, atol=1e-9)
    assert found.log_density[17] == float(left_out.log_density[17])
    assert found.predicted[17] == int(logits.argmax())


def test_one_output_or_two_outputs_have_the_same_leverages(problem):
    _, x, y = problem
    labels = (y[:60, 0] > 0.2).long()
    with torch.random.fork_rng():
        one, two = nn.Linear(3, 1).double().eval(), nn.Linear(3, 2).double().eval()
    with torch.no_grad():
        for layer in (one, two):
            layer.weight.zero_()
            layer.bias.zero_()
        one.weight += torch.tensor([[1.0, -0.5, 0.2]]).double()
        two.weight[1] += one.weight[0]
    mask = torch.tensor([False] * 3 + [True] * 3 + [False, True])  # the second output's weights alone
    given = {"prior": lw.Isotropic(1.0), "curvature": "network"}
    single = lw.fit(one, (x[:60], labels[:, None].double()), lw.Bernoulli(), **given)
    double = lw.fit(two, (x[:60], labels), lw.Categorical(), select=mask, **given)
    first, second = (recording.influence(posterior, labels) for posterior in (single, double))
    assert np.allclose(first.leverage, second.leverage, rtol=1e-6)
    assert np.allclose(first.log_density, second.log_density, rtol=1e-6)


def test_flipped_labels_are_found():
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    x = torch.from_numpy(images[:250] / 16)
    labels = torch.from_numpy(truth[:250]).clone()
    flipped = torch.arange(5, 250, 25)
    labels[flipped] = (labels[flipped] + 3) % 10
    with torch.random.fork_rng():
        model = nn.Linear(64, 10).double()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=100)

    def loss():
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(model(x), labels, reduction="sum") + 0.5 * model.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    posterior = lw.fit(model.eval(), (x, labels), lw.Categorical(), prior=lw.Isotropic(1.0))
    found = recording.influence(posterior, labels)
    worst = set(np.argsort(found.log_density)[:10].tolist())
    assert len(worst & set(flipped.tolist())) >= 9
    assert (found.predicted[flipped] == truth[:250][flipped]).mean() >= 0.8


def test_a_mixture_of_classifiers_is_recorded_beside_its_networks_averaged():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    labels = (x @ torch.randn(3, 4, generator=generator, dtype=torch.float64)).argmax(1)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        models = [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double().eval() for _ in range(2)]
    posterior = lw.fit(
        models, (x[:25], labels[:25]), lw.Categorical(), validation=(x[25:40], labels[25:40]), draws=4, progress=False
    )  # fmt: skip
    test = recording.evaluation("test", posterior, x[40:], labels[40:])
    probs = torch.stack([model(x[40:]).detach().softmax(1) for model in models]).mean(0)
    np.testing.assert_allclose(
        test.method("networks averaged").probs, probs.numpy(), rtol=1e-6
    )  # records are in single precision
    heat = posterior.diagnostics.temperature_scaling["temperature"]
    scaled = torch.stack([(model(x[40:]) / heat).detach().softmax(1) for model in models]).mean(0)
    np.testing.assert_allclose(test.method("temperature scaling").probs, scaled.numpy(), rtol=1e-6)
    found = recording.record("classes", posterior, [test], inputs=x[:25], targets=labels[:25])
    assert found.network.chosen == 2 * 44
    assert sum(layer.share for layer in found.layers) == pytest.approx(1)
    assert found.influence.leverage.shape == (25,)
    assert "mean of the networks" in report.page([report.scored(found)])

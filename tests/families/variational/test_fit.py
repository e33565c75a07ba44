"""fit: the conjugate posterior, exact minibatch scaling, temperatures, resume, divergence, bad input."""

import copy
import math

import pytest
import torch
from torch import Generator, nn

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.families import variational
from lapwing.families.variational import Balanced, BayesByBackprop, Cold, NaturalGradient, fit
from lapwing.families.variational.fitting import _VariationalPlan
from lapwing.families.variational.mean_field import LOG_STD, MeanField
from lapwing.families.variational.temperature import Heat
from lapwing.network.shuffling import Source
from lapwing.training import Diverged
from tests.families.variational.problems import classes, mlp, normals, regression, seeded

QUIET = {"progress": False}


def falling(done):
    return (1 - done) ** 2


def conjugate(copies):
    """A linear model with orthogonal features, where the posterior has independent coordinates.

    Each datum is there several times and the temperature larger by as much: the same posterior, less gradient noise.
    """
    q, _ = torch.linalg.qr(normals(24, 3, seed=1))
    x = q * torch.tensor([2.0, 1.0, 4.0]).double()
    y = x @ normals(3, 2, seed=2) + 0.5 * normals(24, 2, seed=3)
    temperature, noise_std, prior_variance = 2.5, 0.5, 0.2
    precision = x.square().sum(0) / (temperature * noise_std**2) + 1 / prior_variance  # Σ x² / (η σ²) + 1 / s₀²
    mean = (x.mT @ y / (temperature * noise_std**2)).mT / precision
    return (x.repeat(copies, 1), y.repeat(copies, 1)), temperature * copies, mean, precision.rsqrt()


@pytest.mark.parametrize(
    "method", [BayesByBackprop(0.03), NaturalGradient("ivon", 0.2, curvature_decay=0.999, initial_curvature=1.0)]
)
def test_the_conjugate_posterior_is_found(method):
    """Noise at the layer is averaged over 24 × 400 data; IVON has one draw a step, so it averages over steps."""
    backprop = isinstance(method, BayesByBackprop)
    data, temperature, mean, std = conjugate(400 if backprop else 1)
    posterior = fit(
        seeded(lambda: nn.Linear(3, 2, bias=False)), data, Gaussian(0.5), temperature=temperature, method=method,
        epochs=400 if backprop else 4000, batch_size=len(data[0]), schedule=falling, **QUIET,
    )  # fmt: skip
    tolerance = 0.01 if backprop else 0.1
    assert ((posterior.values["weight"] - mean) / std).abs().max() < tolerance
    assert (posterior.values["weight" + LOG_STD].exp() / std - 1).abs().max() < tolerance


def plan_for(model, data, likelihood, samples=1, dataset_size=None):
    source = Source.of(data)
    network = MeanField.of(model, data[0])
    return _VariationalPlan(
        network, source, likelihood, BayesByBackprop(0.0), 1, 7, samples, dataset_size or source.size, None, 2, 0
    ), network  # fmt: skip


@pytest.mark.parametrize("total", [None, 90])
def test_batches_give_an_unbiased_estimate_of_the_whole(total):
    """−ELBO / p. Losses of batches, weighted by their data, average to the loss of all, whatever the batches.

    Standard deviations of e⁻³⁰ leave no noise, so the average is exact; the formula is written out beside it.
    """
    x, y = regression(30)
    plan, network = plan_for(mlp(), (x, y), Gaussian(0.3), dataset_size=total)
    values, heat, generator = network.start(math.exp(-30)), Heat(1.7, 30), Generator().manual_seed(0)
    learner = plan._learner(values, heat)
    whole = learner.step(x, y, generator, 0.0)
    for size in (1, 4, 7):
        batches = [
            (len(a), learner.step(a, b, generator, 0.0)) for a, b in zip(x.split(size), y.split(size), strict=True)
        ]
        assert sum(count * value for count, value in batches) / 30 == pytest.approx(whole, rel=1e-12)
    log_prob = torch.distributions.Normal(mlp()(x), 0.3).log_prob(y).sum()
    elbo_per_datum = log_prob / 30 - 1.7 * network.divergence(values) / (total or 30)
    assert whole == pytest.approx(-float(elbo_per_datum.detach()), rel=1e-12)


def test_the_stochastic_elbo_is_unbiased_with_noise_at_the_layers_and_in_the_weights():
    """Both ways to draw noise have the same mean loss, within three standard errors of each other, and of elbo()."""
    x, y = regression(30)
    posterior = fit(mlp(), (x, y), Gaussian(0.3), temperature=1.0, epochs=30, initial_std=0.3, **QUIET)
    found = []
    for local in ("exact", "nowhere"):
        plan = _VariationalPlan(
            posterior.network, Source.of((x, y)), Gaussian(0.3), BayesByBackprop(0.0, local), 1, 30, 1, 30, None, 2, 0
        )
        learner, generator = plan._learner(posterior.values, Heat(1.0, 30)), Generator().manual_seed(1)
        values = -30 * torch.tensor([learner.step(x, y, generator, 0.0) for _ in range(800)]).double()
        found.append((float(values.mean()), float(values.std()) / 800**0.5))
    elbo = posterior.elbo((x, y), draws=1000).value
    found.append((elbo.value, elbo.standard_error))
    for (one, error), (other, other_error) in zip(found, [*found[1:], found[0]], strict=True):
        assert abs(one - other) < 3 * math.hypot(error, other_error)
    assert found[0][1] < found[1][1]  # and less noise at the layers, which is why


def test_the_elbo_has_its_parts():
    x, y = classes()
    posterior = fit(mlp(3, 5, 4), (x, y), Categorical(), temperature=0.5, epochs=2, **QUIET)
    elbo = posterior.elbo((x, y), draws=50)
    functions = posterior.functions(x)
    terms = functions.log_softmax(2).gather(2, y.expand(50, -1)[:, :, None])[:, :, 0]  # (draws, n)
    log_prob = terms.sum(1)
    assert elbo.log_likelihood.value == pytest.approx(float(log_prob.mean()), rel=1e-12)
    assert elbo.log_likelihood.standard_error == pytest.approx(float(log_prob.std()) / 50**0.5, rel=1e-12)
    assert elbo.divergence == pytest.approx(posterior.divergence)
    assert elbo.value.value == pytest.approx(elbo.log_likelihood.value - 0.5 * elbo.divergence)
    half = posterior.elbo((x[:20], y[:20]), draws=50)  # each datum of a part counts for those that are left out
    assert half.log_likelihood.value == pytest.approx(2 * float(terms[:, :20].sum(1).mean()), rel=1e-12)


def test_the_model_and_its_gradients_are_untouched():
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)))
    model.eval()
    before = copy.deepcopy(model.state_dict())
    posterior = fit(model, regression(), Gaussian(0.3), temperature=Cold(0.1), epochs=2, batch_size=7, **QUIET)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert not model.training
    assert all(weight.grad is None for weight in model.parameters())
    assert posterior.values["1.num_batches_tracked"] == 2 * 5
    assert not torch.equal(posterior.values["1.running_mean"], before["1.running_mean"])
    assert not torch.equal(posterior.values["1.weight"], before["1.weight"])  # learnt, though not random
    x = regression()[0]
    assert torch.equal(posterior.functions(x)[:, :4], posterior.functions(x[:4]))  # eval mode: no batch mates


@pytest.mark.parametrize(("local", "norm"), [("exact", nn.Identity), ("everywhere", lambda: nn.BatchNorm2d(8))])
def test_a_convolutional_classifier_learns_digits(local, norm):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = seeded(lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )).float()  # fmt: skip
    posterior = fit(
        model, (x[:1200], y[:1200]), Categorical(), temperature=0.1, epochs=8, batch_size=32,
        method=BayesByBackprop(0.01, local), draws=20, **QUIET,
    )  # fmt: skip
    assert posterior.network.exact == {"5.weight", "5.bias"}
    assert posterior.network.approximate == {"0.weight", "0.bias"}
    scores = variational.held_out(posterior, (x[1200:], y[1200:]))
    assert scores["accuracy"] > 0.9
    assert scores["nll"] < scores["gibbs_nll"]  # Jensen


def test_several_samples_give_less_gradient_noise():
    x, y = regression()
    spread = []
    for samples in (1, 16):
        plan, network = plan_for(mlp(), (x, y), Gaussian(0.3), samples)
        values, generator = network.start(0.3), Generator().manual_seed(0)
        learner = plan._learner(values, Heat(1.0, 30))
        spread.append(float(torch.tensor([learner.step(x, y, generator, 0.0) for _ in range(200)]).var()))
    assert spread[0] / spread[1] == pytest.approx(16, rel=5 * math.hypot(2**0.5, 2**0.5) / 200**0.5)


def test_a_fit_can_start_where_another_ended():
    data = regression()
    first = fit(mlp(), data, Gaussian(0.3), temperature=1.0, epochs=3, **QUIET)
    again = fit(
        mlp(), data, Gaussian(0.3), temperature=1.0, epochs=1, start=first, method=BayesByBackprop(1e-12), **QUIET
    )
    assert all(torch.allclose(again.values[name], value, atol=1e-10) for name, value in first.values.items())
    with pytest.raises(ValueError, match="start is a fit of another network"):
        fit(mlp(3, 6), data, Gaussian(0.3), temperature=1.0, epochs=1, start=first)


def test_the_noise_is_learnt_where_it_is_not_given():
    """At the optimum σ² is the mean of E (y − f)²; here of a fit with next to no noise in the weights."""
    data, _, _, _ = conjugate(20)
    posterior = fit(
        seeded(lambda: nn.Linear(3, 2, bias=False)), data, Gaussian(), temperature=1.0, prior_variance=10.0,
        epochs=600, batch_size=480, method=BayesByBackprop(0.03), schedule=falling, **QUIET,
    )  # fmt: skip
    residual = (posterior.functions(data[0], 400) - data[1]).square().mean().sqrt()
    assert float(posterior.likelihood.noise_std) == pytest.approx(float(residual), rel=0.01)
    assert float(posterior.predict(data[0]).aleatoric_variance[0, 0]) == pytest.approx(float(residual) ** 2, rel=0.02)


@pytest.mark.parametrize("method", [BayesByBackprop(), NaturalGradient("ivon"), NaturalGradient("vogn")])
def test_an_interrupted_fit_resumes_to_the_same_curve(tmp_path, method):
    class Killed(Exception):
        pass

    def kill(phase):
        if phase.startswith("epoch 3"):
            raise Killed

    path = tmp_path / "fit.pt"
    arguments = {"temperature": 0.3, "epochs": 6, "batch_size": 7, "method": method, "seed": 4}
    whole = fit(mlp(), regression(), Gaussian(0.3), **arguments, **QUIET)
    with pytest.raises(Killed):
        fit(mlp(), regression(), Gaussian(0.3), checkpoint=path, progress=kill, **arguments)
    shown = []
    resumed = fit(mlp(), regression(), Gaussian(0.3), checkpoint=path, progress=shown.append, **arguments)
    assert shown[0].startswith("epoch 4 of 6")
    assert resumed.curve == whole.curve
    assert all(torch.equal(resumed.values[name], value) for name, value in whole.values.items())
    with pytest.raises(ValueError, match="of another run: temperature differ"):
        fit(mlp(), regression(), Gaussian(0.3), checkpoint=path, **{**arguments, "temperature": 0.4})


@pytest.mark.parametrize("method", [BayesByBackprop(), NaturalGradient("ivon"), NaturalGradient("vogn")])
def test_a_loss_that_becomes_nan_stops_at_its_step_with_the_last_good_state(method):
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = mlp(), []

        def forward(self, x):
            self.calls.append(1)
            return self.inner(x) * (math.nan if len(x) == 2 else 1.0)  # the last batch of an epoch

    with pytest.raises(Diverged, match=r"became nan at step 5, in epoch 1: .* after epoch 0 are in last_good") as error:
        fit(Breaks(), regression(30), Gaussian(0.3), temperature=1.0, epochs=2, batch_size=7, method=method, **QUIET)
    assert torch.equal(error.value.last_good["inner.0.weight"], mlp()[0].weight)


TEMPERATURES = {
    "balanced, hidden units": (Balanced(0.2), 0.2 * 30 / 5, 5),
    "balanced, weights": (Balanced(0.2, "weights"), 0.2 * 30 / 32, 32),
    "balanced, a number": (Balanced(0.2, 11), 0.2 * 30 / 11, 11),
    "cold": (Cold(0.1), 0.1, None),
    "a number": (3.0, 3.0, None),
}


@pytest.mark.parametrize(("temperature", "eta", "units"), TEMPERATURES.values(), ids=TEMPERATURES)
def test_the_temperature_is_what_the_rule_says_and_is_reported(temperature, eta, units):
    posterior = fit(mlp(), regression(30), Gaussian(0.3), temperature=temperature, epochs=1, **QUIET)
    assert posterior.heat.eta == pytest.approx(eta)
    assert posterior.diagnostics["temperature"] == posterior.heat.eta
    assert posterior.diagnostics["units"] == units
    assert posterior.diagnostics["random_weights"] == 32


def test_tau_is_tuned_on_held_out_data(monkeypatch):
    monkeypatch.setattr("lapwing.families.variational.fitting.TAUS", (1e-3, 1e3))
    x, y = classes(120)
    posterior = fit(
        mlp(3, 5, 4), (x[:80], y[:80]), Categorical(), epochs=40, batch_size=16, method=BayesByBackprop(0.03),
        validation=(x[80:], y[80:]), **QUIET,
    )  # fmt: skip
    assert posterior.heat.tau == 1e-3
    assert [tau for tau, _ in posterior.tuning] == [1e-3, 1e3]
    scores = dict(posterior.tuning)
    assert scores[1e-3] == pytest.approx(variational.held_out(posterior, (x[80:], y[80:]))["nll"])
    assert scores[1e-3] < scores[1e3]
    assert posterior.diagnostics["tau_at_the_edge_of_the_grid"]


DEEP = lambda: seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))  # noqa: E731
BAD = {
    "tau": (lambda: fit(mlp(), regression(), Gaussian(0.3), temperature=Balanced(0.0), epochs=1), "tau is 0.0, expected a positive number"),
    "negative tau": (lambda: Balanced(-1.0), "tau is -1.0, expected a positive number"),
    "NaN tau": (lambda: Balanced(math.nan), "tau is nan, expected a positive number"),
    "units": (lambda: Balanced(1.0, 0), "units is 0, expected a positive number"),
    "units by a wrong name": (lambda: Balanced(1.0, "neurons"), "units is 'neurons', expected a positive number, 'hidden' or 'weights'"),
    "ambiguous N": (
        lambda: fit(DEEP(), regression(), Gaussian(0.3), temperature=Balanced(1.0), epochs=1),
        "the N of η = τ p / N is ambiguous: .* units='weights'. for its 53 random weights",
    ),
    "hidden units of a deep network": (
        lambda: fit(DEEP(), regression(), Gaussian(0.3), temperature=Balanced(1.0, "hidden"), epochs=1), "is ambiguous"
    ),
    "ambiguous before validation": (lambda: fit(DEEP(), regression(), Gaussian(0.3), epochs=1), "is ambiguous"),
    "no validation": (lambda: fit(mlp(), regression(), Gaussian(0.3), epochs=1), "pass validation=.x, y., or Balanced"),
    "too hot": (lambda: Cold(1.5), "eta is 1.5, expected a number above 0 and at most 1"),
    "zero": (lambda: fit(mlp(), regression(), Gaussian(0.3), temperature=0, epochs=1), "temperature is 0, expected a positive"),
    "prior variance": (
        lambda: fit(mlp(), regression(), Gaussian(0.3), temperature=1.0, prior_variance=0.0, epochs=1),
        "prior_variance is 0.0, expected a positive number",
    ),
    "nothing trainable": (
        lambda: fit(mlp().requires_grad_(False), regression(), Gaussian(0.3), temperature=1.0, epochs=1), "no weight is random"
    ),
    "samples": (lambda: fit(mlp(), regression(), Gaussian(0.3), temperature=1.0, samples=0, epochs=1), "samples is 0 and draws 50"),
    "initial std": (
        lambda: fit(mlp(), regression(), Gaussian(0.3), temperature=1.0, initial_std=-1.0, epochs=1), "initial_std is -1.0"
    ),
    "dataset size": (lambda: fit(mlp(), regression(), Gaussian(0.3), temperature=1.0, dataset_size=3, epochs=1), "dataset_size is 3, less than the 30"),
    "noise by natural gradients": (
        lambda: fit(mlp(), regression(), Gaussian(), temperature=1.0, method=NaturalGradient(), epochs=1), "given noise_std"
    ),
    "batch normalisation by VOGN": (
        lambda: fit(
            seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))), regression(), Gaussian(0.3),
            temperature=1.0, method=NaturalGradient("vogn"), epochs=1,
        ),
        "VOGN needs the gradients of single data",
    ),
    "local": (lambda: BayesByBackprop(local="always"), "local is 'always', expected 'exact', 'everywhere' or 'nowhere'"),
    "method": (lambda: NaturalGradient("adam"), "kind is 'adam', expected 'ivon' or 'vogn'"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_binary_labels_with_one_output():
    x, y = classes(60)
    y = (y > 1).double()
    posterior = fit(
        mlp(3, 5, 1),
        (x, y),
        Bernoulli(),
        temperature=0.1,
        epochs=60,
        batch_size=10,
        method=BayesByBackprop(0.03),
        **QUIET,
    )
    scores = variational.held_out(posterior, (x, y))
    assert scores["accuracy"] > 0.85
    chance = posterior.functions(x).sigmoid()[:, :, 0]
    nll = -torch.where(y.bool(), chance.mean(0), 1 - chance.mean(0)).log().mean()
    assert scores["nll"] == pytest.approx(float(nll), rel=1e-12)

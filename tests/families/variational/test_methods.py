"""IVON and VOGN: their updates by hand, weights put back, and the ELBO they reach against Bayes by Backprop."""

import pytest
import torch
from torch import Generator, nn

from lapwing.bayes.likelihoods import Categorical, Gaussian
from lapwing.families.variational import IVON, VOGN, BayesByBackprop, NaturalGradient, fit
from lapwing.families.variational.methods import Natural
from tests.families.variational.problems import Scaled, mlp, normals, regression, seeded


def parameters():
    return [normals(3, 2, seed=1).requires_grad_(), normals(4, seed=2).requires_grad_()]


def test_one_step_of_ivon_by_hand():
    """Mean, curvature and momentum after two steps, written out for numbers."""
    weights = parameters()
    optimiser = IVON(
        weights, lr=0.1, ess=40.0, prior_precision=5.0, momentum=0.8, curvature_decay=0.9, initial_curvature=0.5
    )
    means = [weight.detach().clone() for weight in weights]
    h = [torch.full_like(mean, 0.5) for mean in means]
    g = [torch.zeros_like(mean) for mean in means]
    delta = 5.0 / 40.0
    for step in (1, 2):
        with optimiser.sampled(Generator().manual_seed(step)):
            drawn = [weight.detach().clone() for weight in weights]
            sum(weight.square().sum() * (index + 1) for index, weight in enumerate(weights)).backward()
        generator = Generator().manual_seed(step)
        for index, mean in enumerate(means):
            variance = 1 / (40.0 * (h[index] + delta))
            noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64) * variance.sqrt()
            assert torch.allclose(drawn[index], mean + noise, rtol=1e-14)
            gradient = 2 * (index + 1) * (mean + noise)
            estimate = gradient * noise / variance
            g[index] = 0.8 * g[index] + 0.2 * gradient
            h[index] = 0.9 * h[index] + 0.1 * estimate + 0.5 * 0.1**2 * (h[index] - estimate) ** 2 / (h[index] + delta)
            means[index] = mean - 0.1 * (g[index] / (1 - 0.8**step) + delta * mean) / (h[index] + delta)
        optimiser.step()
        for index, weight in enumerate(weights):
            assert torch.allclose(weight, means[index], rtol=1e-13)
            assert torch.allclose(optimiser.variance(weight), 1 / (40.0 * h[index] + 5.0), rtol=1e-13)


def test_ivon_keeps_its_variance_positive_where_the_curvature_is_negative():
    weight = normals(50, seed=3).requires_grad_()
    optimiser = IVON([weight], lr=1e-6, ess=10.0, prior_precision=1.0, curvature_decay=0.5)
    generator = Generator().manual_seed(0)
    for _ in range(200):
        with optimiser.sampled(generator):
            (-weight.square().sum()).backward()
        optimiser.step()
        assert (optimiser.variance(weight) > 0).all()


def test_drawn_weights_are_put_back_when_the_loss_raises():
    weights = parameters()
    before = [weight.detach().clone() for weight in weights]
    optimiser = IVON(weights, lr=0.1, ess=40.0, prior_precision=5.0)

    def raising():
        with optimiser.sampled(Generator().manual_seed(0)):
            assert not torch.equal(weights[0], before[0])
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        raising()
    assert all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True))


def test_vogn_squares_are_those_of_single_data():
    model, (x, y) = mlp(), regression(7)
    names = tuple(name for name, _ in model.named_parameters())
    start = {name: weight.detach() for name, weight in model.named_parameters()}

    def energy(weights, inputs, targets):
        return (torch.func.functional_call(model, weights, (inputs,)) - targets).square().sum() / len(inputs)

    learner = Natural(
        None, energy, start, names, list(names), NaturalGradient("vogn"), ess=9.0, prior_precision=5.0, schedule=None
    )
    squares = learner._squares(x, y)
    by_hand = {name: torch.zeros_like(weight) for name, weight in start.items()}
    for datum, target in zip(x, y, strict=True):
        loss = (model(datum[None]) - target).square().sum()
        for name, gradient in zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            by_hand[name] += gradient.square() / 7
    assert all(torch.allclose(squares[learner.current[name]], by_hand[name], rtol=1e-12) for name in names)
    assert isinstance(learner.natural, VOGN)


def test_ivon_in_a_fit_is_the_optimiser_where_noise_is_in_the_weights():
    """Twice the gradient by the variance is the optimiser's own estimate of the curvature."""
    model, (x, y) = mlp(), regression(30)
    method = NaturalGradient("ivon", 0.1, local="nowhere")
    found = fit(model, (x, y), Gaussian(0.3), temperature=0.5, method=method, epochs=3, batch_size=30, progress=False)
    weights = dict(model.named_parameters())
    optimiser = IVON(
        list(weights.values()), lr=0.1, ess=60.0, prior_precision=5.0, curvature_decay=0.98, initial_curvature=0.02
    )
    generator = Generator().manual_seed(0)
    for _ in range(3):
        rows = torch.randperm(30, generator=generator)
        with optimiser.sampled(generator):
            (-torch.distributions.Normal(model(x[rows]), 0.3).log_prob(y[rows]).sum() / 30).backward()
        optimiser.step()
    for name, weight in weights.items():
        assert torch.allclose(found.values[name], weight, rtol=1e-10)
        assert torch.allclose((2 * found.values[name + ":log_std"]).exp(), optimiser.variance(weight), rtol=1e-10)


def test_several_draws_before_a_step_are_averaged():
    weight = normals(4, seed=5).requires_grad_()
    optimiser = IVON(
        [weight], lr=0.1, ess=10.0, prior_precision=1.0, momentum=0.0, curvature_decay=0.0, initial_curvature=1.0
    )
    mean, variance, gradients, curvatures = weight.detach().clone(), 1 / 11, [], []
    for seed in range(3):
        with optimiser.sampled(Generator().manual_seed(seed)):
            gradients.append(3 * weight.detach() ** 2)
            curvatures.append(gradients[-1] * (weight.detach() - mean) / variance)
            weight.pow(3).sum().backward()
        assert torch.equal(weight, mean)
    optimiser.step()
    gradient, estimate = sum(gradients) / 3, sum(curvatures) / 3
    h = estimate + 0.5 * (1 - estimate) ** 2 / 1.1
    assert torch.allclose(weight, mean - 0.1 * (gradient + 0.1 * mean) / (h + 0.1), rtol=1e-10)


def test_ess_is_data_over_temperature():
    """With no data term the variance is the prior's; with curvature h it is 1 / (ess h + 1 / prior variance)."""
    method = NaturalGradient("ivon", learning_rate=1e-12, curvature_decay=1.0, initial_curvature=0.3)
    posterior = fit(mlp(), regression(30), Gaussian(0.3), temperature=0.5, method=method, epochs=1, progress=False)
    expected = 1 / (30 / 0.5 * 0.3 + 1 / 0.2)
    assert torch.allclose((2 * posterior.values["0.weight:log_std"]).exp(), torch.tensor(expected).double(), rtol=1e-6)


@pytest.mark.parametrize("name", ["lr", "ess", "prior_precision", "initial_curvature"])
def test_bad_settings_are_refused(name):
    settings = {"lr": 0.1, "ess": 1.0, "prior_precision": 1.0, "initial_curvature": 1.0, name: 0.0}
    with pytest.raises(ValueError, match=f"{name} is 0.0, expected a positive number"):
        IVON(parameters(), **settings)


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def falling(done):
    return 1 - done


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "samples"), [("vogn", 1), ("ivon", 8)])
def test_natural_gradients_reach_the_elbo_of_backprop_in_half_the_epochs(digits, kind, samples):
    """At a learning rate of 0.03 for Adam. (At 0.1, near its edge, 20 epochs of Adam get further than 10 of either.)"""
    model = seeded(lambda: nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10)), 0).float()
    options = {"schedule": falling, "temperature": 0.1, "batch_size": 32, "progress": False}
    backprop = fit(model, digits, Categorical(), epochs=20, method=BayesByBackprop(0.03), **options)
    natural = fit(model, digits, Categorical(), epochs=10, method=NaturalGradient(kind), samples=samples, **options)
    ours, theirs = (posterior.elbo(digits, draws=30).value for posterior in (natural, backprop))
    assert ours.value > theirs.value - 3 * (ours.standard_error**2 + theirs.standard_error**2) ** 0.5


@pytest.mark.slow
def test_digits_collapse_at_temperature_one_and_not_when_balanced(digits):
    """Accuracy at η = 1 falls with the width; the best τ is the same within one step of the grid."""
    from lapwing.families.variational import held_out, tune_temperature

    x, y = digits
    train, validation = (x[:1200], y[:1200]), (x[1200:], y[1200:])
    widths, taus = (64, 256, 1024), (1e-5, 1e-4, 1e-3, 1e-2)
    options = {"epochs": 15, "batch_size": 32, "method": BayesByBackprop(0.02), "draws": 20, "schedule": falling}

    def model(hidden):
        return seeded(lambda: Scaled(64, hidden, 10), 3).float()

    models = {str(hidden): model(hidden) for hidden in widths}
    sweep = tune_temperature(models, train, Categorical(), validation=validation, taus=taus, progress=False, **options)
    best = [taus.index(sweep.best(name)) for name in models]
    assert max(best) - min(best) <= 1
    assert min(best) > 0
    assert max(best) < len(taus) - 1
    at_one = [
        held_out(fit(model(hidden), train, Categorical(), temperature=1.0, progress=False, **options), validation)
        for hidden in (4, 16, 64, 256)
    ]
    accuracy, nll = ([scores[name] for scores in at_one] for name in ("accuracy", "nll"))
    assert min(accuracy[:2]) > 0.5
    assert max(accuracy[2:]) < 0.2
    assert nll[0] < nll[1] < min(nll[2:])
    assert at_one[-1]["confidence"] == pytest.approx(0.1, abs=0.01)
    nlls = [min(cell["nll"] for cell in sweep.cells if cell["network"] == name) for name in models]
    assert max(nlls) < 0.4

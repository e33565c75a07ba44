"""Exact moments, and the theory of wide mean-field networks."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import erf
from scipy.stats import norm

from lapwing.families.variational.theory import (
    Neurons,
    balanced,
    elbo,
    erf_moments,
    flow,
    gap,
    gap_bound,
    limit,
    optimise,
    relu_moments,
)  # fmt: skip

WIDTHS = (8, 32, 128, 512, 2048)


def regression():
    """20 points of sin(1.5 x) + ½ on [−2, 2], with a constant as second input."""
    x = torch.linspace(-2, 2, 20, dtype=torch.float64)
    return torch.stack([x, torch.ones_like(x)], 1), torch.sin(1.5 * x) + 0.5


def some_neurons(count=5, inputs=3, activation="relu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean, log_std = (torch.randn(count, 1 + inputs, generator=generator, dtype=torch.float64) for _ in range(2))
    return Neurons(mean, 0.3 * log_std - 0.5, 0.4, activation)


def some_data(n=7, inputs=3):
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    return x, x[:, 0] - x[:, 1].square()


@pytest.mark.parametrize(("moments", "function"), [(relu_moments, lambda u: np.maximum(u, 0)), (erf_moments, erf)])
@pytest.mark.parametrize(("location", "spread"), [(0.3, 0.7), (-2.0, 0.4), (1.5, 2.5), (0.0, 1.0)])
def test_moments_are_those_of_quadrature(moments, function, location, spread):
    ours = moments(*torch.tensor([location, spread], dtype=torch.float64))
    for power, value in enumerate(ours, start=1):
        integrand = lambda u, power=power: function(u) ** power * norm.pdf(u, location, spread)  # noqa: E731
        truth = quad(integrand, location - 12 * spread, location + 12 * spread, points=[0.0], limit=200)[0]
        assert float(value) == pytest.approx(truth, abs=1e-9)  # the error that quad promises


@pytest.mark.parametrize("moments", [relu_moments, erf_moments])
def test_moments_have_the_right_gradients(moments):
    location = torch.tensor([0.3, -1.0, 2.0]).double().requires_grad_()
    spread = torch.tensor([0.7, 0.4, 1.5]).double().requires_grad_()
    assert torch.autograd.gradcheck(moments, (location, spread))


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_expected_loss_and_divergence_agree_with_draws(activation, generator):
    """The exact ELBO lies within three standard errors of one from draws of the weights."""
    neurons, (x, y) = some_neurons(activation=activation), some_data()
    draws, std = 100_000, neurons.log_std.exp()
    w = neurons.mean + std * torch.randn(draws, *neurons.mean.shape, generator=generator, dtype=torch.float64)
    act = torch.relu if activation == "relu" else torch.erf
    f = (w[:, None, :, 0] * act(torch.einsum("ni,dji->dnj", x, w[:, :, 1:]))).mean(2)
    normal = torch.distributions.Normal
    terms = -0.5 * (y - f).square().sum(1)
    sampled_kl = (normal(neurons.mean, std).log_prob(w) - normal(0, math.sqrt(0.4)).log_prob(w)).sum((1, 2))
    values = terms - 2.0 * sampled_kl
    assert abs(float(elbo(neurons, x, y, 2.0)) - float(values.mean())) < 3 * float(values.std()) / draws**0.5
    kl = torch.distributions.kl_divergence(normal(neurons.mean, std), normal(torch.zeros(4).double(), math.sqrt(0.4)))
    assert torch.allclose(neurons.divergence(), kl.sum(1), rtol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_the_gap_is_its_formula_and_within_the_bound(activation):
    """For every width: ELBO − F̃ = −(1/2N) Σ v̄, at most C p / N with a C that knows nothing of N."""
    x, y = some_data()
    for count in (2, 9, 40):
        neurons = some_neurons(count, activation=activation)
        difference = elbo(neurons, x, y, 0.7) - limit(neurons, x, y, 0.7)
        assert abs(float(difference - gap(neurons, x))) < 1e-8
        assert float(difference.abs()) <= float(gap_bound(x, neurons))


def test_the_balanced_functional_does_not_know_how_many_neurons_there_are():
    neurons, (x, y) = some_neurons(), some_data()
    twice = Neurons(neurons.mean.repeat(2, 1), neurons.log_std.repeat(2, 1), 0.4)
    assert float(balanced(twice, x, y, 0.3)) == pytest.approx(float(balanced(neurons, x, y, 0.3)), rel=1e-13)
    for some in (neurons, twice):
        eta = 0.3 * len(x) / len(some.mean)
        assert float(limit(some, x, y, eta)) / len(x) == pytest.approx(float(balanced(some, x, y, 0.3)), rel=1e-13)


def optimum(count, temperature):
    x, y = regression()
    start = Neurons.random(count, 2, torch.Generator().manual_seed(0))
    return optimise(start, x, y, temperature)


def test_at_temperature_one_the_posterior_collapses_to_the_prior():
    """The total divergence falls as 1/N, and the fit with it."""
    x, y = regression()
    found = [optimum(count, 1.0) for count in WIDTHS]
    divergence = [float(neurons.divergence().sum()) for neurons in found]
    assert [round(value, 4) for value in divergence] == [0.0931, 0.0226, 0.0057, 0.0014, 0.0004]
    slope = np.polyfit(np.log(WIDTHS), np.log(divergence), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)
    rms = [float(neurons.moments(x)[0].mean(1).square().mean().sqrt()) for neurons in found]
    assert rms[0] == pytest.approx(0.019, abs=5e-4)
    assert rms[-1] < 1e-4
    null = float(0.5 * y.square().sum())
    assert null == pytest.approx(7.474, abs=5e-4)
    assert float(found[-1].expected_loss(x, y)) == pytest.approx(null, abs=1e-3)


def test_balanced_the_divergence_of_a_neuron_stays_the_same():
    """At η = 0.01 p / N a neuron learns as much at every width, and the data are fitted at every width.

    The reference figures, 3.93, 3.74, 3.68, tending to 3.673 with a loss of 1.661, are near the maximum; a maximum has no smaller ELBO.
    """
    x, y = regression()
    widths = WIDTHS[:3]
    found = [optimum(count, 0.01 * 20 / count) for count in widths]
    per_neuron = [float(neurons.divergence().mean()) for neurons in found]
    assert per_neuron == pytest.approx([3.797, 3.734, 3.662], abs=1e-3)
    for neurons, reference in zip(found, (3.93, 3.74, 3.68), strict=True):
        assert float(neurons.divergence().mean()) == pytest.approx(reference, rel=0.04)
        objective = float(neurons.limiting_loss(x, y)) / 20 + 0.01 * float(neurons.divergence().mean())
        assert objective < 1.661 / 20 + 0.01 * reference
    assert float(found[-1].expected_loss(x, y)) < 1.661


def test_the_maximum_does_not_depend_on_the_start():
    x, y = regression()
    values = []
    for seed in range(3):
        start = Neurons.random(8, 2, torch.Generator().manual_seed(seed))
        values.append(float(elbo(optimise(start, x, y, 0.025), x, y, 0.025)))
    assert values == pytest.approx([values[0]] * 3, abs=1e-7)


def test_the_flow_climbs_the_balanced_functional_and_gets_near_the_optimum():
    x, y = regression()
    start = Neurons.random(64, 2, torch.Generator().manual_seed(1))
    end, curve = flow(start, x, y, 0.01, step=0.25, steps=600)
    assert (curve.diff() > -1e-12).all()
    assert float(curve[-1]) == pytest.approx(float(balanced(end, x, y, 0.01)))
    best = float(balanced(optimum(64, 0.01 * 20 / 64), x, y, 0.01))
    assert abs(best - float(curve[-1])) < 0.02 * (best - float(curve[0]))


def test_bad_neurons_are_refused():
    with pytest.raises(ValueError, match=r"expected both to be \(neurons, 1 \+ inputs\)"):
        Neurons(torch.zeros(3, 2), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="prior_variance is 0.0, expected a positive number"):
        Neurons.prior(3, 2, prior_variance=0.0)
    with pytest.raises(ValueError, match="activation is 'tanh', expected 'relu' or 'erf'"):
        Neurons.prior(3, 2, activation="tanh")
    x, y = regression()
    with pytest.raises(FloatingPointError, match="not at its maximum after 3 steps"):
        optimise(Neurons.random(8, 2, torch.Generator().manual_seed(0)), x, y, 0.025, max_steps=3)

"""The network at drawn weights, as a baseline: what it is, and that it is worse where the tutorial says so."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import lapwing as lw
from lapwing.families.sampled import Sampled
from lapwing.training import adam, train
from tests.network.networks import NETWORKS


def at_draws(model, posterior, x, mask=None):
    """The network with w̄ + z written into its weights, one draw after another."""
    flat = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    found = []
    for change in posterior.gaussian.deviations.mT:
        whole = flat.clone()
        if mask is None:
            whole = whole + change
        else:
            whole[mask] += change
        parts = whole.split([shape.numel() for shape in shapes.values()])
        weights = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        found.append(functional_call(model, weights, (x,)))
    return torch.stack(found).detach()


@pytest.mark.parametrize("name", ["mlp", "residual"])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_network_at_its_weights_plus_each_draw(name, masked):
    model, x = NETWORKS[name]()
    y = model(x).detach().flip(0)
    size = sum(weight.numel() for weight in model.parameters())
    mask = torch.arange(size) % 2 == 0 if masked else None
    posterior = lw.fit(model, (x, y), lw.Gaussian(0.3), prior=lw.Isotropic(3.0), select=mask, draws=5)
    found = posterior.predict_unlinearised(x)
    truth = at_draws(model, posterior, x, mask)
    torch.testing.assert_close(found.draws, truth)
    torch.testing.assert_close(Sampled(posterior).functions(x), truth)
    torch.testing.assert_close(found.mean, truth.mean(0))
    torch.testing.assert_close(found.epistemic_variance, truth.var(0))
    torch.testing.assert_close(found.variance, truth.var(0) + 0.09)


def test_probabilities_are_averages_over_the_networks():
    model, x = NETWORKS["mlp"]()
    y = torch.arange(len(x)) % 2
    posterior = lw.fit(model, (x, y), lw.Categorical(), prior=lw.Isotropic(1.0), draws=6)
    found = posterior.predict_unlinearised(x)
    torch.testing.assert_close(found.probs, at_draws(model, posterior, x).softmax(-1).mean(0))
    with pytest.raises(ValueError, match="no aleatoric variance"):
        _ = found.aleatoric_variance


def test_with_a_tight_posterior_both_predictives_agree():
    model, x = NETWORKS["mlp"]()
    y = model(x).detach()
    posterior = lw.fit(model, (x, y), lw.Gaussian(1.0), prior=lw.Isotropic(1e8), draws=50)
    linear, own = posterior.predict(x), posterior.predict_unlinearised(x)
    torch.testing.assert_close(own.draws, linear.draws, rtol=0, atol=1e-6)


def test_in_a_gap_the_network_at_drawn_weights_fails_and_the_linear_one_does_not():
    """2 × 50 tanh units, data with a gap."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-2, -0.7, 40), torch.linspace(0.7, 2, 40)]).double()[:, None]
    y = torch.sin(2.5 * x) + 0.1 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1)).double()
    model = train(
        model,
        (x, y),
        lw.Gaussian(0.1),
        epochs=600,
        batch_size=80,
        prior_precision=0.1,
        optimiser=adam(0.01),
        progress=False,
    )
    posterior = lw.fit(model, (x, y), lw.Gaussian(0.1), prior=lw.Isotropic(0.1), draws=32)
    linear, own = posterior.predict(x), posterior.predict_unlinearised(x)
    error, sampled = (float((p.draws.mean(0) - y).square().mean().sqrt()) for p in (linear, own))
    assert sampled > 5 * error
    inside, gap = posterior.predict(torch.tensor([[-1.4], [0.0]]).double()).epistemic_variance.sqrt()[:, 0]
    assert gap > 2 * inside


def test_it_says_when_it_cannot():
    model, x = NETWORKS["mlp"]()
    posterior = lw.fit(model, (x, model(x).detach()), lw.Gaussian(1.0), prior=lw.Isotropic(1.0), draws=1)
    with pytest.raises(ValueError, match="fit with draws=2 or more"):
        posterior.predict_unlinearised(x)
    design = lw.infer(lw.LinearModel(x, x[:, 0], lw.Gaussian(1.0)), prior=lw.Isotropic(1.0))
    with pytest.raises(ValueError, match="fitted to a network"):
        design.predict_unlinearised(x)

"""Leave-one-out under the bound: the Gaussian cavity, against its dense formula and against fits without each datum."""

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.bayes.fits.newton import NewtonSteps
from tests.bayes.fits.labelled import LIKELIHOODS, Labelled, average, labelled, normal, outputs

PRECISION = 0.8


def inferred(of: Labelled) -> lw.Posterior:
    method = lw.Exact(newton=NewtonSteps(tol=1e-12))
    return lw.infer(of.model, prior=lw.Isotropic(PRECISION), method=method, draws=0)


@pytest.mark.parametrize(("n", "d"), [(23, 5), (9, 17)], ids=["more data", "more weights"])
@pytest.mark.parametrize("kind", ["labels", "counts"])
def test_the_cavity_is_the_posterior_without_a_gaussian_factor(kind, n, d):
    """Precision V⁻¹ − B and mean m − (V⁻¹ − B)⁻¹ E_q[∂ log p], averages by autodiff of sums over a grid."""
    of = labelled(kind, n, d, seed=31)
    posterior = inferred(of)
    found = posterior.leave_one_out()
    f, V = (part.requires_grad_() for part in outputs(of, posterior.mean, posterior.covariance))
    gradient, slope = torch.autograd.grad(of.weights @ average(of, f, V, 601), (f, V))
    cavity = 1 / (1 / V.detach()[:, 0, 0] + 2 * slope[:, 0, 0])
    mean = f.detach()[:, 0] - cavity * gradient[:, 0]
    # a search to 1e-12 nats knows B to 2e-6 of one over V, which a leverage close to one makes more of
    more = cavity / V.detach()[:, 0, 0]
    assert float(((found.epistemic_variance - cavity).abs() / (cavity * more)).max()) < 3e-6
    assert float(((found.mean - mean).abs() / (cavity.sqrt() * more)).max()) < 1e-5
    leverage = -2 * (slope * V.detach())[:, 0, 0]
    torch.testing.assert_close(found.leverage, leverage, rtol=0, atol=3e-6)


def test_influence_is_what_the_cavity_changes():
    of = labelled("labels", 23, 5, seed=31)
    posterior, new = inferred(of), normal(4, 5, seed=3)
    found, left_out = posterior.influence(new), posterior.leave_one_out()
    X, cross = of.features[:, 0], new @ posterior.covariance @ of.features[:, 0].mT
    torch.testing.assert_close(found, (cross * left_out.pull[:, 0]).mT, rtol=1e-9, atol=1e-12)
    own = posterior.influence(X).diagonal()
    torch.testing.assert_close(X @ posterior.mean - own, left_out.mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n", "d"), [(24, 5), (17, 30)], ids=["more data", "more weights"])
@pytest.mark.parametrize("kind", list(LIKELIHOODS))
def test_cavities_are_near_to_fits_without_each_datum(kind, n, d):
    """Of what leaving a datum out does, the cavity leaves how the factors of the others answer: of second order.

    So over the data less than its leverage is left of what each does to the mean of its own output and to its density.
    Widths answer in first order, by the curvatures of the others where the mean moves: the cavity is only nearer.
    """
    of = labelled(kind, n, d, signal=0.5 if kind == "counts" else 1.0, seed=41)
    posterior = inferred(of)
    found, with_it = posterior.leave_one_out(), posterior.predict(of.model.features.dense())
    before = with_it.log_prob(of.targets).reshape(n), with_it.mean.reshape(n, -1)
    after = found.log_density, found.mean.reshape(n, -1)
    refits = [inferred(of.without(i)).predict(of.features[i]) for i in range(n)]
    density = torch.stack([fit.log_prob(of.targets[i : i + 1]).sum() for i, fit in enumerate(refits)])
    mean, variance = (
        torch.stack([getattr(fit, name).reshape(-1) for fit in refits]) for name in ("mean", "epistemic_variance")
    )
    left, moved = ((part - density).abs() for part in (after[0], before[0]))
    assert float(left.sum()) < float(found.leverage @ moved)
    left, moved = (((part - mean).square() / variance).mean(1).sqrt() for part in (after[1], before[1]))
    assert float(left.sum()) < float(found.leverage @ moved)
    assert float(torch.corrcoef(torch.stack([found.log_density, density]))[0, 1]) > 0.99
    widths = (one.epistemic_variance.reshape(n, -1).log() for one in (found, with_it))
    left, moved = ((part - variance.log()).abs().mean(1) for part in widths)
    assert float(left.sum()) < float(moved.sum())


def test_data_that_count_nothing_change_nothing():
    of = labelled("classes", 13, 4, seed=31)
    of.weights[3] = 0
    found = inferred(of).leave_one_out()
    assert float(found.leverage[3]) == pytest.approx(0, abs=1e-12)
    assert float(found.distance[3]) == 0


def test_labels_of_several_outputs_have_cavities_too():
    """Two labels a datum with outputs that share weights: a joint cavity of both, by its dense formula."""
    X, new = normal(13, 2, 5, seed=1), 0.5 + normal(13, seed=2).abs()
    y = (X @ normal(5, seed=3) + normal(13, 2, seed=4) > 0).double()
    model = lw.LinearModel(X.reshape(-1, 5), y, lw.Bernoulli(), weights=new)
    posterior = lw.infer(model, prior=lw.Isotropic(PRECISION), method=lw.Exact(newton=NewtonSteps(tol=1e-12)), draws=0)
    found, S = posterior.leave_one_out(), posterior.covariance
    alone = Labelled("labels", X.reshape(-1, 1, 5), y.reshape(-1), new.repeat_interleave(2))
    f, V = (part.requires_grad_() for part in outputs(alone, posterior.mean, S))
    gradient, slope = torch.autograd.grad(alone.weights @ average(alone, f, V, 601), (f, V))
    for i in (0, 7, 12):
        B = torch.diag(-2 * slope.reshape(13, 2)[i])
        cavity = torch.linalg.inv(torch.linalg.inv(X[i] @ S @ X[i].mT) - B)
        torch.testing.assert_close(found.epistemic_variance[i], cavity.diagonal(), rtol=1e-4, atol=0)
        mean = X[i] @ posterior.mean - cavity @ gradient.reshape(13, 2)[i]
        torch.testing.assert_close(found.mean[i], mean, rtol=1e-4, atol=1e-4)


def test_the_network_itself_has_no_place_in_it():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).double().eval()
    x = normal(17, 3, seed=5)
    posterior = lw.fit(network, (x, normal(17, 5, seed=6).argmax(1)), lw.Categorical(), prior=lw.Isotropic(2.0))
    with pytest.raises(ValueError, match="curvature='network'"):
        posterior.leave_one_out(mean="network")
    assert bool(posterior.leave_one_out().log_density.isfinite().all())

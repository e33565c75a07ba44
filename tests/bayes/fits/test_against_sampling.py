"""The best Gaussian and Laplace's against draws from the posterior itself: thirty weights, labels that a plane separates."""

from math import pi

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import lapwing as lw
from tests.bayes.fits.labelled import normal

D, CHAINS, STEPS, BURN_IN = 30, 400, 900, 300
PROBLEMS = [(60, 0.05), (41, 0.1), (25, 0.05)]  # data and prior precision


def sampled(X: Tensor, y: Tensor, precision: float, generator: torch.Generator) -> Tensor:  # (steps, chains, d)
    """Elliptical slice sampling (Murray, Adams and MacKay 2010), many chains at once."""

    def uniform(count: int) -> Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64)

    def prior() -> Tensor:
        return torch.randn(CHAINS, D, generator=generator, dtype=torch.float64) / precision**0.5

    def fit(theta: Tensor) -> Tensor:
        return logsigmoid((theta @ X.mT) * (2 * y - 1)).sum(1)

    theta, kept = prior(), []
    for step in range(STEPS):
        other, level, angle = prior(), fit(theta) + uniform(CHAINS).log(), 2 * pi * uniform(CHAINS)
        low, high = angle - 2 * pi, angle.clone()
        found, left = theta.clone(), torch.arange(CHAINS)
        while len(left):
            trial = theta[left] * angle[left].cos()[:, None] + other[left] * angle[left].sin()[:, None]
            accepted = fit(trial) > level[left]
            found[left[accepted]] = trial[accepted]
            left = left[~accepted]
            below = angle[left] < 0
            low[left], high[left] = (
                torch.where(below, angle[left], low[left]),
                torch.where(below, high[left], angle[left]),
            )
            angle[left] = low[left] + (high[left] - low[left]) * uniform(len(left))
        theta = found
        if step >= BURN_IN:
            kept.append(theta)
    return torch.stack(kept)


def stein(covariance: Tensor, other: Tensor) -> float:
    """KL(N(0, covariance) ‖ N(0, other)): an error of a covariance that no change of coordinates changes."""
    ratio = torch.linalg.solve(other, covariance)
    return 0.5 * float(ratio.diagonal().sum() - len(ratio) - torch.logdet(ratio))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "precision"), PROBLEMS)
def test_the_best_gaussian_is_nearer_than_laplaces(n, precision):
    """In mean, covariance and probabilities. In Frobenius' norm, which is that of the few widest directions, both
    covariances are alike: too narrow there, since the posterior of separable labels is skewed."""
    X = normal(n, D, seed=0)
    y, new = (X @ normal(D, seed=1) > 0).double(), normal(200, D, seed=9)
    draws = sampled(X, y, precision, torch.Generator().manual_seed(0))
    slope = ((y - (draws @ X.mT).sigmoid()) @ X - precision * draws).mean(0)  # of the log posterior: zero on average
    assert float((slope.mean(0) / (slope.std(0) / CHAINS**0.5)).abs().max()) < 5
    flat = draws.reshape(-1, D)
    mean, covariance = flat.mean(0), torch.cov(flat.mT)
    probs = torch.stack([(part @ new.mT).sigmoid().mean(0) for part in draws.unbind(1)])
    truth, noise = probs.mean(0), float((probs.std(0) / CHAINS**0.5).mean())
    figures = {}
    for name, curvature in (("bound", "expected"), ("Laplace", "mode")):
        model = lw.LinearModel(X, y, lw.Bernoulli())
        posterior = lw.infer(model, prior=lw.Isotropic(precision), method=lw.Exact(), curvature=curvature, draws=0)
        away = posterior.mean - mean
        figures[name] = {
            "mean, in standard deviations": float((away @ torch.linalg.solve(covariance, away)).sqrt()),
            "mean, relative": float(away.norm() / mean.norm()),
            "covariance, KL from": stein(posterior.covariance, covariance),
            "covariance, KL to": stein(covariance, posterior.covariance),
            "covariance, Frobenius": float((posterior.covariance - covariance).norm() / covariance.norm()),
            "probabilities": float((posterior.predict(new, link="quadrature").probs - truth).abs().mean()),
        }
    print(f"\n{n} data, {D} weights, precision {precision}; standard error of probabilities {noise:.4f}")
    for what in figures["bound"]:
        print(f"{what:30} bound {figures['bound'][what]:8.4f}   Laplace {figures['Laplace'][what]:8.4f}")
    ours, theirs = figures["bound"], figures["Laplace"]
    for what in ("mean, in standard deviations", "mean, relative"):
        assert ours[what] < theirs[what] / 10
    for what in ("covariance, KL from", "covariance, KL to"):
        assert ours[what] < theirs[what]
    assert ours["probabilities"] < theirs["probabilities"] / 4

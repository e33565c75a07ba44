"""A standard error says how far an estimate is from the truth: squares of z-scores have a mean of one, none is large.

Those of traces, log-determinants, effective dimensions, evidences, Kronecker factors, bounds of symmetry and metrics are
tested where these are; here are those of predictions.
"""

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.bayes.predictive import from_draws
from tests.network.networks import normal

DRAWS = 400


def check(estimates: Tensor, truth: Tensor, errors: Tensor, count: int) -> None:
    """`count` of them are independent: the mean of their squared z-scores is 1 ± √(2 / count)."""
    z = (estimates - truth) / errors
    # the error is itself estimated, with a relative error of √(1 / 2 draws) or so: heavier tails than normal
    assert float(z.abs().max()) < 5, z.abs().max()
    assert abs(float(z.square().mean()) - 1) < 4 * (2 / count) ** 0.5 + 0.1, z.square().mean()


@pytest.mark.parametrize("method", [lw.Krylov(rtol=1e-4), lw.CG(rtol=1e-6)], ids=["krylov", "cg"])
def test_variances_of_predictions_from_draws(method):
    """Inputs along the eigenvectors of the covariance, so that their variances err independently."""
    x, y = normal(60, 21, seed=1) * torch.logspace(-1, 1, 21).double(), normal(60, seed=2)
    model, prior = lw.LinearModel(x, y, lw.Gaussian(0.7)), lw.Isotropic(0.5)
    exact = lw.infer(model, prior=prior, method=lw.Exact())
    new = torch.linalg.eigh(exact.covariance)[1].mT
    truth, scores = exact.predict(new).epistemic_variance, []
    for seed in range(6):
        found = lw.infer(model, prior=prior, method=method, draws=DRAWS, seed=seed).predict(new)
        scores.append((found.epistemic_variance, found.standard_error))
    estimates, errors = (torch.stack(part) for part in zip(*scores, strict=True))
    check(estimates, truth, errors, estimates.numel())


def test_variances_of_functions_drawn_elsewhere():
    """What families of networks report, (2 / (draws − 1))^½ of the variance: draws with a mean of their own."""
    std = torch.linspace(0.5, 2.0, 60).double().reshape(20, 3)
    found = from_draws(1.0 + std * normal(DRAWS, 20, 3, seed=3), lw.Gaussian(0.5), "not known")
    check(found.epistemic_variance, std.square(), found.standard_error, 60)


def test_covariances_of_joint_draws():
    x, y = normal(40, 11, seed=1), normal(40, seed=2)
    model, prior = lw.LinearModel(x, y, lw.Gaussian(0.7)), lw.Isotropic(0.5)
    exact = lw.infer(model, prior=prior, method=lw.Exact())
    new = torch.linalg.eigh(exact.covariance)[1].mT
    chosen = list(range(11))
    truth, upper = exact.joint(new, chosen).covariance, torch.triu_indices(11, 11)
    found = lw.infer(model, prior=prior, method=lw.Krylov(rtol=1e-4), draws=DRAWS, seed=3).joint(new, chosen)
    parts = (part[upper[0], upper[1]] for part in (found.covariance, truth, found.standard_error))
    check(*parts, 66)

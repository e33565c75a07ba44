"""A standard error says how far an estimate is from the truth: squares of z-scores have a mean of one, none is large.

Those of traces, log-determinants, Kronecker factors, bounds of symmetry and areas under curves are tested where these
are; here are those of posteriors, predictions and scores.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing import metrics
from lapwing.app.report import scores
from lapwing.app.report.verdict import gap
from lapwing.bayes.predictive import from_draws
from lapwing.families import variational
from lapwing.families.variational.mean_field import LOG_STD
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


SEEDS, PROBES = 40, 20


def posteriors(kind: str, method: lw.Krylov | lw.CG, draws: int) -> tuple[lw.Posterior, list[lw.Posterior]]:
    """The exact one, and those from fresh noise; the precision is given, so that they differ by their noise alone."""
    x = normal(150, 110, seed=1) * torch.logspace(-1, 0, 110).double()
    y = normal(150, seed=2) if kind == "numbers" else (normal(150, seed=2) + x[:, -1] > 0).double()
    model = lw.LinearModel(x, y, lw.Gaussian(0.7) if kind == "numbers" else lw.Bernoulli())
    options = {"prior": lw.Isotropic(60.0), "draws": draws}
    found = [lw.infer(model, method=method, seed=seed, **options) for seed in range(SEEDS)]
    return lw.infer(model, method=lw.Exact(), **options), found


@pytest.mark.parametrize(
    ("kind", "method", "draws"),
    [("numbers", lw.CG(rtol=1e-8), PROBES), ("numbers", lw.Krylov(rtol=1e-2), 3), ("labels", lw.Krylov(rtol=1e-2), 3)],
    ids=["cg", "krylov", "krylov, labels"],
)
def test_evidences_and_effective_dimensions(kind, method, draws):
    """For CG the error is itself from 20 values: z is Student's with 19 degrees of freedom, of variance 19/17."""
    exact, found = posteriors(kind, method, draws)
    for name in ("log_evidence", "effective_dimension"):
        truth, estimates = getattr(exact, name).value, [getattr(one, name) for one in found]
        assert all(one.standard_error > 0 for one in estimates)
        z = torch.tensor([(one.value - truth) / one.standard_error for one in estimates])
        assert float(z.abs().max()) < 5, name
        assert abs(float(z.mean())) < 4 / SEEDS**0.5, name
        assert -4 * (2 / SEEDS) ** 0.5 < float(z.square().mean()) - 1 < 4 * (2 / SEEDS) ** 0.5 + 0.2, name


def test_the_likelihood_in_an_elbo():
    """One linear layer, of which the mean of log p over weights with means M and variances V is known in closed form."""
    x, y = normal(23, 3, seed=1), normal(23, 2, seed=2)
    with torch.random.fork_rng():
        model = torch.nn.Sequential(torch.nn.Linear(3, 2)).double()
    options = {"temperature": 1.0, "epochs": 5, "initial_std": 0.3, "progress": False}
    posterior = variational.fit(model, (x, y), lw.Gaussian(0.5), **options)
    ones = torch.cat([x, torch.ones(23, 1).double()], dim=1)

    def whole(name: str) -> torch.Tensor:  # (2, 4), weights and biases
        weight, bias = (posterior.values[f"0.{part}{name}"] for part in ("weight", "bias"))
        return torch.cat([weight, bias[:, None]], dim=1)

    mean, variance = whole(""), whole(LOG_STD).mul(2).exp()
    squares = (y - ones @ mean.mT).square().sum() + (ones.square() @ variance.mT).sum()
    truth = -0.5 * float(squares) / 0.25 - 23 * 2 * 0.5 * float(torch.tensor(2 * torch.pi * 0.25).log())
    found = [replace(posterior, seed=seed).elbo((x, y), draws=50).log_likelihood for seed in range(60)]
    check(
        torch.tensor([one.value for one in found]), torch.tensor(truth),
        torch.tensor([one.standard_error for one in found]), 60,
    )  # fmt: skip


REPEATS, SIZE = 400, 150


def repeated(of_one) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and errors over fresh data sets."""
    random = np.random.default_rng(0)
    found = [of_one(random) for _ in range(REPEATS)]
    return tuple(torch.tensor([getattr(one, part) for one in found]) for part in ("value", "standard_error"))


def test_root_mean_squares_of_errors():
    """By the derivative of the root: its second one leaves a bias of about 1/4n of the spread of squares."""
    std = 0.5
    values, errors = repeated(lambda random: scores.width_of(std * random.normal(size=(SIZE, 2))))
    check(values, torch.tensor(std), errors, REPEATS)


def test_mean_scores():
    values, errors = repeated(lambda random: scores.mean_of(random.exponential(size=SIZE)))
    check(values, torch.tensor(1.0), errors, REPEATS)


def test_confidence_over_accuracy_of_a_calibrated_classifier():
    def one(random):
        probs = random.dirichlet(np.ones(3), size=SIZE)
        labels = np.array([random.choice(3, p=row) for row in probs])
        return gap(probs, labels)

    values, errors = repeated(one)
    check(values, torch.tensor(0.0), errors, REPEATS)


def test_paired_differences():
    """Of losses that rise and fall together: the error is that of their difference, not that of either."""
    random = torch.Generator().manual_seed(0)
    difficulty = 3 * torch.randn(REPEATS, SIZE, generator=random, dtype=torch.float64)
    one, other = (
        difficulty + 0.2 * torch.randn(REPEATS, SIZE, generator=random, dtype=torch.float64) for _ in range(2)
    )
    found = [metrics.paired(a + 0.1, b) for a, b in zip(one, other, strict=True)]
    errors = torch.tensor([each.standard_error for each in found])
    check(torch.tensor([each.mean for each in found]), torch.tensor(0.1), errors, REPEATS)
    assert float(errors.max()) < 0.2 * 3 / SIZE**0.5  # either has 3 / √n

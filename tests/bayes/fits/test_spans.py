"""The mode by products alone, against dense Newton steps by torch.func, with every product counted."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian

import lapwing as lw
from lapwing.bayes.fits import ModeSearch, spans
from lapwing.bayes.fits.loss import Loss
from lapwing.bayes.fits.newton import Mode
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import Dense, LinearOperator

LIKELIHOODS = {"softmax": (lw.Categorical(), 4), "logistic": (lw.Bernoulli(), 1), "counts": (lw.Poisson(), 1)}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Counted(LinearOperator):
    """A matrix known by its products, which are counted."""

    matrix: Tensor
    products: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.matrix.shape)

    @property
    def like(self) -> Tensor:
        return self.matrix

    def matmat(self, x: Tensor) -> Tensor:
        self.products.append(x.shape[1])
        return self.matrix @ x

    def rmatmat(self, y: Tensor) -> Tensor:
        self.products.append(y.shape[1])
        return self.matrix.mT @ y


def problem(name: str, stiff: float = 1.0) -> tuple[Tensor, Tensor, object]:
    """Features with eigenvalues over several decades, targets and their likelihood."""
    likelihood, classes = LIKELIHOODS[name]
    features = normal(29 * classes, 37, seed=1) * torch.logspace(0.5, -2, 37).double() * stiff
    targets = {
        "softmax": torch.arange(29) % 4,
        "logistic": (normal(29, 1, seed=2)[:, 0] > 0).double(),
        "counts": torch.arange(29).remainder(5).double(),
    }[name]
    return features, targets, likelihood


def dense_mode(features: Tensor, targets: Tensor, name: str, precision: float) -> tuple[Tensor, float]:
    """Damped Newton steps on the loss written out anew."""

    def value(theta: Tensor) -> Tensor:
        f = features @ theta
        if name == "softmax":
            fit = nn.functional.cross_entropy(f.reshape(29, 4), targets, reduction="sum")
        elif name == "logistic":
            fit = nn.functional.binary_cross_entropy_with_logits(f, targets, reduction="sum")
        else:
            fit = nn.functional.poisson_nll_loss(f, targets, full=False, reduction="sum")
        return fit + 0.5 * precision * theta @ theta

    theta = torch.zeros(37).double()
    for _ in range(60):
        step = torch.linalg.solve(hessian(value)(theta), grad(value)(theta))
        length = 1.0
        while value(theta - length * step) > value(theta) and length > 1e-9:
            length /= 2
        theta = theta - length * step
        if float(step.norm()) < 1e-12:
            break
    return theta, float(value(theta))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_mode_is_the_dense_one_and_every_product_counts(name):
    features, targets, likelihood = problem(name)
    truth, _ = dense_mode(features, targets, name, 1.0)
    operator = Counted(features)
    found, span = spans.mode(
        Loss(operator, likelihood, targets, torch.ones(29).double()), start=torch.ones(37).double(), tol=1e-14
    )
    assert found.converged
    # the loss is at least ½‖z − z⋆‖² above its minimum
    assert float((found.weights - truth).norm()) <= (2 * found.tol) ** 0.5 + 1e-9
    assert len(operator.products) == 2 * found.passes
    assert len(operator.products) <= 2 * 40  # the span holds every weight after 37 directions
    torch.testing.assert_close(span.images, features @ span.directions, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        span.directions.mT @ span.directions, torch.eye(span.images.shape[1]).double(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("tol", [1e-1, 1e-4, 1e-8])
def test_the_gap_to_the_minimum_is_below_the_tolerance(tol):
    features, targets, likelihood = problem("softmax")
    _, least = dense_mode(features, targets, "softmax", 1.0)
    loss = Loss(Counted(features), likelihood, targets, torch.ones(29).double())
    found, _ = spans.mode(loss, start=torch.zeros(37).double(), tol=tol)
    value = 0.5 * float(found.weights.square().sum()) - found.log_prob
    assert found.converged
    assert 0 <= value - least + 1e-11 <= tol


def test_a_span_serves_other_precisions_and_units(monkeypatch):
    """Two groups of weights, whose precisions go different ways: what was found before saves products."""
    features, targets, likelihood = problem("softmax")
    group_of = (torch.arange(37) % 3 == 0).long()
    prior = DiagonalPrior(torch.ones(37).double(), group_of, torch.ones(2).double(), ("some", "others"))
    operator = Counted(features)
    known = ModeSearch.of(lw.LinearModel(operator, targets, likelihood), prior)
    monkeypatch.setattr(ModeSearch, "_by_products", lambda self, loss: True)
    near, passes = None, []
    for precision in ([0.5, 2.0], [0.7, 1.5], [0.8, 1.4]):
        near = known.mode(torch.tensor(precision).double(), near)
        passes.append(near.mode.passes)
        scale = torch.tensor(precision).double()[group_of].rsqrt()
        truth = scale * dense_mode(features * scale, targets, "softmax", 1.0)[0]
        torch.testing.assert_close(near.coordinates, truth, rtol=0, atol=1e-6)
    fresh = known.mode(near.precision).mode.passes
    assert max(passes[1:]) <= fresh / 2


def test_a_span_that_may_not_grow_starts_over(monkeypatch):
    features, targets, likelihood = problem("softmax")
    monkeypatch.setattr(spans, "_widest", lambda loss: 9)
    truth, _ = dense_mode(features, targets, "softmax", 1.0)
    loss = Loss(Counted(features), likelihood, targets, torch.ones(29).double())
    found, span = spans.mode(loss, start=torch.zeros(37).double(), tol=1e-12)
    assert found.converged
    assert span.directions.shape[1] <= 9
    torch.testing.assert_close(found.weights, truth, rtol=0, atol=2e-6)


def test_single_precision_is_seen_by_fresh_products():
    """Images in single precision, of features whose largest eigenvalue is 1e5 times the prior's precision."""
    features, targets, likelihood = problem("softmax", stiff=10.0)
    single = features.float()
    _, least = dense_mode(single.double(), targets, "softmax", 1.0)
    loss = ModeSearch.of(
        lw.LinearModel(Counted(single), targets, likelihood),
        DiagonalPrior(torch.ones(37).double(), torch.zeros(37).long(), torch.ones(1).double(), ("all",)),
    ).loss(torch.ones(37).double())
    found, _ = spans.mode(loss, start=torch.zeros(37).double(), tol=1e-3)
    value = 0.5 * float(found.weights.square().sum()) - loss.log_prob(
        likelihood.reshape_outputs(single.double() @ found.weights, targets)
    )
    assert found.converged
    assert -1e-9 <= value - least <= 1e-3


def test_a_whole_fit_of_a_network_takes_few_passes_for_its_mode():
    """Over all precisions tried: Newton steps by conjugate gradients, which forget every product, took 262."""
    with torch.random.fork_rng():
        layers = nn.Linear(7, 60), nn.Tanh(), nn.Linear(60, 23), nn.Tanh(), nn.Linear(23, 3)
    model = nn.Sequential(*layers).double().eval()
    for number, weight in enumerate(model.parameters()):
        weight.data = normal(*weight.shape, seed=number) / weight.shape[-1] ** 0.5
    x = normal(41, 7, seed=3)
    y = (model(x).detach() + 0.3 * normal(41, 3, seed=4)).argmax(1)
    given = {"draws": 6, "progress": False}
    fitted = lw.fit(model, (x, y), lw.Categorical(), method=lw.Krylov(rtol=1e-8), **given)
    assert fitted.diagnostics.weights > 1500
    alpha = lw.GPrior(float(fitted.prior.precision[0]))
    exact = lw.fit(model, (x, y), lw.Categorical(), prior=alpha, method=lw.Exact(), curvature="network", **given)
    assert fitted.diagnostics.converged
    for part in ("fit", "penalty"):  # the rest is of the Krylov space
        assert getattr(fitted.evidence_parts, part) == pytest.approx(getattr(exact.evidence_parts, part), rel=1e-5)
    torch.testing.assert_close(fitted.mean, exact.mean, rtol=0, atol=1e-5 * float(exact.mean.norm()))
    assert fitted.diagnostics.mode_passes <= 40


@pytest.mark.parametrize("width", [0, 2, 5])
def test_the_gap_is_an_upper_bound_away_from_the_minimum_over_the_span(width):
    """Images that lost their digits leave a gradient inside the span, which bends the one outside."""
    features, targets = 4 * normal(9, 5, seed=1), (normal(9, seed=2) > 0).double()
    loss = Loss(Dense(features), lw.Bernoulli(), targets, torch.ones(9).double())
    directions = torch.linalg.qr(normal(5, 5, seed=3)).Q[:, :width]
    span, z = spans.Span(directions, features @ directions), normal(5, seed=4)
    outputs = loss.outputs(z)
    full = loss.hessian(outputs).rows(0, 5)
    inside = torch.linalg.cholesky(directions.mT @ full @ directions) if width else None
    start = Mode(z, outputs, 0.0, 0.0, 0.0, 1e-9, 0, factor=inside)
    gradient = loss.gradient(z, outputs)
    truth = 0.5 * float(gradient @ torch.linalg.solve(full, gradient))
    gap = spans._looked_at(loss, span, start).gap
    assert gap >= truth * (1 - 1e-10)
    if width == 5:
        assert gap == pytest.approx(truth, rel=1e-10)

"""The evidence by groups on the side of the data, against dense formulas over the weights and against `infer`."""

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.bayes.evidence import Precisions
from lapwing.bayes.fits.by_group import ByGroup, cross_grams, maximised, own_grams
from lapwing.bayes.priors import resolve
from lapwing.linalg.solvers import NotConverged

ONE = torch.ones(1).double()
N, FEATURES, CLASSES, NEW = 12, 5, 3, 4


@pytest.fixture(scope="module")
def known():
    """A network, its data, and Jacobians by another route."""
    generator = torch.Generator().manual_seed(0)
    x, new = (torch.randn(n, FEATURES, generator=generator, dtype=torch.float64) for n in (N, NEW))
    y = torch.randint(CLASSES, (N,), generator=generator)
    model = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.6 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    linear = lw.linearise(model.eval(), (x, y), lw.Categorical())
    prior = resolve(lw.PerGroup("layer"), linear.groups).on(linear.features, linear.row_counts)
    return model, x, y, new, linear, prior, ByGroup.of(linear, prior, linear.features.rows(0, N * CLASSES))


def jacobian(model, x):
    """(rows, d), by reverse mode through the flat vector of weights."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [weight.shape for weight in model.parameters()]
    flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])

    def outputs(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(model, weights, (x,)).reshape(-1)

    return torch.func.jacrev(outputs)(flat), flat, outputs(flat)


def curvature(logits):
    """Σ over data of diag(π) − π πᵀ, as one block-diagonal matrix."""
    return torch.block_diag(*(torch.diag(p) - torch.outer(p, p) for p in logits.softmax(1)))


def dense(known, precision, at_mode, curvature_at=None):
    """Log evidence, γ of every group, mode and covariance over the weights, by Newton's method on all of them."""
    model, x, y, _, _, prior, _ = known
    J, w, f = jacobian(model, x)
    A = precision[prior.group_of]
    theta, labels = w.clone(), torch.eye(CLASSES).double()[y]

    def loss(weights):
        h = (f + J @ (weights - w)).reshape(N, CLASSES)
        return 0.5 * (A * weights.square()).sum() - (labels * h.log_softmax(1)).sum()

    for _ in range(50 if at_mode else 0):
        h = (f + J @ (theta - w)).reshape(N, CLASSES)
        gradient = A * theta - J.mT @ (labels - h.softmax(1)).reshape(-1)
        step = torch.linalg.solve(J.mT @ curvature(h) @ J + torch.diag(A), gradient)
        while loss(theta - step) > loss(theta) + 1e-12:
            step = step / 2
        theta = theta - step
    h = (f + J @ (theta - w)).reshape(N, CLASSES)
    B = curvature(f.reshape(N, CLASSES) if curvature_at is None else curvature_at)
    H = J.mT @ B @ J + torch.diag(A)
    fit = h.log_softmax(1)[torch.arange(N), y].sum()
    value = fit - 0.5 * (A * theta.square()).sum() - 0.5 * (torch.logdet(H) - A.log().sum())
    inverse = torch.linalg.inv(H)
    determined = 1 - A * inverse.diagonal()
    gamma = torch.stack([determined[prior.group_of == g].sum() for g in range(len(precision))])
    return float(value), gamma, theta, inverse, h


PRECISION = torch.tensor([0.7, 3.0]).double()


class TestAgainstDenseFormulas:
    @pytest.mark.parametrize("at_mode", [True, False])
    def test_evidence_and_effective_dimension(self, known, at_mode):
        group = known[-1]
        problem = group.at_mode(group.centre) if at_mode else group.evidence_at_weights()
        moments = problem.moments(Precisions(PRECISION, ONE))
        value, gamma, theta, _, _ = dense(known, PRECISION, at_mode)
        assert problem.objective(Precisions(PRECISION, ONE), moments) == pytest.approx(value, abs=1e-8)
        torch.testing.assert_close(moments.determined, gamma, rtol=1e-8, atol=1e-9)
        squares = torch.stack([theta[known[5].group_of == g].square().sum() for g in range(2)])
        # the loss is within 1e-10 nats of its minimum, so the mode within about its square root
        torch.testing.assert_close(moments.weights, squares, rtol=1e-4, atol=1e-5)

    def test_curvature_at_the_mode(self, known):
        """The outputs of the mode, and the evidence with the curvature there."""
        group = known[-1]
        mode = group.mode(group.kernel(PRECISION))
        outputs = dense(known, PRECISION, True)[4]
        torch.testing.assert_close(mode.outputs, outputs, rtol=1e-4, atol=1e-5)
        value = dense(known, PRECISION, True, outputs)[0]
        assert group.at_mode(outputs).objective(Precisions(PRECISION, ONE)) == pytest.approx(value, abs=1e-8)

    def test_gradient_of_the_evidence(self, known):
        """In log precisions, against central differences of the dense evidence: their error is of order 1e-8."""
        group = known[-1]
        problem, at = group.at_mode(group.centre), Precisions(PRECISION, ONE)
        found = problem.gradient(at, problem.moments(at)).prior
        for g in range(2):
            step = torch.zeros(2).double()
            step[g] = 1e-4
            up, down = (dense(known, PRECISION * (sign * step).exp(), True)[0] for sign in (1, -1))
            assert float(found[g]) == pytest.approx((up - down) / 2e-4, abs=1e-5)

    def test_covariance_of_new_outputs(self, known):
        model, _, _, new, linear, prior, group = known
        features = linear.features_at(new)
        rows, seen = features.rows(0, NEW * CLASSES), linear.features.rows(0, N * CLASSES)
        own, cross = own_grams(rows, CLASSES, prior), cross_grams(rows, seen, prior)
        found = group.covariance(PRECISION, group.centre, own, cross)
        J, _, _ = jacobian(model, new)
        whole = J @ dense(known, PRECISION, False)[3] @ J.mT
        for i, block in enumerate(found):
            part = slice(CLASSES * i, CLASSES * (i + 1))
            torch.testing.assert_close(block, whole[part, part], rtol=1e-9, atol=1e-10)


class TestAgainstInfer:
    @pytest.mark.parametrize("prior", [lw.Isotropic(), lw.PerGroup("layer")])
    @pytest.mark.parametrize("where", ["mode", "weights"])
    def test_the_same_precisions(self, known, prior, where):
        """The search here stops at a gradient of 1e-3 nats; at those of `infer` it is that of modes 1e-10 nats away."""
        model, x, y, *_, group = known
        group = group.tied() if isinstance(prior, lw.Isotropic) else group
        method = lw.Exact() if where == "mode" else lw.LowRank(N * CLASSES, rtol=1e-10, evidence_at="weights")
        laplace = "network" if where == "mode" else None
        posterior = lw.fit(
            model, (x, y), lw.Categorical(), prior=prior, method=method, progress=False, curvature=laplace
        )
        problem = group.at_mode(group.centre) if where == "mode" else group.evidence_at_weights()
        found = maximised(problem, tolerance=1e-3)
        assert found.converged
        assert problem.objective(found.at) == pytest.approx(posterior.log_evidence.value, abs=1e-3)
        theirs = Precisions(posterior.prior.precision, ONE)
        assert float(problem.gradient(theirs, problem.moments(theirs)).prior.abs().max()) < 1e-4


def test_other_models_are_refused(known):
    x, y = known[1], known[1][:, 0]
    model = lw.LinearModel(x, y, lw.Gaussian(1.0))
    with pytest.raises(ValueError, match="for labels and a linearised network"):
        ByGroup.of(model, known[5], x)


def test_a_mode_that_was_not_found_is_no_mode(known, monkeypatch):
    monkeypatch.setattr("lapwing.bayes.fits.by_group.MAX_STEPS", 1)
    group = known[-1]
    with pytest.raises(NotConverged, match="nats away after 1 steps: use stiffer precisions"):
        group.mode(group.kernel(PRECISION))

"""The bound by products alone: with draws that have the right covariance it is the dense one, with few it is near."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.bayes.fits.averaged import Drawn, DrawnSearch, Draws
from lapwing.bayes.fits.interface import Fit
from lapwing.bayes.fits.newton import NewtonSteps
from lapwing.bayes.methods import Exact
from lapwing.bayes.priors import DiagonalPrior
from tests.bayes.fits.labelled import labelled, normal

PRECISION = 0.3
SHAPES = pytest.mark.parametrize(("n", "d"), [(60, 7), (20, 90)])
KINDS = pytest.mark.parametrize("kind", ["labels", "counts", "classes"])
TIGHT = Exact(newton=NewtonSteps(1e-10, 400))


@dataclass(frozen=True)
class Whole(Draws):
    """Draws whose covariance is that of the posterior to round-off, many more than a datum has outputs."""

    rows: Tensor  # (d, draws), orthonormal

    def _with(self, covariance: Tensor) -> Tensor:
        return self.rows.shape[1] ** 0.5 * torch.linalg.cholesky(covariance) @ self.rows

    def of_posterior(self, fit: Fit, prior: DiagonalPrior) -> Drawn:
        rows = fit.gaussian_surrogate.features.dense().double() * prior.std
        inner = rows.mT @ rows
        values = torch.linalg.eigvalsh(inner).clamp_min(0)
        covariance = torch.linalg.inv(inner + torch.eye(len(inner)).double()) * prior.std * prior.std[:, None]
        return Drawn(self._with(covariance), float((values / (1 + values)).sum()), float(values.log1p().sum()), None)


def whole(d: int) -> Whole:
    return Whole(torch.linalg.qr(normal(400, d, seed=1))[0].mT)


def by_draws(of: lw.LinearModel, draws: int, prior: lw.Isotropic, seed: int = 0) -> lw.Posterior:
    return lw.infer(of, prior=prior, method=lw.Krylov(rtol=1e-3), curvature="expected", draws=draws, seed=seed)


class TestWithTheRightCovariance:
    @SHAPES
    @KINDS
    def test_it_is_the_dense_bound(self, kind, n, d):
        """A turn that moves the bound by a thousandth of γ is the last; a few of them may be left."""
        of = labelled(kind, n, d, seed=5).model
        exact = lw.infer(of, prior=lw.Isotropic(PRECISION), method=TIGHT)
        turn = DrawnSearch.of(of, whole(d), lambda _: None).run(exact.prior, None, tune=False)
        assert turn.converged
        gamma = float(exact.effective_dimension.value)
        assert turn.determined == pytest.approx(gamma, rel=1e-2)
        assert turn.bound == pytest.approx(float(exact.log_evidence.value), abs=5e-3 * gamma)
        away = exact.prior.std * turn.mean - exact.mean
        distance = float(away @ torch.linalg.solve(exact.covariance, away)) ** 0.5
        assert 0.5 * distance**2 < 5e-3 * gamma

    @pytest.mark.parametrize("kind", ["labels", "counts"])
    def test_so_is_the_precision(self, kind):
        of = labelled(kind, 60, 7, seed=5).model
        exact = lw.infer(of, prior=lw.Isotropic(), method=TIGHT)
        start = exact.at(10 * float(exact.prior.precision[0])).prior
        turn = DrawnSearch.of(of, whole(7), lambda _: None).run(start, None, tune=True)
        assert turn.converged
        assert float(turn.precision[0].log()) == pytest.approx(float(exact.prior.precision[0].log()), abs=5e-2)

    @KINDS
    def test_a_mean_never_raises_the_averaged_loss(self, kind):
        of, d = labelled(kind, 20, 90, seed=5).model, 90
        search = DrawnSearch.of(of, whole(d), lambda _: None)
        prior = lw.infer(of, prior=lw.Isotropic(PRECISION), method=TIGHT).prior
        features, widths = search.features(prior), search._widths(normal(d, 11, seed=8))

        def loss(mean: Tensor) -> float:
            seen = search._averages(features, mean, widths)
            return 0.5 * float(mean.square().sum()) - float(search.weights @ seen.log_density)

        drawn = Drawn(torch.zeros(d, 1).double(), 1.0, 0.0, None)
        for seed in range(5):
            start = normal(d, seed=seed)
            assert loss(search._mean(features, start, widths, drawn)[0]) <= loss(start)


class TestWithDraws:
    @SHAPES
    @pytest.mark.parametrize("kind", ["labels", "classes"])
    def test_errors_fall_with_their_number(self, kind, n, d):
        """Sixteen times as many: a quarter of the error is expected in the mean over seeds, and a half asked for."""
        of, new = labelled(kind, n, d, seed=5), normal(30, 3 if kind == "classes" else 1, d, seed=6).reshape(-1, d)
        truth = lw.infer(of.model, prior=lw.Isotropic(PRECISION), method=TIGHT).predict(new).probs

        def error(draws: int) -> float:
            found = [by_draws(of.model, draws, lw.Isotropic(PRECISION), seed).predict(new).probs for seed in range(4)]
            return sum(float((one - truth).square().mean()) for one in found) ** 0.5

        assert error(256) < 0.5 * error(16)

    def test_files_predict_and_say_what_they_lack(self, tmp_path):
        of, new = labelled("classes", 20, 90, seed=5), normal(6, 90, seed=6)
        posterior = by_draws(of.model, 16, lw.Isotropic(PRECISION))
        posterior.save(tmp_path / "a.lapwing")
        loaded = lw.load(tmp_path / "a.lapwing")
        torch.testing.assert_close(loaded.predict(new).probs, posterior.predict(new).probs, rtol=1e-9, atol=1e-12)
        with pytest.raises(ValueError, match="need the training data"):
            loaded.at(2 * PRECISION).predict(new)

    def test_another_precision_is_a_fresh_inference(self):
        of, new = labelled("labels", 20, 90, seed=5), normal(6, 90, seed=6)
        moved = by_draws(of.model, 32, lw.Isotropic(PRECISION)).at(2.0)
        fresh = by_draws(of.model, 32, lw.Isotropic(2.0))
        torch.testing.assert_close(moved.predict(new).probs, fresh.predict(new).probs, rtol=0, atol=1e-2)

    def test_it_is_asked_for(self):
        of = labelled("labels", 20, 90, seed=5).model
        plain = lw.infer(of, prior=lw.Isotropic(PRECISION), method=lw.Krylov(), draws=4)
        assert plain.diagnostics.curvature == "Hessian"
        told = by_draws(of, 4, lw.Isotropic(PRECISION)).diagnostics
        assert told.curvature == "expected over the posterior"
        assert 0 < told.bound_steps < 60

    def test_what_it_cannot_do_says_so(self):
        of = labelled("labels", 20, 90, seed=5).model
        groups = lw.PerGroup({"first": slice(0, 40), "others": slice(40, 90)})
        with pytest.raises(ValueError, match="several precisions are free"):
            lw.infer(of, prior=groups, method=lw.Krylov(), curvature="expected")
        with pytest.raises(ValueError, match=r"CG\(\) takes it at one point.*Krylov"):
            lw.infer(of, method=lw.CG(), curvature="expected")

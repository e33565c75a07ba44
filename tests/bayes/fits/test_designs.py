"""Columns of whitened weights: every kind of design has the products of its dense form."""

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.bayes.fits.designs import Design, PerContrast, StoredDesign
from lapwing.bayes.fits.loss import PerOutput
from lapwing.bayes.fits.newton import NewtonSteps
from lapwing.linalg.operators import Dense
from tests.bayes.fits.labelled import normal

N, K, D, FIXED = 11, 3, 5, 2
DESIGNS = {
    "stored": lambda: StoredDesign(normal(N, K, 7, seed=1)),
    "per contrast": lambda: PerContrast(normal(N, D, seed=2), K),
}
FURTHER = {
    "stored": lambda: StoredDesign(normal(N, K, 4, seed=3)),
    "per contrast": lambda: PerContrast(normal(N, FIXED, seed=4), K),
}


def blocks(seed: int) -> Tensor:  # (n, k, k), symmetric, positive definite
    root = normal(N, K, K + 1, seed=seed)
    return root @ root.mT


@pytest.mark.parametrize("kind", list(DESIGNS))
class TestProducts:
    def test_are_those_of_the_dense_form(self, kind):
        design: Design = DESIGNS[kind]()
        dense = design.dense()
        assert tuple(dense.shape) == design.shape
        z, g = normal(design.shape[2], seed=5), normal(N, K, seed=6)
        torch.testing.assert_close(design.outputs(z), dense @ z)
        torch.testing.assert_close(design.adjoint(g), torch.einsum("nkq,nk->q", dense, g))
        assert design.energy() == pytest.approx(float(dense.square().sum()))
        W = blocks(7)
        torch.testing.assert_close(design.gram(W), torch.einsum("nkq,nkl,nlr->qr", dense, W, dense))

    @pytest.mark.parametrize("block", [2**24, 40])
    def test_variances_with_further_columns_beside(self, kind, block, monkeypatch):
        monkeypatch.setattr("lapwing.bayes.fits.designs.BLOCK", block)
        free: Design = DESIGNS[kind]()
        both = free.beside(FURTHER[kind](), 0.3)
        dense, q = both.dense(), free.shape[2]
        torch.testing.assert_close(dense[:, :, :q], free.dense())
        torch.testing.assert_close(dense[:, :, q:], 0.3 * FURTHER[kind]().dense())
        precision = both.gram(blocks(8)) + torch.eye(both.shape[2], dtype=torch.float64)
        covariance = torch.linalg.inv(precision)
        whole, shared = both.variances(torch.linalg.cholesky(precision), q)
        torch.testing.assert_close(whole, dense @ covariance @ dense.mT)
        torch.testing.assert_close(shared, dense @ covariance[:, :q] @ dense[:, :, :q].mT)
        alone, same = free.variances(torch.linalg.cholesky(precision[:q, :q]), q)
        torch.testing.assert_close(alone, free.dense() @ torch.linalg.inv(precision[:q, :q]) @ free.dense().mT)
        assert torch.equal(alone, same)

    def test_without_width(self, kind):
        found = DESIGNS[kind]().without(6)
        assert found.shape == (N, K, 6)
        assert found.energy() == 0


@pytest.mark.parametrize("intercept", [True, False])
def test_features_that_classes_share_are_the_same_model(intercept, tmp_path):
    """A logistic regression by x ⊗ I and by its rows in a matrix: one mean, bound and covariance; files too."""
    x, y = normal(17, D, seed=9), torch.arange(17) % 4
    x[y == 1] += 1.0
    groups = {"slopes": slice(0, 16), "intercept": slice(16, 20)}
    prior = lw.PerGroup(groups, {"slopes": 0.5, "intercept": 0.02}) if intercept else lw.Isotropic(0.5)
    shared = PerOutput(Dense(x), 4)
    method = lw.Exact(newton=NewtonSteps(tol=1e-12))
    of_both = [
        lw.infer(lw.LinearModel(features, y, lw.Categorical()), prior=prior, method=method, draws=0)
        for features in (shared, shared.dense())
    ]
    one, other = of_both
    assert isinstance(one.gaussian.fit.search.rows.free, PerContrast)
    assert isinstance(other.gaussian.fit.search.rows.free, StoredDesign)
    assert float(one.log_evidence.value) == pytest.approx(float(other.log_evidence.value), abs=1e-9)
    # a gap of 1e-12 nats is a millionth of a standard deviation
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=3e-6)
    torch.testing.assert_close(one.covariance, other.covariance, rtol=0, atol=1e-5)
    again = lw.load(one.save(tmp_path / "posterior"))
    torch.testing.assert_close(again.mean, one.mean, rtol=0, atol=1e-9)
    if not intercept:
        torch.testing.assert_close(again.at(2.0).mean, other.at(2.0).mean, rtol=0, atol=3e-6)

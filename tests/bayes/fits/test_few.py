"""A search that begins with few of many data ends where a search over all of them does."""

import pytest
import torch

import lapwing as lw
from lapwing.bayes.fits import bound
from lapwing.bayes.fits.bound_search import BoundSearch
from lapwing.bayes.priors import Isotropic

N, D, C = 47, 4, 3


def problem(kind: str) -> lw.LinearModel:
    generator = torch.Generator().manual_seed(0)
    counts = 0.5 + torch.rand(N, generator=generator, dtype=torch.float64)
    if kind == "classes":
        X = torch.randn(N * C, D, generator=generator, dtype=torch.float64)
        scores = (X @ torch.tensor([1.0, -2.0, 0.5, 0.0]).double()).reshape(N, C)
        labels = (scores + torch.randn(N, C, generator=generator, dtype=torch.float64)).argmax(1)
        return lw.LinearModel(X, labels, lw.Categorical(), weights=counts)
    X = torch.randn(N, D, generator=generator, dtype=torch.float64)
    rate = (X @ torch.tensor([0.5, -0.3, 0.2, 0.0]).double()).exp()
    return lw.LinearModel(X, torch.poisson(rate, generator=generator), lw.Poisson(), weights=counts)


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_few_data_change_where_a_search_begins_not_where_it_ends(kind, monkeypatch):
    """Classes are searched for to 1e-3 nats, counts to 1e-17: bounds agree to that or to round-off."""
    model = problem(kind)
    whole = lw.infer(model, curvature="expected", draws=2)
    monkeypatch.setattr(bound, "FEW", 11)
    seen = []
    ascend = bound.Search.ascend
    monkeypatch.setattr(
        bound.Search, "ascend", lambda self, at, tune: seen.append(len(self.rows.offset)) or ascend(self, at, tune)
    )
    ours = lw.infer(model, curvature="expected", draws=2)
    assert {11, N} <= set(seen)
    near = {"classes": 1e-3, "counts": 1e-9}[kind]
    assert float(ours.log_evidence) == pytest.approx(float(whole.log_evidence), abs=near)
    torch.testing.assert_close(ours.mean, whole.mean, rtol=0, atol=30 * near)


def test_few_data_count_as_much_as_all(monkeypatch):
    model = problem("classes")
    prior = Isotropic().on(model.features, model.row_weights, model.blocks)
    rows = BoundSearch.of(model, prior, 0).rows
    assert rows.few is None
    monkeypatch.setattr(bound, "FEW", 11)
    few = BoundSearch.of(model, prior, 0).rows.few
    assert few is not None
    assert few.offset.shape == (11, C - 1)
    assert float(few.weights.sum()) == pytest.approx(float(rows.weights.sum()))

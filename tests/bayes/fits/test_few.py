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
    """Classes are searched for to 1e-3 nats, times as many data as there are few: both bounds are within that of the
    maximum. Counts are searched for to 1e-17: bounds agree to round-off."""
    model = problem(kind)
    whole = lw.infer(model, curvature="expected", draws=2)
    monkeypatch.setattr(bound, "FEW", 7)
    seen = []
    ascend = bound.Search.ascend
    monkeypatch.setattr(
        bound.Search, "ascend", lambda self, at, tune: seen.append(len(self.rows.offset)) or ascend(self, at, tune)
    )
    ours = lw.infer(model, curvature="expected", draws=2)
    assert {7, N} <= set(seen)
    near = {"classes": 1e-3 * (1 + N / 7), "counts": 1e-9}[kind]
    assert float(ours.log_evidence) == pytest.approx(float(whole.log_evidence), abs=near)
    torch.testing.assert_close(ours.mean, whole.mean, rtol=0, atol=30 * near)


def rows_of(model: lw.LinearModel) -> bound.ContrastRows:
    prior = Isotropic().on(model.features, model.row_weights, model.blocks)
    return BoundSearch.of(model, prior, 0).rows


def test_few_data_are_enough_where_there_are_not_many():
    assert rows_of(problem("classes")).few is None


def test_few_data_count_for_themselves_and_few_of_few_are_the_same_data(monkeypatch):
    """Places of places: what the likelihood is asked about is what the rows are of."""
    model = problem("classes")
    monkeypatch.setattr(bound, "FEW", 2)
    monkeypatch.setattr(bound, "TIMES", 3)
    rows = rows_of(model)
    fewer, fewest = rows.few, rows.few.few
    assert [len(one.offset) for one in (rows, fewer, fewest)] == [N, N // 3, N // 9]
    assert fewest.few is None
    for one in (fewer, fewest):
        torch.testing.assert_close(one.weights, model.weights[one.data], rtol=0, atol=0)
        torch.testing.assert_close(one.free.dense(), rows.free.dense()[one.data], rtol=0, atol=0)
        torch.testing.assert_close(one.offset, rows.offset[one.data], rtol=0, atol=0)


def test_few_data_find_a_precision_near_that_of_all(monkeypatch):
    """Counted as all, fewer data than weights would be interpolated, and the precision would end at its lowest."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(600, 12, generator=generator, dtype=torch.float64)
    scores = x @ torch.randn(12, 3, generator=generator, dtype=torch.float64)
    labels = (scores + torch.randn(600, 3, generator=generator, dtype=torch.float64)).argmax(1)
    features = torch.einsum("np,ab->napb", x, torch.eye(3).double()).reshape(1800, 36)
    monkeypatch.setattr(bound, "FEW", 16)
    rows = rows_of(lw.LinearModel(features, labels, lw.Categorical()))
    fewest = rows.few.few
    found = bound.maximum(fewest, 1e-2, from_ends=False).at
    whole = bound.maximum(rows, 1e-2, from_ends=False).at
    assert len(fewest.offset) < 36
    assert found.log_precision > fewest.lowest + 1
    assert abs(found.log_precision - whole.log_precision) < 2

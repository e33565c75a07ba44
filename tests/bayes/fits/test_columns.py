"""Columns in fewer coordinates: the same bound where nothing is left out, and a lower one where something is."""

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.bayes.fits import designs
from lapwing.bayes.fits.designs import StoredDesign, pivoted, reduced
from lapwing.bayes.fits.newton import NewtonSteps
from tests.bayes.fits.labelled import LIKELIHOODS, Labelled, labelled, normal

N, K, D, RANK = 9, 2, 23, 5


def inferred(of: Labelled, tol: float = 1e-12, precision: float | None = 0.7) -> lw.Posterior:
    return lw.infer(of.model, prior=lw.Isotropic(precision), method=lw.Exact(newton=NewtonSteps(tol=tol)), draws=0)


def flat(found: designs.Reduced) -> Tensor:  # (n · k, q)
    return found.design.dense().flatten(0, 1)


def blocks(matrix: Tensor, k: int) -> Tensor:
    return torch.stack([matrix[i : i + k, i : i + k] for i in range(0, len(matrix), k)])


class TestReduced:
    def test_fewer_columns_than_rows_stay(self):
        F = normal(N * K, 4, seed=0)
        found = reduced(F, K)
        assert torch.equal(flat(found), F)
        assert found.basis is None
        assert found.left_out is None

    def test_the_span_of_fewer_rows_is_exact(self):
        F = normal(N * K, D, seed=0)
        found = reduced(F, K)
        assert found.design.shape == (N, K, N * K)
        torch.testing.assert_close(flat(found) @ found.basis.mT, F, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.basis.mT @ found.basis, torch.eye(N * K).double(), rtol=0, atol=1e-12)
        assert found.left_out is None

    def test_chosen_rows_leave_a_remainder_of_every_datum(self, monkeypatch):
        monkeypatch.setattr(designs, "LARGEST", 7)
        F = normal(N * K, D, seed=0)
        found = reduced(F, K)
        assert found.design.shape == (N, K, 7)
        lacking = F @ F.mT - flat(found) @ flat(found).mT
        torch.testing.assert_close(found.left_out, blocks(lacking, K), rtol=0, atol=1e-12)
        assert float(torch.linalg.eigvalsh(lacking).min()) > -1e-12
        torch.testing.assert_close(found.basis.mT @ found.basis, torch.eye(7).double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(F @ found.basis, flat(found), rtol=0, atol=1e-11)
        torch.testing.assert_close(found.coordinates(F), flat(found), rtol=0, atol=1e-11)

    def test_of_very_many_rows_the_directions_with_most_of_them_are_taken(self, monkeypatch):
        monkeypatch.setattr(designs, "LARGEST", 4)
        monkeypatch.setattr(designs, "LARGEST_GRAM", 5)
        F = normal(N * K, 11, seed=0)
        found = reduced(F, K)
        _, values, V = torch.linalg.svd(F, full_matrices=False)
        torch.testing.assert_close(flat(found) @ found.basis.mT, F @ V[:4].mT @ V[:4], rtol=0, atol=1e-11)
        lacking = F @ (torch.eye(11).double() - V[:4].mT @ V[:4]) @ F.mT
        torch.testing.assert_close(found.left_out, blocks(lacking, K), rtol=0, atol=1e-11)
        left = found.left_out.diagonal(dim1=1, dim2=2).sum()
        assert float(left) == pytest.approx(float(values[4:].square().sum()))
        torch.testing.assert_close(found.coordinates(F), flat(found), rtol=0, atol=1e-11)

    def test_rows_of_low_rank_are_all_in_few_of_them(self, monkeypatch):
        monkeypatch.setattr(designs, "LARGEST", 7)
        F = normal(N * K, RANK, seed=0) @ normal(RANK, D, seed=1)
        found = reduced(F, K)
        assert found.design.shape == (N, K, RANK)
        torch.testing.assert_close(flat(found) @ found.basis.mT, F, rtol=0, atol=1e-11)

    def test_the_longest_remainder_is_next(self):
        gram = torch.diag(torch.tensor([1.0, 5.0, 3.0, 1e-9]).double())
        chosen, factor = pivoted(gram, 4, 1e-6)
        assert chosen.tolist() == [1, 2, 0]
        torch.testing.assert_close((factor @ factor.mT).diagonal()[:3], gram.diagonal()[:3])


class TestUnderTheBound:
    @pytest.mark.parametrize("kind", list(LIKELIHOODS))
    def test_a_row_space_changes_nothing(self, kind, monkeypatch):
        """The same model with more weights than outputs, its columns as they are."""
        of = labelled(kind, 7, 31, seed=2)
        new = normal(4 * of.features.shape[1], 31, seed=3)
        found = inferred(of)
        assert found.gaussian.fit.search.columns.basis is not None
        monkeypatch.setattr(
            "lapwing.bayes.fits.bound_search.reduced",
            lambda F, k: designs.Reduced(StoredDesign(F.reshape(-1, k, F.shape[1])), None, None),
        )
        whole = inferred(of)
        assert found.log_evidence.value == pytest.approx(float(whole.log_evidence.value), abs=1e-9)
        # a gap of 1e-12 nats is a millionth of a standard deviation
        torch.testing.assert_close(found.mean, whole.mean, rtol=0, atol=3e-6)
        torch.testing.assert_close(
            found.predict(new).epistemic_variance, whole.predict(new).epistemic_variance, rtol=3e-6, atol=0
        )

    @pytest.mark.parametrize("kind", ["labels", "classes"])
    def test_chosen_rows_that_span_all_change_nothing(self, kind, monkeypatch):
        of = labelled(kind, 9, 31, seed=2)
        m = of.features.shape[1]
        low = (normal(9 * m, RANK, seed=4) @ normal(RANK, 31, seed=5)).reshape(9, m, 31)
        of = Labelled(kind, low, of.targets, of.weights)
        whole = inferred(of)
        monkeypatch.setattr(designs, "LARGEST", 7)
        found = inferred(of)
        assert found.gaussian.fit.search.rows.free.shape[2] <= RANK
        assert found.log_evidence.value == pytest.approx(float(whole.log_evidence.value), abs=1e-9)
        torch.testing.assert_close(found.mean, whole.mean, rtol=0, atol=3e-6)

    @pytest.mark.parametrize("kind", ["labels", "counts"])
    def test_what_is_left_out_lowers_the_bound_by_little(self, kind, monkeypatch):
        """Weights outside of the chosen rows keep their prior: one Gaussian of many, so never above the best.

        With K the prior covariance of what is left out of the outputs, log p concave, its gradient g below the counts w
        and its curvature below w/4, the loss of labels is at most ½ E gᵀKg + ⅛ Σ w K_ii ≤ ½ Σ w_i |K_ij| w_j + ⅛ Σ w K_ii.
        """
        of = labelled(kind, 19, 31, signal=0.3, seed=2)
        of = Labelled(kind, of.features * torch.logspace(0, -3, 31, dtype=torch.float64), of.targets, of.weights)
        whole, F, w, losses = inferred(of), of.features[:, 0], of.weights, []
        for most in (5, 9, 13):
            monkeypatch.setattr(designs, "LARGEST", most)
            found = inferred(of)
            free = found.gaussian.fit.search.rows.free.dense()[:, 0]
            assert free.shape == (19, most)
            losses.append(float(whole.log_evidence.value) - float(found.log_evidence.value))
            K = (F @ F.mT - free @ free.mT) / 0.7
            if kind == "labels":
                assert losses[-1] < 0.5 * float(w @ K.abs() @ w) + float(w @ K.diagonal()) / 8
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] > -1e-9

    @pytest.mark.parametrize("kind", ["labels", "counts"])
    def test_a_search_for_the_precision_ends_at_the_top_where_something_is_left_out(self, kind, monkeypatch):
        """What is left out has a variance that falls with the precision, so it counts in the fixed point too."""
        of = labelled(kind, 19, 31, signal=0.6, seed=2)
        decaying = of.features * torch.logspace(0, -1, 31, dtype=torch.float64)
        targets = (decaying[:, 0, 0] + 0.5 * decaying[:, 0, 5] > 0).double() * (1 if kind == "labels" else 3)
        of = Labelled(kind, decaying, targets, of.weights)
        monkeypatch.setattr(designs, "LARGEST", 9)
        found = inferred(of, precision=None)
        assert found.gaussian.fit.search.rows.left_out is not None
        assert found.diagnostics.converged
        best, top = float(found.prior.precision[0]), float(found.log_evidence.value)
        low, high = (float(inferred(of, precision=best * step).log_evidence.value) for step in (0.9, 1 / 0.9))
        assert top > max(low, high)
        # a parabola through the three: its top is within what 1e-9 nats leave of a slope of zero, and a cubic term
        curvature = (2 * top - low - high) / 0.1053**2
        assert abs(high - low) / (2 * 0.1053) < 0.1 * curvature * 0.1053

"""Scores of inputs, one number each: of classes they are read from logits less their mean over the classes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.bayes.likelihoods import Spread
from lapwing.bayes.predictive import from_draws
from lapwing.families import monitor, temperature

N, M, C, D = 40, 11, 3, 7


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, NEW, LABELS = normal(N * C, D, seed=1), normal(M * C, D, seed=2), normal(N, C, seed=3).argmax(1)
CENTRE = torch.eye(C).double() - 1 / C


def fitted(method=None, x: Tensor = X, draws: int = 5) -> lw.Posterior:
    return lw.infer(lw.LinearModel(x, LABELS, lw.Categorical()), prior=lw.Isotropic(0.7), method=method, draws=draws)


def dense(covariance: Tensor, rows: Tensor = NEW) -> Tensor:  # (M, C, C)
    """C V C of the outputs of every input."""
    rows = rows.reshape(-1, C, rows.shape[1])
    return CENTRE @ rows @ covariance @ rows.mT @ CENTRE


def trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_scores_of_classes_are_those_of_centred_logits(side):
    posterior = fitted(lw.Exact(side))
    found = posterior.predict(NEW)
    left, prior = trace(dense(posterior.covariance)), trace(dense(torch.eye(D).double() / 0.7))
    torch.testing.assert_close(found.score_variance, left / C, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.novelty, left / prior, rtol=1e-10, atol=0)
    assert found.epistemic_variance.shape == found.prior_variance.shape == (M, C)
    rows = NEW.reshape(M, C, D)
    own = (rows @ posterior.covariance @ rows.mT).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.epistemic_variance, own, rtol=1e-10, atol=0)  # these are not centred
    torch.testing.assert_close(found.prior_variance, rows.square().sum(2) / 0.7, rtol=1e-12, atol=0)


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_a_shift_of_all_logits_is_no_uncertainty(side):
    """A feature that moves all logits alike, of any size: nothing is learnt of it, and no score sees it."""
    shifts = [1e4 * normal(count, 2, seed=seed).repeat_interleave(C, 0) for count, seed in ((N, 4), (M, 5))]
    plain, shifted = fitted(lw.Exact(side)), fitted(lw.Exact(side), torch.cat([X, shifts[0]], 1))
    one, other = plain.predict(NEW), shifted.predict(torch.cat([NEW, shifts[1]], 1))
    assert float((other.epistemic_variance / one.epistemic_variance).min()) > 100
    # a length of 1e4 leaves eps · 1e4 of a row; squares and sums over D weights: well below 1e-9
    torch.testing.assert_close(other.score_variance, one.score_variance, rtol=1e-9, atol=0)
    torch.testing.assert_close(other.novelty, one.novelty, rtol=1e-9, atol=0)


def test_where_only_the_shift_is_uncertain_nothing_is_novel():
    shift = normal(M, D, seed=6).repeat_interleave(C, 0)
    found = fitted().predict(shift)
    assert float(found.epistemic_variance.min()) > 0
    assert float(found.score_variance.abs().max()) < 1e-28 * float(found.epistemic_variance.max())
    assert ((found.novelty >= 0) & (found.novelty <= 1)).all()


@pytest.mark.parametrize("method", [lw.Krylov(rtol=1e-9), lw.CG(rtol=1e-9)], ids=["krylov", "cg"])
@pytest.mark.parametrize("draws", [2, 400])
def test_scores_from_draws_are_those_of_centred_draws(method, draws):
    """With fewer draws than classes the prior's variance comes from draws too, else from the rows."""
    posterior = fitted(method, draws=draws)
    found, gaussian, rows = posterior.predict(NEW), posterior.gaussian, NEW.reshape(M, C, D)

    def squares(columns: Tensor) -> Tensor:
        return (CENTRE @ (rows @ columns)).square().sum(1).mean(1)

    left, prior = squares(gaussian.deviations), trace(dense(torch.eye(D).double() / 0.7))
    if draws < C:
        prior = squares(posterior.prior.std[:, None] * gaussian.prior_noise)
    torch.testing.assert_close(found.score_variance, left / C, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.novelty, (left / prior).clamp(0, 1), rtol=1e-9, atol=1e-12)
    centred = dense(fitted(lw.Exact()).covariance)
    error = (2 * centred.square().sum((1, 2)) / draws).sqrt()
    if draws > C:
        assert ((left - trace(centred)) / error).abs().max() < 5


@pytest.mark.parametrize("method", [lw.Exact(), lw.Krylov(rtol=1e-9)], ids=["exact", "krylov"])
def test_parts_of_a_prediction_keep_their_scores(method, tmp_path):
    posterior = fitted(method)
    found = posterior.predict(NEW)
    for one in (found[[4, 0]], found.to("cpu")[[4, 0]], temperature.scaled(found, 2.5)[[4, 0]]):
        torch.testing.assert_close(one.novelty, found.novelty[[4, 0]], rtol=1e-12, atol=0)
    torch.testing.assert_close(
        temperature.scaled(found, 2.5).score_variance, found.score_variance / 2.5**2, rtol=1e-12, atol=0
    )
    assert found.to_frame()["novelty"].tolist() == found.novelty.tolist()
    again = lw.load(posterior.save(tmp_path / "posterior.safetensors")).predict(NEW)
    torch.testing.assert_close(again.novelty, found.novelty, rtol=1e-9, atol=1e-12)


def test_left_out_data_have_scores_of_centred_logits():
    posterior = fitted()
    found, covariance = posterior.leave_one_out().prediction, posterior.leave_one_out().prediction.observation.spread
    left, prior = trace(CENTRE @ covariance.covariance @ CENTRE), trace(dense(torch.eye(D).double() / 0.7, X))
    torch.testing.assert_close(found.novelty, left / prior, rtol=1e-9, atol=0)


def test_draws_of_networks_and_of_their_prior_are_centred():
    drawn, prior = normal(20, M, C, seed=7), 2 * normal(30, M, C, seed=8)
    found = from_draws(drawn, lw.Categorical(), prior)
    left, before = ((part @ CENTRE).var(0).sum(1) for part in (drawn, prior))
    torch.testing.assert_close(found.novelty, (left / before).clamp(0, 1), rtol=1e-10, atol=0)
    torch.testing.assert_close(found.prior_variance, prior.var(0), rtol=1e-12, atol=0)
    shifted = from_draws(drawn + normal(20, M, 1, seed=9), lw.Categorical(), prior)
    torch.testing.assert_close(shifted.score_variance, found.score_variance, rtol=1e-10, atol=0)
    torch.testing.assert_close(from_draws(drawn, lw.Categorical(), "not known").score_variance, left / C)
    numbers = from_draws(drawn, lw.Gaussian(0.5), prior)
    torch.testing.assert_close(numbers.score_variance, drawn.var(0).mean(1))
    torch.testing.assert_close(numbers.novelty, (drawn.var(0).sum(1) / prior.var(0).sum(1)).clamp(0, 1))


def test_single_precision_loses_no_digits_to_the_shift():
    """A shift of variance 1e6 beside logits of variance one: centred first, rounded after."""
    own = normal(M, C, C, seed=10)
    covariance = own @ own.mT + 1e6
    wide = Spread(covariance.diagonal(dim1=1, dim2=2), covariance)
    expected = trace(CENTRE @ (own @ own.mT) @ CENTRE)
    torch.testing.assert_close(wide.centred_variance, expected, rtol=1e-8, atol=0)  # eps · 1e6 is 2e-10
    assert wide.like(torch.zeros(1)).centred_variance.dtype == torch.float32
    torch.testing.assert_close(wide.like(torch.zeros(1)).centred_variance.double(), expected, rtol=1e-6, atol=0)


def test_logits_without_a_covariance_count_as_independent():
    found = fitted().predict(NEW)
    alone = Spread(found.epistemic_variance, None)
    known = replace(found, observation=replace(found.observation, spread=alone))
    torch.testing.assert_close(known.score_variance, (1 - 1 / C) * found.epistemic_variance.mean(1))


def test_a_monitor_by_variance_reads_centred_logits():
    posterior = fitted()
    watching = monitor.fit(posterior, NEW, score="epistemic_variance")
    torch.testing.assert_close(watching.scores(NEW), posterior.predict(NEW).score_variance)

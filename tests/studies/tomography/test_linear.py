"""The linear model of a reconstruction and its posterior over the image, against dense truth."""

import math
from dataclasses import replace

import pytest
import torch

from lapwing import Exact, Isotropic, Krylov, infer
from lapwing.bayes.noise import Noise
from lapwing.studies.tomography import FilterPrior, linearise, quantify, stabiliser
from lapwing.studies.tomography.filter_prior import blocks_of
from lapwing.studies.tomography.type_ii.exact import ExactEvidence
from tests.properties import check_covariance, check_operator
from tests.studies.tomography import problems

NOISE = 0.3


@pytest.fixture(scope="module")
def parts():
    """Linearised, prior, J, Σ_θ, A, and the dense posterior covariance of the image."""
    linear = problems.linear()
    prior = problems.prior(linear.blocks)
    J, S = problems.dense_jacobian(linear.reconstruction), problems.dense_covariance(linear.reconstruction.model, prior)
    A = linear.projector.operator.dense()
    ff = J @ S @ J.mT
    yy = A @ ff @ A.mT + NOISE**2 * torch.eye(len(A)).double()
    return linear, prior, J, S, A, ff - ff @ A.mT @ torch.linalg.solve(yy, A @ ff)


def test_jacobian_is_that_of_reverse_mode(parts):
    linear, J = parts[0], parts[2]
    torch.testing.assert_close(linear.jacobian.dense(), J, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(problems.linear(store=False).jacobian.dense(), J, rtol=1e-9, atol=1e-9)


def test_targets_are_what_the_linear_model_is_to_explain(parts):
    linear, _, J, _, A, _ = parts
    found = linear.reconstruction
    expected = found.scan.flat - A @ found.image.reshape(-1) + A @ J @ linear.weights
    torch.testing.assert_close(linear.targets, expected, rtol=1e-9, atol=1e-9)


def test_the_prior_is_the_one_written_out(parts, generator):
    _linear, prior, _, S = parts[:4]
    root = prior.root()
    torch.testing.assert_close((root @ root.T).dense(), S, rtol=1e-10, atol=1e-12)
    check_operator(root, root.dense(), generator)
    torch.testing.assert_close(root.inverse(root.dense()), torch.eye(len(S)).double(), rtol=0, atol=1e-9)
    assert prior.log_det() == pytest.approx(-float(torch.linalg.slogdet(S).logabsdet))
    few = slice(0, 40)
    check_covariance(prior.draw(Noise(0), 4000)[few], S[few, few])


def test_three_forms_of_the_evidence_are_equal(parts):
    linear, prior, J, S, A, _ = parts
    phi, t, n = A @ J, linear.targets, len(A)
    yy = phi @ S @ phi.mT + NOISE**2 * torch.eye(n).double()
    of_data = torch.distributions.MultivariateNormal(torch.zeros(n).double(), yy).log_prob(t)
    H = phi.mT @ phi / NOISE**2 + torch.linalg.inv(S)
    mode = torch.linalg.solve(H, phi.mT @ t / NOISE**2)
    energy = (t - phi @ mode).square().sum() / NOISE**2 + mode @ torch.linalg.solve(S, mode)
    dets = -torch.linalg.slogdet(H).logabsdet - torch.linalg.slogdet(S).logabsdet - n * math.log(NOISE**2)
    of_weights = 0.5 * (dets - energy - n * math.log(2 * math.pi))
    by_grams = ExactEvidence.of(linear).log_evidence(prior, torch.tensor(NOISE**2, dtype=torch.float64))
    white = linear.model(prior, NOISE)
    primal, dual = (
        infer(white, prior=Isotropic(1.0), method=Exact(side), draws=0).log_evidence for side in ("primal", "dual")
    )
    for value in (of_weights, by_grams, primal):
        assert float(value) == pytest.approx(float(of_data), rel=1e-8)
    # infer finds the left singular vectors of the dual as Φ V / √s, which costs digits where s is near round-off: half
    # of the directions here
    assert float(dual) == pytest.approx(float(of_data), rel=1e-4)


def test_also_with_more_data_than_pixels():
    linear = problems.linear(angles=9)
    prior, A = problems.prior(linear.blocks), linear.projector.operator.dense()
    assert len(A) > linear.projector.size**2
    S = problems.dense_covariance(linear.reconstruction.model, prior)
    phi = A @ problems.dense_jacobian(linear.reconstruction)
    yy = phi @ S @ phi.mT + NOISE**2 * torch.eye(len(A)).double()
    expected = torch.distributions.MultivariateNormal(torch.zeros(len(A)).double(), yy).log_prob(linear.targets)
    found = ExactEvidence.of(linear).log_evidence(prior, torch.tensor(NOISE**2, dtype=torch.float64))
    assert float(found) == pytest.approx(float(expected), rel=1e-8)


def test_evidence_at_the_weights_is_the_published_bound(parts):
    linear, prior, J, S, A, _ = parts
    found, n = linear.reconstruction, len(A)
    yy = A @ J @ S @ J.mT @ A.mT + NOISE**2 * torch.eye(n).double()
    misfit = (found.scan.flat - A @ found.image.reshape(-1)).square().sum()
    expected = -0.5 * (
        misfit / NOISE**2 + linear.weights @ torch.linalg.solve(S, linear.weights)
        + torch.linalg.slogdet(yy).logabsdet + n * math.log(2 * math.pi)
    )  # fmt: skip
    at_weights = ExactEvidence.of(linear, "weights").log_evidence(prior, torch.tensor(NOISE**2, dtype=torch.float64))
    assert float(at_weights) == pytest.approx(float(expected), rel=1e-5)  # the misfit was noted in single precision
    at_mode = ExactEvidence.of(linear).log_evidence(prior, torch.tensor(NOISE**2, dtype=torch.float64))
    assert float(at_weights) < float(at_mode)


@pytest.mark.parametrize("store", [True, False])
def test_standard_deviation_and_mean_are_the_closed_form(parts, store):
    linear, prior, J, S, A, covariance = parts
    found = quantify(problems.linear(store=store), prior, NOISE)
    assert found.exact
    torch.testing.assert_close(found.std.reshape(-1), covariance.diagonal().clamp_min(0).sqrt(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.covariance(), covariance, rtol=1e-6, atol=1e-10)
    phi = A @ J
    gain = S @ phi.mT @ torch.linalg.inv(phi @ S @ phi.mT + NOISE**2 * torch.eye(len(A)).double())
    shift = J @ (gain @ linear.targets - linear.weights)
    expected = linear.reconstruction.image + shift.reshape(8, 8)
    torch.testing.assert_close(found.linear_mean, expected, rtol=1e-6, atol=1e-8)
    assert torch.equal(found.mean, linear.reconstruction.image)


def test_matheron_draws_have_the_posterior_covariance(parts):
    linear, prior, covariance = parts[0], parts[1], parts[5]
    kept = covariance.diagonal() > 1e-8 * covariance.diagonal().max()
    for store, method, draws in ((True, None, 2000), (False, Krylov(rtol=1e-3), 150)):
        found = quantify(problems.linear(store=store), prior, NOISE, method=method, draws=draws)
        drawn = found.deviations().reshape(draws, -1)
        check_covariance(drawn[:, kept].mT, covariance[kept][:, kept])
    again = quantify(linear, prior, NOISE).deviations(1000).reshape(1000, -1)
    check_covariance(again[:, kept].mT, covariance[kept][:, kept])


def test_patches_and_densities(parts):
    linear, prior, covariance = parts[0], parts[1], parts[5]
    found, truth, floor = quantify(linear, prior, NOISE), linear.reconstruction.scan.truth, 1e-3
    error = (truth - found.mean).reshape(-1)
    eye = torch.eye(64).double()
    whole = torch.distributions.MultivariateNormal(torch.zeros(64).double(), covariance + floor * eye).log_prob(error)
    assert found.log_density(truth, patch=8, floor=floor) == pytest.approx(float(whole) / 64, rel=1e-6)
    alone = torch.distributions.Normal(0, (covariance.diagonal() + floor).sqrt()).log_prob(error).mean()
    assert found.log_density(truth, floor=floor) == pytest.approx(float(alone), rel=1e-6)
    threes = list(found.patches(3))
    assert sorted(torch.cat([pixels for pixels, _ in threes]).tolist()) == list(range(64))
    assert [len(pixels) for pixels, _ in threes] == [9, 9, 6, 9, 9, 6, 6, 6, 4]
    pixels, small = threes[4]
    torch.testing.assert_close(small, covariance[pixels][:, pixels], rtol=1e-6, atol=1e-10)
    total = sum(
        torch.distributions.MultivariateNormal(
            torch.zeros(len(p)).double(), covariance[p][:, p] + floor * torch.eye(len(p)).double()
        ).log_prob(error[p])
        for p, _ in threes
    )
    assert found.log_density(truth, patch=3, floor=floor) == pytest.approx(float(total) / 64, rel=1e-6)


def test_covariances_from_draws_are_averaged_with_their_diagonal(parts):
    prior = parts[1]
    found = quantify(problems.linear(store=False), prior, NOISE, method=Krylov(), draws=40)
    pixels, covariance = next(found.patches(2))
    drawn = found.deviations().reshape(40, -1)[:, pixels]
    plain = drawn.mT @ drawn / 40
    torch.testing.assert_close(covariance, (plain + plain.diagonal().diag()) / 2)
    assert not found.exact


def test_the_stabiliser_is_what_noise_makes_of_least_squares():
    A = problems.linear(angles=9).projector
    dense = A.operator.dense()
    pseudo = torch.linalg.pinv(dense.mT @ dense, rtol=1e-14)
    singular = torch.linalg.svdvals(dense)
    assert stabiliser(A, 0.5, vectors=64) == pytest.approx(0.25 * float(singular[:32].pow(-2).sum()) / 64, rel=1e-6)
    assert stabiliser(A, 0.5, vectors=20) == pytest.approx(0.25 * float(singular[:20].pow(-2).sum()) / 64, rel=1e-6)
    assert stabiliser(A, 0.5, vectors=64) <= 0.25 * float(pseudo.diagonal().mean()) * (1 + 1e-6)


def test_bad_input_is_explained(parts):
    linear, prior = parts[:2]
    with pytest.raises(ValueError, match="noise_std is 0.0, expected a positive"):
        quantify(linear, prior, 0.0)
    found = quantify(linear, prior, NOISE)
    flat = replace(found, std=torch.zeros(8, 8).double())
    with pytest.raises(ValueError, match="64 pixels have no variance at all"):
        flat.log_density(torch.ones(8, 8))
    with pytest.raises(ValueError, match="patch is 0"):
        found.log_density(torch.ones(8, 8), patch=0)
    with pytest.raises(ValueError, match="not square"):
        found.log_density(torch.ones(8, 7))
    with pytest.raises(ValueError, match="both must be positive"):
        FilterPrior.start(linear.blocks, variance=0.0)
    with torch.random.fork_rng(), pytest.raises(ValueError, match="square filters of one size"):
        blocks_of(torch.nn.Sequential(torch.nn.Conv2d(1, 2, (3, 1))))


def test_a_network_in_single_precision_has_the_same_error_bars():
    found = problems.single()
    stored, products = linearise(found), linearise(found, store=False)
    prior = problems.prior(stored.blocks)
    exactly = quantify(stored, prior, NOISE).std
    dual = quantify(products, prior, NOISE)
    kept = exactly > 1e-3 * exactly.max()
    assert products.jacobian.like.dtype == torch.float32
    torch.testing.assert_close(dual.std[kept], exactly[kept], rtol=1e-3, atol=0)
    drawn = quantify(products, prior, NOISE, method=Krylov(), draws=80)
    assert drawn.posterior.diagnostics.converged  # products are taken in float64
    ratio = (drawn.std / exactly)[kept]
    assert (ratio - 1).abs().max() <= 5 / (2 * 80) ** 0.5  # five standard errors of a standard deviation

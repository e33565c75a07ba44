"""Rays that are held out: which, how they are predicted, and what becomes of the error bars."""

import math

import pytest
import torch

from lapwing.studies.tomography import ParallelBeam, calibrate, linearise, projector, quantify, tune
from lapwing.studies.tomography.calibration import carried, compare, held_out, likeliest, part_of
from lapwing.studies.tomography.filter_prior import FilterPrior
from tests.studies.tomography.problems import linear, prior, reconstruction

NOISE = 0.05


@pytest.fixture(scope="module")
def posterior():
    known = linear()
    return quantify(known, prior(known.blocks), NOISE, draws=4000)


def test_a_part_of_a_scan_has_its_own_rays_alone():
    scan = reconstruction(7, 8).scan
    mask = held_out(7, 3)
    assert mask.tolist() == [False, True, False, False, True, False, False]
    part = part_of(scan, mask)
    whole = scan.projector.operator.dense().reshape(7, -1, 64)
    torch.testing.assert_close(part.projector.operator.dense(), whole[mask].reshape(-1, 64), rtol=0, atol=0)
    torch.testing.assert_close(part.sinogram, scan.sinogram[mask], rtol=0, atol=0)
    again = projector(ParallelBeam(scan.projector.geometry.angles[mask], scan.projector.shape[1]), 8)
    torch.testing.assert_close(part.projector.operator.dense(), again.operator.dense(), rtol=0, atol=1e-12)


def test_a_prior_is_carried_by_what_is_typical():
    known = linear()
    one = prior(known.blocks)
    torch.testing.assert_close(carried(one, known.weights, known.weights).log_variance, one.log_variance)
    twice = carried(one, known.weights, 2 * known.weights).log_variance - one.log_variance
    least = FilterPrior.typical(known.blocks, known.weights).log_variance > math.log(1.001e-3)
    torch.testing.assert_close(twice[least], torch.full_like(twice[least], math.log(4)))


def test_unseen_rays_are_predicted_by_the_dense_covariance(posterior):
    """Variances of 4,000 draws err by 2.2 %, the scale of a whole sinogram by less."""
    rays = projector(ParallelBeam([0.3, 1.2, 2.0], 11), 8)
    A = rays.operator.dense()
    truth = posterior.linear.reconstruction.scan.truth
    measured = A @ truth.reshape(-1)
    found = compare(posterior, rays, measured, NOISE)
    variance = (A @ posterior.covariance() @ A.mT).diagonal()
    seen = variance > 1e-12
    for held, image in ((found.network, posterior.mean), (found.linear, posterior.linear_mean)):
        residual = (measured - A @ image.reshape(-1))[seen]
        expected = likeliest(residual, variance[seen], NOISE)
        assert held.residual_rms == pytest.approx(expected.residual_rms, rel=1e-9)
        assert held.scale == pytest.approx(expected.scale, rel=0.05)
        assert held.log_density >= held.log_density_as_it_was
    assert (found.angles, found.rays) == (3, int(seen.sum()))
    assert found.prefers_linear == (found.linear.log_density >= found.network.log_density)


def test_a_scale_widens_bars_draws_and_covariances_alike(posterior):
    wide = posterior.about_linear_mean().widened(1.5)
    torch.testing.assert_close(wide.std, 1.5 * posterior.std)
    torch.testing.assert_close(wide.deviations(), 1.5 * posterior.deviations())
    torch.testing.assert_close(wide.covariance(), 2.25 * posterior.covariance())
    torch.testing.assert_close(wide.widened(2.0).std, 3 * posterior.std)
    back = wide.as_linearised()
    torch.testing.assert_close(back.std, posterior.std)
    assert torch.equal(back.mean, posterior.mean)
    for scale in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="expected a positive number"):
            posterior.widened(scale)


def test_a_calibration_makes_the_truth_likelier():
    """On a phantom whose own bars are far too narrow; held-out rays see that without the truth."""
    known = linearise(reconstruction(9, 8))
    tuned = tune(known, progress=False)
    before = quantify(known, tuned.prior, tuned.noise_std, draws=8)
    found = calibrate(known, tuned, every=4, progress=False)
    after = found.applied(before)
    truth = known.reconstruction.scan.truth
    assert found.angles == 2
    assert after.scale == found.scale
    assert torch.equal(after.mean, before.linear_mean if found.prefers_linear else before.mean)
    assert after.log_density(truth, floor=1e-5) > before.log_density(truth, floor=1e-5)
    again = calibrate(known, tuned, every=4, progress=False)
    assert again == found


def test_too_few_angles_are_refused():
    with pytest.raises(ValueError, match="2 angles and one of every 6 to hold out: expected at least 3 angles"):
        held_out(2, 6)
    with pytest.raises(ValueError, match="one of every 1"):
        held_out(9, 1)
    assert held_out(4, 6).tolist() == [False, False, True, False]

"""The deep image prior: what it fits, keeps, resumes and refuses."""

from dataclasses import replace

import pytest
import torch

from lapwing.studies.tomography import (
    FanBeam,
    ParallelBeam,
    Scan,
    Settings,
    UNet,
    cgls,
    deep_image_prior,
    projector,
    simulate,
)
from lapwing.studies.tomography.deep_image_prior import ROUND
from tests.studies.tomography.problems import SMALL, phantom


def scan(noise=0.05):
    return simulate(phantom(8), projector(ParallelBeam.spread(5, 8), 8), noise=noise)


def test_it_beats_least_squares_and_stops_at_the_noise():
    seen = scan()
    found = deep_image_prior(seen, replace(SMALL, steps=1500, tv_weight=1e-4), progress=False)
    assert found.stopped_at_noise
    assert found.steps < 1500
    assert found.misfit <= seen.noise_std * (1 + 1e-4)
    error, plain = ((image - seen.truth).square().mean() for image in (found.image, cgls(seen).image))
    assert error < 0.5 * plain


def test_the_same_seed_makes_the_same_image():
    one, other = (deep_image_prior(scan(), replace(SMALL, steps=ROUND), progress=False) for _ in range(2))
    assert torch.equal(one.image, other.image)


def test_weights_are_those_of_the_smallest_loss():
    found = deep_image_prior(scan(), replace(SMALL, steps=150, stop_at_noise=False, learning_rate=0.1), progress=False)
    image = found.image
    tv = image.diff(dim=0).abs().sum() + image.diff(dim=1).abs().sum()
    loss = float(found.misfit**2 + SMALL.tv_weight * tv)
    assert loss <= min(epoch.loss for epoch in found.curve)  # the mean over a round is no smaller than its smallest
    assert not found.model.training


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path):
    settings = replace(SMALL, steps=3 * ROUND, stop_at_noise=False)
    whole = deep_image_prior(scan(), settings, progress=False)
    file = tmp_path / "half.pt"
    deep_image_prior(scan(), replace(settings, steps=ROUND), checkpoint=file, progress=False)
    resumed = deep_image_prior(scan(), settings, checkpoint=file, progress=False)
    torch.testing.assert_close(resumed.image, whole.image, rtol=1e-6, atol=1e-6)
    assert [epoch.loss for epoch in resumed.curve] == pytest.approx([epoch.loss for epoch in whole.curve], rel=1e-5)
    with pytest.raises(ValueError, match="of another run: scan differ"):
        deep_image_prior(scan(0.06), settings, checkpoint=file, progress=False)


def test_noise_as_input_and_a_fan_of_rays_work_too():
    fan = simulate(phantom(8), projector(FanBeam.spread(6, 8), 8))
    for settings in (SMALL, replace(SMALL, input="noise")):
        found = deep_image_prior(fan, settings, progress=False)
        assert found.misfit < 0.5 * float(fan.sinogram.std())


def test_a_scan_without_a_known_noise_takes_all_steps():
    seen = scan()
    found = deep_image_prior(Scan(seen.projector, seen.sinogram), replace(SMALL, steps=120), progress=False)
    assert found.steps == 150
    assert not found.stopped_at_noise


def test_published_settings_are_there():
    assert Settings.published(20, 10) == Settings(
        (32, 32, 32), tv_weight=3e-4, steps=17_000, learning_rate=1e-4, stop_at_noise=False
    )
    large = Settings.large()
    assert len(large.channels) == 6
    assert not large.sigmoid
    with pytest.raises(ValueError, match="nothing is published for 7 angles"):
        Settings.published(7, 5)


@pytest.mark.parametrize("size", [12, 13])
def test_a_unet_keeps_the_size_of_its_input(size):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = UNet((4, 6, 5), (0, 3), groups=1)
        image = net(torch.rand(2, 1, size, size))
    assert image.shape == (2, 1, size, size)
    assert 0 < image.min() < image.max() < 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UNet((8,), ()), "two or more scales"),
        (lambda: UNet((8, 8), (2, 2)), "one skip for each but the coarsest"),
        (lambda: UNet((8, 8), (2,), dropout=1.0), "a probability below 1"),
        (lambda: Settings(input="zeros"), "input is 'zeros'"),
        (lambda: Settings(steps=0), "expected positive numbers"),
    ],
)
def test_bad_input_is_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""Corruptions against other libraries, closed forms and statistics; the same whatever the batches."""

import colorsys
import math

import numpy as np
import pytest
import scipy.signal
import torch
from PIL import Image

from benchmarks.corruptions import CORRUPTIONS, ROTATIONS, SEVERITIES, corrupt, rotate

KINDS = list(CORRUPTIONS)
DETERMINISTIC = ["defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg"]


def pictures(*shape, seed=1):
    """Smooth pictures with something in every frequency, away from 0 and 1."""
    noise = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    smooth = torch.nn.functional.avg_pool2d(noise, 3, 1, 1, count_include_pad=False)
    return 0.2 + 0.6 * (0.7 * smooth + 0.3 * noise)


class TestEveryKind:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shape", [(4, 3, 32, 32), (4, 1, 28, 28), (2, 3, 20, 26)])
    def test_stays_in_range_and_keeps_form(self, kind, shape):
        x = pictures(*shape).float()
        before = x.clone()
        for severity in SEVERITIES:
            worse = corrupt(x, kind, severity)
            assert (worse.shape, worse.dtype) == (x.shape, x.dtype)
            assert 0 <= float(worse.min()) <= float(worse.max()) <= 1
            assert not torch.equal(worse, x)
        assert torch.equal(x, before)

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_same_by_seed_whatever_the_batches(self, kind):
        x = pictures(5, 3, 16, 18)
        whole = corrupt(x, kind, 3, seed=7)
        parts = torch.cat([corrupt(x[:2], kind, 3, seed=7), corrupt(x[2:], kind, 3, seed=7, first=2)])
        assert torch.equal(whole, parts)
        other = corrupt(x, kind, 3, seed=8)
        assert torch.equal(whole, other) == (kind in DETERMINISTIC)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "elastic"])
    def test_severities_grow(self, kind):
        # elastic bends are not ordered by pixel error: the strongest ones are the most local
        x = pictures(6, 3, 32, 32)
        errors = [float((corrupt(x, kind, severity) - x).square().mean()) for severity in SEVERITIES]
        assert errors == sorted(set(errors))

    @pytest.mark.parametrize("kind", KINDS)
    def test_black_and_empty_stacks(self, kind):
        assert corrupt(torch.zeros(0, 3, 16, 16), kind, 2).shape == (0, 3, 16, 16)
        assert bool(corrupt(torch.zeros(2, 3, 16, 16), kind, 5).isfinite().all())

    @pytest.mark.parametrize("kind", ["defocus_blur", "motion_blur", "zoom_blur", "contrast", "pixelate", "elastic"])
    def test_flat_pictures_stay_flat(self, kind):
        flat = torch.full((2, 3, 16, 18), 102 / 255, dtype=torch.float64)
        torch.testing.assert_close(corrupt(flat, kind, 5), flat, rtol=0, atol=1e-12)


class TestNoise:
    def flat(self, value, count=40):
        return torch.full((count, 3, 32, 32), value, dtype=torch.float64)

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_gaussian(self, severity):
        noise = corrupt(self.flat(0.5), "gaussian_noise", severity) - 0.5
        std = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
        n = noise.numel()
        assert abs(float(noise.mean())) < 5 * std / math.sqrt(n)
        assert abs(float(noise.var()) / std**2 - 1) < 5 * math.sqrt(2 / n)

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_shot(self, severity):
        photons = (500, 250, 100, 75, 50)[severity - 1]
        values = corrupt(self.flat(0.4), "shot_noise", severity)
        n, variance = values.numel(), 0.4 / photons
        assert abs(float(values.mean()) - 0.4) < 5 * math.sqrt(variance / n)
        kurtosis = 2 + 1 / (0.4 * photons)  # (fourth central moment / variance²) − 1 of a Poisson variable
        assert abs(float(values.var()) / variance - 1) < 5 * math.sqrt(kurtosis / n)
        torch.testing.assert_close(values * photons, (values * photons).round(), rtol=0, atol=1e-9)

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_impulse(self, severity):
        share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
        values = corrupt(self.flat(0.4), "impulse_noise", severity)
        for extreme in (0.0, 1.0):
            found = float((values == extreme).double().mean())
            assert abs(found - share / 2) < 5 * math.sqrt(share / 2 / values.numel())
        assert set(values.unique().tolist()) == {0.0, 0.4, 1.0}

    def test_pictures_have_independent_noise(self):
        noise = (corrupt(self.flat(0.5, 2), "gaussian_noise", 1) - 0.5).flatten(1)
        correlation = float(torch.corrcoef(noise)[0, 1])
        assert abs(correlation) < 5 / math.sqrt(noise.shape[1])


class TestAgainstOthers:
    def test_brightness_is_that_of_hsv(self):
        x = pictures(2, 3, 5, 6)
        x[0, :, 0, 0] = 0.0
        x[0, :, 0, 1] = torch.tensor([0.0, 0.3, 0.9])
        worse = corrupt(x, "brightness", 5)
        for n in range(2):
            for i in range(5):
                for j in range(6):
                    h, s, v = colorsys.rgb_to_hsv(*x[n, :, i, j].tolist())
                    expected = colorsys.hsv_to_rgb(h, s, min(v + 0.3, 1))
                    assert worse[n, :, i, j].tolist() == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_pixelate_is_pillows_box_filter(self, severity):
        x = pictures(3, 1, 32, 28)
        share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
        for before, after in zip(x, corrupt(x, "pixelate", severity), strict=True):
            picture = Image.fromarray(before[0].float().numpy())
            small = picture.resize((int(28 * share), int(32 * share)), Image.Resampling.BOX)
            expected = np.asarray(small.resize((28, 32), Image.Resampling.BOX))
            np.testing.assert_allclose(after[0].numpy(), expected, atol=2e-7)  # theirs are float32

    @pytest.mark.parametrize("channels", [1, 3])
    def test_jpeg_is_pillows(self, channels):
        import io

        x = pictures(1, channels, 24, 32)
        whole = np.rint(x[0].numpy() * 255).astype(np.uint8).transpose(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(whole.squeeze()).save(file, "JPEG", quality=50)
        expected = np.asarray(Image.open(file)).reshape(24, 32, channels).transpose(2, 0, 1) / 255
        np.testing.assert_allclose(corrupt(x, "jpeg", 4)[0].numpy(), expected, atol=1e-12)

    def test_defocus_of_a_point_is_the_disc(self):
        x = torch.zeros(1, 1, 15, 17, dtype=torch.float64)
        x[0, 0, 7, 8] = 1
        blurred = corrupt(x, "defocus_blur", 5)[0, 0].numpy()  # radius 1.5: the nine nearest; the rim hardly softened
        disc = np.zeros((15, 17))
        disc[6:9, 7:10] = 1 / 9
        np.testing.assert_allclose(blurred, disc, atol=1e-12)
        soft = np.exp(-np.array([1, 0, 1]) / (2 * 0.6**2))
        soft /= soft.sum()
        expected = np.zeros((15, 17))
        expected[6:9, 7:10] = np.outer(soft, soft)
        np.testing.assert_allclose(corrupt(x, "defocus_blur", 3)[0, 0].numpy(), expected, atol=1e-12)

    def test_blurs_are_the_convolution_with_their_response_to_a_point(self):
        x, point = pictures(1, 1, 45, 47), torch.zeros(1, 1, 45, 47, dtype=torch.float64)
        point[0, 0, 22, 23] = 1
        for kind in ("defocus_blur", "motion_blur"):
            response, blurred = (corrupt(values, kind, 2)[0, 0].numpy() for values in (point, x))
            expected = scipy.signal.convolve2d(x[0, 0].numpy(), response, mode="same")
            inner = (slice(18, 27), slice(18, 29))  # away from the edges, which are continued, not black
            np.testing.assert_allclose(blurred[inner], expected[inner], atol=1e-12)
            assert response.sum() == pytest.approx(1)

    def test_motion_is_a_one_sided_trail(self):
        point = torch.zeros(1, 1, 45, 47, dtype=torch.float64)
        point[0, 0, 22, 23] = 1
        rows, columns = np.nonzero(corrupt(point, "motion_blur", 1)[0, 0].numpy() > 1e-12)
        assert (columns <= 23).all()
        angles = np.degrees(np.arctan2(rows - 22.0, 23.0 - columns))[(columns < 20)]
        assert (np.abs(angles) < 50).all()  # 45° and what rounding to pixels adds

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_contrast_shrinks_the_spread_of_each_channel(self, severity):
        x = pictures(2, 3, 9, 11)
        worse = corrupt(x, "contrast", severity)
        torch.testing.assert_close(worse.mean((2, 3)), x.mean((2, 3)))
        torch.testing.assert_close(worse.std((2, 3)), (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] * x.std((2, 3)))

    def test_zoom_blur_of_a_ramp(self):
        # a ramp through the middle becomes the same ramp with the mean of 1, 1 and 1/zoom as its slope
        ramp = torch.linspace(0.1, 0.9, 21, dtype=torch.float64).expand(1, 1, 16, 21)
        slope = np.mean([1.0, *(1 / (1 + k / 100) for k in range(11))])
        torch.testing.assert_close(corrupt(ramp, "zoom_blur", 2), 0.5 + slope * (ramp - 0.5))

    def test_elastic_without_displacement_is_affine(self):
        rows, columns = torch.meshgrid(torch.arange(33.0), torch.arange(35.0), indexing="ij")
        plane = ((rows + columns) / 100 + 0.1).double()[None, None]
        bent = corrupt(plane, "elastic", 1)[0, 0].numpy()[8:-8, 8:-8]  # where nothing is taken from beyond the edge
        i, j = np.indices(bent.shape)
        design = np.column_stack([i.ravel(), j.ravel(), np.ones(bent.size)])
        fit = design @ np.linalg.lstsq(design, bent.ravel(), rcond=None)[0]
        np.testing.assert_allclose(bent.ravel(), fit, atol=1e-12)
        assert np.abs(bent - plane[0, 0].numpy()[8:-8, 8:-8]).max() > 1e-3

    def test_fog_mixes_a_cloud_into_the_picture(self):
        x = pictures(1, 3, 20, 26)
        worse = corrupt(x, "fog", 4)
        top = x.max()
        cloud = worse * (top + 1) / top - x  # the same in every channel, in [0, 1]
        torch.testing.assert_close(cloud[:, 0], cloud[:, 1])
        torch.testing.assert_close(cloud[:, 0], cloud[:, 2])
        assert -1e-12 <= float(cloud.min()) < float(cloud.max()) <= 1 + 1e-12
        steps = cloud[0, 0].diff(dim=1).abs().mean()  # neighbours are much alike
        assert float(steps) < 0.5 * float(cloud[0, 0].std())


class TestRotations:
    def test_quarter_turns_are_exact(self):
        x = pictures(2, 3, 12, 12)
        for quarters in range(5):
            torch.testing.assert_close(rotate(x, 90 * quarters), torch.rot90(x, quarters, (2, 3)), rtol=0, atol=1e-12)

    def test_half_turn_of_an_oblong(self):
        x = pictures(2, 1, 10, 15)
        torch.testing.assert_close(rotate(x, 180), x.flip(2, 3), rtol=0, atol=1e-12)

    def test_a_plane_turns_with_the_angle_in_oblongs_too(self):
        height, width, angle = 40, 60, 30.0
        down, across = torch.meshgrid(
            torch.arange(height).double() - (height - 1) / 2,
            torch.arange(width).double() - (width - 1) / 2,
            indexing="ij",
        )
        plane = (0.5 + 0.004 * across + 0.006 * down)[None, None]
        c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        # counter-clockwise on the screen, where rows run down: what was at (x, y) goes to (x c + y s, y c − x s)
        expected = (0.5 + 0.004 * (c * across - s * down) + 0.006 * (s * across + c * down))[None, None]
        inner = (..., slice(14, 26), slice(20, 40))
        torch.testing.assert_close(rotate(plane, angle)[inner], expected[inner], rtol=0, atol=1e-12)

    def test_the_corners_turn_black(self):
        assert float(rotate(torch.ones(1, 1, 28, 28), 45)[0, 0, 0, 0]) == 0.0

    def test_angles(self):
        assert (ROTATIONS[0], ROTATIONS[-1]) == (0, 180)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: corrupt(torch.zeros(1, 3, 8, 8), "frost", 1),
            "no corruption is called 'frost'; there are gaussian_noise",
        ),
        (lambda: corrupt(torch.zeros(1, 3, 8, 8), "fog", 6), "severities are 1 to 5, not 6"),
        (lambda: corrupt(torch.zeros(3, 8, 8), "fog", 1), r"not torch.float32 of shape \(3, 8, 8\)"),
        (lambda: corrupt(torch.zeros(1, 3, 8, 8).byte(), "fog", 1), "not torch.uint8"),
        (lambda: corrupt(torch.full((1, 3, 8, 8), 200.0), "fog", 1), "run from 200 to 200: corrupt first"),
        (lambda: corrupt(torch.full((1, 3, 8, 8), math.nan), "fog", 1), r"must lie in \[0, 1\]"),
        (lambda: corrupt(torch.zeros(1, 2, 8, 8), "jpeg", 1), "1 or 3 channels, not 2"),
        (lambda: rotate(torch.zeros(3, 8), 10), "channels, height, width"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

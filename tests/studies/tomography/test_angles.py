"""Choosing angles: gains add up, the first is the best of all, and orientation is seen."""

import math

import pytest
import torch

from lapwing.studies.tomography import ParallelBeam, projector
from lapwing.studies.tomography.angles import next_angles

NOISE = 0.2


@pytest.fixture
def covariance(generator):
    root = torch.randn(25, 30, generator=generator, dtype=torch.float64)
    return root @ root.mT / 30


def joint(covariance, angles, bins):
    A = projector(ParallelBeam(angles, bins), 5).operator.dense()
    eye = torch.eye(len(A)).double()
    gain = 0.5 * torch.linalg.slogdet(eye + A @ covariance @ A.mT / NOISE**2).logabsdet
    precision = torch.linalg.inv(covariance) + A.mT @ A / NOISE**2
    return float(gain), torch.linalg.inv(precision)


def test_gains_of_a_sequence_add_up_to_that_of_all(covariance):
    candidates = torch.linspace(0, 2.9, 7).double()
    found = next_angles(covariance, candidates, 3, noise_std=NOISE, bins=9)
    gain, rest = joint(covariance, found.angles, 9)
    assert float(found.gains.sum()) == pytest.approx(gain, rel=1e-9)
    torch.testing.assert_close(found.covariance, rest, rtol=1e-7, atol=1e-9)
    alone = [joint(covariance, angle[None], 9)[0] for angle in candidates]
    assert float(found.angles[0]) == pytest.approx(float(candidates[int(torch.tensor(alone).argmax())]))
    assert len(set(found.angles.tolist())) == 3


def test_an_image_of_stripes_is_seen_along_them():
    rows = torch.kron(torch.eye(5), torch.ones(5, 5)).double()  # every row of pixels constant
    found = next_angles(rows, [0.0, 0.7, math.pi / 2, 2.2], 1, noise_std=NOISE)
    assert float(found.angles) == pytest.approx(math.pi / 2)


def test_bad_input_is_explained(covariance):
    with pytest.raises(ValueError, match="that of a square image"):
        next_angles(covariance[:20, :20], [0.0], 1, noise_std=NOISE)
    with pytest.raises(ValueError, match="3 of 2 candidates"):
        next_angles(covariance, [0.0, 1.0], 3, noise_std=NOISE)
    with pytest.raises(ValueError, match="noise_std is 0"):
        next_angles(covariance, [0.0], 1, noise_std=0.0)

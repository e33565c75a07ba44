"""Projectors against those of the ASTRA toolbox 2.5, run in the peers' environment: entry by entry."""

import os
import subprocess

import numpy as np
import pytest

from lapwing.studies.tomography import FanBeam, ParallelBeam, projector
from tests.peers.test_laplace_torch import PYTHON, ROOT

SIZE, BINS, ANGLES = 9, 13, np.array([0.1, 0.9, 1.7, 2.6])
SINGLE = 5e-5  # theirs finds where a ray enters a pixel in single precision: a few hundred eps, of lengths up to 1.4
pytestmark = [pytest.mark.peers, pytest.mark.skipif(not PYTHON.exists(), reason="run `make peers` first")]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    if subprocess.run([PYTHON, "-c", "import astra"], capture_output=True, check=False).returncode:
        pytest.skip("astra-toolbox is not in the peers' environment: run `make peers` again")
    path = tmp_path_factory.mktemp("astra") / "matrices.npz"
    command = [PYTHON, ROOT / "tests/peers/astra_matrices.py", path]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    with np.load(path) as found:
        return dict(found)


def ours(geometry) -> np.ndarray:
    return projector(geometry, SIZE).operator.dense().numpy()


def test_lines_of_parallel_rays(theirs):
    assert abs(ours(ParallelBeam(ANGLES, BINS)) - theirs["line"]).max() <= SINGLE


def test_lines_of_a_fan(theirs):
    assert abs(ours(FanBeam(ANGLES, BINS, 1.4, 15.0, 7.0)) - theirs["fan"]).max() <= SINGLE


def test_strips_are_means_of_lines_across_a_bin(theirs):
    fine = 201
    lines = ours(ParallelBeam(ANGLES, BINS * fine, 1 / fine)).reshape(len(ANGLES), BINS, fine, -1).mean(2)
    # the middle rule errs by less than the jump of a length, 1.5, over the number of lines
    assert abs(lines.reshape(len(ANGLES) * BINS, -1) - theirs["strip"]).max() <= 1.5 / fine

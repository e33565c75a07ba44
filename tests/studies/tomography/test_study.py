"""Baselines, scores, the whole study, its page and the command line."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lapwing.app.cli.commands import app
from lapwing.studies.tomography import FanBeam, Scan, Settings, projector, simulate
from lapwing.studies.tomography.baselines import dropout_image_prior, unit_log_density
from lapwing.studies.tomography.page import page, write
from lapwing.studies.tomography.scores import psnr, ssim
from lapwing.studies.tomography.studies import Plan, study
from lapwing.studies.tomography.type_ii.matrix_free import MatrixFree
from tests.studies.tomography.problems import SMALL, phantom, reconstruction

TINY = replace(SMALL, steps=100)


@pytest.fixture(scope="module")
def found():
    scan = simulate(phantom(9), reconstruction(4, 9).scan.projector, noise=0.05)
    return study(scan, Plan(TINY, draws=20), progress=False)


def test_scores_are_those_of_scikit_image(generator):
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    truth = torch.rand(11, 13, generator=generator).double()
    image = truth + 0.1 * torch.randn(11, 13, generator=generator).double()
    peak = float(truth.max() - truth.min())
    a, b = truth.numpy(), image.numpy()
    assert psnr(image, truth) == pytest.approx(peak_signal_noise_ratio(a, b, data_range=peak))
    assert ssim(image, truth) == pytest.approx(structural_similarity(a, b, data_range=peak), abs=1e-6)
    with pytest.raises(ValueError, match="smaller than the window"):
        ssim(image[:5], truth[:5])


def test_dropout_spreads_and_leaves_the_network_as_it_was():
    scan = reconstruction().scan
    sampled = dropout_image_prior(scan, TINY, draws=30, progress=False)
    assert sampled.samples.shape == (30, 8, 8)
    assert sampled.std.max() > 0
    assert not sampled.reconstruction.model.training
    assert not sampled.reconstruction.stopped_at_noise
    error, variance = scan.truth - sampled.mean, sampled.std.square() + 1e-3
    expected = torch.distributions.Normal(0, variance.sqrt()).log_prob(error).mean()
    assert sampled.log_density(scan.truth, floor=1e-3) == pytest.approx(float(expected))
    assert unit_log_density(sampled.mean, scan.truth) == pytest.approx(
        -0.5 * math.log(2 * math.pi) - 0.5 * float(error.square().mean())
    )
    with pytest.raises(ValueError, match="draws is 1"):
        dropout_image_prior(scan, TINY, draws=1)


def test_the_study_scores_every_method(found):
    scores = found.scores()
    assert list(scores) == ["FBP", "CGLS", "TV", "DIP", "DIP, linear mean", "DIP, calibrated", "DIP, unit variance", "DIP, dropout"]  # fmt: skip
    assert scores["DIP, calibrated"]["log_density"] == pytest.approx(
        found.posterior.log_density(found.scan.truth, floor=found.floor)
    )
    post = found.posterior.as_linearised()
    assert scores["DIP"]["log_density"] == pytest.approx(post.log_density(found.scan.truth, floor=found.floor))
    error, variance = found.scan.truth - post.linear_mean, post.std.square() + found.floor
    expected = torch.distributions.Normal(0, variance.sqrt()).log_prob(error).mean()
    assert scores["DIP, linear mean"]["log_density"] == pytest.approx(float(expected))
    assert scores["DIP"]["log_density"] > scores["DIP, unit variance"]["log_density"]


def test_the_page_holds_everything_and_says_what_was_found(found, tmp_path):
    path = write(found, tmp_path / "run", "a <phantom>")
    text = path.read_text()
    assert text.startswith("<!doctype html>")
    assert "a &lt;phantom&gt;" in text
    assert text.count("data:image/png;base64") == 10  # truth, FBP, TV, DIP, error, three of spread, two draws
    for words in ("Standard deviation", "Error against standard deviation", "PSNR", "Lengthscales", "Absolute error"):
        assert words in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    kept = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert kept["scores"]["DIP"]["psnr"] == pytest.approx(found.scores()["DIP"]["psnr"])
    with np.load(tmp_path / "run" / "images.npz") as arrays:
        np.testing.assert_array_equal(arrays["std"], found.posterior.std.numpy())
        assert arrays["samples"].shape == (20, 9, 9)


def test_a_scan_without_truth_has_a_page_too(found):
    blind = replace(found, scan=Scan(found.scan.projector, found.scan.sinogram, found.scan.noise_std))
    assert blind.scores() == {}
    text = page(blind, "blind")
    assert "The truth is not known" in text
    assert "Absolute error" not in text


def test_a_fan_beam_by_matrix_free_search():
    scan = simulate(phantom(9), projector(FanBeam.spread(5, 9), 9), noise=0.05)
    plan = Plan(TINY, dropout=False, matrix_free=MatrixFree(steps=3, probes=3, rank=5), draws=8)
    found = study(scan, plan, progress=False)
    assert "matrix-free" in found.tuned.method
    assert "FBP" in found.images
    assert found.posterior.std.isfinite().all()


def run(tmp_path, *options):
    command = ["ct", "--image", "shepp-logan", "--size", "12", "--angles", "5", "--out", str(tmp_path), "--quiet"]
    return CliRunner().invoke(app, [*command, *options])


def test_the_command_writes_a_page(tmp_path):
    done = run(tmp_path, "--steps", "100", "--channels", "4", "--no-dropout", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["page"] == str(tmp_path / "report.html")
    assert set(told["scores"]) == {
        "FBP",
        "CGLS",
        "TV",
        "DIP",
        "DIP, linear mean",
        "DIP, calibrated",
        "DIP, unit variance",
    }
    assert (tmp_path / "network.pt").exists()  # from which it would be resumed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--noise", "0"), "expected a positive share"),
        (("--angles", "0"), "needs at least one"),
        (("--beam", "cone"), "--beam is parallel or fan"),
        (("--image", "nowhere.dcm"), "there is no file nowhere.dcm"),
        (("--image", "slice.tiff"), "expected 'shepp-logan' or a file"),
    ],
)
def test_wrong_options_are_explained(tmp_path, options, message):
    done = run(tmp_path, *options)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_of_large_images_build():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = replace(Settings.large(), channels=(8, 8, 8, 8, 8, 8))
        from lapwing.studies.tomography.deep_image_prior import network

        assert network(settings)(torch.zeros(1, 1, 64, 64)).shape == (1, 1, 64, 64)

import numpy as np
import pytest
import torch

from lapwing import GPrior, Isotropic, PerGroup
from lapwing.bayes.noise import Noise
from lapwing.linalg.operators import Dense
from tests.problems import TALL
from tests.properties import check_covariance

FEATURES, ONES = Dense(TALL.features), torch.ones(40).double()


def test_isotropic_and_groups_are_diagonal_priors():
    groups = {"a": [0, 3], "b": slice(1, 3), "c": np.array([False] * 4 + [True] * 3)}
    prior = PerGroup(groups, {"a": 1.0, "b": 4.0, "c": 16.0}).on(FEATURES, ONES)
    assert prior.std.tolist() == [1, 0.5, 0.5, 1, 0.25, 0.25, 0.25]
    assert prior.sizes.tolist() == [2, 2, 3]
    assert prior.log_det() == pytest.approx(2 * np.log(4) + 3 * np.log(16), rel=1e-14)
    assert Isotropic(4.0).on(FEATURES, ONES).log_det() == pytest.approx(7 * np.log(4), rel=1e-14)
    assert prior.with_precision([1, 2, np.inf]).std[-3:].tolist() == [0, 0, 0]
    assert prior.with_precision({"c": 1, "a": 4, "b": 1}).std[0] == 0.5


def test_draws_have_the_covariance_of_the_prior():
    prior = PerGroup({"a": [0, 1, 2], "b": slice(3, 7)}, {"a": 2.0, "b": 0.3}).on(FEATURES, ONES)
    check_covariance(prior.draw(Noise(0), 20_000), torch.diag(prior.std.square()))


def test_g_prior_has_unit_curvature_and_ignores_units():
    prior = GPrior(1.0).on(FEATURES, ONES)
    curvature = (TALL.features * prior.scale).square().sum(0)
    torch.testing.assert_close(curvature, torch.ones(7).double(), rtol=1e-13, atol=0)
    units = torch.logspace(-2, 2, 7, dtype=torch.float64)
    rescaled = GPrior(1.0).on(Dense(TALL.features * units), 5 * ONES)  # counting all data alike changes nothing
    torch.testing.assert_close(rescaled.scale * units, prior.scale, rtol=1e-13, atol=0)


def test_g_prior_of_weights_that_the_data_say_nothing_about_is_proper():
    dead = TALL.features.clone()
    dead[:, 2] = 0
    curvature = dead.square().sum(0)
    scale = GPrior(1.0).on(Dense(dead), ONES).scale
    assert scale[2] == pytest.approx(float(curvature.mean() ** -0.5), rel=1e-12)
    assert GPrior(1.0).on(Dense(torch.zeros(40, 7).double()), ONES).scale.tolist() == [1] * 7
    blocks = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    scale = GPrior(1.0, floor=1e-3, scale_per="weight").on(Dense(dead), ONES, blocks).scale
    assert scale[2] == pytest.approx(float((1e-3 * curvature[:3].mean()) ** -0.5), rel=1e-12)
    dead[:, 5:] = 0
    scale = GPrior(1.0).on(Dense(dead), ONES, blocks).scale
    assert scale[5] == pytest.approx(float(dead.square().sum(0).mean() ** -0.5), rel=1e-12)


def test_g_prior_of_tensors_shares_the_mean_of_their_curvatures():
    blocks, curvature = torch.tensor([0, 0, 0, 1, 1, 2, 2]), TALL.features.square().sum(0)
    scale = GPrior(1.0).on(FEATURES, ONES, blocks).scale
    for part in range(3):
        expected = curvature[blocks == part].mean().rsqrt()
        torch.testing.assert_close(scale[blocks == part], expected.expand(int((blocks == part).sum())))


@pytest.mark.parametrize("each", ["tensor", "weight"])
def test_g_prior_does_not_depend_on_the_scale_of_a_tensor(each):
    dead = TALL.features.clone()
    dead[:, 2] = 0
    blocks, units = (
        torch.tensor([0, 0, 0, 1, 1, 2, 2]),
        torch.tensor([1e3, 1e3, 1e3, 1, 1, 1e-3, 1e-3], dtype=torch.float64),
    )
    one, other = (
        GPrior(1.0, scale_per=each).on(Dense(features), ONES, blocks).scale for features in (dead, dead * units)
    )
    torch.testing.assert_close(other * units, one, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Isotropic(0.0), "must be positive and finite, got 0.0"),
        (lambda: GPrior(float("inf")), "must be positive and finite"),
        (lambda: PerGroup({"a": [0]}, {"a": -1.0}), "must be positive"),
        (lambda: PerGroup({}), "must map names"),
        (lambda: PerGroup({"a": [0, 1], "b": [1, 2, 3, 4, 5, 6]}).on(FEATURES, ONES), "'b' are in another group"),
        (lambda: PerGroup({"a": [0, 1]}).on(FEATURES, ONES), "5 of 7 weights are in no group, the first is number 2"),
        (lambda: Isotropic().on(FEATURES, ONES).with_precision([1, 2]), "2 precisions for 1 groups"),
        (lambda: Isotropic().on(FEATURES, ONES).with_precision({"some": 1.0}), "expected .'all'"),
    ],
)
def test_priors_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""Inputs of another shape: what was given, what the fit had, what to do, and not torch's words alone."""

import pytest
import torch
from torch import nn

from lapwing import Categorical, Exact, Gaussian, fit, load
from tests.network.networks import normal, seeded

PICTURES, KINDS = normal(7, 3, 4, 5, seed=5), torch.arange(7) % 2
WRONG = {
    "one channel": (PICTURES[:, :1], r"shape \(7, 1, 4, 5\): expected \(n, 3, 4, 5\)"),
    "channels last": (PICTURES.permute(0, 2, 3, 1), r"shape \(7, 4, 5, 3\): expected \(n, 3, 4, 5\)"),
    "a single one": (PICTURES[0], r"shape \(3, 4, 5\), which is that of a single one: pass inputs\[None\]"),
}


def pictured(*layers: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Conv2d(3, 2, 2), *layers, nn.Tanh(), nn.Flatten(), nn.Linear(24, 2)), None)[
        0
    ]


def row_posterior():
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), None)[0]
    return fit(model, (normal(11, 3, seed=1), normal(11, 2, seed=2)), Gaussian(0.4), method=Exact(), draws=2)


@pytest.mark.parametrize("case", WRONG)
def test_predict_names_what_was_given_and_what_the_fit_had(case):
    given, message = WRONG[case]
    posterior = fit(pictured(), (PICTURES, KINDS), Categorical(), method=Exact(), draws=2)
    with pytest.raises(ValueError, match=message):
        posterior.predict(given)


def test_a_normalisation_layer_that_refuses_a_single_input_is_no_exception():
    posterior = fit(pictured(nn.BatchNorm2d(2)), (PICTURES, KINDS), Categorical(), method=Exact(), draws=2)
    with pytest.raises(ValueError, match=r"that of a single one: pass inputs\[None\].*\(expected 4D input"):
        posterior.predict(PICTURES[0])


@pytest.mark.parametrize("case", WRONG)
def test_fit_names_what_was_given(case):
    given = WRONG[case][0]
    with pytest.raises(ValueError, match=rf"inputs of shape \({len(given)}, .*: expected many"):
        fit(pictured(), (given, torch.zeros(len(given)).long()), Categorical())


def test_a_loaded_posterior_names_what_was_given(tmp_path):
    model = pictured()
    posterior = fit(model, (PICTURES, KINDS), Categorical(), method=Exact(), draws=2)
    with pytest.raises(ValueError, match=r"inputs of shape \(1, 1, 4, 5\): expected many"):
        load(posterior.save(tmp_path / "posterior.safetensors"), model).predict(PICTURES[:, :1])


def test_a_row_that_the_network_takes_for_a_batch_is_refused():
    with pytest.raises(ValueError, match=r"returns \(2,\), not one row per input.*pass inputs\[None\]"):
        row_posterior().predict(normal(3, seed=3))


def test_another_dtype_is_named_as_such():
    with pytest.raises(ValueError, match="inputs are torch.float32 and the network's weights torch.float64"):
        row_posterior().predict(normal(4, 3, seed=3).float())

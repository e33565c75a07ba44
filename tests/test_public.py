"""Every public name is there, documented, and loaded only when it is used."""

import subprocess
import sys

import pytest
import torch

import lapwing


@pytest.mark.parametrize("name", [name for name in lapwing.__all__ if name != "__version__"])
def test_public_names_are_documented(name):
    assert getattr(lapwing, name).__doc__
    assert name in dir(lapwing)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = lapwing.nonsense


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, lapwing; print([m for m in ('torch', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_version_is_that_of_the_package():
    assert lapwing.__version__.count(".") == 2


def test_a_fit_is_a_posterior_and_what_it_predicts_a_prediction():
    with torch.random.fork_rng():
        network = torch.nn.Linear(2, 3).double().eval()
    x = torch.linspace(-1, 1, 8).double().reshape(4, 2)
    posterior = lapwing.fit(network, (x, network(x).detach() + 0.1), lapwing.Gaussian(0.1), prior=lapwing.GPrior(1.0))
    assert isinstance(posterior, lapwing.Posterior)
    assert posterior.draws.shape == (32, 9)  # draws first
    assert posterior.sample(5).shape == (5, 9)
    assert isinstance(posterior.predict(x), lapwing.Prediction)
    assert isinstance(posterior.effective_dimension, lapwing.Estimate)

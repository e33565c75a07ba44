"""The marginal likelihood of `gaussian_process.py` is scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor

from benchmarks.gaussian_process import RelevanceProcess, likelihood


@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(17, 3))
    y = rng.normal(size=17)
    own = RelevanceProcess(3)
    theirs = GaussianProcessRegressor(own.kernel, optimizer=None, normalize_y=True).fit(x, y)
    theta = rng.normal(size=5)
    value, gradient = theirs.log_marginal_likelihood(theta, eval_gradient=True)
    own_value, own_gradient = likelihood(theirs.X_train_, theirs.y_train_, theta, theirs.alpha)
    assert own_value == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(own_gradient, gradient, rtol=1e-8, atol=1e-10 * np.abs(gradient).max())


def test_fits_end_where_those_of_scikit_learn_do():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 2))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=40)
    own = RelevanceProcess(2, n_restarts_optimizer=0).fit(x, y)
    theirs = GaussianProcessRegressor(own.kernel, normalize_y=True).fit(x, y)
    assert own.log_marginal_likelihood_value_ == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-3)

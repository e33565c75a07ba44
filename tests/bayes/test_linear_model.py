"""Bad input: a clear error before any work."""

import numpy as np
import pytest
import scipy.sparse
import torch

from lapwing import Gaussian, Isotropic, LinearModel, infer
from tests.problems import TALL

X, Y = TALL.features, TALL.targets


def changed(array, index, value):
    array = array.clone()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearModel(changed(X, (3, 2), np.nan), Y, Gaussian()), "1 NaN or infinite values, the first at row 3, column 2"),
        (lambda: LinearModel(X, changed(Y, 5, np.inf), Gaussian()), "targets contain 1 NaN or infinite values, the first at row 5"),
        (lambda: LinearModel(scipy.sparse.csr_array([[0, 1.0], [np.nan, 0]]), [1.0, 2.0], Gaussian()), "row 1, column 0"),
        (lambda: LinearModel(X, Y[:-1], Gaussian()), "expected 39 rows, one for each target"),
        (lambda: LinearModel(X[:0], Y[:0], Gaussian()), "n ≥ 1"),
        (lambda: LinearModel(X[:, :0], Y, Gaussian()), "at least one column"),
        (lambda: LinearModel(X, Y.reshape(2, 2, 10), Gaussian()), r"shape \(n,\) or \(n, m\)"),
        (lambda: LinearModel(X.half(), Y, Gaussian()), "too coarse"),
        (lambda: LinearModel(X * 1e150, Y, Gaussian()), "its square leaves the range of float64"),
        (lambda: LinearModel(X, Y * 1e-200, Gaussian()), "its square leaves the range of float64"),
        (lambda: LinearModel(X, Y, Gaussian(), weights=-torch.ones(40)), "none negative"),
        (lambda: LinearModel(X, Y, Gaussian(), weights=torch.zeros(40)), "every weight is zero"),
        (lambda: LinearModel(X, Y, Gaussian(), weights=torch.ones(39)), "must be 40 finite numbers"),
        (lambda: LinearModel(X, Y, Gaussian([0.1, 0.2])), r"noise_std of shape \(2,\) does not fit targets"),
        (lambda: infer(LinearModel(X, 0 * Y, Gaussian())), "every target is zero"),
        (lambda: infer(LinearModel(X, Y, Gaussian()), draws=-1), "draws must not be negative"),
        (lambda: infer(LinearModel(X, Y, Gaussian())).predict(X[:, :5]), "inputs have 5 features, the model was fitted with 7"),
        (lambda: infer(LinearModel(X, Y, Gaussian())).predict(changed(X, (0, 0), np.nan)), "inputs contain 1 NaN"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_degenerate_but_valid_data_get_the_right_answer():
    doubled = torch.cat([X, X[:, :2], torch.zeros(40, 1).double(), torch.ones(40, 1).double()], dim=1)
    posterior = infer(LinearModel(doubled, Y, Gaussian(0.5)), prior=Isotropic(2.0), draws=3)
    precision = doubled.mT @ doubled / 0.25 + 2 * torch.eye(11)
    torch.testing.assert_close(posterior.covariance, torch.linalg.inv(precision), rtol=1e-9, atol=1e-12)
    rows = infer(LinearModel(torch.cat([X, X]), torch.cat([Y, Y]), Gaussian(0.5)), prior=Isotropic(2.0), draws=0)
    counted = infer(LinearModel(X, Y, Gaussian(0.5), weights=2 * torch.ones(40)), prior=Isotropic(2.0), draws=0)
    torch.testing.assert_close(rows.mean, counted.mean, rtol=1e-10, atol=1e-12)
    assert rows.log_evidence.value == pytest.approx(counted.log_evidence.value, rel=1e-12)


def test_nothing_of_the_users_is_changed():
    features, targets = X.numpy().copy(), Y.numpy().copy()
    infer(LinearModel(features, targets, Gaussian())).predict(features)
    assert np.array_equal(features, X.numpy())
    assert np.array_equal(targets, Y.numpy())


def test_very_small_noise_is_solved_from_singular_values():
    """Condition numbers far beyond what a Gram matrix holds."""
    u, _ = torch.linalg.qr(torch.randn(40, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    s = torch.logspace(0, -6, 7, dtype=torch.float64)  # singular values: condition number 1e12 of the Gram matrix
    features = u * s @ v.mT
    posterior = infer(LinearModel(features, features @ v.sum(1), Gaussian(1e-6)), prior=Isotropic(1.0), draws=0)
    assert posterior.diagnostics.method == "exact, svd"
    exact = v / (s.square() * 1e12 + 1) @ v.mT
    torch.testing.assert_close(posterior.covariance, exact, rtol=1e-6, atol=1e-12)

import pytest
import torch

from lapwing import Gaussian
from lapwing.bayes.likelihoods import softmax_root
from tests.properties import check_covariance


def test_noise_broadcasts_against_the_targets():
    targets = torch.zeros(3, 2)
    assert Gaussian().row_precision(targets).tolist() == [1] * 6
    assert Gaussian(0.5).row_precision(targets).tolist() == [4] * 6
    assert Gaussian([1.0, 0.5]).row_precision(targets).tolist() == [1, 4] * 3
    assert Gaussian([[1.0], [0.5], [2.0]]).row_precision(targets).tolist() == [1, 1, 4, 4, 0.25, 0.25]
    assert Gaussian([1.0, 0.5, 2.0]).row_precision(torch.zeros(3)).tolist() == [1, 4, 0.25]
    assert Gaussian(per_output=True).noise_groups(targets, 6).tolist() == [0, 1] * 3
    assert Gaussian(0.5, per_output=True).noise_groups(targets, 6).tolist() == [0] * 6


def test_noise_at_new_inputs_is_known_unless_it_was_given_per_datum():
    one, two = torch.zeros(3).double(), torch.zeros(3, 2).double()
    assert Gaussian(0.5).noise_variance(one) == 0.25
    assert Gaussian([1.0, 0.5]).noise_variance(two).tolist() == [1, 0.25]
    assert Gaussian([1.0, 0.5]).noise_variance(two.reshape(3, 2, 1)).tolist() == [[1], [0.25]]
    assert "per datum" in Gaussian([1.0, 0.5]).noise_variance(one)
    assert "not been tuned" in Gaussian().noise_variance(one)


@pytest.mark.parametrize("noise_std", [0.0, -1.0, float("nan"), [1.0, float("inf")]])
def test_impossible_noise_is_refused(noise_std):
    with pytest.raises(ValueError, match="must be positive and finite"):
        Gaussian(noise_std)


def test_softmax_root_squares_to_the_hessian():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    p = logits.softmax(1)
    root = softmax_root(p, torch.eye(3).double().expand(4, 3, 3))
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    torch.testing.assert_close(root @ root.mT, hessian, rtol=0, atol=1e-15)
    normals = torch.randn(4, 3, 20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = softmax_root(p, normals)
    assert noise.sum(1).abs().max() < 1e-13  # probabilities sum to one whatever the logits do
    check_covariance(noise[0, :2], hessian[0, :2, :2])

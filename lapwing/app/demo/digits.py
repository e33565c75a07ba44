"""scikit-learn's 1,797 handwritten digits of 8 × 8 pixels, and a small network for them."""

from __future__ import annotations

import numpy as np
import scipy.ndimage
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from lapwing.bayes.likelihoods import Categorical
from lapwing.training import adam, members

Pair = tuple[Tensor, Tensor]


def shuffled() -> Pair:
    """All of them in a fixed order: pictures (n, 1, 8, 8) in [0, 1] and labels (n,)."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    pictures = torch.from_numpy(pixels[order] / 16).float().reshape(-1, 1, 8, 8)
    return pictures, torch.from_numpy(labels[order]).long()


def rotated(pictures: Tensor, degrees: float) -> Tensor:
    """The same pictures, rotated."""
    found = scipy.ndimage.rotate(pictures.numpy(), degrees, axes=(2, 3), reshape=False, order=1)
    return torch.from_numpy(found).clamp(0, 1)


def network(seed: int) -> nn.Module:
    """An untrained network of 1,210 weights; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def trained(data: Pair, count: int = 1) -> list[nn.Module]:
    """Networks from different starts, trained until they fit their data, without a thought of uncertainty."""
    return members(network, data, Categorical(), count, epochs=200, batch_size=64, optimiser=adam(1e-2), progress=False)

"""The pictures that scikit-learn bundles."""

from __future__ import annotations

import torch
from sklearn import datasets

from lapwing.studies.datasets.task import Task, split_by_seed


def digits(*, seed: int = 0, test_share: float = 0.3) -> Task:
    """1,797 handwritten digits of 8 × 8 pixels in [0, 1], split by the seed.

    Parameters
    ----------
    seed : int
        Of the split.
    test_share : float
        Of the pictures, strictly between 0 and 1.

    Returns
    -------
    Task
        Training and test pictures.

    Raises
    ------
    ValueError
        If the share is out of range.

    Examples
    --------
    >>> digits().train[0].shape
    torch.Size([1258, 1, 8, 8])
    """
    bunch = datasets.load_digits()
    pictures = torch.tensor(bunch.images / 16, dtype=torch.float32)[:, None]
    return split_by_seed("digits", pictures, torch.tensor(bunch.target), seed, test_share, tuple("0123456789"))

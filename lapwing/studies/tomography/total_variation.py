"""Total variation of an image, and the differences of neighbouring pixels that it sums."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from torch import Tensor

from lapwing.linalg.operators import Sparse


def differences(size: int) -> Sparse:  # (2 · size · (size − 1), size²)
    """Differences of neighbouring pixels of a flat square image, those along rows first.

    Parameters
    ----------
    size : int
        Pixels along a side of the image.

    Returns
    -------
    LinearOperator
        (2 · size · (size − 1), size²).

    Raises
    ------
    ValueError
        If there are fewer than two pixels a side.

    Examples
    --------
    >>> differences(2).dense()
    tensor([[-1.,  1.,  0.,  0.],
            [ 0.,  0., -1.,  1.],
            [-1.,  0.,  1.,  0.],
            [ 0., -1.,  0.,  1.]], dtype=torch.float64)
    """
    if size < 2:
        raise ValueError(f"an image of {size} × {size} pixels has no neighbours to differ from")
    step = scipy.sparse.diags_array([-np.ones(size - 1), np.ones(size - 1)], offsets=[0, 1], shape=(size - 1, size))
    same = scipy.sparse.eye_array(size)
    stacked = scipy.sparse.vstack([scipy.sparse.kron(same, step), scipy.sparse.kron(step, same)])
    return Sparse(scipy.sparse.csr_array(stacked))


def total_variation(image: Tensor) -> Tensor:  # (..., size, size) -> ()
    """The anisotropic total variation: the sum of absolute differences of neighbouring pixels.

    Parameters
    ----------
    image : Tensor
        (size, size).

    Returns
    -------
    Tensor
        One number.

    Examples
    --------
    >>> import torch
    >>> float(total_variation(torch.tensor([[0.0, 1.0], [0.0, 3.0]])))
    6.0
    """
    return image.diff(dim=-1).abs().sum() + image.diff(dim=-2).abs().sum()

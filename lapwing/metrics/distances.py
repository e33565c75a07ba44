"""How far are two sets of draws apart?"""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.metrics.checks import Values, check_finite


def wasserstein(first: Values, second: Values, *, order: int = 1) -> Tensor:
    """The Wasserstein distance between two samples of each quantity: (draws, …) and (other draws, …) give (…).

    (∫ |F⁻¹(u) − G⁻¹(u)|^order du)^(1 / order), exact for the two empirical distributions, in the units of the draws.

    Parameters
    ----------
    first : Tensor or array
        Draws, (draws, …).
    second : Tensor or array
        Other draws of the same quantities, (other draws, …).
    order : int
        At least 1.

    Returns
    -------
    Tensor
        One distance for each quantity.

    Raises
    ------
    ValueError
        If the shapes do not fit, or the order is below 1.

    Examples
    --------
    >>> wasserstein(torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.tensor([[2.0, 1.0]]))
    tensor([1.5000, 0.0000], dtype=torch.float64)
    """
    one, other = check_finite(first, "first"), check_finite(second, "second")
    if one.ndim < 1 or one.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"draws of shapes {tuple(one.shape)} and {tuple(other.shape)}: expected (draws, …) with the same quantities"
        )
    if order < 1:
        raise ValueError(f"order must be at least 1, not {order}")
    n, m = len(one), len(other)
    ends = torch.cat([torch.arange(1, n + 1) * m, torch.arange(1, m + 1) * n]).unique()  # in units of 1 / (n m)
    shares = torch.diff(ends, prepend=ends.new_zeros(1)).double() / (n * m)
    gaps = one.sort(0).values[(ends - 1) // m] - other.sort(0).values[(ends - 1) // n]
    return torch.tensordot(shares, gaps.abs() ** order, dims=1) ** (1 / order)

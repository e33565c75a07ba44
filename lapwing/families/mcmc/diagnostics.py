"""Have the chains met, and how many independent draws are they worth? (Vehtari et al. 2021)"""

from __future__ import annotations

import torch
from torch import Tensor


def r_hat(draws: Tensor) -> Tensor:  # (chains, draws, …) -> (…)
    """The potential scale reduction of split chains, of rank-normalised values and of their distance from the median.

    The larger of the two; 1.01 or less is what a converged run shows. NaN where a quantity never moves.

    Parameters
    ----------
    draws : Tensor
        (chains, draws, …).

    Returns
    -------
    Tensor
        One for each quantity.

    Examples
    --------
    >>> draws = torch.randn(4, 500, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> bool((r_hat(draws) < 1.01).all()), bool((r_hat(draws + torch.arange(4)[:, None, None]) > 1.5).all())
    (True, True)
    """
    halves = _split(_checked(draws))
    folded = (halves - halves.flatten(0, 1).quantile(0.5, dim=0)).abs()
    return torch.maximum(_reduction(_normal_scores(halves)), _reduction(_normal_scores(folded)))


def ess(draws: Tensor) -> Tensor:  # (chains, draws, …) -> (…)
    """The effective sample size for the mean, over all chains, by Geyer's initial monotone sequence.

    At most the number of draws times its own base-10 logarithm, where draws are antithetic. NaN where nothing moves.

    Parameters
    ----------
    draws : Tensor
        (chains, draws, …).

    Returns
    -------
    Tensor
        One for each quantity.

    Examples
    --------
    >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)).double()
    >>> 1600 < float(ess(draws)) < 2500
    True
    """
    halves = _split(_checked(draws))
    chains, n = halves.shape[:2]
    autocovariance = _autocovariance(halves)  # (chains, n, …), biased
    within = autocovariance[:, 0].mean(0) * n / (n - 1)
    between = halves.mean(1).var(0)
    variance = within * (n - 1) / n + between
    correlation = 1 - (within - (autocovariance * n / (n - 1)).mean(0)) / variance  # (n, …)
    correlation[0] = 1.0
    pairs = correlation[: n // 2 * 2].unflatten(0, (-1, 2)).sum(1)  # of lags 2k and 2k + 1
    positive = (pairs > 0).cumprod(0)
    monotone = pairs.cummin(0).values * positive
    time = (2 * monotone.sum(0) - 1).clamp_min(1 / torch.tensor(float(chains * n)).log10().item())
    return chains * n / time


def _checked(draws: Tensor) -> Tensor:
    if draws.ndim < 2 or draws.shape[1] < 4:
        raise ValueError(f"draws of shape {tuple(draws.shape)}: expected (chains, draws, …) with at least 4 draws")
    return draws.double()


def _split(draws: Tensor) -> Tensor:
    """Every chain as two of half the length: a trend within a chain is a difference between them."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: Tensor) -> Tensor:
    """Every value replaced by the normal quantile of its rank over all chains, equals by their mean rank."""
    flat = draws.flatten(0, 1)
    columns = flat.reshape(len(flat), -1).mT.contiguous()
    ordered = columns.sort(1).values
    low, high = (torch.searchsorted(ordered, columns, right=right) for right in (False, True))
    rank = (low + high + 1).double() / 2
    return torch.special.ndtri((rank - 0.375) / (len(flat) + 0.25)).mT.reshape(draws.shape)


def _reduction(draws: Tensor) -> Tensor:
    n = draws.shape[1]
    within, between = draws.var(1).mean(0), draws.mean(1).var(0)
    return ((n - 1) / n + between / within).sqrt()


def _autocovariance(draws: Tensor) -> Tensor:
    """Σ_t x_t x_{t+k} / n of the centred chains at every lag k, by Fourier transforms."""
    n = draws.shape[1]
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * n, dim=1).abs().square()
    return torch.fft.irfft(spectrum, n=2 * n, dim=1)[:, :n] / n

"""A posterior without some of its data: those that were withdrawn, are out of date or turned out to be wrong.

A datum of weight zero is no datum, so under a matrix-free method, and for the mode of labels, weights are set to zero
and solves start from where they were. For Exact() under Gaussian noise what the data added is subtracted from the
compressed statistics, unless nearly all that is known in some direction goes with them: what is left there would be
round-off, so it is found from the data that stay. Every other datum keeps its noise, so draws are those of a fit in
which the removed ones weigh nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.exact import ExactPosterior
from lapwing.bayes.methods.interface import WeightPosterior
from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.posterior.posterior import Posterior
from lapwing.bayes.posterior.updating import NO_DATA, finished, observed
from lapwing.bayes.statistics import Eigenbasis, Statistics, in_units, log_weights
from lapwing.linalg.operators import Dense
from lapwing.linalg.spectral import Spectrum, cutoff, round_off

DOUBLE = torch.finfo(torch.float64).eps
UNKNOWN = "these data are not among those that the posterior was given: only those can be removed"
COARSE = (
    "what these data leave in some direction is lost in the round-off of the features, or they are not among those "
    "that the posterior was given: fit the others, or remove them from a posterior that carries its training data"
)


class Doubtful(ValueError):
    """A difference of statistics that is not those of the other data."""


def removed(posterior: Posterior, places: Any, data: Any, *, retune: bool) -> Posterior:
    """The posterior without the data at some places; see `Posterior.remove`."""
    gaussian, ledger, m = posterior.gaussian, posterior.ledger, posterior.map.outputs or 1
    gaussian.check_changeable()
    there = _places(places, ledger.rows // m)
    if again := sorted({*ledger.removed} & {*there.tolist()}):
        raise ValueError(f"{again} were removed before: places stay what they are when others are removed")
    observations = ledger.observations(m)
    if len(there) * m >= observations:
        raise ValueError(f"{len(there) * m} of {observations} observations to remove: no data are left")
    model = None if posterior.model is None else posterior.model.without(there)
    found = _without(posterior, model, there, data)
    left = replace(ledger, removed=(*ledger.removed, *there.tolist()))
    return finished(replace(posterior, model=model, ledger=left), found, retune=retune)


def _without(posterior: Posterior, model: LinearModel | None, places: Tensor, data: Any) -> WeightPosterior:
    gaussian = posterior.gaussian
    fit = gaussian.fit.on_fewer(places, model)
    if not isinstance(gaussian, ExactPosterior) or not fit.is_closed_form or gaussian.side == "svd":
        if model is None and fit.is_closed_form and data is not None:
            raise ValueError(f"{NO_DATA}, or with Exact(), which takes them as `data`")
        return gaussian.with_fit(fit)  # with svd, since differences of Gram matrices are too coarse
    if model is None or posterior.model is None:
        if data is None:
            raise ValueError(NO_DATA)
        return replace(gaussian, statistics=_subtracted(gaussian, _given(posterior, data, places), places))
    try:
        known = _subtracted(gaussian, posterior.model.only(places), places)
    except Doubtful:
        known = gaussian.summary(fit, gaussian.prior)
    return replace(gaussian, statistics=known, fit=fit)


def _places(given: Any, n: int) -> Tensor:  # (k,)
    """Places of data as distinct numbers in order."""
    places = torch.as_tensor(given if isinstance(given, Tensor | Sequence) else list(given))
    if places.dtype == torch.bool:
        if places.shape != (n,):
            raise ValueError(f"a mask of shape {tuple(places.shape)}, expected one value for each of {n} data")
        places = places.nonzero()[:, 0]
    if places.ndim != 1 or not len(places) or places.is_floating_point():
        raise ValueError(f"expected the places of data to remove, as [3, 17], or a mask of them, got {given!r}")
    if not bool(((places >= 0) & (places < n)).all()) or len(places.unique()) < len(places):
        raise ValueError(f"places of data are distinct numbers from 0 to {n - 1}, got {places.tolist()}")
    return places.sort().values


def _given(posterior: Posterior, data: Any, places: Tensor) -> LinearModel:
    leaving = observed(posterior, data)
    if len(leaving.targets) != len(places):
        raise ValueError(f"{len(places)} places of data to remove, and {len(leaving.targets)} data for them")
    return leaving


def _subtracted(gaussian: ExactPosterior, leaving: LinearModel, places: Tensor) -> tuple[Statistics, ...]:
    """The statistics of each noise group less what some data added to them."""
    m = leaving.outputs
    noise = Noise(gaussian.seed, DATA)
    normals = torch.cat([noise.rows(i * m, (i + 1) * m, gaussian.draws) for i in places.tolist()])
    going = leaving.gaussian_surrogate()
    rows = in_units(going.features, gaussian.prior.scale).dense().double()  # rounded as they were in the fit
    spectra = [old.basis.spectrum() for old in gaussian.statistics]
    if gaussian.eps > DOUBLE and not all(spectrum.complete for spectrum in spectra):
        raise Doubtful(COARSE)  # vectors that are products with the features have their round-off
    eps = max(gaussian.eps, round_off(leaving.features))
    counts, given = going.counts.tolist(), log_weights(going)
    found = []
    for group, old in enumerate(gaussian.statistics):
        of = going.noise_of == group
        if not bool(of.any()):
            found.append(old)
            continue
        part = _Leaving(rows[of], going.targets[of].double(), normals[of], counts[group], given[group])
        found.append(_less(old, part, gaussian.prior_noise, eps))
    return tuple(found)


@final
@dataclass(frozen=True, eq=False)
class _Leaving:
    """Rows of one noise group, with weights and the prior's scale."""

    rows: Tensor  # (k, d)
    targets: Tensor  # (k,)
    noise: Tensor  # (k, draws)
    count: float
    log_weight: float


def _less(old: Statistics, leaving: _Leaving, prior_noise: Tensor, eps: float) -> Statistics:
    """G without some of its rows R: in the basis V of before, GᵀG − RᵀR and Gᵀ[y, ξ] − Rᵀ[y, ξ]."""
    spectrum = old.basis.spectrum()
    inside, root = spectrum.coordinates(leaving.rows), old.values.sqrt()[:, None]
    lost = _lost(old, leaving.rows, inside, eps)
    values, turn = torch.linalg.eigh(torch.diag(old.values) - inside.mT @ inside)
    right, smallest = spectrum.right, cutoff(old.values, spectrum.right.shape[0])
    kept = values > smallest
    if lost:
        kept[: int((old.values <= smallest).sum()) + lost] = False
        left = float(values[kept].min()) if bool(kept.any()) else torch.inf
        if float(values[~kept].abs().max()) > eps**0.5 * left:  # what should be zero is the error of the others
            raise Doubtful(COARSE)
    values, turn = values[kept], turn[:, kept]
    turned = Dense(right.matrix @ turn) if isinstance(right, Dense) else right @ Dense(turn.to(right.like))
    before = root * torch.cat([old.targets[:, None], old.noise], dim=1)
    going = inside.mT @ torch.cat([leaving.targets[:, None], leaving.noise], dim=1)
    seen = values.rsqrt()[:, None] * (turn.mT @ (before - going))
    length, count = old.remainder + float(old.targets @ old.targets), old.count - leaving.count
    remainder = length - float(leaving.targets @ leaving.targets) - float(seen[:, 0] @ seen[:, 0])
    error = _error(torch.cat([old.values[old.values > smallest], values]), smallest, eps)
    if remainder < -error * length or count < -(eps**0.5) * old.count:
        raise Doubtful(_why(error))
    basis = Spectrum(turned, values)
    return Statistics(
        basis=Eigenbasis(basis), values=values, targets=seen[:, 0], remainder=max(remainder, 0.0), noise=seen[:, 1:],
        prior_noise=values.sqrt()[:, None] * basis.coordinates(prior_noise.mT).mT,
        density=torch.ones_like(values), count=count, log_weight=old.log_weight - leaving.log_weight,
    )  # fmt: skip


def _lost(old: Statistics, rows: Tensor, inside: Tensor, eps: float) -> int:
    """The number of directions that are known from the rows alone: those of leverage one, the largest of rows of G.

    Leverages are the squared singular values of R (GᵀG)^(-1/2). Where the features are in single precision, what is
    left in such a direction is not known to be zero.
    """
    smallest, outside = cutoff(old.values, rows.shape[1]), rows.square().sum(1) - inside.square().sum(1)
    known = old.values > smallest * eps / DOUBLE
    leverage = torch.linalg.svdvals(inside[:, known] * old.values[known].rsqrt()).square()
    error = _error(old.values[known], smallest, eps)
    if bool((leverage > 1 + error).any()) or bool((outside > eps**0.5 * old.values.sum()).any()):
        raise Doubtful(_why(error))
    lost = int((leverage > 1 - error).sum())
    if lost and eps > DOUBLE:
        raise Doubtful(COARSE)
    return lost


def _error(values: Tensor, smallest: float, eps: float) -> float:
    """A bound of relative errors: √eps of the rows, which stands for eps √(s_max / s), and round-off of the values."""
    return eps**0.5 + (smallest / float(values.min()) if len(values) else 0.0)


def _why(error: float) -> str:
    return UNKNOWN if error < 2 * DOUBLE**0.5 else COARSE

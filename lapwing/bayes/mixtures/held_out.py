"""A mixture chosen on held-out data: among the networks averaged, that over a temperature, and mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Spread
from lapwing.bayes.likelihoods.spread import Link
from lapwing.bayes.posterior import Posterior, curves
from lapwing.bayes.posterior.alternatives import Alternative, Itself, OtherGaussian, ScaledNetwork, averaged
from lapwing.bayes.posterior.held_out import (
    TEMPERATURES,
    Rehearsal,
    TemperatureScaling,
    rehearsed,
    shares_of,
    tuned_until_known,
)

if TYPE_CHECKING:
    from lapwing.bayes.mixtures.mixture import Mixture

ENSEMBLE, SCALED = "networks averaged", "networks averaged, one temperature"
OWN, HELD_OUT = "mixture of posteriors", "mixture of posteriors, precision by held-out data"
MULTIPLES = 1e-3, 1e3  # between which that of all variances is looked for


def tuned(mixture: Mixture, validation: Any, link: Link | None) -> Mixture:
    """What predicts best among the candidates, or for numbers the mixture of tuned members with its variances scaled.

    Probabilities of classes average over the candidates, as those of one posterior do.
    """
    if mixture.likelihood.constant_curvature:
        return _of_numbers(mixture, validation)
    members = [_ready(member, validation) for member in mixture.members]
    heard = [rehearsed(member, validation, link or member.link) for member in members]

    def density(ratio: float) -> tuple[float, float]:
        return _density(heard, [one.known.each(*one.over(ratio)) for one in heard]), 1.0

    curve = curves.climbed(density)
    assert curve.held_out is not None
    best = float(curve.held_out.max())
    scores, tuned_numbers = {HELD_OUT: best}, {HELD_OUT: 1}
    if own := all(member.gaussian.moves for member in members):
        scores[OWN], tuned_numbers[OWN] = curve.at_own, 0
    rival, temperatures = _alone(heard, scores) if mixture.likelihood.is_discrete else (None, {})
    tuned_numbers |= {name: int(name == SCALED) for name in temperatures}
    winner = max(scores, key=lambda name: scores[name])
    shares = {winner: 1.0}
    if mixture.likelihood.has_classes:
        shares = shares_of(scores, tuned_numbers, heard[0].known.size)
    members = [replace(member, link=link or member.link) for member in members]
    at_best = [member.at_multiple(curve.best_precision, 1.0, "held-out density") for member in members]
    ranks = OWN if own and winner != HELD_OUT else HELD_OUT
    found = [
        _predicting(posteriors, ranks, temperatures, shares)
        for posteriors in ({OWN: one, HELD_OUT: other} for one, other in zip(members, at_best, strict=True))
    ]
    told = replace(
        found[0].diagnostics, candidate=winner, candidates=scores, shares=shares, held_out=best,
        validation_size=len(heard[0].known.targets), temperature_scaling=None if rival is None else asdict(rival),
    )  # fmt: skip
    return replace(mixture, members=tuple(found), diagnostics=told)


def _predicting(
    posteriors: Mapping[str, Posterior], ranks: str, temperatures: Mapping[str, float], shares: Mapping[str, float]
) -> Posterior:
    """A member that ranks inputs by one of its posteriors, and predicts labels by the shares of the candidates."""
    others = {name: OtherGaussian(one.gaussian, one.link, one.map.centre) for name, one in posteriors.items()}
    alone = {name: ScaledNetwork(temperature) for name, temperature in temperatures.items()}
    candidates: dict[str, Alternative] = {**others, **alone, ranks: Itself()}
    return replace(posteriors[ranks], alternative=averaged(candidates, shares))


def _ready(member: Posterior, validation: Any) -> Posterior:
    """A member whose precision means something: by its bound, or else by held-out data for itself."""
    if member.gaussian.moves:
        return member
    found = tuned_until_known(member, validation)
    return replace(found, alternative=None, diagnostics=replace(found.diagnostics, candidates=None))


def _density(heard: Sequence[Rehearsal], each: Sequence[Tensor]) -> float:
    """The mean log density of held-out targets under the mixture, of those under every member."""
    return float(heard[0].known.shares @ (torch.stack(list(each)).logsumexp(0) - log(len(each))))


def _alone(heard: Sequence[Rehearsal], scores: dict[str, float]) -> tuple[TemperatureScaling | None, dict[str, float]]:
    """Adds the scores of the raw networks, averaged; gives temperature scaling and the candidates' temperatures."""
    if any(one.network is None for one in heard):
        return None, {}

    def score(temperature: float) -> float:
        return _density(heard, [_each_alone(one, temperature) for one in heard])

    scores[ENSEMBLE] = score(1.0)
    if not heard[0].known.likelihood.has_classes:
        return None, {ENSEMBLE: 1.0}
    found = scipy.optimize.minimize_scalar(
        lambda x: -score(float(np.exp(x))), bounds=np.log(TEMPERATURES), method="bounded"
    )
    best = float(np.exp(found.x))
    scores[SCALED] = -float(found.fun)
    return TemperatureScaling(best, scores[SCALED], scores[ENSEMBLE]), {ENSEMBLE: 1.0, SCALED: best}


def _each_alone(one: Rehearsal, temperature: float) -> Tensor:  # (targets,)
    """The log density of every target at the network's own outputs over a temperature."""
    assert one.network is not None
    links = one.known.likelihood.links
    known = replace(one.known, link="probit" if "probit" in links else links[0])
    return known.each(one.network, Spread(torch.zeros_like(one.network), None), temperature)


def _of_numbers(mixture: Mixture, validation: Any) -> Mixture:
    """Every member tuned by itself; then, where the noise is tuned, all variances times what suits the mixture."""
    members = [tuned_until_known(member, validation) for member in mixture.members]
    heard = [rehearsed(member, validation, member.link) for member in members]
    found = [one.over(1.0) for one in heard]

    def loss(log_multiple: float) -> float:
        multiple = float(np.exp(log_multiple))
        each = [one.known.each(*outputs, 1.0, multiple) for one, outputs in zip(heard, found, strict=True)]
        return -_density(heard, each)

    best, least = 0.0, loss(0.0)
    if mixture.members[0].given.tunes_noise:
        search = scipy.optimize.minimize_scalar(loss, bounds=np.log(MULTIPLES), method="bounded")
        if search.fun < least:
            best, least = float(search.x), float(search.fun)
            multiple = float(np.exp(best))
            members = [member.at_multiple(multiple, multiple, "held-out density") for member in members]
    told = replace(members[0].diagnostics, held_out=-least, validation_size=len(heard[0].known.targets))
    return replace(mixture, members=tuple(members), diagnostics=told)

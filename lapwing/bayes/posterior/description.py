"""A posterior in a few lines of words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.priors import DiagonalPrior

SIMPLER = {
    "temperature scaling": "on these held-out data temperature scaling is as good as this posterior, and cheaper: its "
    "probabilities are used; the posterior ranks inputs (novelty, mutual_information)",
    "network alone": "on these held-out data the network alone is as good as this posterior, and cheaper: its "
    "probabilities are used; the posterior ranks inputs (novelty, mutual_information)",
}
FAR = 1.5  # times the noise that the linear model leaves
WANTED = {
    "stiffest": "no error bars from the weights, so noise or a temperature alone do as well",
    "widest": "wider ones than the data allow",
}

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior


def described(posterior: Posterior) -> str:
    """What `repr` shows: method, precisions, noise, effective dimension, draws, and an evidence that was asked for."""
    told, prior = posterior.diagnostics, posterior.prior
    lines = [
        f"Posterior over {posterior.map.weights:,} weights, given {told.observations:,} observed outputs",
        f"  method              {told.method} ({told.why})",
        f"  prior precision     {listed(prior.precision)}{_pruned(prior)}, by {told.tuned_by}{_edge(told)}",
        f"  {_noise(posterior)}",
        f"  effective dimension {posterior.effective_dimension}",
    ]
    if told.curvature is not None:
        lines.append(f"  curvature           {told.curvature}")
    if told.tuned_by == "evidence":
        lines.append(f"  log evidence        {posterior.log_evidence}{_at_weights(told)}{_bound(posterior)}")
    lines.append(f"  draws               {told.draws}, seed {posterior.seed}")
    return "\n".join([*(broken(line) for line in lines), *candidates(told)])


def _bound(posterior: Posterior) -> str:
    return ", a lower bound" if posterior.gaussian.evidence_is_bound else ""


def candidates(told: Diagnostics, simpler: Mapping[str, str] = SIMPLER) -> list[str]:
    """What was compared on held-out data, the best first, and where the network alone does as well the advice."""
    if told.candidates is None or told.candidate is None:
        return []
    ranked = sorted(told.candidates.items(), key=lambda item: -item[1])
    lines = [f"  held-out NLL        {-score:.4f}  {name}" for name, score in ranked]
    first, *others = lines
    found = [f"{first} (makes the probabilities)", *(" " * 22 + line[22:] for line in others)]
    if told.candidate in simpler:
        found.append(broken(f"  advice              {simpler[told.candidate]}"))
    return found


def broken(line: str) -> str:
    """A long line in several that fit a terminal, under what they say more of."""
    return textwrap.fill(line, 79, subsequent_indent=" " * 22, break_long_words=False, break_on_hyphens=False)


def _at_weights(told: Diagnostics) -> str:
    return ", at the network's own weights" if told.evidence_at == "weights" else ""


def _edge(told: Diagnostics) -> str:
    edge = told.edge_of_range
    return "" if edge is None else f", the {edge} in range: the held-out data want {WANTED[edge]}"


def _noise(posterior: Posterior) -> str:
    of = posterior.likelihood
    if not of.constant_curvature:
        heat = "" if posterior.temperature == 1 else f", temperature {posterior.temperature:.3g}"
        return f"likelihood          {type(of).__name__}, {posterior.link} link{heat}"
    how = "tuned" if posterior.given.tunes_noise else "given"
    std = torch.as_tensor(of.saved()["noise_std"]).reshape(-1)
    return f"noise std           {listed(std)}, {how}{_short_of_minimum(posterior, std)}"


def _short_of_minimum(posterior: Posterior, std: Tensor) -> str:
    """Where a network leaves far more than its linear model would."""
    left = posterior.network_residual_rms
    if left is None or not bool((left > FAR * std).any()):
        return ""
    return (
        f"; the network itself leaves {listed(left)}, which its predictions count as noise: it is short of its "
        'minimum, train it further or use predict(mean="linear")'
    )


def listed(values: Tensor) -> str:
    """The first few numbers."""
    shown = ", ".join(f"{float(value):.4g}" for value in values[:6])
    return shown + (f", … ({len(values)} values)" if len(values) > 6 else "")


def _pruned(prior: DiagonalPrior) -> str:
    names = [name for name, value in zip(prior.names, prior.precision, strict=True) if not bool(value.isfinite())]
    return f" (pruned: {', '.join(names)})" if names else ""

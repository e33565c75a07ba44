"""A posterior in a few lines of words."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.priors import DiagonalPrior

SIMPLER = {
    "temperature scaling": "Temperature scaling is as good on your validation data, and cheaper.",
    "raw network": "The raw network is as good on your validation data, and cheaper.",
}
RANKED = "The posterior ranks inputs (novelty, mutual_information)."
RAISED = "evidence, raised so that training labels stay likely"
DEFAULTS = re.compile(r"(?:, )?\w+=None")  # arguments of a method that say nothing
FAR = 1.5  # times the noise that the linear model leaves
TUNED = {
    "given": "set by you",
    "evidence": "tuned by marginal likelihood",
    "held-out density": "tuned on validation data",
    RAISED: "tuned by marginal likelihood, then raised so that the training labels stay likely",
}
EDGES = {
    "stiffest": "Largest value tried: on your validation data the uncertainty of the weights adds nothing to the raw "
    "network.",
    "widest": "Smallest value tried: even the widest prior is too narrow for your validation data. Usually the network "
    "is undertrained, its outputs are not logits, or the validation set is tiny or different.",
}

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior


def described(posterior: Posterior) -> str:
    """What `repr` shows: method, precisions, noise, effective dimension, draws, and an evidence that was asked for."""
    told, prior = posterior.diagnostics, posterior.prior
    lines = [
        f"Posterior over {posterior.map.weights:,} weights, from {examples(posterior)}",
        f"  method              {DEFAULTS.sub('', told.method)} ({told.why})",
        f"  prior precision     {listed(prior.precision)}{_pruned(prior)} ({TUNED.get(told.tuned_by, told.tuned_by)})",
        *_edge(told),
        f"  {_noise(posterior)}",
        f"  effective dimension {posterior.effective_dimension}",
    ]
    if told.curvature is not None:
        lines.append(f"  curvature           {told.curvature}")
    if told.tuned_by == "evidence":
        lines.append(f"  log evidence        {posterior.log_evidence}{_at_weights(told)}{_bound(posterior)}")
    if told.tuned_by == RAISED:
        lines.append("  log evidence        lower here than at its maximum: compare models by curve.log_evidence.max()")
    lines.append(f"  draws               {told.draws}, seed {posterior.seed}")
    return "\n".join([*(broken(line) for line in lines), *candidates(told)])


def _bound(posterior: Posterior) -> str:
    return ", a lower bound" if posterior.gaussian.evidence_is_bound else ""


def candidates(told: Diagnostics, simpler: Mapping[str, str] = SIMPLER) -> list[str]:
    """What was compared on held-out data, the best first, and the advice where the raw network does as well."""
    if told.candidates is None or told.candidate is None:
        return []
    ranked = sorted(told.candidates.items(), key=lambda item: -item[1])
    shares = told.shares or {told.candidate: 1.0}
    rows = [f"{-score:.4f}  {shares.get(name, 0.0):4.0%}  {name}{_at(told, name)}" for name, score in ranked]
    used = sum(share > 0 for share in shares.values())
    how = (
        "The probabilities average these, with the shares shown." if used > 1 else "The first makes the probabilities."
    )
    lead = [f"  {'validation NLL':20}{rows[0]}", *(f"  {'':20}{row}" for row in rows[1:])]
    return [*lead, broken(f"  {'':20}{how} {RANKED}"), *_advice(told.candidate, simpler)]


def _at(told: Diagnostics, name: str) -> str:
    """The temperature, of the candidate that has one: of a network, or of several."""
    scaling = told.temperature_scaling
    return "" if scaling is None or "temperature" not in name else f" (T = {scaling['temperature']:.3g})"


def _advice(candidate: str, simpler: Mapping[str, str]) -> list[str]:
    return [broken(f"  {'advice':20}{simpler[candidate]}")] if candidate in simpler else []


def broken(line: str) -> str:
    """A long line in several that fit a terminal, under what they say more of."""
    return textwrap.fill(line, 79, subsequent_indent=" " * 22, break_long_words=False, break_on_hyphens=False)


def _at_weights(told: Diagnostics) -> str:
    return ", at the network's own weights" if told.evidence_at == "weights" else ""


def examples(posterior: Posterior) -> str:
    """How many data there are, and of how many outputs each."""
    rows, outputs = posterior.diagnostics.observations, posterior.map.outputs
    if outputs is None or outputs == 1 or rows % outputs:
        return f"{rows:,} training examples"
    return f"{rows // outputs:,} training examples × {outputs:,} outputs"


def _edge(told: Diagnostics) -> list[str]:
    return [] if told.edge_of_range is None else [f"  {'':20}{EDGES[told.edge_of_range]}{_underconfident(told)}"]


def _underconfident(told: Diagnostics) -> str:
    """Why the uncertainty of the weights adds nothing, where temperature scaling says so."""
    scaling = told.temperature_scaling
    if told.edge_of_range != "stiffest" or scaling is None or scaling["temperature"] >= 1:
        return ""
    return (
        f" Temperature scaling finds T = {scaling['temperature']:.3g} < 1: the network is underconfident, which "
        "uncertain weights do not mend. Train it longer, or use temperature scaling."
    )


def _noise(posterior: Posterior) -> str:
    of = posterior.likelihood
    if not of.constant_curvature:
        heat = "" if posterior.temperature == 1 else f", temperature {posterior.temperature:.3g}"
        return f"likelihood          {type(of).__name__}, {posterior.link} link{heat}"
    how = "tuned" if posterior.given.tunes_noise else "set by you"
    std = torch.as_tensor(of.saved()["noise_std"]).reshape(-1)
    return f"noise std           {listed(std)} ({how}){_short_of_minimum(posterior, std)}"


def _short_of_minimum(posterior: Posterior, std: Tensor) -> str:
    """Where a network leaves far more than its linear model would."""
    left = posterior.network_residual_rms
    if left is None or not bool((left > FAR * std).any()):
        return ""
    return (
        f". The network's training RMSE is {listed(left)}, so predictions use that as the noise: the network looks "
        'undertrained. Train it longer, or call predict(mean="linear").'
    )


def listed(values: Tensor) -> str:
    """The first few numbers."""
    shown = ", ".join(f"{float(value):.4g}" for value in values[:6])
    return shown + (f", … ({len(values)} values)" if len(values) > 6 else "")


def _pruned(prior: DiagonalPrior) -> str:
    names = [name for name, value in zip(prior.names, prior.precision, strict=True) if not bool(value.isfinite())]
    return f" (pruned: {', '.join(names)})" if names else ""

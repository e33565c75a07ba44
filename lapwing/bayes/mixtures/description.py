"""A mixture in a few lines of words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapwing.bayes.mixtures.held_out import ENSEMBLE, SCALED
from lapwing.bayes.posterior.description import TUNED, broken, candidates, examples, listed

if TYPE_CHECKING:
    from lapwing.bayes.mixtures.mixture import Mixture

SIMPLER = {
    ENSEMBLE: "The mean of the networks' probabilities is as good on your validation data.",
    SCALED: "The same with one temperature for all networks is as good on your validation data.",
}


def described(mixture: Mixture) -> str:
    """What `repr` shows: how many members of how many weights, and what each of them was found with."""
    members = mixture.members
    if len(members) == 1:
        return f"Mixture of one posterior:\n{members[0]!r}"
    weights = sorted({member.map.weights for member in members})
    sizes = f"{weights[0]:,}" if len(weights) == 1 else f"{weights[0]:,} to {weights[-1]:,}"
    told = members[0].diagnostics
    tuned = TUNED.get(told.tuned_by, told.tuned_by)
    lines = [
        f"Mixture of {len(members)} posteriors over {sizes} weights each, from {examples(members[0])}",
        f"  methods             {', '.join(dict.fromkeys(member.diagnostics.method for member in members))}",
        f"  prior precisions    {'; '.join(listed(member.prior.precision) for member in members)} ({tuned})",
        f"  likelihood          {type(mixture.likelihood).__name__}{_noise(mixture)}",
        f"  effective dims      {'; '.join(str(member.effective_dimension) for member in members)}",
        f"  draws               {len(members)} × {told.draws}, seeds {mixture.seed} to {members[-1].seed}",
    ]
    return "\n".join([*(broken(line) for line in lines), *candidates(mixture.diagnostics, SIMPLER)])


def _noise(mixture: Mixture) -> str:
    if not mixture.likelihood.constant_curvature:
        return f", {mixture.link} link"
    stds = [member.likelihood.saved()["noise_std"].reshape(-1) for member in mixture.members]
    return f", noise std {'; '.join(map(listed, stds))}"

"""Classifiers trained by a bound on the evidence: mean, spread and precisions of each network in turns.

For every network of a batch the posterior of its weights is N(θ, Σ), Σ⁻¹ = A + Σᵢ wᵢ Jᵢᵀ Bᵢ Jᵢ, in the network that is
linearised at θ itself: outputs have the means f(xᵢ) and the covariances Jᵢ Σ Jᵢᵀ, and curvatures B as well as gradients
are averages over those, so that data which are fitted with confidence still count. A lower bound on the evidence is

    Σᵢ wᵢ E log p(yᵢ) − ½ (θᵀAθ − γ + log det(I + A⁻¹ Σᵢ wᵢ Jᵢᵀ Bᵢ Jᵢ)),  γ = Σ_g γ_g,

with γ_g the number of weights of group g that the data determine. Steps of θ are those of Levenberg and Marquardt on E
log p and the penalty with the spread held. Now and then the spread follows, and the precisions go where the bound has
no slope, γ_g / ‖θ_g‖²; those of the columns are drawn towards what they would be together (`Priors.lent`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from lapwing.runtime.progress import Report
from lapwing.tabular import blocks
from lapwing.tabular.blocks import covariances
from lapwing.tabular.curvature import Conditioned, DataCurvature, Variances
from lapwing.tabular.iterations import TrainedNetworks, iterated
from lapwing.tabular.labels import Labels, LogitAverages, root_of
from lapwing.tabular.networks import LayerJacobian, LayerMatrices, linearised, outputs
from lapwing.tabular.training import (
    DAMPING,
    LARGEST_PRECISION,
    SMALLEST_PRECISION,
    Groups,
    damping_factor,
    penalty,
    start,
)

LARGEST_LOGIT_STD = 20.0  # of the prior
FIRST_LOOK = 8  # steps before spread and precisions are looked at


@final
@dataclass(frozen=True, eq=False)
class Priors:
    """Which weights share a precision, and which precisions are those of columns: the first."""

    groups: Groups
    columns: int
    lent: Tensor  # (b,), a number of weights that all columns together lend to each, so that few rows do not decide it

    def __getitem__(self, chosen: Tensor) -> Priors:
        return replace(self, lent=self.lent[chosen])

    @staticmethod
    def of(columns: Tensor, sizes: tuple[int, ...], lent: Tensor) -> Priors:
        """As those of numbers (`Groups.by_column`), with a prior of the outputs that is wide enough for logits."""
        groups = Groups.by_column(columns, sizes)
        least = torch.full_like(groups.least, SMALLEST_PRECISION)
        least[-2] = sizes[-2] / LARGEST_LOGIT_STD**2
        return Priors(Groups(groups.of, least), int(columns.max()) + 1, lent)

    def updated(self, determined: Tensor, squares: Tensor) -> Tensor:  # (b, groups) each
        """The next precisions."""
        own = slice(None), slice(self.columns)
        together = determined[own].sum(1, keepdim=True) / squares[own].sum(1, keepdim=True)
        lent = torch.zeros_like(determined)
        lent[own] = self.lent[:, None]
        added = torch.zeros_like(squares)
        added[own] = self.lent[:, None] / together
        return ((determined + lent) / (squares + added)).clamp_max(LARGEST_PRECISION).maximum(self.groups.least)


@final
@dataclass(frozen=True, eq=False)
class SpreadState:
    """Networks with their precisions and the spread of their outputs, on the way."""

    networks: LayerMatrices
    precision: Tensor  # (b, groups), α
    damping: Tensor  # (b,), λ
    roots: Tensor  # (b, n, k, k), of the covariances of the outputs
    log_evidence: Tensor  # (b,), a bound on it, when the precisions were last looked at

    def __getitem__(self, chosen: Tensor) -> SpreadState:
        return SpreadState(
            self.networks[chosen],
            self.precision[chosen],
            self.damping[chosen],
            self.roots[chosen],
            self.log_evidence[chosen],
        )

    def replaced(self, chosen: Tensor, others: SpreadState) -> SpreadState:
        """With the networks at these places taken from others."""
        return SpreadState(
            self.networks.replaced(chosen, others.networks),
            self.precision.index_copy(0, chosen, others.precision),
            self.damping.index_copy(0, chosen, others.damping),
            self.roots.index_copy(0, chosen, others.roots),
            self.log_evidence.index_copy(0, chosen, others.log_evidence),
        )

    def variances(self, priors: Priors) -> Variances:
        """Of the prior."""
        return priors.groups.spread(1 / self.precision)


@final
@dataclass(frozen=True, eq=False)
class SpreadModel:
    """The linear model of the networks where they are, with outputs that spread."""

    values: Tensor  # (b, n, k), mean outputs
    jacobian: LayerJacobian
    averages: LogitAverages
    rows: LayerJacobian  # R with RᵀR = Σ w Jᵀ B J
    curved: DataCurvature

    @staticmethod
    def of(state: SpreadState, data: Labels) -> SpreadModel:
        """One pass over the data."""
        values, jacobian = linearised(state.networks, data.inputs)
        return _local(values, jacobian, state.roots, data)

    def with_spread(self, roots: Tensor, data: Labels) -> SpreadModel:
        """The same networks with another spread of their outputs."""
        return _local(self.values, self.jacobian, roots, data)

    def gradient(self, networks: LayerMatrices, variances: Variances, data: Labels) -> LayerMatrices:
        """Of the penalty less E log p."""
        pull = LayerMatrices(tuple(w / v[:, None, :] for w, v in zip(networks.of, variances, strict=True)))
        each = self.averages.gradient * data.weights[:, None]
        return pull - self.jacobian.transposed(each.flatten(1))


def _local(values: Tensor, jacobian: LayerJacobian, roots: Tensor, data: Labels) -> SpreadModel:
    averages = data.averages(values, roots)
    rows = blocks.mixed(jacobian, root_of(averages.curvature) * data.weights.sqrt()[:, None, None])
    return SpreadModel(values, jacobian, averages, rows, blocks.curvature(rows, data.outputs))


class Look(NamedTuple):
    """The posterior where the networks are, with what depends on it."""

    state: SpreadState
    here: SpreadModel  # with the spread of this posterior
    known: Conditioned
    determined: Tensor  # (b, groups), γ


def bound(
    state: SpreadState, data: Labels, known: Conditioned, here: SpreadModel, determined: Tensor
) -> Tensor:  # (b,)
    """On the evidence of the linearised networks; `here` has the spread that `known` gives."""
    misfit = here.averages.log_density @ data.weights - penalty(state.networks, known.variances)
    return misfit + 0.5 * determined.sum(1) - 0.5 * known.log_determinant()


def looked_at(state: SpreadState, data: Labels, here: SpreadModel, priors: Priors) -> Look:
    """Spread and bound of the posterior with the curvature of `here`, and the averages over that."""
    known = here.curved.at(state.variances(priors))
    determined = priors.groups.summed(known.determined())
    roots = root_of(covariances(known, here.jacobian, data.outputs))
    there = here.with_spread(roots, data)
    evidence = bound(state, data, known, there, determined)
    return Look(replace(state, roots=roots, log_evidence=evidence), there, known, determined)


def tuned(state: SpreadState, determined: Tensor, priors: Priors) -> SpreadState:
    """With the next precisions."""
    squares = priors.groups.summed(tuple(layer.square().sum(1) for layer in state.networks.of)).clamp_min(1e-30)
    return replace(state, precision=priors.updated(determined.clamp_min(1e-10), squares))


def stepped(state: SpreadState, data: Labels, here: SpreadModel, priors: Priors) -> SpreadState:
    """A damped step of every network whose loss falls by it; the damping follows how much of what was promised fell."""
    variances = state.variances(priors)
    damped = tuple(v / (1 + state.damping)[:, None] for v in variances)
    gradient = here.gradient(state.networks, variances, data)
    step = here.curved.solve(damped, gradient)
    trial = state.networks - step
    promised = (gradient * step).total() - 0.5 * here.rows.times(step).square().sum(1) - penalty(step, variances)
    before = here.averages.log_density @ data.weights - penalty(state.networks, variances)
    after = data.log_likelihood(outputs(trial, data.inputs), state.roots) - penalty(trial, variances)
    better = (after > before).nonzero()[:, 0]
    factor = damping_factor((after - before) / promised.clamp_min(1e-300))
    damping = (state.damping * factor).clamp(*DAMPING)
    return replace(state, networks=state.networks.replaced(better, trial[better]), damping=damping)


def begin(networks: LayerMatrices, data: Labels, priors: Priors, logit_std: Tensor) -> SpreadState:
    """Before the first step: the prior that the weights were drawn from, but of the outputs (b,); no spread yet."""
    b = len(networks.of[0])
    first = start(networks, priors.groups)
    precision = first.precision.clone()
    precision[:, -2] = networks.of[-1].shape[2] / logit_std.square()
    none = torch.zeros(b, len(data.inputs), data.outputs, data.outputs, dtype=torch.float64)
    return SpreadState(networks, precision.maximum(priors.groups.least), first.damping, none, first.log_evidence)


def train(
    state: SpreadState,
    data: Labels,
    priors: Priors,
    *,
    max_iter: int,
    tol: float,
    report: Report,
    first_look: int = FIRST_LOOK,
) -> TrainedNetworks[SpreadState]:  # fmt: skip
    """Until the bound of a network changes by less than `tol` nats from one look to the next, for each by itself."""

    def iteration(now: SpreadState, active: Tensor, look: bool) -> tuple[SpreadState, Tensor]:
        return _iteration(now, data, priors[active], look=look)

    return iterated(state, iteration, first_look=first_look, max_iter=max_iter, tol=tol, report=report)


def _iteration(state: SpreadState, data: Labels, priors: Priors, *, look: bool) -> tuple[SpreadState, Tensor]:
    """Spread and precisions, where they are looked at, then a step; and by how much the bound changed, if looked at."""
    here = SpreadModel.of(state, data)
    left = torch.full_like(state.damping, torch.inf)
    if look:
        before = state.log_evidence
        state, here, _, determined = looked_at(state, data, here, priors)
        left = (state.log_evidence - before).abs()
        state = tuned(state, determined, priors)
    return stepped(state, data, here, priors), left

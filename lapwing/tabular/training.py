"""Networks trained by the evidence: Levenberg-Marquardt steps in turns with MacKay's update of the precisions.

For every network of a batch the loss is ½ β Σ w (y − f)² + ½ Σ α_g ‖θ_g‖². A step solves with its Gauss-Newton matrix
β JᵀWJ + (1 + λ) A, where the damping λ falls when the loss does; then, with γ_g the number of weights of group g that the
data determine, α_g = γ_g / ‖θ_g‖² and β = (N − γ) / Σ w (y − f)² (MacKay 1992). Networks do not know of each other: a
batch is trained as its members alone would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.linalg.progress import Report
from lapwing.tabular.curvature import Conditioned, Variances, curvature
from lapwing.tabular.networks import Jacobian, Layers, linearised, outputs

LARGEST_PRECISION = 1e8  # of standardised columns: the weights of one that is as good as gone
SMALLEST_PRECISION = 1e-8
LARGEST_NOISE_PRECISION = 1e10  # of standardised targets
LARGEST_DAMPING = 1e12  # beyond it a step is as good as none
QUICKER, SLOWER = 0.3, 4.0  # of the damping, after a step that was good and one that was not


@final
@dataclass(frozen=True, eq=False)
class Data:
    """What the networks are fitted to, each to its own targets."""

    inputs: Tensor  # (n, d), standardised
    targets: Tensor  # (b, n, c), standardised
    weights: Tensor  # (n,), how often each row counts

    def __getitem__(self, chosen: Tensor) -> Data:
        return replace(self, targets=self.targets[chosen])

    @property
    def count(self) -> float:
        """Of observed numbers."""
        return float(self.weights.sum()) * self.targets.shape[2]

    def residuals(self, values: Tensor) -> Tensor:  # (b, rows), each times the root of its weight
        """Of outputs (b, n, c)."""
        return ((self.targets - values) * self.weights.sqrt()[:, None]).flatten(1)

    def rows(self, jacobian: Jacobian) -> Jacobian:
        """Derivatives of outputs, each times the root of its weight."""
        root = self.weights.sqrt().repeat_interleave(self.targets.shape[2])
        return jacobian.scaled(root[None])


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Which weights share a precision: those of whole columns of a layer's matrix."""

    of: tuple[Tensor, ...]  # a layer each: (inputs + 1,), long
    count: int

    @staticmethod
    def by_column(columns: Tensor, layers: int) -> Groups:
        """One for all weights that leave a column of the table, else one a tensor.

        `columns` says for each input which column it came from, (d,).
        """
        first = int(columns.max()) + 1
        parts = [torch.cat([columns, torch.tensor([first])])]
        return Groups((*parts,), first + 1).deeper(layers - 1)

    def deeper(self, layers: int) -> Groups:
        """A group for the matrix and one for the bias of each further layer; sizes are found when they are used."""
        extra = tuple(torch.tensor([self.count + 2 * k, self.count + 2 * k + 1]) for k in range(layers))
        return Groups((*self.of, *extra), self.count + 2 * layers)

    def spread(self, values: Tensor, like: Layers) -> Variances:  # of (b, groups)
        """The value of each column's group."""
        return tuple(
            values[:, self._of_columns(group, layer.shape[2])] for group, layer in zip(self.of, like.of, strict=True)
        )

    def summed(self, columns: Variances) -> Tensor:  # (b, groups)
        """The sum over each group."""
        total = torch.zeros(len(columns[0]), self.count, dtype=columns[0].dtype)
        for group, part in zip(self.of, columns, strict=True):
            total = total.index_add(1, self._of_columns(group, part.shape[1]), part)
        return total

    @staticmethod
    def _of_columns(group: Tensor, columns: int) -> Tensor:
        if len(group) == columns:
            return group
        return torch.cat([group[:1].expand(columns - 1), group[1:]])


@final
@dataclass(frozen=True, eq=False)
class State:
    """Networks with their precisions, on the way."""

    networks: Layers
    precision: Tensor  # (b, groups), α
    noise_precision: Tensor  # (b,), β
    damping: Tensor  # (b,), λ
    log_evidence: Tensor  # (b,), when the precisions were last looked at

    def __getitem__(self, chosen: Tensor) -> State:
        return State(
            self.networks[chosen], self.precision[chosen], self.noise_precision[chosen], self.damping[chosen],
            self.log_evidence[chosen],
        )  # fmt: skip

    def replaced(self, chosen: Tensor, others: State) -> State:
        """With the networks at these places taken from others."""
        return State(
            self.networks.replaced(chosen, others.networks),
            self.precision.index_copy(0, chosen, others.precision),
            self.noise_precision.index_copy(0, chosen, others.noise_precision),
            self.damping.index_copy(0, chosen, others.damping),
            self.log_evidence.index_copy(0, chosen, others.log_evidence),
        )

    def variances(self, groups: Groups) -> Variances:
        """Of the prior, in units of the noise variance."""
        return groups.spread(self.noise_precision[:, None] / self.precision, self.networks)


def log_evidence(state: State, groups: Groups, data: Data, known: Conditioned, residuals: Tensor) -> Tensor:  # (b,)
    """log p(y) of the linearised networks, were their weights at the mode: fit, penalty and determinants."""
    beta = state.noise_precision
    squares = groups.spread(state.precision, state.networks)
    penalty = sum((v[:, None, :] * w.square()).sum((1, 2)) for v, w in zip(squares, state.networks.of, strict=True))
    fit = beta * residuals.square().sum(1) - data.count * (beta / (2 * torch.pi)).log()
    return -0.5 * (fit + penalty + known.log_determinant())


def updated(state: State, groups: Groups, data: Data, known: Conditioned, residuals: Tensor) -> State:
    """MacKay's re-estimate of all precisions."""
    determined = groups.summed(known.determined()).clamp_min(1e-10)
    squares = groups.summed(tuple(layer.square().sum(1) for layer in state.networks.of)).clamp_min(1e-30)
    precision = (determined / squares).clamp(SMALLEST_PRECISION, LARGEST_PRECISION)
    left = (data.count - determined.sum(1)).clamp_min(1e-3 * data.count)
    noise = left / residuals.square().sum(1).clamp_min(1e-30)
    return replace(state, precision=precision, noise_precision=noise.clamp_max(LARGEST_NOISE_PRECISION))


def stepped(state: State, groups: Groups, data: Data, rows: Jacobian, values: Tensor, info=None) -> tuple[State, Tensor]:
    """A damped Gauss-Newton step of every network whose loss falls by it, and by how many nats it fell, (b,)."""
    variances = state.variances(groups)
    damped = tuple(v / (1 + state.damping)[:, None] for v in variances)
    residuals = data.residuals(values)
    pull = Layers(tuple(w / v[:, None, :] for w, v in zip(state.networks.of, variances, strict=True)))
    gradient = pull - rows.transposed(residuals)
    step = curvature(rows).at(damped).solve(gradient) if info is None else info.at(damped).solve(gradient)
    trial = state.networks - step
    before = _loss(state.networks, variances, residuals)
    after = _loss(trial, variances, data.residuals(outputs(trial, data.inputs)))
    fell = state.noise_precision * (before - after)
    better = fell >= 0
    everywhere = torch.arange(len(fell))
    networks = state.networks.replaced(everywhere[better], trial[everywhere[better]])
    damping = (state.damping * torch.where(better, QUICKER, SLOWER)).clamp(1e-12, LARGEST_DAMPING)
    return replace(state, networks=networks, damping=damping), torch.where(better, fell, torch.nan)


def _loss(networks: Layers, variances: Variances, residuals: Tensor) -> Tensor:  # (b,)
    """In units of the noise variance."""
    penalty = sum((w.square() / v[:, None, :]).sum((1, 2)) for w, v in zip(networks.of, variances, strict=True))
    return 0.5 * (residuals.square().sum(1) + penalty)

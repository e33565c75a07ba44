"""Networks trained by the evidence: Levenberg-Marquardt steps in turns with MacKay's update of the precisions.

For every network of a batch the loss is ½ β Σ w (y − f)² + ½ Σ α_g ‖θ_g‖², where w counts rows and, if their noise
differs, divides by its relative variance. A step solves with the Gauss-Newton matrix β JᵀWJ + (1 + λ) A, where the
damping λ falls when the loss does. Now and then, with γ_g the number of weights of group g that the data determine,
α_g = γ_g / ‖θ_g‖² and β = (N − γ) / Σ w (y − f)² (MacKay 1992). Networks do not know of each other: a batch is trained
as its members alone would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.runtime.progress import Report
from lapwing.tabular.curvature import (
    BLOCK_ELEMENTS,
    Conditioned,
    DataCurvature,
    GramSum,
    RowCurvature,
    Variances,
    Workspace,
    fewer_rows,
)
from lapwing.tabular.iterations import TrainedNetworks, iterated
from lapwing.tabular.networks import LayerJacobian, LayerMatrices, linearised, outputs

LARGEST_PRECISION = 1e8  # of standardised columns: the weights of one that is as good as gone
SMALLEST_PRECISION = 1e-8
LARGEST_OUTPUT_STD = 3.0  # of the prior, for standardised targets
LARGEST_NOISE_PRECISION = 1e10  # of standardised targets
FIRST_NOISE_PRECISION = 30.0
FIRST_LOOK = 6  # steps before precisions are looked at
TRIES = 4  # of a step, before the Gauss-Newton matrix is made again
DAMPING = (1e-12, 1e12)  # beyond, a step is a Gauss-Newton step, or none


@final
@dataclass(frozen=True, eq=False)
class TrainingData:
    """What the networks are fitted to, each to its own targets, with Gaussian noise.

    Training knows of the likelihood what is asked here: `rows` and `residuals`, with RᵀR its Gauss-Newton matrix and
    Rᵀr minus its gradient in the weights, `misfit` (all three but for a factor β), its log density, and how β is tuned.
    Sums over many rows are made block by block, so that beside the data itself memory does not grow with their number.
    """

    inputs: Tensor  # (n, d), standardised
    targets: Tensor  # (b, n, c), standardised
    weights: Tensor  # (n,), how often each row counts
    noise_variance: Tensor  # (b, n), of each row in units of 1/β: ones, where all rows are as noisy
    known_precision: Tensor | None = None  # (b,), β, where it is given and not tuned

    def __getitem__(self, chosen: Tensor) -> TrainingData:
        known = None if self.known_precision is None else self.known_precision[chosen]
        return replace(
            self, targets=self.targets[chosen], noise_variance=self.noise_variance[chosen], known_precision=known
        )

    @staticmethod
    def of(inputs: Tensor, targets: Tensor, weights: Tensor) -> TrainingData:
        """With rows that are equally noisy."""
        return TrainingData(inputs, targets, weights, torch.ones(targets.shape[:2], dtype=targets.dtype))

    def part(self, rows: Tensor | slice) -> TrainingData:
        """Some of the rows."""
        return replace(
            self, inputs=self.inputs[rows], targets=self.targets[:, rows], weights=self.weights[rows],
            noise_variance=self.noise_variance[:, rows],
        )  # fmt: skip

    def blocks(self, networks: LayerMatrices) -> Iterator[TrainingData]:
        """All rows, in parts whose Jacobians have a moderate size even when they are dense."""
        size = max(1, BLOCK_ELEMENTS // (len(self.targets) * networks.weights))
        for start in range(0, len(self.inputs), size):
            yield self.part(slice(start, start + size))

    @property
    def root(self) -> Tensor:  # (b, n)
        """Of what a squared residual counts, but for β."""
        return (self.weights / self.noise_variance).sqrt()

    @property
    def count(self) -> float:
        """Of observed numbers."""
        return float(self.weights.sum()) * self.targets.shape[2]

    def residuals(self, values: Tensor) -> Tensor:  # (b, rows), each times its root
        """Of outputs (b, n, c)."""
        return ((self.targets - values) * self.root[:, :, None]).flatten(1)

    def rows(self, jacobian: LayerJacobian) -> LayerJacobian:
        """Derivatives of outputs, each times its root."""
        return jacobian.scaled(self.root.repeat_interleave(self.targets.shape[2], dim=1))

    def misfit(self, networks: LayerMatrices) -> Tensor:  # (b,)
        """½ Σ w (y − f)²."""
        blocks = self.blocks(networks)
        each = [block.residuals(outputs(networks, block.inputs)).square().sum(1) for block in blocks]
        return 0.5 * torch.stack(each).sum(0)

    def log_likelihood(self, misfit: Tensor, noise_precision: Tensor) -> Tensor:  # (b,)
        """Of all targets."""
        relative = self.targets.shape[2] * (self.noise_variance.log() @ self.weights)
        constant = self.count * (noise_precision / (2 * torch.pi)).log() - relative
        return 0.5 * constant - noise_precision * misfit

    def tuned_noise(self, misfit: Tensor, determined: Tensor) -> Tensor:  # (b,)
        """(N − γ) / Σ w (y − f)², where it is not known."""
        if self.known_precision is not None:
            return self.known_precision
        left = (self.count - determined).clamp_min(1e-3 * self.count)
        return (left / (2 * misfit).clamp_min(1e-30)).clamp_max(LARGEST_NOISE_PRECISION)


def joined(first: TrainingData, second: TrainingData) -> TrainingData:
    """The rows of both."""
    return TrainingData(
        torch.cat([first.inputs, second.inputs]),
        torch.cat([first.targets, second.targets], dim=1),
        torch.cat([first.weights, second.weights]),
        torch.cat([first.noise_variance, second.noise_variance], dim=1),
        first.known_precision,
    )


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Which weights share a precision: those of whole columns of a layer's matrix."""

    of: tuple[Tensor, ...]  # a layer each: (inputs + 1,), long
    least: Tensor  # (groups,), precisions do not fall below it

    @property
    def count(self) -> int:
        """Of groups."""
        return len(self.least)

    @staticmethod
    def by_column(columns: Tensor, sizes: tuple[int, ...]) -> Groups:
        """One for all weights that leave a column of the table, and one for each other matrix and each bias.

        `columns` says for each input which column it came from, (d,); `sizes` are those of the network's layers. The
        prior of the outputs is kept within a few times the targets' spread: nearly linear units make the same function
        of smaller first and larger last weights, and along that valley updates would not end.
        """
        count = int(columns.max()) + 1
        parts = [torch.cat([columns, torch.tensor([count])])]
        for size in sizes[1:-1]:
            parts.append(torch.tensor([count + 1] * size + [count + 2]))
            count += 2
        least = torch.full((count + 1,), SMALLEST_PRECISION, dtype=torch.float64)
        least[count - 1] = sizes[-2] / LARGEST_OUTPUT_STD**2
        return Groups(tuple(parts), least)

    def spread(self, values: Tensor) -> Variances:  # of (b, groups)
        """The value of each column's group."""
        return tuple(values[:, group] for group in self.of)

    def by_table_column(self, inputs: Tensor) -> Tensor:  # (b, d) to (b, columns)
        """Sums over the inputs that came from the same column of the table."""
        columns = self.of[0][:-1]
        total = torch.zeros(len(inputs), int(columns.max()) + 1, dtype=inputs.dtype)
        return total.index_add(1, columns, inputs)

    def summed(self, columns: Variances) -> Tensor:  # (b, groups)
        """The sum over each group."""
        total = torch.zeros(len(columns[0]), self.count, dtype=columns[0].dtype)
        for group, part in zip(self.of, columns, strict=True):
            total = total.index_add(1, group, part)
        return total


@final
@dataclass(frozen=True, eq=False)
class State:
    """Networks with their precisions, on the way."""

    networks: LayerMatrices
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
        return groups.spread(self.noise_precision[:, None] / self.precision)


@final
@dataclass(frozen=True, eq=False)
class LocalModel:
    """The linear model of the networks where they are, with what all rows say about it."""

    misfit: Tensor  # (b,), ½ ‖r‖²
    pull: LayerMatrices  # Rᵀr
    curved: DataCurvature

    @staticmethod
    def of(networks: LayerMatrices, data: TrainingData, memory: Workspace) -> LocalModel:
        """One pass over the data; good until the memory is used for another."""
        if fewer_rows(data.targets[0].numel(), networks.weights):
            misfit, pull, rows = _seen(networks, data)
            return LocalModel(misfit, pull, RowCurvature(rows))
        misfit = torch.zeros(len(data.targets), dtype=torch.float64)
        pull = networks - networks
        total = GramSum(len(data.targets), networks.shapes, memory)
        for block in data.blocks(networks):
            more_misfit, more_pull, rows = _seen(networks, block)
            misfit = misfit + more_misfit
            pull = pull + more_pull
            total.add(rows)
        return LocalModel(misfit, pull, total.curvature())

    def __getitem__(self, chosen: Tensor) -> LocalModel:
        return LocalModel(self.misfit[chosen], self.pull[chosen], self.curved[chosen])

    def gradient(self, networks: LayerMatrices, variances: Variances) -> LayerMatrices:
        """Of the loss, in units of the noise variance."""
        return LayerMatrices(tuple(w / v[:, None, :] for w, v in zip(networks.of, variances, strict=True))) - self.pull

    def misfit_after(self, step: LayerMatrices) -> Tensor:  # (b,)
        """By how much the linear model's misfit changes from these weights to those less a step."""
        return (self.pull * step).total() + 0.5 * self.curved.squared_length(step)


def _seen(networks: LayerMatrices, data: TrainingData) -> tuple[Tensor, LayerMatrices, LayerJacobian]:
    """½ ‖r‖², Rᵀr and R."""
    values, jacobian = linearised(networks, data.inputs)
    residuals = data.residuals(values)
    rows = data.rows(jacobian)
    return 0.5 * residuals.square().sum(1), rows.transposed(residuals), rows


def log_evidence(
    state: State, groups: Groups, data: TrainingData, known: Conditioned, misfit: Tensor
) -> Tensor:  # (b,)
    """log p(y) of the linearised networks, were their weights at the mode: fit, penalty and determinants."""
    pulled = state.noise_precision * penalty(state.networks, state.variances(groups))
    return data.log_likelihood(misfit, state.noise_precision) - pulled - 0.5 * known.log_determinant()


def updated(state: State, groups: Groups, data: TrainingData, known: Conditioned, misfit: Tensor) -> State:
    """MacKay's re-estimate of all precisions."""
    determined = groups.summed(known.determined()).clamp_min(1e-10)
    squares = groups.summed(tuple(layer.square().sum(1) for layer in state.networks.of)).clamp_min(1e-30)
    precision = (determined / squares).clamp_max(LARGEST_PRECISION).maximum(groups.least)
    return replace(state, precision=precision, noise_precision=data.tuned_noise(misfit, determined.sum(1)))


def decrement(state: State, known: Conditioned, here: LocalModel) -> Tensor:  # (b,)
    """By how many nats the loss of the linear model would fall to its minimum: ½ gᵀ H⁻¹ g."""
    gradient = here.gradient(state.networks, known.variances)
    return 0.5 * state.noise_precision * (gradient * known.solve(gradient)).total()


def stepped(state: State, groups: Groups, data: TrainingData, here: LocalModel) -> State:
    """A damped Gauss-Newton step of every network; where its loss does not fall, others with more and more damping."""
    state, fell = _tried(state, groups, data, here)
    left = (~fell).nonzero()[:, 0]
    for _ in range(TRIES - 1):
        if not len(left):
            break
        tried, fell = _tried(state[left], groups, data[left], here[left])
        state = state.replaced(left, tried)
        left = left[~fell]
    return state


def _tried(state: State, groups: Groups, data: TrainingData, here: LocalModel) -> tuple[State, Tensor]:
    """One step, and whether the loss falls by it; the damping follows how much of the promised fall there was."""
    variances = state.variances(groups)
    damped = tuple(v / (1 + state.damping)[:, None] for v in variances)
    step = here.curved.solve(damped, here.gradient(state.networks, variances))
    trial = state.networks - step
    lighter = penalty(state.networks, variances) - penalty(trial, variances)
    promised = lighter - here.misfit_after(step)
    fallen = lighter + here.misfit - data.misfit(trial)
    fell = fallen > 0
    better = fell.nonzero()[:, 0]
    damping = (state.damping * damping_factor(fallen / promised.clamp_min(1e-300))).clamp(*DAMPING)
    return replace(state, networks=state.networks.replaced(better, trial[better]), damping=damping), fell


def damping_factor(kept: Tensor) -> Tensor:  # (b,)
    """Of the damping: less after a step that did as promised, more after one that did not."""
    factor = torch.full_like(kept, 4.0)  # the loss rose, or is not a number
    factor[kept > 0] = 2.0
    factor[kept > 0.25] = 1.0
    factor[kept > 0.75] = 0.3
    return factor


def penalty(networks: LayerMatrices, variances: Variances) -> Tensor:  # (b,)
    """½ Σ α_g ‖θ_g‖², in units of the noise variance."""
    parts = [(w.square() / v[:, None, :]).sum((1, 2)) for w, v in zip(networks.of, variances, strict=True)]
    return 0.5 * torch.stack(parts).sum(0)


def start(networks: LayerMatrices, groups: Groups) -> State:
    """Before the first step: the prior that `initial` draws from, and noise of a fifth of the targets' spread."""
    b = len(networks.of[0])
    by_column = [torch.full((b, layer.shape[2]), layer.shape[2] - 1.0, dtype=layer.dtype) for layer in networks.of]
    for part in by_column:
        part[:, -1] = 1
    ones = tuple(torch.ones_like(part) for part in by_column)
    return State(
        networks,
        precision=groups.summed(tuple(by_column)) / groups.summed(ones),
        noise_precision=torch.full((b,), FIRST_NOISE_PRECISION, dtype=torch.float64),
        damping=torch.ones(b, dtype=torch.float64),
        log_evidence=torch.full((b,), -torch.inf, dtype=torch.float64),
    )


def reopened(state: State, precision: Tensor, noise_precision: Tensor) -> State:
    """Half way, in logarithms, from the first precisions to those that some rows have led to.

    Further rows can then bring back a column that the others had switched off, and doubt a noise that looked small.
    """
    return replace(
        state,
        precision=(state.precision * precision).sqrt(),
        noise_precision=(state.noise_precision * noise_precision).sqrt(),
    )


def train(
    state: State, groups: Groups, data: TrainingData, *, max_iter: int, tol: float, report: Report
) -> TrainedNetworks[State]:
    """Until the mode is nearer than `tol` nats and the evidence changes by less, for each network by itself."""

    memory = Workspace()

    def iteration(now: State, active: Tensor, look: bool) -> tuple[State, Tensor]:
        here = LocalModel.of(now.networks, data[active], memory)
        return _iteration(now, groups, data[active], here, look=look)

    return iterated(state, iteration, first_look=FIRST_LOOK, max_iter=max_iter, tol=tol, report=report)


def _iteration(
    state: State, groups: Groups, data: TrainingData, here: LocalModel, *, look: bool
) -> tuple[State, Tensor]:
    """New precisions, where they are looked at, then a step; and what is left to gain in nats, if it is known, (b,)."""
    left = torch.full_like(state.damping, torch.inf)
    if look:
        known = here.curved.at(state.variances(groups))
        evidence = log_evidence(state, groups, data, known, here.misfit)
        left = (evidence - state.log_evidence).abs() + decrement(state, known, here)
        state = updated(replace(state, log_evidence=evidence), groups, data, known, here.misfit)
    return stepped(state, groups, data, here), left

"""Trained networks of a table as one posterior: what they predict, draw, and say of each row without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from lapwing.tabular.curvature import Conditioned, WeightRoot, Workspace
from lapwing.tabular.mixtures import MemberMixture, Shape
from lapwing.tabular.networks import LayerMatrices, linearised, squared_slopes
from lapwing.tabular.noise import InputNoise
from lapwing.tabular.training import Groups, LocalModel, State, TrainingData, log_evidence

BLOCK_ROWS = 4096  # predicted at once
LEAST_KEPT = 0.05  # of a residual that its own row has pulled to zero


@final
@dataclass(frozen=True, eq=False)
class Units:
    """Of the targets: standardised values times `scale` plus `mean`."""

    mean: Tensor  # (targets,)
    scale: Tensor  # (targets,)


@final
@dataclass(frozen=True, eq=False)
class LeftOut:
    """What the linearised networks without row i say of row i, at the same precisions."""

    leverage: Tensor  # (members, n, targets)
    prediction: MemberMixture  # of (members, n, targets)


@final
@dataclass(frozen=True, eq=False)
class NetworkPosteriors:
    """The posterior of every network; those of a target stand together, t · members + m is member m of target t."""

    members: int
    networks: LayerMatrices
    precision: Tensor  # (b, groups)
    noise_precision: Tensor  # (b,), of standardised targets
    known: Conditioned
    log_evidence: Tensor  # (b,), of the targets in their own units
    relevance: Tensor  # (b, columns), root mean square slopes over the training rows, standardised
    noise_std: Tensor  # (targets,), root mean square over members and training rows, in the targets' units
    units: Units
    noise: InputNoise | None  # None of noise that is the same everywhere
    shape: Shape  # of errors

    @staticmethod
    def of(
        state: State, groups: Groups, data: TrainingData, members: int, units: Units, noise: InputNoise | None = None
    ) -> NetworkPosteriors:
        """At the end of training, with Gaussian errors."""
        here = LocalModel.of(state.networks, data, Workspace())
        known = here.curved.at(state.variances(groups))
        evidence = log_evidence(state, groups, data, known, here.misfit)
        scale = units.scale.repeat_interleave(members)
        return NetworkPosteriors(
            members, state.networks, state.precision, state.noise_precision, known,
            evidence - float(data.weights.sum()) * scale.log(), _relevance(state.networks, groups, data),
            _noise_std(state, data, members) * units.scale, units, noise, Shape.gaussian(),
        )  # fmt: skip

    def shaped(self, data: TrainingData) -> tuple[NetworkPosteriors, LeftOut]:
        """With the shape of the errors that rows have when others predict them, and those predictions."""
        left = self.leave_one_out(data)
        targets = self._placed(data.targets[:, :, 0])[0] * self.units.scale + self.units.mean
        shape = Shape.of(left.prediction.log_densities(targets), data.weights)
        return replace(self, shape=shape), replace(left, prediction=replace(left.prediction, shape=shape))

    @property
    def targets(self) -> int:
        """Their number."""
        return len(self.units.mean)

    def noise_variance(self, inputs: Tensor) -> Tensor:  # (b, n), or (1, 1)
        """In units of 1/β."""
        if self.noise is None:
            return torch.ones(1, 1, dtype=inputs.dtype)
        return self.noise.variance(inputs).repeat_interleave(self.members, dim=0)

    def predict(self, inputs: Tensor) -> MemberMixture:  # of (members, n, targets)
        """Of new observations at standardised inputs."""
        blocks = [self._predict(block) for block in inputs.split(BLOCK_ROWS)]
        means = torch.cat([one.means for one in blocks], 1)
        return MemberMixture(means, torch.cat([one.stds for one in blocks], 1), self.shape)

    def _predict(self, inputs: Tensor) -> MemberMixture:
        values, jacobian = linearised(self.networks, inputs)
        variance = self.known.output_variances(jacobian) + self.noise_variance(inputs)
        return self._mixture(values[:, :, 0], variance / self.noise_precision[:, None])

    def leave_one_out(self, data: TrainingData) -> LeftOut:
        """By one step for each row, exact for the linear model: residual and variance grow by 1 / (1 − leverage)."""
        residual, variance = self.residuals(data)
        leverage = data.weights * variance / data.noise_variance
        kept = (1 - leverage).clamp_min(torch.finfo(leverage.dtype).eps)
        mean = data.targets[:, :, 0] - residual / kept
        mixture = self._mixture(mean, (variance / kept + data.noise_variance) / self.noise_precision[:, None])
        return LeftOut(self._placed(leverage), mixture)

    def residuals(self, data: TrainingData) -> tuple[Tensor, Tensor]:  # (b, n) each, standardised
        """Of all rows, and the variances of the networks' outputs there in units of 1/β."""
        residuals, variances = [], []
        for block in data.blocks(self.networks):
            values, jacobian = linearised(self.networks, block.inputs)
            residuals.append((block.targets - values)[:, :, 0])
            variances.append(self.known.output_variances(jacobian))
        return torch.cat(residuals, 1), torch.cat(variances, 1)

    def sample(self, inputs: Tensor, count: int, random: np.random.RandomState) -> Tensor:  # (n, targets, count)
        """Joint draws of new observations.

        For each of them a member, a function of its posterior and noise, both times a factor of the errors' shape.
        """
        chosen = random.randint(self.members, size=count)
        factors = self._factors(torch.from_numpy(random.random_sample((self.targets, count))))
        drawn = torch.empty(len(inputs), self.targets, count, dtype=torch.float64)
        for member in range(self.members):
            places = torch.from_numpy(np.flatnonzero(chosen == member))
            for target in range(self.targets):
                one = torch.tensor([target * self.members + member])
                drawn[:, target, places] = self._drawn(one, inputs, factors[target, places], random)
        return drawn * self.units.scale[:, None] + self.units.mean[:, None]

    def _factors(self, uniforms: Tensor) -> Tensor:  # (targets, count)
        """Draws of the errors' factor."""
        ends = self.shape.shares.expand(-1, self.targets).mT.cumsum(1)[:, :-1].contiguous()
        return self.shape.factors.expand(-1, self.targets).mT.gather(1, torch.searchsorted(ends, uniforms))

    def _drawn(self, one: Tensor, inputs: Tensor, factors: Tensor, random: np.random.RandomState) -> Tensor:
        """Of a single network, standardised: (n, draws), for the factor of each draw."""
        count = len(factors)
        known = self.known[one]
        networks = self.networks[one]
        weights = networks.flat().shape[1]
        steps = known.draws(_normals(random, 1, weights, count), _normals(random, 1, known.rows_needed, count))
        noise = _normals(random, 1, len(inputs), count)
        std = self.noise_precision[one].rsqrt()
        means, deviations = [], []
        for block in inputs.split(BLOCK_ROWS):
            values, jacobian = linearised(networks, block)
            means.append(values[0])
            deviations.append(jacobian.dense()[0] @ steps[0] * std)
        noisy = torch.cat(deviations) + (noise * self._noise_std_at(one, inputs)[:, :, None])[0]
        return torch.cat(means) + factors * noisy

    def _noise_std_at(self, one: Tensor, inputs: Tensor) -> Tensor:  # (1, n)
        relative = self.noise_variance(inputs).expand(len(self.noise_precision), -1)[one]
        return (relative / self.noise_precision[one][:, None]).sqrt()

    def features(self, inputs: Tensor, root: WeightRoot) -> tuple[Tensor, Tensor]:
        """Outputs in the targets' units, (targets, members, n), and the Jacobian times a root of the covariance.

        Products of the latter's rows, (targets, members, n, p), are covariances of every network's outputs.
        """
        values, jacobian = linearised(self.networks, inputs)
        layers = zip(jacobian.left, jacobian.right, strict=True)
        rows = torch.cat([(left[..., None] * right[:, :, None, :]).flatten(2) for left, right in layers], dim=2)
        own = root.after(rows) * self.noise_precision.rsqrt()[:, None, None]
        scale, shape = self.units.scale[:, None, None], (self.targets, self.members, len(inputs))
        return values[:, :, 0].reshape(shape) * scale, own.reshape(*shape, -1) * scale[..., None]

    def joint_features(self, inputs: Tensor) -> Tensor:  # (n, targets, k)
        """Rows whose products are covariances of a target at two inputs: within networks, on average, and between."""
        root = self.known.weight_root()
        blocks = [self._joint_block(block, root) for block in inputs.split(BLOCK_ROWS)]
        return torch.cat(blocks, dim=1).movedim(0, 1) / self.members**0.5

    def _joint_block(self, inputs: Tensor, root: WeightRoot) -> Tensor:  # (targets, n, k)
        values, within = self.features(inputs, root)
        between = (values - values.mean(1, keepdim=True)).mT
        return torch.cat([within.transpose(1, 2).flatten(2), between], dim=2)

    def observation_noise(self, inputs: Tensor) -> Tensor:  # (n, targets)
        """The variance of the noise, a mean over the members."""
        relative = self.noise_variance(inputs).expand(len(self.noise_precision), len(inputs))
        each = (relative / self.noise_precision[:, None]).reshape(self.targets, self.members, -1)
        return each.mean(1).mT * self.units.scale.square()

    def _mixture(self, means: Tensor, variances: Tensor) -> MemberMixture:  # of (b, n), standardised
        scale = self.units.scale
        return MemberMixture(
            self._placed(means) * scale + self.units.mean, self._placed(variances.sqrt()) * scale, self.shape
        )

    def _placed(self, values: Tensor) -> Tensor:  # (b, n) to (members, n, targets)
        return values.reshape(self.targets, self.members, -1).permute(1, 2, 0)


def debiased_squares(found: NetworkPosteriors, data: TrainingData) -> Tensor:  # (targets, n), standardised
    """Squared residuals of the members' mean, each over 1 − its leverage, for which its row has pulled the fit."""
    residual, variance = found.residuals(data)
    leverage = data.weights * variance / data.noise_variance
    kept = (1 - leverage).clamp_min(LEAST_KEPT).reshape(found.targets, found.members, -1).mean(1)
    return residual.reshape(found.targets, found.members, -1).mean(1).square() / kept


def _noise_std(state: State, data: TrainingData, members: int) -> Tensor:  # (targets,), standardised
    variance = (data.noise_variance @ data.weights) / data.weights.sum() / state.noise_precision
    return variance.reshape(-1, members).mean(1).sqrt()


def _relevance(networks: LayerMatrices, groups: Groups, data: TrainingData) -> Tensor:  # (b, columns)
    """Root mean squares, over weighted rows, of the slopes of the output along the inputs of each column."""
    squares = torch.zeros(len(data.targets), data.inputs.shape[1], dtype=data.inputs.dtype)
    for block in data.blocks(networks):
        _, jacobian = linearised(networks, block.inputs)
        squares += squared_slopes(networks, jacobian, block.weights)
    return (groups.by_table_column(squares) / data.weights.sum()).sqrt()


def _normals(random: np.random.RandomState, *shape: int) -> Tensor:
    return torch.from_numpy(random.standard_normal(shape))

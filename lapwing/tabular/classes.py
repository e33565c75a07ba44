"""Trained networks of a table with class labels as one posterior: what they predict, and say of each row without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.bayes.likelihoods.categorical import helmert
from lapwing.tabular.blocks import covariances
from lapwing.tabular.curvature import Conditioned
from lapwing.tabular.labels import Labels, Softmax, root_of
from lapwing.tabular.networks import LayerMatrices, linearised, squared_slopes
from lapwing.tabular.variational import Priors, SpreadModel, SpreadState, looked_at

POINTS = 32  # of the averages in training, or for many classes four for each
PREDICTED_POINTS = 256
BLOCK_ROWS = 2048  # predicted at once
LEAST_KEPT = 1e-6  # of what a row leaves of the variance of its own output


@final
@dataclass(frozen=True, eq=False)
class ClassNetworks:
    """The posterior of every network."""

    classes: int
    networks: LayerMatrices
    precision: Tensor  # (members, groups)
    known: Conditioned
    bound: Tensor  # (members,), on the log evidence
    relevance: Tensor  # (members, columns), root mean square slopes of the outputs over the training rows, standardised

    @staticmethod
    def of(state: SpreadState, data: Labels, priors: Priors) -> tuple[ClassNetworks, Tensor]:
        """At the end of training; and the probabilities (members, n, classes) of training rows, each without itself."""
        state, here, known, _ = looked_at(state, data, SpreadModel.of(state, data), priors)
        found = ClassNetworks(
            data.outputs + 1,
            state.networks,
            state.precision,
            known,
            state.log_evidence,
            _relevance(here, state, data, priors),
        )
        return found, _left_out(here, state.roots, data)

    def predict(self, inputs: Tensor) -> Tensor:  # (members, n, classes)
        """Probabilities at standardised inputs."""
        softmax = Softmax.of(self.classes, PREDICTED_POINTS, seed=1)
        return torch.cat([self._predict(block, softmax) for block in inputs.split(BLOCK_ROWS)], dim=1)

    def functions(self, inputs: Tensor, count: int, seed: int) -> Tensor:  # (draws, n, classes)
        """Probabilities by joint draws of the weights, as many of each network: the same for the same seed."""
        values, jacobian = linearised(self.networks, inputs)
        each, (b, weights) = -(-count // len(values)), self.networks.flat().shape
        generator = Generator().manual_seed(seed)
        normals = [
            torch.randn(b, rows, each, generator=generator, dtype=values.dtype)
            for rows in (weights, self.known.rows_needed)
        ]
        moved = jacobian.dense() @ self.known.draws(*normals)  # (b, n · outputs, draws)
        drawn = values[:, None] + moved.unflatten(1, values.shape[1:]).movedim(3, 1)
        return (drawn.flatten(0, 1) @ helmert(self.classes).mT).softmax(2)

    def _predict(self, inputs: Tensor, softmax: Softmax) -> Tensor:
        values, jacobian = linearised(self.networks, inputs)
        return softmax.probabilities(values, root_of(covariances(self.known, jacobian, self.classes - 1)))


def _left_out(here: SpreadModel, roots: Tensor, data: Labels) -> Tensor:  # (members, n, classes)
    """From the posterior of each row's outputs without its own curvature and gradient, which are those of a Gaussian.

    With W its weight times curvature and g its weight times gradient, the covariance V becomes (V⁻¹ − W)⁻¹, and the
    mean falls by that times g.
    """
    gradient = here.averages.gradient * data.weights[:, None]
    own = here.averages.curvature * data.weights[:, None, None]
    inner = roots.mT @ own @ roots
    values, vectors = torch.linalg.eigh(inner)
    kept = (1 - values).clamp_min(LEAST_KEPT)
    wider = roots @ vectors * kept.rsqrt()[:, :, None, :]
    mean = here.values - (wider @ (wider.mT @ gradient[..., None]))[..., 0]
    return Softmax.of(data.outputs + 1, PREDICTED_POINTS, seed=1).probabilities(mean, wider)


def _relevance(here: SpreadModel, state: SpreadState, data: Labels, priors: Priors) -> Tensor:  # (members, columns)
    """Root mean squares, over weighted rows, of the slopes of all outputs along the inputs of each column."""
    each = data.weights.repeat_interleave(data.outputs)
    squares = squared_slopes(state.networks, here.jacobian, each)
    return (priors.groups.by_table_column(squares) / data.weights.sum()).sqrt()

"""Noise that depends on the inputs: networks of the logarithm of its variance, trained on what others leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.runtime.progress import Report
from lapwing.tabular.networks import LayerMatrices, outputs
from lapwing.tabular.training import Groups, TrainingData, start, train

STEPS = 60  # of training at most
LARGEST_LOG_VARIANCE = 7.0  # in either direction, of a row over the typical one: a factor of 1,000
SMALLEST_SQUARE = 1e-6  # of a residual, over the mean of all squares


@final
@dataclass(frozen=True, eq=False)
class InputNoise:
    """The variance of the noise of each target at an input, up to a factor, by the mean of several networks' outputs.

    The networks learn log squared residuals, which are the log variance of the noise, a constant (the mean of log χ²₁)
    and scatter; they are regularised by their own evidence, so that noise without a pattern is found to be constant.
    The level of the variance is left to the noise precision of whoever uses this.
    """

    networks: LayerMatrices  # t · members + m is member m of target t
    scale: Tensor  # (targets,), of the log variance for an output of one

    def variance(self, inputs: Tensor) -> Tensor:  # (targets, n)
        """Relative."""
        each = outputs(self.networks, inputs)[:, :, 0]
        mean = each.reshape(len(self.scale), -1, len(inputs)).mean(1)
        return (self.scale[:, None] * mean).clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE).exp()


def learn(squares: Tensor, networks: LayerMatrices, groups: Groups, data: TrainingData, report: Report) -> InputNoise:
    """From squared residuals (targets, n) at the inputs of the data, beginning with these networks."""
    floor = SMALLEST_SQUARE * squares.mean(1, keepdim=True)
    logs = squares.maximum(floor).clamp_min(torch.finfo(squares.dtype).tiny).log()
    share = data.weights / data.weights.sum()
    centred = logs - (logs @ share)[:, None]
    scale = (centred.square() @ share).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    members = len(data.targets) // len(squares)
    targets = (centred / scale[:, None]).repeat_interleave(members, dim=0)[:, :, None]
    scattered = replace(start(networks, groups), noise_precision=torch.ones(len(targets), dtype=targets.dtype))
    own = TrainingData.of(data.inputs, targets, data.weights)
    trained = train(scattered, groups, own, max_iter=STEPS, tol=0.1, report=report)
    return InputNoise(trained.state.networks, scale)

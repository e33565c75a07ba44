"""Deep ensembles of regressors of tables (Lakshminarayanan, Pritzel and Blundell 2017), settings chosen on a held-out tenth.

Five networks with 50 ReLU units give a mean and a variance, and are trained to the Gaussian density by Adam on batches of 100 rows; the
prediction is the Gaussian with the moments of their mixture, as in the paper. Learning rate, penalty and number of steps are those with the
best density of a random tenth of the training rows, and a last training has all rows. All networks of all candidates are trained side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import softplus

MEMBERS, UNITS, BATCH = 5, 50, 100
RATES, PENALTIES = (0.003, 0.01), (0.1, 1.0)  # of Adam; ½ · penalty · ‖weights‖² beside the sum over rows
STEPS, MANY_STEPS, MANY_ROWS = 5_000, 20_000, 2_000
LOOKS = 50  # at the held-out tenth
LEAST_STD = 1e-4  # of standardised targets


@dataclass(frozen=True)
class Setting:
    """Of one ensemble."""

    rate: float
    penalty: float


def ensemble(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of new targets."""
    scaler = StandardScaler().fit(x)
    mean, std = y.mean(), y.std()
    inputs, targets = torch.from_numpy(scaler.transform(x)).float(), torch.from_numpy((y - mean) / std).float()
    setting, steps = _chosen(inputs, targets, seed)
    networks = _Networks([setting], inputs.shape[1], seed)
    networks.train(inputs, targets, steps)
    means, stds = networks.predict(torch.from_numpy(scaler.transform(new)).float())
    return mean + std * means[0].double().numpy(), std * stds[0].double().numpy()


def _chosen(inputs: Tensor, targets: Tensor, seed: int) -> tuple[Setting, int]:
    """The setting and the number of steps that are best on a tenth of the rows, trained on the others."""
    order = torch.from_numpy(np.random.RandomState(seed).permutation(len(inputs)))
    held, left = order[: len(order) // 10], order[len(order) // 10 :]
    settings = [Setting(*one) for one in product(RATES, PENALTIES)]
    networks = _Networks(settings, inputs.shape[1], seed)
    part = (STEPS if len(inputs) <= MANY_ROWS else MANY_STEPS) // LOOKS
    losses = []
    for _ in range(LOOKS):
        networks.train(inputs[left], targets[left], part)
        means, stds = networks.predict(inputs[held])
        losses.append((stds.log() + 0.5 * ((targets[held] - means) / stds).square()).mean(1))
    look, best = np.unravel_index(int(torch.stack(losses).nan_to_num(torch.inf).argmin()), (LOOKS, len(settings)))
    return settings[best], round((look + 1) * part * len(order) / len(left))


class _Networks:
    """Several ensembles, those of a setting side by side."""

    def __init__(self, settings: list[Setting], columns: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        count = len(settings) * MEMBERS
        self.rates = torch.tensor([one.rate for one in settings]).repeat_interleave(MEMBERS)[:, None, None]
        self.penalties = torch.tensor([one.penalty for one in settings]).repeat_interleave(MEMBERS)
        shapes = [(columns, UNITS), (1, UNITS), (UNITS, 2), (1, 2)]
        starts = [torch.randn(count, *shape, generator=self.generator) for shape in shapes]
        self.weights = [starts[0] * (2 / columns) ** 0.5, 0 * starts[1], starts[2] * UNITS**-0.5, 0 * starts[3]]
        self.first = [torch.zeros_like(one) for one in self.weights]
        self.second = [torch.zeros_like(one) for one in self.weights]
        self.steps = 0

    def train(self, inputs: Tensor, targets: Tensor, steps: int) -> None:
        """By Adam, each network with batches of its own."""
        count = len(self.weights[0])
        for _ in range(steps):
            rows = torch.randint(len(inputs), (count, min(BATCH, len(inputs))), generator=self.generator)
            for one in self.weights:
                one.requires_grad_(True)
            means, stds = self._outputs(inputs[rows])
            fit = (stds.log() + 0.5 * ((targets[rows] - means) / stds).square()).mean(1)
            squares = sum((one.square().sum((1, 2)) for one in self.weights[::2]), torch.zeros(()))
            loss = fit + 0.5 * self.penalties * squares / len(inputs)
            self._step(torch.autograd.grad(loss.sum(), self.weights))

    def _step(self, gradients: tuple[Tensor, ...]) -> None:
        self.steps += 1
        corrected = self.rates * (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for k, gradient in enumerate(gradients):
            self.first[k].lerp_(gradient, 0.1)
            self.second[k].lerp_(gradient.square(), 0.001)
            self.weights[k] = self.weights[k].detach() - corrected * self.first[k] / (self.second[k].sqrt() + 1e-8)

    def _outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # (networks, rows) each
        hidden = (inputs @ self.weights[0] + self.weights[1]).relu()
        both = hidden @ self.weights[2] + self.weights[3]
        return both[..., 0], softplus(both[..., 1]) + LEAST_STD

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # (settings, rows) each
        """The moments of each ensemble."""
        means, stds = (part.unflatten(0, (-1, MEMBERS)) for part in self._outputs(inputs))
        mean = means.mean(1)
        return mean, (stds.square() + (means - mean[:, None]).square()).mean(1).sqrt()

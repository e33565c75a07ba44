"""Class labels under networks whose outputs have a spread: what is needed of the softmax, averaged over it.

Outputs are contrasts: with c classes there are c − 1, and the logits are Helmert's orthonormal contrasts times them.
What all logits share changes no probability, so nothing is lost, and an isotropic prior of c logits is one of c − 1
contrasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import quadrature
from lapwing.bayes.likelihoods.categorical import helmert
from lapwing.bayes.likelihoods.expectation import normal_points

NODES = 81  # of the trapezoidal rule, for one contrast
BLOCK_ELEMENTS = 2**17  # logits at once, few enough for the processor's cache
JITTER = 1e-9  # of a mean variance, so that a covariance has a root


@final
@dataclass(frozen=True, eq=False)
class LogitAverages:
    """Of log p over the spread of the outputs, and what its derivatives in their mean are."""

    log_density: Tensor  # (b, n), E log p
    gradient: Tensor  # (b, n, k), E ∂ log p
    curvature: Tensor  # (b, n, k, k), −E ∂² log p


@final
@dataclass(frozen=True, eq=False)
class Softmax:
    """From contrasts with a spread to probabilities; averages are over fixed points."""

    contrasts: Tensor  # (c, c − 1)
    points: Tensor  # (points, c − 1), standard normal
    shares: Tensor  # (points,)

    @staticmethod
    def of(classes: int, points: int, seed: int = 0) -> Softmax:
        """Two classes by the trapezoidal rule, which is good to 1e-4 where outputs spread by ten, and better below."""
        if classes == 2:
            nodes, shares = quadrature.nodes(NODES)
            return Softmax(helmert(2), nodes[:, None], shares)
        equal = torch.full((points,), 1 / points, dtype=torch.float64)
        return Softmax(helmert(classes), normal_points(classes - 1, points, seed), equal)

    def probabilities(self, values: Tensor, roots: Tensor) -> Tensor:  # (b, n, k), (b, n, k, k) to (b, n, c)
        """Averaged."""
        found = [
            torch.cat([self._mean(_normalised(self._logits(*block))[0]) for block in self._blocks(*member)])
            for member in zip(values, roots, strict=True)
        ]
        return torch.stack(found)

    def averages(self, values: Tensor, roots: Tensor, labels: Tensor) -> LogitAverages:
        """Of the log probability of each label."""
        members = []
        for member in zip(values, roots, strict=True):
            blocks = zip(self._blocks(*member), labels.split(self._rows), strict=True)
            parts = [self._averaged(value, root, label) for (value, root), label in blocks]
            members.append([torch.cat(column) for column in zip(*parts, strict=True)])
        return LogitAverages(*(torch.stack(column) for column in zip(*members, strict=True)))

    def log_density(self, values: Tensor, roots: Tensor, labels: Tensor) -> Tensor:  # (b, n)
        """E log p of each label alone."""
        members = []
        for member in zip(values, roots, strict=True):
            totals = [self._mean(_normalised(self._logits(*block))[1]) for block in self._blocks(*member)]
            members.append(self._own(member[0], labels) - torch.cat(totals))
        return torch.stack(members)

    def _averaged(self, value: Tensor, root: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities, totals = _normalised(self._logits(value, root))
        mean = self._mean(probabilities)
        inner = (probabilities @ self.contrasts).mul_(self.shares.sqrt()[:, None, None]).transpose(0, 1)
        diagonal = self.contrasts.mT @ (mean[:, :, None] * self.contrasts)
        curvature = diagonal - inner.mT @ inner
        gradient = self.contrasts[label] - mean @ self.contrasts
        return self._own(value, label) - self._mean(totals), gradient, curvature

    def _own(self, value: Tensor, label: Tensor) -> Tensor:  # (n,)
        """The mean logit of the label, which is linear in the outputs: their mean is enough."""
        return (value * self.contrasts[label]).sum(1)

    def _mean(self, values: Tensor) -> Tensor:  # of (points, …)
        """Over the points."""
        return (self.shares @ values.flatten(1)).unflatten(0, values.shape[1:])

    def _logits(self, value: Tensor, root: Tensor) -> Tensor:  # (points, n, c)
        """One product of matrices for all rows: with the points first, and the contrasts taken of the roots."""
        mean = value @ self.contrasts.mT
        spread = self.contrasts @ root
        return (self.points @ spread.flatten(0, 1).mT).unflatten(1, mean.shape).add_(mean)

    def _blocks(self, value: Tensor, root: Tensor) -> list[tuple[Tensor, Tensor]]:
        return list(zip(value.split(self._rows), root.split(self._rows), strict=True))

    @property
    def _rows(self) -> int:
        """Of a block."""
        return max(1, BLOCK_ELEMENTS // (len(self.points) * len(self.contrasts)))


def _normalised(logits: Tensor) -> tuple[Tensor, Tensor]:  # (points, n, c) and (points, n)
    """Probabilities, in the place of the logits, and the logarithm of what they are divided by."""
    largest = logits.amax(2, keepdim=True)
    found = logits.sub_(largest).exp_()
    total = found.sum(2, keepdim=True)
    return found.div_(total), (largest + total.log())[:, :, 0]


def root_of(covariance: Tensor) -> Tensor:  # (…, k, k)
    """L with L Lᵀ the matrix, but for round-off on its diagonal."""
    k = covariance.shape[-1]
    mean = covariance.diagonal(dim1=-2, dim2=-1).sum(-1) / k
    jitter = (JITTER * mean).clamp_min(1e-14)[..., None, None] * torch.eye(k, dtype=covariance.dtype)
    return torch.linalg.cholesky_ex(covariance + jitter)[0]


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """Rows with the numbers of their classes."""

    inputs: Tensor  # (n, d), standardised
    labels: Tensor  # (n,), long
    weights: Tensor  # (n,), how often each row counts
    softmax: Softmax

    @property
    def outputs(self) -> int:
        """Of a network: one less than classes."""
        return self.softmax.contrasts.shape[1]

    def part(self, rows: Tensor) -> Labels:
        """Some of the rows."""
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows], weights=self.weights[rows])

    def averages(self, values: Tensor, roots: Tensor) -> LogitAverages:
        """Of outputs with a spread."""
        return self.softmax.averages(values, roots, self.labels)

    def log_likelihood(self, values: Tensor, roots: Tensor) -> Tensor:  # (b,)
        """E log p of all labels."""
        return self.softmax.log_density(values, roots, self.labels) @ self.weights

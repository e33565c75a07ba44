"""What the data that a part stands for add to it, as labels of the part that are softer than those observed.

To first order at a network's outputs all data have the gradient pullᵀθ beyond that of the part. Where the part follows
it, its labels y are replaced by t: Φᵀ W (t − y) = pull. As long as t are probabilities the model is one of labels, with
a mean at any precision. Where no probabilities have that gradient, weights would go off to infinity as the precision
falls; the nearest gradient that some have is taken instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.fits.designs import Design

SAME = 1e-9  # of the gradient that may be missed
STEPS = 1000  # of a search for labels


@final
@dataclass(frozen=True, eq=False)
class Softening:
    """Changes of labels, in contrasts of the outputs, and the gradients that they make."""

    design: Design  # (n, k, q)
    weights: Tensor  # (n,), how often each datum counts
    start: Tensor  # (n, k), the changes that make the labels what the network says
    nearest: Callable[[Tensor], Tensor]  # (n, k) -> (n, k), the nearest changes that leave probabilities

    def within_reach(self, pull: Tensor) -> Tensor:  # (q,) -> (q,)
        """The gradient itself where some labels have it, else the nearest that some have."""
        if float(pull.norm()) == 0:
            return pull
        free = self._least_squares(pull)
        if float((self.nearest(free) - free).abs().max()) <= SAME:
            return pull
        return self._gradient(self._projected(self.nearest(free), pull))

    def _gradient(self, changes: Tensor) -> Tensor:
        return self.design.adjoint(self.weights[:, None] * changes)

    def _back(self, residual: Tensor) -> Tensor:
        return self.weights[:, None] * self.design.outputs(residual)

    def _least_squares(self, pull: Tensor) -> Tensor:
        """The changes with that gradient which are nearest to the network's, by conjugate gradients."""
        changes = self.start.clone()
        residual = pull - self._gradient(changes)
        descent = direction = self._back(residual)
        energy = float(descent.square().sum())
        for _ in range(STEPS):
            if float(residual.norm()) <= SAME * float(pull.norm()) or energy == 0:
                break
            image = self._gradient(direction)
            length = energy / float(image.square().sum())
            changes, residual = changes + length * direction, residual - length * image
            descent = self._back(residual)
            energy, before = float(descent.square().sum()), energy
            direction = descent + (energy / before) * direction
        return changes

    def _projected(self, changes: Tensor, pull: Tensor) -> Tensor:
        """The changes that leave probabilities with the nearest gradient, by accelerated projected steps."""
        curvature, ahead, momentum = self._largest(), changes, 1.0
        for _ in range(STEPS):
            residual = self._gradient(ahead) - pull
            new = self.nearest(ahead - self._back(residual) / curvature)
            step = new - changes
            if float(((ahead - new) * step).sum()) > 0:  # it goes too far (O'Donoghue and Candès 2015)
                momentum = 1.0
            after = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
            ahead, changes, momentum = new + (momentum - 1) / after * step, new, after
            if float(step.abs().max()) <= SAME:
                break
        return changes

    def _largest(self) -> float:
        """A bound on the largest eigenvalue of W D Dᵀ W: twenty steps of the power method, and a tenth more."""
        vector = self._back(self._gradient(torch.ones_like(self.start) + self.start))
        for _ in range(20):
            vector = self._back(self._gradient(vector / vector.norm().clamp_min(1e-300)))
        return 1.1 * float(vector.norm())

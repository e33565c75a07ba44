"""Bayes by Backprop as a learner: Adam on means and log standard deviations, the divergence differentiated by hand.

The graph of a step only reaches back to the variances, which are computed once and written where the last ones were.
What the divergence adds to the gradients is known: for a mean it is weight decay, which Adam adds in its own pass, and
for a log standard deviation it goes into the gradient of the variance, in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Generator, Tensor

from lapwing.families.variational.mean_field import LOG_STD, divergence
from lapwing.training import Schedule, Weights

Energy = Callable[[Weights, Weights, Any, Any, Generator], Tensor]  # values, variances, a batch -> −log p / n: ()


@final
class Backprop:
    """Descent on −ELBO / p: the energy of a batch, and `share` = η / p of the whole divergence. It works on copies."""

    def __init__(
        self, energy: Energy, start: Weights, random: tuple[str, ...], learnt: list[str], *, share: float,
        prior_variance: float, learning_rate: float, schedule: Schedule | None,
    ) -> None:  # fmt: skip
        self.energy, self.share, self.prior_variance = energy, share, prior_variance
        self.learning_rate, self.schedule = learning_rate, schedule
        self.current = {name: tensor.detach().clone() for name, tensor in start.items()}
        self.means = [self.current[name] for name in random]
        self.log_stds = [self.current[name + LOG_STD] for name in random]
        spreads = {name + LOG_STD for name in random}
        for name in learnt:
            if name not in spreads:
                self.current[name].requires_grad_()
        self.variances = {name: torch.empty_like(self.current[name]).requires_grad_() for name in random}
        rest = [self.current[name] for name in learnt if name not in random]
        groups: list[dict[str, Any]] = [
            {"params": self.means, "weight_decay": share / prior_variance},
            {"params": rest},
        ]
        self.descent = torch.optim.Adam(groups, lr=learning_rate, fused=True)

    def step(self, inputs: Any, targets: Any, generator: Generator, done: float) -> float:
        """One step of Adam; where the loss is not finite, none."""
        if self.schedule is not None:
            for group in self.descent.param_groups:
                group["lr"] = self.learning_rate * self.schedule(done)
        self.descent.zero_grad()
        energy = self.energy(self.current, self._renewed(), inputs, targets, generator)
        loss = float(energy.detach()) + self.share * self._divergence()
        if math.isfinite(loss):
            energy.backward()
            self._by_log_std()
            self.descent.step()
        return loss

    @torch.no_grad()
    def _renewed(self) -> Weights:
        """The variances of the present standard deviations."""
        for variance, log_std in zip(self.variances.values(), self.log_stds, strict=True):
            torch.mul(log_std, 2, out=variance).exp_()
            variance.grad = None
        return self.variances

    @torch.no_grad()
    def _divergence(self) -> float:
        parts = zip(self.means, self.log_stds, self.variances.values(), strict=True)
        return sum(divergence(*part, self.prior_variance) for part in parts)

    @torch.no_grad()
    def _by_log_std(self) -> None:
        """2 σ² (∂/∂σ² + share / 2 s²) − share, in the memory of the gradient by the variance."""
        for mean, log_std, variance in zip(self.means, self.log_stds, self.variances.values(), strict=True):
            if mean.grad is None or variance.grad is None:  # the outputs do not depend on it: the divergence still does
                mean.grad, variance.grad = torch.zeros_like(mean), torch.zeros_like(mean)
            slope = variance.grad.add_(0.5 * self.share / self.prior_variance)
            log_std.grad = torch.addcmul(slope.new_full((), -self.share), slope, variance, value=2, out=slope)

    def weights(self) -> Weights:
        """Copies of all values."""
        return {name: tensor.detach().clone() for name, tensor in self.current.items()}

    def state(self) -> dict[str, Any]:
        """The values and what Adam remembers."""
        return {"weights": self.weights(), "optimiser": self.descent.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, in place."""
        with torch.no_grad():
            for name, tensor in self.current.items():
                tensor.copy_(state["weights"][name])
        self.descent.load_state_dict(state["optimiser"])

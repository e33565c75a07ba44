"""Mean-field Gaussians over wide networks with one hidden layer, exactly: f(x) = (1/N) Σ_j a_j s(⟨b_j, x⟩).

Every neuron (a_j, b_j) has an independent Gaussian of its own. Means and variances of the outputs are in closed form
for ReLU and erf, so the ELBO, its limit over measures and the gap between the two are numbers, not estimates. The data
term sees an average over neurons and the divergence a sum, so at a fixed temperature η the prior wins as N grows;
η = τ p / N balances the two (Huix et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from scipy.special import owens_t
from torch import Generator, Tensor

Activation = Literal["relu", "erf"]


@final
@dataclass(frozen=True, eq=False)
class Neurons:
    """A Gaussian with independent coordinates per neuron; the first coordinate is the outgoing weight a."""

    mean: Tensor  # (N, 1 + inputs)
    log_std: Tensor  # (N, 1 + inputs)
    prior_variance: float = 0.2
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        if self.mean.ndim != 2 or self.mean.shape != self.log_std.shape or self.mean.shape[1] < 2:
            raise ValueError(
                f"mean has shape {tuple(self.mean.shape)} and log_std {tuple(self.log_std.shape)}: expected both to be "
                "(neurons, 1 + inputs)"
            )
        if not self.prior_variance > 0:
            raise ValueError(f"prior_variance is {self.prior_variance}, expected a positive number")
        if self.activation not in ("relu", "erf"):
            raise ValueError(f"activation is {self.activation!r}, expected 'relu' or 'erf'")

    @staticmethod
    def prior(count: int, inputs: int, *, prior_variance: float = 0.2, activation: Activation = "relu") -> Neurons:
        """Neurons that have learnt nothing."""
        mean = torch.zeros(count, 1 + inputs, dtype=torch.float64)
        return Neurons(mean, torch.full_like(mean, prior_variance).log() / 2, prior_variance, activation)

    @staticmethod
    def random(
        count: int, inputs: int, generator: Generator, *, prior_variance: float = 0.2, activation: Activation = "relu"
    ) -> Neurons:
        """Means drawn from the prior, with its width: where an optimisation can start."""
        start = Neurons.prior(count, inputs, prior_variance=prior_variance, activation=activation)
        normals = torch.randn(start.mean.shape, generator=generator, dtype=torch.float64)
        return replace(start, mean=prior_variance**0.5 * normals)

    def moments(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # (n, inputs) -> (n, N), (n, N)
        """Mean and variance of a_j s(⟨b_j, x⟩) for every neuron."""
        variance = (2 * self.log_std).exp()
        location = inputs @ self.mean[:, 1:].mT
        spread = (inputs.square() @ variance[:, 1:].mT).clamp_min(torch.finfo(inputs.dtype).tiny).sqrt()
        first, second = relu_moments(location, spread) if self.activation == "relu" else erf_moments(location, spread)
        mean = self.mean[:, 0] * first
        return mean, (self.mean[:, 0].square() + variance[:, 0]) * second - mean.square()

    def divergence(self) -> Tensor:  # (N,)
        """KL(q_j | prior) of every neuron, in closed form."""
        ratio = (2 * self.log_std).exp() / self.prior_variance
        return 0.5 * (ratio + self.mean.square() / self.prior_variance - 1 - ratio.log()).sum(1)

    def expected_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:  # ()
        """Σ_i E ½ (y_i − f(x_i))², the mean and the variance of f both counted."""
        mean, variance = self.moments(inputs)
        return 0.5 * ((targets - mean.mean(1)).square() + variance.mean(1) / len(self.mean)).sum()

    def limiting_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:  # ()
        """Σ_i ½ (y_i − E f(x_i))²: what remains when neurons are many, and their average has no variance."""
        return 0.5 * (targets - self.moments(inputs)[0].mean(1)).square().sum()


def elbo(neurons: Neurons, inputs: Tensor, targets: Tensor, temperature: float) -> Tensor:  # ()
    """−η Σ_j KL(q_j | prior) − Σ_i E ½ (y_i − f(x_i))², exactly.

    >>> inputs, targets = torch.ones(3, 1).double(), torch.tensor([1.0, 2.0, 2.0]).double()
    >>> untouched = Neurons.prior(2, 1)
    >>> float(elbo(untouched, inputs, targets, 1.0)), float(limit(untouched, inputs, targets, 1.0))
    (-4.515, -4.5)
    """
    return -temperature * neurons.divergence().sum() - neurons.expected_loss(inputs, targets)


def limit(neurons: Neurons, inputs: Tensor, targets: Tensor, temperature: float) -> Tensor:  # ()
    """F̃(ν): the ELBO with f replaced by its mean ∬ φ dν dγ, for ν the measure with an atom at every neuron."""
    return -temperature * neurons.divergence().sum() - neurons.limiting_loss(inputs, targets)


def balanced(neurons: Neurons, inputs: Tensor, targets: Tensor, tau: float) -> Tensor:  # ()
    """−(1/p) Σ_i ½ (y_i − ∬ φ dν dγ)² − τ ∫ KL dν: F̃ / p at η = τ p / N, where N no longer appears."""
    return -neurons.limiting_loss(inputs, targets) / len(inputs) - tau * neurons.divergence().mean()


def gap(neurons: Neurons, inputs: Tensor) -> Tensor:  # ()
    """ELBO − F̃ for the squared loss: −(1/2N) Σ_i v̄(x_i), v̄ the mean variance of a neuron's contribution."""
    return -0.5 / len(neurons.mean) * neurons.moments(inputs)[1].mean(1).sum()


def gap_bound(inputs: Tensor, neurons: Neurons) -> Tensor:  # ()
    """C p / N ≥ |ELBO − F̃|, where C only knows the largest input and the largest second moments of the neurons.

    Both activations satisfy s(u)² ≤ c u², with c = 1 for ReLU and 4/π for erf, so v ≤ c E a² E⟨b, x⟩².
    """
    second = neurons.mean.square() + (2 * neurons.log_std).exp()
    slope = 1.0 if neurons.activation == "relu" else 4 / torch.pi
    largest = second[:, 0].max() * second[:, 1:].sum(1).max() * inputs.square().sum(1).max()
    return 0.5 * slope * largest * len(inputs) / len(neurons.mean)


def optimise(
    neurons: Neurons, inputs: Tensor, targets: Tensor, temperature: float, *, max_steps: int = 2000,
    tol: float = 1e-9,
) -> Neurons:  # fmt: skip
    """Neurons at a maximum of the ELBO, by L-BFGS; FloatingPointError where it is not reached.

    `tol` bounds the largest gradient coordinate, in units of the ELBO per neuron.
    """
    mean, log_std = (tensor.detach().clone().requires_grad_() for tensor in (neurons.mean, neurons.log_std))
    found = replace(neurons, mean=mean, log_std=log_std)
    descent = torch.optim.LBFGS(
        [mean, log_std], max_iter=max_steps, max_eval=2 * max_steps, history_size=30, tolerance_change=0.0,
        tolerance_grad=tol / len(mean), line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        descent.zero_grad()
        value = -elbo(found, inputs, targets, temperature)
        value.backward()
        return value

    descent.step(loss)
    loss()
    largest = max(float(tensor.grad.abs().max()) for tensor in (mean, log_std) if tensor.grad is not None)
    if not largest <= 1e3 * tol:
        raise FloatingPointError(
            f"the ELBO is not at its maximum after {max_steps} steps: its largest gradient is {largest:.1e}; allow "
            "more steps or start elsewhere"
        )
    return replace(neurons, mean=mean.detach(), log_std=log_std.detach())


def flow(
    neurons: Neurons, inputs: Tensor, targets: Tensor, tau: float, *, step: float, steps: int
) -> tuple[Neurons, Tensor]:  # (steps + 1,)
    """The gradient flow of ν on the balanced functional, by particles and Euler steps, and its curve.

    A particle moves with N times its own gradient, the gradient of the functional's first variation where it stands.
    """
    curve = []
    for _ in range(steps):
        mean, log_std = (tensor.detach().requires_grad_() for tensor in (neurons.mean, neurons.log_std))
        value = balanced(replace(neurons, mean=mean, log_std=log_std), inputs, targets, tau)
        curve.append(value.detach())
        by_mean, by_log_std = torch.autograd.grad(value, [mean, log_std])
        length = step * len(mean)
        neurons = replace(
            neurons, mean=(mean + length * by_mean).detach(), log_std=(log_std + length * by_log_std).detach()
        )
    return neurons, torch.stack([*curve, balanced(neurons, inputs, targets, tau).detach()])


def relu_moments(location: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """E relu(u) and E relu(u)² for u ~ N(location, spread²).

    >>> relu_moments(torch.tensor(0.0).double(), torch.tensor(2.0).double())[1]
    tensor(2., dtype=torch.float64)
    """
    ratio = location / spread
    below = torch.special.ndtr(ratio)
    density = (-0.5 * ratio.square()).exp() / (2 * torch.pi) ** 0.5
    first = location * below + spread * density
    return first, (location.square() + spread.square()) * below + location * spread * density


def erf_moments(location: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """E erf(u) and E erf(u)² for u ~ N(location, spread²); the second by Owen's T.

    erf(u) = 2 Φ(√2 u) − 1, so the second moment is the chance that two correlated normals are below one bound.
    """
    widened = (1 + 2 * spread.square()).sqrt()
    first = torch.erf(location / widened)
    bound = 2**0.5 * location / widened
    both: Tensor = _OwensT.apply(bound, (1 + 4 * spread.square()).rsqrt())
    return first, 1 - 8 * both


@final
class _OwensT(torch.autograd.Function):
    """Owen's T(h, a) with its derivatives in closed form."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(h, a)
        return torch.as_tensor(owens_t(h.detach().cpu().numpy(), a.detach().cpu().numpy())).to(h)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        h, a = ctx.saved_tensors
        by_h = -(-0.5 * h.square()).exp() / (8 * torch.pi) ** 0.5 * torch.erf(a * h / 2**0.5)
        by_a = (-0.5 * h.square() * (1 + a.square())).exp() / (2 * torch.pi * (1 + a.square()))
        return gradient * by_h, gradient * by_a

"""Curvatures of the data in a network's weights as dense matrices, for small networks: three that are often mixed up.

Σ over data of Jᵀ B J (Gauss-Newton), of −∇² log p (the true Hessian, which adds the curvature of the network itself and
can be indefinite) and of ∇log p ∇log pᵀ (the empirical Fisher, which knows the residuals and not the noise).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.linear_model import Observed
from lapwing.linalg.spectral import cutoff
from lapwing.linalg.truncated import Truncated
from lapwing.network.batches import Inputs
from lapwing.network.input_tree import InputTree, Sample, mapped
from lapwing.network.jacobian import Jacobian, Network, prepared
from lapwing.runtime.memory import check_memory

Energy = Callable[[Tensor, Tensor], Tensor]  # outputs (b, c) and targets -> −log p, summed
Pairs = Iterable[tuple[Sample, Tensor]]
CHUNK = 64  # rows of a Hessian at once
LARGEST = 5000  # weights: a dense matrix of more would take minutes


@final
@dataclass(frozen=True, eq=False)
class DenseCurvatures:
    """Dense matrices of observed data that belong to a network at its own weights, decomposed in a prior's units (p,).

    A noise that is to be tuned is one here. Everything is in double precision, since small eigenvalues may be negative.
    """

    network: Network
    inputs: Inputs
    likelihood: Likelihood
    observed: Observed

    def hessian(self, scale: Tensor) -> Truncated:
        """The true Hessian of −log p."""
        self._check("Hessian()")
        counts = _by_datum(self.observed, self.inputs.count)
        energy = _energy(self.likelihood, self.observed.targets, counts)
        return _decomposed(hessian(_in_double(self.network), self._numbered(), energy), scale, 1)

    def empirical_fisher(self, scale: Tensor) -> Truncated:
        """Squared gradients; a datum that counts c times has c of them, not one that is c times as large."""
        self._check("EmpiricalFisher()")
        if self.likelihood.tunes_noise:
            raise ValueError("the empirical Fisher does not scale with a noise precision: give Gaussian(noise_std=…)")
        counts = _by_datum(self.observed, self.inputs.count)
        times = counts.amax(1)
        energy = _energy(self.likelihood, self.observed.targets, counts / times.clamp_min(1e-300)[:, None])
        return _decomposed(empirical_fisher(_in_double(self.network), self._numbered(), energy, times), scale, 2)

    def _check(self, name: str) -> None:
        size = self.network.layout.size
        if size > LARGEST:
            raise ValueError(
                f"{name} makes a dense matrix, and the network has {size:,} weights chosen of at most "
                f"{LARGEST:,}: select fewer, as the last layer, or use KFAC() or LowRank(rank)"
            )
        check_memory(8 * 4.5 * size**2, name, "select fewer weights, or use KFAC()")

    def _numbered(self) -> list[tuple[Sample, Tensor]]:
        numbered, start = list[tuple[Sample, Tensor]](), 0
        for batch in self.inputs:
            numbered.append((_as_double(batch), torch.arange(start, start + len(batch))))
            start += len(batch)
        return numbered


def _decomposed(matrix: Tensor, scale: Tensor, power: int) -> Truncated:
    values, vectors = torch.linalg.eigh(scale[:, None] * matrix * scale)
    values = torch.where(values.abs() > cutoff(values, len(scale)), values, 0)
    return Truncated(vectors, values, scale.to(vectors), power)


def hessian(network: Network, batches: Pairs, energy: Energy) -> Tensor:  # (p, p)
    """The Hessian of −log p in the chosen weights, summed over the data; it need not be positive.

    >>> network = Network.of(torch.nn.Linear(2, 1, bias=False).double().eval())
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]]).double()
    >>> hessian(network, [(x, x[:, :1])], lambda outputs, targets: 0.5 * (outputs - targets).square().sum())
    tensor([[10.,  2.],
            [ 2.,  4.]], dtype=torch.float64)
    """
    total = torch.zeros(network.layout.size, network.layout.size, dtype=torch.float64)
    for inputs, targets in batches:
        found = jacrev(grad(_moved(network, energy)), chunk_size=CHUNK)(_nothing(network), inputs, targets)
        total += found.detach().double().cpu()
    return 0.5 * (total + total.mT)


def empirical_fisher(
    network: Network, batches: Pairs, energy: Energy, counts: Tensor | None = None
) -> Tensor:  # (p, p)
    """Σ over data of count · g gᵀ, g the gradient of log p of one datum.

    >>> network = Network.of(torch.nn.Linear(2, 1, bias=False).double().eval())
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]]).double()
    >>> residuals = torch.tensor([[1.0], [2.0]]).double()
    >>> empirical_fisher(network, [(x, residuals)], lambda outputs, given: (given * outputs).sum())
    tensor([[37.,  2.],
            [ 2.,  4.]], dtype=torch.float64)
    """
    total, start = torch.zeros(network.layout.size, network.layout.size, dtype=torch.float64), 0
    for inputs, targets in batches:
        gradients = _gradients(network, energy, inputs, targets).detach().double().cpu()
        count = torch.ones(len(targets)) if counts is None else counts[start : start + len(targets)]
        total, start = total + gradients.mT @ (count.to(gradients)[:, None] * gradients), start + len(targets)
    return total


def _gradients(network: Network, energy: Energy, inputs: Sample, targets: Tensor) -> Tensor:  # (b, p)
    """The gradient of every datum."""
    of, nothing = grad(_moved(network, energy)), _nothing(network)
    if isinstance(inputs, InputTree):
        return torch.stack([of(nothing, inputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])
    return vmap(of, in_dims=(None, 0, 0))(nothing, inputs[:, None], targets[:, None])


def jacobian_rows(network: Network, inputs: Sample, outputs: Tensor) -> Tensor:  # (n, c, p)
    """The whole Jacobian of the outputs at some inputs, in float64: for small networks, many data at once."""
    jacobian = prepared(Jacobian(network, Inputs.of((inputs,)), outputs[0].numel()))
    return jacobian.rows(0, outputs.numel()).double().cpu().reshape(len(outputs), -1, network.layout.size)


def _energy(likelihood: Likelihood, targets: Tensor, counts: Tensor) -> Energy:
    """−log p of the data with these numbers, given their outputs, but for a constant under Gaussian noise."""
    n = len(counts)
    each = targets.reshape(n, -1, *targets.shape[1:])  # a datum has several targets where it has several places
    of, weights = likelihood.at_unit_noise(), counts * likelihood.row_precision(targets).reshape(n, -1)

    def energy(outputs: Tensor, numbers: Tensor) -> Tensor:  # (b, c), (b,)
        seen = each[numbers].flatten(0, 1).to(outputs.device)
        counted = weights[numbers].reshape(-1).to(outputs.device)
        return -of.log_prob(of.reshape_outputs(outputs.reshape(-1), seen), seen, counted)

    return energy


def _by_datum(observed: Observed, n: int) -> Tensor:  # (n, 1) or (n, targets of a datum)
    """How often each datum counts, or each of its targets."""
    return torch.ones(n, 1).double() if observed.weights is None else observed.weights.double().reshape(n, -1)


def _in_double(network: Network) -> Network:
    return replace(network, fixed={name: _as_double(part) for name, part in network.fixed.items()})


def _as_double(inputs: Any) -> Any:
    if isinstance(inputs, InputTree):
        return InputTree(mapped(inputs.parts, _as_double))
    return inputs.double() if inputs.is_floating_point() else inputs


def _moved(network: Network, energy: Energy) -> Callable[[Tensor, Sample, Tensor], Tensor]:
    """The energy as a function of what is added to the weights."""

    def at(change: Tensor, inputs: Sample, targets: Tensor) -> Tensor:
        parts = network.layout.unflatten(change)
        return energy(network({name: network.fixed[name] + part for name, part in parts.items()}, inputs), targets)

    return at


def _nothing(network: Network) -> Tensor:
    return torch.zeros_like(network.weights)

"""Curvatures of the data in a network's weights as dense matrices, for small networks: three that are often mixed up.

Σ over data of Jᵀ B J (Gauss-Newton), of −∇² log p (the true Hessian, which adds the curvature of the network itself and
can be indefinite) and of ∇log p ∇log pᵀ (the empirical Fisher, which knows the residuals and not the noise).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from lapwing.network.batches import Inputs
from lapwing.network.jacobian import Jacobian, Network
from lapwing.network.kfac.roots import Root

Energy = Callable[[Tensor, Tensor], Tensor]  # outputs (b, c) and targets -> −log p, summed
Pairs = Iterable[tuple[Tensor, Tensor]]
CHUNK = 64  # rows of a Hessian at once


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


def empirical_fisher(network: Network, batches: Pairs, energy: Energy) -> Tensor:  # (p, p)
    """Σ over data of g gᵀ, g the gradient of log p of one datum.

    >>> network = Network.of(torch.nn.Linear(2, 1, bias=False).double().eval())
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 0.0]]).double()
    >>> residuals = torch.tensor([[1.0], [2.0]]).double()
    >>> empirical_fisher(network, [(x, residuals)], lambda outputs, given: (given * outputs).sum())
    tensor([[37.,  2.],
            [ 2.,  4.]], dtype=torch.float64)
    """
    total = torch.zeros(network.layout.size, network.layout.size, dtype=torch.float64)
    for inputs, targets in batches:
        each = vmap(grad(_moved(network, energy)), in_dims=(None, 0, 0))
        gradients = each(_nothing(network), inputs[:, None], targets[:, None]).detach().double().cpu()
        total += gradients.mT @ gradients
    return total


def gauss_newton(network: Network, batches: Iterable[Tensor], root: Root) -> Tensor:  # (p, p)
    """Σ over data of Jᵀ R Rᵀ J, positive semi-definite.

    >>> from lapwing.network.kfac import gaussian
    >>> network = Network.of(torch.nn.Linear(2, 1, bias=False).double().eval())
    >>> gauss_newton(network, [torch.tensor([[1.0, 2.0], [3.0, 0.0]]).double()], gaussian(4.0))
    tensor([[40.,  8.],
            [ 8., 16.]], dtype=torch.float64)
    """
    total, start = torch.zeros(network.layout.size, network.layout.size, dtype=torch.float64), 0
    for inputs in batches:
        outputs = network(network.chosen(), inputs).detach()
        rows = Jacobian(network, Inputs.of((inputs,)), outputs.shape[1]).rows(0, outputs.numel()).double().cpu()
        columns = root(outputs, start).double().cpu()
        pulled = torch.einsum("nck,ncp->nkp", columns, rows.reshape(*outputs.shape, -1)).flatten(0, 1)
        total, start = total + pulled.mT @ pulled, start + len(inputs)
    return total


def _moved(network: Network, energy: Energy) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The energy as a function of what is added to the weights."""

    def at(change: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        parts = network.layout.unflatten(change)
        return energy(network({name: network.fixed[name] + part for name, part in parts.items()}, inputs), targets)

    return at


def _nothing(network: Network) -> Tensor:
    return torch.zeros_like(network.weights)

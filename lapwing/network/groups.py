"""Groups of weights that share a prior precision: by layer, or by the normalisation they feed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from lapwing.network.input_tree import Sample, call
from lapwing.network.jacobian import Network

REST = "everything else"
STRETCH = 2.0  # exact in floating point, and large enough that the ε of a normalisation matters less than before
TOLERANCE = 0.01  # of what a random change of the same length does to the outputs


def weight_groups(network: Network, kind: str, inputs: Sample) -> dict[str, Tensor]:
    """Indices of the chosen weights by group: one per "layer", or one per "normalised" matrix and one for the rest.

    A normalised group is a matrix (with its bias) whose scale a normalisation removes. That is tried out on `inputs`:
    stretching the group must leave the outputs as they are, together with the running statistics where a BatchNorm in
    eval mode is what it feeds. A sum of branches before a normalisation makes neither branch a group.
    """
    if kind == "layer":
        return network.layout.layers()
    if kind != "normalised":
        raise ValueError(f"groups={kind!r} is not known: expected 'layer', 'normalised' or a mapping")
    owner, numbers = network.layout.tensor_of(), {name: i for i, name in enumerate(network.layout.names)}
    groups, rest = dict[str, Tensor](), torch.ones(len(owner), dtype=torch.bool)
    for name, members in normalised(network, inputs).items():
        chosen = torch.isin(owner, torch.tensor([numbers[member] for member in members if member in numbers]))
        chosen &= rest
        if bool(chosen.any()):
            groups[name], rest = chosen.nonzero().flatten(), rest & ~chosen
    return {**groups, **({REST: rest.nonzero().flatten()} if bool(rest.any()) else {})}


def normalised(network: Network, inputs: Sample) -> dict[str, tuple[str, ...]]:
    """Names of the tensors of every normalised group that holds a chosen weight, by the name of their layer."""
    with torch.no_grad():
        fed = _fed_statistics(network, inputs)
        found = {}
        for matrix in network.layout.names:
            if network.fixed[matrix].ndim < 2:
                continue
            for group, statistics in _candidates(network, matrix, fed):
                if _invariant(network, inputs, group, statistics):
                    found[matrix.rpartition(".")[0] or matrix] = group
                    break
    return found


def _candidates(
    network: Network, matrix: str, fed: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """What might be a group: the matrix with its bias, with the statistics it feeds, or alone as in weight norm."""
    layer = matrix.rpartition(".")[0]
    bias = f"{layer}.bias" if layer else "bias"
    group = (matrix, bias) if bias in network.fixed else (matrix,)
    yield group, ()
    if layer in fed:
        yield group, tuple(f"{fed[layer]}.{part}".lstrip(".") for part in ("running_mean", "running_var"))
    yield (matrix,), ()


def _invariant(network: Network, inputs: Sample, group: tuple[str, ...], statistics: tuple[str, ...]) -> bool:
    """Whether stretching the group, and the running statistics after it, changes the outputs next to nothing.

    Biases are moved first: one that happens to be zero tells nothing.
    """
    noise = torch.Generator().manual_seed(0)
    base = dict(network.fixed)
    layer = group[0].rpartition(".")[0].removesuffix(".parametrizations.weight")
    for name in {f"{layer}.bias" if layer else "bias", *group[1:]} & base.keys():
        spread = base[group[0]].norm() / len(base[group[0]]) ** 0.5
        base[name] = base[name] + 0.5 * spread * _normal(base[name], noise)
    stretched, shaken = dict(base), dict(base)
    for name in group:
        move = (STRETCH - 1) * base[name]
        random = _normal(move, noise)
        stretched[name] = base[name] + move
        shaken[name] = base[name] + random * (move.norm() / random.norm())
    for name in statistics:
        stretched[name] = base[name] * (STRETCH if name.endswith("mean") else STRETCH**2)
    before, after, other = (_outputs(network, values, inputs) for values in (base, stretched, shaken))
    return bool((after - before).norm() <= TOLERANCE * (other - before).norm()) and not torch.equal(other, before)


def _fed_statistics(network: Network, inputs: Sample) -> dict[str, str]:
    """Layer to the BatchNorm, in eval mode with running statistics, that is called on just its output."""
    made: dict[int, str] = {}
    kept, fed = list[Any](), dict[str, str]()

    def watch(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            if isinstance(module, _BatchNorm) and module.running_mean is not None and id(args[0]) in made:
                fed[made[id(args[0])]] = name
            if isinstance(output, Tensor):
                made.setdefault(id(output), name)  # the innermost module that made it comes first
                kept.append(output)  # so that no later tensor gets its id

        return module.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in network.model.named_modules()]
    try:
        _outputs(network, network.fixed, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return fed


def _outputs(network: Network, values: dict[str, Tensor], inputs: Sample) -> Tensor:
    return network.view.raw(functional_call(network.model, values, *call(network.model, inputs)))


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

"""Small networks of one shape trained at once: a step of nine costs hardly more than a step of one.

Every tensor has an axis of networks in front. Adam works on each number alone, so each network goes where it would have
gone by itself in this order of the data; each keeps the weights of its own best epoch on held-out data. Their losses
are summed, so one network that diverges ends the training of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from lapwing.families.networks import stacked, values
from lapwing.training import Descent, Schedule, Weights, adam, loop

Pair = tuple[Tensor, Tensor]


def train(
    models: Sequence[nn.Sequential], data: Pair, validation: Pair, *, epochs: int, batch_size: int,
    learning_rate: float, schedule: Schedule | None = None, rates: Sequence[float] | None = None,
    decays: Sequence[float] | None = None, seed: int = 0,
) -> list[nn.Sequential]:  # fmt: skip
    """Writes into networks of linear layers and activations the weights with the least squared error, and returns them.

    With `rates`, inputs of every linear layer are dropped with the rate of each network while it is trained; with
    `decays`, half of that times Σ w² is added to half of the squared error per datum. Where one network diverges,
    `Diverged` is raised and none is written.

    >>> from lapwing.bench.networks import mlp
    >>> x = torch.linspace(-1, 1, 20).double()[:, None]
    >>> models = [mlp([1, 5, 1], seed=seed).double() for seed in range(3)]
    >>> found = train(models, (x, x), (x, x), epochs=200, batch_size=10, learning_rate=0.02)
    >>> all(bool((model(x) - x).abs().max() < 0.1) for model in found)
    True
    """
    start = stacked([values(model) for model in models])
    kept = torch.tensor([1 - rate for rate in rates or [0.0] * len(models)]).to(next(iter(start.values())))
    decay = None if decays is None else torch.tensor(decays).to(kept)
    best, lowest = {name: tensor.clone() for name, tensor in start.items()}, torch.full_like(kept, torch.inf)

    def loss(weights: Weights, inputs: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        shares = kept if rates is not None else None
        fit = errors(weights, inputs, targets, shares, generator).sum() / 2
        if decay is None:
            return fit
        return fit + sum((decay @ tensor.square().flatten(1).sum(1) for tensor in weights.values()), fit * 0) / 2

    def score(weights: Weights) -> float:
        with torch.no_grad():
            now = errors(weights, *validation)
        better = now < lowest
        lowest[better] = now[better]
        for name, tensor in weights.items():
            best[name][better] = tensor[better]
        return float(lowest.mean())

    def errors(
        weights: Weights, inputs: Tensor, targets: Tensor, shares: Tensor | None = None,
        generator: Generator | None = None,
    ) -> Tensor:  # fmt: skip
        found = outputs(models[0], weights, inputs, shares, generator)
        return (found - targets).square().sum(2).mean(1)

    learner = Descent(loss, start, adam(learning_rate), schedule)
    loop(learner, data, epochs=epochs, batch_size=batch_size, seed=seed, score=score, progress=False)
    for number, model in enumerate(models):
        model.load_state_dict({name: tensor[number] for name, tensor in best.items()})
        model.eval()
    return list(models)


def outputs(
    model: nn.Sequential, weights: Weights, inputs: Tensor, shares: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:  # (networks, n, outputs)  # fmt: skip
    """What every network makes of inputs (n, features); with `shares`, that share of each layer's inputs is kept."""
    count = len(next(iter(weights.values())))
    values = inputs.flatten(1).expand(count, *inputs.flatten(1).shape)
    for place, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            if shares is not None:
                chance = torch.rand(values.shape, generator=generator)
                values = values * (chance < shares[:, None, None]) / shares[:, None, None]
            values = torch.baddbmm(weights[f"{place}.bias"][:, None], values, weights[f"{place}.weight"].mT)
        elif not isinstance(layer, nn.Flatten):
            values = layer(values)
    return values

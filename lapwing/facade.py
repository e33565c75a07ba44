"""fit: linearise, then infer; several networks one after another, as a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from torch import nn

from lapwing.bayes.fits import Curvature
from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.methods import Method
from lapwing.bayes.mixtures import Mixture, Turn, fitted
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import Prior
from lapwing.bayes.sharing import Shard
from lapwing.network.linearisation import linearise
from lapwing.network.outputs import Output
from lapwing.network.parameters import Select
from lapwing.runtime.progress import Report


class Options(TypedDict, total=False):
    """What `fit` takes beside networks, data and likelihood."""

    prior: Prior | None
    method: Method | None
    select: Select
    validation: Any
    dataset_size: int | None
    draws: int
    seed: int
    progress: bool | Report | None
    output: Output
    shard: Shard
    checkpoint: Path | str | None
    max_memory: float | str | None
    curvature: Curvature | None


@overload
def fit(model: nn.Module, data: Any, likelihood: Likelihood, **options: Unpack[Options]) -> Posterior: ...


@overload
def fit(model: Sequence[nn.Module], data: Any, likelihood: Likelihood, **options: Unpack[Options]) -> Mixture: ...


def fit(
    model: nn.Module | Sequence[nn.Module], data: Any, likelihood: Likelihood, *, prior: Prior | None = None,
    method: Method | None = None, select: Select = None, validation: Any = None, dataset_size: int | None = None,
    draws: int = 32, seed: int = 0, progress: bool | Report | None = None, output: Output = None, shard: Shard = None,
    checkpoint: Path | str | None = None, max_memory: float | str | None = None, curvature: Curvature | None = None,
) -> Posterior | Mixture:  # fmt: skip
    """The posterior of a trained network, linearised at its weights: what `linearise` and then `infer` give.

    Several networks, as in `fit([a, b, c], …)`, become one `Mixture` of their posteriors, which predicts as a posterior
    does. They are fitted one after another, the first with this seed and each with the next; what is said of one holds
    for each. With `validation` the best is chosen of the networks averaged, that over one temperature, and mixtures.

    >>> import torch
    >>> from lapwing import Gaussian
    >>> a, b = (torch.nn.Linear(2, 1).double().eval() for _ in range(2))
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]).double()
    >>> posterior = fit(a, (x, a(x).detach() + 0.1), Gaussian(0.1))
    >>> posterior.predict(x).mean.shape
    torch.Size([3, 1])
    >>> fit([a, b], (x, a(x).detach() + 0.1), Gaussian(0.1)).functions(x).shape
    torch.Size([64, 3, 1])
    """

    def one(network: nn.Module, turn: Turn) -> Posterior:
        linear = linearise(
            network,
            data,
            likelihood,
            select=select,
            dataset_size=dataset_size,
            output=output,
            checkpoint=turn.checkpoint,
        )
        return infer(
            linear, prior=prior, method=method, validation=turn.validation, draws=draws, seed=turn.seed,
            progress=turn.progress, shard=shard, checkpoint=turn.checkpoint, max_memory=turn.max_memory,
            curvature=curvature, tuning=turn.tuning,
        )  # fmt: skip

    turn = Turn(seed, validation, progress, checkpoint, max_memory)
    if isinstance(model, Sequence):
        return fitted(len(model), lambda number, its: one(model[number], its), turn)
    return one(model, turn)

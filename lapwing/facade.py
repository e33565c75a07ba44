"""fit: linearise, then infer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from lapwing.bayes.fits import Curvature
from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.methods import Method
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import Prior
from lapwing.bayes.sharing import Shard
from lapwing.linalg.progress import Report
from lapwing.network.linearisation import linearise
from lapwing.network.outputs import Output
from lapwing.network.parameters import Select


def fit(
    model: nn.Module, data: Any, likelihood: Likelihood, *, prior: Prior | None = None, method: Method | None = None,
    select: Select = None, validation: Any = None, total: int | None = None, draws: int = 32, seed: int = 0,
    progress: bool | Report | None = None, output: Output = None, shard: Shard = None,
    checkpoint: Path | str | None = None, max_memory: float | str | None = None, curvature: Curvature | None = None,
) -> Posterior:  # fmt: skip
    """The posterior of a trained network, linearised at its weights: what `linearise` and then `infer` give.

    >>> import torch
    >>> from lapwing import Gaussian
    >>> model = torch.nn.Linear(2, 1).double().eval()
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]).double()
    >>> posterior = fit(model, (x, model(x).detach() + 0.1), Gaussian(0.1))
    >>> posterior.predict(x).mean.shape
    torch.Size([3, 1])
    """
    linear = linearise(model, data, likelihood, select=select, total=total, output=output, checkpoint=checkpoint)
    return infer(
        linear, prior=prior, method=method, validation=validation, draws=draws, seed=seed,
        progress=progress, shard=shard, checkpoint=checkpoint, max_memory=max_memory,
        curvature=curvature,
    )  # fmt: skip

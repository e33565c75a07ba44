"""fit: linearise, then infer; several networks one after another, as a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from torch import nn

from lapwing.bayes.fits import Curvature
from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.long_runs import Shard
from lapwing.bayes.methods import Method
from lapwing.bayes.mixtures import Mixture, Turn, fitted
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import Prior
from lapwing.network.input_tree import Output
from lapwing.network.jacobian import keeping_factors
from lapwing.network.linearisation import linearise
from lapwing.network.parameters import Select
from lapwing.runtime.progress import Report


class Options(TypedDict, total=False):
    """What `fit` takes beside networks, data and likelihood."""

    prior: Prior | None
    method: Method | None
    select: Select
    validation: Any
    dataset_size: int | None
    rest: Any
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
    rest: Any = None, draws: int = 32, seed: int = 0, progress: bool | Report | None = None, output: Output = None,
    shard: Shard = None, checkpoint: Path | str | None = None, max_memory: float | str | None = None,
    curvature: Curvature | None = None,
) -> Posterior | Mixture:  # fmt: skip
    """The posterior over the weights of a trained network, linearised at these weights.

    Without `validation`, prior and noise are tuned by the marginal likelihood. The network, its mode, its gradients and
    the global random state are left untouched. `fit` is `linearise`, then `infer`.

    Parameters
    ----------
    model : nn.Module or list of nn.Module
        A trained network in eval mode that returns logits or values. Several become one `Mixture` of their posteriors.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        The data that the network was trained on, or a random part of them with `rest` or `dataset_size`.
    likelihood : Likelihood
        `Categorical()` for classes, `Bernoulli()` for binary labels, `Gaussian()` for numbers, `Poisson()` for counts,
        or your own by `likelihood`.
    prior : Prior, optional
        Prior on the weights, such as `Isotropic()`. The g-prior by default. A precision that is not given is tuned.
    method : Method, optional
        How the posterior is found, such as `Exact()` or `KFAC()`. Chosen by size and free memory by default.
    select : callable or Tensor, optional
        Which weights are uncertain: a function of a weight's name such as `last_layer(model)`, or a boolean mask. All
        that require gradients by default.
    validation : as data, optional
        Some data that the network was not trained on. The precision is then compared on them, for classes also with the
        raw network and temperature scaling; class probabilities average over these by how well each does.
    dataset_size : int, optional
        Size of the whole training set, where `data` is a part of it.
    rest : as data, optional
        The training data that `data` leaves out, or some of them. Each of `data` then stands for several of all, and
        the mean follows the gradient of all; without `rest` it stays that of the network. For labels.
    draws : int
        Draws of the weights to keep, for `functions` and `samples`.
    seed : int
        Of the draws.
    progress : bool or callable, optional
        Whether to show progress. By default only on a terminal.
    output : str, int or callable, optional
        Which tensor is meant, where the network returns several.
    shard : bool or "draws", optional
        In a job of several processes (torchrun) each works on a share of the data, or of the draws with "draws".
        False: this process does all the work itself.
    checkpoint : path, optional
        Folder in which a Krylov space is kept, step by step: the same call after a crash goes on where it was.
    max_memory : float or str, optional
        Bytes, or a size such as "8GB", that this call may take. What is free by default.
    curvature : "expected", "mode" or "network", optional
        Where the curvature of a likelihood is taken that is not Gaussian. "expected" averages it over the posterior
        (Gaussian variational inference), the default of `Exact()`; `Krylov()` does so when asked. "mode" and "network"
        are Laplace's approximation at the optimum of the linear model, or at the network's own outputs.

    Returns
    -------
    Posterior or Mixture
        A `Mixture` where a list of networks was given. Both have `predict`; printing them shows what was chosen.

    Raises
    ------
    ValueError
        If the network is in train mode, data do not fit the likelihood, or the memory does not suffice. The message
        says what to do.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> from lapwing.training import train
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> y = (x[:, 0] > 0.2).long()
    >>> network = train(torch.nn.Linear(1, 2), (x, y), lw.Categorical(), epochs=50, progress=False)
    >>> posterior = lw.fit(network, (x, y), lw.Categorical())
    >>> (posterior.predict(torch.tensor([[-0.9], [0.9]])).probs[:, 1] > 0.5).tolist()
    [False, True]

    Several networks:

    >>> other = train(torch.nn.Linear(1, 2), (x, y), lw.Categorical(), epochs=50, progress=False)
    >>> len(lw.fit([network, other], (x, y), lw.Categorical()))
    2
    """

    def one(network: nn.Module, turn: Turn) -> Posterior:
        linear = linearise(
            network,
            data,
            likelihood,
            select=select,
            dataset_size=dataset_size,
            rest=rest,
            output=output,
            checkpoint=turn.checkpoint,
        )
        with keeping_factors():
            return infer(
                linear, prior=prior, method=method, validation=turn.validation, draws=draws, seed=turn.seed,
                progress=turn.progress, shard=shard, checkpoint=turn.checkpoint, max_memory=turn.max_memory,
                curvature=curvature, tuning=turn.tuning,
            )  # fmt: skip

    turn = Turn(seed, validation, progress, checkpoint, max_memory)
    if isinstance(model, Sequence):
        return fitted(len(model), lambda number, its: one(model[number], its), turn)
    return one(model, turn)

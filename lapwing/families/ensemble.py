"""Deep ensembles (Lakshminarayanan et al. 2017): the same network trained from several starts, as one mixture."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from lapwing.bayes.likelihoods import Likelihood
from lapwing.families.networks import Networks, evaluated, stacked, values, with_noise
from lapwing.network.parameters import check_model
from lapwing.runtime.processes import fresh_processes
from lapwing.runtime.progress import Report, reporter
from lapwing.training import Diverged, adam, train
from lapwing.training import members as train_members

__all__ = ["fit", "of"]


def fit(
    make: Callable[[int], nn.Module], data: Any, likelihood: Likelihood, *, epochs: int, members: int = 5,
    batch_size: int = 128, learning_rate: float = 1e-3, prior_precision: float = 0.0, validation: Any = None,
    seed: int = 0, processes: int = 1, folder: str | Path | None = None, progress: bool | Report | None = None,
) -> Networks:  # fmt: skip
    """Networks `make(seed)`, `make(seed + 1)`, … trained by `lapwing.training.members`, with orders of their own.

    With a `folder` training is kept in it, so that a later call goes on where this one was stopped. With several
    `processes` members are trained one by one, at the same time, each on its share of the cores: a script then needs
    `if __name__ == "__main__":`. The noise of a Gaussian, where it is not given, is that of the mixture on `validation`
    or the training data.

    Parameters
    ----------
    make : callable
        From a seed to a network that is not yet trained.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    epochs : int
        Passes over the data.
    members : int
        Number of networks.
    batch_size : int
        Data in each batch.
    learning_rate : float
        Of the optimiser.
    prior_precision : float
        Precision of a Gaussian prior on the weights: weight decay times the number of data.
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.
    seed : int
        Of the order of the data and of all draws.
    processes : int
        Networks trained at the same time, each in a process.
    folder : path, optional
        To keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    Networks
        The ensemble, with `predict`.

    Raises
    ------
    ValueError
        If there is less than one network or process.
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> found = fit(lambda seed: nn.Linear(1, 1), (x, 2 * x), Gaussian(0.1), members=3, epochs=2, progress=False)
    >>> found.functions(x).shape
    torch.Size([3, 20, 1])
    """
    if members < 1 or processes < 1:
        raise ValueError(f"members is {members} and processes {processes}: expected at least one of each")
    folder = None if folder is None else Path(folder)
    if processes == 1:
        trained = _here(
            make, data, likelihood, members, epochs=epochs, batch_size=batch_size, optimiser=adam(learning_rate),
            prior_precision=prior_precision, validation=validation, seed=seed, checkpoint=folder, progress=progress,
        )  # fmt: skip
        return of(trained, data, likelihood, validation=validation, seed=seed)
    jobs = [
        Member(
            make(number), data, likelihood, epochs, batch_size, learning_rate, prior_precision, validation, number,
            None if folder is None else folder / f"member-{number}.pt", max(1, (os.cpu_count() or 1) // processes),
        )
        for number in range(seed, seed + members)
    ]  # fmt: skip
    trained = _apart(jobs, processes, reporter(progress))
    return of(trained, data, likelihood, validation=validation, seed=seed)


def of(
    models: Sequence[nn.Module], data: Any, likelihood: Likelihood, *, validation: Any = None, seed: int = 0
) -> Networks:
    """An ensemble of networks that are trained already; data are needed for the noise only.

    Parameters
    ----------
    models : sequence of nn.Module
        Trained networks of one architecture, in eval mode.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.
    seed : int
        Of the order of the data and of all draws.

    Returns
    -------
    Networks
        The ensemble, with `predict`.

    Raises
    ------
    ValueError
        If there are no networks, or their architectures differ.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> found = of([nn.Linear(1, 1).eval() for _ in range(3)], (x, x), Gaussian(0.1))
    >>> found.predict(x).mean.shape, len(found.functions(x))
    (torch.Size([20, 1]), 3)
    """
    if not models:
        raise ValueError("an ensemble needs at least one network")
    for model in models:
        check_model(model)
    if len(shapes := {tuple((name, tensor.shape) for name, tensor in values(model).items()) for model in models}) > 1:
        raise ValueError(f"the networks have {len(shapes)} different architectures: expected one for all")
    found = Networks(evaluated(models[0]), stacked([values(model) for model in models]), likelihood, mixture=True,
                     seed=seed, diagnostics={"members": len(models)})  # fmt: skip
    return replace(found, likelihood=with_noise(found, data if validation is None else validation))


@final
@dataclass(frozen=True, eq=False)
class Member:
    """One network to be trained in another process."""

    model: nn.Module
    data: Any
    likelihood: Likelihood
    epochs: int
    batch_size: int
    learning_rate: float
    prior_precision: float
    validation: Any
    seed: int
    checkpoint: Path | None
    threads: int

    def train(self) -> nn.Module:
        """The trained network; where training diverges the error names the member."""
        try:
            return train(
                self.model, self.data, self.likelihood, epochs=self.epochs, batch_size=self.batch_size,
                optimiser=adam(self.learning_rate), prior_precision=self.prior_precision, validation=self.validation,
                seed=self.seed, checkpoint=self.checkpoint, progress=False,
            )  # fmt: skip
        except Diverged as error:
            raise ValueError(f"the member with seed {self.seed} diverged: {error}") from error


def _here(*asked: Any, **options: Any) -> list[nn.Module]:
    try:
        return train_members(*asked, **options)
    except Diverged as error:
        raise ValueError(str(error)) from error


def _apart(jobs: list[Member], processes: int, report: Report) -> list[nn.Module]:
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=fresh_processes(__name__)) as pool:
        found = []
        for number, model in enumerate(pool.map(_train, jobs), 1):
            found.append(model)
            report(f"member {number} of {len(jobs)} is trained")
    report("")
    return found


def _train(job: Member) -> nn.Module:
    torch.set_num_threads(job.threads)
    return job.train()

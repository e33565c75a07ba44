"""Gradient descent, and one network trained by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Generator, Tensor, nn

from lapwing.bayes.likelihoods import Likelihood
from lapwing.network.data_spec import Counted, Targets
from lapwing.network.input_tree import Sample, outputs_at
from lapwing.network.shuffling import Source
from lapwing.runtime.progress import Report
from lapwing.training.epochs import Weights, loop

Loss = Callable[[Weights, Any, Any, Generator], Tensor]  # weights by name, inputs, targets (`Counted` where weighted)
Optimiser = Callable[[list[Tensor]], torch.optim.Optimizer]
Schedule = Callable[[float], float]  # share of the training done, in [0, 1) -> factor of the learning rate


def train(
    model: nn.Module, data: Any, likelihood: Likelihood, *, epochs: int, batch_size: int = 128,
    optimiser: Optimiser | None = None, schedule: Schedule | None = None, prior_precision: float = 0.0,
    validation: Any = None, seed: int = 0, checkpoint: str | Path | None = None, progress: bool | Report | None = None,
) -> nn.Module:  # fmt: skip
    """A trained copy of a network, in eval mode: the mode of likelihood times N(0, 1 / prior_precision) on the weights.

    Adam with a learning rate of 1e-3 unless an `optimiser` makes another. Where the noise of a `Gaussian` is not given
    it counts as one. With `validation` the weights of the epoch with the best held-out log density are kept. Data,
    checkpoints and random numbers are as in `loop`; the model itself is not changed.

    Parameters
    ----------
    model : nn.Module
        A network; it is not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    epochs : int
        Passes over the data.
    batch_size : int
        Data in each batch.
    optimiser : callable, optional
        Makes a torch optimiser of a list of tensors, such as `adam(1e-2)`.
    schedule : callable, optional
        From the share of the training done to a factor of the learning rate.
    prior_precision : float
        Precision of a Gaussian prior on the weights: weight decay times the number of data.
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.
    seed : int
        Of the order of the data and of all draws.
    checkpoint : path, optional
        File to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    nn.Module
        A trained copy in eval mode.

    Raises
    ------
    ValueError
        If `prior_precision` is negative, or the network has nothing to train.
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> trained = train(nn.Linear(1, 1), (x, 2 * x + 1), Gaussian(), epochs=200, optimiser=adam(0.05), progress=False)
    >>> f"{trained.weight.item():.2f}, {trained.bias.item():.2f}, {trained.training}"
    '2.00, 1.00, False'
    """
    if prior_precision < 0:
        raise ValueError(f"prior_precision is {prior_precision}, expected zero or more")
    copy, n = deepcopy(model).train(), Source.of(data).size
    names, tensors = trainable(copy), tensors_of(copy)

    def score(weights: Weights) -> float:
        copy.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for inputs, targets in Source.of(validation).in_order(batch_size):
                total -= float(log_prob(likelihood, outputs_at(copy, weights, inputs), targets))
                count += len(inputs)
        copy.train()
        return total / count

    loss = objective(copy, likelihood, names, prior_precision / n)
    learner = Descent(loss, {name: tensors[name] for name in names}, optimiser, schedule,
                      kept={name: tensor for name, tensor in tensors.items() if name not in names})  # fmt: skip
    settings = {"epochs": epochs} if schedule is not None else {}
    trained = loop(
        learner, data, epochs=epochs, batch_size=batch_size, seed=seed, checkpoint=checkpoint, progress=progress,
        score=None if validation is None else score, settings={**settings, "prior_precision": prior_precision},
    )  # fmt: skip
    with torch.no_grad():
        for name, tensor in tensors_of(copy).items():
            tensor.copy_(trained.weights[name])
    return copy.eval()


def objective(model: nn.Module, likelihood: Likelihood, names: Sequence[str], decay: float) -> Loss:
    """−log p of a batch per datum plus decay / 2 · Σ w² over the named weights, as a loss for `Descent`.

    With decay = prior precision / number of data its minimum is the mode of the posterior.

    Parameters
    ----------
    model : nn.Module
        A network; it is not changed.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    names : sequence of str
        Weights that decay.
    decay : float
        Prior precision over the number of data.

    Returns
    -------
    callable
        A loss for `Descent`.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> network, x = nn.Linear(1, 1), torch.tensor([[0.0], [1.0]])
    >>> loss = objective(network, Gaussian(1.0), ["weight"], decay=0.1)
    >>> zero = {"weight": torch.zeros(1, 1), "bias": torch.zeros(1)}
    >>> round(float(loss(zero, x, x, Generator())), 4)  # ½ log 2π + ¼, since one of two errors is 1
    1.1689
    """

    def loss(weights: Weights, inputs: Sample, targets: Targets, generator: Generator) -> Tensor:
        del generator  # the loss itself is not random
        outputs = outputs_at(model, weights, inputs)
        fit = -log_prob(likelihood, outputs, targets) / len(inputs)
        if decay == 0:
            return fit
        energy = sum((weights[name].square().sum() for name in names), start=outputs.new_zeros(()))
        return fit + decay / 2 * energy

    return loss


def adam(learning_rate: float = 1e-3) -> Optimiser:
    """Adam with this learning rate, for `optimiser=`.

    Parameters
    ----------
    learning_rate : float
        Of the optimiser.

    Returns
    -------
    callable
        Makes the optimiser of a list of tensors.

    Examples
    --------
    >>> type(adam(0.1)([torch.zeros(2, requires_grad=True)])).__name__
    'Adam'
    """
    return lambda weights: torch.optim.Adam(weights, lr=learning_rate, fused=True)


def log_prob(
    likelihood: Likelihood, outputs: Tensor, targets: Targets, noise_std: Tensor | None = None
) -> Tensor:  # ()
    """log p(targets | outputs), summed over the data; a Gaussian without a noise has `noise_std`, or unit noise.

    Outputs of shape (n, 1) and targets of shape (n,) belong together; nothing else is broadcast.

    Parameters
    ----------
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    outputs : Tensor
        What the network returned for a batch.
    targets : Tensor
        Of that batch.
    noise_std : Tensor, optional
        Noise of a Gaussian without one of its own.

    Returns
    -------
    Tensor
        One number.

    Raises
    ------
    ValueError
        If outputs and targets do not fit.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Bernoulli
    >>> round(float(log_prob(Bernoulli(), torch.zeros(2, 1), torch.tensor([0.0, 1.0]))), 4)  # 2 log ½
    -1.3863
    """
    known, weights = targets if isinstance(targets, Counted) else (targets, None)
    return likelihood.log_prob_of_batch(outputs, known, noise_std, weights)


@final
@dataclass(eq=False)
class Descent:
    """Gradient descent on a loss of a batch, a function of weights by name; it works on copies.

    Parameters
    ----------
    loss : callable
        From weights by name, inputs, targets and a generator to a loss.
    start : dict of Tensor
        Weights to start from, by name.
    optimiser : callable, optional
        Makes a torch optimiser of a list of tensors, such as `adam(1e-2)`.
    schedule : callable, optional
        From the share of the training done to a factor of the learning rate.
    kept : dict of Tensor
        Further tensors for the loss, which may write to them, as batch norm does.

    Examples
    --------
    >>> descent = Descent(lambda w, x, y, _: (w["a"] * x - y).square().mean(), {"a": torch.zeros(1)}, adam(0.1))
    >>> descent.step(torch.ones(3), 2 * torch.ones(3), Generator(), done=0.0)
    4.0
    >>> round(float(descent.weights()["a"]), 4)
    0.1
    """

    loss: Loss
    start: Weights
    optimiser: Optimiser | None = None
    schedule: Schedule | None = None
    kept: Weights = field(default_factory=dict)  # given to the loss too, which may write to them, as batch norm does

    def __post_init__(self) -> None:
        self.kept = {name: tensor.detach().clone() for name, tensor in self.kept.items()}
        self.current = {name: tensor.detach().clone().requires_grad_() for name, tensor in self.start.items()}
        self.descent = (self.optimiser or adam())(list(self.current.values()))
        self.rates = [group["lr"] for group in self.descent.param_groups]

    def step(self, inputs: Any, targets: Any, generator: Generator, done: float) -> float:
        """One step of the optimiser; where the loss is not finite, none."""
        if self.schedule is not None:
            for group, rate in zip(self.descent.param_groups, self.rates, strict=True):
                group["lr"] = rate * self.schedule(done)
        self.descent.zero_grad()
        loss = self.loss({**self.current, **self.kept}, inputs, targets, generator)
        if bool(loss.isfinite()):
            loss.backward()
            self.descent.step()
        return float(loss.detach())

    def weights(self) -> Weights:
        """Copies of the tensors descended on and of the others."""
        return {name: tensor.detach().clone() for name, tensor in {**self.current, **self.kept}.items()}

    def state(self) -> dict[str, Any]:
        """The tensors and what the optimiser remembers."""
        return {"weights": self.weights(), "optimiser": self.descent.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, in place."""
        with torch.no_grad():
            for name, tensor in {**self.current, **self.kept}.items():
                tensor.copy_(state["weights"][name])
        self.descent.load_state_dict(state["optimiser"])


def trainable(model: nn.Module) -> list[str]:
    """The names of the weights that require gradients."""
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    if not names:
        raise ValueError("the network has no weights that require gradients: nothing can be trained")
    return names


def tensors_of(model: nn.Module) -> Weights:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}

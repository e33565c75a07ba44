"""Several networks from different starts, trained at once: a step of five costs hardly more than a step of one.

Every tensor has an axis of networks in front, and the network is mapped over it (`torch.func.vmap`), running averages
of BatchNorm and masks of Dropout included. The optimiser works on each number alone, so that every network goes where
it would have gone by itself, to round-off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Generator, Tensor, nn
from torch.func import vmap

from lapwing.bayes.likelihoods import Likelihood
from lapwing.network.data_spec import Targets
from lapwing.network.input_tree import outputs_at
from lapwing.network.shuffling import Source, stacked
from lapwing.runtime.progress import Report, reporter
from lapwing.training.descent import Descent, Loss, Optimiser, Schedule, log_prob, tensors_of, train, trainable
from lapwing.training.epochs import Diverged, Weights, loop

PROBED = 2  # data with which it is tried whether a network can be mapped


@final
@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """How networks are trained: what `train` takes."""

    data: Source
    likelihood: Likelihood
    epochs: int
    batch_size: int
    optimiser: Optimiser | None
    schedule: Schedule | None
    precisions: tuple[float, ...]  # of the prior on the weights of each network
    validation: Source | None
    seed: int


def members(
    make: Callable[[int], nn.Module], data: Any, likelihood: Likelihood, count: int = 5, *, epochs: int,
    batch_size: int = 128, optimiser: Optimiser | None = None, schedule: Schedule | None = None,
    prior_precision: float | Sequence[float] = 0.0, validation: Any = None, seed: int = 0,
    checkpoint: str | Path | None = None, progress: bool | Report | None = None,
) -> list[nn.Module]:  # fmt: skip
    """Networks `make(seed)`, `make(seed + 1)`, … trained as by `train`, each with its own order of the data.

    They are trained side by side where they have one architecture that `torch.func.vmap` takes, and else one by one,
    which the progress says. The optimiser must treat every number for itself, as SGD and Adam do. `prior_precision` is
    one for all or one for each; with `validation` each keeps the weights of its own best epoch. `checkpoint` is a
    folder, from which a later call goes on to the same networks. One that diverges ends the training of all.

    Parameters
    ----------
    make : callable
        From a seed to a network that is not yet trained.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    count : int
        Number of networks.
    epochs : int
        Passes over the data.
    batch_size : int
        Data in each batch.
    optimiser : callable, optional
        Makes a torch optimiser of a list of tensors, such as `adam(1e-2)`.
    schedule : callable, optional
        From the share of the training done to a factor of the learning rate.
    prior_precision : float or sequence of float
        Precision of a Gaussian prior on the weights, one for all or one for each.
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.
    seed : int
        Of the order of the data and of all draws.
    checkpoint : path, optional
        Folder to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    list of nn.Module
        The trained networks in eval mode.

    Raises
    ------
    ValueError
        If `count` is below one, or precisions are negative or of another number.
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> found = members(lambda seed: nn.Linear(1, 1), (x, 2 * x), Gaussian(0.1), 3, epochs=2, progress=False)
    >>> len(found), found[0].training
    (3, False)
    """
    if count < 1:
        raise ValueError(f"count is {count}, expected at least one network")
    precisions = _precisions(prior_precision, count)
    models = [make(number) for number in range(seed, seed + count)]
    held_out = None if validation is None else Source.of(validation)
    plan = TrainingPlan(
        Source.of(data), likelihood, epochs, batch_size, optimiser, schedule, precisions, held_out, seed
    )
    folder, report = None if checkpoint is None else Path(checkpoint), reporter(progress)
    hindrance = obstacle(models, plan)
    if hindrance is not None:
        return _one_by_one(models, plan, folder, report, hindrance)
    return _at_once(models, plan, folder, report)


def obstacle(models: Sequence[nn.Module], plan: TrainingPlan) -> str | None:
    """Why networks cannot be trained side by side, or None where they can: a first loss and its gradient are tried."""
    if len(models) == 1:
        return "there is one"
    kinds = {tuple((name, part.shape, part.dtype) for name, part in tensors_of(model).items()) for model in models}
    if len(kinds) > 1 or len({type(model) for model in models}) > 1:
        return "their architectures differ"
    together = Together.of(models, plan)
    weights = {name: tensor.clone() for name, tensor in together.start.items()}
    trained = [weights[name].requires_grad_() for name in together.names]
    batch = plan.data.first(PROBED)
    if not isinstance(batch.inputs, Tensor):
        return "their inputs are more than one tensor"
    try:
        with torch.random.fork_rng(devices=[]):
            rows = stacked([batch] * len(models))
            torch.autograd.grad(together.losses(weights, *rows).sum(), trained, allow_unused=True)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"vmap refuses this network: {str(error).splitlines()[0][:120]}"
    return None


@final
@dataclass(frozen=True, eq=False)
class Together:
    """Networks of one architecture as a function of all their weights."""

    model: nn.Module  # a copy in training mode, whose own weights do not matter
    start: Weights  # (networks, …) each
    names: list[str]  # of those that are trained
    likelihood: Likelihood
    decays: Tensor  # (networks,), prior precision over the number of data

    @staticmethod
    def of(models: Sequence[nn.Module], plan: TrainingPlan) -> Together:
        """The networks of a plan."""
        sets = [tensors_of(model) for model in models]
        start = {name: torch.stack([one[name].detach() for one in sets]) for name in sets[0]}
        names = trainable(models[0])
        decays = torch.tensor(plan.precisions).to(start[names[0]]) / plan.data.size
        return Together(deepcopy(models[0]).train(), start, names, plan.likelihood, decays)

    def losses(self, weights: Weights, inputs: Tensor, targets: Targets) -> Tensor:  # (networks,)
        """−log p per datum of a batch for each network, plus decay / 2 · Σ w² over its weights."""
        return self._mapped(self._loss, weights, inputs, targets, self.decays, own=True)

    def scores(self, weights: Weights, batches: Iterator[tuple[Any, Targets]]) -> Tensor:  # (networks,)
        """−log p per datum of held-out data for each network."""
        total, count = 0.0 * self.decays.double(), 0
        self.model.eval()
        try:
            with torch.no_grad():
                for inputs, targets in batches:
                    none = torch.zeros_like(self.decays)
                    each = self._mapped(self._loss, weights, inputs, targets, none, own=False)
                    total, count = total + len(inputs) * each.double(), count + len(inputs)
        finally:
            self.model.train()
        return total / count

    def _loss(self, weights: Weights, inputs: Tensor, targets: Targets, decay: Tensor) -> Tensor:  # ()
        outputs = outputs_at(self.model, weights, inputs)
        fit = -log_prob(self.likelihood, outputs, targets) / len(inputs)
        if not bool(self.decays.any()):
            return fit
        return fit + decay / 2 * sum((weights[name].square().sum() for name in self.names), start=0.0 * fit)

    def _mapped(
        self, function: Any, weights: Weights, inputs: Tensor, targets: Targets, decays: Tensor, own: bool
    ) -> Tensor:
        """A function of one network over all; each has batches of its `own`, or all share one."""
        axis = 0 if own else None
        over = vmap(function, in_dims=(0, axis, axis, 0), randomness="different")
        found: Tensor = over(weights, inputs, targets, decays)
        return found


@final
@dataclass(eq=False)
class Crowd:
    """Networks that descend side by side, each with its own order of the data and its own best epoch."""

    together: Together
    plan: TrainingPlan
    losses: Tensor = field(init=False)  # (networks,), those of the last step

    def __post_init__(self) -> None:
        start, names = self.together.start, self.together.names
        kept = {name: tensor for name, tensor in start.items() if name not in names}
        trained = {name: start[name] for name in names}
        self.descent = Descent(self._loss(), trained, self.plan.optimiser, self.plan.schedule, kept=kept)
        count = len(self.plan.precisions)
        self.generators = [Generator().manual_seed(self.plan.seed + number) for number in range(count)]
        self.lowest, self.best = torch.full((count,), torch.inf, dtype=torch.float64), self.descent.weights()

    def _loss(self) -> Loss:
        def loss(weights: Weights, inputs: Tensor, targets: Targets, generator: Generator) -> Tensor:
            del generator  # the loss itself is not random
            found = self.together.losses(weights, inputs, targets)
            self.losses = found.detach()
            return found.sum()

        return loss

    def batches(self, source: Source, batch_size: int, generator: Generator) -> Iterator[tuple[Tensor, Targets]]:
        """Those of an epoch, of each network by its own generator."""
        del generator
        return source.side_by_side(batch_size, self.generators)

    def score(self, weights: Weights) -> float:
        """Notes which networks are at their best so far; the mean of their scores."""
        assert self.plan.validation is not None
        found = self.together.scores(weights, self.plan.validation.in_order(self.plan.batch_size))
        better = found < self.lowest
        self.lowest = torch.where(better, found, self.lowest)
        for name, tensor in weights.items():
            self.best[name][better] = tensor[better]
        return float(found.mean())

    def step(self, inputs: Any, targets: Any, generator: Generator, done: float) -> float:
        """One step of all; their mean loss."""
        return self.descent.step(inputs, targets, generator, done) / len(self.generators)

    def weights(self) -> Weights:
        """Copies of all tensors, with an axis of networks in front."""
        return self.descent.weights()

    def state(self) -> dict[str, Any]:
        """Everything needed to go on."""
        orders = [generator.get_state() for generator in self.generators]
        return {**self.descent.state(), "orders": orders, "best": self.best, "lowest": self.lowest}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, in place."""
        self.descent.restore(state)
        for generator, order in zip(self.generators, state["orders"], strict=True):
            generator.set_state(order)
        self.best = {name: tensor.clone() for name, tensor in state["best"].items()}
        self.lowest = state["lowest"].clone()


def _at_once(models: Sequence[nn.Module], plan: TrainingPlan, folder: Path | None, report: Report) -> list[nn.Module]:
    crowd = Crowd(Together.of(models, plan), plan)
    settings = {"epochs": plan.epochs} if plan.schedule is not None else {}
    held_out = plan.validation is not None
    try:
        trained = loop(
            crowd, plan.data, epochs=plan.epochs, batch_size=plan.batch_size, seed=plan.seed, batches=crowd.batches,
            checkpoint=None if folder is None else folder / "members.pt", score=crowd.score if held_out else None,
            progress=lambda phase: report(f"{len(models)} networks side by side, {phase}" if phase else ""),
            settings={**settings, "prior_precision": list(plan.precisions)},
        )  # fmt: skip
    except Diverged as error:
        raise Diverged(f"{_which(crowd, plan)} diverged: {error}", error.last_good, error.step) from error
    return _written(models, crowd.best if held_out else trained.weights)


def _which(crowd: Crowd, plan: TrainingPlan) -> str:
    """The members whose loss or weights are not finite."""
    wrong = ~crowd.losses.isfinite()
    for tensor in crowd.weights().values():
        wrong |= ~tensor.flatten(1).isfinite().all(1)
    seeds = [str(plan.seed + number) for number in wrong.nonzero()[:, 0].tolist()]
    return f"the member with seed {seeds[0]}" if len(seeds) == 1 else f"the members with seeds {', '.join(seeds)}"


def _written(models: Sequence[nn.Module], weights: Weights) -> list[nn.Module]:
    """Copies of the networks with these weights, in eval mode."""
    found = [deepcopy(model).eval() for model in models]
    with torch.no_grad():
        for number, model in enumerate(found):
            for name, tensor in tensors_of(model).items():
                tensor.copy_(weights[name][number])
    return found


def _one_by_one(
    models: Sequence[nn.Module], plan: TrainingPlan, folder: Path | None, report: Report, why: str
) -> list[nn.Module]:
    found = []
    for number, (model, precision) in enumerate(zip(models, plan.precisions, strict=True)):
        seed, which = plan.seed + number, f"network {number + 1} of {len(models)}, one by one ({why})"
        try:
            found.append(train(
                model, plan.data, plan.likelihood, epochs=plan.epochs, batch_size=plan.batch_size,
                optimiser=plan.optimiser, schedule=plan.schedule, prior_precision=precision,
                validation=plan.validation, seed=seed,
                checkpoint=None if folder is None else folder / f"member-{seed}.pt",
                progress=lambda phase, which=which: report(f"{which}, {phase}" if phase else ""),  # type: ignore[misc]
            ))  # fmt: skip
        except Diverged as error:
            raise Diverged(f"the member with seed {seed} diverged: {error}", error.last_good, error.step) from error
    return found


def _precisions(given: float | Sequence[float], count: int) -> tuple[float, ...]:
    found = tuple(given) if isinstance(given, Sequence) else (float(given),) * count
    if len(found) != count or any(not precision >= 0 for precision in found):
        raise ValueError(f"prior_precision is {given}, expected zero or more, one for all or one for each of {count}")
    return found

"""Training by the evidence: precisions of the prior, and the noise, follow the network while it learns.

Online Laplace training (Immer et al. 2021). Epochs of descent on −log p(y | w) + ½ Σ λ ‖w‖² take turns with steps on
the log evidence at the current weights, log p(y | w) − ½ Σ λ ‖w‖² − ½ log det(I + M/λ), M the curvature of the data.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Generator, Tensor, nn

from lapwing.bayes import evidence
from lapwing.bayes.evidence import EvidenceParts, Moments, Precisions, Problem, grouped
from lapwing.bayes.fits import NetworkWeights
from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import Gaussian, Likelihood
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods import CG, EKFAC, KFAC, SGD, Diagonal, LowRank, Method
from lapwing.bayes.methods.structured import Structure
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import DiagonalPrior, Isotropic, PerGroup, resolve
from lapwing.linalg.kronecker import Block
from lapwing.network.batches import Batches, as_batches
from lapwing.network.data_spec import Counted, Targets
from lapwing.network.input_tree import Sample, outputs_at
from lapwing.network.jacobian import Network
from lapwing.network.kfac import Structures, root_of
from lapwing.network.linearisation import linearise
from lapwing.network.shuffling import Source
from lapwing.runtime.progress import Report
from lapwing.training import Descent, Epoch, Optimiser, Schedule, Weights, log_prob, loop

__all__ = ["Assessment", "EvidenceTrained", "train_with_evidence"]

SUBSET_BATCH = 128
PER_LAYER, KRONECKER = PerGroup("layer"), KFAC()


@final
@dataclass(frozen=True)
class Assessment:
    """The evidence after one epoch, at its weights and at the precisions that the next epochs are trained with.

    Parameters
    ----------
    epoch : int
        After which it was made.
    log_evidence : float
        At the weights of that epoch.
    parts : EvidenceParts
        What it consists of.
    effective_dimension : float
        γ.
    precision : dict of float
        By group.
    noise_std : float or None
        None for class labels, and for a noise that was given per output or datum.
    at_largest_step : tuple of str
        Groups whose best precision was further away than one step.
    """

    epoch: int
    log_evidence: float
    parts: EvidenceParts
    effective_dimension: float
    precision: dict[str, float]  # by group
    noise_std: float | None  # None for class labels and for a noise that was given per output or datum
    at_largest_step: tuple[str, ...]  # groups whose best precision was further away than one step


@final
@dataclass(frozen=True, eq=False)
class EvidenceTrained:
    """A network trained by the evidence, its posterior, and how both came about.

    Parameters
    ----------
    model : nn.Module
        In eval mode, from the epoch with the largest evidence.
    posterior : Posterior
        At its weights.
    curve : tuple of Assessment
        The evidence.
    epochs : tuple of Epoch
        The loss.
    best : int
        Number of the epoch that the weights are from.
    """

    model: nn.Module  # in eval mode, from the epoch with the largest evidence
    posterior: Posterior
    curve: tuple[Assessment, ...]
    epochs: tuple[Epoch, ...]
    best: int  # number of the epoch the weights are from

    @property
    def assessment(self) -> Assessment:
        """The evidence of the weights that were kept."""
        return next(found for found in self.curve if found.epoch == self.best)


def train_with_evidence(
    model: nn.Module, data: Any, likelihood: Likelihood, *, epochs: int, prior: Isotropic | PerGroup = PER_LAYER,
    method: Method = KRONECKER, burn_in: int = 0, frequency: int = 1, start_precision: float = 1.0,
    largest_step: float = 1.0, subset: int | None = None, patience: int | None = None, batch_size: int = 128,
    optimiser: Optimiser | None = None, schedule: Schedule | None = None, draws: int = 32, seed: int = 0,
    checkpoint: str | Path | None = None, progress: bool | Report | None = None,
) -> EvidenceTrained:  # fmt: skip
    """A copy of a network trained with weight decay that the evidence sets, one per group of the prior.

    After `burn_in` epochs, and every `frequency` epochs from then on, precisions (and the noise of a `Gaussian` without
    one) move to the maximum of the evidence at the current weights, each at most by a factor exp(largest_step), so that
    the weights can follow. They start from `start_precision` and from the spread of the targets. Curvatures are those
    of the network in eval mode, by `method`: a structure, or `Krylov()` and `Exact()` on a random `subset` of the data,
    which then counts for all of them. The weights of the epoch with the largest evidence are kept, and training stops
    after `patience` epochs without a larger one. Optimiser, schedule, data, checkpoints and random numbers are as in
    `training.loop`; the model itself is not changed.

    Parameters
    ----------
    model : nn.Module
        A network. It is not changed: a copy is trained.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        The training data.
    likelihood : Likelihood
        That of the data.
    epochs : int
        Passes over the data.
    prior : Isotropic or PerGroup
        Which weights share a precision.
    method : method
        How the curvature is found.
    burn_in : int
        Epochs before the first update of the precisions.
    frequency : int
        Epochs between updates.
    start_precision : float
        Where precisions start.
    largest_step : float
        Largest change of a log precision in an update.
    subset : int, optional
        Examples for `Krylov()` or `Exact()`.
    patience : int, optional
        Epochs without a larger evidence after which training stops.
    batch_size : int
        Examples per step.
    optimiser : callable, optional
        Makes the optimiser from the weights. Adam by default.
    schedule : callable, optional
        From the share of the training done to a factor of the learning rate.
    draws : int
        Draws of methods that need them.
    seed : int
        Of the order of the data and of draws.
    checkpoint : path, optional
        File to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress. By default only on a terminal.

    Returns
    -------
    EvidenceTrained
        With `model`, `curve` and `assessment`.

    Raises
    ------
    ValueError
        If `subset` is not between 1 and the number of data.
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> network = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
    >>> trained = train_with_evidence(network, (x, x**2), Gaussian(), epochs=3, batch_size=10, progress=False)
    >>> len(trained.curve), sorted(trained.assessment.precision), trained.model.training
    (3, ['0', '2'], False)
    """
    _check_kinds(likelihood, prior, method)
    _check_steps(epochs, burn_in, frequency, start_precision, largest_step)
    source = Source.of(data)
    if subset is not None and not 1 <= subset <= source.size:
        raise ValueError(f"subset is {subset}, expected 1 to {source.size}, the number of data, or None for all")
    task = _EvidenceTask.of(model, data, source, likelihood, prior, method, subset, seed, largest_step)
    learner = _Online.of(task, start_precision, optimiser, schedule)

    def score(weights: Weights) -> float | None:
        number = learner.epoch = learner.epoch + 1
        if number <= burn_in or (number - burn_in - 1) % frequency:
            return None
        learner.assess(weights)
        return -learner.curve[-1].log_evidence / source.size

    settings = {
        "prior": repr(task.prior_names), "method": repr(method), "burn_in": burn_in, "frequency": frequency,
        "start_precision": start_precision, "largest_step": largest_step, "subset": subset,
        **({"epochs": epochs} if schedule is not None else {}),
    }  # fmt: skip
    trained = loop(
        learner, source, epochs=epochs, batch_size=batch_size, seed=seed, score=score, scored="−evidence per datum",
        patience=patience, checkpoint=checkpoint, progress=progress, settings=settings,
    )  # fmt: skip
    kept = next(found for found in learner.curve if found.epoch == trained.best)
    return EvidenceTrained(
        task.network(trained.weights), task.posterior(trained.weights, kept, draws), tuple(learner.curve),
        trained.curve, trained.best,
    )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class _EvidenceTask:
    """What is trained on what, and how its evidence is found."""

    model: nn.Module  # a copy in train mode
    still: nn.Module  # another in eval mode, for the evidence
    names: tuple[str, ...]
    data: Any
    source: Source
    likelihood: Likelihood
    prior: Isotropic | PerGroup  # groups by index
    shape: DiagonalPrior
    method: Method
    subset: int | None
    seed: int
    largest_step: float

    @staticmethod
    def of(
        model: nn.Module, data: Any, source: Source, likelihood: Likelihood, prior: Isotropic | PerGroup,
        method: Method, subset: int | None, seed: int, largest_step: float,
    ) -> _EvidenceTask:  # fmt: skip
        """With groups found on the first data."""
        copy, still = deepcopy(model).train(), deepcopy(model).eval()
        names = tuple(name for name, weight in copy.named_parameters() if weight.requires_grad)
        if not names:
            raise ValueError("the network has no weights that require gradients: nothing can be trained")
        some = linearise(still, [source.first(SUBSET_BATCH)], likelihood)
        chosen = resolve(prior, some.groups)
        assert isinstance(chosen, Isotropic | PerGroup)
        shape = chosen.on(some.features, some.row_counts)
        return _EvidenceTask(
            copy, still, names, data, source, likelihood, chosen, shape, method, subset, seed, largest_step
        )

    @property
    def prior_names(self) -> tuple[str, ...]:
        """The groups, which a checkpoint must share."""
        return self.shape.names

    @property
    def tunes_noise(self) -> bool:
        """Whether there is a noise to be found."""
        return self.likelihood.tunes_noise

    def with_noise(self, noise_std: Tensor) -> Likelihood:
        """The likelihood at a noise."""
        return self.likelihood.with_tuned(noise_std)

    def network(self, weights: Weights) -> nn.Module:
        """A copy with these weights, in eval mode."""
        copy = deepcopy(self.still)
        with torch.no_grad():
            for name, tensor in (*copy.named_parameters(), *copy.named_buffers()):
                tensor.copy_(weights[name])
        return copy

    def seen(self, epoch: int) -> tuple[Any, int | None]:
        """The data that the evidence is found on, and how many they stand for where they are not all."""
        if self.subset is None:
            return self.data, None
        order = torch.randperm(self.source.size, generator=Generator().manual_seed(1_000_003 * self.seed + epoch))
        some = list(self.source.fetch(list(order[: self.subset].sort().values.split(SUBSET_BATCH))))
        return some, self.source.size

    def problem(self, weights: Weights, precision: Tensor, noise_std: Tensor, epoch: int) -> Problem:
        """The evidence at these weights as a function of the precisions and of multiples of the noise precision."""
        model, likelihood = self.network(weights), self.with_noise(noise_std)
        data, dataset_size = self.seen(epoch)
        if isinstance(self.method, Diagonal | KFAC | EKFAC):
            problem = layerwise(model, data, likelihood, self.shape, self.method, dataset_size, self.seed)
        else:
            problem = self._at_weights(linearise(model, data, likelihood, dataset_size=dataset_size), precision)
        return replace(
            problem, tune_prior=self.prior.tuned, tune_noise=self.tunes_noise, prior_hyperprior=self.prior.hyperprior
        )

    def _at_weights(self, linear: LinearModel, precision: Tensor) -> Problem:
        """Determinants by a low rank, a decomposition or a Krylov space, fit and penalty from the weights."""
        at = replace(self.shape, precision=precision)
        if isinstance(self.method, LowRank):
            method = self.method.with_evidence_at_weights()
            return infer(
                linear, prior=self._given(precision), method=method, draws=0, seed=self.seed, progress=False
            ).gaussian.problem()  # fmt: skip
        rows = linear.gaussian_surrogate(linear.outputs_at_point())
        model = LinearModel(
            rows.features, rows.targets, Gaussian(1.0), features_at=linear.features_at, point=linear.point,
            blocks=linear.blocks,
        )  # fmt: skip
        known = infer(
            model, prior=self._given(precision), method=self.method, draws=32, seed=self.seed, progress=False
        ).gaussian.problem()
        curvature = replace(known, counts=rows.counts, log_weight=rows.log_weight)
        return NetworkWeights.of(linear, at).problem(curvature)

    def _given(self, precision: Tensor) -> Isotropic | PerGroup:
        if isinstance(self.prior, Isotropic):
            return Isotropic(float(precision[0]))
        return replace(self.prior, precision=dict(zip(self.shape.names, precision.tolist(), strict=True)))

    def posterior(self, weights: Weights, at: Assessment, draws: int) -> Posterior:
        """The posterior of the weights that are kept, at the precisions found with them and on all data."""
        noise_std = torch.tensor(1.0 if at.noise_std is None else at.noise_std, dtype=torch.float64)
        linear = linearise(self.network(weights), self.data, self.with_noise(noise_std))
        prior = self._given(torch.tensor(list(at.precision.values()), dtype=torch.float64))
        method = self.method
        if isinstance(method, Structure):
            method = method.with_evidence_at_weights()
        return infer(linear, prior=prior, method=method, draws=draws, seed=self.seed, progress=False)


def layerwise(
    model: nn.Module, data: Any, likelihood: Likelihood, prior: DiagonalPrior, method: Diagonal | KFAC | EKFAC,
    dataset_size: int | None = None, seed: int = 0,
) -> Problem:  # fmt: skip
    """The evidence at a network's own weights through a structure that knows every layer by itself.

    Precisions are equal within a block of the structure, so all that is needed of them are its eigenvalues.
    """
    network, batches = Network.of(model), as_batches(data)
    outputs = torch.cat([network.outputs(inputs) for inputs in batches.inputs])
    targets, counts = _counted(batches, dataset_size)
    root = root_of(likelihood, targets)
    curvature = method.made_of(Structures(network, batches.inputs, root, counts), None, seed).curvature
    values = torch.cat([block.values.flatten() for block in curvature.blocks]).double().cpu()
    group_of = torch.cat([_groups(block, prior) for block in curvature.blocks])
    known, own = likelihood.arranged(outputs.cpu(), targets.cpu(), counts)
    own = counts if own is None else own
    residual = likelihood.misfit(likelihood.as_rows(outputs).double().cpu().reshape(-1), known, own)
    observed, log_weight = likelihood.totals(known, own)
    weights, groups = network.weights.double().cpu(), len(prior.precision)
    energies = grouped(weights.square(), prior.group_of, groups)

    def moments(at: Precisions) -> Moments:
        k = at.noise * values / at.prior[group_of]
        determined = grouped(k / (1 + k), group_of, groups)
        return Moments(residual, energies, determined, determined.sum().reshape(1), k.log1p().sum())

    return Problem(
        moments, observed, prior.sizes, log_weight, float(values.max()),
        one_by_one=True,
    )  # fmt: skip


def _groups(block: Block, prior: DiagonalPrior) -> Tensor:  # (weights of the block,)
    """The group of every eigenvalue of a block."""
    found = prior.group_of[block.index.cpu()].flatten()
    if not block.is_diagonal and bool((found != found[0]).any()):
        raise ValueError(
            f"the weights of {block.name!r} are in several groups of the prior, and a Kronecker block needs one: use "
            "PerGroup('layer'), Isotropic(), or Diagonal()"
        )
    return found


@final
@dataclass(eq=False)
class _Online:
    """Descent whose penalty and noise change between epochs."""

    task: _EvidenceTask
    precision: Tensor  # (groups,)
    noise_std: Tensor  # ()
    epoch: int = 0
    curve: list[Assessment] = field(default_factory=list)
    descent: Descent = field(init=False)

    @staticmethod
    def of(task: _EvidenceTask, start: float, optimiser: Optimiser | None, schedule: Schedule | None) -> _Online:
        """At the weights of the model and the precisions to start from."""
        precision = torch.full_like(task.shape.precision, start) if task.prior.tuned else task.shape.precision
        noise_std = _spread(task.source) if task.tunes_noise else torch.ones((), dtype=torch.float64)
        learner = _Online(task, precision, noise_std)
        tensors = {**dict(task.model.named_parameters()), **dict(task.model.named_buffers())}
        learner.descent = Descent(
            learner.loss, {name: tensors[name] for name in task.names}, optimiser, schedule,
            kept={name: tensor for name, tensor in tensors.items() if name not in task.names},
        )  # fmt: skip
        return learner

    def loss(self, weights: Weights, inputs: Sample, targets: Targets, generator: Generator) -> Tensor:
        """−log p(y, w) / n, from a batch."""
        del generator  # the loss itself is not random
        outputs = outputs_at(self.task.model, weights, inputs)
        flat = torch.cat([weights[name].reshape(-1) for name in self.task.names])
        each = self.precision[self.task.shape.group_of].to(flat)
        penalty = 0.5 * (each * flat.square()).sum() / self.task.source.size
        noise_std = self.noise_std.to(outputs)
        return penalty - log_prob(self.task.likelihood, outputs, targets, noise_std) / len(inputs)

    def assess(self, weights: Weights) -> None:
        """Move the precisions and note the evidence there."""
        problem = self.task.problem(weights, self.precision, self.noise_std, self.epoch)
        here = Precisions(self.precision, torch.ones(1, dtype=torch.float64))
        best = evidence.maximise(problem, here).at
        step = self.task.largest_step
        shift = (best.prior / here.prior).log()
        there = Precisions(here.prior * shift.clamp(-step, step).exp(), best.noise.log().clamp(-step, step).exp())
        moments, names = problem.moments(there), self.task.shape.names
        parts = problem.parts(there, moments)
        self.precision, self.noise_std = there.prior, self.noise_std * there.noise[0].rsqrt()
        self.curve.append(
            Assessment(
                self.epoch, parts.total, parts, float(moments.leverage.sum()),
                dict(zip(names, there.prior.tolist(), strict=True)),
                float(self.noise_std) if self.task.tunes_noise else None,
                tuple(name for name, value in zip(names, shift.abs(), strict=True) if float(value) > step),
            )
        )  # fmt: skip

    def step(self, inputs: Any, targets: Any, generator: Generator, done: float) -> float:
        """One step of descent."""
        return self.descent.step(inputs, targets, generator, done)

    def weights(self) -> Weights:
        """Copies of all tensors of the network."""
        return self.descent.weights()

    def state(self) -> dict[str, Any]:
        """The descent, the precisions and the curve."""
        curve = [asdict(found) for found in self.curve]
        settings = {"precision": self.precision, "noise_std": self.noise_std, "epoch": self.epoch}
        return {"descent": self.descent.state(), "curve": curve, **settings}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.descent.restore(state["descent"])
        self.precision, self.noise_std, self.epoch = state["precision"], state["noise_std"], state["epoch"]
        self.curve = [Assessment(**{**found, "parts": EvidenceParts(**found["parts"])}) for found in state["curve"]]


def _counted(batches: Batches, dataset_size: int | None) -> tuple[Tensor, Tensor]:
    """All targets, and how often each datum counts."""
    targets, counts = list[Tensor](), list[Tensor]()
    for batch in batches.read():
        assert batch.targets is not None
        targets.append(batch.targets)
        counts.append(torch.ones(len(batch.targets), dtype=torch.float64) if batch.weights is None else batch.weights)
    known, weights = torch.cat(targets), torch.cat(counts)
    if weights.ndim > 1:
        raise ValueError("a mask over single targets does not work with KFAC or Diagonal structures: use Krylov()")
    return known, weights if dataset_size is None else weights * (dataset_size / len(known))


def _spread(source: Source) -> Tensor:
    """The standard deviation of the targets around the mean of each output, where the search for the noise starts."""
    observed = [targets for _, targets in source.in_order(1000)]
    targets = torch.cat([one.targets if isinstance(one, Counted) else one for one in observed]).double()
    spread = (targets - targets.mean(0)).square().mean().sqrt()
    if not float(spread) > 0:
        raise ValueError("all targets are equal, so the noise cannot be found: give Gaussian(noise_std=…)")
    return spread


def _check_kinds(likelihood: Likelihood, prior: Any, method: Any) -> None:
    if not isinstance(prior, Isotropic | PerGroup):
        raise ValueError(
            f"prior is {prior!r}, expected Isotropic() or PerGroup(…): the scale of any other would move with the "
            "weights that are trained"
        )
    if isinstance(method, CG | SGD):
        raise ValueError(
            f"method is {method!r}, which knows no determinant: use KFAC(), Diagonal(), Krylov() or Exact()"
        )
    if likelihood.tunes_noise and likelihood.per_output:
        raise ValueError("one noise for all outputs can be found while training: give noise_std for one per output")


def _check_steps(epochs: int, burn_in: int, frequency: int, start_precision: float, largest_step: float) -> None:
    if burn_in < 0 or frequency < 1 or burn_in >= epochs:
        raise ValueError(
            f"burn_in is {burn_in} and frequency {frequency} of {epochs} epochs: expected 0 ≤ burn_in < epochs and "
            "frequency ≥ 1, so that the evidence is looked at once at least"
        )
    if not (start_precision > 0 and largest_step > 0):
        raise ValueError(
            f"start_precision is {start_precision} and largest_step {largest_step}: expected positive numbers"
        )

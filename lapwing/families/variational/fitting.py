"""fit: a network with Gaussian weights by the tempered ELBO."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lapwing.bayes.likelihoods import Likelihood
from lapwing.families.variational.backprop import Backprop
from lapwing.families.variational.mean_field import LOG_STD, MeanField
from lapwing.families.variational.methods import BayesByBackprop, Method, Natural, at_layers
from lapwing.families.variational.posterior import Variational
from lapwing.families.variational.scores import held_out
from lapwing.families.variational.temperature import Balanced, Heat, Temperature, count_units, resolve
from lapwing.network.data_spec import Targets
from lapwing.network.input_tree import Sample, outputs_at
from lapwing.network.parameters import Select
from lapwing.network.shuffling import Source
from lapwing.runtime.progress import Report, reporter
from lapwing.training import Diverged, Learner, Schedule, Trained, Weights, log_prob, loop

BALANCED, BACKPROP = Balanced(), BayesByBackprop()
TAUS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # digits and MNIST have their best between 1e-5 and 1e-4
LOG_NOISE = ":noise" + LOG_STD  # of a Gaussian, where it is learnt; no weight has a name that starts so
SEEN = 64  # data that the network is shown to see how it uses its weights


def fit(
    model: nn.Module, data: Any, likelihood: Likelihood, *, epochs: int, temperature: Temperature = BALANCED,
    prior_variance: float = 0.2, method: Method = BACKPROP, select: Select = None, batch_size: int = 128,
    samples: int = 1, initial_std: float | None = None, start: Variational | None = None, validation: Any = None,
    dataset_size: int | None = None, schedule: Schedule | None = None, draws: int = 50, seed: int = 0,
    checkpoint: str | Path | None = None, progress: bool | Report | None = None,
) -> Variational:  # fmt: skip
    """Independent Gaussians over a network's weights, by maximising Σ E log p(y | f) − η KL(q | prior).

    Means start at the model's weights, so a trained network is a warm start, and standard deviations at `initial_std`
    (a tenth of the prior's unless given), or both where another fit ended, `start`. The prior of every random weight is
    N(0, prior_variance). `select` says by name which weights are random; otherwise all but those of normalisation
    layers. The noise of a `Gaussian` is learnt where it is not given. `temperature` is η, or a rule for it: `Balanced`
    without a τ fits every τ of a grid and keeps the one with the best log density on `validation`. `samples` are draws
    per step. `dataset_size` is the number of data where `data` are only a part of them. The model is not changed.

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
    temperature : float, Balanced or Cold
        η, or a rule for it.
    prior_variance : float
        Of every random weight.
    method : BayesByBackprop or NaturalGradient
        How means and variances are learnt.
    select : callable, optional
        Which weights are random, by name.
    batch_size : int
        Data in each batch.
    samples : int
        Draws for each step.
    initial_std : float, optional
        Standard deviation at the start; a tenth of the prior's by default.
    start : Variational, optional
        Another fit to go on from.
    validation : (inputs, targets), Dataset, DataLoader or list of batches, optional
        Validation data.
    dataset_size : int, optional
        Size of the whole training set, where `data` is a part of it.
    schedule : callable, optional
        From the share of the training done to a factor of the learning rate.
    draws : int
        Posterior draws.
    seed : int
        Of the order of the data and of all draws.
    checkpoint : path, optional
        File to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    Variational
        With `predict`, `functions` and `elbo`.

    Raises
    ------
    ValueError
        If a number is out of range, the likelihood is of another kind, or τ is to be tuned without `validation`.
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> from lapwing import Gaussian
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> posterior = fit(network, (x, 2 * x), Gaussian(0.1), temperature=Balanced(tau=0.01), epochs=2, progress=False)
    >>> posterior.heat, posterior.functions(x[:3]).shape
    (Heat(eta=0.05, data=40, tau=0.01, units=8), torch.Size([50, 3, 1]))
    """
    if samples < 1 or draws < 2:
        raise ValueError(f"samples is {samples} and draws {draws}: expected at least 1 and 2")
    if not (likelihood.constant_curvature or likelihood.has_classes):
        raise ValueError(
            f"a variational fit is for Gaussian(), Bernoulli() and Categorical(), not {type(likelihood).__name__}: use "
            "lapwing.fit for it"
        )
    source = Source.of(data)
    example = source.first(SEEN).inputs
    network = MeanField.of(model, example, select=select, prior_variance=prior_variance)
    if dataset_size is not None and dataset_size < source.size:
        raise ValueError(
            f"dataset_size is {dataset_size}, less than the {source.size} data given: it counts the whole training set"
        )
    plan = _VariationalPlan(
        network,
        source,
        likelihood,
        method,
        epochs,
        batch_size,
        samples,
        dataset_size or source.size,
        schedule,
        draws,
        seed,
    )
    values = _start(network, likelihood, initial_std, start)
    if not isinstance(temperature, Balanced) or temperature.tau is not None:
        heat = resolve(temperature, model, network.size, plan.data)
        return plan.run(values, heat, _path(checkpoint), progress)
    units = count_units(temperature.units, model, network.size)
    if validation is None:
        raise ValueError("tau is tuned on held-out data: pass validation=(x, y), or Balanced(tau=...) with a number")
    return _tuned(plan, values, units, validation, _path(checkpoint), progress)


@final
@dataclass(frozen=True, eq=False)
class _VariationalPlan:
    """A fit but for its temperature."""

    network: MeanField
    source: Source
    likelihood: Likelihood
    method: Method
    epochs: int
    batch_size: int
    samples: int
    data: int
    schedule: Schedule | None
    draws: int
    seed: int

    def run(
        self, values: Weights, heat: Heat, checkpoint: Path | None, progress: bool | Report | None
    ) -> Variational:  # fmt: skip
        """The fit at one temperature."""
        settings = {
            "temperature": heat.eta, "prior_variance": self.network.prior_variance, "samples": self.samples,
            "method": repr(self.method), "random": list(self.network.random), "total": self.data,
            **({} if self.schedule is None else {"epochs": self.epochs}),
        }  # fmt: skip
        trained = loop(
            self._learner(values, heat), self.source, epochs=self.epochs, batch_size=self.batch_size, seed=self.seed,
            checkpoint=checkpoint, progress=progress, settings=settings,
        )  # fmt: skip
        return self._posterior(trained, heat)

    def _learner(self, values: Weights, heat: Heat) -> Learner:
        learnt = [*self.network.trainable(), *(name for name in (LOG_NOISE,) if name in values)]
        if isinstance(self.method, BayesByBackprop):
            return Backprop(
                self._expected, values, self.network.random, learnt, share=heat.eta / self.data,
                prior_variance=self.network.prior_variance, learning_rate=self.method.learning_rate,
                schedule=self.schedule,
            )  # fmt: skip
        if LOG_NOISE in values:
            raise ValueError("the natural-gradient methods need a Gaussian with a given noise_std")
        if self.method.kind == "vogn" and any(isinstance(m, _BatchNorm) for m in self.network.model.modules()):
            raise ValueError(
                "VOGN needs the gradients of single data, which a network with batch normalisation does not have: "
                "use NaturalGradient('ivon') or BayesByBackprop()"
            )
        return Natural(
            self._expected, self._energy, values, self.network.random, learnt, self.method, ess=self.data / heat.eta,
            prior_precision=1 / self.network.prior_variance, schedule=self.schedule, samples=self.samples,
        )  # fmt: skip

    def _expected(
        self, values: Weights, variances: Weights, inputs: Sample, targets: Targets, generator: Generator
    ) -> Tensor:  # ()
        """The mean of −log p over the data of a batch and over samples."""
        noise_std = values[LOG_NOISE].exp() if LOG_NOISE in values else None
        chosen, terms = at_layers(self.method.local, self.network), []
        for _ in range(self.samples):
            outputs = self.network.outputs(values, variances, inputs, generator, chosen)
            terms.append(log_prob(self.likelihood, outputs, targets, noise_std))
        return -torch.stack(terms).mean() / len(inputs)

    def _energy(self, weights: Weights, inputs: Sample, targets: Targets) -> Tensor:  # ()
        outputs = outputs_at(self.network.model, weights, inputs)
        return -log_prob(self.likelihood, outputs, targets) / len(inputs)

    def _posterior(self, trained: Trained, heat: Heat) -> Variational:
        values, likelihood = dict(trained.weights), self.likelihood
        if LOG_NOISE in values:
            likelihood = likelihood.with_tuned(values.pop(LOG_NOISE).double().exp())
        return Variational(self.network, values, likelihood, heat, trained.curve, self.draws, self.seed)


def _tuned(
    plan: _VariationalPlan,
    values: Weights,
    units: int,
    validation: Any,
    checkpoint: Path | None,
    progress: bool | Report | None,
) -> Variational:
    """The fit with the best held-out log density over the grid of τ."""
    report, best, tuning = reporter(progress), None, []
    for tau in TAUS:
        path = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}.tau-{tau:g}")
        heat = Heat(tau * plan.data / units, plan.data, tau, units)
        try:
            found = plan.run(values, heat, path, partial(_report_at, report, tau))
        except Diverged:  # too cold or too hot for this learning rate: not the one to keep
            tuning.append((tau, math.inf))
            continue
        tuning.append((tau, held_out(found, validation)["nll"]))
        if best is None or tuning[-1][1] < min(nll for _, nll in tuning[:-1]):
            best = found
    if best is None:
        raise ValueError(f"training diverged at every tau of {TAUS}: use a smaller learning rate")
    return replace(best, tuning=tuple(tuning))


def _report_at(report: Report, tau: float, phase: str) -> None:
    report(f"τ = {tau:g}: {phase}" if phase else "")


def _start(network: MeanField, likelihood: Likelihood, initial_std: float | None, start: Variational | None) -> Weights:
    """Where the values start: at the model's weights, or where another fit ended."""
    if initial_std is not None and not initial_std > 0:
        raise ValueError(f"initial_std is {initial_std}, expected a positive number")
    values = network.start(0.1 * network.prior_variance**0.5 if initial_std is None else initial_std)
    if start is not None:
        shapes = ({name: value.shape for name, value in some.items()} for some in (values, start.values))
        if next(shapes) != next(shapes):
            raise ValueError("start is a fit of another network, or with other weights random: expected one of this")
        values = start.values
    if likelihood.tunes_noise:
        values = {**values, LOG_NOISE: next(iter(values.values())).new_zeros(())}
    return values


def _path(checkpoint: str | Path | None) -> Path | None:
    return None if checkpoint is None else Path(checkpoint)

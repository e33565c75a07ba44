"""The classic Bayesian treatment of a small network (MacKay 1992), with dense curvatures.

`train` alternates optimisation of the weights with re-estimates of the prior precision α and the noise precision β from
γ = tr M (M + α)⁻¹, the number of weights that the data determine; `fit` does the last step alone, for a network that is
trained already; `compare` chooses between networks by their evidence. The posterior is that of `lapwing.infer`, by a
dense matrix and with its evidence at the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn

from lapwing.bayes.evidence import At, ByFixedPoint, Precisions, Problem, mackay_update
from lapwing.bayes.evidence.tuning import Indefinite
from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.priors import Isotropic
from lapwing.families.dense_laplace import (
    Curvature,
    DenseLaplace,
    checked_network,
    laplace,
    linearised,
)
from lapwing.network.batches import Batches, as_batches
from lapwing.network.input_tree import outputs_at
from lapwing.network.jacobian import Network
from lapwing.runtime.progress import Report, reporter

__all__ = ["Comparison", "DenseLaplace", "Regularised", "compare", "fit", "train"]

SAME = 0.05  # two effective dimensions that differ by less, relatively, are equal
GRADIENT = 1e-5  # of the loss, in nats per unit of a weight, at which a round of optimisation ends early


@final
@dataclass(frozen=True)
class Cycle:
    """One round: the weights optimised at these precisions, and what they determine."""

    precision: float
    noise_std: float | None
    effective_dimension: float
    log_evidence: float
    loss: float  # −log p(y | w) + ½ α ‖w‖²


@final
@dataclass(frozen=True, eq=False)
class Regularised:
    """A network trained with the regularisation that its evidence chose.

    Parameters
    ----------
    model : nn.Module
        The network, in eval mode.
    posterior : DenseLaplace
        At its weights.
    cycles : tuple of Cycle
        The rounds.
    converged : bool
        Whether the precisions came to rest.
    """

    model: nn.Module  # in eval mode
    posterior: DenseLaplace
    cycles: tuple[Cycle, ...]
    converged: bool

    @property
    def advice(self) -> str:
        """What γ says about the size of the network."""
        return self.posterior.advice


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """Networks trained on the same data, the one with the largest evidence, and what their γ say.

    Parameters
    ----------
    fits : dict of Regularised
        By name.
    best : str
        Name of the one with the largest evidence.
    advice : tuple of str
        What γ says about the sizes.
    """

    fits: dict[str, Regularised]
    best: str
    advice: tuple[str, ...]


def fit(
    model: nn.Module, data: Any, likelihood: Likelihood, *, curvature: Curvature = "ggn",
    precision: float | None = None, draws: int = 32, seed: int = 0,
) -> DenseLaplace:  # fmt: skip
    """Laplace's approximation at the weights of a small trained network, with any of three dense curvatures.

    What is not given of `precision` and the noise is at the fixed point α = γ / ‖w‖², β = (N − γ) / Σ residuals². That
    is the maximum of the evidence at these weights, which is known to give precisions that are too small: `lapwing.fit`
    takes it at the mode of the linear model. A Hessian must be positive definite with α added, else an error says so.

    Parameters
    ----------
    model : nn.Module
        A trained network in eval mode; it is not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    curvature : str
        "ggn", "hessian" or "empirical fisher".
    precision : float, optional
        Of the prior; tuned by default.
    draws : int
        Posterior draws.
    seed : int
        Of the order of the data and of all draws.

    Returns
    -------
    DenseLaplace
        With `predict` and `log_evidence`.

    Raises
    ------
    ValueError
        If a Hessian is not positive definite.

    Examples
    --------
    >>> from lapwing import Gaussian
    >>> x = torch.linspace(-1, 1, 30).double()[:, None]
    >>> network = nn.Linear(1, 1).double().eval()
    >>> exact, newton = (fit(network, (x, x), Gaussian(0.1), curvature=kind, precision=1.0) for kind in
    ...     ("hessian", "ggn"))
    >>> torch.allclose(exact.covariance, newton.covariance)  # a linear model: they are equal
    True
    """
    _check_positive("precision", 1.0 if precision is None else precision)
    linear = linearised(checked_network(model), as_batches(data), likelihood)
    return laplace(linear, curvature, Isotropic(precision), ByFixedPoint(), draws, seed)


def train(
    model: nn.Module, data: Any, likelihood: Likelihood, *, curvature: Curvature = "ggn",
    precision: float | None = None, cycles: int = 30, steps: int = 100, start_precision: float = 0.1,
    rtol: float = 1e-3, draws: int = 32, seed: int = 0, progress: bool | Report | None = None,
) -> Regularised:  # fmt: skip
    """A small network trained by all data at once, α and β re-estimated after every `steps` of L-BFGS.

    Steps are damped, log α ← ½ log α + ½ log(γ / ‖w‖²), until they change by less than `rtol`, for at most `cycles`
    rounds; while a Hessian is not positive definite, rounds only optimise. The network is the function that it is in
    eval mode, its weights in double precision while they are trained; the noise starts at the spread of the targets.
    The model itself is not changed.

    Parameters
    ----------
    model : nn.Module
        A network; it is not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    curvature : str
        "ggn", "hessian" or "empirical fisher".
    precision : float, optional
        Of the prior; tuned by default.
    cycles : int
        Rounds of optimising and re-estimating, at most.
    steps : int
        Of L-BFGS in each round.
    start_precision : float
        Of the prior, at first.
    rtol : float
        Relative change of the precisions at which training ends.
    draws : int
        Posterior draws.
    seed : int
        Of the order of the data and of all draws.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.

    Returns
    -------
    Regularised
        Network, posterior and rounds.

    Raises
    ------
    ValueError
        If there are no rounds or steps, or the last Hessian is not positive definite.

    Examples
    --------
    >>> from lapwing import Gaussian
    >>> x = torch.linspace(-1, 1, 40).double()[:, None]
    >>> model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> found = train(model, (x, torch.sin(3 * x)), Gaussian(0.1), progress=False)
    >>> found.converged, 0 < found.posterior.effective_dimension < 10
    (True, True)
    """
    if cycles < 1 or steps < 1:
        raise ValueError(f"cycles is {cycles} and steps {steps}: expected at least one of each")
    _check_positive("start_precision", start_precision)
    batches = [(inputs.double(), targets) for inputs, targets in as_batches(data)]
    network, report = checked_network(deepcopy(model).eval().double()), reporter(progress)
    alpha = start_precision if precision is None else precision
    _check_positive("precision", alpha)
    beta = 1.0
    if likelihood.tunes_noise:
        beta = _initial_noise_precision(torch.cat([targets for _, targets in batches]).double())
    done, moved = list[Cycle](), (1.0, 1.0)
    for number in range(cycles):
        network, loss = _optimised(network, batches, likelihood.with_tuned(beta**-0.5), alpha, steps)
        linear = linearised(network, Batches(batches), likelihood)
        try:
            known = laplace(linear, curvature, Isotropic(), At(alpha, beta), 0, seed)
        except Indefinite:  # at no minimum yet: more steps first
            if number == cycles - 1:
                raise
            continue
        problem = replace(known.posterior.gaussian.problem(), tune_noise=likelihood.tunes_noise)
        done.append(_cycle(known, loss))
        report(f"cycle {number + 1} of {cycles}, γ = {done[-1].effective_dimension:.1f}, α = {alpha:.3g}")
        wanted = _wanted(problem, alpha, beta, curvature)
        moved = (float(np.log(wanted[0] / alpha)) if precision is None else 0.0, float(np.log(wanted[1] / beta)))
        if max(abs(change) for change in moved) < rtol:
            break
        alpha, beta = (value * float(np.exp(0.5 * change)) for value, change in zip((alpha, beta), moved, strict=True))
    report("")
    converged = max(abs(change) for change in moved) < rtol
    if not converged:  # the last change was not followed by the weights
        alpha, beta = done[-1].precision, beta if done[-1].noise_std is None else done[-1].noise_std ** -2
    trained = _loaded(model, network)
    known = laplace(linear, curvature, Isotropic(), At(alpha, beta), draws, seed)
    return Regularised(trained, known.around(checked_network(trained)), tuple(done), converged)


def compare(models: Mapping[str, nn.Module], data: Any, likelihood: Likelihood, **options: Any) -> Comparison:
    """Networks trained by `train` with the same options, the one with the largest evidence, and advice about size.

    Parameters
    ----------
    models : mapping of nn.Module
        Networks by name; they are not changed.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    options : keyword arguments
        As `train` takes them.

    Returns
    -------
    Comparison
        All fits, and the one with the largest evidence.

    Raises
    ------
    ValueError
        If there are no networks.

    Examples
    --------
    >>> from lapwing import Gaussian
    >>> x = torch.linspace(-1, 1, 30).double()[:, None]
    >>> models = {str(k): nn.Sequential(nn.Linear(1, k), nn.Tanh(), nn.Linear(k, 1)) for k in (1, 3)}
    >>> sorted(compare(models, (x, torch.sin(3 * x)), Gaussian(0.1), progress=False).fits)
    ['1', '3']
    """
    if not models:
        raise ValueError("there are no networks to compare: give some by name")
    fits = {name: train(model, data, likelihood, **options) for name, model in models.items()}
    best = max(fits, key=lambda name: fits[name].posterior.log_evidence)
    by_size = sorted(fits, key=lambda name: len(fits[name].posterior.values))
    advice = [f"{name}: {fits[name].advice}" for name in by_size if fits[name].advice]
    for small, large in pairwise(by_size):
        lesser, greater = (fits[name].posterior.effective_dimension for name in (small, large))
        if greater <= (1 + SAME) * lesser:
            advice.append(
                f"{large}: it determines no more weights than {small} (γ = {greater:.1f} and {lesser:.1f}): the "
                "smaller network was enough"
            )
    return Comparison(fits, best, tuple(advice))


def _cycle(known: DenseLaplace, loss: float) -> Cycle:
    """What is noted of a round."""
    noise_std = None
    if known.posterior.given.tunes_noise:
        noise_std = float(known.posterior.gaussian.noise_precision) ** -0.5
    return Cycle(known.precision, noise_std, known.effective_dimension, known.log_evidence, loss)


def _wanted(problem: Problem, alpha: float, beta: float, curvature: str) -> tuple[float, float]:
    """α = γ / ‖w‖² and β = (N − γ) / Σ residuals²."""
    at = Precisions(*torch.tensor([[alpha], [beta]], dtype=torch.float64))
    moments = problem.moments(at)
    gamma, count = float(moments.determined), float(problem.counts)
    if not gamma > 0 or (problem.tune_noise and not gamma < count):
        raise ValueError(
            f"γ is {gamma:.3g} with {count:.0f} observed outputs: the {curvature} cannot tell the precisions "
            "here; give precision and noise_std, more data, or use curvature='ggn'"
        )
    new = mackay_update(problem, at, moments)
    return float(new.prior), float(new.noise)


def _optimised(
    network: Network, batches: list[tuple[Tensor, Tensor]], likelihood: Likelihood, alpha: float, steps: int
) -> tuple[Network, float]:
    """The network after steps of L-BFGS on −log p + ½ α ‖w‖², and that loss."""
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        flat = torch.from_numpy(x).requires_grad_()
        outputs = outputs_at(network.model, {**network.fixed, **network.layout.unflatten(flat)}, inputs)
        loss = 0.5 * alpha * flat.square().sum() - likelihood.log_prob_of_batch(outputs, targets)
        (slope,) = torch.autograd.grad(loss, flat)
        return float(loss.detach()), slope.numpy()

    found = scipy.optimize.minimize(
        both, network.weights.numpy(), jac=True, method="L-BFGS-B",
        options={"maxiter": steps, "ftol": 0, "gtol": GRADIENT, "maxcor": 30},
    )  # fmt: skip
    moved = network.layout.unflatten(torch.from_numpy(found.x))
    return replace(network, fixed={**network.fixed, **moved}), float(found.fun)


def _loaded(model: nn.Module, network: Network) -> nn.Module:
    """A copy of the model, in its own precision, with the weights of a network."""
    copy = deepcopy(model).eval()
    with torch.no_grad():
        for name, tensor in (*copy.named_parameters(), *copy.named_buffers()):
            tensor.copy_(network.fixed[name])
    return copy


def _initial_noise_precision(targets: Tensor) -> float:
    spread = float((targets - targets.mean(0)).square().mean())
    if not spread > 0:
        raise ValueError("all targets are equal, so the noise cannot be found: give Gaussian(noise_std=…)")
    return 1 / spread


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}, expected a positive number")

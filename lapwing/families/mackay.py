"""The classic Bayesian treatment of a small network (MacKay 1992), with dense curvatures.

`train` alternates optimisation of the weights with re-estimates of the prior precision α and the noise precision β from
γ = tr M (M + α)⁻¹, the number of weights that the data determine; `fit` does the last step alone, for a network that is
trained already; `compare` chooses between networks by their evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, cast, final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.func import functional_call

from lapwing.bayes.likelihoods import NO_NOISE, Gaussian, Likelihood
from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.bayes.outputs.links import DEFAULT_LINK
from lapwing.bayes.outputs.spread import Spread
from lapwing.bayes.predictive import Labels, Prediction
from lapwing.linalg.progress import Report, reporter
from lapwing.network.batches import Batches, as_batches
from lapwing.network.hessian import empirical_fisher, gauss_newton, hessian, jacobian_rows
from lapwing.network.jacobian import Network
from lapwing.network.kfac import root_of
from lapwing.training import log_prob

Curvature = Literal["ggn", "hessian", "empirical fisher"]
LARGEST = 5000  # weights: a dense matrix of more would take minutes
NEARLY_ALL = 0.9  # of the weights determined: the network may be too small
SAME = 0.05  # two effective dimensions that differ by less, relatively, are equal
FIXED_POINT_STEPS = 1000
GRADIENT = 1e-5  # of the loss, in nats per unit of a weight, at which a round of optimisation ends early


@final
@dataclass(frozen=True, eq=False)
class DenseLaplace:
    """N(w, (M + α)⁻¹) over all weights of a small network, M by one of three curvatures, and its evidence at w."""

    network: Network
    likelihood: Likelihood  # with its noise
    precision: float  # α
    values: Tensor  # (p,), eigenvalues of M; for a Hessian some may be negative
    vectors: Tensor  # (p, p)
    curvature: Curvature
    log_evidence: float  # log p(y | w) − ½ α ‖w‖² + ½ p log α − ½ log det(M + α)
    effective_dimension: float  # γ
    draws: int = 32
    seed: int = 0

    @property
    def covariance(self) -> Tensor:  # (p, p)
        """(M + α)⁻¹."""
        return (self.vectors / (self.values + self.precision)) @ self.vectors.mT

    @property
    def advice(self) -> str:
        """What γ says about the size of the network, empty where it says nothing."""
        gamma, size = self.effective_dimension, len(self.values)
        if gamma < NEARLY_ALL * size:
            return ""
        return (
            f"the data determine nearly all weights (γ = {gamma:.1f} of {size}): the network may be too small, try a "
            "larger one"
        )

    def functions(self, inputs: Tensor) -> Tensor:  # (draws, *outputs)
        """Joint draws of the outputs of the linearised network, the same at every call."""
        mean, rows = self._rows(inputs)
        normals = Noise(self.seed, SAMPLE).rows(0, len(self.values), self.draws)
        deviations = self.vectors @ (normals / (self.values + self.precision).sqrt()[:, None])
        return mean + (rows @ deviations).permute(2, 0, 1).reshape(-1, *mean.shape).to(mean)

    def predict(self, inputs: Tensor) -> Prediction:
        """The predictive distribution of the linearised network at new inputs."""
        mean, rows = self._rows(inputs)
        turned = rows @ self.vectors
        covariance = torch.einsum("ncp,ndp->ncd", turned / (self.values + self.precision), turned)
        spread = Spread(covariance.diagonal(dim1=1, dim2=2).reshape(mean.shape), covariance, seed=self.seed)
        labels, noise = None, cast(Tensor | str, NO_NOISE)
        if isinstance(self.likelihood, Gaussian):
            noise = self.likelihood.variance_at(mean.shape[1] if mean.ndim > 1 else None)
        else:
            labels = Labels(self.likelihood, DEFAULT_LINK, spread.like(mean))
        return Prediction(
            mean=mean, epistemic_variance=spread.variance.to(mean),
            prior_variance=(rows.square().sum(2) / self.precision).reshape(mean.shape).to(mean),
            noise_variance=noise.to(mean) if isinstance(noise, Tensor) else noise, draws=self.functions(inputs),
            seed=self.seed, labels=labels,
        )  # fmt: skip

    def _rows(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # (n, *outputs), (n, c, p)
        mean = self.network.outputs(inputs)
        return mean, jacobian_rows(self.network, inputs, mean)


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
    """A network trained with the regularisation that its evidence chose."""

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
    """Networks trained on the same data, the one with the largest evidence, and what their γ say."""

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

    >>> x = torch.linspace(-1, 1, 30).double()[:, None]
    >>> network = nn.Linear(1, 1).double().eval()
    >>> exact, newton = (fit(network, (x, x), Gaussian(0.1), curvature=kind, precision=1.0) for kind in
    ...     ("hessian", "ggn"))
    >>> torch.allclose(exact.covariance, newton.covariance)  # a linear model: they are equal
    True
    """
    network, batches = _checked(model), as_batches(data)
    known = _Known.of(network, batches, likelihood, curvature)
    start = 1.0 if precision is None else precision
    _check_positive("precision", start)
    alpha, beta = known.fixed_point(start, tune_prior=precision is None)
    return known.laplace(alpha, beta, draws, seed)


def train(
    model: nn.Module, data: Any, likelihood: Likelihood, *, curvature: Curvature = "ggn",
    precision: float | None = None, cycles: int = 30, steps: int = 100, start_precision: float = 0.1,
    rtol: float = 1e-3, draws: int = 32, seed: int = 0, progress: bool | Report | None = None,
) -> Regularised:  # fmt: skip
    """A small network trained by all data at once, α and β re-estimated after every `steps` of L-BFGS.

    Steps are damped, log α ← ½ log α + ½ log(γ / ‖w‖²), until they change by less than `rtol`, for at most `cycles`
    rounds; while a Hessian is not positive definite, rounds only optimise. The network is the function that it is in
    eval mode, its weights in double precision while they are trained; the noise starts at the spread of the targets.
    The model itself is left alone.

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
    network, report = _checked(deepcopy(model).eval().double()), reporter(progress)
    alpha = start_precision if precision is None else precision
    _check_positive("precision", alpha)
    beta = 1.0
    tune_noise = isinstance(likelihood, Gaussian) and likelihood.noise_std is None
    if tune_noise:
        beta = _initial_noise_precision(torch.cat([targets for _, targets in batches]).double())
    done, moved = list[Cycle](), (1.0, 1.0)
    for number in range(cycles):
        at = _with_noise(likelihood, beta)
        network, loss = _optimised(network, batches, at, alpha, steps)
        known = _Known.of(network, Batches(batches), likelihood, curvature)
        if not known.is_positive(alpha, beta) and number < cycles - 1:
            continue  # at no minimum yet: more steps first
        known.check(alpha, beta)
        done.append(known.cycle(alpha, beta, loss))
        report(f"cycle {number + 1} of {cycles}, γ = {done[-1].effective_dimension:.1f}, α = {alpha:.3g}")
        wanted = known.update(alpha, beta)
        moved = (float(np.log(wanted[0] / alpha)) if precision is None else 0.0, float(np.log(wanted[1] / beta)))
        if max(abs(change) for change in moved) < rtol:
            break
        alpha, beta = (value * float(np.exp(0.5 * change)) for value, change in zip((alpha, beta), moved, strict=True))
    report("")
    converged = max(abs(change) for change in moved) < rtol
    if not converged:  # the last change was not followed by the weights
        alpha, beta = done[-1].precision, beta if done[-1].noise_std is None else done[-1].noise_std ** -2
    trained = _loaded(model, network)
    own = replace(known, network=_checked(trained))
    return Regularised(trained, own.laplace(alpha, beta, draws, seed), tuple(done), converged)


def compare(models: Mapping[str, nn.Module], data: Any, likelihood: Likelihood, **options: Any) -> Comparison:
    """Networks trained by `train` with the same options, the one with the largest evidence, and advice about size.

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


@final
@dataclass(frozen=True, eq=False)
class _Known:
    """What α and β need to know: the spectrum of M at unit noise, the fit and the size of the weights."""

    network: Network
    likelihood: Likelihood
    curvature: Curvature
    values: Tensor  # (p,)
    vectors: Tensor  # (p, p)
    fitted: float  # log p for labels or a given noise; for a noise to be found −½ Σ residuals²
    energy: float  # ‖w‖²
    count: int  # observed outputs

    @staticmethod
    def of(network: Network, batches: Batches, likelihood: Likelihood, curvature: Curvature) -> _Known:
        """By one dense curvature of all data."""
        matrix = _matrix(network, batches, likelihood, curvature)
        values, vectors = torch.linalg.eigh(matrix)
        found, count = 0.0, 0
        for inputs, targets in batches:
            outputs = network.outputs(inputs).double()
            found -= float(_energy(likelihood, outputs, targets))
            count += outputs.numel()
        weights = network.weights.double()
        return _Known(network, likelihood, curvature, values, vectors, found, float(weights.square().sum()), count)

    @property
    def tunes_noise(self) -> bool:
        """Whether β is to be found."""
        return isinstance(self.likelihood, Gaussian) and self.likelihood.noise_std is None

    def is_positive(self, alpha: float, beta: float) -> bool:
        """Whether M + α is the inverse of a covariance."""
        return beta * float(self.values[0]) + alpha > 0

    def check(self, alpha: float, beta: float) -> None:
        """Refuse a matrix that is the inverse of no covariance."""
        lowest = beta * float(self.values[0])
        if not self.is_positive(alpha, beta):
            raise ValueError(
                f"the {self.curvature} is not positive definite: its smallest eigenvalue is {lowest:.3g}, and the "
                f"prior adds only {alpha:.3g}, so the weights are not at a minimum. Optimise further, give a precision "
                f"above {-lowest:.3g}, or use curvature='ggn', which is never negative"
            )

    def gamma(self, alpha: float, beta: float) -> float:
        """tr M (M + α)⁻¹."""
        scaled = beta * self.values
        return float((scaled / (scaled + alpha)).sum())

    def update(self, alpha: float, beta: float) -> tuple[float, float]:
        """α = γ / ‖w‖² and β = (N − γ) / Σ residuals²."""
        self.check(alpha, beta)
        gamma = self.gamma(alpha, beta)
        if not gamma > 0 or (self.tunes_noise and not gamma < self.count):
            raise ValueError(
                f"γ is {gamma:.3g} with {self.count} observed outputs: the {self.curvature} cannot tell the precisions "
                "here; give precision and noise_std, more data, or use curvature='ggn'"
            )
        residuals = max(-2 * self.fitted, 1e-300)
        return gamma / max(self.energy, 1e-300), (self.count - gamma) / residuals if self.tunes_noise else beta

    def fixed_point(self, start: float, *, tune_prior: bool) -> tuple[float, float]:
        """α and β with the weights as they are, by damped steps."""
        alpha = start
        beta = self.count / max(-2 * self.fitted, 1e-300) if self.tunes_noise else 1.0
        if tune_prior:  # above what makes the matrix positive, then down
            alpha = max(alpha, 1.1 * float(-beta * self.values[0]))
        for _ in range(FIXED_POINT_STEPS):
            if not (tune_prior or self.tunes_noise):
                break
            wanted = self.update(alpha, beta)
            moved = (np.log(wanted[0] / alpha) if tune_prior else 0.0, np.log(wanted[1] / beta))
            alpha, beta = (old * float(np.exp(0.5 * step)) for old, step in zip((alpha, beta), moved, strict=True))
            if max(abs(step) for step in moved) < 1e-10:
                break
        self.check(alpha, beta)
        return alpha, beta

    def log_evidence(self, alpha: float, beta: float) -> float:
        """At these weights, by the formula of the class that holds it."""
        scaled = beta * self.values
        fit = self.fitted
        if self.tunes_noise:
            fit = beta * self.fitted + 0.5 * self.count * float(np.log(beta / (2 * np.pi)))
        return fit - 0.5 * alpha * self.energy - 0.5 * float((scaled / alpha).log1p().sum())

    def cycle(self, alpha: float, beta: float, loss: float) -> Cycle:
        """What is noted of a round."""
        noise_std = beta**-0.5 if self.tunes_noise else None
        return Cycle(alpha, noise_std, self.gamma(alpha, beta), self.log_evidence(alpha, beta), loss)

    def laplace(self, alpha: float, beta: float, draws: int, seed: int) -> DenseLaplace:
        """The posterior at these precisions."""
        return DenseLaplace(
            self.network, _with_noise(self.likelihood, beta), alpha, beta * self.values, self.vectors, self.curvature,
            self.log_evidence(alpha, beta), self.gamma(alpha, beta), draws, seed,
        )  # fmt: skip


def _matrix(network: Network, batches: Batches, likelihood: Likelihood, curvature: Curvature) -> Tensor:
    """At unit noise where that is to be found."""
    if curvature == "ggn":
        return gauss_newton(network, batches.inputs, root_of(likelihood, batches.targets))
    pairs = [(inputs, targets) for inputs, targets in batches]

    def energy(outputs: Tensor, targets: Tensor) -> Tensor:
        return _energy(likelihood, outputs, targets)

    if curvature == "hessian":
        return hessian(network, pairs, energy)
    if curvature != "empirical fisher":
        raise ValueError(f"curvature is {curvature!r}, expected 'ggn', 'hessian' or 'empirical fisher'")
    if isinstance(likelihood, Gaussian) and likelihood.noise_std is None:
        raise ValueError("the empirical Fisher does not scale with a noise precision: give Gaussian(noise_std=…)")
    return empirical_fisher(network, pairs, energy)


def _energy(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """−log p; where the noise is to be found ½ Σ residuals², without what does not depend on the weights."""
    if isinstance(likelihood, Gaussian) and likelihood.noise_std is None:
        return 0.5 * (outputs.reshape(-1) - targets.reshape(-1).to(outputs)).square().sum()
    return -log_prob(likelihood, outputs, targets)


def _optimised(
    network: Network, batches: list[tuple[Tensor, Tensor]], likelihood: Likelihood, alpha: float, steps: int
) -> tuple[Network, float]:
    """The network after steps of L-BFGS on −log p + ½ α ‖w‖², and that loss."""
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        flat = torch.from_numpy(x).requires_grad_()
        outputs = functional_call(network.model, {**network.fixed, **network.layout.unflatten(flat)}, (inputs,))
        loss = _energy(likelihood, outputs, targets) + 0.5 * alpha * flat.square().sum()
        (slope,) = torch.autograd.grad(loss, flat)
        return float(loss.detach()), slope.numpy()

    found = scipy.optimize.minimize(
        both, network.weights.numpy(), jac=True, method="L-BFGS-B",
        options={"maxiter": steps, "ftol": 0, "gtol": GRADIENT, "maxcor": 30},
    )  # fmt: skip
    moved = network.layout.unflatten(torch.from_numpy(found.x))
    return replace(network, fixed={**network.fixed, **moved}), float(found.fun)


def _checked(model: nn.Module) -> Network:
    network = Network.of(model)
    if network.layout.size > LARGEST:
        raise ValueError(
            f"the network has {network.layout.size:,} weights, and dense curvatures are for at most {LARGEST:,}: use "
            "lapwing.fit, or train_with_evidence"
        )
    return network


def _loaded(model: nn.Module, network: Network) -> nn.Module:
    """A copy of the model, in its own precision, with the weights of a network."""
    copy = deepcopy(model).eval()
    with torch.no_grad():
        for name, tensor in (*copy.named_parameters(), *copy.named_buffers()):
            tensor.copy_(network.fixed[name])
    return copy


def _with_noise(likelihood: Likelihood, beta: float) -> Likelihood:
    if isinstance(likelihood, Gaussian) and likelihood.noise_std is None:
        return replace(likelihood, noise_std=torch.tensor(beta**-0.5, dtype=torch.float64))
    return likelihood


def _initial_noise_precision(targets: Tensor) -> float:
    spread = float((targets - targets.mean(0)).square().mean())
    if not spread > 0:
        raise ValueError("all targets are equal, so the noise cannot be found: give Gaussian(noise_std=…)")
    return 1 / spread


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}, expected a positive number")

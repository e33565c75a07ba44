"""Ways to climb the ELBO: Bayes by Backprop, and the natural-gradient optimisers VOGN and IVON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Generator, Tensor
from torch.func import grad, vmap

from lapwing.families.variational.backprop import Energy as Expected
from lapwing.families.variational.mean_field import LOG_STD, MeanField
from lapwing.network.data_spec import Counted, Targets
from lapwing.network.input_tree import Sample
from lapwing.training import Schedule, Weights, adam

Energy = Callable[[Weights, Any, Any], Tensor]  # −log p of a batch at given weights, per datum: ()
Local = Literal["exact", "everywhere", "nowhere"]


@final
@dataclass(frozen=True)
class BayesByBackprop:
    """Adam on means and log standard deviations (Blundell et al. 2015).

    `local` says where noise is drawn at the outputs of layers rather than in the weights: "everywhere" a layer allows
    it, or only where this is "exact" (linear layers on vectors), or "nowhere". For convolutions and sequences it is an
    approximation with less gradient noise, at more than twice the cost of noise in the weights. Batch normalisation
    undoes noise that a whole batch shares, so that it is not learnt: such networks need "everywhere".

    Parameters
    ----------
    learning_rate : float
        Of the means.
    local : "everywhere", "exact" or "nowhere"
        Where noise is drawn at the outputs of layers.

    Examples
    --------
    >>> BayesByBackprop(1e-2)
    BayesByBackprop(learning_rate=0.01, local='everywhere')
    """

    learning_rate: float = 1e-3
    local: Local = "everywhere"

    def __post_init__(self) -> None:
        _check_local(self.local)


@final
@dataclass(frozen=True)
class NaturalGradient:
    """VOGN (Khan et al. 2018) or IVON (Shen et al. 2024): a running estimate h of the curvature gives the variances.

    With ess = p / η the posterior has precision ess · h + 1 / prior_variance. VOGN averages squared gradients of single
    data at a draw of the weights. IVON estimates h by twice the gradient by the variance (Price's theorem): its own
    estimate where noise is drawn in the weights, a far less noisy one at the outputs of layers, `local` as in
    `BayesByBackprop`. `initial_curvature` is h at the start, per datum.

    Parameters
    ----------
    kind : "ivon" or "vogn"
        How the curvature is estimated.
    learning_rate : float
        Of the means.
    momentum : float
        Of the gradients.
    curvature_decay : float
        Of the running curvature.
    initial_curvature : float
        h at the start, per datum.
    local : "everywhere", "exact" or "nowhere"
        Where noise is drawn at the outputs of layers.

    Raises
    ------
    ValueError
        If the kind is not known.

    Examples
    --------
    >>> NaturalGradient("ivon").learning_rate
    0.05
    """

    kind: Literal["ivon", "vogn"] = "vogn"
    learning_rate: float = 0.05
    momentum: float = 0.9
    curvature_decay: float = 0.98
    initial_curvature: float = 0.02
    local: Local = "everywhere"

    def __post_init__(self) -> None:
        if self.kind not in ("ivon", "vogn"):
            raise ValueError(f"kind is {self.kind!r}, expected 'ivon' or 'vogn'")
        _check_local(self.local)


Method = BayesByBackprop | NaturalGradient


def _check_local(local: str) -> None:
    if local not in ("exact", "everywhere", "nowhere"):
        raise ValueError(f"local is {local!r}, expected 'exact', 'everywhere' or 'nowhere'")


def at_layers(local: Local, network: MeanField) -> frozenset[str]:
    """The weights whose noise is drawn at the outputs of their layers."""
    chosen = {
        "exact": network.exact,
        "everywhere": network.exact | network.approximate,
        "nowhere": frozenset[str](),
    }
    return chosen[local]


class IVON(torch.optim.Optimizer):
    """Improved variational online Newton, for any training loop: `with optimiser.sampled(generator): loss.backward()`.

    `ess` is p / η, the number of data over the temperature, and the loss is a mean over data. The Gaussian it holds has
    the parameters as means and `variance` as variances. Several draws before a `step` are averaged. Drawn weights are
    taken back even when the loss raises.

    Parameters
    ----------
    params : list of Tensor
        Whose values are the means.
    lr : float
        Learning rate.
    ess : float
        p / η, the number of data over the temperature.
    prior_precision : float
        Of every parameter.
    momentum : float
        Of the gradients.
    curvature_decay : float
        Of the running curvature.
    initial_curvature : float
        h at the start, per datum.

    Raises
    ------
    ValueError
        If a number that must be positive is not.

    Examples
    --------
    >>> w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    >>> optimiser, generator = IVON([w], lr=0.1, ess=50, prior_precision=5.0), torch.Generator().manual_seed(0)
    >>> for _ in range(1000):
    ...     with optimiser.sampled(generator):
    ...         (0.5 * (w - 2.0).square().sum()).backward()
    ...     optimiser.step()
    >>> w.detach()  # 50 · 2 / (50 + 5)
    tensor([1.8..., 1.8..., 1.8...], dtype=torch.float64)
    """

    corrected = True

    def __init__(
        self, params: list[Tensor], *, lr: float, ess: float, prior_precision: float, momentum: float = 0.9,
        curvature_decay: float = 0.999, initial_curvature: float = 0.1,
    ) -> None:  # fmt: skip
        positive = {"lr": lr, "ess": ess, "prior_precision": prior_precision, "initial_curvature": initial_curvature}
        for name, value in positive.items():
            if not value > 0:
                raise ValueError(f"{name} is {value}, expected a positive number")
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": curvature_decay})
        self.ess, self.shrinkage, self.count = ess, prior_precision / ess, 0
        self.seen: dict[Tensor, list[tuple[Tensor, Tensor]]] = {}  # gradients and curvatures since the last step
        for weight in self.every():
            self.state[weight]["curvature"] = torch.full_like(weight, initial_curvature, requires_grad=False)
            self.state[weight]["momentum"] = torch.zeros_like(weight, requires_grad=False)

    def every(self) -> Iterator[Tensor]:
        """All parameters."""
        for group in self.param_groups:
            yield from group["params"]

    def variance(self, weight: Tensor) -> Tensor:
        """The posterior variance of a parameter: 1 / (ess · h + prior precision)."""
        return 1 / (self.ess * (self.state[weight]["curvature"] + self.shrinkage))

    @contextmanager
    def sampled(self, generator: Generator) -> Iterator[None]:
        """The parameters drawn from the posterior inside; their means, and no gradients, before and afterwards."""
        means = [weight.detach().clone() for weight in self.every()]
        noises = []
        for weight in self.every():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device)
            noises.append(noise * self.variance(weight).sqrt())
            weight.grad = None
        try:
            with torch.no_grad():
                for weight, noise in zip(self.every(), noises, strict=True):
                    weight += noise
            yield
            with torch.no_grad():
                for weight, noise in zip(self.every(), noises, strict=True):
                    if weight.grad is not None:
                        self.seen.setdefault(weight, []).append((weight.grad, self.curvature(weight, noise)))
        finally:
            with torch.no_grad():
                for weight, mean in zip(self.every(), means, strict=True):
                    weight.copy_(mean)
                    weight.grad = None

    def curvature(self, weight: Tensor, noise: Tensor) -> Tensor:
        """A fresh estimate of the expected Hessian's diagonal: the gradient times the noise over the variance."""
        return torch.as_tensor(weight.grad) * noise / self.variance(weight)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move means and curvatures by the gradients taken at the draws since the last step.

        Parameters
        ----------
        closure : None
            Not taken.

        Raises
        ------
        ValueError
            If nothing was drawn since the last step, or a closure is given.
        """
        if closure is not None:
            raise ValueError("call backward() inside sampled(), then step() without a closure")
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"]:
                if weight not in self.seen:
                    continue
                gradient, fresh = (torch.stack(parts).mean(0) for parts in zip(*self.seen.pop(weight), strict=True))
                state, forget = self.state[weight], 1 - group["decay"]
                old = state["curvature"]
                # the last term is what keeps the curvature positive, whatever the estimate (Lin et al. 2020)
                correction = 0.5 * forget**2 * (old - fresh).square() / (old + self.shrinkage)
                state["curvature"] = old + forget * (fresh - old) + (correction if self.corrected else 0)
                state["momentum"].lerp_(gradient, 1 - group["momentum"])
                direction = state["momentum"] / (1 - group["momentum"] ** self.count) + self.shrinkage * weight
                weight -= group["lr"] * direction / (state["curvature"] + self.shrinkage)


@final
class VOGN(IVON):
    """Variational online Gauss-Newton: the curvature is the mean square of the gradients of single data.

    Set `squares`, a tensor per parameter, inside `sampled`. They are never negative, so they need no correction.

    Parameters
    ----------
    params : list of Tensor
        Whose values are the means.
    lr : float
        Learning rate.
    ess : float
        p / η, the number of data over the temperature.
    prior_precision : float
        Of every parameter.
    momentum : float
        Of the gradients.
    curvature_decay : float
        Of the running curvature.
    initial_curvature : float
        h at the start, per datum.

    Raises
    ------
    ValueError
        If a number that must be positive is not.

    Examples
    --------
    >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    >>> optimiser = VOGN([w], lr=0.1, ess=50, prior_precision=5.0)
    >>> with optimiser.sampled(torch.Generator().manual_seed(0)):
    ...     (0.5 * (w - 2.0).square().sum()).backward()
    ...     optimiser.squares = {w: w.grad.square()}
    >>> optimiser.step()
    >>> bool((w > 0).all()), bool((optimiser.variance(w) > 0).all())
    (True, True)
    """

    corrected = False
    squares: dict[Tensor, Tensor]

    def curvature(self, weight: Tensor, noise: Tensor) -> Tensor:
        """The mean of squared gradients at the draw."""
        del noise
        return self.squares[weight]


@final
class Natural:
    """A learner by VOGN or IVON; what is not random follows Adam.

    `expected` is the energy under Gaussian weights, for IVON, and `energy` that at given weights, for VOGN.
    """

    def __init__(
        self, expected: Expected, energy: Energy, start: Weights, random: tuple[str, ...], learnt: list[str],
        method: NaturalGradient, *, ess: float, prior_precision: float, schedule: Schedule | None, samples: int = 1,
    ) -> None:  # fmt: skip
        self.expected, self.energy, self.random, self.method = expected, energy, random, method
        self.schedule, self.samples = schedule, samples
        self.current = {
            name: tensor.detach().clone() for name, tensor in start.items() if not name.endswith(LOG_STD)
        }  # fmt: skip
        for name in learnt:
            if name in self.current:
                self.current[name].requires_grad_()
        kind = VOGN if method.kind == "vogn" else IVON
        self.natural = kind(
            [self.current[name] for name in random], lr=method.learning_rate, ess=ess, prior_precision=prior_precision,
            momentum=method.momentum, curvature_decay=method.curvature_decay,
            initial_curvature=method.initial_curvature,
        )  # fmt: skip
        others = [self.current[name] for name in learnt if name in self.current and name not in random]
        self.plain = adam()(others) if others else None

    def step(self, inputs: Any, targets: Any, generator: Generator, done: float) -> float:
        """Gradients of the expected energy and an update; the loss is −log p per datum."""
        for group in self.natural.param_groups:
            group["lr"] = self.method.learning_rate * (1.0 if self.schedule is None else self.schedule(done))
        if self.plain is not None:
            self.plain.zero_grad()
        gradients = self._at_draws if isinstance(self.natural, VOGN) else self._by_moments
        total = gradients(inputs, targets, generator)
        if math.isfinite(total):
            self.natural.step()
            if self.plain is not None:
                self.plain.step()
        return total

    def _by_moments(self, inputs: Sample, targets: Targets, generator: Generator) -> float:
        """Gradients by mean and variance: the expected gradient and half of the expected curvature."""
        variances = {name: self.natural.variance(self.current[name]).requires_grad_() for name in self.random}
        loss = self.expected(self.current, variances, inputs, targets, generator)
        if bool(loss.isfinite()):
            loss.backward()
            for name, variance in variances.items():
                weight = self.current[name]
                if weight.grad is not None and variance.grad is not None:
                    self.natural.seen[weight] = [(weight.grad, 2 * variance.grad)]
                weight.grad = None
        return float(loss.detach())

    def _at_draws(self, inputs: Sample, targets: Targets, generator: Generator) -> float:
        """Gradients and squared gradients of single data at draws of the weights."""
        total = 0.0
        for _ in range(self.samples):
            with self.natural.sampled(generator):
                loss = self.energy(self.current, inputs, targets)
                total += float(loss.detach()) / self.samples
                if not math.isfinite(total):
                    return total
                self.natural.squares = self._squares(inputs, targets)  # type: ignore[attr-defined]
                loss.backward()
        for weight in [] if self.plain is None else self.plain.param_groups[0]["params"]:
            weight.grad /= self.samples
        return total

    def _squares(self, inputs: Sample, targets: Targets) -> dict[Tensor, Tensor]:
        """The mean over data of squared gradients, by one batched reverse pass."""
        if not isinstance(inputs, Tensor):
            raise ValueError("VOGN takes inputs of one tensor: use NaturalGradient('ivon') or BayesByBackprop()")
        fixed = {name: tensor.detach() for name, tensor in self.current.items() if name not in self.random}
        chosen = {name: self.current[name].detach() for name in self.random}

        def of_datum(weights: Weights, x: Tensor, y: Targets) -> Tensor:
            alone = Counted(*(part[None] for part in y)) if isinstance(y, Counted) else y[None]
            return self.energy({**fixed, **weights}, x[None], alone)

        gradients: dict[str, Tensor] = vmap(grad(of_datum), in_dims=(None, 0, 0))(chosen, inputs, targets)
        return {self.current[name]: values.square().mean(0) for name, values in gradients.items()}

    def weights(self) -> Weights:
        """Means and log standard deviations, as the mean field keeps them."""
        values = {name: tensor.detach().clone() for name, tensor in self.current.items()}
        return {
            **values,
            **{name + LOG_STD: self.natural.variance(self.current[name]).log() / 2 for name in self.random},
        }

    def state(self) -> dict[str, Any]:
        """The values and what both optimisers remember."""
        plain = None if self.plain is None else self.plain.state_dict()
        values = {name: tensor.detach().clone() for name, tensor in self.current.items()}
        return {"values": values, "natural": self.natural.state_dict(), "count": self.natural.count, "plain": plain}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, in place."""
        with torch.no_grad():
            for name, tensor in self.current.items():
                tensor.copy_(state["values"][name])
        self.natural.load_state_dict(state["natural"])
        self.natural.count = state["count"]
        if self.plain is not None:
            self.plain.load_state_dict(state["plain"])

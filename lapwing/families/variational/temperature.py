"""How strongly the prior counts: ELBO = Σ E log p(y | f) − η KL, and what η should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

from torch import nn

Units = int | Literal["hidden", "weights"] | None


@final
@dataclass(frozen=True)
class Balanced:
    """η = τ p / N: a posterior that neither collapses to the prior nor to a point as the network grows.

    p counts the data, and N is `units`: "hidden" for the hidden units of a network with one hidden layer (the N of the
    theory), "weights" for the number of random weights, usual for deep networks, or a number. It is asked for where
    the network does not have exactly one hidden layer. Without `tau`, τ is tuned on held-out data; a value found on a
    narrow network serves wider ones too.

    Parameters
    ----------
    tau : float, optional
        τ; tuned on validation data by default.
    units : "hidden", "weights", int or None
        N.

    Raises
    ------
    ValueError
        If τ or N is not positive, or `units` is not known.

    Examples
    --------
    >>> Balanced(tau=0.01, units=64).tau
    0.01
    """

    tau: float | None = None
    units: Units = None

    def __post_init__(self) -> None:
        if self.tau is not None and not 0 < self.tau < math.inf:
            raise ValueError(f"tau is {self.tau}, expected a positive number, or None to tune it on held-out data")
        if isinstance(self.units, int) and self.units < 1:
            raise ValueError(f"units is {self.units}, expected a positive number, 'hidden' or 'weights'")
        if isinstance(self.units, str) and self.units not in ("hidden", "weights"):
            raise ValueError(f"units is {self.units!r}, expected a positive number, 'hidden' or 'weights'")


@final
@dataclass(frozen=True)
class Cold:
    """A fixed η in (0, 1]: one is Bayes' rule, less is a cold posterior, proportional to likelihood^(1/η) × prior.

    Parameters
    ----------
    eta : float
        In (0, 1].

    Raises
    ------
    ValueError
        If η is not in (0, 1].

    Examples
    --------
    >>> Cold(0.1)
    Cold(eta=0.1)
    """

    eta: float

    def __post_init__(self) -> None:
        if not 0 < self.eta <= 1:
            raise ValueError(f"eta is {self.eta}, expected a number above 0 and at most 1; pass a number to go beyond")


Temperature = Balanced | Cold | float


@final
@dataclass(frozen=True)
class Heat:
    """The η that was used, and where it came from.

    Parameters
    ----------
    eta : float
        η.
    data : int
        p, the number of data.
    tau : float, optional
        τ, where η came from it.
    units : int, optional
        N, where η came from it.
    """

    eta: float
    data: int  # p
    tau: float | None = None
    units: int | None = None  # N

    def __str__(self) -> str:
        if self.tau is None:
            return f"η = {self.eta:.4g}"
        return f"η = τ p / N = {self.tau:.4g} · {self.data:,} / {self.units:,} = {self.eta:.4g}"


def resolve(temperature: Temperature, model: nn.Module, weights: int, data: int) -> Heat:
    """η for a network with so many random weights and so many data."""
    if isinstance(temperature, Cold):
        return Heat(temperature.eta, data)
    if not isinstance(temperature, Balanced):
        if not 0 < float(temperature) < math.inf:
            raise ValueError(f"temperature is {temperature}, expected a positive number, Balanced(...) or Cold(...)")
        return Heat(float(temperature), data)
    if temperature.tau is None:
        raise ValueError("tau is tuned on held-out data: pass validation=(x, y), or Balanced(tau=...) with a number")
    units = count_units(temperature.units, model, weights)
    return Heat(temperature.tau * data / units, data, temperature.tau, units)


def count_units(units: Units, model: nn.Module, weights: int) -> int:
    """N: as given, or the hidden units of a network that has exactly one hidden layer."""
    if isinstance(units, int):
        return units
    if units == "weights":
        return weights
    hidden = hidden_units(model)
    if hidden is None:
        raise ValueError(
            "the N of η = τ p / N is ambiguous: this network does not consist of two linear layers, so it has no "
            f"single number of hidden units; pass Balanced(tau, units='weights') for its {weights:,} random weights, "
            "or Balanced(tau, units=...) with a number"
        )
    return hidden


def hidden_units(model: nn.Module) -> int | None:
    """The width of the hidden layer of a network whose only weights are those of two linear layers."""
    layers = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    match layers:
        case [nn.Linear() as first, nn.Linear() as second] if first.out_features == second.in_features:
            return first.out_features
    return None

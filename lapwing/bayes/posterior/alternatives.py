"""What predicts new labels in place of the posterior itself, where held-out data were there to compare them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from lapwing.bayes.fits import Packed
from lapwing.bayes.likelihoods.spread import Link
from lapwing.bayes.methods.interface import WeightPosterior
from lapwing.bayes.methods.packing import prefixed, with_kind
from lapwing.bayes.predictive import Prediction
from lapwing.bayes.predictive.observation import MixedObservation, Observation, ObservationModel
from lapwing.linalg.operators import LinearOperator

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Centre, Posterior


@final
@dataclass(frozen=True, eq=False)
class New:
    """New inputs, and what the posterior says of them."""

    inputs: Any
    features: LinearOperator
    prediction: Prediction


class Alternative(ABC):
    """What makes the probabilities of new labels; the posterior goes on ranking inputs."""

    kind: ClassVar[str]  # its name in files

    @abstractmethod
    def observation(self, posterior: Posterior, at: New) -> ObservationModel:
        """The outputs at new inputs, and how uncertain they are."""

    @abstractmethod
    def pack(self) -> Packed:
        """Plain values, with the kind among them, and tensors."""


@final
@dataclass(frozen=True)
class Itself(Alternative):
    """The posterior."""

    kind = "posterior"

    def observation(self, posterior: Posterior, at: New) -> ObservationModel:  # noqa: ARG002
        return at.prediction.observation

    def pack(self) -> Packed:
        return {"kind": self.kind}, {}


@final
@dataclass(frozen=True)
class ScaledNetwork(Alternative):
    """The network's own outputs over a temperature: one is the raw network."""

    temperature: float
    kind = "network"

    def observation(self, posterior: Posterior, at: New) -> ObservationModel:
        return posterior.network_observation(at.inputs, self.temperature)

    def pack(self) -> Packed:
        return {"kind": self.kind, "temperature": self.temperature}, {}


@final
@dataclass(frozen=True, eq=False)
class OtherGaussian(Alternative):
    """Another Gaussian over the same weights: at another precision, or by Laplace around the network's own outputs."""

    gaussian: WeightPosterior
    link: Link
    centre: Centre
    kind = "gaussian"

    def observation(self, posterior: Posterior, at: New) -> ObservationModel:
        other = posterior.with_gaussian(self.gaussian)
        centre = other.outputs_at(at.features, at.inputs, self.centre)
        spread = other.uncertainty_at(at.features, centre).spread.like(centre)
        of = other.likelihood
        return Observation(of, self.link, spread, of.as_rows(centre), posterior.temperature)

    def pack(self) -> Packed:
        plain, tensors = with_kind(self.gaussian)
        known = {
            "precision": self.gaussian.prior.precision, "deviations": self.gaussian.deviations,
            "mean": self.gaussian.mean,
        }  # fmt: skip
        told = {"kind": self.kind, "link": self.link, "centre": self.centre, "gaussian": plain}
        return told, {**known, **prefixed("gaussian", tensors)}


@final
@dataclass(frozen=True, eq=False)
class Averaged(Alternative):
    """Probabilities averaged over several, each with its share."""

    parts: tuple[Alternative, ...]
    shares: tuple[float, ...]
    kind = "average"

    def observation(self, posterior: Posterior, at: New) -> ObservationModel:
        return MixedObservation.of([part.observation(posterior, at) for part in self.parts], self.shares)

    def pack(self) -> Packed:
        packed = [part.pack() for part in self.parts]
        plain = {"kind": self.kind, "shares": list(self.shares), "parts": [told for told, _ in packed]}
        tensors = [prefixed(str(number), known) for number, (_, known) in enumerate(packed)]
        return plain, {name: value for part in tensors for name, value in part.items()}


def averaged(candidates: Mapping[str, Alternative], shares: Mapping[str, float]) -> Alternative | None:
    """The average of candidates by their shares; None where all of it is the posterior itself."""
    used = {name: share for name, share in shares.items() if share > 0}
    parts = tuple(candidates[name] for name in used)
    if len(parts) > 1:
        return Averaged(parts, tuple(used.values()))
    return None if parts[0] == Itself() else parts[0]

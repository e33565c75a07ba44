"""How outputs with a spread become observations: those of one posterior, or of several that count alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.likelihoods.spread import Link, Spread
from lapwing.bayes.predictive.distributions import mixture_of

Change = Callable[[Tensor], Tensor]


class ObservationModel(Protocol):
    """What a prediction asks of the way from outputs to observations."""

    @property
    def likelihood(self) -> Likelihood:
        """What an observation says about its outputs, with its noise."""

    @property
    def link(self) -> Link:
        """How logits become probabilities."""

    @property
    def spread(self) -> Spread:
        """How uncertain the outputs are."""

    @property
    def outputs(self) -> Tensor:  # (n, …, c) or (n,)
        """The mean of the outputs, their classes last."""

    @property
    def distribution(self) -> Distribution:
        """That of a new observation."""

    @property
    def probabilities(self) -> Tensor:
        """Of every class, which come last."""

    @property
    def noise_variance(self) -> Tensor | str:
        """The variance of an observation around its output, in a shape that broadcasts, or why it is not known."""

    @property
    def mutual_information(self) -> Tensor:
        """What a new observation would say about the outputs, in nats."""

    @property
    def between_variance(self) -> Tensor:  # (n, …, c) or (n,)
        """The part of the variance of the outputs that lies between members."""

    @property
    def between_information(self) -> Tensor:
        """What a new observation would say of which member is right, in nats."""

    @property
    def members(self) -> tuple[Observation, ...]:
        """What it is a mixture of, one or several."""

    @property
    def member_shares(self) -> tuple[float, ...]:
        """The share of each member."""

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """An observation for each uniform number, of drawn outputs (draws, *outputs)."""

    def with_noise(self, noise_std: Any, shape: torch.Size) -> ObservationModel:
        """The same with this noise at inputs whose predictions have a shape."""

    def blurred(self, temperature: float) -> ObservationModel:
        """The same with logits divided by a temperature, or for numbers with variances times it."""

    def map_tensors(self, of_outputs: Change, of_draws: Change) -> ObservationModel:
        """The same with every tensor changed: those whose first axis is the data, and draws, whose second one is."""


@final
@dataclass(frozen=True, eq=False)
class Observation:
    """How Gaussian outputs become observations: the likelihood, the link, and all outputs with their classes last."""

    likelihood: Likelihood
    link: Link
    spread: Spread
    outputs: Tensor  # (n, …, c) or (n,), their mean
    temperature: float = 1.0  # logits are divided by it

    def __post_init__(self) -> None:
        self.likelihood.checked_link(self.link)
        if self.spread.draws is not None and "monte carlo" not in self.likelihood.links:  # memory that nobody asks for
            object.__setattr__(self, "spread", replace(self.spread, draws=None))

    @property
    def scaled(self) -> tuple[Tensor, Spread]:
        """The outputs and their spread, divided by the temperature."""
        factor = 1 / self.temperature
        return factor * self.outputs, self.spread.scaled(factor)

    @property
    def distribution(self) -> Distribution:
        """That of a new observation."""
        return self.likelihood.predictive(self.link, *self.scaled)

    @property
    def probabilities(self) -> Tensor:
        """Of every class, which come last."""
        return self.likelihood.probabilities(self.link, *self.scaled)

    @property
    def noise_variance(self) -> Tensor | str:
        """The variance of an observation around its output, in a shape that broadcasts, or why it is not known."""
        return self.likelihood.noise_variance(self.outputs, self.spread)

    @property
    def mutual_information(self) -> Tensor:
        """What a new observation would say about the outputs, in nats."""
        return self.likelihood.mutual_information(*self.scaled)

    @property
    def members(self) -> tuple[Observation, ...]:
        """This one."""
        return (self,)

    @property
    def member_shares(self) -> tuple[float, ...]:
        """All of it."""
        return (1.0,)

    @property
    def between_variance(self) -> Tensor:
        """None: there is one member."""
        return torch.zeros_like(self.outputs)

    @property
    def between_information(self) -> Tensor:
        """None: there is one member."""
        return self.outputs.new_zeros(self.likelihood.targets_shape(self.outputs.shape))

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """An observation for each uniform number, of drawn outputs (draws, *outputs)."""
        return self.likelihood.sampled(outputs / self.temperature, uniform)

    def with_noise(self, noise_std: Any, shape: torch.Size) -> Observation:
        """The same with this noise at inputs whose predictions have a shape."""
        return replace(self, likelihood=self.likelihood.with_noise_at(noise_std, shape))

    def blurred(self, temperature: float) -> Observation:
        """The same with logits divided by a temperature, or for numbers with variances times it."""
        if self.likelihood.has_classes:
            return replace(self, outputs=self.outputs / temperature, spread=self.spread.scaled(1 / temperature))
        wide = self.likelihood.with_variance_times(temperature)
        return replace(self, likelihood=wide, spread=self.spread.scaled(temperature**0.5))

    def map_tensors(self, of_outputs: Change, of_draws: Change) -> Observation:
        """The same with every tensor changed: those whose first axis is the data, and draws, whose second one is."""
        spread = self.spread.map_tensors(of_outputs, of_draws)
        likelihood = self.likelihood.map_tensors(of_outputs)
        return replace(self, likelihood=likelihood, spread=spread, outputs=of_outputs(self.outputs))


@final
@dataclass(frozen=True, eq=False)
class MixedObservation:
    """Observations of several members, each with its share: densities and probabilities are averages over them.

    `outputs` and `spread` are the moments of the mixture: what members share, and what lies between them.
    """

    parts: tuple[Observation, ...]
    shares: tuple[float, ...]  # which sum to one

    @staticmethod
    def of(members: Sequence[ObservationModel], shares: Sequence[float] | None = None) -> MixedObservation:
        """The mixture of members, by default one in which all count alike; those of mixtures become members."""
        given = shares or [1 / len(members)] * len(members)
        every = [one for member in members for one in member.members]
        counted = [share * own for member, share in zip(members, given, strict=True) for own in member.member_shares]
        return MixedObservation(tuple(every), tuple(counted))

    @property
    def members(self) -> tuple[Observation, ...]:
        """Each of which is Gaussian outputs."""
        return self.parts

    @property
    def member_shares(self) -> tuple[float, ...]:
        """Which sum to one."""
        return self.shares

    @property
    def likelihood(self) -> Likelihood:
        """That of the first member; others may differ in their noise."""
        return self.parts[0].likelihood

    @property
    def link(self) -> Link:
        """That of the first member."""
        return self.parts[0].link

    @cached_property
    def outputs(self) -> Tensor:
        """Their mean."""
        return self._average([part.outputs for part in self.parts])

    @cached_property
    def spread(self) -> Spread:
        """Within members, on average, and between them."""
        spreads, away = [part.spread for part in self.parts], self._away
        covariance = self._average_where_known([spread.covariance for spread in spreads])
        if covariance is not None:
            covariance = covariance + self._average([one[..., :, None] * one[..., None, :] for one in away])
        centred = self._average_where_known([spread.centred_variance for spread in spreads])
        if centred is not None:
            apart = [(one - one.mean(-1, keepdim=True)).square().sum(-1) for one in away]
            centred = centred + self._average(apart)
        return Spread(
            self._average([spread.variance for spread in spreads]) + self.between_variance, covariance,
            seed=spreads[0].seed, centred=centred,
            centred_prior=self._average_where_known([spread.centred_prior for spread in spreads]),
        )  # fmt: skip

    @property
    def distribution(self) -> Distribution:
        """That of a new observation: the mixture itself."""
        return mixture_of([part.distribution for part in self.parts], self.shares)

    @property
    def probabilities(self) -> Tensor:
        """Of every class, which come last: averages over the members."""
        return self._average([part.probabilities for part in self.parts])

    @property
    def noise_variance(self) -> Tensor | str:
        """The average over the members, or why it is not known."""
        total: Tensor | float = 0.0
        for part, share in zip(self.parts, self.shares, strict=True):
            found = part.noise_variance
            if isinstance(found, str):
                return found
            total = total + share * found
        return torch.as_tensor(total)

    @property
    def mutual_information(self) -> Tensor:
        """What a new observation would say about the outputs: within members, on average, and between them."""
        return self._average([part.mutual_information for part in self.parts]) + self.between_information

    @property
    def between_variance(self) -> Tensor:
        """The variance of the members' means."""
        return self._average([one.square() for one in self._away])

    @property
    def between_information(self) -> Tensor:
        """The entropy of a new observation less the average of its entropies under each member."""
        each = [part.distribution for part in self.parts]
        alone = self._average([one.entropy() for one in each])
        return (mixture_of(each, self.shares).entropy() - alone).clamp_min(0).to(self.parts[0].outputs)

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """An observation for each uniform number; the drawn outputs are those of one member after the other."""
        pairs = zip(self.parts, outputs.chunk(len(self.parts)), uniform.chunk(len(self.parts)), strict=True)
        return torch.cat([part.sampled(*own) for part, *own in pairs])

    def with_noise(self, noise_std: Any, shape: torch.Size) -> MixedObservation:
        """The same with this noise in every member."""
        return replace(self, parts=tuple(part.with_noise(noise_std, shape) for part in self.parts))

    def blurred(self, temperature: float) -> MixedObservation:
        """The same with logits divided by a temperature, or for numbers with variances times it, those between too."""
        parts = tuple(part.blurred(temperature) for part in self.parts)
        if self.likelihood.has_classes:
            return replace(self, parts=parts)
        root, mean = temperature**0.5, self.outputs
        moved = tuple(replace(part, outputs=mean + root * (part.outputs - mean)) for part in parts)
        return replace(self, parts=moved)

    def map_tensors(self, of_outputs: Change, of_draws: Change) -> MixedObservation:
        """The same with every tensor changed: those whose first axis is the data, and draws, whose second one is."""
        return replace(self, parts=tuple(part.map_tensors(of_outputs, of_draws) for part in self.parts))

    @property
    def _away(self) -> list[Tensor]:
        return [part.outputs - self.outputs for part in self.parts]

    def _average(self, values: Sequence[Tensor]) -> Tensor:
        total = self.shares[0] * values[0]
        for share, value in zip(self.shares[1:], values[1:], strict=True):
            total = total + share * value
        return total

    def _average_where_known(self, values: Sequence[Tensor | None]) -> Tensor | None:
        known = [value for value in values if value is not None]
        return self._average(known) if len(known) == len(values) else None

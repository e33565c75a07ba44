"""What a posterior says about new inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from lapwing.bayes.likelihoods import Likelihood
from lapwing.bayes.likelihoods.spread import Spread
from lapwing.bayes.methods.outputs import of_draws
from lapwing.bayes.noise import PREDICTIVE, Noise
from lapwing.bayes.predictive.observation import MixedObservation, Observation, ObservationModel
from lapwing.linalg.operators import as_tensor


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """What a posterior says at new inputs. Every field has the outputs' shape.

    `epistemic_variance` is what more data would remove, `aleatoric_variance` the noise of an observation. For class
    labels outputs are logits, and `probs` what follows from them; for counts they are logarithms of rates. What a new
    observation itself will be is in `expectation`, `interval`, `log_prob` and `distribution`.

    Where a posterior was compared with simpler candidates on held-out data, `probs`, `entropy`, `log_prob` and what
    else speaks of a new observation average over them, by how well each does there. Scores that rank inputs (`novelty`,
    `mutual_information`, `score_variance`), `mean`, `epistemic_variance` and draws are the posterior's always.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([1.1, 1.9, 3.2]).double()
    >>> posterior = lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.1)), prior=lw.Isotropic(1.0))
    >>> low, high = posterior.predict(torch.tensor([[4.0]]).double()).interval(0.9)
    >>> low, high
    (tensor([3.8992], dtype=torch.float64), tensor([4.3806], dtype=torch.float64))
    """

    mean: Tensor
    epistemic_variance: Tensor
    prior_variance: Tensor | str  # of the function before the data, or why it is not known
    observation: ObservationModel
    draws: Tensor | None = None  # (draws, *outputs), the joint function draws behind `samples`
    standard_error: Tensor | None = None  # Monte-Carlo error of the variance; None where it is closed form
    bounds: tuple[Tensor, Tensor] | None = None  # on the epistemic variance, where asked for
    seed: int = 0
    simpler: ObservationModel | None = None  # what predicts labels in place of the posterior, by held-out data

    def __repr__(self) -> str:
        """Sizes and where to look, not thousands of numbers."""
        of = self.likelihood
        asks = [name for name in of.asks if name != "novelty" or not isinstance(self.prior_variance, str)]
        return f"Prediction({len(self)} inputs, {of.described(self.observation.outputs)}): {', '.join(asks)}"

    @property
    def likelihood(self) -> Likelihood:
        """What an observation says about its outputs, with the noise of this prediction."""
        return self.observation.likelihood

    @property
    def probs(self) -> Tensor:
        """The predictive probability of each class, or for Bernoulli of each target being one."""
        found = self._predicted.probabilities
        return found.movedim(-1, self.likelihood.class_axis(found)) if found.ndim > 1 else found

    @property
    def noise_variance(self) -> Tensor | str:
        """The variance of the noise in a shape that broadcasts against the mean, or why it is not known."""
        return self.observation.noise_variance

    @property
    def aleatoric_variance(self) -> Tensor:
        """The variance of the noise in an observation."""
        found = self.noise_variance
        if isinstance(found, str):
            raise ValueError(found)
        return found.expand(self.mean.shape)

    @property
    def variance(self) -> Tensor:
        """The variance of a new observation, epistemic plus aleatoric; of an output that is a logit or log rate."""
        return (
            self.epistemic_variance + self.aleatoric_variance if self.likelihood.adds_noise else self.epistemic_variance
        )

    @property
    def between_variance(self) -> Tensor:
        """The part of `epistemic_variance` that lies between the members of a mixture: that of their means."""
        rows, of = self.observation.between_variance, self.likelihood
        return of.observed(rows.movedim(-1, of.class_axis(rows)))

    @property
    def within_variance(self) -> Tensor:
        """The part of `epistemic_variance` that members have by themselves, on average."""
        return (self.epistemic_variance - self.between_variance).clamp_min(0)

    @property
    def std(self) -> Tensor:
        """The standard deviation of a new observation, or of an output that is a log rate."""
        if self.likelihood.has_classes:
            raise ValueError(
                "the standard deviation of a label is not defined: use probs, entropy, mutual_information, or "
                "epistemic_variance of the logits"
            )
        return self.variance.sqrt()

    @property
    def score_variance(self) -> Tensor:  # (n,)
        """The epistemic variance as a score, one number an input: a mean over its outputs, for classes of centred ones.

        A shift common to all logits changes no probability and keeps its prior variance, so that of classes the logits
        less their mean over the classes count.
        """
        return self._left / self.mean[:1].numel()

    @property
    def _left(self) -> Tensor:  # (n,)
        return _per_input(self.likelihood.scored(self.epistemic_variance, self.observation.spread.centred_variance))

    @property
    def novelty(self) -> Tensor:  # (n,)
        """Posterior over prior variance of each input, in [0, 1]: how little the data said here.

        Both are sums over its outputs; for classes over class-centred logits, as in `score_variance`.
        """
        if isinstance(self.prior_variance, str):
            raise ValueError(self.prior_variance)
        left = self._left
        prior = _per_input(self.likelihood.scored(self.prior_variance, self.observation.spread.centred_prior))
        safe = prior.clamp_min(torch.finfo(prior.dtype).tiny)
        return torch.where(prior > 0, left / safe, 0).clamp(0, 1)

    @property
    def distribution(self) -> Distribution:
        """The predictive distribution of a new observation."""
        return self._predicted.distribution

    @property
    def _predicted(self) -> ObservationModel:
        """What new observations are predicted by."""
        return self.simpler or self.observation

    @property
    def expectation(self) -> Tensor:
        """The mean of a new observation: for numbers `mean`, for counts their mean rate, for labels 0 and 1 `probs`."""
        return self._known("the mean of an observation", lambda: self.distribution.mean)

    @property
    def entropy(self) -> Tensor:
        """The entropy of a new observation, in nats; differential for numbers."""
        return self._known("entropy", lambda: self.distribution.entropy())

    @property
    def mutual_information(self) -> Tensor:
        """What a new observation here would say about the function, in nats.

        For Gaussian noise ½ log(1 + epistemic / aleatoric); for class labels the entropy of the mean probabilities over
        draws less their mean entropy. In a mixture `between_information` is part of it.
        """
        return self._known("mutual information", lambda: self.observation.mutual_information)

    @property
    def between_information(self) -> Tensor:
        """The part of `mutual_information` that lies between the members of a mixture: which of them is right."""
        return self._known("mutual information", lambda: self.observation.between_information)

    @property
    def samples(self) -> Tensor:  # (draws, *targets)
        """New observations: joint function draws with independent noise, the same at every call.

        For class labels one label for every draw and datum.
        """
        if self.draws is None:
            raise ValueError("this posterior was inferred with draws=0: infer it with draws=32 to have samples")
        shape, of = self.target_shape, self.likelihood
        normals = Noise(self.seed, PREDICTIVE).rows(0, shape.numel(), len(self.draws)).mT.reshape(-1, *shape)
        rows = self.draws.movedim(of.class_axis(self.mean), -1)
        return self.observation.sampled(rows, torch.special.ndtr(normals).to(self.mean.device))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds a new observation with this probability.

        Parameters
        ----------
        level : float
            Probability between 0 and 1.

        Returns
        -------
        tuple of Tensor
            Lower and upper ends.

        Raises
        ------
        ValueError
            For class labels, which have no interval.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        if self.likelihood.has_classes:
            raise ValueError("class labels have no interval: use probs, or mean and epistemic_variance of the logits")
        known, ends = self.distribution, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        low, high = (self._known("an interval", partial(known.icdf, end)).to(self.mean) for end in ends)
        return low, high

    def log_prob(self, targets: Any) -> Tensor:
        """The log predictive density of observed targets; zero for class numbers that the likelihood ignores.

        Parameters
        ----------
        targets : Tensor
            What was observed, one target for each prediction.

        Returns
        -------
        Tensor
            One log density for each target.

        Raises
        ------
        ValueError
            If the shapes differ.
        """
        targets, expected, of = as_tensor(targets), self.target_shape, self.likelihood
        if targets.shape != expected:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit predictions of shape {tuple(self.mean.shape)}: "
                f"expected {tuple(expected)}"
            )
        distribution, ignored = self.distribution, of.ignored(targets)
        kept = torch.where(ignored, 0, targets) if bool(ignored.any()) else targets
        if targets.numel():
            kept = of.checked(of.flat_targets(kept), self.observation.outputs.numel())
        known = kept.reshape(expected).to(self.mean.device)
        known = known.to(self.mean) if known.is_floating_point() else known
        return distribution.log_prob(known).to(self.mean).masked_fill(ignored.to(self.mean.device), 0)

    def with_noise(self, noise_std: Any) -> Prediction:
        """The same prediction where observations have this noise: a number, or anything that fits `mean`.

        For noise that was given per datum, which a posterior cannot know at new inputs.

        Parameters
        ----------
        noise_std : float or Tensor
            Standard deviation of the noise.

        Returns
        -------
        Prediction
            A new one.
        """
        return replace(self, observation=self.observation.with_noise(noise_std, self.mean.shape))

    @property
    def target_shape(self) -> torch.Size:
        """The shape of targets: that of the outputs, without the axis of the classes where there is one."""
        return self.likelihood.targets_shape(self.observation.outputs.shape)

    def _known(self, what: str, value: Callable[[], Tensor]) -> Tensor:
        try:
            found = value()
        except NotImplementedError:
            found = torch.tensor(torch.nan)
        if bool(found.isnan().all()) and found.numel():
            name = type(self.likelihood).__name__
            raise ValueError(f"{what} is not known under {name}: use log_prob, or epistemic_variance of the outputs")
        return found

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row per datum and one set of columns per output."""
        import pandas as pd

        columns = self._label_columns() if self.likelihood.has_classes else self._number_columns()
        if not isinstance(self.prior_variance, str):
            columns["novelty"] = self.novelty
        return pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})

    def _number_columns(self) -> dict[str, Tensor]:
        columns = {"mean": self.mean, "epistemic_std": self.epistemic_variance.sqrt()}
        if self.likelihood.adds_noise:
            low, high = self.interval(0.9)
            columns = {"mean": self.mean, "std": self.std, "epistemic_std": columns["epistemic_std"],
                       "lower_90": low, "upper_90": high}  # fmt: skip
        if self.mean.ndim == 1:
            return columns
        outputs = range(self.mean.shape[1])
        return {f"{name}_{output}": value[:, output] for output in outputs for name, value in columns.items()}

    def _label_columns(self) -> dict[str, Tensor]:
        if self.mean.ndim > 2:
            raise ValueError(
                f"a table has one row per datum, and these outputs have shape {tuple(self.mean.shape)}: use probs, "
                "entropy and the other fields"
            )
        probs = self.probs.reshape(len(self.mean), -1)
        columns = {f"prob_{k}": probs[:, k] for k in range(probs.shape[1])}
        if self.target_shape != self.mean.shape:  # one label for all outputs of a datum
            columns = {"label": probs.argmax(1), **columns}
        columns["entropy"] = self.entropy.reshape(len(probs), -1).sum(1)
        columns["mutual_information"] = self.mutual_information.reshape(len(probs), -1).sum(1)
        return columns

    def cpu(self) -> Prediction:
        """The same prediction in main memory."""
        return self.to("cpu")

    def to(self, device: torch.device | str) -> Prediction:
        """The same prediction on a device."""
        return self.map_tensors(lambda tensor: tensor.to(device), lambda tensor: tensor.to(device))

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Prediction:
        """Some of the data: an integer, a slice, a mask or a list of indices."""
        chosen = [index] if isinstance(index, int) else index
        return self.map_tensors(lambda tensor: tensor[chosen], lambda tensor: tensor[:, chosen])

    def map_tensors(self, of_outputs: Callable[[Tensor], Tensor], of_draws: Callable[[Tensor], Tensor]) -> Prediction:
        """The same with every tensor changed: those whose first axis is the data, and draws, whose second one is."""
        prior, error = self.prior_variance, self.standard_error
        return replace(
            self,
            mean=of_outputs(self.mean),
            epistemic_variance=of_outputs(self.epistemic_variance),
            prior_variance=prior if isinstance(prior, str) else of_outputs(prior),
            observation=self.observation.map_tensors(of_outputs, of_draws),
            simpler=None if self.simpler is None else self.simpler.map_tensors(of_outputs, of_draws),
            draws=None if self.draws is None else of_draws(self.draws),
            standard_error=None if error is None else of_outputs(error),
            bounds=None if self.bounds is None else (of_outputs(self.bounds[0]), of_outputs(self.bounds[1])),
        )


def _per_input(values: Tensor) -> Tensor:  # (n, …) -> (n,)
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def from_draws(
    functions: Tensor, likelihood: Likelihood, prior: Tensor | str, *, mixture: bool = False, seed: int = 0
) -> Prediction:
    """What draws of the outputs (draws, *outputs) say: their mean and variance, and for labels averages over them.

    `prior` are draws of the outputs before the data, or why there are none.
    The draws of a `mixture`, such as an ensemble, are all there are: their variance is no estimate of another, and the
    density of an observation is the mean of its densities under each.

    >>> from lapwing import Gaussian
    >>> drawn = torch.tensor([[[1.0], [0.0]], [[3.0], [0.0]]])
    >>> found = from_draws(drawn, Gaussian(0.5), "not known", mixture=True)
    >>> found.mean.flatten().tolist(), found.variance.flatten().tolist()
    ([2.0, 0.0], [1.25, 0.25])
    """
    if mixture and isinstance(prior, str):
        found = mixed([_certain(outputs, likelihood, prior) for outputs in functions])
        return replace(found, draws=functions, seed=seed)
    mean, draws, of = functions.mean(0), len(functions), likelihood
    alone = mixture or draws == 1
    spread, known = _around_mean(functions, of, exhaustive=alone), prior
    if not isinstance(prior, str):
        before = _around_mean(prior, of, exhaustive=len(prior) == 1)
        spread = replace(spread, centred_prior=before.centred_variance)
        known = of.observed(of.to_output_layout(before.variance, mean))
    link = "monte carlo" if "monte carlo" in of.links else of.links[0]
    variance = of.observed(of.to_output_layout(spread.variance, mean))
    return Prediction(
        mean=of.observed(mean),
        epistemic_variance=variance,
        prior_variance=known,
        observation=Observation(of, link, spread, of.as_rows(mean)),
        draws=functions,
        standard_error=None if alone else variance * (2 / (draws - 1)) ** 0.5,
        seed=seed,
    )


def _certain(outputs: Tensor, of: Likelihood, prior: str) -> Prediction:
    """What outputs say that are known: of one network by itself."""
    rows = of.as_rows(outputs)
    none = torch.zeros_like(rows)
    covariance = torch.diag_embed(none) if outputs.ndim > 1 and of.are_linked(outputs) else None
    link = "monte carlo" if "monte carlo" in of.links else of.links[0]
    zeros = of.observed(torch.zeros_like(outputs))
    seen = Observation(of, link, Spread(none, covariance, none[None]), rows)
    return Prediction(of.observed(outputs), zeros, prior, seen, draws=outputs[None])


def _around_mean(functions: Tensor, of: Likelihood, *, exhaustive: bool) -> Spread:
    """The spread of draws around their mean; they are all there are, or an estimate of more."""
    mean, draws = functions.mean(0), len(functions)
    found = of_draws((functions - mean).movedim(of.class_axis(mean), -1), full=of.are_linked(mean))
    return found if exhaustive else found.with_variances_times(draws / (draws - 1))


def mixed(parts: Sequence[Prediction]) -> Prediction:
    """The mixture of predictions at the same inputs that count alike, one for each member.

    Densities and probabilities are means over the members. Variances are those within members, on average, plus the
    variance of their means; draws are those of one member after the other, and novelty compares with the mean of their
    prior variances.
    """
    if len(parts) == 1:
        return parts[0]
    means = torch.stack([part.mean for part in parts])
    between = means.var(0, correction=0)
    return Prediction(
        mean=means.mean(0),
        epistemic_variance=torch.stack([part.epistemic_variance for part in parts]).mean(0) + between,
        prior_variance=_prior(parts),
        observation=MixedObservation.of([part.observation for part in parts]),
        draws=_all_or_none([part.draws for part in parts], torch.cat),
        standard_error=_all_or_none(
            [part.standard_error for part in parts], lambda errors: torch.stack(errors).norm(dim=0) / len(errors)
        ),
        bounds=_bounds(parts, between),
        seed=parts[0].seed,
        simpler=_simpler(parts),
    )


def _simpler(parts: Sequence[Prediction]) -> MixedObservation | None:
    """What predicts new observations where some member is simpler than its posterior."""
    if all(part.simpler is None for part in parts):
        return None
    return MixedObservation.of([part.simpler or part.observation for part in parts])


def _all_or_none(values: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """What joins the values of all members, or None where one has none."""
    known = [value for value in values if value is not None]
    return join(known) if len(known) == len(values) else None


def _prior(parts: Sequence[Prediction]) -> Tensor | str:
    known = [part.prior_variance for part in parts]
    unknown = [prior for prior in known if isinstance(prior, str)]
    return unknown[0] if unknown else torch.stack([prior for prior in known if not isinstance(prior, str)]).mean(0)


def _bounds(parts: Sequence[Prediction], between: Tensor) -> tuple[Tensor, Tensor] | None:
    """On the variance of the mixture, where every member has them."""
    known = [part.bounds for part in parts if part.bounds is not None]
    if len(known) < len(parts):
        return None
    lower, upper = (torch.stack(ends).mean(0) + between for ends in zip(*known, strict=True))
    return lower, upper

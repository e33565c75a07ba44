"""What a posterior says about new inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from lapwing.bayes.likelihoods import Categorical, Curved, Gaussian, Likelihood
from lapwing.bayes.noise import PREDICTIVE, Noise
from lapwing.bayes.outputs.links import Link
from lapwing.bayes.outputs.spread import Spread
from lapwing.bayes.predictive.axes import as_rows, class_axis
from lapwing.bayes.predictive.probabilities import checked
from lapwing.bayes.predictive.spreads import of_draws
from lapwing.linalg.operators import as_tensor


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """How outputs become observations of another kind: class labels, counts, numbers with a noise of their own.

    The likelihood, the link, and what the outputs of one datum have in common.
    """

    likelihood: Curved
    link: Link
    spread: Spread
    temperature: float = 1.0  # logits are divided by it
    outputs: Tensor | None = None  # the mean of all outputs, where a prediction shows only some of them

    def __post_init__(self) -> None:
        checked(self.likelihood, self.link)


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """A Gaussian prediction per output; every field has the outputs' shape.

    `epistemic_variance` is what more data would remove, `aleatoric_variance` the noise of an observation. For class
    labels outputs are logits, and `probs` what follows from them; for counts they are logarithms of rates. What a new
    observation itself will be is in `expectation`, `interval`, `log_prob` and `distribution`.
    """

    mean: Tensor
    epistemic_variance: Tensor
    prior_variance: Tensor | str  # of the function before the data, or why it is not known
    noise_variance: Tensor | str  # the noise, or why it is not known
    draws: Tensor | None = None  # (draws, *outputs), the joint function draws behind `samples`
    standard_error: Tensor | None = None  # Monte-Carlo error of the variance; None where it is closed form
    bounds: tuple[Tensor, Tensor] | None = None  # on the epistemic variance, where asked for
    seed: int = 0
    labels: Labels | None = None

    def __repr__(self) -> str:
        """Shapes and where to look, not thousands of numbers."""
        shape = tuple(self.mean.shape)
        if self.labels is None:
            return f"Prediction of outputs {shape}: see mean, std, interval(0.9), epistemic_variance, novelty"
        kind = type(self.labels.likelihood).__name__
        return (
            f"Prediction of outputs {shape}, {kind}: see expectation or probs, epistemic_variance, novelty, log_prob()"
        )

    @property
    def probs(self) -> Tensor:
        """The predictive probability of each class, or for Bernoulli of each target being one."""
        if self.labels is None:
            raise ValueError(
                "probabilities are for class labels; this prediction is of numbers: use mean, std, interval"
            )
        found = self.labels.likelihood.probabilities(self.labels.link, *self._cooled(self.labels))
        return found.movedim(-1, class_axis(self.labels.likelihood, found)) if found.ndim > 1 else found

    @property
    def aleatoric_variance(self) -> Tensor:
        """The variance of the noise in an observation."""
        if isinstance(self.noise_variance, str):
            raise ValueError(self.noise_variance)
        return self.noise_variance.expand(self.mean.shape)

    @property
    def variance(self) -> Tensor:
        """The variance of a new observation, epistemic plus aleatoric; of an output that is a logit or log rate."""
        if self.labels is not None and isinstance(self.noise_variance, str):
            return self.epistemic_variance
        return self.epistemic_variance + self.aleatoric_variance

    @property
    def std(self) -> Tensor:
        """The standard deviation of a new observation, or of an output as for `variance`."""
        return self.variance.sqrt()

    @property
    def novelty(self) -> Tensor:
        """Posterior over prior variance of the function, in [0, 1]: how little the data said here."""
        prior = self.prior_variance
        if isinstance(prior, str):
            raise ValueError(prior)
        safe = prior.clamp_min(torch.finfo(prior.dtype).tiny)
        return torch.where(prior > 0, self.epistemic_variance / safe, 0).clamp(0, 1)

    @property
    def distribution(self) -> Distribution:
        """The predictive distribution of a new observation."""
        if self.labels is None:
            return Normal(self.mean, self.std)
        return self.labels.likelihood.predictive(self.labels.link, *self._cooled(self.labels))

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
        draws less their mean entropy.
        """
        if self.labels is None:
            return 0.5 * (self.epistemic_variance / self.aleatoric_variance).log1p()
        return self.labels.likelihood.mutual_information(*self._cooled(self.labels))

    @property
    def samples(self) -> Tensor:  # (draws, *targets)
        """New observations: joint function draws with independent noise, the same at every call.

        For class labels one label for every draw and datum.
        """
        if self.draws is None:
            raise ValueError("this posterior was inferred with draws=0: infer it with draws=32 to have samples")
        shape = self._targets_shape()
        normals = Noise(self.seed, PREDICTIVE).rows(0, shape.numel(), len(self.draws)).mT.reshape(-1, *shape)
        if self.labels is None:
            return self.draws + self.aleatoric_variance.sqrt() * normals.to(self.mean)
        uniform = torch.special.ndtr(normals).to(self.mean)
        rows = self.draws.movedim(class_axis(self.labels.likelihood, self.mean), -1)
        return self.labels.likelihood.sampled(rows / self.labels.temperature, uniform)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds a new observation with this probability."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        if self.labels is not None and self.labels.likelihood.has_classes:
            raise ValueError("class labels have no interval: use probs, or mean and epistemic_variance of the logits")
        ends = (torch.tensor(at, dtype=torch.float64) for at in ((1 - level) / 2, (1 + level) / 2))
        if self.labels is None:
            half = torch.special.ndtri(next(ends)).to(self.mean) * self.std
            return self.mean + half, self.mean - half
        known = self.distribution
        low, high = (self._known("an interval", partial(known.icdf, end)).to(self.mean) for end in ends)
        return low, high

    def log_prob(self, targets: Any) -> Tensor:
        """The log predictive density of observed targets; zero for class numbers that the likelihood ignores."""
        targets, expected = as_tensor(targets), self._targets_shape()
        if targets.shape != expected:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit predictions of shape {tuple(self.mean.shape)}: "
                f"expected {tuple(expected)}"
            )
        if self.labels is None:
            return self.distribution.log_prob(targets.to(self.mean))
        rows, of = self._outputs(self.labels).numel(), self.labels.likelihood
        ignored = targets == (of.ignore_index if isinstance(of, Categorical) else torch.inf)
        kept = torch.where(ignored, 0, targets) if bool(ignored.any()) else targets
        shape = (-1,) if isinstance(of, Categorical) else (len(kept), -1) if kept.ndim > 2 else kept.shape
        known = of.checked(kept.reshape(shape), rows).reshape(expected).to(self.mean.device)
        known = known.to(self.mean) if known.is_floating_point() else known
        return self.distribution.log_prob(known).to(self.mean).masked_fill(ignored.to(self.mean.device), 0)

    def with_noise(self, noise_std: Any) -> Prediction:
        """The same prediction where observations have this noise: a number, or anything that fits `mean`.

        For noise that was given per datum, which a posterior cannot know at new inputs.
        """
        if self.labels is not None:
            raise ValueError("a noise can be given to predictions of numbers with Gaussian noise only")
        return replace(self, noise_variance=Gaussian(noise_std).std_of(self.mean.shape).square().to(self.mean))

    def _outputs(self, labels: Labels) -> Tensor:
        return self.mean if labels.outputs is None else labels.outputs

    @property
    def target_shape(self) -> torch.Size:
        """The shape of targets: that of the outputs, without the axis of the classes where there is one."""
        return self._targets_shape()

    def _targets_shape(self) -> torch.Size:
        shape = self.mean.shape
        return shape if self.labels is None else self.labels.likelihood.targets_shape(self._outputs(self.labels).shape)

    def _cooled(self, labels: Labels) -> tuple[Tensor, Spread]:
        cool = 1 / labels.temperature
        return cool * self._outputs(labels), labels.spread.scaled(cool)

    def _known(self, what: str, value: Callable[[], Tensor]) -> Tensor:
        try:
            found = value()
        except NotImplementedError:
            found = torch.tensor(torch.nan)
        if self.labels is not None and bool(found.isnan().all()) and found.numel():
            name = type(self.labels.likelihood).__name__
            raise ValueError(f"{what} is not known under {name}: use log_prob, or epistemic_variance of the outputs")
        return found

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row per datum and one set of columns per output."""
        import pandas as pd

        if self.labels is not None and self.labels.likelihood.has_classes:
            return self._label_frame(pd)
        columns = {"mean": self.mean, "epistemic_std": self.epistemic_variance.sqrt(), "novelty": self.novelty}
        if self.labels is None or isinstance(self.noise_variance, Tensor):
            low, high = self.interval(0.9)
            columns = {"mean": self.mean, "std": self.std, "epistemic_std": columns["epistemic_std"],
                       "lower_90": low, "upper_90": high}  # fmt: skip
        if self.mean.ndim == 1:
            return pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})
        return pd.DataFrame({
            f"{name}_{output}": value[:, output].cpu().numpy()
            for output in range(self.mean.shape[1])
            for name, value in columns.items()
        })  # fmt: skip

    def _label_frame(self, pd: Any) -> Any:
        if self.mean.ndim > 2:
            raise ValueError(
                f"a table has one row per datum, and these outputs have shape {tuple(self.mean.shape)}: use probs, "
                "entropy and the other fields"
            )
        probs = self.probs.reshape(len(self.mean), -1)
        columns = {f"prob_{k}": probs[:, k] for k in range(probs.shape[1])}
        if self._targets_shape() != self.mean.shape:  # one label for all outputs of a datum
            columns = {"label": probs.argmax(1), **columns}
        columns["entropy"] = self.entropy.reshape(len(probs), -1).sum(1)
        columns["mutual_information"] = self.mutual_information.reshape(len(probs), -1).sum(1)
        if not isinstance(self.prior_variance, str):
            columns["novelty"] = self.novelty.reshape(len(probs), -1).mean(1)
        return pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})

    def cpu(self) -> Prediction:
        """The same prediction in main memory."""
        return self.moved(lambda tensor: tensor.cpu(), lambda tensor: tensor.cpu())

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Prediction:
        """Some of the data: an integer, a slice, a mask or a list of indices."""
        chosen = [index] if isinstance(index, int) else index
        return self.moved(lambda tensor: tensor[chosen], lambda tensor: tensor[:, chosen])

    def moved(self, of_outputs: Callable[[Tensor], Tensor], of_draws: Callable[[Tensor], Tensor]) -> Prediction:
        """The same with every tensor changed: those whose first axis is the data, and draws, whose second one is."""
        changes: dict[str, Any] = {name: of_outputs(getattr(self, name)) for name in ("mean", "epistemic_variance")}
        if not isinstance(self.prior_variance, str):
            changes["prior_variance"] = of_outputs(self.prior_variance)
        if self.draws is not None:
            changes["draws"] = of_draws(self.draws)
        if self.bounds is not None:
            changes["bounds"] = tuple(of_outputs(bound) for bound in self.bounds)
        if self.labels is not None:
            spread = self.labels.spread
            moved = Spread(
                of_outputs(spread.variance),
                None if spread.covariance is None else of_outputs(spread.covariance),
                None if spread.draws is None else of_draws(spread.draws),
                spread.seed,
            )
            outputs = None if self.labels.outputs is None else of_outputs(self.labels.outputs)
            changes["labels"] = replace(self.labels, spread=moved, outputs=outputs)
        if isinstance(self.noise_variance, Tensor) and self.noise_variance.shape == self.mean.shape:
            changes["noise_variance"] = of_outputs(self.noise_variance)
        if self.standard_error is not None:
            changes["standard_error"] = of_outputs(self.standard_error)
        return replace(self, **changes)


def from_draws(
    functions: Tensor, likelihood: Likelihood, prior_variance: Tensor | str, *, mixture: bool = False, seed: int = 0
) -> Prediction:
    """What draws of the outputs (draws, *outputs) say: their mean and variance, and for labels averages over them.

    The draws of a `mixture`, such as an ensemble, are all there are: their variance is no estimate of another.

    >>> drawn = torch.tensor([[[1.0], [0.0]], [[3.0], [0.0]]])
    >>> found = from_draws(drawn, Gaussian(0.5), "not known", mixture=True)
    >>> found.mean.flatten().tolist(), found.variance.flatten().tolist()
    ([2.0, 0.0], [1.25, 0.25])
    """
    mean, draws = functions.mean(0), len(functions)
    alone = mixture or draws == 1
    variance, labels, noise = functions.var(0, correction=0 if alone else 1), None, _noise(likelihood, functions)
    if not isinstance(likelihood, Gaussian):
        link = "monte carlo" if "monte carlo" in likelihood.links else likelihood.links[0]
        labels = Labels(likelihood, link, _spread(likelihood, functions), outputs=as_rows(likelihood, mean))
        mean, variance = likelihood.observed(mean), likelihood.observed(variance)
        prior_variance = prior_variance if isinstance(prior_variance, str) else likelihood.observed(prior_variance)
    error = None if alone else variance * (2 / (draws - 1)) ** 0.5
    return Prediction(mean, variance, prior_variance, noise, functions, error, seed=seed, labels=labels)


def _noise(likelihood: Likelihood, functions: Tensor) -> Tensor | str:
    mean = functions.mean(0)
    if isinstance(likelihood, Gaussian):
        found = likelihood.variance_at(mean.shape[1] if mean.ndim > 1 else None)
    else:
        found = likelihood.noise_variance(mean, _spread(likelihood, functions))
    return found.to(mean) if isinstance(found, Tensor) else found


def _spread(likelihood: Likelihood, functions: Tensor) -> Spread:
    """What draws show around their mean, the classes last."""
    mean = functions.mean(0)
    return of_draws((functions - mean).movedim(class_axis(likelihood, mean), -1))

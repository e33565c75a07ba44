"""What a posterior says about new inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal

from lapwing.bayes import likelihoods
from lapwing.bayes.links import Link, probabilities
from lapwing.bayes.noise import PREDICTIVE, Noise
from lapwing.bayes.spreads import Spread
from lapwing.linalg.operators import as_tensor


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """How outputs become class labels: the likelihood, the link, and what the outputs of one datum have in common."""

    likelihood: likelihoods.Curved
    link: Link
    spread: Spread
    temperature: float = 1.0  # logits are divided by it


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """A Gaussian prediction per output; every field has the outputs' shape.

    `epistemic_variance` is what more data would remove, `aleatoric_variance` the noise of an observation. For class
    labels outputs are logits, and `probs` what follows from them.
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

    @property
    def probs(self) -> Tensor:
        """The predictive probability of each class, or for Bernoulli of each target being one."""
        labels = self._labels("probabilities")
        cool = 1 / labels.temperature
        return probabilities(labels.likelihood, labels.link, cool * self.mean, labels.spread.scaled(cool))

    @property
    def aleatoric_variance(self) -> Tensor:
        """The variance of the noise in an observation."""
        if isinstance(self.noise_variance, str):
            raise ValueError(self.noise_variance)
        return self.noise_variance.expand(self.mean.shape)

    @property
    def variance(self) -> Tensor:
        """The variance of a new observation, epistemic plus aleatoric; of a logit, where targets are class labels."""
        return self.epistemic_variance if self.labels else self.epistemic_variance + self.aleatoric_variance

    @property
    def std(self) -> Tensor:
        """The standard deviation of a new observation."""
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
        binary = isinstance(self.labels.likelihood, likelihoods.Bernoulli)
        return Bernoulli(self.probs) if binary else Categorical(self.probs)

    @property
    def entropy(self) -> Tensor:
        """The entropy of a new observation, in nats; differential for numbers."""
        return self.distribution.entropy()

    @property
    def mutual_information(self) -> Tensor:
        """What a new observation here would say about the function, in nats.

        For Gaussian noise ½ log(1 + epistemic / aleatoric); for class labels the entropy of the mean probabilities over
        draws less their mean entropy.
        """
        if self.labels is None:
            return 0.5 * (self.epistemic_variance / self.aleatoric_variance).log1p()
        outputs = (self.mean + self.labels.spread.deviations()) / self.labels.temperature
        if isinstance(self.labels.likelihood, likelihoods.Bernoulli):
            each, mean = Bernoulli(logits=outputs), Bernoulli(outputs.sigmoid().mean(0))
            return (mean.entropy() - each.entropy().mean(0)).clamp_min(0)
        softmax = outputs.softmax(-1)
        average = Categorical(softmax.mean(0)).entropy()
        return (average - Categorical(softmax).entropy().mean(0)).clamp_min(0)

    @property
    def samples(self) -> Tensor:  # (draws, *outputs)
        """New observations: joint function draws with independent noise, the same at every call.

        For class labels one label for every draw and datum.
        """
        if self.draws is None:
            raise ValueError("this posterior was inferred with draws=0: infer it with draws=32 to have samples")
        if self.labels is not None:
            return self._sampled_labels(self.draws)
        table = Noise(self.seed, PREDICTIVE).rows(0, self.mean.numel(), len(self.draws))
        return self.draws + self.aleatoric_variance.sqrt() * table.mT.reshape(self.draws.shape).to(self.mean)

    def _sampled_labels(self, draws: Tensor) -> Tensor:
        labels = self._labels("labels")
        outputs = draws / labels.temperature
        binary = isinstance(labels.likelihood, likelihoods.Bernoulli)
        size = self.mean.numel() if binary else len(self.mean)
        normals = Noise(self.seed, PREDICTIVE).rows(0, size, len(draws)).mT
        uniform = torch.special.ndtr(normals).to(self.mean)
        if binary:
            return (uniform.reshape(draws.shape) < outputs.sigmoid()).to(self.mean)
        return (uniform[:, :, None] > outputs.softmax(-1).cumsum(-1)[..., :-1]).sum(-1)

    def _labels(self, what: str) -> Labels:
        if self.labels is None:
            raise ValueError(f"{what} are for class labels; this prediction is of numbers: use mean, std, interval")
        return self.labels

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds a new observation with this probability."""
        if self.labels is not None:
            raise ValueError("class labels have no interval: use probs, or mean and epistemic_variance of the logits")
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)).to(self.mean) * self.std
        return self.mean - half, self.mean + half

    def log_prob(self, targets: Any) -> Tensor:
        """The log predictive density of observed targets."""
        targets, classes = as_tensor(targets), self.labels is not None
        expected = self.mean.shape
        if self.labels is not None and isinstance(self.labels.likelihood, likelihoods.Categorical):
            targets, expected = targets.long(), self.mean.shape[:-1]
        if targets.shape != expected:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit predictions of shape {tuple(self.mean.shape)}: "
                f"expected {tuple(expected)}"
            )
        return self.distribution.log_prob(targets if classes and targets.dtype == torch.long else targets.to(self.mean))

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row per datum and one set of columns per output."""
        import pandas as pd

        if self.labels is not None:
            return self._label_frame(pd)
        names = ["mean", "std", "epistemic_std", "lower_90", "upper_90"]
        values = [self.mean, self.std, self.epistemic_variance.sqrt(), *self.interval(0.9)]
        if self.mean.ndim == 1:
            return pd.DataFrame({name: value.cpu().numpy() for name, value in zip(names, values, strict=True)})
        return pd.DataFrame({
            f"{name}_{output}": value[:, output].cpu().numpy()
            for output in range(self.mean.shape[1])
            for name, value in zip(names, values, strict=True)
        })  # fmt: skip

    def _label_frame(self, pd: Any) -> Any:
        probs = self.probs.reshape(len(self.mean), -1)
        columns = {f"prob_{k}": probs[:, k] for k in range(probs.shape[1])}
        if isinstance(self.labels and self.labels.likelihood, likelihoods.Categorical):
            columns = {"label": probs.argmax(1), **columns}
        columns["entropy"] = self.entropy.reshape(len(probs), -1).sum(1)
        columns["mutual_information"] = self.mutual_information.reshape(len(probs), -1).sum(1)
        if not isinstance(self.prior_variance, str):
            columns["novelty"] = self.novelty.reshape(len(probs), -1).mean(1)
        return pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})

    def cpu(self) -> Prediction:
        """The same prediction in main memory."""
        return self._map(lambda tensor: tensor.cpu(), lambda tensor: tensor.cpu())

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Prediction:
        """Some of the data: an integer, a slice, a mask or a list of indices."""
        chosen = [index] if isinstance(index, int) else index
        return self._map(lambda tensor: tensor[chosen], lambda tensor: tensor[:, chosen])

    def _map(self, of_outputs: Any, of_draws: Any) -> Prediction:
        changes = {name: of_outputs(getattr(self, name)) for name in ("mean", "epistemic_variance")}
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
            changes["labels"] = replace(self.labels, spread=moved)
        if self.standard_error is not None:
            changes["standard_error"] = of_outputs(self.standard_error)
        return replace(self, **changes)

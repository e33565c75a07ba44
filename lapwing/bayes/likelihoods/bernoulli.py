"""Targets of 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, distributions
from torch.nn.functional import logsigmoid

from lapwing.bayes.likelihoods.expectation import Expectation, as_given, logistic, own_variances
from lapwing.bayes.likelihoods.interface import Likelihood, check_one_each, counted
from lapwing.bayes.likelihoods.spread import Link, Spread, binary_logits

LINKED = 256  # labels of a datum whose covariances are kept


@final
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Targets of 0 or 1 with a logit each: outputs and targets are (n,), or (n, m) for m labels a datum.

    −log p is convex in the outputs, so B is its Hessian σ (1 − σ).

    >>> import torch
    >>> Bernoulli().log_prob(torch.zeros(3).double(), torch.tensor([0.0, 1.0, 1.0])).exp()
    tensor(0.1250, dtype=torch.float64)
    """

    has_classes: ClassVar[bool] = True
    is_discrete: ClassVar[bool] = True
    outputs_alone: ClassVar[bool] = True
    unit: ClassVar[str] = "label"
    asks: ClassVar[tuple[str, ...]] = ("probs", "entropy", "mutual_information", "novelty", "log_prob(y)")

    @property
    def links(self) -> tuple[Link, ...]:
        """Probit (which for one logit is the full one too), quadrature, Monte Carlo."""
        return ("full probit", "probit", "quadrature", "monte carlo")

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        values = check_one_each("Bernoulli()", targets, rows, "one target of 0 or 1")
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError(
                f"Bernoulli() takes targets of 0 and 1, got values from {float(values.min()):g} to "
                f"{float(values.max()):g}: recode them, or use Categorical() for class numbers"
            )
        return values

    def are_linked(self, outputs: Tensor) -> bool:
        """Whether outputs of one datum need their covariance; many logits do not."""
        return outputs.ndim <= 2 and outputs[:1].numel() <= LINKED

    def confidence(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """The probability that these outputs give to each target."""
        return (targets * outputs + (1 - targets) * -outputs).sigmoid()

    def softened(self, changes: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """The nearest changes of labels that leave them between 0 and 1."""
        return (targets + changes).clamp(0, 1) - targets

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """log p of each target."""
        return targets * logsigmoid(outputs) + (1 - targets) * logsigmoid(-outputs)

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs, y − σ."""
        return counted(targets * (-outputs).sigmoid() - (1 - targets) * outputs.sigmoid(), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # outputs' shape  # fmt: skip
        """The diagonal of the Hessian in the outputs, which is all of it: σ (1 − σ)."""
        return counted(outputs.sigmoid() * (-outputs).sigmoid(), weights)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), every one for itself."""
        softplus, sigma, slope = logistic(mean, own_variances(mean, covariance))
        return Expectation(targets * mean - softplus, targets - sigma, as_given(slope, covariance))

    def class_probabilities(self, outputs: Tensor) -> Tensor:  # (…, 2)
        """The probability of 0 and of 1 at known outputs."""
        return torch.stack([(-outputs).sigmoid(), outputs.sigmoid()], -1)

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> distributions.Bernoulli:
        """The distribution of new labels, every one for itself."""
        return distributions.Bernoulli(logits=binary_logits(link, mean, spread), validate_args=False)

    def probabilities(self, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """The predictive probability of every target being one."""
        return self.predictive(link, mean, spread).probs

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A label for each uniform number."""
        return (uniform < outputs.sigmoid()).to(outputs)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """The entropy of the mean probability over draws less their mean entropy."""
        outputs = mean + spread.deviations()
        average = distributions.Bernoulli(outputs.sigmoid().mean(0)).entropy()
        return (average - distributions.Bernoulli(logits=outputs).entropy().mean(0)).clamp_min(0)

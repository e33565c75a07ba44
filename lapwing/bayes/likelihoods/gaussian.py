"""Gaussian noise, given or tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from math import log, pi
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from lapwing.bayes.likelihoods.expectation import Expectation, as_given, own_variances
from lapwing.bayes.likelihoods.hyperprior import GammaHyperprior
from lapwing.bayes.likelihoods.interface import Likelihood, check_sizes, counted, refuse_shapes, same_sizes
from lapwing.bayes.likelihoods.spread import Link, Spread
from lapwing.bayes.likelihoods.surrogate import GaussianSurrogate
from lapwing.linalg.operators import Diagonal, LinearOperator, Product, as_tensor

NOT_TUNED = "the noise of this likelihood has not been tuned: use the likelihood of a posterior"
PER_DATUM = (
    "the noise was given per datum, so it is not known at new inputs: "
    "use epistemic_variance, or prediction.with_noise(noise_std), validation=(inputs, targets, noise_std)"
)


@final
@dataclass(frozen=True, eq=False)
class Gaussian(Likelihood):
    """Gaussian noise with a known standard deviation, or one tuned with the prior where none is given.

    `noise_std` is a number, one per output (m,), one per datum (n,) or (n, 1), or one per target (n, m); m numbers are
    one per output where there are as many data. One per datum is in the order of the data. With `per_output=True` a
    tuned noise has one value per output. Densities and derivatives are at unit noise where it is to be tuned; those of
    some of the data need a noise that is not per datum, or `at_unit_noise` with weights times `row_precision`.

    Parameters
    ----------
    noise_std : float or array, optional
        Standard deviation of the noise: one number, one per output (m,), one per example (n,) or (n, 1), or one
        per target (n, m). Tuned by default.
    per_output : bool
        Whether a tuned noise has one value per output.
    hyperprior : GammaHyperprior, optional
        Hyperprior on the precision of a tuned noise.
    at_inputs : bool
        Whether a noise per example belongs to the inputs, so that new inputs need one too.

    Raises
    ------
    ValueError
        If a standard deviation is not positive and finite.

    Examples
    --------
    >>> Gaussian(0.5).noise_std.item()
    0.5
    """

    noise_std: Any = None
    per_output: bool = False
    hyperprior: GammaHyperprior | None = None
    at_inputs: bool = field(default=False, repr=False)  # whether the noise is that of the inputs predicted at
    constant_curvature: ClassVar[bool] = True
    adds_noise: ClassVar[bool] = True
    outputs_alone: ClassVar[bool] = True
    asks: ClassVar[tuple[str, ...]] = (
        "mean", "std", "interval(0.9)", "epistemic_variance", "novelty", "log_prob(y)",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.noise_std is None:
            return
        noise_std = as_tensor(self.noise_std).double()
        if not bool((noise_std.isfinite() & (noise_std > 0)).all()):
            raise ValueError(
                f"noise_std must be positive and finite, got {self.noise_std!r}; leave it out to have it tuned"
            )
        object.__setattr__(self, "noise_std", noise_std)

    @property
    def links(self) -> tuple[Link, ...]:
        """One: outputs plus noise are Gaussian."""
        return ("closed form",)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        if targets.ndim not in (1, 2) or targets.numel() == 0:
            raise ValueError(f"targets must have shape (n,) or (n, m) with n ≥ 1, got {tuple(targets.shape)}")
        if targets.numel() != rows:
            raise ValueError(
                f"features with {rows} rows do not fit targets of shape {tuple(targets.shape)}: expected "
                f"{targets.numel()} rows, one for each target"
            )
        self.row_precision(targets)
        return targets.double()

    def weight_shapes(self, targets: Tensor) -> tuple[torch.Size, ...]:
        """One weight per datum, or one per target."""
        return (targets.shape[:1], targets.shape)

    def arranged(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Targets and weights of a network's outputs in the order of its rows; weights may be one per target."""
        if len(targets) != len(outputs) or not same_sizes(targets, outputs):
            classes = targets.ndim == 1 and not targets.is_floating_point()
            hint = "; for class numbers take Categorical()" if classes else ""
            refuse_shapes(targets, outputs, f"expected one number per output{hint}")
        shape = outputs.shape if outputs.ndim <= 2 else outputs.flatten(1).shape
        counts = weights if weights is None or weights.ndim == 1 else weights.reshape(shape)
        return targets.double().reshape(shape), counts

    def are_linked(self, outputs: Tensor) -> bool:  # noqa: ARG002
        """Never: every observation has one output."""
        return False

    def less_offset(self, targets: Tensor, offset: Tensor) -> Tensor:
        """Targets less the offset."""
        return targets - offset.to(targets).reshape(targets.shape)

    @property
    def tunes_noise(self) -> bool:
        """Whether no noise is given."""
        return self.noise_std is None

    def row_precision(self, targets: Tensor) -> Tensor:  # (n · m,)
        """The precision of every target at the given noise, or at unit noise where it is tuned."""
        if self.noise_std is None:
            return torch.ones(targets.numel(), dtype=torch.float64)
        return self.std_of(targets.shape).reshape(-1).pow(-2)

    def std_of(self, shape: torch.Size) -> Tensor:  # of this shape
        """The given noise of targets of shape (n,) or (n, m)."""
        std, (n, *outputs) = self.noise_std, shape
        if self.at_inputs and std.numel() == shape.numel():
            return std.reshape(shape)
        if std.shape == (n,) and outputs and outputs != [n]:
            std = std[:, None]
        try:
            return std.expand(shape)
        except RuntimeError:
            raise ValueError(
                f"noise_std of shape {tuple(self.noise_std.shape)} does not fit targets of shape {tuple(shape)}: "
                "expected a number, one per output or one per datum"
            ) from None

    def noise_groups(self, targets: Tensor, rows: int) -> Tensor:  # (n · m,)
        """The noise group of every target: rows of one group share one tuned precision."""
        if self.noise_std is not None or not self.per_output or targets.ndim == 1:
            return torch.zeros(rows, dtype=torch.long)
        return torch.arange(targets.shape[1]).repeat(targets.shape[0])

    def at_unit_noise(self) -> Gaussian:
        """A noise of one."""
        return replace(self, noise_std=None)

    def at_noise(self, precision: Tensor, outputs: int | None) -> Gaussian:  # (noise groups,)
        """The noise given times precision^−½, or the tuned one: one per output where they differ."""
        std = precision.rsqrt()
        if self.noise_std is not None:
            return replace(self, noise_std=self.noise_std * std[0])
        return replace(self, noise_std=std if self.per_output and outputs else std[0])

    def at_least(self, noise_std: Tensor) -> Gaussian:
        """The same with a noise no smaller than this, elementwise."""
        if self.noise_std is None:
            return self
        own, least = self.noise_std, noise_std.to(self.noise_std)
        return replace(self, noise_std=torch.maximum(own, least.reshape(own.shape) if least.ndim else least))

    def relative_precision(self, noise_std: Any, precision: Tensor) -> Tensor:
        """The precision of a noise relative to what was given, in the shape of the precisions at present."""
        std = Gaussian(noise_std).noise_std
        base = self.noise_std
        if (base is not None and base.ndim) or std.shape not in ((), precision.shape):
            raise ValueError(
                f"cannot set noise_std of shape {tuple(std.shape)} here: this model has "
                f"{len(precision)} noise value(s); infer again with the likelihood you want"
            )
        return ((1.0 if base is None else base) / std).square().expand(precision.shape)

    def best_noise_multiple(self, mean: Tensor, spread: Spread, targets: Tensor, shares: Tensor) -> float:
        """The multiple of largest density, in closed form: one over the mean square of standardised errors."""
        errors = (targets - mean).square() / (spread.variance + self._known(mean))
        return float(1 / (shares @ errors.reshape(-1)))

    def joint_log_prob(self, link: Link, mean: Tensor, spread: Spread, targets: Tensor) -> Tensor:  # (n,)  # noqa: ARG002
        """The log predictive density of all targets of a datum together, by the covariance of their outputs."""
        noise = self._precision(mean).reciprocal()
        if spread.covariance is None:
            return Normal(mean, (spread.variance + noise).sqrt()).log_prob(targets)
        covariance = spread.covariance + torch.diag_embed(noise)
        return MultivariateNormal(torch.zeros_like(mean), covariance).log_prob(targets - mean)

    def joined(self, other: Likelihood, shape: torch.Size, other_shape: torch.Size) -> Gaussian:
        """One noise for all, or where it was given per datum that of each."""
        assert isinstance(other, Gaussian)
        if self.noise_std is None:
            return self
        first, second = self.noise_std, other.noise_std
        if first.shape == second.shape and torch.equal(first, second) and first.shape in ((), shape[1:]):
            return self
        each = [first.expand(shape), second.expand(other_shape)]
        return replace(self, noise_std=torch.cat(each))

    def for_data(self, places: Tensor, shape: torch.Size) -> Gaussian:
        """With the noise of those data."""
        return self if self.noise_std is None else replace(self, noise_std=self.std_of(shape)[places])

    def with_tuned(self, noise_std: Any) -> Gaussian:
        """The same with this noise where none is given."""
        return replace(self, noise_std=noise_std) if self.noise_std is None else self

    def with_variance_times(self, factor: float) -> Gaussian:
        """The same with a noise whose variance is this many times as large."""
        return self if self.noise_std is None else replace(self, noise_std=self.noise_std * factor**0.5)

    def with_noise_at(self, noise_std: Any, shape: torch.Size) -> Gaussian:
        """The same with this noise at inputs whose predictions have a shape."""
        return replace(self, noise_std=Gaussian(noise_std).std_of(shape), at_inputs=True)

    def noise_variance(self, mean: Tensor, spread: Spread | None = None) -> Tensor | str:  # noqa: ARG002
        """The noise variance at inputs with outputs of this mean, () or one for each output, or why it is not known."""
        std, outputs = self.noise_std, mean.shape[1:]
        if std is None:
            return NOT_TUNED
        if std.ndim == 0:
            return std.square().to(mean)
        if self.at_inputs:
            return std.square().to(mean).reshape(mean.shape)
        if mean.ndim > 1 and std.shape == (outputs.numel(),):
            return std.square().to(mean).reshape(outputs)
        return PER_DATUM

    def map_tensors(self, of_outputs: Callable[[Tensor], Tensor]) -> Gaussian:
        """The same where the noise of each input, if it is known, has been changed."""
        return replace(self, noise_std=of_outputs(self.noise_std)) if self.at_inputs else self

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """log p of each target, at unit noise where it is to be tuned."""
        precision = self._precision(outputs)
        return 0.5 * (precision.log() - log(2 * pi) - precision * (targets - outputs).square())

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs: the residual over the noise variance, one where it is to be tuned."""
        return counted(self._precision(outputs) * (targets - outputs), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # outputs' shape  # fmt: skip
        """The diagonal of the Hessian in the outputs, which is all of it: the noise precision, one where tuned."""
        return counted(self._precision(outputs), weights)

    def log_prob_of_batch(
        self, outputs: Tensor, targets: Tensor, noise_std: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:  # ()
        """log p of targets that may have another shape of the same numbers; `noise_std` counts where it is tuned."""
        check_sizes(outputs, targets, outputs.shape)
        outputs = outputs.reshape(targets.shape)
        std = noise_std if self.noise_std is None else self.noise_std
        std = outputs.new_ones(()) if std is None else std.to(outputs)
        if std.ndim > 1 or (std.ndim == 1 and (targets.ndim == 1 or std.shape != targets.shape[1:])):
            raise ValueError(
                f"noise_std of shape {tuple(std.shape)} cannot be used with batches of targets "
                f"{tuple(targets.shape)}: expected a number or one per output"
            )
        each = Normal(outputs, std, validate_args=False).log_prob(targets.to(outputs))
        return counted(each, None if weights is None else weights.to(outputs)).sum()

    def totals(self, targets: Tensor, weights: Tensor) -> tuple[Tensor, float]:  # (noise groups,)
        """The observations of each noise group, weights included, and ½ Σ log of the precisions given per target."""
        given, counts = self.row_precision(targets).log(), self._counts(targets, weights)
        return self.noise_groups(targets, targets.numel()).bincount(counts), 0.5 * float(given @ counts)

    def misfit(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:  # (noise groups,)
        """The sum of squared residuals times the precisions given and the weights, of each noise group."""
        squares = (targets.reshape(-1) - outputs.reshape(-1)).double().square()
        terms = self.row_precision(targets).to(squares) * self._counts(targets, weights).to(squares) * squares
        return self.noise_groups(targets, targets.numel()).to(terms.device).bincount(terms)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance), in closed form."""
        precision, variance = self._precision(mean), own_variances(mean, covariance)
        return Expectation(
            self.log_density(mean, targets) - 0.5 * precision * variance, self.gradient(mean, targets),
            as_given(precision, covariance),
        )  # fmt: skip

    def gaussian_surrogate(
        self, features: LinearOperator, outputs: Tensor | None, targets: Tensor, weights: Tensor  # noqa: ARG002
    ) -> GaussianSurrogate:  # fmt: skip
        """The model itself in units of the noise given: rows times √(precision · weight), whatever the outputs."""
        root, flat = (self.row_precision(targets) * self._counts(targets, weights)).sqrt(), targets.reshape(-1)
        if not bool((root == 1).all()):
            features, flat = Product(Diagonal(root.to(features.like)), features), root * flat
        noise_of = self.noise_groups(targets, features.shape[0])
        return GaussianSurrogate(features, flat, noise_of, *self.totals(targets, weights))

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> Normal:  # noqa: ARG002
        """The distribution of new observations, every one for itself."""
        return Normal(mean, (spread.variance + self._known(mean)).sqrt())

    def probabilities(self, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # noqa: ARG002
        """None: there are no classes."""
        raise ValueError("probabilities are for class labels; this prediction is of numbers: use mean, std, interval")

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """An observation for each uniform number."""
        noise = self._known(outputs[0]).sqrt() * torch.special.ndtri(uniform.double())
        return outputs + noise.to(outputs)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """½ log(1 + epistemic / noise variance)."""
        return 0.5 * (spread.variance / self._known(mean)).log1p()

    def saved(self) -> dict[str, Any]:
        """Its name and fields for a file: plain values and tensors."""
        hyperprior = None if self.hyperprior is None else asdict(self.hyperprior)
        return {
            "name": "Gaussian", "noise_std": self.noise_std, "per_output": self.per_output, "hyperprior": hyperprior,
        }  # fmt: skip

    @classmethod
    def of_fields(cls, values: dict[str, Any]) -> Gaussian:
        """The likelihood with the fields that `saved` gave."""
        hyperprior = values.get("hyperprior")
        return cls(**{**values, "hyperprior": None if hyperprior is None else GammaHyperprior(**hyperprior)})

    def _counts(self, targets: Tensor, weights: Tensor) -> Tensor:  # (n · m,)
        return weights.reshape(-1).repeat_interleave(targets.numel() // weights.numel())

    def _precision(self, outputs: Tensor) -> Tensor:  # outputs' shape
        return self.row_precision(outputs).to(outputs).reshape(outputs.shape)

    def _known(self, mean: Tensor) -> Tensor:
        found = self.noise_variance(mean)
        if isinstance(found, str):
            raise ValueError(found)
        return found

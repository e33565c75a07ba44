"""What a likelihood must say: adding one is writing one class like this, in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution

from lapwing.bayes.likelihoods.expectation import Expectation, as_given, by_quadrature, own_variances
from lapwing.bayes.likelihoods.hyperprior import GammaHyperprior
from lapwing.bayes.likelihoods.spread import Link, Spread
from lapwing.bayes.likelihoods.surrogate import GaussianSurrogate, PerDatum
from lapwing.linalg.operators import LinearOperator

NO_NOISE = "class labels have no aleatoric variance: use entropy − mutual_information"


class Likelihood(ABC):
    """What an observation says about its outputs: (n,), or (n, c) for c outputs a datum.

    `log_prob` and the derivatives are sums over data, a datum of weight w counting w times. `hessian_*` are of −log p
    in the outputs, or what stands for it where that is not convex: B, positive semi-definite, and S with S Sᵀ = B. By
    default B is diagonal. `targets` are passed to them for the sake of likelihoods whose B depends on these.
    """

    curvature: ClassVar[str] = "Hessian"  # what B is, for the diagnostics
    has_classes: ClassVar[bool] = False  # whether outputs are logits: they have probabilities, and a temperature
    constant_curvature: ClassVar[bool] = False  # whether B does not depend on the outputs
    is_discrete: ClassVar[bool] = False  # whether log p is a log probability, never above zero
    adds_noise: ClassVar[bool] = False  # whether an observation is one of its outputs plus noise
    exclusive_classes: ClassVar[bool] = False  # whether a datum has one label, of as many classes as outputs
    outputs_alone: ClassVar[bool] = False  # whether each target sees one output only, so that a mask may hide some
    unit: ClassVar[str] = "output"  # what is counted where a prediction is described
    asks: ClassVar[tuple[str, ...]] = ("expectation", "interval(0.9)", "epistemic_variance", "novelty", "log_prob(y)")
    dim: int = -1  # the axis of the classes in what a network returns
    per_output: bool = False  # whether a tuned noise has one value per output
    hyperprior: GammaHyperprior | None = None  # on the precision of the noise

    @property
    @abstractmethod
    def links(self) -> tuple[Link, ...]:
        """How Gaussian outputs can become a prediction, the default first."""

    @property
    def wide_link(self) -> Link:
        """The one that is right however wide the outputs are."""
        return next(link for link in ("quadrature", "monte carlo", self.links[0]) if link in self.links)

    def checked_link(self, link: Link) -> Link:
        """The link, or an error where this likelihood has no such one."""
        if link not in self.links:
            raise ValueError(
                f"link is {link!r}, expected one of {', '.join(map(repr, self.links))} for {type(self).__name__}"
            )
        return link

    @abstractmethod
    def checked(self, targets: Tensor, rows: int) -> Tensor:
        """The targets of this many outputs, or an error."""

    @abstractmethod
    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # targets' shape
        """log p of each target."""

    def softened(self, changes: Tensor, targets: Tensor) -> Tensor:  # outputs' shape
        """The nearest changes of labels, as probabilities, that leave probabilities; of other targets any change."""
        del targets
        return changes

    @abstractmethod
    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs."""

    @abstractmethod
    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:  # outputs' shape
        """The diagonal of B."""

    @abstractmethod
    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> Distribution:
        """The distribution of a new observation whose outputs are Gaussian."""

    @abstractmethod
    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape, that of the targets
        """An observation for each uniform number, of outputs of shape (draws, *outputs)."""

    @abstractmethod
    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # targets' shape
        """What a new observation would say about its outputs, in nats."""

    @property
    def log_concave(self) -> bool:
        """Whether −log p is convex in the outputs."""
        return True

    # noise

    @property
    def tunes_noise(self) -> bool:
        """Whether there is a noise that is not given."""
        return False

    def noise_groups(self, targets: Tensor, rows: int) -> Tensor:  # (rows,)  # noqa: ARG002
        """The noise group of every row of features: rows of one group share one precision."""
        return torch.zeros(rows, dtype=torch.long)

    def row_precision(self, targets: Tensor) -> Tensor:  # (n,), or (n · m,) where each target has its own
        """The precision given for every datum; one where there is no noise, or it is tuned."""
        return torch.ones(len(targets), dtype=torch.float64)

    def at_unit_noise(self) -> Likelihood:
        """The same where all noise is one: with weights times `row_precision`, log p but for a constant."""
        return self

    def at_noise(self, precision: Tensor, outputs: int | None) -> Likelihood:  # (noise groups,)  # noqa: ARG002
        """The same with its noise at a precision relative to what was given, for a model with m outputs or None."""
        return self

    def at_least(self, noise_std: Tensor) -> Likelihood:  # noqa: ARG002
        """The same with a noise no smaller than this."""
        return self

    def relative_precision(self, noise_std: Any, precision: Tensor) -> Tensor:  # noqa: ARG002
        """The precision of a noise relative to what was given, in the shape of the precisions at present."""
        raise ValueError(f"{type(self).__name__} has no noise that could be set")

    def best_noise_multiple(self, mean: Tensor, spread: Spread, targets: Tensor, shares: Tensor) -> float:  # noqa: ARG002
        """By how much to multiply the precisions of noise and prior together, for targets with shares in a mean."""
        return 1.0

    def joined(self, other: Likelihood, shape: torch.Size, other_shape: torch.Size) -> Likelihood:  # noqa: ARG002
        """The likelihood of data with targets of one shape and then of others, which have this one too."""
        return self

    def for_data(self, places: Tensor, shape: torch.Size) -> Likelihood:  # noqa: ARG002
        """The likelihood of some of the data, whose targets together have a shape."""
        return self

    def with_tuned(self, noise_std: Any) -> Likelihood:  # noqa: ARG002
        """The same with this noise where it was to be tuned."""
        return self

    def with_variance_times(self, factor: float) -> Likelihood:  # noqa: ARG002
        """The same with a noise whose variance is this many times as large."""
        return self

    def with_noise_at(self, noise_std: Any, shape: torch.Size) -> Likelihood:  # noqa: ARG002
        """The same with this noise at inputs whose predictions have a shape."""
        raise ValueError("a noise can be given to predictions of numbers with Gaussian noise only")

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """The variance of an observation around its output, in a shape that broadcasts, or why there is none."""
        return NO_NOISE

    # the layout of outputs and targets

    def weight_shapes(self, targets: Tensor) -> tuple[torch.Size, ...]:
        """The shapes that sample weights may have."""
        return (targets.shape[:1],)

    def targets_shape(self, outputs: torch.Size) -> torch.Size:
        """The shape of the targets of outputs of a shape, their classes last."""
        return outputs

    def outputs_shape(self, shape: torch.Size, targets: Tensor) -> tuple[int, ...]:
        """The shape in which the methods take outputs of this shape, the classes last."""
        if targets.ndim == 1 and targets.numel() == shape.numel():  # one by one, as under a mask
            return (-1,)
        return tuple(shape) if len(shape) <= 2 else (len(targets), -1)

    def reshape_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(targets.shape)

    def flat_targets(self, targets: Tensor) -> Tensor:
        """Targets of outputs of any shape in the shape that `checked` takes."""
        return targets.reshape(len(targets), -1) if targets.ndim > 2 else targets

    def arranged(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Targets and weights of a network's outputs in the order of its rows, or an error where they do not fit.

        `weights` are one per datum, or one per target: each is then a datum of its own.
        """
        shape = self.targets_shape(outputs.shape if outputs.ndim <= 2 else outputs.flatten(1).shape)
        fits = targets.numel() == shape.numel() and (shape.numel() != outputs.numel() or same_sizes(targets, outputs))
        if len(targets) != len(outputs) or not fits:
            refuse_shapes(targets, outputs, f"{type(self).__name__} expects targets of shape {tuple(shape)}")
        known, rows = targets.reshape(shape), outputs.numel()
        if weights is None or weights.numel() == len(targets):
            return self.checked(known, rows), None if weights is None else weights.reshape(-1)
        if not self.outputs_alone:
            raise ValueError(
                f"a mask over single targets is not for {type(self).__name__}, which sees them together: mask whole "
                "data, one value each"
            )
        return self.checked(known.reshape(-1), rows), weights.reshape(-1)

    def ignored(self, targets: Tensor) -> Tensor:  # bool, targets' shape
        """Which targets do not count."""
        return torch.zeros_like(targets, dtype=torch.bool)

    def class_axis(self, outputs: Tensor) -> int:  # noqa: ARG002
        """The axis of outputs, counted from the end, that comes last in rows of features."""
        return -1

    def as_rows(self, outputs: Tensor) -> Tensor:
        """Outputs with their classes last."""
        return outputs.movedim(self.class_axis(outputs), -1)

    def to_output_layout(self, values: Tensor, outputs: Tensor, *lead: int) -> Tensor:
        """Values in the order of rows, in the shape of the outputs with `lead` in front."""
        return values.reshape(*lead, *self.as_rows(outputs).shape).movedim(-1, self.class_axis(outputs))

    def are_linked(self, outputs: Tensor) -> bool:  # noqa: ARG002
        """Whether outputs of one datum, or classes of one place, need their covariance."""
        return True

    def described(self, outputs: Tensor) -> str:
        """How many outputs an input has, of outputs with their classes last: "3 outputs"."""
        count = outputs.shape[1:].numel()
        return f"{count} {self.unit}{'s' if count != 1 else ''}"

    def observed(self, values: Tensor) -> Tensor:
        """Those of the outputs, or of their variances, that a prediction shows: what an observation is centred at."""
        return values

    def scored(self, variance: Tensor, centred: Tensor | None) -> Tensor:  # noqa: ARG002
        """The variances whose sum over an input is a score: those of what observations depend on, so of all outputs.

        `centred` is the variance of outputs less their mean along the last axis, summed over it, where it is known.
        """
        return variance

    def less_offset(self, targets: Tensor, offset: Tensor) -> Tensor:  # noqa: ARG002
        """Targets without the offset (n · c,) of outputs Φ θ + offset, where that leaves a model of the same kind."""
        return targets

    def map_tensors(self, of_outputs: Any) -> Likelihood:  # noqa: ARG002
        """The same where everything that it knows of each input predicted at has been changed."""
        return self

    # predictions

    def probabilities(self, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # noqa: ARG002
        """The predictive probability of every class."""
        raise ValueError(f"{type(self).__name__} has no classes, so no probabilities: use log_prob or distribution")

    def joint_log_prob(self, link: Link, mean: Tensor, spread: Spread, targets: Tensor) -> Tensor:  # (n,)
        """The log predictive density of all targets of a datum: here every one for itself."""
        return self.predictive(link, mean, spread).log_prob(targets).reshape(len(targets), -1).sum(1)

    def confidence(self, outputs: Tensor, targets: Tensor) -> Tensor | None:  # noqa: ARG002
        """The probability that these outputs give to each target, where targets are labels."""
        return None

    # derivatives

    def log_prob(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # ()
        """log p(targets | outputs), summed over the data."""
        check_shapes(outputs, targets, self.targets_shape(outputs.shape))
        return counted(self.log_density(outputs, targets), weights).sum()

    def log_prob_of_batch(
        self, outputs: Tensor, targets: Tensor, noise_std: Tensor | None = None, weights: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # ()  # fmt: skip
        """log p of targets that may have another shape of the same numbers; `noise_std` counts where it is tuned.

        `weights` say how often each datum, or each target, counts.
        """
        shape = self.targets_shape(outputs.shape)
        check_sizes(outputs, targets, shape)
        return self.log_prob(
            outputs, targets.reshape(shape).to(outputs), None if weights is None else weights.to(outputs)
        )

    def totals(self, targets: Tensor, weights: Tensor) -> tuple[Tensor, float]:  # (noise groups,)  # noqa: ARG002
        """Observations whose noise counts, by its group, and ½ Σ log of the precisions given: none, for a log p."""
        return torch.zeros(1, dtype=torch.float64), 0.0

    def misfit(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:  # (noise groups,)
        """What the evidence takes for a sum of squares, of flat outputs (n · c,): −2 log p where there is none."""
        return -2 * self.log_prob(self.reshape_outputs(outputs, targets), targets, weights).reshape(1)

    def root_columns(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:  # (b, c) -> (b, c, k)
        """Columns R with R Rᵀ = B of each datum, as few as are needed."""
        units = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        return self.hessian_root(outputs, units.expand(*outputs.shape, -1), targets=targets)

    def class_probabilities(self, outputs: Tensor) -> Tensor:  # (…, classes)  # noqa: ARG002
        """The probability of every class at known outputs."""
        raise ValueError(f"{type(self).__name__} has no classes, so no probabilities: use log_prob or distribution")

    def hessian_product(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """B times columns of shape (*outputs' shape, k)."""
        return self.hessian_diagonal(outputs, weights, targets)[..., None] * columns

    def hessian_root(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """S times columns of shape (*outputs' shape, k), with S Sᵀ = B."""
        return self.hessian_diagonal(outputs, weights, targets).sqrt()[..., None] * columns

    def hessian_root_adjoint(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """Sᵀ times columns of shape (*outputs' shape, k)."""
        return self.hessian_root(outputs, columns, weights, targets)

    def contrasts(self, outputs: int) -> Tensor:  # (c, k)
        """Orthonormal columns C such that the density depends on the c outputs of a datum through Cᵀf alone."""
        return torch.eye(outputs, dtype=torch.float64)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:  # noqa: ARG002
        """E log p and its derivatives for outputs N(mean, covariance): elementwise, by quadrature.

        `covariance` has the mean's shape where every output stands alone, or is (n, c, c). `seed` is that of the points
        where several outputs are averaged over by points.
        """
        wide = targets.double() if targets.is_floating_point() else targets

        def values(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return self.log_density(at, wide), self.gradient(at, wide), self.hessian_diagonal(at, None, wide)

        found = by_quadrature(values, mean, own_variances(mean, covariance))
        return Expectation(found.log_density, found.gradient, as_given(found.curvature, covariance))

    def shared_hessian(self, inner: LinearOperator, outputs: Tensor, weights: Tensor) -> Tensor | None:  # noqa: ARG002
        """Φᵀ B Φ where all outputs share the features `inner` and have weights of their own; None where a root does."""
        return None

    def gaussian_surrogate(
        self, features: LinearOperator, outputs: Tensor | None, targets: Tensor, weights: Tensor
    ) -> GaussianSurrogate:
        """The Gaussian linear model with the same curvature, B taken at flat outputs (n · c,)."""
        if outputs is None:
            raise ValueError(f"the curvature of {type(self).__name__} depends on the outputs, which are not given")
        like = features.like
        root = PerDatum(
            self.reshape_outputs(outputs, targets).to(like), weights.to(like), targets, self.hessian_root_adjoint,
            self.hessian_root,
        )  # fmt: skip
        rows = root.shape[0]
        return GaussianSurrogate(
            root @ features, torch.zeros(rows, dtype=torch.float64), self.noise_groups(targets, rows),
            *self.totals(targets, weights),
        )  # fmt: skip

    # files

    def saved(self) -> dict[str, Any]:
        """Its name and fields for a file: plain values and tensors."""
        assert is_dataclass(self)
        return {"name": type(self).__name__, **{item.name: getattr(self, item.name) for item in fields(self)}}

    @classmethod
    def of_fields(cls, values: dict[str, Any]) -> Likelihood:
        """The likelihood with the fields that `saved` gave."""
        return cls(**values)


def restored(saved: dict[str, Any]) -> Likelihood:
    """The likelihood that `saved` described."""
    kinds = {kind.__name__: kind for kind in _derived(Likelihood)}
    values = dict(saved)
    return kinds[values.pop("name")].of_fields(values)


def _derived(kind: type) -> list[Any]:
    """Every class that is derived from one."""
    children: list[Any] = kind.__subclasses__()
    return children + [one for child in children for one in _derived(child)]


def counted(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values of each datum times its weight, or of each target times its own."""
    if weights is None:
        return values
    if weights.numel() == values.numel():
        return weights.reshape(values.shape) * values
    return weights.reshape(-1, *[1] * (values.ndim - 1)) * values


def check_shapes(outputs: Tensor, targets: Tensor, expected: torch.Size) -> None:
    """Refuse targets that would only broadcast against outputs."""
    if targets.shape != expected:
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} need targets of shape {tuple(expected)}, "
            f"got {tuple(targets.shape)}"
        )


def check_sizes(outputs: Tensor, targets: Tensor, shape: torch.Size) -> None:
    """Refuse targets that are not one number for each that outputs expect."""
    if targets.numel() != shape.numel() or len(targets) != len(outputs):
        refuse_shapes(targets, outputs, "expected one number per output")


def same_sizes(targets: Tensor, outputs: Tensor) -> bool:
    """Whether targets and outputs have the same axes of a datum, but for those of one element."""
    own, theirs = ([size for size in part.shape[1:] if size > 1] for part in (targets, outputs))
    return own == theirs


def refuse_shapes(targets: Tensor, outputs: Tensor, expected: str) -> NoReturn:
    """Say that targets do not fit."""
    raise ValueError(
        f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}: {expected}"
    )


def check_one_each(name: str, targets: Tensor, rows: int, what: str) -> Tensor:
    """Targets in double precision, one for every output."""
    if targets.ndim not in (1, 2) or targets.numel() == 0 or targets.numel() != rows:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit {rows} outputs: {name} takes {what} for each"
        )
    return targets.double()


def check_positive(name: str, value: Any) -> None:
    """Refuse a parameter that is not positive and finite."""
    given = torch.as_tensor(value, dtype=torch.float64)
    if not bool((given.isfinite() & (given > 0)).all()):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")

"""What a method must say: how it finds a posterior, and the posterior over the weights that it finds.

To add a method, write a `Method` and the `WeightPosterior` that its `solve` returns, in one file. Nothing lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import EvidenceParts, Optimum, Precisions, Problem, Tuning
from lapwing.bayes.fits import Curvature, Fit, Packed
from lapwing.bayes.likelihoods import Likelihood, Spread
from lapwing.bayes.linear_model import LinearisationPoint, LinearModel
from lapwing.bayes.long_runs import kept_prior
from lapwing.bayes.methods import outputs
from lapwing.bayes.methods.outputs import JointOutputs, OutputUncertainty
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.bayes.priors import DiagonalPrior, Prior
from lapwing.bayes.statistics import NO_CLOSED_FORM, Whitened
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import LinearOperator
from lapwing.runtime.journal import Journal
from lapwing.runtime.progress import Report

ONE_PRECISION = "CG and SGD know the evidence at one precision only: infer with Exact() or Krylov()"


@final
@dataclass(frozen=True, eq=False)
class Run:
    """How an inference runs: the noise behind its draws, how precisions are tuned, what it shows and what it keeps."""

    noise: Noise
    draws: int
    tuning: Tuning
    report: Report
    journal: Journal | None = None
    why: str = "as asked"  # this method
    curvature: Curvature | None = None  # where that of the likelihood is taken; None is Laplace's

    def prior_on(self, prior: Prior, model: LinearModel) -> DiagonalPrior:
        """A prior on the features of a model, which takes a pass over the data."""

        def make() -> DiagonalPrior:
            return prior.on(model.features, model.row_weights, model.blocks)

        return make() if self.journal is None else kept_prior(self.journal, make)

    def optimum(self, problem: Problem, prior: Prior, likelihood: Likelihood, given: Precisions) -> Optimum:
        """The precisions that are free under this prior and likelihood, as they are tuned."""
        free = replace(
            problem, tune_prior=prior.free(len(problem.sizes)), tune_noise=likelihood.tunes_noise,
            prior_hyperprior=prior.hyperprior, noise_hyperprior=likelihood.hyperprior,
        )  # fmt: skip
        return self.tuning.optimum(free, given)

    def described(self, model: LinearModel, prior: DiagonalPrior, optimum: Optimum) -> Diagnostics:
        """What diagnostics say whatever the method."""
        pruned = [name for name, kept in zip(prior.names, prior.precision.isfinite(), strict=True) if not bool(kept)]
        rows, d = model.features.shape
        return Diagnostics(
            why=self.why, observations=rows, weights=d, draws=self.draws, seed=self.noise.seed,
            tuning_steps=optimum.steps, evidence_trace=optimum.trace, pruned=tuple(pruned),
            converged=optimum.converged,
        )  # fmt: skip


class Method(ABC):
    """A way to find a posterior, as a value: what has parameters is passed to `infer` as one of these."""

    averages_by_default: ClassVar[bool] = False  # whether it averages the curvature over the posterior unasked
    takes_no_draws: ClassVar[bool] = False  # whether draws=0 is possible: others learn the effective dimension by them

    @abstractmethod
    def solve(self, model: LinearModel, prior: Prior, run: Run) -> WeightPosterior:
        """The posterior over the weights, its free precisions tuned as the run says."""

    takes_modes: ClassVar[bool] = True  # whether an evidence is that of modes, which data must be able to tell

    def check(self, model: LinearModel, prior: Prior) -> None:  # noqa: B027
        """Refuse what this method cannot do, before any work."""

    def averaging_obstacle(self, model: LinearModel, groups: int) -> str | None:  # noqa: ARG002
        """Why a curvature cannot be averaged over the posterior, with so many free precisions; None where it can."""
        return f"{type(self).__name__}() takes it at one point: leave the method out, or take Exact() or Krylov()"

    def needed_bytes(self, model: LinearModel, draws: int) -> float:  # noqa: ARG002
        """Memory beside the data that is needed at least; 0 where it is checked on the way."""
        return 0.0


@final
@dataclass(frozen=True)
class Evidence:
    """The log evidence of a posterior, as a number with its error and by part."""

    parts: EvidenceParts
    log_evidence: Estimate


@final
@dataclass(frozen=True, eq=False)
class Leverages:
    """I − SᵀVS of every datum, V the covariance of its outputs, and its residuals in units of the noise."""

    complement: Tensor  # (n, m, m)
    residual: Tensor | None  # (n, m); None where the mean is not that of a Gaussian model


@final
@dataclass(frozen=True, eq=False)
class FileContext:
    """What a file says of a posterior beside its statistics: what `unpack` can count on."""

    prior: DiagonalPrior
    noise_precision: Tensor
    likelihood: Likelihood
    seed: int
    mean: Tensor  # (d,)
    deviations: Tensor  # (d, draws)
    diagnostics: Diagnostics
    point: LinearisationPoint | None  # of the network that the file is loaded with


class WeightPosterior(ABC):
    """N(mean, H⁻¹) over the weights at one setting of the precisions, and how to get to another.

    The abstract methods are all that `infer`, `predict`, `tune` and `save` need. The others say more where a method
    knows more: closed forms, whole curves over the precision, other data.
    """

    prior: DiagonalPrior
    noise_precision: Tensor  # (noise groups,), relative to the noise given, or to one where it is tuned
    seed: int
    diagnostics: Diagnostics
    fit: Fit  # mean and curvature; a method that stands for draws alone has none
    kind: ClassVar[str] = "draws"  # its name in files; one that `lapwing.load` does not know is loaded as draws alone

    @abstractmethod
    def at(self, prior: DiagonalPrior, noise_precision: Tensor) -> WeightPosterior:
        """The posterior at other precisions, the noise behind its draws the same."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:  # (d,)
        """The mean of the weights, found when it is asked for."""

    @property
    @abstractmethod
    def deviations(self) -> Tensor:  # (d, draws)
        """Draws minus their mean, as columns."""

    @property
    @abstractmethod
    def effective_dimension(self) -> Estimate:
        """γ = tr(H⁻¹M), how many weights the data determined."""

    @abstractmethod
    def spread(
        self, features: LinearOperator, shape: tuple[int, ...], *, full: bool, batch_size: int | None = None
    ) -> OutputUncertainty:
        """How uncertain outputs (n,) or (n, …, c) are; with `full`, their covariance along the last axis too."""

    @abstractmethod
    def evidence(self) -> Evidence:
        """The log evidence here."""

    @abstractmethod
    def pack(self) -> Packed | None:
        """Plain values and tensors from which `unpack` makes this again; None where draws alone are to be kept."""

    @classmethod
    def unpack(cls, plain: dict[str, Any], tensors: dict[str, Tensor], context: FileContext) -> WeightPosterior:
        """The posterior of a file."""
        del plain, tensors, context
        raise ValueError(f"a posterior by {cls.__name__} is kept as draws only")

    @property
    def is_closed_form(self) -> bool:
        """Whether variances have a closed form, instead of coming from draws."""
        return False

    @property
    def prior_noise(self) -> Tensor:  # (d, draws)
        """The standard normals of the prior behind every draw."""
        return Noise(self.seed, PRIOR).rows(0, len(self.prior.scale), self.deviations.shape[1])

    def covariance(self) -> Tensor:  # (d, d)
        """The covariance as a matrix."""
        raise ValueError(NO_CLOSED_FORM)

    def root(self, normals: Tensor) -> Tensor:  # (d, k) -> (d, k)
        """Σ^½ times columns: fresh draws without the data."""
        del normals
        raise ValueError(NO_CLOSED_FORM)

    def covariance_times(self, rows: Tensor) -> Tensor:  # (r, d) -> (d, r)
        """The covariance times rows."""
        del rows
        raise ValueError(NO_CLOSED_FORM)

    def variances(self, rows: Tensor) -> Tensor:  # (r, d) -> (r,)
        """The variance of a few functions of the weights."""
        return (rows @ self.deviations).square().mean(1)

    def joint(self, features: LinearOperator, rows: Tensor, mean: Tensor) -> JointOutputs:
        """The joint distribution of the outputs that chosen rows of features give, around their mean."""
        return outputs.joint_of_draws(features, rows, mean, self.deviations)

    def bounds(self, features: LinearOperator) -> tuple[Tensor, Tensor]:  # (rows,) each
        """Lower and upper bounds on the variance of every output."""
        del features
        raise ValueError("bounds come from a Krylov space: infer with method=Krylov(), or leave bounds out")

    def over_ratio(
        self, features: LinearOperator, shape: tuple[int, ...], *, full: bool, around: Tensor | None  # noqa: ARG002
    ) -> Callable[[float], tuple[Tensor, Spread]] | None:  # fmt: skip
        """Mean and spread of outputs as a function of the ratio of the old precision to a new one.

        The mean is what they are drawn `around`, or where that is None the linear model's own. None where every
        precision is solved for by itself.
        """
        return None

    def problem(self) -> Problem:
        """The evidence as a function of the precisions, every one free."""
        raise ValueError(ONE_PRECISION)

    def problem_in_multiples(self) -> Problem:
        """The evidence in multiples of the present precisions, all groups tied."""
        raise ValueError(ONE_PRECISION)

    @property
    def curve_is_cheap(self) -> bool:
        """Whether the evidence over a whole curve of precisions takes a second or so."""
        return False

    @property
    def evidence_is_closed_form(self) -> bool:
        """Whether that curve takes no mean to be looked for."""
        return False

    @property
    def moves(self) -> bool:
        """Whether the curvature of the likelihood depends on the precisions."""
        return False

    @property
    def evidence_is_bound(self) -> bool:
        """Whether the log evidence is a lower bound on it."""
        return False

    @property
    def is_cut_short(self) -> bool:
        """Whether memory ended the work before its tolerance was reached."""
        return False

    @property
    def knows_leverages(self) -> bool:
        """Whether what every datum determines of itself is known in closed form."""
        return False

    def check_leverages(self, *, linear: bool) -> None:
        """Refuse where leverages are not known well enough to leave data out, of the linear model or the network."""
        del linear
        raise ValueError(f"leave-one-out predictions need the leverages of method=Exact(): {NO_CLOSED_FORM}")

    def leverages(self, model: LinearModel) -> Leverages | None:  # noqa: ARG002
        """What the data determine of themselves, worked out without cancellation; None where covariances must do."""
        return None

    def with_curvature_at_mean(self) -> WeightPosterior:
        """The posterior whose curvature is that of the likelihood at its mean."""
        return self

    def check_changeable(self) -> None:
        """Refuse to become the posterior of other data where too little is known of those so far."""
        raise ValueError("this posterior was loaded from a file that holds only draws: fit it again to add data")

    def with_fit(self, fit: Fit) -> WeightPosterior:
        """The posterior of other data at the same precisions, with the same noise behind its draws."""
        del fit
        raise ValueError("this posterior was loaded from a file that holds only draws: fit it again to add data")

    def with_more(self, fit: Fit, more: LinearModel, first: int) -> WeightPosterior:  # noqa: ARG002
        """The posterior of these data and more; their noise begins at a row of its table."""
        return self.with_fit(fit)

    def retuned(self, likelihood: Likelihood) -> WeightPosterior:
        """The posterior with its free precisions at the maximum of the evidence again."""
        del likelihood
        raise ValueError(
            "retune=True is for Exact(), which knows the evidence at every precision: update without it, then "
            "`tune` on held-out data, or infer again"
        )

    def facts(self) -> dict[str, Any]:
        """What diagnostics say of the search for the mean, where there was one."""
        return {}

    @property
    def has_residuals(self) -> bool:
        """Whether draws solve an equation of the data."""
        return False

    def knows_as_much_as(self, other: WeightPosterior) -> bool:  # noqa: ARG002
        """Whether no more was learnt of the data since another one."""
        return True

    def surrogate_mean(self) -> Tensor:  # (d,)
        """The mean of the Gaussian model that has the likelihood's curvature: zero where that has no targets."""
        return self.mean


class WhitenedPosterior(WeightPosterior):
    """A posterior in coordinates where the prior is standard normal, by directions of the weights with their values."""

    fit: Fit
    draws: int

    @property
    @abstractmethod
    def whitened(self) -> Whitened:
        """Mean, draws and covariance in those coordinates."""

    @abstractmethod
    def problem(self) -> Problem:
        """The evidence as a function of the precisions, every one free."""

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the weights, found when it is first asked for."""
        return self.fit.mean(lambda: self.whitened.mean).double()

    def facts(self) -> dict[str, Any]:
        return self.fit.facts()

    @property
    def has_residuals(self) -> bool:
        return True

    def surrogate_mean(self) -> Tensor:
        return self.whitened.mean

    @property
    def prior_noise(self) -> Tensor:
        return Noise(self.seed, PRIOR).rows(0, len(self.prior.scale), self.draws).to(self.prior.scale.device)

    @cached_property
    def deviations(self) -> Tensor:
        """Draws minus their mean, as columns."""
        return self.whitened.deviations(self.prior_noise).double()

    @property
    def effective_dimension(self) -> Estimate:
        return self.whitened.trace_of(lambda k: k / (1 + k))

    @property
    def is_closed_form(self) -> bool:
        return self.whitened.exact

    def evidence(self) -> Evidence:
        """The log evidence here; its error is that of a sampled determinant."""
        return self._evidence

    @cached_property
    def _evidence(self) -> Evidence:
        parts = self.problem().parts(Precisions(self.prior.precision, self.noise_precision))
        error = 0.5 * self.whitened.trace_of(torch.log1p).standard_error
        return Evidence(parts, Estimate(parts.total, error))

    def spread(
        self, features: LinearOperator, shape: tuple[int, ...], *, full: bool, batch_size: int | None = None
    ) -> OutputUncertainty:
        """In closed form where there is one and outputs are not too many, else from the draws."""
        by_draws = self.draws > 0 and outputs.is_wide(features, shape)
        if by_draws or not self.is_closed_form:
            return outputs.of_deviations(
                self.prior.std, features, shape, self.deviations, self.prior_noise, full=full
            )  # fmt: skip
        return outputs.closed_form(
            self.whitened, features, shape, self.deviations, full=full, seed=self.seed, batch_size=batch_size
        )

    @property
    def curve_is_cheap(self) -> bool:
        return self.fit.is_cheap

    @property
    def evidence_is_closed_form(self) -> bool:
        return self.fit.is_closed_form

    @property
    def moves(self) -> bool:
        return self.fit.moves

    @property
    def evidence_is_bound(self) -> bool:
        return self.fit.is_bound

    def covariance(self) -> Tensor:
        return self.whitened.covariance()

    def root(self, normals: Tensor) -> Tensor:
        return self.whitened.root(normals)

    def covariance_times(self, rows: Tensor) -> Tensor:
        return self.whitened.covariance_times(rows)

    def variances(self, rows: Tensor) -> Tensor:
        if not self.is_closed_form:
            return super().variances(rows)
        return outputs.variances(rows * self.whitened.std, self.whitened.spectrum, self.whitened.values)[1]

    def joint(self, features: LinearOperator, rows: Tensor, mean: Tensor) -> JointOutputs:
        if not self.is_closed_form:
            return super().joint(features, rows, mean)
        return outputs.joint_in_closed_form(self.whitened, features, rows, mean)

    def over_ratio(
        self, features: LinearOperator, shape: tuple[int, ...], *, full: bool, around: Tensor | None
    ) -> Callable[[float], tuple[Tensor, Spread]] | None:
        """Mean and spread at every ratio, from one set of products."""
        mean = self.mean_over_ratio(features) if around is None else lambda _ratio: around
        if mean is None:
            return None
        spread = outputs.over_ratio(self.whitened, features, shape, self.prior_noise, self.seed, full=full)
        return lambda ratio: (mean(ratio), spread(ratio))

    def mean_over_ratio(self, features: LinearOperator) -> Callable[[float], Tensor] | None:  # noqa: ARG002
        """The outputs at the linear model's mean as a function of that ratio, flat; None where it is looked for."""
        return None

    def problem_in_multiples(self) -> Problem:
        return self.fit.in_multiples(self.curvature_in_multiples(), self.prior, self.noise_precision)

    @abstractmethod
    def curvature_in_multiples(self) -> Problem:
        """What the curvature has of the evidence, in multiples of the present precisions, all groups tied."""

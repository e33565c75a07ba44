"""A likelihood seen from the weights as a Gaussian: where its curvature is taken, and where the mean lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from lapwing.bayes.evidence import Moments, Optimum, Precisions, Problem, grouped
from lapwing.bayes.likelihoods import GaussianSurrogate
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.operators import LinearOperator
from lapwing.linalg.solvers import Preconditioner
from lapwing.linalg.spectral import Spectrum
from lapwing.runtime.progress import Report

Packed = tuple[dict[str, Any], dict[str, Tensor]]
Preconditioning = Callable[[], Preconditioner | None]  # made where a search wants it
LOST = (
    "the linear mode and the evidence at this precision need the training data, which are not in the file that this "
    "posterior was loaded from: predict with mean='network', or fit it again"
)


def nothing_known() -> Preconditioner | None:
    """No preconditioner."""
    return None


def carried(rows: GaussianSurrogate | None) -> GaussianSurrogate:
    """Rows, or an error where they are not in the file that a posterior was loaded from."""
    if rows is None:
        raise ValueError("this posterior does not carry its training data, which that needs here: fit it again")
    return rows


def in_units_of(prior: DiagonalPrior, energies: Tensor) -> Tensor:  # (groups,) -> (1,)
    """Σ α ‖θ‖² over the groups that are not pruned."""
    return torch.where(prior.precision.isfinite(), prior.precision * energies, 0).sum().reshape(1)


class Fit(ABC):
    """Mean and curvature of a posterior at one setting of the precisions: the state of the loop that finds it.

    The curvature B of the likelihood makes a Gaussian model out of any, the `gaussian_surrogate`, whose covariance a
    method finds. `at` is one turn of the loop: for other precisions it says what B and the mean are there. Where B
    depends on the precisions, `moves` is true, and a method works out its covariance again. Under Gaussian noise B is
    constant and the mean is the surrogate's own, so that the loop ends after one turn.
    """

    kind: ClassVar[str]  # its name in files
    moves: ClassVar[bool] = False  # whether the curvature depends on the precisions
    is_closed_form: ClassVar[bool] = False  # whether the mean at many precisions takes little more than at one
    is_bound: ClassVar[bool] = False  # whether the evidence is a lower bound on it

    @property
    @abstractmethod
    def gaussian_surrogate(self) -> GaussianSurrogate:
        """The Gaussian linear model with the likelihood's curvature."""

    def at(
        self, prior: DiagonalPrior, noise_precision: Tensor, preconditioner: Preconditioning = nothing_known  # noqa: ARG002
    ) -> Fit:  # fmt: skip
        """The fit at other precisions, itself where nothing depends on them.

        A mean that must be looked for is found when it is asked for, by a search from the one here.
        """
        return self

    def optimum(self) -> tuple[Any, Optimum] | None:
        """The fit at the best free precision, where its own search finds that; None where it is looked for outside."""
        return None

    def outputs_over_precision(
        self, features: LinearOperator, shape: tuple[int, ...]  # noqa: ARG002
    ) -> Callable[[float], tuple[Tensor, Tensor]] | None:  # fmt: skip
        """Mean (n, c) and covariance (n, c, c) of outputs at other inputs as a function of the precision, around zero.

        None where a posterior must be made for every precision.
        """
        return None

    def spectrum(self) -> Spectrum | None:
        """That of the surrogate's features in units of the prior's scale, where it is known without them."""
        return None

    def around_network(self) -> Fit | None:
        """Laplace's approximation around the network's own outputs; None where this is that already, or has none."""
        return None

    @abstractmethod
    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # (d,)
        """The mean of the weights; `own` finds that of the surrogate."""

    @abstractmethod
    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:  # (noise groups,), (groups,)
        """The residual at unit noise, or −2 log p, and ‖θ̄‖² of each group in units of the prior's scale."""

    @abstractmethod
    def pack(self) -> Packed:
        """Plain values, with the kind among them, and tensors: what `unpack` reads."""

    def problem(self, curvature: Problem, report: Report | None = None) -> Problem:  # noqa: ARG002
        """The evidence as a function of the precisions, from what the curvature has of it."""

        def moments(at: Precisions) -> Moments:
            residual, energies = self.fitted(at)
            return replace(curvature.moments(at), residual=residual, weights=energies)

        return replace(curvature, moments=moments, one_by_one=True)

    def in_multiples(self, curvature: Problem, prior: DiagonalPrior, noise_precision: Tensor) -> Problem:
        """The evidence in multiples of these precisions, all groups tied; `curvature` is in such multiples too."""

        def moments(at: Precisions) -> Moments:
            residual, energies = self.fitted(Precisions(prior.precision * at.prior, noise_precision * at.noise))
            misfit = (noise_precision * residual).sum().reshape(1)
            return replace(curvature.moments(at), residual=misfit, weights=in_units_of(prior, energies))

        return replace(curvature, moments=moments, one_by_one=True)

    @property
    def is_cheap(self) -> bool:
        """Whether a mean takes about a second or less."""
        return self.is_closed_form

    def at_its_mean(self) -> Fit:
        """The same with the curvature at the mean."""
        return self

    def averaged_root(self) -> Tensor | None:  # (n, m, m)
        """S of every datum, S Sᵀ its curvature averaged over the posterior; None where that is taken at a point."""
        return None

    def on_more(self, more: LinearModel, whole: LinearModel | None) -> Fit:
        """The fit of these data and more under the same prior; `whole` are all, where these are carried."""
        del more, whole
        raise ValueError("the file that this posterior was loaded from lacks the loss of its labels: fit it again")

    def on_fewer(self, places: Tensor, left: LinearModel | None) -> Fit:
        """The fit without the data at some places; `left` are the others, where these are carried."""
        del places, left
        raise ValueError("the file that this posterior was loaded from lacks the loss of its labels: fit it again")

    def facts(self) -> dict[str, Any]:
        """What diagnostics say of the search for the mean, where there was one."""
        return {}


@final
@dataclass(frozen=True, eq=False)
class LeastSquares(Fit):
    """Gaussian noise: one curvature for all precisions, and the mean follows from it in closed form."""

    rows: GaussianSurrogate | None  # None in a file
    kind = "least squares"
    is_closed_form = True

    @property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        return carried(self.rows)

    def mean(self, own: Callable[[], Tensor]) -> Tensor:
        return own()

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:
        del at
        raise TypeError("the moments of a Gaussian model have its residual and weights already")

    def problem(self, curvature: Problem, report: Report | None = None) -> Problem:  # noqa: ARG002
        return curvature

    def in_multiples(self, curvature: Problem, prior: DiagonalPrior, noise_precision: Tensor) -> Problem:  # noqa: ARG002
        return curvature

    def pack(self) -> Packed:
        return {"kind": self.kind}, {}

    def on_more(self, more: LinearModel, whole: LinearModel | None) -> LeastSquares:  # noqa: ARG002
        return LeastSquares(None if whole is None else whole.gaussian_surrogate())

    def on_fewer(self, places: Tensor, left: LinearModel | None) -> LeastSquares:  # noqa: ARG002
        return LeastSquares(None if left is None else left.gaussian_surrogate())

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: Any) -> LeastSquares:
        """The fit of a file."""
        del plain, tensors, context
        return LeastSquares(None)


@final
@dataclass(frozen=True, eq=False)
class NetworkWeights(Fit):
    """The network's own weights, whatever the precision, and how they fit.

    Their evidence is known to give precisions that are too small (Antorán et al. 2022); no mode is looked for.
    """

    rows: GaussianSurrogate | None  # None in a file
    weights: Tensor  # (d,)
    residual: Tensor  # (1,), at unit noise, or −2 log p
    energies: Tensor  # (groups,)
    known: Spectrum | None = None  # of the surrogate's features, where it was found in few coordinates
    kind = "weights"
    is_closed_form = True

    @staticmethod
    def of(model: LinearModel, prior: DiagonalPrior) -> NetworkWeights:
        """Those that a model was linearised at."""
        if model.point is None:
            raise ValueError(
                "evidence_at='weights' is for a linearised network: this model has no weights of its own yet"
            )
        weights = model.point.weights.double()
        energies = grouped((weights / prior.scale).square(), prior.group_of, len(prior.precision))
        outputs = model.outputs_at_point()
        return NetworkWeights(model.gaussian_surrogate(outputs), weights, model.misfit(outputs), energies)

    def spectrum(self) -> Spectrum | None:
        return self.known

    @property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        return carried(self.rows)

    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        return self.weights

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return self.residual, self.energies

    def pack(self) -> Packed:
        names = ("weights", "residual", "energies")
        return {"kind": self.kind}, {name: getattr(self, name) for name in names}

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: Any) -> NetworkWeights:
        """The fit of a file."""
        del plain, context
        return NetworkWeights(None, tensors["weights"], tensors["residual"], tensors["energies"])


@final
@dataclass(frozen=True, eq=False)
class Lost(Fit):
    """The fit of a posterior whose file lacks what it needs: NaN, which predictions around it refuse."""

    weights: int
    kind = "lost"

    @property
    def gaussian_surrogate(self) -> GaussianSurrogate:
        raise ValueError(LOST)

    def mean(self, own: Callable[[], Tensor]) -> Tensor:  # noqa: ARG002
        return torch.full((self.weights,), torch.nan, dtype=torch.float64)

    def fitted(self, at: Precisions) -> tuple[Tensor, Tensor]:
        return torch.full((1,), torch.nan, dtype=torch.float64), torch.full_like(at.prior, torch.nan)

    def in_multiples(self, curvature: Problem, prior: DiagonalPrior, noise_precision: Tensor) -> Problem:  # noqa: ARG002
        """Whose range is known, and none of its points."""

        def moments(at: Precisions) -> Moments:
            del at
            raise ValueError(LOST)

        return replace(curvature, moments=moments, one_by_one=True)

    def pack(self) -> Packed:
        return {"kind": self.kind, "weights": self.weights}, {}

    @staticmethod
    def unpack(plain: dict[str, Any], tensors: dict[str, Tensor], context: Any) -> Lost:
        """The fit of a file."""
        del plain, tensors
        return Lost(len(context.prior.scale))

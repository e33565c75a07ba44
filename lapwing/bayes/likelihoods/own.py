"""A likelihood of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from lapwing.bayes.likelihoods import quadrature
from lapwing.bayes.likelihoods.expectation import Expectation, as_given, by_points, by_quadrature, own_variances
from lapwing.bayes.likelihoods.interface import Likelihood, counted
from lapwing.bayes.likelihoods.spread import Link, Spread

INDEFINITE = 1e-6  # of the largest curvature of a datum: what round-off may leave below zero


def likelihood(
    log_prob: Callable[[Tensor, Tensor], Tensor], *, outputs: int = 1,
    fisher: Callable[[Tensor], Tensor] | None = None, mean: Callable[[Tensor], Tensor] | None = None,
    sample: Callable[[Tensor, Tensor], Tensor] | None = None, valid: Callable[[Tensor], Tensor] | None = None,
) -> OwnLikelihood:  # fmt: skip
    """A likelihood from its log density, with derivatives by autodiff.

    With `outputs=1` every target has one output: `log_prob(outputs, targets)` takes two tensors of the same shape and
    returns a third, elementwise. With more, outputs are (n, outputs), targets (n,), and so is the result.

    The curvature B is the Hessian of −log p in the outputs, and must be positive semi-definite wherever it is needed;
    where it is not, an error says so, and `fisher(outputs)` must give the expected one: elementwise, or (n, outputs,
    outputs). Predictions then have a log density, by quadrature or, for several outputs, by Monte Carlo. The rest is
    optional: `mean(outputs)` of an observation, `sample(outputs, uniform)` one for each uniform number,
    `valid(targets)` true where a target is possible.

    Parameters
    ----------
    log_prob : callable
        `log_prob(outputs, targets)`, the log density of targets.
    outputs : int
        Outputs for each target.
    fisher : callable, optional
        `fisher(outputs)`, the Fisher information. Needed where −log p is not convex.
    mean : callable, optional
        `mean(outputs)` of an observation.
    sample : callable, optional
        `sample(outputs, uniform)`, one observation for each uniform number.
    valid : callable, optional
        `valid(targets)`, true where a target is possible.

    Returns
    -------
    OwnLikelihood
        To be passed to `lapwing.fit` as any other likelihood.

    Raises
    ------
    ValueError
        If the curvature is negative where it is needed and `fisher` is not given.

    Examples
    --------
    Waiting times with an exponential distribution, the output being the logarithm of their rate:

    >>> import lapwing as lw
    >>> waiting = likelihood(
    ...     lambda f, y: f - y * f.exp(),
    ...     mean=lambda f: (-f).exp(),
    ...     sample=lambda f, u: -(-f).exp() * (1 - u).log(),
    ...     valid=lambda y: y >= 0,
    ... )
    >>> x = torch.linspace(0, 1, 40).double()
    >>> y = waiting.sampled(1 + 2 * x, torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    >>> posterior = lw.infer(lw.LinearModel(torch.stack([torch.ones(40), x], 1), y, waiting), prior=lw.Isotropic(1.0))
    >>> prediction = posterior.predict([[1.0, 0.5]])
    >>> float(prediction.expectation), float(prediction.log_prob(torch.tensor([0.1])))
    (0.12..., 1.26...)
    """
    return OwnLikelihood(log_prob, outputs, fisher, mean, sample, valid)


@final
@dataclass(frozen=True)
class OwnLikelihood(Likelihood):
    """What `likelihood` makes."""

    function: Callable[[Tensor, Tensor], Tensor]
    outputs: int = 1
    fisher: Callable[[Tensor], Tensor] | None = None
    mean: Callable[[Tensor], Tensor] | None = None
    sample: Callable[[Tensor, Tensor], Tensor] | None = None
    valid: Callable[[Tensor], Tensor] | None = None

    asks: ClassVar[tuple[str, ...]] = ("epistemic_variance", "novelty", "log_prob(y)")

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise ValueError(f"outputs is {self.outputs}, expected how many outputs a target has: one or more")

    @property
    def curvature(self) -> str:  # type: ignore[override]
        """The Hessian, or the Fisher information where that was given."""
        return "Hessian" if self.fisher is None else "Fisher information"

    @property
    def log_concave(self) -> bool:
        """Whether −log p is convex in the outputs, as it is taken to be where no Fisher information was given."""
        return self.fisher is None

    @property
    def links(self) -> tuple[Link, ...]:
        """Quadrature for one output, Monte Carlo for several."""
        return ("quadrature", "monte carlo") if self.outputs == 1 else ("monte carlo",)

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,) or (n, m)
        """The targets of this many outputs, or an error."""
        most = 2 if self.outputs == 1 else 1
        if not 1 <= targets.ndim <= most or targets.numel() == 0 or targets.numel() * self.outputs != rows:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit {rows} outputs: this likelihood takes "
                f"{self.outputs} for each target"
            )
        values = targets.double()
        if self.valid is not None and not bool(self.valid(values).all()):
            wrong = values[~self.valid(values)]
            raise ValueError(
                f"{len(wrong)} targets are not valid under this likelihood, the first {float(wrong[0]):g}: see the "
                "function valid= that it was made with"
            )
        return values

    def targets_shape(self, outputs: torch.Size) -> torch.Size:
        """As many targets as outputs, or one for all outputs of a datum."""
        if self.outputs == 1:
            return outputs
        if len(outputs) < 2 or outputs[-1] != self.outputs:
            raise ValueError(
                f"outputs of shape {tuple(outputs)} do not fit a likelihood of {self.outputs} outputs: expected "
                f"(n, {self.outputs})"
            )
        return outputs[:-1]

    def reshape_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(targets.shape if self.outputs == 1 else (len(targets), self.outputs))

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # targets' shape
        """log p of each target."""
        found = self.function(outputs, targets)
        if not isinstance(found, Tensor) or found.shape != targets.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"log_prob returned {shape} for outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}: "
                f"expected one log density for each target, {tuple(targets.shape)}"
            )
        return found

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # outputs' shape
        """The gradient of log p in the outputs."""
        return counted(self._slope(outputs, targets, False)[0], weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:  # outputs' shape
        """The diagonal of B."""
        found = self._curvature(outputs, targets)
        return counted(found if self.outputs == 1 else found.diagonal(dim1=1, dim2=2), weights)

    def hessian_product(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """B times columns of shape (*outputs' shape, k)."""
        found = self._curvature(outputs, targets)
        return counted(found[..., None] * columns if self.outputs == 1 else found @ columns, weights)

    def hessian_root(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """S times columns of shape (*outputs' shape, k), with S the symmetric root of B."""
        found = self._curvature(outputs, targets)
        if self.outputs == 1:
            return counted(found.sqrt()[..., None] * columns, None if weights is None else weights.sqrt())
        values, vectors = torch.linalg.eigh(found)
        root = (vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT
        return counted(root @ columns, None if weights is None else weights.sqrt())

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:
        """E log p and its derivatives for outputs N(mean, covariance): by quadrature, or for several by points."""
        wide = targets.double() if targets.is_floating_point() else targets

        def values(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return self.log_density(at, wide), self._slope(at, wide, False)[0], self._hessian(at, wide)

        def at_points(at: Tensor, data: slice) -> tuple[Tensor, Tensor]:
            flat, again = at.flatten(1).mT, wide[data].repeat_interleave(at.shape[2])
            slopes = self._slope(flat, again, False)[0]
            return self.log_density(flat, again).reshape(at.shape[1:]), slopes.mT.reshape(at.shape)

        if self.outputs > 1:
            return by_points(at_points, mean, covariance, seed)
        found = by_quadrature(values, mean, own_variances(mean, covariance))
        return Expectation(found.log_density, found.gradient, as_given(found.curvature, covariance))

    def saved(self) -> dict[str, Any]:
        """Not known: functions are not written into files."""
        kinds = [kind.__name__ for kind in Likelihood.__subclasses__() if kind is not OwnLikelihood]
        raise ValueError(f"a posterior with likelihood OwnLikelihood cannot be saved: it can for {', '.join(kinds)}")

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> AveragedDensity:
        """The distribution of new observations."""
        return AveragedDensity(self, link, mean, spread)

    def noise_variance(self, mean: Tensor, spread: Spread) -> Tensor | str:  # noqa: ARG002
        """None: what noise is, is not known of a density."""
        return "a likelihood of your own has no aleatoric variance: use log_prob, or epistemic_variance of the outputs"

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """An observation for each uniform number."""
        if self.sample is None:
            raise ValueError("this likelihood cannot be sampled: make it with sample=, a function of outputs, uniform")
        return self.sample(outputs, uniform.to(outputs))

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # noqa: ARG002
        """Not known."""
        raise ValueError("a likelihood of your own has no entropy, so no mutual information: use epistemic_variance")

    def _slope(self, outputs: Tensor, targets: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = outputs.detach().clone().requires_grad_()
            total = self.log_density(at, targets.to(outputs) if targets.is_floating_point() else targets).sum()
            (slope,) = torch.autograd.grad(total, at, create_graph=create_graph)
        return slope, at

    def _hessian(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−∂² log p: elementwise, or (n, c, c)."""
        with torch.enable_grad():
            slope, at = self._slope(outputs, targets, True)
            parts = [slope] if self.outputs == 1 else slope.unbind(-1)
            rows = [
                torch.autograd.grad(part.sum(), at, retain_graph=True)[0]
                if part.requires_grad
                else torch.zeros_like(at)
                for part in parts
            ]
        return -rows[0] if self.outputs == 1 else -torch.stack(rows, dim=-2)

    def _curvature(self, outputs: Tensor, targets: Tensor | None) -> Tensor:  # outputs' shape, or (n, c, c)
        expected = outputs.shape if self.outputs == 1 else (*outputs.shape, self.outputs)
        if self.fisher is not None:
            found, name = self.fisher(outputs), "fisher(outputs)"
            if found.shape != expected:
                raise ValueError(f"fisher returned shape {tuple(found.shape)}, expected {tuple(expected)}")
        elif targets is None:
            raise ValueError("the curvature of this likelihood depends on the targets, which are not known here")
        else:
            found, name = self._hessian(outputs, targets), "the Hessian of −log p"
        if not bool(found.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite values: a target may be impossible, or an output too large")
        return _positive(found, name, self.outputs, given=self.fisher is not None)


def _positive(curvature: Tensor, name: str, outputs: int, *, given: bool) -> Tensor:
    """The curvature with round-off below zero taken away, or an error where it is not positive semi-definite."""
    if not curvature.numel():
        return curvature
    values = curvature[..., None] if outputs == 1 else torch.linalg.eigvalsh(curvature)
    least = values.min(-1).values
    wrong = least < -INDEFINITE * values.abs().max().clamp_min(1)
    if bool(wrong.any()):
        place = int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0])
        advice = (
            "return the expected curvature, which never has negative eigenvalues"
            if given
            else "−log p is not convex there, so make the likelihood with fisher=, the expected curvature"
        )
        raise ValueError(
            f"{name} must be positive semi-definite, and has an eigenvalue of {float(least.min()):.3g} (first at datum "
            f"{place}): {advice}"
        )
    return curvature.clamp_min(0) if outputs == 1 else curvature


@final
class AveragedDensity(Distribution):
    """The observations of a likelihood whose outputs are Gaussian: their density, and their mean where it is known."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real

    def __init__(self, of: OwnLikelihood, link: Link, outputs: Tensor, spread: Spread) -> None:
        self.of, self.link, self.outputs, self.spread = of, link, outputs, spread
        super().__init__(of.targets_shape(outputs.shape), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of observations."""
        if self.link == "monte carlo":
            draws = self.outputs + self.spread.deviations()
            terms = torch.stack([self.of.log_density(draw, value) for draw in draws])
            return terms.logsumexp(0) - log(len(terms))
        wide = value.double() if value.is_floating_point() else value
        return quadrature.log_average(
            lambda f: self.of.log_density(f, wide), lambda f: self.of.gradient(f, wide), self.outputs,
            self.spread.variance, concave=self.of.fisher is None,
        )  # fmt: skip

    @property
    def mean(self) -> Tensor:
        """The mean of an observation."""
        if self.of.mean is None:
            raise ValueError("the mean of an observation is not known: make the likelihood with mean=")
        if self.link == "monte carlo":
            return self.of.mean(self.outputs + self.spread.deviations()).mean(0)
        z, weights = quadrature.nodes()
        std = self.spread.variance.double().sqrt()
        terms = [w * self.of.mean(self.outputs.double() + std * at) for at, w in zip(z.tolist(), weights, strict=True)]
        return torch.stack(terms).sum(0).to(self.outputs)

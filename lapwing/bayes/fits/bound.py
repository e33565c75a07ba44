"""The best Gaussian over the weights of a linear model, by a lower bound on its evidence.

With outputs f = offset + Φθ, θ ~ N(0, A⁻¹) and q = N(m, Σ), Σ⁻¹ = A + ΦᵀBΦ, the bound is

    Σ E_q log p(y | f) − ½ (mᵀAm − tr(BV) + log det(I + A⁻¹ΦᵀBΦ)),    V = ΦΣΦᵀ, block by block.

Where it is largest B is the curvature of −log p averaged over q, and Am = Φᵀ E_q[∂ log p] (Opper and Archambeau 2009).
A step goes some way from B to that average and takes a Newton step with it: a natural gradient. Steps are mixed as
Anderson (1965) does, and no step is kept that lowers the bound.

Weights are whitened: θ = scale · α^−½ · z with z standard normal, so that f = offset + α^−½ Fz. B is kept as W = B/α.
At fixed z and W the precision α scales mean and width of the outputs together and leaves the rest of the bound alone:
that is how it is tuned, within the same loop, without a new factorisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, isfinite, log
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.fits.designs import Design
from lapwing.bayes.likelihoods.expectation import Expectation
from lapwing.bayes.linear_model import Remainder

MAX_STEPS = 150
DEPTH = 6  # steps that are mixed
MIXING = 0.7  # of the last of them
KEPT = 1  # of them after a mixture that was worse
FURTHEST = 3.0  # a mixture may go in log α
SHORTEST = 1e-8  # step, below which none raises the bound
ROUND_OFF = 1e-12  # of the bound
LARGEST_STEP = 1.5  # of log α
JUMP, NEARLY = 0.1, 1.0  # in log α from which on it is set to its fixed point, and nats from the best at this α
START = 2.0  # standard deviation of the outputs under the prior that a search begins with,
FAR = 1e9  # nats of its bound under the prior, below which it begins with a narrower Gaussian than that,
ENDS = 0.3, 16.0  # and those of rough searches, since the bound may have several maxima in α
WIDEST = 60.0, 1e4  # standard deviation of the outputs under the prior, of several and of one; there only ratios count
ROUGH, ROUGH_STEPS = 0.05, 12  # nats and steps of those
FEW = 1500  # data that a search over many begins with: these first,
TIMES = 6  # then as many times more, until it has all of them

Data = Tensor | slice  # places of some data
Expected = Callable[[Tensor, Tensor, Data], Expectation]  # of outputs (n, k) with covariances (n, k, k) of those
ALL = slice(None)
SAME = 0.5  # in log α: a rough search that ends this near to a maximum has found that one


@final
@dataclass(frozen=True, eq=False)
class ContrastRows:
    """What a likelihood sees of whitened weights: a few outputs k for each of n data."""

    free: Design  # (n, k, q), columns of weights whose precision is looked for
    fixed: Design  # (n, k, p), columns of weights with a given precision, in units of their prior
    left_out: Tensor | None  # (n, k, k), variance that the prior at unit precision has outside of the free columns
    offset: Tensor  # (n, k)
    weights: Tensor  # (n,), how often each datum counts
    expected: Expected
    data: Data = field(default_factory=lambda: ALL)  # of those that the likelihood knows
    rest: Remainder | None = None  # what other data add, in the same units as the columns

    @property
    def size(self) -> int:
        """Weights, q + p."""
        return self.free.shape[2] + self.fixed.shape[2]

    @cached_property
    def prior_variance(self) -> float:
        """The mean variance of an output at unit precision."""
        total = self.free.energy()
        if self.left_out is not None:
            total += float(self.left_out.diagonal(dim1=1, dim2=2).sum())
        return max(total / max(1, self.offset.numel()), 1e-300)

    @cached_property
    def lowest(self) -> float:
        """log α below which outputs are so wide that points no longer tell one width from another."""
        return log(self.prior_variance / WIDEST[self.offset.shape[1] == 1] ** 2)

    def without(self, columns: int) -> ContrastRows:
        """The same with so many free columns of zeros: weights whose prior has no width."""
        rest = None if self.rest is None else replace(self.rest, pull=self._of_fixed(self.rest.pull, columns))
        return replace(self, free=self.free.without(columns), left_out=None, rest=rest)

    def _of_fixed(self, pull: Tensor, columns: int) -> Tensor:
        """A pull on the weights with a given precision alone, behind so many free ones."""
        return torch.cat([pull.new_zeros(columns), pull[self.free.shape[2] :]])

    @cached_property
    def few(self) -> ContrastRows | None:
        """Data evenly taken from these, about a sixth of them; None where that would save little.

        Each counts for itself. Were it to count for all that it stands for, weights as many as these data would
        interpolate them, and the best precision would be far from that of all data.
        """
        n = len(self.offset)
        if n < TIMES * FEW:
            return None
        places = torch.linspace(0, n - 1, max(FEW, n // TIMES), dtype=torch.float64).round().long()
        known = torch.arange(int(places.max()) + 1)[self.data] if isinstance(self.data, slice) else self.data
        return replace(
            self, free=self.free.of_data(places), fixed=self.fixed.of_data(places), offset=self.offset[places],
            left_out=None if self.left_out is None else self.left_out[places], data=known[places],
            weights=self.weights[places], rest=None if self.rest is None else self.rest.times(len(places) / n),
        )  # fmt: skip

    def columns(self, log_precision: float) -> Design:  # (n, k, q + p)
        """All columns in units of the free ones."""
        if not self.fixed.shape[2]:
            return self.free
        return self.free.beside(self.fixed, exp(0.5 * log_precision))

    def pull(self, log_precision: float) -> Tensor:  # (q + p,)
        """The gradient that other data add to every whitened weight: that in the outputs' units over √α."""
        if self.rest is None:
            return torch.zeros(self.size, dtype=torch.float64)
        pull, free = self.rest.pull.clone(), self.free.shape[2]
        pull[:free] *= exp(-0.5 * log_precision)
        return pull

    def added(self, mean: Tensor, log_precision: float) -> float:
        """What other data add to log p at a mean of the whitened weights."""
        return 0.0 if self.rest is None else self.rest.level + float(self.pull(log_precision) @ mean)


@final
@dataclass(frozen=True, eq=False)
class Averages:
    """What the likelihood says of outputs with a mean and covariances, in units of the free columns."""

    log_density: float  # Σ E log p
    gradient: Tensor  # (n, k)
    curvature: Tensor  # (n, k, k), the W that these outputs ask for


@final
@dataclass(frozen=True, eq=False)
class Approximation:
    """A Gaussian over the whitened weights, and how good it is."""

    log_precision: float
    mean: Tensor  # (q + p,), z
    curvature: Tensor  # (n, k, k), W
    factor: Tensor  # (q + p, q + p), Cholesky factor of I + DᵀWD
    outputs: Tensor  # (n, k), Dz
    variances: Tensor  # (n, k, k), DΣDᵀ with what was left out
    shared: Tensor  # (n, k, k), the same with the free columns alone on the right
    determined: float  # γ = tr(WV)
    divergence: float  # KL from the prior
    averages: Averages
    residual: Tensor  # (q + p,), Dᵀg − z
    slope: float  # of the bound in log α at fixed z and W

    @property
    def bound(self) -> float:
        """The lower bound on the log evidence."""
        return self.averages.log_density - self.divergence

    @cached_property
    def change(self) -> Tensor:  # (n, k, k)
        """From W to what the likelihood asks for."""
        return self.averages.curvature - self.curvature

    @cached_property
    def newton(self) -> Tensor:  # (q + p,)
        """The Newton step of the mean."""
        return torch.cholesky_solve(self.residual[:, None], self.factor)[:, 0]

    @cached_property
    def gap(self) -> float:
        """Nats that a step would gain if the bound were as curved as it is at its maximum; of W, datum by datum."""
        change = self.change @ self.variances
        return 0.5 * float(self.residual @ self.newton) + 0.25 * float((change * change.mT).sum().abs())


@final
@dataclass(frozen=True, eq=False)
class Ascent:
    """Where a search ended."""

    at: Approximation
    steps: int
    evaluations: int
    converged: bool


@final
class Search:
    """A search for the maximum of the bound, in (z, W) and where it is free in α: the state of one loop."""

    def __init__(self, rows: ContrastRows, tol: float, max_steps: int) -> None:
        self.rows, self.tol, self.max_steps = rows, tol, max_steps
        self.evaluations = 0
        self.stiffness = 1.0  # minus the second derivative of the bound in log α

    def start(self, log_precision: float) -> Approximation:
        """The prior itself, or where that is far from any maximum the best of Gaussians with one curvature for all.

        An average of e^f under a wide prior may be finite and as large as 1e300, from where no step finds back.
        """
        n, k = self.rows.offset.shape
        mean = torch.zeros(self.rows.size, dtype=torch.float64)
        units = torch.eye(k, dtype=torch.float64).expand(n, k, k) / self.rows.prior_variance
        best = self.at(log_precision, mean, 0 * units)
        if best is not None and best.bound >= -FAR:
            return best
        for power in range(-6, 13):
            found = self.at(log_precision, mean, 10.0**power * units)
            if found is not None and best is not None and found.bound < best.bound:
                return best
            best = found or best
        if best is not None:
            return best
        raise FloatingPointError(
            "the likelihood has no finite average under so wide a prior: use a larger prior precision"
        )

    def at(
        self,
        log_precision: float,
        mean: Tensor,
        curvature: Tensor,
        towards: float = 0.0,
        residual: Tensor | None = None,
    ) -> Approximation | None:
        """The Gaussian with this W, its mean as given or a Newton step from there; None where there is none."""
        self.evaluations += 1
        columns = self.rows.columns(log_precision)
        precision = columns.gram(curvature)
        precision.diagonal().add_(1)
        factor, failed = torch.linalg.cholesky_ex(precision)
        if int(failed):
            return None
        if residual is not None:
            mean = mean + towards * torch.cholesky_solve(residual[:, None], factor)[:, 0]
        inside, shared = columns.variances(factor, self.rows.free.shape[2])
        determined = float((curvature * inside).sum())
        log_det = 2 * float(factor.diagonal().log().sum())
        divergence = 0.5 * (float(mean @ mean) - determined + log_det)
        known = Approximation(
            log_precision, mean, curvature, factor, columns.outputs(mean), self._with_left_out(inside),
            self._with_left_out(shared), determined, divergence, Averages(0.0, mean, mean), mean, 0.0,
        )  # fmt: skip
        return self.averaged(known, log_precision)

    def from_few(self, found: Approximation) -> Approximation | None:
        """The Gaussian that was found with few of the data, with the curvature that it has at all of them."""
        columns = self.rows.columns(found.log_precision)
        inside, shared = columns.variances(found.factor, self.rows.free.shape[2])
        outputs = columns.outputs(found.mean)
        wide = replace(
            found, outputs=outputs, variances=self._with_left_out(inside), shared=self._with_left_out(shared)
        )
        seen = self.averaged(wide, found.log_precision)
        return None if seen is None else self.at(found.log_precision, found.mean, seen.averages.curvature)

    def _with_left_out(self, variances: Tensor) -> Tensor:  # (n, k, k)
        return variances if self.rows.left_out is None else variances + self.rows.left_out

    def averaged(self, at: Approximation, log_precision: float) -> Approximation | None:
        """The same z and W at another precision: no factorisation where no columns are fixed."""
        rows, std = self.rows, exp(-0.5 * log_precision)
        found = rows.expected(rows.offset + std * at.outputs, std**2 * at.variances, rows.data)
        total = float(rows.weights @ found.log_density) + rows.added(at.mean, log_precision)
        gradient = std * rows.weights[:, None] * found.gradient
        curvature = std**2 * rows.weights[:, None, None] * found.curvature
        if not (isfinite(total) and bool(curvature.isfinite().all()) and bool(gradient.isfinite().all())):
            return None
        pull, free = rows.pull(log_precision), rows.free.shape[2]
        residual = rows.columns(log_precision).adjoint(gradient) + pull - at.mean
        moving = float((gradient * rows.free.outputs(at.mean[:free])).sum() + pull[:free] @ at.mean[:free])
        slope = 0.5 * (float((curvature * at.shared).sum()) - moving)
        return replace(
            at, log_precision=log_precision, averages=Averages(total, gradient, curvature), residual=residual,
            slope=slope,
        )  # fmt: skip

    def moved(self, at: Approximation, log_precision: float) -> Approximation | None:
        """The same z and W at another precision."""
        if self.rows.fixed.shape[2]:
            return self.at(log_precision, at.mean, at.curvature)
        return self.averaged(at, log_precision)

    def ascend(self, at: Approximation, tune: bool) -> Ascent:
        """Uphill from a Gaussian until a step would gain less than the tolerance."""
        self.stiffness = max(1.0, at.determined / 4)
        history: list[Approximation] = []
        length = 1.0
        for steps in range(self.max_steps):
            if at.gap <= self.tol and (not tune or self._is_tuned(at)):
                return Ascent(at, steps, self.evaluations, True)
            history = [*history, at][-DEPTH:]
            found = self._higher(self._mixed(at, history), at) if len(history) > 1 else None
            while found is None:
                history = history[-KEPT:]
                curvature = at.curvature + length * at.change
                trial = self.at(at.log_precision, at.mean, curvature, length, at.residual)
                found = self._higher(trial, at)
                if found is None and length < SHORTEST:
                    return Ascent(at, steps, self.evaluations, at.gap <= 100 * self.tol)
                length = 0.5 * length if found is None else min(1.0, 1.5 * length)
            at = self._jumped(self._tuned(found)) if tune else found
        return Ascent(at, self.max_steps, self.evaluations, False)

    def _is_tuned(self, at: Approximation) -> bool:
        """Whether no step of α gains more than the tolerance, with z kept or with m, or none is left to go."""
        if at.log_precision <= self.rows.lowest + 1e-3 and at.slope < 0:
            return True
        return at.slope**2 <= 2 * self.stiffness * self.tol and self._from_fixed_point(at)[1] <= self.tol

    def _from_fixed_point(self, at: Approximation) -> tuple[float, float]:
        """How far log α is from MacKay's γ/‖m‖² with B and m kept, and the nats that going there would gain.

        What was left out of the free columns is under the prior, so that B times its variance counts beside γ.
        """
        determined = float((at.curvature * at.shared).sum())
        squared = float(at.mean[: self.rows.free.shape[2]].square().sum())
        if min(determined, squared) <= 0:
            return 0.0, 0.0
        away = log(determined / squared)
        return away, 0.25 * determined * away**2

    def _jumped(self, at: Approximation) -> Approximation:
        """At that fixed point, where it is some way off and better.

        Where data determine the weights, steps of α at fixed z are short: they drag the outputs along.
        """
        away, _ = self._from_fixed_point(at)
        step = max(-LARGEST_STEP, min(LARGEST_STEP, away), self.rows.lowest - at.log_precision)
        if at.gap > NEARLY or abs(step) < JUMP:
            return at
        mean = at.mean.clone()
        mean[: self.rows.free.shape[2]] *= exp(0.5 * step)
        found = self.at(at.log_precision + step, mean, at.curvature * exp(-step))
        return found if found is not None and found.bound > at.bound else at

    def _higher(self, found: Approximation | None, than: Approximation) -> Approximation | None:
        """A Gaussian, unless its bound is lower than that of another."""
        if found is None or not found.bound >= than.bound - ROUND_OFF * (1 + abs(than.bound)):
            return None
        return found

    def _mixed(self, at: Approximation, history: list[Approximation]) -> Approximation | None:
        """Anderson's mixture of the last steps, their residuals measured in posterior standard deviations."""
        trace = at.variances.diagonal(dim1=1, dim2=2).sum(1)
        jitter = (1e-11 * trace + 1e-300)[:, None, None] * torch.eye(at.variances.shape[1], dtype=torch.float64)
        root = torch.linalg.cholesky_ex(at.variances + jitter)[0]

        def measured(one: Approximation) -> Tensor:
            return torch.cat([at.factor.mT @ one.newton, 0.5**0.5 * (root.mT @ one.change @ root).reshape(-1)])

        residuals = torch.stack([measured(one) for one in history])
        differences = residuals[-1] - residuals[:-1]
        gram = differences @ differences.mT
        gram.diagonal().add_(1e-10 * gram.diagonal().max() + 1e-300)
        weights = torch.linalg.solve(gram, differences @ residuals[-1])
        shares = [*weights.tolist(), 1 - float(weights.sum())]
        log_precision = sum(share * one.log_precision for share, one in zip(shares, history, strict=True))
        if not isfinite(log_precision) or abs(log_precision - at.log_precision) > FURTHEST:
            return None
        mean, curvature = torch.zeros_like(at.mean), torch.zeros_like(at.curvature)
        for share, one in zip(shares, history, strict=True):
            mean += share * (one.mean + MIXING * one.newton)
            curvature += share * (one.curvature + MIXING * one.change)
        return self.at(max(log_precision, min(self.rows.lowest, at.log_precision)), mean, curvature)

    def _tuned(self, at: Approximation) -> Approximation:
        """A secant step of log α towards a slope of zero."""
        limit = LARGEST_STEP
        for _ in range(3):
            step = max(-limit, min(limit, at.slope / self.stiffness))
            step = max(step, min(0.0, self.rows.lowest - at.log_precision))
            if abs(step) < 1e-12:
                return at
            found = self.moved(at, at.log_precision + step)
            if found is not None:
                stiffness = (at.slope - found.slope) / step
                self.stiffness = max(stiffness, 1e-3 * self.stiffness, 1e-6) if stiffness > 0 else self.stiffness / 3
                if self._higher(found, at) is not None:
                    return found
            limit = abs(step) / 2
        return at


def maximum(rows: ContrastRows, tol: float, max_steps: int = MAX_STEPS, *, from_ends: bool = True) -> Ascent:
    """The best Gaussian at the best precision, which is looked for from a moderate one and from both ends."""
    best = _tuned_from(rows, START, tol, max_steps)
    for std in ENDS if from_ends else ():
        rough = _tuned_from(rows, std, max(tol, ROUGH), ROUGH_STEPS)
        elsewhere = abs(rough.at.log_precision - best.at.log_precision) > SAME
        if elsewhere and rough.at.bound > best.at.bound - 2 * ROUGH:
            search = Search(rows, tol, max_steps)
            best = max(best, search.ascend(rough.at, tune=True), key=lambda one: one.at.bound)
    return best


def _tuned_from(rows: ContrastRows, std: float, tol: float, max_steps: int) -> Ascent:
    """The maximum that a search finds which begins at this standard deviation of the outputs under the prior."""
    search, start = Search(rows, tol, max_steps), None
    if rows.few is not None:
        start = search.from_few(_tuned_from(rows.few, std, max(tol, ROUGH), max_steps).at)
    return search.ascend(start or search.start(log(rows.prior_variance / std**2)), tune=True)


def at_precision(rows: ContrastRows, log_precision: float, tol: float, max_steps: int = MAX_STEPS) -> Ascent:
    """The best Gaussian at a precision."""
    search = Search(rows, tol, max_steps)
    return search.ascend(search.start(log_precision), tune=False)


def from_near(rows: ContrastRows, near: Ascent, log_precision: float, tol: float, max_steps: int = MAX_STEPS) -> Ascent:
    """The best Gaussian at a precision, from that at another: at the same z and W, or with B and m kept."""
    search = Search(rows, tol, max_steps)
    at = near.at
    change = exp(at.log_precision - log_precision)
    starts = [
        search.moved(at, log_precision),
        search.at(log_precision, at.mean / change**0.5, at.curvature * change),
    ]
    known = [one for one in starts if one is not None] or [search.start(log_precision)]
    return search.ascend(max(known, key=lambda one: one.bound), tune=False)

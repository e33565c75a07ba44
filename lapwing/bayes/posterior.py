"""A posterior over the weights of a linear model, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes import evidence, tuning
from lapwing.bayes.approximate import Approximate, AtWeights, Nearby
from lapwing.bayes.evidence import EvidenceParts, Precisions
from lapwing.bayes.iterative import Drawn, Sampler
from lapwing.bayes.laplace import AtMode, Known, Tangent
from lapwing.bayes.leave_one_out import LeaveOneOut, leave_one_out
from lapwing.bayes.likelihoods import Gaussian, Likelihood
from lapwing.bayes.linear_model import Centre, LinearModel, check_finite
from lapwing.bayes.links import Link
from lapwing.bayes.network_draws import NO_NOISE, network_draws
from lapwing.bayes.noise import DATA, PRIOR, SAMPLE, Noise
from lapwing.bayes.predictive import Labels, Prediction
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.spreads import Seen, over_ratio, seen
from lapwing.bayes.statistics import NO_CLOSED_FORM, Ritz, Statistics, Whitened, converged, scaled_features, whiten
from lapwing.linalg import krylov
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import Diagonal, LinearOperator, as_tensor, over_parts, row_blocks
from lapwing.linalg.solvers import CG, Preconditioner
from lapwing.linalg.spectral import Spectrum

LINK: Link = "full probit"
ROUGH = 0.05  # draws by CG or SGD whose error bound is larger are reported as not converged


@final
@dataclass(frozen=True, eq=False)
class Verification:
    """Our predictive variances beside those of an independent solve."""

    ours: Tensor
    reference: Tensor
    rtol: float = 1e-8

    @property
    def relative_error(self) -> float:
        """The largest relative error of our variances."""
        return float(((self.ours - self.reference).abs() / self.reference.clamp_min(1e-300)).max())

    def __repr__(self) -> str:
        return (
            f"largest relative error of {len(self.ours)} predictive variances: {self.relative_error:.1e} "
            f"(against conjugate gradients to {self.rtol:.0e})"
        )


@final
@dataclass(frozen=True, eq=False)
class Posterior:
    """N(mean, H⁻¹) over the weights, with its prior, noise and evidence.

    Made by `infer`. `at` and `tune` return new posteriors from compressed statistics, without the training data.
    """

    statistics: tuple[Statistics, ...] | Sampler | Approximate = field(repr=False)  # what is known of the data
    prior: DiagonalPrior
    noise_precision: Tensor  # (noise groups,), relative to the noise given, to one where it is tuned
    given: Gaussian  # the likelihood as it was asked for
    outputs: int | None  # None for targets of shape (n,)
    belief: Whitened | Drawn = field(repr=False)
    mean: Tensor = field(repr=False)  # (d,)
    deviations: Tensor = field(repr=False)  # (d, draws), zero-mean
    evidence_parts: EvidenceParts
    log_evidence: Estimate  # log p(y) at the precisions of this posterior
    effective_dimension: Estimate  # γ = tr(H⁻¹M), how many weights the data determined
    seed: int
    diagnostics: dict[str, Any] = field(repr=False)
    features_at: Callable[[Any], LinearOperator] = field(repr=False)
    centre: Centre | None = field(repr=False, default=None)
    model: LinearModel | None = field(repr=False, default=None)
    held_out_curve: tuning.Curve | None = field(repr=False, default=None)
    tangent: Tangent | None = field(repr=False, default=None)  # of a likelihood that is not Gaussian
    at_mode: AtMode | None = field(repr=False, default=None)
    link: Link = LINK
    temperature: float = 1.0  # of class labels: logits are divided by it

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with its noise as tuned or given."""
        return self._gaussian if self.tangent is None else self.tangent.likelihood

    @property
    def _gaussian(self) -> Gaussian:
        std = self.noise_precision.rsqrt()
        if self.given.noise_std is not None:
            return replace(self.given, noise_std=self.given.noise_std * std[0])
        return replace(self.given, noise_std=std if self.given.per_output and self.outputs else std[0])

    @property
    def draws(self) -> Tensor:  # (d, draws)
        """Posterior draws of the weights, as columns: the same for the same seed, by whatever method."""
        return self.mean[:, None] + self.deviations

    @property
    def covariance(self) -> Tensor:  # (d, d)
        """The posterior covariance as a matrix: for small models."""
        return self._closed_form().covariance()

    def sample(self, n: int) -> Tensor:  # (d, n)
        """Fresh posterior draws of the weights, as columns, beyond those in `draws`."""
        normals = Noise(self.seed, SAMPLE).rows(0, len(self.mean), n)
        return self.mean[:, None] + self._closed_form().root(normals)

    def functions(self, inputs: Any) -> Tensor:  # (draws, *outputs)
        """Joint draws of the model's outputs, from the same weights at every call.

        Those of a network are its own outputs plus J z.
        """
        features = self._features(inputs)
        centre = self._mean(features, inputs, "network")
        return centre + (features @ self.deviations.to(features.like)).mT.reshape(-1, *centre.shape)

    def _mean(self, features: LinearOperator, inputs: Any, mean: Literal["network", "linear"]) -> Tensor:
        if self.centre is None:
            return self._shaped(features @ self.mean.to(features.like))
        outputs = self.centre.outputs_at(inputs)
        if mean == "network":
            return outputs
        shift = features @ (self.mean.to(features.like) - self.centre.weights.to(features.like))
        return outputs + shift.reshape(outputs.shape)

    def predict(
        self, inputs: Any, *, batch_size: int | None = None, link: Link | None = None, bounds: bool = False,
        mean: Literal["network", "linear"] = "network",
    ) -> Prediction:  # fmt: skip
        """The predictive distribution at new inputs: closed form or from draws, with function draws beside it.

        The mean of a linearised network is the network's own output, or with mean="linear" that of the linear model.
        `link` says how logits become probabilities; None is the one that the precision was tuned with. With `bounds`, a
        Krylov posterior adds lower and upper bounds on its variances, which on the dual side take a pass over the
        training data.
        """
        features = self._features(inputs)
        centre, tangent, draws = self._mean(features, inputs, mean), self.tangent, self.deviations.shape[1]
        seen = self._seen(features, centre, batch_size)
        spread = seen.spread.like(centre)
        return Prediction(
            mean=centre,
            epistemic_variance=spread.variance,
            prior_variance=seen.prior_variance.to(centre),
            noise_variance=self._gaussian.variance_at(self.outputs) if tangent is None else NO_NOISE,
            draws=centre + seen.draws.to(centre) if draws else None,
            standard_error=None if self.belief.exact else spread.variance * (2 / draws) ** 0.5,
            bounds=self._bounds(features) if bounds else None,
            seed=self.seed,
            labels=tangent and Labels(tangent.likelihood, link or self.link, spread, self.temperature),
        )

    def predict_unlinearised(self, inputs: Any) -> Prediction:
        """The baseline that linearising was invented against: the network itself at its weights plus each draw.

        Mean and variance are those of the draws, probabilities averages over them. The covariance belongs to the
        linear model, and weights that are likely under it can be nonsense to the network: do not use this, compare.
        """
        return network_draws(
            self.centre, inputs, self.deviations, self.prior.std[:, None] * self._prior_noise(), self.likelihood,
            self.seed,
        )  # fmt: skip

    def _seen(self, features: LinearOperator, centre: Tensor, batch_size: int | None) -> Seen:
        return seen(
            self.belief, features, tuple(centre.shape), self.deviations, self._prior_noise(),
            full=self.tangent is not None, seed=self.seed, batch_size=batch_size,
        )  # fmt: skip

    def at(self, precision: Any = None, noise_std: Any = None) -> Posterior:
        """The posterior at another prior precision or noise, without the training data.

        `precision` is a number, one per group, or a mapping by group name.
        """
        prior = self.prior if precision is None else self.prior.with_precision(precision)
        noise = self.noise_precision if noise_std is None else self._relative_precision(noise_std)
        return assemble(self, prior, noise, tuned_by="given")

    def tune(
        self, validation: Any, *, link: Link | None = None, temperature: float | Literal["tune"] = 1.0,
        mode: bool = True,
    ) -> Posterior:  # fmt: skip
        """The posterior whose precision (and noise, unless it was given) does best on held-out data.

        `validation` is a pair of inputs and targets. The whole curve comes from one product with the validation
        features, without the training data; it stays in `curve`. For class labels temperature scaling on the same data
        is reported in `diagnostics`; it is mixed in only by temperature="tune", where it tends to take over. Without
        `mode` the linear mode and the evidence there are not found.
        """
        inputs, targets = validation
        if self.tangent is not None:
            return self._tuned_by_labels(self.tangent, inputs, targets, link or self.link, temperature, mode)
        features, tune_noise = self._features(inputs), self.given.noise_std is None
        known, outputs = self.statistics, None if self.centre is None else self.centre.outputs_at(inputs)
        if isinstance(self.belief, Whitened) and not (isinstance(known, Approximate) and outputs is None):
            curve = tuning.held_out(
                self.belief, self._evidence_problem(), features, targets, prior_noise=self._prior_noise(),
                noise_variance=self._gaussian.variance_at(self.outputs), tune_noise=tune_noise, outputs=outputs,
                with_evidence=not isinstance(known, Approximate) or known.fits is None or known.fits.are_cheap,
            )  # fmt: skip
        else:
            curve = tuning.by_solving(self._at_multiple, inputs, targets)
        tuned = self._at_multiple(curve.best_precision, curve.best_noise, "held-out density")
        return replace(tuned, held_out_curve=curve.scaled(float(self.prior.precision[0])))

    def _tuned_by_labels(
        self, tangent: Tangent, inputs: Any, targets: Any, link: Link, temperature: float | Literal["tune"], mode: bool
    ) -> Posterior:
        features = self._features(inputs)
        outputs = self._mean(features, inputs, "network").double()
        labels = tangent.likelihood.checked(as_tensor(targets).reshape(tangent.targets_shape(outputs)), outputs.numel())
        scaling = tuning.scale_temperature(tangent.likelihood, outputs, labels)
        if isinstance(self.belief, Whitened):
            spread = over_ratio(self.belief, features, tuple(outputs.shape), self._prior_noise(), self.seed)
            curve, at_temperature = tuning.held_out_labels(
                tangent.likelihood, link, outputs, labels, spread, self._evidence_problem(),
                with_evidence=tangent.is_cheap, temperature=temperature,
            )  # fmt: skip
        elif temperature == "tune":
            raise ValueError(
                "temperature='tune' takes a posterior by Exact() or Krylov(): CG and SGD solve one at a time"
            )
        else:
            of_link, at_temperature = replace(self, link=link, temperature=temperature), temperature
            curve = tuning.by_solving(lambda a, b: of_link._at_multiple(a, b, mode=False), inputs, labels)
        tuned = self._at_multiple(curve.best_precision, 1.0, "held-out density", mode)
        found = {
            "held_out": float(curve.held_out.max()) if curve.held_out is not None else None,
            "temperature_scaling": asdict(scaling), "link": link, "validation_size": len(labels),
        }  # fmt: skip
        return replace(
            tuned, held_out_curve=curve.scaled(float(self.prior.precision[0])), link=link, temperature=at_temperature,
            diagnostics={**tuned.diagnostics, **found},
        )  # fmt: skip

    def _at_multiple(self, precision: float, noise: float, tuned_by: str = "given", mode: bool = True) -> Posterior:
        prior = replace(self.prior, precision=self.prior.precision * precision)
        return assemble(self, prior, self.noise_precision * noise, tuned_by=tuned_by, mode=mode)

    @property
    def curve(self) -> tuning.Curve:
        """Log evidence over the prior precision, and the held-out density where it was tuned by that.

        A noise that is tuned takes its best value at each precision.
        """
        if self.held_out_curve is not None:
            return self.held_out_curve
        tune_noise, points = self.given.noise_std is None, tuning.POINTS if self.tangent is None else 21
        return tuning.by_evidence(self._evidence_problem(), tune_noise, points).scaled(float(self.prior.precision[0]))

    def leave_one_out(self) -> LeaveOneOut:
        """Leverages and leave-one-out predictions of the training data, without refitting."""
        if self.tangent is not None or isinstance(self.statistics, Approximate):
            raise ValueError("leave-one-out predictions are there for Gaussian noise and Exact() only")
        model = self._training_model("leave-one-out predictions")
        noise = self.noise_precision[model.gaussian.row_groups(model.targets)]
        return leave_one_out(model, self._closed_form(), noise * model.gaussian.row_precision(model.targets))

    def verify(self, inputs: Any, count: int = 5) -> Verification:
        """Re-solve the variance of the first few outputs by conjugate gradients on the data themselves."""
        model = self._training_model("verify")
        features = self._features(inputs)
        rows = features.rows(0, min(count, features.shape[0])).double()
        scaled = self._whitened_features(model)
        whitened_rows = (self.belief.std * rows).mT.to(scaled.like)
        system = Diagonal(torch.ones_like(self.mean).to(scaled.like)) + scaled.T @ scaled
        rtol = 1e-8 if scaled.like.dtype == torch.float64 else 1e-5  # as far as products in this precision go
        solution = CG(rtol=rtol, max_steps=20 * len(self.mean) + 200).solve(system, whitened_rows).checked()
        shape = (features.shape[0],) if self.outputs is None else (features.shape[0] // self.outputs, self.outputs)
        ours = self._seen(features, torch.empty(shape), None).spread.variance.reshape(-1)
        return Verification(ours[: len(rows)], (whitened_rows * solution).double().sum(0), rtol)

    def residuals(self) -> Tensor:  # (1 + draws,)
        """True relative residuals of the mean and of every draw, from two products with the training data."""
        if isinstance(self.statistics, Approximate):
            raise ValueError("the draws of a structured posterior solve no equation of the data: see `verify`")
        model = self._training_model("residuals")
        root, kept = self._row_precision(model).sqrt_(), self.belief.std > 0
        scaled = scaled_features(model.features, root, self.belief.std)
        zero = torch.zeros_like(self.mean)[:, None]
        prior_noise = torch.cat([zero, self._prior_noise()], dim=1)
        data_noise = Noise(self.seed, DATA).table(len(root), self.deviations.shape[1])
        mean = self.mean if self.tangent is None else torch.zeros_like(self.mean)
        solved = torch.cat([mean[:, None], self.deviations], dim=1)
        solved = torch.where(kept[:, None], solved / torch.where(kept, self.belief.std, 1)[:, None], prior_noise)
        targets, like = model.targets.reshape(-1), scaled.like

        def sides(start: int, stop: int, part: LinearOperator) -> Tensor:
            seen = (root[start:stop] * targets[start:stop])[:, None]
            columns = torch.cat([seen, data_noise.rows(start, stop)], dim=1).to(like)
            both = torch.cat([columns, columns - part.matmat(solved.to(like))], dim=1)
            return part.rmatmat(both).double()

        right, error = (over_parts(scaled, sides) + torch.cat([prior_noise] * 2, dim=1)).chunk(2, dim=1)
        return (error - solved).norm(dim=0) / right.norm(dim=0).clamp_min(1e-300)

    def save(self, path: Path | str) -> Path:
        """Write this posterior into a file that `lapwing.load(path, model)` reads; the training data stay out of it."""
        from lapwing.bayes.files import save

        return save(self, path)

    def _row_precision(self, model: LinearModel) -> Tensor:  # (n * m,)
        noise = self.noise_precision[model.gaussian.row_groups(model.targets)]
        return noise.mul_(model.gaussian.row_precision(model.targets)).mul_(model.row_counts)

    def _whitened_features(self, model: LinearModel) -> LinearOperator:
        return scaled_features(model.features, self._row_precision(model).sqrt(), self.belief.std)

    def _bounds(self, features: LinearOperator) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds on the epistemic variance; equal where it has a closed form."""
        known = self.statistics
        if not isinstance(known, tuple) or not known:
            raise ValueError("bounds come from a Krylov space: infer with method=Krylov(), or leave bounds out")
        if not isinstance(known[0].basis, Ritz):
            shape = (features.shape[0],) if self.outputs is None else (features.shape[0] // self.outputs, self.outputs)
            exact = self._seen(features, torch.empty(shape), None).spread.variance
            return exact, exact
        space, alpha, beta = known[0].basis.space, float(self.prior.precision), float(self.noise_precision)
        blocks = [
            krylov.variances(
                space, rows.double() * self.prior.scale, alpha=alpha, beta=beta, operator=known[0].basis.operator
            )
            for rows in row_blocks(features)
        ]
        return (
            self._shaped(torch.cat([block.lower for block in blocks])),
            self._shaped(torch.cat([block.upper for block in blocks])),
        )

    def _prior_noise(self) -> Tensor:  # (d, draws)
        return Noise(self.seed, PRIOR).rows(0, len(self.mean), self.deviations.shape[1])

    def _features(self, inputs: Any) -> LinearOperator:
        features = self.features_at(inputs)
        check_finite("inputs", features)
        if features.shape[1] != len(self.mean):
            raise ValueError(f"inputs have {features.shape[1]} features, the model was fitted with {len(self.mean)}")
        return features

    def _shaped(self, values: Tensor, lead: int = 0) -> Tensor:
        return values if self.outputs is None else values.unflatten(lead, (-1, self.outputs))

    def _relative_precision(self, noise_std: Any) -> Tensor:
        std = Gaussian(noise_std).noise_std
        base = self.given.noise_std
        if (base is not None and base.ndim) or std.shape not in ((), self.noise_precision.shape):
            raise ValueError(
                f"cannot set noise_std of shape {tuple(std.shape)} here: this model has "
                f"{len(self.noise_precision)} noise value(s); infer again with the likelihood you want"
            )
        return ((1.0 if base is None else base) / std).square().expand(self.noise_precision.shape)

    def _evidence_problem(self) -> evidence.Problem:
        """The evidence in multiples of the current precisions: always shift-invariant."""
        if not isinstance(self.belief, Whitened):
            raise ValueError("CG and SGD know the evidence at one precision only: infer with Exact() or Krylov()")
        if isinstance(self.statistics, Approximate):
            problem = self.statistics.in_multiples(self.prior, self.noise_precision)
        else:
            group_of, one = torch.zeros_like(self.prior.group_of), torch.ones(1).double()
            tied = DiagonalPrior(self.belief.std, group_of, one, ("all",))
            problem = evidence.problem((self.belief.statistics,), tied)
        if self.tangent is None or _at_weights(self.statistics):
            return problem
        multiple = self.tangent.in_multiples(self.prior.precision)
        return replace(
            problem, moments=multiple.moments(problem.moments), counts=torch.zeros(1).double(), one_by_one=True
        )

    def _closed_form(self) -> Whitened:
        if not isinstance(self.belief, Whitened):
            raise ValueError(NO_CLOSED_FORM)
        return self.belief

    def _training_model(self, purpose: str) -> LinearModel:
        if self.model is None:
            raise ValueError(f"{purpose} need the training data, which this posterior does not carry: infer it again")
        return self.model

    def _noise_in_words(self) -> str:
        if self.tangent is not None:
            heat = "" if self.temperature == 1 else f", temperature {self.temperature:.3g}"
            return f"likelihood          {type(self.tangent.likelihood).__name__}, {self.link} link{heat}"
        how = "tuned" if self.given.noise_std is None else "given"
        return f"noise std           {_listed(self._gaussian.noise_std.reshape(-1))}, {how}"

    def __repr__(self) -> str:
        d = self.diagnostics
        how = self._noise_in_words()
        lines = [
            f"Posterior over {len(self.mean):,} weights, given {d['observations']:,} observations",
            f"  method              {d['method']} ({d['why']})",
            f"  prior precision     {_listed(self.prior.precision)}{_pruned(self.prior)}, by {d['tuned_by']}",
            f"  {how}",
            f"  effective dimension {self.effective_dimension}",
            f"  log evidence        {self.log_evidence}",
            f"  draws               {self.deviations.shape[1]}, seed {self.seed}",
        ]
        return "\n".join(lines)


def variances(rows: Tensor, spectrum: Spectrum, k: Tensor) -> tuple[Tensor, Tensor]:
    """Prior and posterior variance of whitened rows: ‖φ‖², and φ (I + V diag(k) Vᵀ)⁻¹ φᵀ without cancellation."""
    prior = rows.square().sum(1)
    projected = spectrum.coordinates(rows).square()
    inside = projected @ (1 / (1 + k))
    if spectrum.complete:
        return prior, inside
    return prior, inside + (prior - projected.sum(1)).clamp_min(0)


def assemble(
    like: Any, prior: DiagonalPrior, noise_precision: Tensor, *, tuned_by: str, mode: bool = True
) -> Posterior:
    """A posterior at given precisions from what another posterior, or `infer`, knows of the data.

    Without `mode`, that of a likelihood that is not Gaussian is left to be found later.
    """
    if isinstance(like.statistics, tuple) and not like.statistics:
        raise ValueError("this posterior was loaded with its draws alone, which serve one precision: fit it again")
    diagnostics, precisions = {**like.diagnostics, "tuned_by": tuned_by}, Precisions(prior.precision, noise_precision)
    known: tuple[Statistics, ...] | Sampler | Approximate
    belief: Whitened | Drawn
    if isinstance(like.statistics, Approximate):
        known, normals = like.statistics, like.statistics.prior_noise()
        belief, mean = known.whitened(prior, noise_precision), known.mean(prior, noise_precision)
        parts = known.problem(prior).parts(precisions)
        gamma, log_det = belief.trace_of(lambda k: k / (1 + k)), belief.trace_of(torch.log1p)
    elif isinstance(like.statistics, Sampler):
        belief = like.statistics.at(prior, noise_precision)
        known, normals = like.statistics.warmed(prior, belief.solution), like.statistics.prior_noise
        parts, gamma, log_det, mean = belief.parts, belief.effective_dimension, belief.log_det, belief.mean
        close = belief.error_bound <= ROUGH
        diagnostics |= {"error_bound": belief.error_bound, "data_passes": belief.passes}
        diagnostics |= {"converged": like.diagnostics["converged"] and close}
    else:
        known = converged(like.statistics, prior, noise_precision)
        normals = Noise(like.seed, PRIOR).rows(0, len(prior.scale), known[0].noise.shape[1])
        belief = whiten(known, prior, noise_precision, normals)
        parts, mean = evidence.problem(known, prior).parts(precisions), belief.mean
        gamma, log_det = belief.trace_of(lambda k: k / (1 + k)), belief.trace_of(torch.log1p)
    posterior = Posterior(
        statistics=known, prior=prior, noise_precision=noise_precision, given=like.given, outputs=like.outputs,
        belief=belief, mean=mean.double(), deviations=belief.deviations(normals).double(), evidence_parts=parts,
        log_evidence=Estimate(parts.total, 0.5 * log_det.standard_error), effective_dimension=gamma, seed=like.seed,
        diagnostics=diagnostics, features_at=like.features_at, centre=like.centre, model=like.model,
    )  # fmt: skip
    if like.tangent is None:
        return posterior
    posterior = replace(posterior, tangent=like.tangent, link=like.link, temperature=like.temperature)
    return with_mode(posterior, like.at_mode) if mode else posterior


def _at_weights(known: Any) -> bool:
    return isinstance(known, Approximate) and isinstance(known.fits, AtWeights)


def with_mode(posterior: Posterior, near: AtMode | None = None) -> Posterior:
    """The same posterior with the mode and the evidence of its own likelihood, where it is not Gaussian."""
    tangent = posterior.tangent
    if tangent is None or posterior.at_mode is not None or _at_weights(posterior.statistics):
        return posterior
    log_det = -2 * posterior.evidence_parts.occam
    found = tangent.mode(posterior.prior.precision, near, _preconditioner(posterior, tangent))
    parts = tangent.parts(found, log_det)
    error = posterior.log_evidence.standard_error
    return replace(
        posterior, at_mode=found, mean=tangent.weights(found), evidence_parts=parts,
        log_evidence=Estimate(parts.total, error),
        diagnostics={**posterior.diagnostics, "mode_gap": found.mode.gap, "mode_steps": found.mode.steps},
    )  # fmt: skip


def _preconditioner(posterior: Posterior, tangent: Tangent) -> Preconditioner | None:
    """The Krylov space or the structure of a posterior, which knows the curvature at the outputs of the network."""
    belief = posterior.belief
    if isinstance(posterior.statistics, Approximate) and isinstance(belief, Whitened) and tangent.row_space is None:
        return Nearby(replace(belief.spectrum, values=belief.values))
    if isinstance(belief, Whitened) and isinstance(belief.statistics.basis, Ritz):
        return Known(belief.statistics.basis, belief.values)
    return None


def _listed(values: Tensor) -> str:
    shown = ", ".join(f"{float(value):.4g}" for value in values[:6])
    return shown + (f", … ({len(values)} values)" if len(values) > 6 else "")


def _pruned(prior: DiagonalPrior) -> str:
    names = [name for name, value in zip(prior.names, prior.precision, strict=True) if not bool(value.isfinite())]
    return f" (pruned: {', '.join(names)})" if names else ""

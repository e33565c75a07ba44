"""A posterior over the weights of a linear model, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.evidence import EvidenceParts, Precisions
from lapwing.bayes.likelihoods import Gaussian, Likelihood
from lapwing.bayes.linear_model import Centre, LinearModel, check_finite
from lapwing.bayes.modes.tangent import LOST, AtMode, Tangent
from lapwing.bayes.noise import PRIOR, SAMPLE, Noise
from lapwing.bayes.outputs.links import DEFAULT_LINK, Link
from lapwing.bayes.posterior import verification
from lapwing.bayes.posterior.description import described
from lapwing.bayes.posterior.leave_one_out.gaussian import LeaveOneOut, leave_one_out
from lapwing.bayes.posterior.leave_one_out.labels import NO_NETWORK, Mean, influence, left_out_labels
from lapwing.bayes.posterior.mode import at_weights, told_of_space, with_mode
from lapwing.bayes.posterior.tuning import curves, held_out
from lapwing.bayes.posterior.verification import Verification
from lapwing.bayes.predictive import Labels, Prediction
from lapwing.bayes.predictive.axes import are_linked, as_rows, placed
from lapwing.bayes.predictive.joint import Joint, joint, places
from lapwing.bayes.predictive.network_draws import network_draws
from lapwing.bayes.predictive.sharing import predicted
from lapwing.bayes.predictive.spreads import Seen, needed_bytes, seen
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.solving.iterative import Drawn, Sampler
from lapwing.bayes.solving.structured import Approximate
from lapwing.bayes.statistics import NO_CLOSED_FORM, Statistics, Whitened, converged, whiten
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.memory import check_memory
from lapwing.linalg.operators import LinearOperator

ROUGH = 0.05  # draws by CG or SGD whose error bound is larger are reported as not converged


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
    held_out_curve: curves.Curve | None = field(repr=False, default=None)
    tangent: Tangent | None = field(repr=False, default=None)  # of a likelihood that is not Gaussian
    at_mode: AtMode | None = field(repr=False, default=None)
    link: Link = DEFAULT_LINK
    temperature: float = 1.0  # of class labels: logits are divided by it

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with its noise as tuned or given."""
        return self.gaussian if self.tangent is None else self.tangent.likelihood

    @property
    def gaussian(self) -> Gaussian:
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
        return self.closed_form().covariance()

    def sample(self, n: int) -> Tensor:  # (d, n)
        """Fresh posterior draws of the weights, as columns, beyond those in `draws`."""
        normals = Noise(self.seed, SAMPLE).rows(0, len(self.mean), n)
        return self.mean[:, None] + self.closed_form().root(normals)

    def functions(self, inputs: Any) -> Tensor:  # (draws, *outputs)
        """Joint draws of the model's outputs, from the same weights at every call.

        Those of a network are its own outputs plus J z.
        """
        features = self.features_of(inputs)
        centre = self.mean_at(features, inputs, "network")
        return centre + placed(self.likelihood, (features @ self.deviations.to(features.like)).mT, centre, -1)

    def mean_at(self, features: LinearOperator, inputs: Any, mean: Literal["network", "linear"]) -> Tensor:
        if (self.centre is None or mean == "linear") and not bool(self.mean.isfinite().all()):
            raise ValueError(LOST)
        if self.centre is None:
            return self.shaped(features @ self.mean.to(features.like))
        outputs = self.centre.outputs_at(inputs)
        if mean == "network":
            return outputs
        shift = features @ (self.mean.to(features.like) - self.centre.weights.to(features.like))
        return outputs + placed(self.likelihood, shift, outputs)

    def predict(
        self, inputs: Any, *, batch_size: int | None = None, link: Link | None = None, bounds: bool = False,
        mean: Literal["network", "linear"] = "network", shard: bool = False,
    ) -> Prediction:  # fmt: skip
        """The predictive distribution at new inputs: closed form or from draws, with function draws beside it.

        The mean of a linearised network is the network's own output, or with mean="linear" that of the linear model;
        a noise that evidence found counts around the former as no less than what the network leaves of its own data.
        `link` says how logits become probabilities; None is the one that the precision was tuned with. With `bounds`, a
        Krylov posterior adds lower and upper bounds on its variances, which on the dual side take a pass over the
        training data. With `shard`, all processes of a job that call this together predict at a share of the inputs
        each, and each has the whole.
        """
        features = self.features_of(inputs)
        if shard:
            return predicted(
                features, inputs, self.outputs or 1,
                lambda own: self.predict(own, batch_size=batch_size, link=link, bounds=bounds, mean=mean),
            )  # fmt: skip
        centre, tangent, draws = self.mean_at(features, inputs, mean), self.tangent, self.deviations.shape[1]
        if features.rows_are_costly:
            what = f"a prediction of {len(centre):,} data with {centre[:1].numel():,} outputs each"
            check_memory(needed_bytes(features, tuple(centre.shape), draws), what, "predict fewer of them at a time")
        seen, of = self.seen_at(features, centre, batch_size), self.likelihood
        spread = seen.spread.like(centre)
        if tangent is None:
            shown, noise = lambda values: values, self._noise_at(centre, mean)
        else:
            shown, noise = tangent.likelihood.observed, tangent.likelihood.noise_variance(centre, spread)
        variance, rows = shown(placed(of, spread.variance, centre)), as_rows(of, centre)
        return Prediction(
            mean=shown(centre),
            epistemic_variance=variance,
            prior_variance=shown(placed(of, seen.prior_variance, centre).to(centre)),
            noise_variance=noise,
            draws=centre + placed(of, seen.draws, centre, -1).to(centre) if draws else None,
            standard_error=None if spread.draws is None else variance * (2 / draws) ** 0.5,
            bounds=verification.bounds(self, features, centre) if bounds else None,
            seed=self.seed,
            labels=tangent and Labels(tangent.likelihood, link or self.link, spread, self.temperature, rows),
        )

    def _noise_at(self, outputs: Tensor, mean: Literal["network", "linear"]) -> Tensor | str:
        """The noise variance, in a shape that broadcasts against outputs of any shape.

        Evidence finds the noise that the linear model's mode leaves. A network that is short of its minimum leaves
        more, and around its own outputs that is what observations are off by.
        """
        found, left = self.gaussian.variance_at(self.outputs), self.diagnostics.get("network_leaves")
        if left is not None and mean == "network" and isinstance(found, Tensor):
            found = torch.maximum(found, torch.tensor(left).double().square().reshape(found.shape).to(found))
        return found.reshape(outputs.shape[1:]) if isinstance(found, Tensor) and found.ndim else found

    def predict_bytes(self, inputs: Any) -> float:
        """Memory that `predict` takes for inputs with many outputs each, whose variances come from the draws.

        Worked out from the first of them, before anything large is made; `predict` refuses what would not fit.
        """
        features = self.features_of(inputs)
        return needed_bytes(features, (features.shape[0],), self.deviations.shape[1])

    def joint(self, inputs: Any, outputs: Any) -> Joint:
        """The joint Gaussian of chosen outputs, of one datum or of several.

        `outputs` is a boolean mask of the outputs' shape, or a list of places in it, as [(0, 1, 5), (0, 1, 6)] for
        outputs (n, 2, 9). Closed form where the posterior has one, by one reverse pass for each; else from the draws.

        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([1.0, 2.0, 3.5])
        >>> infer(LinearModel(x, y, Gaussian(1.0)), prior=Isotropic(2.0)).joint(x, [0, 2]).covariance
        tensor([[0.0625, 0.1875],
                [0.1875, 0.5625]], dtype=torch.float64)
        """
        features = self.features_of(inputs)
        centre = self.mean_at(features, inputs, "network")
        chosen = places(outputs, tuple(centre.shape))
        numbers = placed(self.likelihood, torch.arange(centre.numel()), centre).reshape(-1)
        mean = centre.reshape(-1).cpu()[chosen].double()
        return joint(self.belief, features, numbers[chosen], mean, self.deviations)

    def predict_unlinearised(self, inputs: Any) -> Prediction:
        """The baseline that linearising was invented against: the network itself at its weights plus each draw.

        Mean and variance are those of the draws, probabilities averages over them. The covariance belongs to the
        linear model, and weights that are likely under it can be nonsense to the network: do not use this, compare.
        """
        return network_draws(
            self.centre, inputs, self.deviations, self.prior.std[:, None] * self.prior_noise(), self.likelihood,
            self.seed,
        )  # fmt: skip

    def seen_at(self, features: LinearOperator, centre: Tensor, batch_size: int | None) -> Seen:
        return seen(
            self.belief, features, tuple(as_rows(self.likelihood, centre).shape), self.deviations, self.prior_noise(),
            full=self.tangent is not None and are_linked(self.likelihood, centre), seed=self.seed,
            batch_size=batch_size,
        )  # fmt: skip

    def at(self, precision: Any = None, noise_std: Any = None) -> Posterior:
        """The posterior at another prior precision or noise, without the training data.

        `precision` is a number, one per group, or a mapping by group name.
        """
        prior = self.prior if precision is None else self.prior.with_precision(precision)
        noise = self.noise_precision if noise_std is None else self._relative_precision(noise_std)
        found = assemble(self, prior, noise, tuned_by="given")
        if noise_std is not None:
            found.diagnostics.pop("network_leaves", None)
        return found

    def update(self, data: Any, *, retune: bool = False) -> Posterior:
        """The posterior given more data, without starting over and with the same noise behind every draw.

        `data` is a pair of inputs and targets, batches of such or a `LinearModel`. Under Gaussian noise the result is
        that of all data together, draw by draw; under other likelihoods the mode is found from the one before.
        The prior's scale stays as it is and so do the precisions, unless `retune` finds those by evidence again.
        Exact() needs no training data for this (labels: their loss), Krylov(), CG() and SGD() do; structures refuse.

        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 2.5, 4.0])
        >>> prior, noise = Isotropic(0.01), Gaussian(0.3)
        >>> some = infer(LinearModel(x[:2], y[:2], noise), prior=prior).update((x[2:], y[2:]))
        >>> torch.allclose(some.draws, infer(LinearModel(x, y, noise), prior=prior).draws)
        True
        """
        from lapwing.bayes.posterior.changing_data.updating import updated

        return updated(self, data, retune=retune)

    def remove(self, places: Any, data: Any = None, *, retune: bool = False) -> Posterior:
        """The posterior without some of its training data, without starting over.

        `places` says which, counted from 0 in the order in which `fit` and then `update` were given them, or is a mask.
        The places and the noise of all others stay what they are: draws are those of a fit in which these data
        weigh nothing. The prior's scale stays, and so do the precisions, unless `retune` finds those by evidence again.
        Under Gaussian noise Exact() subtracts what they had added; one from a file must be shown them, as `data`. That
        these are the data of those places, with their weights, is then taken on trust: only a place that was removed
        before, what cannot have been part of the sums, and what would leave round-off in some direction is refused.

        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 2.5, 90.0])
        >>> prior, noise = Isotropic(0.01), Gaussian(0.3)
        >>> rest = infer(LinearModel(x, y, noise), prior=prior).remove([3])
        >>> torch.allclose(rest.draws, infer(LinearModel(x[:3], y[:3], noise), prior=prior).draws)
        True
        """
        from lapwing.bayes.posterior.changing_data.removing import removed

        return removed(self, places, data, retune=retune)

    def tune(
        self, validation: Any, *, link: Link | None = None, temperature: float | Literal["tune"] = 1.0,
        mode: bool = True,
    ) -> Posterior:  # fmt: skip
        """The posterior whose precision (and noise, unless it was given) does best on held-out data.

        `validation` is a pair of inputs and targets, with their noise_std where that was given per datum, or for a
        network whatever `fit` takes. The whole
        curve comes from one product with the validation features, without the training data; it stays in `curve`. For
        class labels temperature scaling on the same data is reported in `diagnostics`; it is mixed in only by
        temperature="tune", where it tends to take over. Without `mode` the linear mode and the evidence there are not
        found.
        """
        return held_out.tuned(self, validation, link or self.link, temperature, mode)

    def at_multiple(self, precision: float, noise: float, tuned_by: str = "given", mode: bool = True) -> Posterior:
        prior = replace(self.prior, precision=self.prior.precision * precision)
        return assemble(self, prior, self.noise_precision * noise, tuned_by=tuned_by, mode=mode)

    @property
    def curve(self) -> curves.Curve:
        """Log evidence over the prior precision, and the held-out density where it was tuned by that.

        A noise that is tuned takes its best value at each precision.
        """
        if self.held_out_curve is not None:
            return self.held_out_curve
        tune_noise, points = self.given.noise_std is None, curves.POINTS if self.tangent is None else 21
        return curves.by_evidence(self.evidence_problem(), tune_noise, points).scaled(float(self.prior.precision[0]))

    def leave_one_out(self, *, mean: Mean = "linear") -> LeaveOneOut:
        """What the posterior without each training datum says of it, from leverages: nothing is fitted again.

        Exact for Gaussian noise; for other likelihoods one Newton step from the mode of the linear model. With
        mean="network" the step is from the network's own weights, as if they were that mode. Its `most_influential`
        and `label_errors` rank the data.

        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 9.0, 4.0])
        >>> posterior = infer(LinearModel(x, y, Gaussian(1.0)), prior=Isotropic(0.01))
        >>> posterior.leave_one_out().label_errors(1)
        tensor([2])
        """
        if isinstance(self.statistics, Approximate) and (self.tangent is None or mean == "linear"):
            raise ValueError(
                "leave-one-out predictions need the leverages of method=Exact(): a structure has rough ones"
            )
        if not self.belief.exact:
            raise ValueError(f"leave-one-out predictions need the leverages of method=Exact(): {NO_CLOSED_FORM}")
        model = self.training_model("leave-one-out predictions")
        if self.tangent is not None:
            return left_out_labels(self, self.tangent, mean)
        if mean == "network" and model.centre is None:
            raise ValueError(NO_NETWORK)
        noise = self.noise_precision[model.gaussian.row_groups(model.targets)]
        return leave_one_out(
            model, self.closed_form(), noise * model.gaussian.row_precision(model.targets),
            at=model.centre.weights if mean == "network" and model.centre else None,
        )  # fmt: skip

    def influence(self, inputs: Any, *, mean: Mean = "linear") -> Tensor:  # (n, *outputs)
        """What every training datum adds to the outputs at a few new inputs: f(x) − f(x) without it.

        Exact for Gaussian noise and one Newton step otherwise, as in `leave_one_out`.

        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 9.0, 4.0])
        >>> posterior = infer(LinearModel(x, y, Gaussian(1.0)), prior=Isotropic(0.01))
        >>> posterior.influence(x[:2]).shape, int(posterior.influence(x[:2])[:, 1].abs().argmax())
        (torch.Size([4, 2]), 3)
        """
        return influence(self, inputs, mean)

    def verify(self, inputs: Any, count: int = 5) -> Verification:
        """Re-solve the variance of the first few outputs by conjugate gradients on the data themselves."""
        return verification.verify(self, inputs, count)

    def residuals(self) -> Tensor:  # (1 + draws,)
        """True relative residuals of the mean and of every draw, from two products with the training data."""
        return verification.residuals(self)

    def save(self, path: Path | str) -> Path:
        """Write this posterior into a file that `lapwing.load(path, model)` reads; the training data stay out of it."""
        from lapwing.bayes.posterior.files import save

        return save(self, path)

    def prior_noise(self) -> Tensor:  # (d, draws)
        return Noise(self.seed, PRIOR).rows(0, len(self.mean), self.deviations.shape[1])

    def features_of(self, inputs: Any) -> LinearOperator:
        features = self.features_at(inputs)
        check_finite("inputs", features)
        if features.shape[1] != len(self.mean):
            raise ValueError(f"inputs have {features.shape[1]} features, the model was fitted with {len(self.mean)}")
        return features

    def shaped(self, values: Tensor, lead: int = 0) -> Tensor:
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

    def evidence_problem(self) -> evidence.Problem:
        """The evidence in multiples of the current precisions: always shift-invariant."""
        if not isinstance(self.belief, Whitened):
            raise ValueError("CG and SGD know the evidence at one precision only: infer with Exact() or Krylov()")
        if isinstance(self.statistics, Approximate):
            problem = self.statistics.in_multiples(self.prior, self.noise_precision)
        else:
            group_of, one = torch.zeros_like(self.prior.group_of), torch.ones(1).double()
            tied = DiagonalPrior(self.belief.std, group_of, one, ("all",))
            problem = evidence.problem((self.belief.statistics,), tied)
        if self.tangent is None or at_weights(self.statistics):
            return problem
        multiple = self.tangent.in_multiples(self.prior.precision)
        return replace(
            problem, moments=multiple.moments(problem.moments), counts=torch.zeros(1).double(), one_by_one=True
        )

    def __repr__(self) -> str:
        return described(self)

    def closed_form(self) -> Whitened:
        if not isinstance(self.belief, Whitened):
            raise ValueError(NO_CLOSED_FORM)
        return self.belief

    def training_model(self, purpose: str) -> LinearModel:
        if self.model is None:
            raise ValueError(f"{purpose} need the training data, which this posterior does not carry: infer it again")
        return self.model


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
        diagnostics |= told_of_space(
            known[0], prior, noise_precision, settled=diagnostics["converged"] or tuned_by == "given"
        )
        gamma, log_det = belief.trace_of(lambda k: k / (1 + k)), belief.trace_of(torch.log1p)
    posterior = Posterior(
        statistics=known, prior=prior, noise_precision=noise_precision, given=like.given, outputs=like.outputs,
        belief=belief, mean=mean.double(), deviations=belief.deviations(normals).double(), evidence_parts=parts,
        log_evidence=Estimate(parts.total, 0.5 * log_det.standard_error), effective_dimension=gamma, seed=like.seed,
        diagnostics=diagnostics, features_at=like.features_at, centre=like.centre, model=like.model,
    )  # fmt: skip
    if like.tangent is None:
        return posterior
    links = like.tangent.likelihood.links
    link = like.link if like.link in links else links[0]
    posterior = replace(posterior, tangent=like.tangent, link=link, temperature=like.temperature)
    return with_mode(posterior, like.at_mode) if mode else posterior

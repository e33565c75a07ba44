"""A posterior over the weights of a linear model, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import EvidenceParts
from lapwing.bayes.fits import LOST
from lapwing.bayes.likelihoods import Likelihood, Spread
from lapwing.bayes.likelihoods.spread import Link
from lapwing.bayes.linear_model import LinearisationPoint, LinearModel, check_finite
from lapwing.bayes.methods.interface import WeightPosterior
from lapwing.bayes.methods.outputs import JointOutputs, OutputUncertainty, needed_bytes
from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.bayes.posterior import curves, held_out, leave_one_out, verification
from lapwing.bayes.posterior.alternatives import Alternative, New
from lapwing.bayes.posterior.answering import Answering, answering
from lapwing.bayes.posterior.description import described
from lapwing.bayes.posterior.jackknife import JackknifePlus, jackknife_plus
from lapwing.bayes.posterior.leave_one_out import LeaveOneOut, Mean
from lapwing.bayes.posterior.places import places
from lapwing.bayes.posterior.verification import Verification
from lapwing.bayes.predictive import Observation, Prediction
from lapwing.bayes.predictive.network_draws import network_draws
from lapwing.bayes.predictive.sharing import predicted
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import LinearOperator
from lapwing.runtime.devices import map_tensors
from lapwing.runtime.memory import check_memory

Centre = Literal["network", "linear"]


@final
@dataclass(frozen=True, eq=False)
class FeatureMap:
    """How new inputs become features, and what predictions are drawn around."""

    features_at: Callable[[Any], LinearOperator]
    point: LinearisationPoint | None  # None where it is the linear model's own mean
    outputs: int | None  # a datum; None for targets of shape (n,)
    weights: int

    @staticmethod
    def of(model: LinearModel) -> FeatureMap:
        """That of a model."""
        outputs = None if model.targets.ndim == 1 and model.outputs == 1 else model.outputs
        return FeatureMap(model.features_at, model.point, outputs, model.features.shape[1])

    def features(self, inputs: Any) -> LinearOperator:
        """The features of new inputs, or an error where they do not fit."""
        features = self.features_at(inputs)
        check_finite("inputs", features)
        if features.shape[1] != self.weights:
            raise ValueError(f"inputs have {features.shape[1]} features, the model was fitted with {self.weights}")
        return features

    @property
    def centre(self) -> Centre:
        """What predictions are drawn around if nothing else is asked for."""
        return "linear" if self.point is None or self.point.through_zero else "network"

    def centred(self, model: LinearModel) -> LinearModel:
        """A model of more data, through zero where that of these data is."""
        return model.through_zero() if self.point is not None and self.point.through_zero else model

    def are_linked(self, likelihood: Likelihood, shape: tuple[int, ...]) -> bool:
        """Whether a likelihood needs the covariances between the outputs of a datum, of outputs of a shape."""
        return self.outputs is not None and likelihood.are_linked(torch.empty(shape, device="meta"))

    def network_outputs(self, likelihood: Likelihood, inputs: Any) -> Tensor | None:
        """The network's own outputs at some inputs, as a likelihood has them in rows; None of a model without one."""
        return None if self.point is None else likelihood.as_rows(self.point.outputs_at(inputs)).double().cpu()

    def reshape_outputs(self, values: Tensor) -> Tensor:
        """Flat outputs as (n,) or (n, m)."""
        return values if self.outputs is None else values.unflatten(0, (-1, self.outputs))


@final
@dataclass(frozen=True)
class DataLedger:
    """Which data a posterior is of, counted in the order in which they came: what removing some of them goes by."""

    rows: int  # of the table of noise that are taken; those of data that were removed stay so
    removed: tuple[int, ...] = ()  # places of data

    def observations(self, outputs: int) -> int:
        """Observed outputs that are left."""
        return self.rows - outputs * len(self.removed)


@final
@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian over the weights, N(mean, H⁻¹), with its prior, noise and evidence.

    Made by `fit` or `infer`. `predict` is what most need; `at`, `tune`, `update` and `remove` return new posteriors,
    without the training data where the method allows. What a method found of the weights is `gaussian`.

    Examples
    --------
    >>> import torch, lapwing as lw
    >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([1.1, 1.9, 3.2]).double()
    >>> posterior = lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.1)), prior=lw.Isotropic(1.0))
    >>> posterior.mean, posterior.predict(torch.tensor([[4.0]]).double()).std
    (tensor([1.0350], dtype=torch.float64), tensor([0.1464], dtype=torch.float64))
    """

    gaussian: WeightPosterior = field(repr=False)
    given: Likelihood  # as it was asked for
    map: FeatureMap = field(repr=False)
    diagnostics: Diagnostics = field(repr=False)
    ledger: DataLedger = field(repr=False)
    link: Link
    temperature: float = 1.0  # of class labels: logits are divided by it
    alternative: Alternative | None = field(repr=False, default=None)  # what predicts labels in its place
    model: LinearModel | None = field(repr=False, default=None)  # with the training data; None in a file
    network_residual_rms: Tensor | None = field(repr=False, default=None)  # (noise groups,), where noise was tuned
    held_out_curve: curves.PrecisionCurve | None = field(repr=False, default=None)

    @property
    def prior(self) -> DiagonalPrior:
        """The prior at the precisions of this posterior."""
        return self.gaussian.prior

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with its noise as tuned or given."""
        return self.given.at_noise(self.gaussian.noise_precision, self.map.outputs)

    @property
    def seed(self) -> int:
        """That of the noise behind every draw."""
        return self.gaussian.seed

    @property
    def mean(self) -> Tensor:  # (d,)
        """The mean of the weights. Under a likelihood that is not Gaussian it is looked for when first asked for."""
        return self.gaussian.mean

    @property
    def draws(self) -> Tensor:  # (draws, d)
        """Posterior draws of the weights: the same for the same seed, by whatever method."""
        return (self.mean[:, None] + self.gaussian.deviations).mT

    @property
    def covariance(self) -> Tensor:  # (d, d)
        """The posterior covariance as a matrix: for small models."""
        return self.gaussian.covariance()

    @property
    def log_evidence(self) -> Estimate:
        """log p(y) at the precisions of this posterior, worked out when asked for.

        Where the curvature is averaged over the posterior (labels and counts by Exact()) it is a lower bound.
        """
        return self.gaussian.evidence().log_evidence

    @property
    def evidence_parts(self) -> EvidenceParts:
        """The log evidence by part, worked out when asked for."""
        return self.gaussian.evidence().parts

    @property
    def effective_dimension(self) -> Estimate:
        """γ = tr(H⁻¹M), how many weights the data determined."""
        return self.gaussian.effective_dimension

    def sample(self, n: int) -> Tensor:  # (n, d)
        """Fresh posterior draws of the weights, beyond those in `draws`.

        Parameters
        ----------
        n : int
            Number of draws.

        Returns
        -------
        Tensor (n, d)
            Weights.

        Raises
        ------
        ValueError
            If the method cannot draw without the data.
        """
        normals = Noise(self.seed, SAMPLE).rows(0, self.map.weights, n)
        return (self.mean[:, None] + self.gaussian.root(normals)).mT

    def functions(self, inputs: Any) -> Tensor:  # (draws, *outputs)
        """Joint draws of the model's outputs, from the same weights at every call.

        Those of a network are its own outputs plus J z; where mean and covariance were found together, J θ.

        Parameters
        ----------
        inputs : Tensor or what the network takes
            New inputs.

        Returns
        -------
        Tensor (draws, *outputs)
            Outputs, for each of the posterior's draws of the weights.
        """
        return self.functions_of(inputs, self.gaussian.deviations)

    def functions_of(self, inputs: Any, deviations: Tensor) -> Tensor:  # of (d, k) -> (k, *outputs)
        """The model's outputs for each of some deviations of the weights from their mean, as columns."""
        features = self.map.features(inputs)
        centre = self.outputs_at(features, inputs)
        columns = deviations.to(features.like)
        return centre + self.likelihood.to_output_layout((features @ columns).mT, centre, -1).to(centre)

    def outputs_at(self, features: LinearOperator, inputs: Any, mean: Centre | None = None) -> Tensor:
        """What predictions at inputs with these features are drawn around."""
        point = self.map.point
        if point is not None and (mean or self.map.centre) == "network":
            return point.outputs_at(inputs)
        weights = self.mean.to(features.like)
        if not bool(weights.isfinite().all()):
            raise ValueError(LOST)
        if point is None:
            return self.map.reshape_outputs(features @ weights)
        outputs, origin = point.expanded(point.outputs_at(inputs))
        shift = features @ (weights - origin.to(weights))
        return outputs + self.likelihood.to_output_layout(shift, outputs).to(outputs)

    def predict(
        self, inputs: Any, *, batch_size: int | None = None, link: Link | None = None, bounds: bool = False,
        mean: Centre | None = None, shard: bool = False,
    ) -> Prediction:  # fmt: skip
        """The predictive distribution at new inputs: closed form or from draws, with function draws beside it.

        The mean is the one that belongs to the covariance: that of the linear model where both were found together, as
        for labels and counts, and else the network's own output. mean="linear" or "network" asks for one of them; a
        noise that evidence found counts around the latter as no less than what the network leaves of its own data.
        `link` says how logits become probabilities; None is the one that the precision was tuned with. With `bounds`, a
        Krylov posterior adds lower and upper bounds on its variances, which on the dual side take a pass over the
        training data. With `shard`, all processes of a job that call this together predict at a share of the inputs
        each, and each has the whole.

        Parameters
        ----------
        inputs : Tensor or what the network takes
            New inputs.
        batch_size : int, optional
            Inputs worked on at once. Chosen by the free memory by default.
        link : str, optional
            How logits become probabilities. The link of the tuning by default.
        bounds : bool
            Whether a Krylov posterior adds bounds on its variances.
        mean : "linear" or "network", optional
            Which mean to predict with.
        shard : bool
            Whether the processes of a job share the inputs.

        Returns
        -------
        Prediction
            Mean, variances, probabilities, intervals.

        Raises
        ------
        ValueError
            If the inputs do not fit the model.
        """
        features = self.map.features(inputs)
        if shard:
            return predicted(
                features, inputs, self.map.outputs or 1,
                lambda own: self.predict(own, batch_size=batch_size, link=link, bounds=bounds, mean=mean),
            )  # fmt: skip
        centre = self.outputs_at(features, inputs, mean)
        self._check_fits(features, centre)
        around = self._around(mean or self.map.centre)
        found = self._prediction(features, centre, around, link or self.link, bounds, batch_size)
        if self.alternative is None or mean is not None or link is not None:
            return found
        return replace(found, simpler=self.alternative.observation(self, New(inputs, features, found)))

    def network_observation(self, inputs: Any, temperature: float = 1.0) -> Observation:
        """The network's own outputs over a temperature, as if they were certain."""
        of, point = self.likelihood, self.map.point
        assert point is not None
        outputs = of.as_rows(point.outputs_at(inputs))
        certain = Spread(torch.zeros_like(outputs), None)
        link: Link = "probit" if "probit" in of.links else of.links[0]
        return Observation(of, link, certain, outputs, temperature)

    def _around(self, mean: Centre) -> Likelihood:
        """The likelihood, with no less noise around the network's own outputs than it leaves of its training data.

        Evidence finds the noise that the linear model's mode leaves. A network that is short of its minimum leaves
        more, and around its own outputs that is what observations are off by.
        """
        if self.network_residual_rms is None or mean == "linear":
            return self.likelihood
        return self.likelihood.at_least(self.network_residual_rms)

    def _check_fits(self, features: LinearOperator, centre: Tensor) -> None:
        if not features.costs.too_many_outputs:
            return
        what = f"a prediction of {len(centre):,} data with {centre[:1].numel():,} outputs each"
        needed = needed_bytes(features, tuple(centre.shape), self.gaussian.deviations.shape[1])
        check_memory(needed, what, "predict fewer of them at a time")

    def _prediction(
        self, features: LinearOperator, centre: Tensor, of: Likelihood, link: Link, bounds: bool, batch_size: int | None
    ) -> Prediction:
        found = self.uncertainty_at(features, centre, batch_size)
        spread = found.spread.like(centre)
        variance = of.observed(of.to_output_layout(spread.variance, centre))
        draws = len(found.draws)
        return Prediction(
            mean=of.observed(centre),
            epistemic_variance=variance,
            prior_variance=of.observed(of.to_output_layout(found.prior_variance, centre).to(centre)),
            observation=Observation(of, link, spread, of.as_rows(centre), self.temperature),
            draws=centre + of.to_output_layout(found.draws, centre, -1).to(centre) if draws else None,
            standard_error=None if spread.draws is None else variance * (2 / draws) ** 0.5,
            bounds=self._bounds(features, centre) if bounds else None,
            seed=self.seed,
        )

    def uncertainty_at(
        self, features: LinearOperator, centre: Tensor, batch_size: int | None = None
    ) -> OutputUncertainty:
        """How uncertain the outputs at some features are, of a network's shape."""
        of = self.likelihood
        shape = tuple(of.as_rows(centre).shape)
        return self.gaussian.spread(features, shape, full=of.are_linked(centre), batch_size=batch_size)

    def _bounds(self, features: LinearOperator, centre: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self.gaussian.bounds(features)
        return self.likelihood.to_output_layout(lower, centre), self.likelihood.to_output_layout(upper, centre)

    def predict_bytes(self, inputs: Any) -> float:
        """Memory that `predict` takes for inputs with many outputs each, whose variances come from the draws.

        Worked out from the first of them, before anything large is made; `predict` refuses what would not fit.
        """
        features = self.map.features(inputs)
        return needed_bytes(features, (features.shape[0],), self.gaussian.deviations.shape[1])

    def joint(self, inputs: Any, outputs: Any) -> JointOutputs:
        """The joint Gaussian of chosen outputs, of one datum or of several.

        `outputs` is a boolean mask of the outputs' shape, or a list of places in it, as [(0, 1, 5), (0, 1, 6)] for
        outputs (n, 2, 9). Closed form where the posterior has one, by one reverse pass for each; else from the draws.

        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([1.0, 2.0, 3.5])
        >>> infer(LinearModel(x, y, Gaussian(1.0)), prior=Isotropic(2.0)).joint(x, [0, 2]).covariance
        tensor([[0.0625, 0.1875],
                [0.1875, 0.5625]], dtype=torch.float64)
        """
        features = self.map.features(inputs)
        centre = self.outputs_at(features, inputs)
        chosen = places(outputs, tuple(centre.shape))
        numbers = self.likelihood.to_output_layout(torch.arange(centre.numel()), centre).reshape(-1)
        mean = centre.reshape(-1).cpu()[chosen].double()
        return self.gaussian.joint(features, numbers[chosen], mean)

    def predict_unlinearised(self, inputs: Any) -> Prediction:
        """The baseline that linearising was invented against: the network itself at its weights plus each draw.

        Mean and variance are those of the draws, probabilities averages over them. The covariance belongs to the
        linear model, and weights that are likely under it can be nonsense to the network: do not use this, compare.
        """
        prior_draws = self.prior.std[:, None] * self.gaussian.prior_noise
        return network_draws(
            self.map.point, inputs, self.gaussian.deviations, prior_draws, self.likelihood, self.seed
        )  # fmt: skip

    def at(self, precision: Any = None, noise_std: Any = None) -> Posterior:
        """The posterior at another prior precision or noise.

        `precision` is a number, one per group, or a mapping by group name. Methods that know more than their draws need
        no training data for this, but where the curvature of the likelihood moves with the precision.

        Parameters
        ----------
        precision : float, sequence or dict, optional
            Prior precision: one number, one per group, or one for each group by name.
        noise_std : float or array, optional
            Standard deviation of the noise.

        Returns
        -------
        Posterior
            A new one.
        """
        prior = self.prior if precision is None else self.prior.with_precision(precision)
        noise = self.gaussian.noise_precision
        found = self.at_precisions(prior, noise if noise_std is None else self._relative_precision(noise_std))
        return found if noise_std is None else replace(found, network_residual_rms=None)

    def at_precisions(self, prior: DiagonalPrior, noise_precision: Tensor, tuned_by: str = "given") -> Posterior:
        """The posterior at these precisions."""
        gaussian = self.gaussian.at(prior, noise_precision)
        told = gaussian.diagnostics
        diagnostics = replace(
            self.diagnostics, tuned_by=tuned_by, converged=told.converged, error_bound=told.error_bound,
            data_passes=told.data_passes, candidate=None, candidates=None, shares=None,
        )  # fmt: skip
        if gaussian.evidence_is_bound:  # found by a search of its own, which may have gone another way
            diagnostics = replace(diagnostics, **gaussian.facts())
        return replace(self.with_gaussian(gaussian), diagnostics=diagnostics)

    def with_gaussian(self, gaussian: WeightPosterior) -> Posterior:
        """The same model with another Gaussian over its weights, which makes all of its predictions."""
        return replace(self, gaussian=gaussian, held_out_curve=None, alternative=None)

    def at_multiple(self, precision: float, noise: float, tuned_by: str = "given") -> Posterior:
        """The posterior at multiples of the present precisions."""
        prior = replace(self.prior, precision=self.prior.precision * precision)
        return self.at_precisions(prior, self.gaussian.noise_precision * noise, tuned_by)

    def update(self, data: Any, *, retune: bool = False) -> Posterior:
        """The posterior given more data, without starting over and with the same noise behind every draw.

        `data` is a pair of inputs and targets, batches of such or a `LinearModel`. Under Gaussian noise the result is
        that of all data together, draw by draw; under other likelihoods the mode is found from the one before.
        The prior's scale stays as it is and so do the precisions, unless `retune` finds those by evidence again. What
        held-out data chose to predict labels is not kept: `tune` compares again.
        Exact() needs no training data for this (labels: their loss), Krylov(), CG() and SGD() do; structures refuse.

        Parameters
        ----------
        data : (inputs, targets), list of batches or LinearModel
            Further examples.
        retune : bool
            Whether to tune the precisions again.

        Returns
        -------
        Posterior
            A new one.

        Raises
        ------
        ValueError
            If the method is a structure such as KFAC.

        Examples
        --------
        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 2.5, 4.0])
        >>> prior, noise = Isotropic(0.01), Gaussian(0.3)
        >>> some = infer(LinearModel(x[:2], y[:2], noise), prior=prior).update((x[2:], y[2:]))
        >>> torch.allclose(some.draws, infer(LinearModel(x, y, noise), prior=prior).draws)
        True
        """
        from lapwing.bayes.posterior.updating import updated

        return updated(self, data, retune=retune)

    def remove(self, places: Any, data: Any = None, *, retune: bool = False) -> Posterior:
        """The posterior without some of its training data, without starting over.

        `places` says which, counted from 0 in the order in which `fit` and then `update` were given them, or is a mask.
        The places and the noise of all others stay what they are: draws are those of a fit in which these data
        weigh nothing. The prior's scale stays, and so do the precisions, unless `retune` finds those by evidence again.
        Under Gaussian noise Exact() subtracts what they had added; one from a file must be shown them, as `data`. That
        these are the data of those places, with their weights, is then taken on trust: only a place that was removed
        before, what cannot have been part of the sums, and what would leave round-off in some direction is refused.

        Parameters
        ----------
        places : sequence of int or boolean mask
            Which examples to remove.
        data : (inputs, targets), optional
            These examples, for a posterior from a file.
        retune : bool
            Whether to tune the precisions again.

        Returns
        -------
        Posterior
            A new one.

        Raises
        ------
        ValueError
            If a place does not exist or was removed before.

        Examples
        --------
        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 2.5, 90.0])
        >>> prior, noise = Isotropic(0.01), Gaussian(0.3)
        >>> rest = infer(LinearModel(x, y, noise), prior=prior).remove([3])
        >>> torch.allclose(rest.draws, infer(LinearModel(x[:3], y[:3], noise), prior=prior).draws)
        True
        """
        from lapwing.bayes.posterior.removing import removed

        return removed(self, places, data, retune=retune)

    def tune(
        self, validation: Any, *, link: Link | None = None, temperature: float | Literal["tune"] = 1.0
    ) -> Posterior:
        """The posterior whose precision (and noise, unless it was given) does best on held-out data.

        `validation` is a pair of inputs and targets, with their noise_std where that was given per datum, or for a
        network whatever `fit` takes. The whole curve comes from one product with the validation features where the
        method allows, without the training data; it stays in `curve`.

        For a network's labels the posterior is compared with simpler candidates on the same data: the raw network,
        temperature scaling, and Laplace's approximation around the network (which needs the training data). The
        probabilities of new labels average over all of them, by how well each does; for counts they are the best one's.
        Printing the posterior shows the candidates. temperature="tune" looks for a temperature of the posterior itself,
        and compares nothing.

        Parameters
        ----------
        validation : (inputs, targets) or what `fit` takes
            Data that the network was not trained on.
        link : str, optional
            How logits become probabilities.
        temperature : float or "tune"
            Divides the logits.

        Returns
        -------
        Posterior
            A new one.
        """
        return held_out.tuned(self, validation, link or self.link, temperature)

    @property
    def curve(self) -> curves.PrecisionCurve:
        """Log evidence over the prior precision, or the held-out density where it was tuned by that.

        A noise that is tuned takes its best value at each precision.
        """
        if self.held_out_curve is not None:
            return self.held_out_curve
        problem = self.gaussian.problem_in_multiples()
        return curves.by_evidence(problem, self.given.tunes_noise).scaled(float(self.prior.precision[0]))

    def leave_one_out(self, *, mean: Mean = "linear") -> LeaveOneOut:
        """What the posterior without each training datum says of it, from leverages: nothing is fitted again.

        Exact for Gaussian noise; for other likelihoods one Newton step from the mode of the linear model, or where the
        curvature is averaged over the posterior the same without the Gaussian factor of the datum (its cavity). With
        mean="network" the step is from the network's own weights, as if they were that mode. Its `most_influential`
        and `label_errors` rank the data.

        Parameters
        ----------
        mean : "linear" or "network"
            From where one step is taken.

        Returns
        -------
        LeaveOneOut
            One prediction for each training example.

        Raises
        ------
        ValueError
            If the method is not in closed form: use method=lw.Exact().

        Examples
        --------
        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 9.0, 4.0])
        >>> posterior = infer(LinearModel(x, y, Gaussian(1.0)), prior=Isotropic(0.01))
        >>> posterior.leave_one_out().label_errors(1)
        tensor([2])
        """
        return leave_one_out.left_out(self, mean)

    def influence(self, inputs: Any, *, mean: Mean = "linear") -> Tensor:  # (n, *outputs)
        """What every training datum adds to the outputs at a few new inputs: f(x) − f(x) without it.

        By `Exact()` exact for Gaussian noise and one step otherwise, as in `leave_one_out`. By `Krylov()` and `CG()`,
        which know no leverages, to first order in the weight of a datum (an infinitesimal jackknife), without a matrix:
        one solve for each output at the inputs and one pass over the training data.

        Parameters
        ----------
        inputs : Tensor or what the network takes
            New inputs.
        mean : "linear" or "network"
            From where one step is taken.

        Returns
        -------
        Tensor (n, *outputs)
            For each training example, its share in the outputs.

        Examples
        --------
        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 9.0, 4.0])
        >>> posterior = infer(LinearModel(x, y, Gaussian(1.0)), prior=Isotropic(0.01))
        >>> posterior.influence(x[:2]).shape, int(posterior.influence(x[:2])[:, 1].abs().argmax())
        (torch.Size([4, 2]), 3)
        """
        return leave_one_out.influence(self, inputs, mean)

    def answer_when(self, *, risk: float, validation: Any) -> Answering:
        """Answer only where the posterior is confident, so that wrong answers stay as rare as asked.

        By conformal risk control: a new input like the validation examples is answered, wrongly, with probability
        `risk` at most. That is a share of all inputs, not of those that are answered.

        Parameters
        ----------
        risk : float
            Share of inputs that may be answered wrongly.
        validation : (inputs, labels)
            Examples that neither trained nor tuned the posterior.

        Returns
        -------
        Answering
            Called with inputs it has `labels`, `answered` and `confidence`. Printing it shows the threshold.

        Raises
        ------
        ValueError
            If there are too few validation examples for the risk, or the likelihood is not `Categorical()`.

        Examples
        --------
        >>> from lapwing import Categorical, Isotropic, LinearModel, infer
        >>> x = torch.linspace(-2, 2, 40).double()
        >>> features = torch.stack([x, -x], dim=1).reshape(80, 1)
        >>> posterior = infer(LinearModel(features, (x < 0).long(), Categorical()), prior=Isotropic(1.0))
        >>> careful = posterior.answer_when(risk=0.1, validation=(features, (x < 0.4).long()))
        >>> careful(features).answered.double().mean()
        tensor(0.9500, dtype=torch.float64)
        """
        return answering(self, risk, validation)

    def conformal(self) -> JackknifePlus:
        """Intervals that hold whatever the distribution, by jackknife+ without refitting and without held-out data.

        A new target lies in an interval of level 0.9 with probability 0.8 at least, and mostly with about 0.9. That
        takes the precisions as given; exact for Gaussian noise and `method=Exact()`.

        Returns
        -------
        JackknifePlus
            With `interval(inputs, level)`.

        Raises
        ------
        ValueError
            If targets are not numbers, or the method is not in closed form.

        Examples
        --------
        >>> from lapwing import Gaussian, Isotropic, LinearModel, infer
        >>> x = torch.linspace(0, 1, 19).double()[:, None]
        >>> posterior = infer(LinearModel(x, x[:, 0] + 0.1 * (40 * x[:, 0]).sin(), Gaussian(0.1)), prior=Isotropic(1.0))
        >>> [round(float(end), 2) for end in posterior.conformal().interval(x[9:10])]
        [0.4, 0.61]
        """
        return jackknife_plus(self)

    def verify(self, inputs: Any, count: int = 5) -> Verification:
        """Re-solve the variance of the first few outputs by conjugate gradients on the data themselves.

        Parameters
        ----------
        inputs : Tensor or what the network takes
            New inputs.
        count : int
            How many outputs to solve for.

        Returns
        -------
        Verification
            The variances both ways, and their largest relative difference.
        """
        return verification.verify(self, inputs, count)

    def residuals(self) -> Tensor:  # (1 + draws,)
        """True relative residuals of the mean and of every draw, from two products with the training data."""
        return verification.residuals(self)

    def to(self, device: torch.device | str) -> Posterior:
        """The same posterior with what it stores on another device. Predictions follow the inputs in any case."""

        def moved(value: Any) -> Any:
            return map_tensors(value, lambda tensor: tensor.to(device))

        return replace(self, gaussian=moved(self.gaussian), alternative=moved(self.alternative))

    def save(self, path: Path | str) -> Path:
        """Write this posterior into a file that `lapwing.load(path, model)` reads; the training data stay out of it.

        Parameters
        ----------
        path : path
            File to write.

        Returns
        -------
        Path
            The file.
        """
        from lapwing.bayes.posterior.files import save

        return save(self, path)

    def export(self, path: Path | str, example: Tensor, *, link: Link | None = None) -> Path:
        """Write the predictions into a file that runs without lapwing: torch.export (.pt2) or ONNX (.onnx).

        For numbers it returns `mean`, `std` and `epistemic_std`; for classes `probs`, `entropy`, `mutual_information`
        and `score_variance`, with the average over candidates that held-out data chose. Batches may have any size. The
        Jacobian of all weights is exported for `nn.Sequential` of linear layers, convolutions and activations; that of
        a last layer for any network that torch.export takes. Averages over draws (`link="monte carlo"`) are over as
        many points as in `predict`, but others: they agree to their Monte-Carlo error, other links to round-off.

        Parameters
        ----------
        path : path
            File to write, whose name ends with .pt2 or .onnx. The latter needs `pip install lapwing[onnx]`.
        example : Tensor
            Some inputs, one in each row.
        link : str, optional
            How logits become probabilities. As in `predict` by default.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        ValueError
            If the network has a layer without a rule, or the posterior is not of a network.
        ImportError
            If ONNX is not installed.

        Examples
        --------
        >>> import tempfile, torch, lapwing as lw
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).eval()
        >>> x = torch.linspace(-1, 1, 20).reshape(10, 2)
        >>> posterior = lw.fit(network, (x, x[:, :1]), lw.Gaussian(0.1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     program = torch.export.load(posterior.export(f"{folder}/posterior.pt2", x))
        >>> torch.allclose(program.module()(x[:3])["std"], posterior.predict(x[:3]).std, rtol=1e-4)
        True
        """
        from lapwing.bayes.posterior.exporting import exported

        return exported(self, path, example, link)

    def as_module(self, example: Tensor, *, link: Link | None = None) -> nn.Module:
        """The predictions of `export` as a module, for `torch.compile`.

        Parameters
        ----------
        example : Tensor
            Some inputs, one in each row.
        link : str, optional
            How logits become probabilities. As in `predict` by default.

        Returns
        -------
        nn.Module
            It takes a batch of inputs, and returns a dictionary of tensors.

        Raises
        ------
        ValueError
            As `export`.
        """
        from lapwing.bayes.posterior.exporting import module_of

        return module_of(self, example, link)

    def __repr__(self) -> str:
        return described(self)

    def training_model(self, purpose: str) -> LinearModel:
        """The model with the training data, or an error that says what for."""
        if self.model is None:
            raise ValueError(f"{purpose} need the training data, which this posterior does not carry: infer it again")
        return self.model

    def _relative_precision(self, noise_std: Any) -> Tensor:
        return self.given.relative_precision(noise_std, self.gaussian.noise_precision)

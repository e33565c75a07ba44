"""Laplace's approximation at the weights of a small network, by a dense matrix, with its evidence there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from lapwing.bayes.evidence import Tuning
from lapwing.bayes.inference import infer
from lapwing.bayes.likelihoods import GaussianSurrogate, Likelihood
from lapwing.bayes.linear_model import LinearisationPoint, LinearModel, Observed
from lapwing.bayes.methods import EmpiricalFisher, Hessian
from lapwing.bayes.methods.structured import Structure, StructuredPosterior
from lapwing.bayes.methods.structured_fits import EvidenceAt
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.predictive import Prediction
from lapwing.bayes.priors import DiagonalPrior, Isotropic, Prior
from lapwing.linalg.curvature import Curvature as StructuredCurvature
from lapwing.linalg.operators import Dense, gram
from lapwing.linalg.truncated import Truncated
from lapwing.network.batches import Batches
from lapwing.network.hessian import DenseCurvatures, jacobian_rows
from lapwing.network.jacobian import Network
from lapwing.network.kfac import Structures, root_of
from lapwing.network.linearisation import NetworkStructures
from lapwing.network.parameters import fingerprint

Curvature = Literal["ggn", "hessian", "empirical fisher"]
LARGEST = 5000  # weights: a dense matrix of more would take minutes
NEARLY_ALL = 0.9  # of the weights determined: the network may be too small


@final
@dataclass(frozen=True)
class GaussNewton(Structure):
    """The Gauss-Newton matrix itself, dense, with its evidence at the network's own weights."""

    evidence_at: EvidenceAt | None = "weights"
    by_layer = False

    def curvature(
        self, model: LinearModel, rows: GaussianSurrogate, prior: DiagonalPrior, seed: int  # noqa: ARG002
    ) -> tuple[StructuredCurvature, dict[str, Any]]:  # fmt: skip
        """All eigenpairs."""
        values, vectors = torch.linalg.eigh(gram(rows.features).double())
        return Truncated(vectors, values.clamp_min(0), torch.ones_like(values)), {}

    def check(self, model: LinearModel, prior: Prior) -> None:
        """Any linearised network will do."""


METHODS: dict[str, Structure] = {"ggn": GaussNewton(), "hessian": Hessian(), "empirical fisher": EmpiricalFisher()}


@final
@dataclass(frozen=True, eq=False)
class DenseLaplace:
    """N(w, (M + α)⁻¹) over all weights of a small network, M by one of three curvatures, and its evidence at w.

    Parameters
    ----------
    posterior : Posterior
        Of the linearised network.
    curvature : str
        Which of the three.
    """

    posterior: Posterior
    curvature: Curvature

    @property
    def likelihood(self) -> Likelihood:
        """With its noise."""
        return self.posterior.likelihood

    @property
    def precision(self) -> float:
        """α."""
        return float(self.posterior.prior.precision[0])

    @property
    def values(self) -> Tensor:  # (p,)
        """The eigenvalues of M; for a Hessian some may be negative."""
        known = self.posterior.gaussian
        assert isinstance(known, StructuredPosterior)
        return known.curvature.times(float(known.noise_precision)).ratios(1.0)

    @property
    def covariance(self) -> Tensor:  # (p, p)
        """(M + α)⁻¹."""
        return self.posterior.covariance

    @property
    def log_evidence(self) -> float:
        """log p(y | w) − ½ α ‖w‖² + ½ p log α − ½ log det(M + α)."""
        return self.posterior.log_evidence.value

    @property
    def effective_dimension(self) -> float:
        """γ."""
        return self.posterior.effective_dimension.value

    @property
    def advice(self) -> str:
        """What γ says about the size of the network, empty where it says nothing."""
        gamma, size = self.effective_dimension, self.posterior.map.weights
        if gamma < NEARLY_ALL * size:
            return ""
        return (
            f"the data determine nearly all weights (γ = {gamma:.1f} of {size}): the network may be too small, try a "
            "larger one"
        )

    def functions(self, inputs: Tensor) -> Tensor:  # (draws, *outputs)
        """Joint draws of the outputs of the linearised network, the same at every call."""
        return self.posterior.functions(inputs)

    def predict(self, inputs: Tensor) -> Prediction:
        """The predictive distribution of the linearised network at new inputs."""
        return self.posterior.predict(inputs)

    def around(self, network: Network) -> DenseLaplace:
        """The same posterior, with a network of the same weights in its own precision for predictions."""
        feature_map = replace(self.posterior.map, features_at=partial(_features, network), point=_point(network))
        return replace(self, posterior=replace(self.posterior, map=feature_map, model=None))


def laplace(
    linear: LinearModel, curvature: Curvature, prior: Isotropic, tuning: Tuning, draws: int, seed: int
) -> DenseLaplace:
    """The posterior of a linearised network by a dense curvature, its precisions as the tuning finds them."""
    if curvature not in METHODS:
        raise ValueError(f"curvature is {curvature!r}, expected 'ggn', 'hessian' or 'empirical fisher'")
    found = infer(
        linear, prior=prior, method=METHODS[curvature], tuning=tuning, draws=draws, seed=seed, progress=False,
        shard=False,
    )  # fmt: skip
    return DenseLaplace(found, curvature)


def _features(network: Network, inputs: Any) -> Dense:
    return Dense(jacobian_rows(network, inputs, network.outputs(inputs)).flatten(0, 1))


def _point(network: Network) -> LinearisationPoint:
    return LinearisationPoint(
        network.outputs, network.weights.double(), network.layout.names, network.layout.mask,
        lambda: fingerprint(network.fixed),
    )  # fmt: skip


def linearised(network: Network, batches: Batches, likelihood: Likelihood) -> LinearModel:
    """A small network linearised, with its Jacobian as a matrix: to the same bits every time."""
    inputs = torch.cat(list(batches.inputs))
    outputs = network.outputs(inputs)
    targets = batches.targets.reshape(likelihood.targets_shape(outputs.shape))
    features = _features(network, inputs)
    offset = outputs.reshape(-1).double() - features.matrix.double() @ network.weights.double()
    observed = Observed(batches.inputs, likelihood.checked(targets, outputs.numel()))
    return LinearModel(
        features, targets, likelihood, offset=offset, features_at=partial(_features, network), point=_point(network),
        structure=NetworkStructures(
            Structures(network, batches.inputs, root_of(likelihood, targets)),
            DenseCurvatures(network, batches.inputs, likelihood, observed),
        ),
    )  # fmt: skip


def checked_network(model: nn.Module) -> Network:
    """A network that is small enough."""
    network = Network.of(model)
    if network.layout.size > LARGEST:
        raise ValueError(
            f"the network has {network.layout.size:,} weights, and dense curvatures are for at most {LARGEST:,}: use "
            "lapwing.fit, or train_with_evidence"
        )
    return network

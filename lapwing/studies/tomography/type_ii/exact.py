"""Hyperparameters at the maximum of the exact evidence: one Gram matrix per block and distance serves them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.runtime.progress import Report, reporter
from lapwing.studies.tomography.filter_prior import FilterBlock, FilterPrior, distances
from lapwing.studies.tomography.linear import Linearised, rows_through
from lapwing.studies.tomography.type_ii.result import (
    EvidenceAt,
    Hyperprior,
    Parameters,
    Setting,
    TypeII,
    notes,
    starting_noise,
)

LOG_2PI = math.log(2 * math.pi)
ROUNDOFF = 8 * torch.finfo(torch.float64).eps


@final
@dataclass(frozen=True, eq=False)
class Compressed:
    """The data rotated into the space that the image can reach: as many rows as the fewer of data and pixels.

    A = Q R, so that Qᵀy is all that the image explains and `remainder` is ‖y − QQᵀy‖², noise alone.
    """

    linear: Linearised
    features: Tensor  # (m, p), R J or A J
    targets: Tensor  # (m,)
    remainder: float
    unseen: int  # rows that hold noise alone

    @staticmethod
    def of(linear: Linearised) -> Compressed:
        """The rows of A J, or with fewer pixels than data those of R J."""
        A, t = linear.projector.operator, linear.targets
        n, pixels = A.shape
        if n <= pixels:
            return Compressed(linear, _product(A, linear.jacobian), t, 0.0, 0)
        Q, R = torch.linalg.qr(A.dense())
        inside = Q.mT @ t
        rest = float(t @ t - inside @ inside)
        return Compressed(linear, _product(Dense(R), linear.jacobian), inside, max(rest, 0.0), n - pixels)


def _product(left: LinearOperator, right: LinearOperator) -> Tensor:
    return left.matmat(right.matrix) if isinstance(right, Dense) else rows_through(left, right)


@final
@dataclass(frozen=True, eq=False)
class ExactEvidence:
    """log p(y) as a function of the hyperparameters, from the Gram matrices of the rows of every block."""

    data: Compressed
    grams: Tensor  # (blocks and distances, m, m)
    places: tuple[tuple[int, int], ...]  # of every block among the Gram matrices
    evidence_at: EvidenceAt
    second_moments: tuple[Tensor, ...]  # (taps, taps) of every block's own filters, Σ w wᵀ

    @staticmethod
    def of(linear: Linearised, evidence_at: EvidenceAt = "mode", data: Compressed | None = None) -> ExactEvidence:
        """Six matrices per block of 3 × 3 filters, one per block of 1 × 1."""
        if evidence_at not in ("mode", "weights"):
            raise ValueError(f"evidence_at is {evidence_at!r}, expected 'mode' or 'weights'")
        data = data or Compressed.of(linear)
        found, places, start = [], [], 0
        for block in linear.blocks:
            matrices = _grams(data.features, block)
            found.append(matrices)
            places.append((start, start + len(matrices)))
            start += len(matrices)
        own = [block.of(linear.weights) for block in linear.blocks]
        return ExactEvidence(data, torch.cat(found), tuple(places), evidence_at, tuple(w.mT @ w for w in own))

    def log_evidence(self, prior: FilterPrior, noise_variance: Tensor) -> Tensor:  # ()
        """log N(y; …, Σ_yy); at the network's own weights, the lower bound of the publication. Differentiable once.

        Its derivative with respect to Σ_yy is ½ (v vᵀ − Σ_yy⁻¹), v = Σ_yy⁻¹ t: one product with all Gram matrices.
        """
        coefficients = torch.cat([prior.coefficients(number) for number in range(len(self.places))])
        value, pull = self._seen(coefficients.detach(), noise_variance.detach())
        slope = coefficients @ (self.grams.reshape(len(coefficients), -1) @ pull.reshape(-1))
        slope = slope + noise_variance * pull.trace()
        unseen, rows = self.data.unseen, len(pull) + self.data.unseen
        noise_alone = -0.5 * (unseen * noise_variance.log() + rows * LOG_2PI + self._misfit(rows) / noise_variance)
        return value + slope - slope.detach() + noise_alone - 0.5 * self._energy(prior)

    def _seen(self, coefficients: Tensor, noise_variance: Tensor) -> tuple[Tensor, Tensor]:  # (), (m, m)
        """What Σ_yy is responsible for, and its derivative."""
        m = self.grams.shape[1]
        covariance = (coefficients @ self.grams.reshape(len(coefficients), -1)).reshape(m, m)
        # a search tries noises below what round-off leaves of the Gram matrices
        covariance.diagonal().add_(noise_variance + ROUNDOFF * covariance.trace())
        factor = torch.linalg.cholesky(covariance)
        pull, occam = -0.5 * torch.cholesky_inverse(factor), -factor.diagonal().log().sum()
        if self.evidence_at == "weights":
            return occam, pull
        v = torch.cholesky_solve(self.data.targets[:, None], factor)
        return occam - 0.5 * (self.data.targets @ v[:, 0]), pull.addmm_(v, v.mT, alpha=0.5)

    def _misfit(self, rows: int) -> float:
        """The square error that noise alone has to explain."""
        at_mode = self.evidence_at == "mode"
        return self.data.remainder if at_mode else self.data.linear.reconstruction.misfit**2 * rows

    def _energy(self, prior: FilterPrior) -> Tensor:  # ()
        """w̄ᵀ Σ_θ⁻¹ w̄ of the network's own weights, where they are what the bound is at."""
        if self.evidence_at == "mode":
            return torch.zeros((), dtype=torch.float64)
        return torch.stack([
            (torch.linalg.inv(prior.covariance(number)) * own).sum()
            for number, own in enumerate(self.second_moments)
        ]).sum()  # fmt: skip


def _grams(features: Tensor, block: FilterBlock) -> Tensor:  # (classes, m, m)
    """Φ_b (I ⊗ E) Φ_bᵀ for the pairs E of taps at each distance."""
    own = block.of(features.mT).permute(2, 0, 1)  # (m, filters, taps)
    flat = own.reshape(len(own), -1)
    return torch.stack([(own @ pairs).reshape(len(own), -1) @ flat.mT for pairs in distances(block.side)[1]])


def exact(
    linear: Linearised, prior: FilterPrior | None = None, *, hyperprior: Hyperprior | None = None,
    noise_std: float | None = None, evidence_at: EvidenceAt = "mode", steps: int = 200,
    evidence: ExactEvidence | None = None, progress: bool | Report | None = None,
) -> TypeII:  # fmt: skip
    """Hyperparameters and noise at a maximum of log evidence + log hyperprior, by L-BFGS on exact gradients.

    `noise_std` is tuned unless given. `evidence_at="weights"` is the bound at the network's own weights.
    """
    report = reporter(progress)
    report("Gram matrices of the blocks")
    known = evidence or ExactEvidence.of(linear, evidence_at)
    begin = prior or FilterPrior.start(linear.blocks)
    parameters = Parameters(begin, None if noise_std is None else noise_std**2)
    scale = starting_noise(linear) if noise_std is None else noise_std**2
    evaluated: list[Setting] = []

    def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(vector.copy()).requires_grad_()
        prior, noise = parameters.unpack(at)
        value = known.log_evidence(prior, noise)
        if hyperprior is not None:
            value = value + hyperprior.log_density(prior)
        (gradient,) = torch.autograd.grad(value, at)
        settled = FilterPrior(prior.blocks, prior.log_variance.detach(), prior.log_lengthscale.detach())
        evaluated.append(Setting(settled, float(noise.detach()) ** 0.5, float(value.detach())))
        report(f"evaluation {len(evaluated)}, log evidence {float(value.detach()):.4g}")
        return -float(value.detach()), -gradient.numpy()

    found = scipy.optimize.minimize(
        objective, parameters.pack(scale).numpy(), jac=True, method="L-BFGS-B", bounds=parameters.bounds(scale),
        options={"maxiter": steps, "ftol": 1e-9},
    )  # fmt: skip
    report("")
    settled, noise = parameters.unpack(torch.from_numpy(found.x))
    return TypeII(
        settled, float(noise) ** 0.5, tuple(_improving(evaluated)), f"exact evidence at the {_place(known)}",
        len(evaluated), bool(found.success), notes(settled, hyperprior),
    )  # fmt: skip


def _place(known: ExactEvidence) -> str:
    return "linear mode" if known.evidence_at == "mode" else "network's weights"


def _improving(settings: list[Setting]) -> list[Setting]:
    """Without the trial steps of the line search."""
    kept: list[Setting] = []
    for setting in settings:
        if not kept or setting.objective > kept[-1].objective:
            kept.append(setting)
    return kept

"""Small models of labels, counts and classes, and their evidence and its lower bound by dense formulas.

Nothing here uses lapwing but for the names of its likelihoods: averages are trapezoidal sums over the outputs, in
differences of logits for classes, and the divergence is that of two Gaussians over the weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.bayes.likelihoods import Poisson

LIKELIHOODS = {"labels": lw.Bernoulli(), "counts": Poisson(), "classes": lw.Categorical()}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Labelled:
    kind: str
    features: Tensor  # (n, m, d), m = 3 for classes, else 1
    targets: Tensor  # (n,)
    weights: Tensor  # (n,)

    @property
    def model(self) -> lw.LinearModel:
        rows = self.features.reshape(-1, self.features.shape[2])
        return lw.LinearModel(rows, self.targets, LIKELIHOODS[self.kind], weights=self.weights)

    @property
    def differences(self) -> Tensor:  # (n, k, d)
        """Rows of what the density depends on: the output, or the logits of the first classes less that of the last."""
        if self.kind != "classes":
            return self.features
        return self.features[:, :-1] - self.features[:, -1:]

    def log_density(self, f: Tensor) -> Tensor:  # (…, n, k) -> (…, n)
        if self.kind == "classes":
            logits = torch.cat([f, torch.zeros_like(f[..., :1])], -1)
            place = self.targets.expand(logits.shape[:-1])[..., None]
            return logits.log_softmax(-1).gather(-1, place)[..., 0]
        f = f[..., 0]
        if self.kind == "counts":
            return self.targets * f - f.exp() - torch.lgamma(self.targets + 1)
        return self.targets * f - nn.functional.softplus(f)

    def without(self, place: int) -> "Labelled":
        keep = torch.arange(len(self.targets)) != place
        return Labelled(self.kind, self.features[keep], self.targets[keep], self.weights[keep])


def labelled(kind: str, n: int, d: int, *, signal: float = 1.0, seed: int = 0) -> Labelled:
    """Data from the model itself with weights of a size, and uneven counts."""
    m = 3 if kind == "classes" else 1
    features = normal(n, m, d, seed=seed)
    f, generator = signal * features @ normal(d, seed=seed + 1), torch.Generator().manual_seed(seed + 2)
    uniform = torch.rand(n, m, generator=generator, dtype=torch.float64)
    if kind == "classes":
        targets = (f - (-uniform.log()).log()).argmax(1)
    elif kind == "labels":
        targets = (uniform < f.sigmoid()).double()[:, 0]
    else:
        targets = torch.poisson(f.clamp(-3, 3).exp(), generator=generator)[:, 0]
    return Labelled(kind, features, targets, 0.5 + torch.rand(n, generator=generator, dtype=torch.float64))


def nodes(k: int, points: int, reach: float = 9.0) -> tuple[Tensor, Tensor]:  # (points^k, k), (points^k,)
    """A grid of standard normals and its weights."""
    one = torch.linspace(-reach, reach, points, dtype=torch.float64)
    grid = torch.cartesian_prod(*[one] * k).reshape(-1, k)
    return grid, (-0.5 * grid.square().sum(1)).softmax(0)


def average(of: Labelled, mean: Tensor, covariance: Tensor, points: int) -> Tensor:  # (n, k), (n, k, k) -> (n,)
    """E log p of each datum, differentiable in both."""
    z, weights = nodes(mean.shape[1], points)
    at = mean + torch.einsum("nab,pb->pna", torch.linalg.cholesky(covariance), z)
    return weights @ of.log_density(at)


POINTS = {"labels": 601, "counts": 601, "classes": 141}


def outputs(of: Labelled, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:  # (d,), (d, d)
    """Mean (n, k) and covariance (n, k, k) of what the density depends on."""
    D = of.differences
    return D @ mean, D @ covariance @ D.mT


def bound(of: Labelled, precision: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:  # (d,), (d,), (d, d) -> ()
    """Σ E log p − KL(N(mean, covariance) ‖ N(0, diag(precision)⁻¹))."""
    expected = of.weights @ average(of, *outputs(of, mean, covariance), POINTS[of.kind])
    spread = (precision * covariance.diagonal()).sum() + precision @ mean.square() - len(mean)
    return expected - 0.5 * (spread - precision.log().sum() - torch.logdet(covariance))


def log_evidence(of: Labelled, precision: Tensor, mean: Tensor, covariance: Tensor, points: int, reach: float) -> float:
    """log ∫ p(y | θ) p(θ) dθ on a grid in standard deviations of a Gaussian near the posterior; nothing at its edge."""
    axes = torch.linspace(-reach, reach, points, dtype=torch.float64)
    z = torch.cartesian_prod(*[axes] * len(mean))
    root = torch.linalg.cholesky(covariance)
    parts = []
    for block in z.split(100_000):
        theta = mean + block @ root.mT
        fitted = of.log_density(torch.einsum("nkd,pd->pnk", of.differences, theta)) @ of.weights
        parts.append(fitted - 0.5 * theta.square() @ precision)
    values = torch.cat(parts)
    edge = values[(z.abs() == reach).any(1)].logsumexp(0) - values.logsumexp(0)
    assert float(edge) < -24, "the grid is too small"
    step = len(mean) * float((axes[1] - axes[0]).log()) + float(root.diagonal().log().sum())
    normaliser = 0.5 * float((precision / (2 * torch.pi)).log().sum())
    return float(values.logsumexp(0)) + step + normaliser

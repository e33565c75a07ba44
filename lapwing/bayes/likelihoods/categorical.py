"""Targets that are class numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, NoReturn

import torch
from torch import Tensor, distributions

from lapwing.bayes.likelihoods.expectation import Expectation, by_points, logistic
from lapwing.bayes.likelihoods.interface import Likelihood, counted, refuse_shapes
from lapwing.bayes.likelihoods.spread import Link, Spread, class_logits
from lapwing.linalg.operators import BLOCK_ELEMENTS, LinearOperator, row_blocks


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Targets (n,) that are class numbers 0 … c − 1, with the softmax of outputs (n, c) as their probabilities.

    A network may have outputs of more axes, one class number for each pixel or token: `dim` is then the axis of the
    classes, and targets have the others. Targets of `ignore_index` do not count. Inside, classes come last.
    −log p is convex in the outputs, so B is its Hessian diag(π) − π πᵀ; no c × c matrix is made.

    Parameters
    ----------
    dim : int
        Axis of the classes in the network's outputs.
    ignore_index : int
        Class number of targets that do not count.

    Examples
    --------
    >>> Categorical().log_prob(torch.zeros(2, 4).double(), torch.tensor([3, 1])).exp()
    tensor(0.0625, dtype=torch.float64)
    """

    dim: int = -1
    ignore_index: int = -100
    has_classes: ClassVar[bool] = True
    is_discrete: ClassVar[bool] = True
    exclusive_classes: ClassVar[bool] = True
    asks: ClassVar[tuple[str, ...]] = ("probs", "entropy", "mutual_information", "novelty", "log_prob(y)")

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link but quadrature, which is for one output at a time."""
        return ("full probit", "probit", "monte carlo", "bridge", "bridge with norm")

    def checked(self, targets: Tensor, rows: int) -> Tensor:  # (n,)
        """The class numbers of this many outputs, or an error."""
        if targets.ndim != 1 or len(targets) == 0 or rows % len(targets) or rows < 2 * len(targets):
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit {rows} outputs: Categorical() takes one class "
                "number per datum and at least two outputs for each, so that targets have shape (n,)"
            )
        classes, labels = rows // len(targets), targets.long()
        if bool((labels != targets).any()) or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(
                f"targets must be class numbers from 0 to {classes - 1}, one for each of {classes} outputs, got values "
                f"from {float(targets.min()):g} to {float(targets.max()):g}"
            )
        return labels

    def targets_shape(self, outputs: torch.Size) -> torch.Size:
        """One class number per datum."""
        return outputs[:-1]

    def arranged(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One class number for every place with classes; those to be ignored get the weight zero."""
        places = outputs.select(self._axis(outputs), 0).shape
        if targets.shape not in (places, (*places, 1)):
            self._refuse(outputs, targets, places)
        labels, counts = targets.reshape(-1), weights
        if counts is not None:
            counts = counts.reshape(-1).repeat_interleave(labels.numel() // counts.numel())
        ignored = self.ignored(labels)
        if bool(ignored.any()):
            if bool(ignored.all()):
                raise ValueError(f"every target is {self.ignore_index}, which is ignored: no data are left")
            labels = torch.where(ignored, 0, labels)
            ones = torch.ones_like(labels, dtype=torch.float64)
            counts = torch.where(ignored, 0.0, ones if counts is None else counts)
        if counts is not None:
            labels = torch.where(counts > 0, labels, 0)  # a masked target may hold anything
        return self.checked(labels, outputs.numel()), counts

    def _refuse(self, outputs: Tensor, targets: Tensor, places: torch.Size) -> NoReturn:
        if targets.shape == outputs.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} have the shape of the outputs: Categorical() takes class "
                f"numbers, here of shape {tuple(places)}; from one-hot labels they are targets.argmax({self.dim})"
            )
        expected = f"expects outputs (n, classes) and class numbers (n,), here {tuple(places)}"
        refuse_shapes(targets, outputs, f"Categorical(dim={self.dim}) {expected}")

    def _axis(self, outputs: Tensor) -> int:
        """The axis of the classes, counted from the front."""
        axis = self.dim + outputs.ndim if self.dim < 0 else self.dim
        if not 0 < axis < outputs.ndim:
            raise ValueError(
                f"Categorical(dim={self.dim}) does not fit outputs of shape {tuple(outputs.shape)}: the classes need "
                "an axis of their own beside that of the data"
            )
        return axis

    def outputs_shape(self, shape: torch.Size, targets: Tensor) -> tuple[int, ...]:  # noqa: ARG002
        """The shape in which the methods take outputs of this shape, the classes last."""
        return (-1, shape[-1])

    def flat_targets(self, targets: Tensor) -> Tensor:
        """One class number after the other."""
        return targets.reshape(-1)

    def ignored(self, targets: Tensor) -> Tensor:  # bool, targets' shape
        """Which class numbers do not count."""
        return targets == self.ignore_index

    def class_axis(self, outputs: Tensor) -> int:
        """The axis of the classes, counted from the end."""
        dim = self.dim if outputs.ndim > 2 else -1
        return dim if dim < 0 else dim - outputs.ndim

    def described(self, outputs: Tensor) -> str:
        """How many classes there are, and at how many places."""
        places = outputs.shape[1:-1].numel()
        return f"{outputs.shape[-1]} classes" + (f" at {places} places" if outputs.ndim > 2 else "")

    def softened(self, changes: Tensor, targets: Tensor) -> Tensor:  # (n, c)
        """The nearest changes of labels, as one-hot rows, that leave probabilities (Duchi et al. 2008)."""
        labels = torch.nn.functional.one_hot(targets, changes.shape[1]).to(changes)
        found = labels + changes
        ordered = found.sort(1, descending=True).values
        over = (ordered.cumsum(1) - 1) / torch.arange(1, found.shape[1] + 1)
        last = (ordered > over).sum(1, keepdim=True) - 1
        return (found - over.gather(1, last)).clamp_min(0) - labels

    def scored(self, variance: Tensor, centred: Tensor | None) -> Tensor:
        """Of class-centred logits: a shift common to all logits changes no probability, so no data say anything of it.

        Logits of which no covariance is known count as independent.
        """
        return (1 - 1 / variance.shape[self.class_axis(variance)]) * variance if centred is None else centred

    def reshape_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Flat outputs in the shape that the methods take."""
        return outputs.reshape(len(targets), -1)

    def confidence(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """The probability that these outputs give to each target."""
        return outputs.softmax(1).gather(1, targets[:, None])[:, 0]

    def log_density(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """log p of each target."""
        return outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]

    def gradient(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:  # (n, c)
        """The gradient of log p in the outputs, e_y − π."""
        residual = -outputs.softmax(1)
        return counted(residual.scatter_add(1, targets[:, None], torch.ones_like(residual)), weights)

    def hessian_diagonal(
        self, outputs: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # (n, c)  # fmt: skip
        """The diagonal of the Hessian in the outputs, π (1 − π)."""
        probabilities = outputs.softmax(1)
        return counted(probabilities * (1 - probabilities), weights)

    def hessian_product(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """B times columns (n, c, k)."""
        probabilities = outputs.softmax(1)[:, :, None]
        return counted(probabilities * (columns - probabilities.mT @ columns), weights)

    def hessian_root(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """S times columns (n, c, k), with S Sᵀ = B."""
        return counted(softmax_root(outputs.softmax(1), columns), None if weights is None else weights.sqrt())

    def hessian_root_adjoint(
        self, outputs: Tensor, columns: Tensor, weights: Tensor | None = None, targets: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """Sᵀ times columns (n, c, k), Sᵀ = diag(√π) − √π πᵀ."""
        probabilities = outputs.softmax(1)[:, :, None]
        product = probabilities.sqrt() * (columns - probabilities.mT @ columns)
        return counted(product, None if weights is None else weights.sqrt())

    def log_prob_of_batch(
        self, outputs: Tensor, targets: Tensor, noise_std: Tensor | None = None, weights: Tensor | None = None  # noqa: ARG002
    ) -> Tensor:  # ()  # fmt: skip
        """log p of class numbers of any kind; one that does not count may hold anything."""
        labels = targets.long()
        if weights is None:
            return self.log_prob(outputs, labels)
        counts = weights.reshape(labels.shape).to(outputs)
        return self.log_prob(outputs, torch.where(counts > 0, labels, 0), counts)

    def class_probabilities(self, outputs: Tensor) -> Tensor:  # (…, classes)
        """The probability of every class at known outputs."""
        return outputs.softmax(-1)

    def root_columns(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:  # (b, c) -> (b, c, c − 1)  # noqa: ARG002
        """diag(√π) − π√πᵀ, turned so that its null column is left out."""
        probabilities = outputs.softmax(1)
        return softmax_root(probabilities, _complement(probabilities.sqrt()))

    def contrasts(self, outputs: int) -> Tensor:  # (c, c − 1)
        """Helmert's: what all logits share changes no probability."""
        return helmert(outputs)

    def expected(self, mean: Tensor, covariance: Tensor, targets: Tensor, seed: int = 0) -> Expectation:
        """E log p and its derivatives for outputs N(mean, covariance), over the contrasts of the logits.

        Two classes have one, over which the average is by quadrature; more are averaged over by points.
        """
        contrasts = self.contrasts(mean.shape[1]).to(mean)
        inside, wide = mean @ contrasts, contrasts.mT @ covariance @ contrasts
        if mean.shape[1] == 2:
            found = _expected_of_two(inside, wide, targets)
        else:
            exact = contrasts.double()
            density = partial(_softmax_density, exact, exact[targets].mT[:, :, None])
            found = by_points(density, inside, wide, seed)
        curvature = contrasts @ found.curvature @ contrasts.mT
        return Expectation(found.log_density, found.gradient @ contrasts.mT, curvature, found.standard_error)

    def shared_hessian(self, inner: LinearOperator, outputs: Tensor, weights: Tensor) -> Tensor:  # (q · c, q · c)
        """By pairs of classes: c times fewer operations than by a root."""
        return softmax_hessian(inner, outputs.softmax(1), weights)

    def predictive(self, link: Link, mean: Tensor, spread: Spread) -> distributions.Categorical:
        """The distribution of new labels."""
        flat = mean.reshape(-1, mean.shape[-1])
        logits = class_logits(link, flat, spread.reshaped(tuple(flat.shape))).reshape(mean.shape)
        return distributions.Categorical(logits=logits, validate_args=False)

    def probabilities(self, link: Link, mean: Tensor, spread: Spread) -> Tensor:  # mean's shape
        """The predictive probability of every class."""
        return self.predictive(link, mean, spread).probs

    def sampled(self, outputs: Tensor, uniform: Tensor) -> Tensor:  # uniform's shape
        """A label for each uniform number."""
        return (uniform[..., None] > outputs.softmax(-1).cumsum(-1)[..., :-1]).sum(-1)

    def mutual_information(self, mean: Tensor, spread: Spread) -> Tensor:  # (n,)
        """The entropy of the mean probabilities over draws less their mean entropy."""
        softmax = (mean + spread.deviations()).softmax(-1)
        average = distributions.Categorical(softmax.mean(0)).entropy()
        return (average - distributions.Categorical(softmax).entropy().mean(0)).clamp_min(0)


@cache
def helmert(classes: int) -> Tensor:  # (c, c − 1)
    """Orthonormal columns that sum to zero: each class against the mean of those before it."""
    below = torch.ones(classes, classes - 1, dtype=torch.float64).triu()
    found = below - torch.diag(torch.arange(1.0, classes, dtype=torch.float64), -1)[:, : classes - 1]
    return found / found.norm(dim=0)


def _expected_of_two(mean: Tensor, covariance: Tensor, targets: Tensor) -> Expectation:
    """Of one contrast u, by the logit √2 u of class 0."""
    first = (targets == 0).to(mean)
    logit, variance = 2**0.5 * mean[:, 0], 2 * covariance[:, 0, 0]
    softplus, sigma, slope = logistic(logit, variance)
    return Expectation(first * logit - softplus, 2**0.5 * (first - sigma)[:, None], 2 * slope[:, None, None])


def _softmax_density(contrasts: Tensor, own: Tensor, at: Tensor, data: slice) -> tuple[Tensor, Tensor]:
    """log p of labels and its gradient in contrasts (k, b, points): classes come first, which is fast.

    `own` (k, n, 1) are the contrasts of the labels' own logits.
    """
    logits = (contrasts @ at.flatten(1)).reshape(-1, *at.shape[1:])
    largest = logits.amax(0)
    weights = logits.sub_(largest).exp_()
    total = weights.sum(0)
    expected = (contrasts.mT @ weights.div_(total).flatten(1)).reshape(at.shape)
    return (at * own[:, data]).sum(0) - largest - total.log(), own[:, data] - expected


def softmax_root(probabilities: Tensor, columns: Tensor) -> Tensor:  # (..., c), (..., c, k) -> (..., c, k)
    """S times columns, where S Sᵀ = diag(π) − π πᵀ is the Hessian of the softmax: S = diag(√π) − π √πᵀ.

    No C × C matrix, no decomposition and no jitter; a column of standard normals becomes one of N(0, S Sᵀ).
    """
    root = probabilities.sqrt()
    return root[..., None] * columns - probabilities[..., None] * (root[..., None, :] @ columns)


def _complement(unit: Tensor) -> Tensor:  # (b, c) -> (b, c, c - 1)
    """Orthonormal columns orthogonal to a unit vector without negative entries, by Householder's reflection."""
    normal = unit.clone()
    normal[:, 0] += 1  # never cancels
    scale = 2 / normal.square().sum(1)
    identity = torch.eye(unit.shape[1], dtype=unit.dtype, device=unit.device)
    return (identity - scale[:, None, None] * normal[:, :, None] * normal[:, None, :])[:, :, 1:]


def softmax_hessian(inner: LinearOperator, probabilities: Tensor, weights: Tensor) -> Tensor:  # (q · c, q · c)
    """Σ w (diag(π) − π πᵀ) ⊗ x xᵀ, by pairs of classes: c times fewer operations than by its root.

    1 − π is summed from the other classes, so that confident data lose no digits.
    """
    q, c = inner.shape[1], probabilities.shape[1]
    others = probabilities @ (1 - torch.eye(c, dtype=torch.float64))
    total, start = torch.zeros(c, q, c, q, dtype=torch.float64), 0
    for rows in row_blocks(inner, BLOCK_ELEMENTS // c):
        part, x = slice(start, start := start + len(rows)), rows.double()
        p, w = probabilities[part], weights[part, None]
        scaled = ((w.sqrt() * p)[:, :, None] * x[:, None, :]).reshape(len(x), c * q)
        own = w * p * others[part]
        for k in range(c):
            total[k, :, k] += x.mT @ (own[:, k, None] * x)
            after = scaled[:, : (k + 1) * q][:, -q:].mT @ scaled[:, (k + 1) * q :]
            total[k, :, k + 1 :] -= after.reshape(q, c - k - 1, q)
    for k in range(c):
        total[k + 1 :, :, k] = total[k, :, k + 1 :].permute(1, 2, 0)
    return total.permute(1, 0, 3, 2).reshape(q * c, q * c)

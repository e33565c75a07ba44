"""The mode of a loss known by its products: Newton's method in a span of gradients that are kept with their images.

Each step finds the minimum of the true loss over the span, which costs no product, and adds the gradient there: one
product with the features and one with their transpose. What was found at one precision serves the next, where Newton
steps by conjugate gradients would forget every product they made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from lapwing.bayes.fits import newton
from lapwing.bayes.fits.loss import Loss
from lapwing.bayes.fits.newton import Mode
from lapwing.linalg.operators import Dense
from lapwing.runtime.memory import available_bytes

MAX_STEPS = 1000
WIDEST = 1000  # directions, beyond which the minimum over the span costs more than products
INSIDE = 1e-3  # of the tolerance goes to the minimum over the span
EPS = torch.finfo(torch.float64).eps


@final
@dataclass(frozen=True, eq=False)
class Span:
    """Directions of the weights with their images under the features."""

    directions: Tensor  # (p, m)
    images: Tensor  # (n · c, m)

    @staticmethod
    def of(loss: Loss, z: Tensor) -> Span:
        """The direction of one point, or none where that is zero: one product."""
        return Span(z[:, None][:, :0], loss.targets.new_zeros(loss.features.shape[0], 0).double()).grown(loss, z)

    def grown(self, loss: Loss, direction: Tensor) -> Span:
        """One more direction, made orthogonal to the others: one product."""
        for _ in range(2):
            direction = direction - self.directions @ (self.directions.mT @ direction)
        length = float(direction.norm())
        if length == 0:
            return self
        new = (direction / length)[:, None]
        image = loss.features.matmat(new)
        return Span(torch.cat([self.directions, new], dim=1), torch.cat([self.images, image], dim=1))

    def times(self, units: Tensor) -> Span:
        """The same directions in coordinates whose units are so many times smaller."""
        return replace(self, directions=self.directions * units[:, None])

    def orthonormal(self) -> Span:
        """The same span with orthonormal directions."""
        values, turn = torch.linalg.eigh(self.directions.mT @ self.directions)
        kept = values > len(values) * EPS * values.max() if len(values) else values > 0
        turn = turn[:, kept] / values[kept].sqrt()
        return Span(self.directions @ turn, self.images @ turn)

    def loss(self, loss: Loss) -> Loss:
        """The loss over coordinates in the span."""
        return replace(loss, features=Dense(self.images))


def mode(loss: Loss, *, start: Tensor, span: Span | None = None, tol: float, rough: bool = False) -> tuple[Mode, Span]:
    """The minimum of a convex loss, and the span it was found in; `span` is orthonormal and holds the start.

    `tol` bounds the gap to the minimum, in nats. Images carry the round-off of the products they came from, so the end
    is looked at with fresh products, and the search goes on from there where they disagree; `rough` leaves that out.

    >>> from lapwing import Bernoulli
    >>> x, y = torch.tensor([[1.0], [2.0], [-1.0]]).double(), torch.tensor([1.0, 1.0, 0.0])
    >>> found, span = mode(Loss(Dense(x), Bernoulli(), y, torch.ones(3)), start=torch.zeros(1).double(), tol=1e-12)
    >>> found.weights, found.passes, span.directions.shape
    (tensor([0.8800], dtype=torch.float64), 3.5, torch.Size([1, 1]))
    """
    steps, passes, least = 0, 0.0, torch.inf
    while True:
        if span is None:
            span, passes = Span.of(loss, start), passes + 0.5
        found, span = _searched(loss, span, start, tol, MAX_STEPS - steps)
        steps, passes = steps + found.steps, passes + found.passes
        if not rough:
            found, passes = _looked_at(loss, span, found), passes + 1.5
        if found.converged or steps >= MAX_STEPS or found.gap > 0.5 * least:
            return replace(found, steps=steps, passes=passes, factor=None), span
        start, span, least = found.weights, None, found.gap


def _searched(loss: Loss, span: Span, start: Tensor, tol: float, max_steps: int) -> tuple[Mode, Span]:
    """Steps until the loss is within its tolerance, or until the span may not grow or has lost its digits."""
    x, widest = span.directions.mT @ start, _widest(loss)
    for steps in range(max_steps + 1):
        inside = newton.mode(span.loss(loss), start=x, tol=INSIDE * tol)
        z = span.directions @ inside.weights
        known, outside = _seen(span, inside, loss.gradient(z, inside.outputs))
        found = replace(
            inside, weights=z, gap=known + 0.5 * float(outside.square().sum()), tol=max(tol, inside.tol), steps=steps,
            passes=steps + 0.5,
        )  # fmt: skip
        lost = known > 0.5 * found.gap  # the images no longer tell where the minimum over the span is
        if found.converged or lost or steps == max_steps or span.directions.shape[1] >= widest:
            break
        span = span.grown(loss, outside)
        x = torch.nn.functional.pad(inside.weights, (0, span.directions.shape[1] - len(inside.weights)))
    return found, span


def _seen(span: Span, inside: Mode, gradient: Tensor) -> tuple[float, Tensor]:
    """What a Newton step inside the span would gain, and the gradient outside, where the Hessian is at least I."""
    coordinates = span.directions.mT @ gradient
    return 0.5 * float(coordinates @ _newton(inside, coordinates)), gradient - span.directions @ coordinates


def _newton(inside: Mode, coordinates: Tensor) -> Tensor:
    """The Newton step inside the span, or the gradient where its Hessian is not at hand."""
    if inside.factor is None:
        return coordinates
    return torch.cholesky_solve(coordinates[:, None], inside.factor)[:, 0]


def _looked_at(loss: Loss, span: Span, found: Mode) -> Mode:
    """The same point by fresh products, its gap bounded from above.

    For any step d the gap ½gᵀH⁻¹g is gᵀd − ½dᵀHd + ½(g − Hd)ᵀH⁻¹(g − Hd), and H is at least I; d is the Newton step
    inside the span, whose image is known.
    """
    outputs = loss.outputs(found.weights)
    gradient = loss.gradient(found.weights, outputs)
    newton = _newton(found, span.directions.mT @ gradient)
    step = span.directions @ newton
    bent = step + loss.features.T @ (loss.curvature(outputs) @ (span.images @ newton))
    gap = float(gradient @ step - 0.5 * step @ bent + 0.5 * (gradient - bent).square().sum())
    return replace(
        found, outputs=outputs, log_prob=loss.log_prob(outputs), gap=gap, gradient_norm=float(gradient.norm()),
        factor=None,
    )  # fmt: skip


def _widest(loss: Loss) -> int:
    """Directions that fit into an eighth of the memory, with a minimum over their span by Cholesky."""
    room = available_bytes() / 8 / (8.0 * sum(loss.features.shape))
    return max(8, min(WIDEST, int(room), int((newton.DENSE_WORK / len(loss.targets)) ** 0.5)))

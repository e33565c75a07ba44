"""The pose of a picture, learnt without labels: two turned copies must come back to the same prototype.

For a picture x, two random transformations R₁, R₂ and the poses X₁, X₂ that the network gives the two copies, undoing
and redoing them, R₁ X₁⁻¹ X₂ R₂⁻¹, must leave x as it was; it is read once, through the product (Allingham et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, final

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from lapwing.runtime.progress import Report
from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.warping import Interpolation, warp
from lapwing.training import Descent, Loss, Optimiser, Weights, loop

POINT_WEIGHT = 0.3
Module = TypeVar("Module", bound=nn.Module)


@final
@dataclass(frozen=True)
class Training:
    """How long and how fast a stage learns.

    Parameters
    ----------
    steps : int
        Of the optimiser.
    batch_size : int
        Pictures in each.
    learning_rate : float
        Of Adam.
    weight_decay : float
        Of Adam, decoupled.

    Raises
    ------
    ValueError
        If a number of steps or pictures is below one, or the rate is not positive.

    Examples
    --------
    >>> Training(steps=100, batch_size=50).epochs(500)
    10
    """

    steps: int = 2000
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or not self.learning_rate > 0:
            raise ValueError(f"{self}: expected at least one step and one picture a batch, and a positive rate")

    def epochs(self, size: int) -> int:
        """Passes over so many pictures that make about so many steps."""
        return max(1, round(self.steps / math.ceil(size / self.batch_size)))

    def optimiser(self) -> Optimiser:
        """Adam with decoupled weight decay."""
        return lambda weights: torch.optim.AdamW(
            weights, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )


@final
@dataclass(frozen=True)
class Stage:
    """One of the two stages of learning: how long and fast, how pictures are read, and how the run goes."""

    training: Training
    interpolation: Interpolation = "bilinear"
    seed: int = 0
    checkpoint: Path | None = None
    progress: bool | Report | None = None

    def before(self) -> Stage:
        """A start of a fifth of the steps, with a checkpoint of its own."""
        start = replace(self.training, steps=-(-self.training.steps // 5))
        file = self.checkpoint and self.checkpoint.with_name(f"points-{self.checkpoint.name}")
        return replace(self, training=start, checkpoint=file)


def warm_cosine(done: float) -> float:
    """Factor of the learning rate: up during the first twentieth, then down along a cosine to a fiftieth.

    >>> [round(warm_cosine(done), 2) for done in (0.0, 0.05, 0.525, 1.0)]
    [0.02, 1.0, 0.51, 0.02]
    """
    if done < 0.05:
        return 0.02 + 0.98 * done / 0.05
    return 0.51 + 0.49 * math.cos(math.pi * (done - 0.05) / 0.95)


@final
class Poser(nn.Module):
    """η of pictures (n, channels, size, size): (n, generators); angles through their sine and cosine."""

    def __init__(self, group: Affine, pixels: int, width: int) -> None:
        super().__init__()
        self.group = group
        outputs = len(group) + sum(group.is_angle)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width // 2),
            nn.LayerNorm(width // 2), nn.GELU(), nn.Linear(width // 2, outputs),
        )  # fmt: skip
        self.straight = nn.Linear(pixels, outputs, bias=False)
        with torch.no_grad():
            self.layers[-1].weight.mul_(0.1)  # type: ignore[operator]
            self.straight.weight.copy_(_third_moments(pixels, outputs, any(group.is_angle)))

    def forward(self, images: Tensor, raw: bool = False) -> Tensor:
        """A continuous function of the picture on the circle, so that no angle is a border; or its last layer."""
        last = self.layers(images) + self.straight(images.flatten(1))
        return last if raw else self.poses(last)

    def poses(self, raw: Tensor) -> Tensor:
        """η from the last layer: (n, generators)."""
        angles, others = self.parts(raw)
        turned = iter(torch.atan2(angles.imag, angles.real).unbind(-1))
        straight = iter(others.unbind(-1))
        pairs = zip(self.group.is_angle, self.group.bounds, strict=True)
        return torch.stack([next(turned) if turns else bound * next(straight) for turns, bound in pairs], dim=-1)

    def parts(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer as points of the plane, one for each angle, and as numbers for the rest."""
        count = sum(self.group.is_angle)
        points = raw[..., : 2 * count].reshape(*raw.shape[:-1], count, 2)
        return torch.complex(points[..., 0], points[..., 1]), raw[..., 2 * count :]


def consistency(poser: Poser, interpolation: Interpolation) -> Loss:
    """Mean squared change of pictures by R₁ X₁⁻¹ X₂ R₂⁻¹ over their variance, plus `_unequal` points of angles.

    Pictures alone have a local minimum half a turn off, since most look a little alike upside down.
    """
    group = poser.group

    def loss(weights: Weights, images: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        del targets
        n = len(images)
        drawn = group.draw(2 * n, generator, images)
        copies = warp(torch.cat([images, images]), group.matrix(drawn), interpolation=interpolation)
        raw = functional_call(poser, weights, (copies, True))
        first, second = poser.poses(raw).split(n)
        around = group.matrix(drawn[:n]) @ group.inverse(first) @ group.matrix(second) @ group.inverse(drawn[n:])
        change = images - warp(images, around, interpolation=interpolation)
        total = change.square().mean() / images.var().clamp_min(1e-12)
        if any(group.is_angle):
            total = total + POINT_WEIGHT * _unequal(poser.parts(raw)[0], drawn[:, list(group.is_angle)])
        return total

    return loss


def pointing(poser: Poser, interpolation: Interpolation) -> Loss:
    """The points of angles alone, as a start."""
    group = poser.group

    def loss(weights: Weights, images: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        del targets
        drawn = group.draw(2 * len(images), generator, images)
        copies = warp(torch.cat([images, images]), group.matrix(drawn), interpolation=interpolation)
        points, _ = poser.parts(functional_call(poser, weights, (copies, True)))
        return _unequal(points, drawn[:, list(group.is_angle)])

    return loss


def _unequal(points: Tensor, turned: Tensor) -> Tensor:
    """Squared distance of the points of two copies, turned back, plus how far their mean square is from one.

    Points half a turn apart are drawn together straight through the middle, where an angle would feel no gradient.
    """
    first, second = (points * torch.polar(torch.ones_like(turned), -turned)).chunk(2)
    apart, size = torch.view_as_real(first - second).square(), torch.view_as_real(points).square()
    return apart.sum(-1).mean() + (size.sum(-1).mean() - 1).square()


def _third_moments(pixels: int, outputs: int, turns: bool) -> Tensor:
    """First weights of the straight part: points that turn with the picture, Σ x(p) |p|² p, and zeros for the rest.

    The third moment, since many pictures are centred by their first.
    """
    found = torch.zeros(outputs, pixels)
    size = next((side for channels in (1, 3) if (side := math.isqrt(pixels // channels)) ** 2 * channels == pixels), 0)
    if turns and size:
        place = torch.linspace(-1, 1, size)
        y, x = torch.meshgrid(place, place, indexing="ij")
        square = x.square() + y.square()
        inside = square * (square <= 1)
        found[:2] = torch.stack([x * inside, -y * inside]).flatten(1).repeat(1, pixels // size**2)
        found[:2] *= 3 / found[0].norm()
    return found


def learn(poser: Poser, images: Tensor, stage: Stage) -> tuple[float, ...]:
    """The first stage: a poser learns from pictures alone, in place; its loss after every epoch.

    Where pictures are turned, a fifth of the steps first bring the points of angles together.
    """
    if any(poser.group.is_angle):
        descended(poser, pointing(poser, stage.interpolation), images, stage.before())
    return descended(poser, consistency(poser, stage.interpolation), images, stage)


def descended(
    module: nn.Module, loss: Loss, images: Tensor, stage: Stage, score: Callable[[Weights], float] | None = None
) -> tuple[float, ...]:
    """A run of the training loop on pictures, in place: the weights of the best score, in eval mode; and all losses."""
    start: Weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    training = stage.training
    learner = Descent(loss, start, training.optimiser(), warm_cosine)
    epochs = training.epochs(len(images))
    module.train()
    found = loop(
        learner, (images, torch.zeros(len(images))), epochs=epochs, batch_size=training.batch_size, seed=stage.seed,
        checkpoint=stage.checkpoint, progress=stage.progress, score=score,
        settings={"epochs": epochs, "learning_rate": training.learning_rate, "weight_decay": training.weight_decay},
    )  # fmt: skip
    module.load_state_dict({**module.state_dict(), **found.weights})
    module.eval()
    return tuple(epoch.loss for epoch in found.curve)


def seeded(seed: int, build: Callable[[], Module]) -> Module:
    """A module whose first weights are drawn by a seed, without touching the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()

"""p(η | x̂): how pictures of one prototype are posed, as a conditional flow of splines, circular for angles."""

from __future__ import annotations

import math
from typing import Any, Literal, final

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.inference import Poser, Stage, descended
from lapwing.studies.symmetry.warping import Interpolation, warp
from lapwing.training import Loss, Weights

Shape = Literal["spline", "gaussian"]


def _flows() -> Any:
    try:
        import zuko.flows
    except ImportError as error:
        raise ImportError("symmetries need zuko: pip install 'lapwing[symmetry]'") from error
    return zuko.flows


@final
class Poses(nn.Module):
    """log p(η | x̂) and draws from it; `shape="gaussian"` and `conditional=False` are what the flow is compared with."""

    centre: Tensor  # of η, (generators,)
    spread: Tensor
    circular: Any
    straight: Any

    def __init__(
        self, group: Affine, pixels: int, width: int, *, shape: Shape = "spline", conditional: bool = True,
        bins: int = 8, transforms: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        if shape not in ("spline", "gaussian"):
            raise ValueError(f"the shape of p(η | x̂) is {shape!r}: expected 'spline' or 'gaussian'")
        self.group, self.shape, self.conditional = group, shape, conditional
        self.context = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, width), nn.LayerNorm(width), nn.GELU(),
            nn.Linear(width, width // 2), nn.GELU(),
        )  # fmt: skip
        angle = torch.tensor(group.is_angle)
        self.register_buffer("centre", torch.zeros(len(group)))
        self.register_buffer("spread", torch.where(angle, torch.ones(()), torch.tensor(group.bounds)))
        self.angles, self.others = angle.nonzero()[:, 0].tolist(), (~angle).nonzero()[:, 0].tolist()
        if shape == "gaussian":
            self.head = nn.Linear(width // 2, 2 * len(group))
            return
        options: dict[str, Any] = {"bins": bins, "transforms": transforms, "hidden_features": (width // 2,)}
        if self.angles:
            self.circular = _flows().NCSF(len(self.angles), width // 2, **options)
        if self.others:
            self.straight = _flows().NSF(len(self.others), width // 2 + 2 * len(self.angles), **options)
        for module in self.modules():  # every transformation starts as the identity
            if hasattr(module, "hyper"):
                layers: Any = module.hyper
                last = [layer for layer in layers if hasattr(layer, "weight")][-1]
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)

    def forward(self, prototypes: Tensor, eta: Tensor) -> Tensor:
        """log p(η | x̂) for pictures (n, …) and η (…, n, generators): (…, n)."""
        context, unit = self._context(prototypes), (self.group.wrap(eta) - self.centre) / self.spread
        if self.shape == "gaussian":
            location, log_std = self.head(context).chunk(2, dim=-1)
            normal = torch.distributions.Normal(location, log_std.clamp(-7, 4).exp(), validate_args=False)
            return normal.log_prob(unit).sum(-1) - self.spread.log().sum()
        total = -self.spread.log().sum()
        if self.angles:
            total = total + self.circular(context).log_prob(unit[..., self.angles])
        if self.others:
            given = self._given(context, unit[..., self.angles])
            total = total + self.straight(given).log_prob(unit[..., self.others])
        return total

    def draw(self, prototypes: Tensor, count: int, generator: Generator) -> Tensor:
        """η from p(η | x̂): (count, n, generators); differentiable in the pictures and the weights."""
        context = self._context(prototypes)
        shape = (count, len(context), len(self.group))
        normals = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device).to(context)
        if self.shape == "gaussian":
            location, log_std = self.head(context).chunk(2, dim=-1)
            return self.group.wrap((location + log_std.clamp(-7, 4).exp() * normals) * self.spread + self.centre)
        unit = torch.zeros_like(normals)
        if self.angles:
            share = torch.special.ndtr(normals[..., self.angles].double()).to(context)
            turns = self.circular(context).transform.inv((2 * share - 1) * math.pi)
            unit = unit.index_copy(-1, torch.tensor(self.angles), turns)
        if self.others:
            given = self._given(context.expand(count, *context.shape), unit[..., self.angles])
            rest = self.straight(given).transform.inv(normals[..., self.others])
            unit = unit.index_copy(-1, torch.tensor(self.others), rest)
        return self.group.wrap(unit * self.spread + self.centre)

    def _context(self, prototypes: Tensor) -> Tensor:
        found = self.context(prototypes)
        return found if self.conditional else torch.zeros_like(found)

    def _given(self, context: Tensor, angles: Tensor) -> Tensor:
        """The context of the straight flow: pictures, and angles as points of the circle."""
        shape = torch.broadcast_shapes(context.shape[:-1], angles.shape[:-1])
        parts = [context, angles.sin(), angles.cos()]
        return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], dim=-1)


@torch.no_grad()
def posed(poser: Poser, images: Tensor, drawn: Tensor, interpolation: Interpolation) -> tuple[Tensor, Tensor]:
    """Prototypes of pictures transformed by η = `drawn`, and the pose that takes each prototype to its own picture.

    With X the pose of the transformed picture, x̂ = x through R X⁻¹, so that X R⁻¹ takes x̂ back to x exactly, whichever
    of several poses the network prefers for a symmetric picture. Where products leave the span of the generators, the
    pose of the picture itself is used.
    """
    group = poser.group
    turn, back = group.matrix(drawn), group.inverse(drawn)
    pose = poser(warp(images, turn, interpolation=interpolation))
    prototypes = warp(images, turn @ group.inverse(pose), interpolation=interpolation)
    return prototypes, group.coordinates(group.matrix(pose) @ back) if group.is_closed else poser(images)


def likelihood(poses: Poses, poser: Poser, interpolation: Interpolation) -> Loss:
    """−log p(η | x̂) per picture, with x̂ the prototype of a copy transformed at random."""

    def loss(weights: Weights, images: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        del targets
        prototypes, eta = posed(poser, images, poser.group.draw(len(images), generator, images), interpolation)
        return -functional_call(poses, weights, (prototypes, eta)).mean()

    return loss


def learn(poses: Poses, poser: Poser, images: Tensor, held_out: Tensor, stage: Stage) -> tuple[float, ...]:
    """The second stage, in place: the flow of the epoch that was best on held-out pictures; all losses."""
    _standardise(poses, poser(images).detach())
    loss = likelihood(poses, poser, stage.interpolation)

    def score(weights: Weights) -> float:
        poses.eval()
        with torch.no_grad():
            found = float(loss(weights, held_out, held_out, Generator().manual_seed(stage.seed + 1)))
        poses.train()
        return found

    return descended(poses, loss, images, stage, score)


def _standardise(poses: Poses, eta: Tensor) -> None:
    """The spline acts on [−5, 5], so that straight coordinates are put there; angles stay as they are."""
    for place in poses.others:
        poses.centre[place] = eta[:, place].mean()
        poses.spread[place] = eta[:, place].std().clamp_min(1e-3 * poses.group.bounds[place])

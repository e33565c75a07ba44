"""What a symmetry model is judged by: prototypes along orbits, inferred against applied angles, widths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg.estimators import Estimate
from lapwing.runtime.progress import Report
from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.joint import JointModel
from lapwing.studies.symmetry.model import SymmetryModel, half_width
from lapwing.studies.symmetry.poses import posed
from lapwing.studies.symmetry.warping import checked, warp

PUBLISHED = {0: 32.0, 15: 35.0, 30: 42.6, 45: 52.9, 90: 81.7, 180: 79.6}  # half-widths of inferred angles, degrees


@final
@dataclass(frozen=True, eq=False)
class Turned:
    """Angles that were applied to pictures and the ones inferred, relative to the picture before; in degrees."""

    applied: Tensor
    inferred: Tensor  # unwrapped to within half a turn of the applied ones

    @property
    def correlation(self) -> float:
        """Pearson's, over all pictures."""
        return float(torch.corrcoef(torch.stack([self.applied, self.inferred]))[0, 1])


def rotated(images: Tensor, degrees: float, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Every picture turned by its own angle, uniform in ±degrees; and those angles, in degrees.

    >>> x, angles = rotated(torch.rand(5, 1, 8, 8, generator=torch.Generator()), 30)
    >>> x.shape, bool((angles.abs() <= 30).all())
    (torch.Size([5, 1, 8, 8]), True)
    """
    unit = torch.rand(len(images), generator=Generator().manual_seed(seed), dtype=torch.float64).to(images)
    angles = (2 * unit - 1) * degrees
    if degrees == 0:
        return images, angles
    matrix = Affine.of(rotation=math.pi).matrix(angles.deg2rad()[:, None])
    return warp(images, matrix).clamp(0, 1), angles


def turns(model: SymmetryModel, images: Tensor, degrees: float = 180, *, seed: int = 0) -> Turned:
    """Pictures turned once more, and how their inferred pose follows."""
    more, applied = rotated(images, degrees, seed=seed)
    place = model.group.names.index("rotation")
    change = (model.transformation(more) - model.transformation(images))[:, place].rad2deg()
    return Turned(applied, applied + torch.remainder(change - applied + 180, 360) - 180)


def orbit_ratio(
    model: SymmetryModel | JointModel, images: Tensor, labels: Tensor, degrees: float = 180, *, copies: int = 6,
    seed: int = 0,
) -> float:  # fmt: skip
    """Mean squared difference of prototypes of one picture, turned at random, over that between kinds of pictures."""
    stack = torch.stack(
        [model.prototype(rotated(images, degrees, seed=seed + copy)[0]) for copy in range(copies)]
    )  # (copies, n, …)
    within = 2 * stack.var(0).mean()
    other = torch.randperm(len(images), generator=Generator().manual_seed(seed))
    different = labels != labels[other]
    if not bool(different.any()):  # one kind only: between pictures
        different = other != torch.arange(len(other))
    between = (stack[0] - stack[1][other])[different].square().mean()
    return float(within / between)


def published_half_width(model: SymmetryModel, images: Tensor) -> float:
    """Half-width in degrees of the central 90 % of all inferred angles, which mixes spread and arbitrary zeros."""
    angles = model.transformation(images)[:, model.group.names.index("rotation")]
    low, high = angles.quantile(torch.tensor([0.05, 0.95]).to(angles))
    return float((high - low).rad2deg() / 2)


def density_of_angle(model: SymmetryModel, prototypes: Tensor, points: int = 181) -> tuple[Tensor, Tensor]:
    """Angles in degrees (points,) and p(η | x̂) per degree (n, points), for a group of rotations alone."""
    if model.group.names != ("rotation",):
        raise ValueError(f"the group is {', '.join(model.group.names)}: one density over angles needs rotation alone")
    angles = torch.linspace(-180, 180, points)[:-1] + 180 / (points - 1)
    eta = angles.deg2rad()[:, None, None].expand(-1, len(prototypes), 1)
    return angles, model.pose_log_prob(prototypes, eta).exp().mT * math.pi / 180


def modes(density: Tensor, *, least: float = 0.25) -> list[int]:
    """Places of the modes of a circular density on a grid: centres of the stretches above this share of its maximum.

    Pictures turned uniformly have a plateau, whose highest point means nothing: hence the centre of mass of a stretch.
    Bins are averaged with a fifteenth of the circle around them first. A density without any gap has no modes.

    >>> angles = torch.linspace(-torch.pi, torch.pi, 361)[:-1]
    >>> modes(torch.exp(4 * (2 * angles).cos())), modes(torch.ones(360))
    ([0, 180], [])
    """
    n = len(density)
    reach = max(1, n // 30)
    smooth = torch.stack([density.roll(shift) for shift in range(-reach, reach + 1)]).mean(0)
    above = smooth > least * smooth.max()
    if bool(above.all()):
        return []
    first = int((~above).nonzero()[0, 0])  # the circle is cut in a gap
    smooth, above = smooth.roll(-first), above.roll(-first)
    stretch = (above.diff(prepend=above[:1]).long().cumsum(0) + 1) // 2  # 1, 2, … where above
    parts = [above & (stretch == number) for number in range(1, int(stretch.max()) + 1)]
    moment = smooth * torch.arange(n).to(smooth)
    return sorted(round(float(moment[part].sum() / smooth[part].sum()) + first) % n for part in parts)


def half_a_turn(density: Tensor) -> bool:
    """Whether a circular density on a grid has two modes, half a turn apart to within 15°."""
    peaks = modes(density)
    return len(peaks) == 2 and abs((peaks[1] - peaks[0]) * 360 / len(density) - 180) <= 15


def upside_down(model: SymmetryModel, images: Tensor) -> float:
    """Share of pictures whose p(η | x̂) has two peaks, half a turn apart."""
    _, density = density_of_angle(model, model.prototype(images))
    return sum(half_a_turn(curve) for curve in density) / len(density)


@torch.no_grad()
def pose_scores(model: SymmetryModel, images: Tensor, *, seed: int = 0) -> Tensor:
    """log p(η | x̂) of every picture's pose, with x̂ the prototype of a copy transformed at random: (n,)."""
    pictures, poser = checked(images, turned=any(model.group.is_angle)), model.found.bound.poser
    drawn = model.group.draw(len(pictures), Generator().manual_seed(seed), pictures)
    prototypes, eta = posed(poser, pictures, drawn, model.settings.interpolation)
    return model.pose_log_prob(prototypes.clamp(0, 1), eta)


def widths(model: SymmetryModel, images: Tensor, *, draws: int = 400, seed: int = 0) -> Tensor:
    """Half-width in degrees of 90 % of p(η | x̂) for each picture's prototype."""
    place = model.group.names.index("rotation")
    with torch.no_grad():
        drawn = model.found.bound.poses.draw(model.prototype(images), draws, Generator().manual_seed(seed))
    return half_width(drawn[..., place].mT, circular=True).rad2deg()


@final
@dataclass(frozen=True, eq=False)
class Judged:
    """What came out on pictures that the model has not seen."""

    degrees: float  # pictures were turned by up to so many
    extent: Estimate  # degrees
    inferred_half_width: float  # the published statistic
    orbit_ratio: float
    turned: Turned
    log_prob: Estimate

    def plain(self) -> dict[str, float | None]:
        """As numbers for a file."""
        return {
            "applied_half_range": self.degrees, "half_width": self.extent.value,
            "half_width_error": self.extent.standard_error, "half_width_of_applied": 0.9 * self.degrees,
            "inferred_half_width": self.inferred_half_width, "published_half_width": PUBLISHED.get(round(self.degrees)),
            "orbit_ratio": self.orbit_ratio, "correlation": self.turned.correlation,
            "median_error": float((self.turned.inferred - self.turned.applied).abs().median()),
            "log_prob_bound": self.log_prob.value, "log_prob_bound_error": self.log_prob.standard_error,
        }  # fmt: skip

    def words(self) -> list[tuple[str, str]]:
        """As names and values for a person."""
        return [
            ("Half-width of 90 % of p(η | x̂)", f"{self.extent.value:.1f}° ± {self.extent.standard_error:.1f}°"),
            ("… of the rotation that was applied", f"{0.9 * self.degrees:.1f}°"),
            ("Half-width of all inferred angles", f"{self.inferred_half_width:.1f}°"),
            ("Prototypes: differences along an orbit over those between kinds", f"{self.orbit_ratio:.3f}"),
            ("Correlation of applied and inferred angles", f"{self.turned.correlation:.3f}"),
            ("Bound on log p(x), nats a picture", f"{self.log_prob.value:.1f} ± {self.log_prob.standard_error:.1f}"),
        ]


def judged(model: SymmetryModel, images: Tensor, labels: Tensor, degrees: float, *, seed: int = 0) -> Judged:
    """Everything a page or a table says about a model of rotations."""
    bound = model.log_prob(images[:200], draws=16, seed=seed).value
    found = widths(model, images[:500], seed=seed)
    picks = torch.randint(len(found), (200, len(found)), generator=Generator().manual_seed(seed))
    return Judged(
        float(degrees), Estimate(float(found.median()), float(found[picks].median(1).values.std())),
        published_half_width(model, images), orbit_ratio(model, images, labels, seed=seed),
        turns(model, images, seed=seed), Estimate(float(bound.mean()), float(bound.std() / math.sqrt(len(bound)))),
    )  # fmt: skip


def ablated(
    model: SymmetryModel, images: Tensor, degrees: float, *, seed: int = 0, progress: bool | Report | None = None
) -> dict[str, SymmetryModel]:
    """The model without each conjecture: a Gaussian p(η | x̂), a p(η) without x̂, a network that sees half the range."""
    poser, settings = model.found.bound.poser, model.settings
    narrow = Affine.of(rotation=math.radians(max(degrees, 30) / 2))
    without = {
        "Gaussian p(η | x̂)": SymmetryModel(model.group, replace(settings, shape="gaussian")),
        "p(η) without x̂": SymmetryModel(model.group, replace(settings, conditional=False)),
    }
    found = {name: other.fit(images, poser=poser, seed=seed, progress=progress) for name, other in without.items()}
    return found | {
        "poses alike over half the range": SymmetryModel(narrow, settings).fit(images, seed=seed, progress=progress)
    }

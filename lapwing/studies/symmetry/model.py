"""Prototypes and transformations of a set of pictures, learnt in two stages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch
from torch import Generator, Tensor

from lapwing.linalg.estimators import Estimate, Estimates
from lapwing.runtime.progress import Report
from lapwing.studies.symmetry import inference, poses
from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.inference import Poser, Stage, Training, seeded
from lapwing.studies.symmetry.poses import Poses, Shape
from lapwing.studies.symmetry.prototypes import Bound, bound, importance_weighted
from lapwing.studies.symmetry.warping import Interpolation, checked, warp

KEPT = 256  # prototypes that `extent` looks at
LEVEL = 0.9


@final
@dataclass(frozen=True)
class Settings:
    """Sizes and lengths of both stages; `shape` and `conditional` are of p(η | x̂).

    Parameters
    ----------
    width : int
        Of the networks.
    inference : Training
        Of the first stage, which finds poses.
    poses : Training
        Of the second, which learns p(η | x̂).
    shape : "spline" or "gaussian"
        Of p(η | x̂).
    conditional : bool
        Whether p(η | x̂) depends on x̂.
    interpolation : "bilinear" or "bicubic"
        Between pixels.

    Examples
    --------
    >>> Settings(width=64).shape
    'spline'
    """

    width: int = 256
    inference: Training = field(default_factory=lambda: Training(steps=500, learning_rate=2e-3))
    poses: Training = field(default_factory=lambda: Training(steps=1500, learning_rate=5e-3, weight_decay=3e-2))
    shape: Shape = "spline"
    conditional: bool = True
    interpolation: Interpolation = "bilinear"


@final
@dataclass(frozen=True, eq=False)
class Learnt:
    """What `fit` found."""

    bound: Bound
    prototypes: Tensor  # (at most KEPT, channels, size, size), of pictures that were held out
    poser_curve: tuple[float, ...] = ()  # loss of the first stage after every epoch


@final
@dataclass(frozen=True, eq=False)
class SymmetryModel:
    """x = T_η x̂ + noise: a prototype x̂, its pose η ~ p(η | x̂), both inferred from pictures alone.

    Pictures are float tensors (n, size, size) or (n, channels, size, size) in [0, 1] on a background of 0.

    Parameters
    ----------
    group : Affine
        Of transformations.
    settings : Settings
        Of both stages.
    learnt : Learnt, optional
        What `fit` found.

    Examples
    --------
    >>> from lapwing.studies.datasets import digits
    >>> quick = Settings(width=16, inference=Training(steps=4), poses=Training(steps=4))
    >>> x = torch.nn.functional.pad(digits().train[0][:40].float(), [2] * 4)
    >>> model = SymmetryModel(Affine.of(rotation=math.pi), quick).fit(x, progress=False)
    >>> model.prototype(x).shape, model.transformation(x).shape, model.resample(x[:2], 3).shape
    (torch.Size([40, 1, 12, 12]), torch.Size([40, 1]), torch.Size([3, 2, 1, 12, 12]))
    """

    group: Affine = field(default_factory=lambda: Affine.of(rotation=math.pi))
    settings: Settings = field(default_factory=Settings)
    learnt: Learnt | None = None

    def fit(
        self, images: Tensor, *, held_out: float = 0.15, poser: Poser | None = None, seed: int = 0,
        checkpoint: Path | str | None = None, progress: bool | Report | None = None,
    ) -> SymmetryModel:  # fmt: skip
        """A model that learnt from pictures; this one is not changed.

        A share is held out to choose the epoch, the rank and the width of q. With `poser`, the first stage is taken
        from another model of the same group. `checkpoint` is a folder: an interrupted fit goes on from there. A loss
        that becomes NaN or infinite raises `lapwing.training.Diverged`, which has the step and the last good weights.
        """
        pictures, settings = self._checked(images), self.settings
        if not 0 < held_out < 1 or len(pictures) < 10:
            raise ValueError(
                f"{len(pictures)} pictures, of which {held_out:.0%} held out: expected at least 10, and a share"
            )
        order = torch.randperm(len(pictures), generator=Generator().manual_seed(seed))
        cut = max(2, round(held_out * len(pictures)))
        kept, train = pictures[order[:cut]], pictures[order[cut:]]
        pixels, folder = pictures[0].numel(), None if checkpoint is None else Path(checkpoint)
        second = Stage(settings.poses, settings.interpolation, seed, folder and folder / "poses.pt", progress)
        curve: tuple[float, ...] = ()
        if poser is None:
            poser = seeded(seed, lambda: Poser(self.group, pixels, settings.width)).to(pictures.dtype)
            first = replace(second, training=settings.inference, checkpoint=folder and folder / "inference.pt")
            curve = inference.learn(poser, train, first)
        elif poser.group != self.group:
            raise ValueError(f"the poser is of {poser.group}, the model of {self.group}: expected the same group")
        flow = seeded(seed, lambda: self._poses(pixels)).to(pictures.dtype)
        poses.learn(flow, poser, train, kept, second)
        found = bound(poser, flow, train, kept, settings.interpolation)
        with torch.no_grad():
            shown = warp(kept[:KEPT], self.group.inverse(poser(kept[:KEPT])), interpolation=settings.interpolation)
        return replace(self, learnt=Learnt(found, shown, curve))

    def _poses(self, pixels: int) -> Poses:
        settings = self.settings
        return Poses(self.group, pixels, settings.width, shape=settings.shape, conditional=settings.conditional)

    def _checked(self, images: Tensor) -> Tensor:
        pictures = checked(images, turned=any(self.group.is_angle))
        if self.learnt is None:
            return pictures
        like = self.learnt.prototypes
        if pictures.shape[1:] != like.shape[1:]:
            raise ValueError(f"pictures of shape {tuple(images.shape)}: the model learnt from {tuple(like.shape[1:])}")
        return pictures.to(like)

    @property
    def found(self) -> Learnt:
        """What was learnt, or an error where nothing was."""
        if self.learnt is None:
            raise ValueError("this model has not seen any pictures: call fit(images) first, and use what it returns")
        return self.learnt

    @torch.no_grad()
    def transformation(self, images: Tensor) -> Tensor:
        """η that takes the prototype of each picture to it: (n, generators).

        Which pose of an object is its prototype is arbitrary: compare pictures with each other, not with zero.
        """
        return self.found.bound.poser(self._checked(images))

    @torch.no_grad()
    def prototype(self, images: Tensor) -> Tensor:
        """Each picture with its transformation undone: (n, channels, size, size)."""
        pictures = self._checked(images)
        return self._warp(pictures, self.group.inverse(self.found.bound.poser(pictures)))

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Tensor:
        """T_η of the mean of x̂ in the model of prototypes: what the model keeps of a picture."""
        pictures, subspace = self._checked(images), self.found.bound.subspace
        eta = self.found.bound.poser(pictures)
        mean, _ = subspace.posterior(self._warp(pictures, self.group.inverse(eta)).flatten(1))
        return self._warp(subspace.decode(mean).reshape(pictures.shape), self.group.matrix(eta))

    @torch.no_grad()
    def resample(self, images: Tensor, n: int, *, seed: int = 0) -> Tensor:
        """The same objects in n new poses from p(η | x̂), each read once from its picture: (n, pictures, …)."""
        if n < 1:
            raise ValueError(f"{n} new poses were asked for, expected at least one")
        pictures, group = self._checked(images), self.group
        back = group.inverse(self.found.bound.poser(pictures))
        eta = self.found.bound.poses.draw(self._warp(pictures, back), n, Generator().manual_seed(seed))
        return torch.stack([self._warp(pictures, back @ group.matrix(one)) for one in eta])

    @torch.no_grad()
    def pose_log_prob(self, prototypes: Tensor, eta: Tensor) -> Tensor:
        """log p(η | x̂) for η (…, n, generators): (…, n)."""
        return self.found.bound.poses(self._checked(prototypes), eta.to(self.found.prototypes))

    def log_prob(self, images: Tensor, *, draws: int = 32, importance: int = 1, seed: int = 0) -> Estimates:
        """A lower bound on log p(x) of each picture, in nats, with its Monte-Carlo standard error.

        Of the pixels in the disc where the group turns, and with x̂ from a linear Gaussian model of prototypes. Each
        of the `draws` is from as many weights as `importance` says: with one the ELBO, with more a tighter bound.
        """
        weights, _ = self.found.bound.terms(self._checked(images), draws * importance, Generator().manual_seed(seed))
        return importance_weighted(weights, importance)

    @torch.no_grad()
    def extent(self, *, draws: int = 400, seed: int = 0) -> dict[str, Estimate]:
        """How far the data move along each generator: half the shortest stretch that holds 90 % of p(η | x̂).

        The median over prototypes with its standard error. Each prototype has its own stretch, since which pose is
        its zero is arbitrary; data turned uniformly by ±ρ have 0.9 ρ.
        """
        drawn = self.found.bound.poses.draw(self.found.prototypes, draws, Generator().manual_seed(seed))
        found = {}
        for place, name in enumerate(self.group.names):
            widths = half_width(drawn[..., place].mT, circular=name == "rotation")
            picks = torch.randint(len(widths), (200, len(widths)), generator=Generator().manual_seed(seed))
            found[name] = Estimate(float(widths.median()), float(widths[picks].median(1).values.std()))
        return found

    def save(self, path: Path | str) -> Path:
        """Write the model to one file, safetensors with JSON in its header; see `load`."""
        from lapwing.studies.symmetry.files import save

        return save(self, path)

    @staticmethod
    def load(path: Path | str) -> SymmetryModel:
        """The model that `save` wrote; nothing is unpickled."""
        from lapwing.studies.symmetry.files import load

        return load(path)

    def _warp(self, images: Tensor, matrix: Tensor) -> Tensor:
        return warp(images, matrix, interpolation=self.settings.interpolation)


def half_width(values: Tensor, *, circular: bool, level: float = LEVEL) -> Tensor:
    """Half the length of the shortest interval, or arc, that holds this share of the values in each row: (rows,).

    >>> half_width(torch.linspace(-1, 1, 1001)[None], circular=False)
    tensor([0.9010])
    """
    ordered = values.sort(dim=-1).values
    n = ordered.shape[-1]
    inside = math.ceil(level * n)
    if circular:
        ordered = torch.cat([ordered, ordered + 2 * math.pi], dim=-1)
        lengths = ordered[..., inside : inside + n] - ordered[..., :n]
    else:
        lengths = ordered[..., inside:] - ordered[..., : n - inside]
    return lengths.min(dim=-1).values / 2

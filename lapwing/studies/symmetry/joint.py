"""Prototypes and poses learnt at once, as one variational model, with each of its three conjectures as a switch.

p(x, z, η) = N(z; 0, I) p(η | x̂) N(x; T_η x̂, noise) with x̂ = decoder(z), and q(z, η | x) = q(z | x) q(η | x): both
densities over η are flows, and the encoder of z is averaged over random transformations of the picture, so that z
forgets η.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from lapwing.linalg.estimators import Estimates
from lapwing.runtime.progress import Report
from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.inference import Training, seeded, warm_cosine
from lapwing.studies.symmetry.poses import Poses, Shape
from lapwing.studies.symmetry.prototypes import importance_weighted, log_normal
from lapwing.studies.symmetry.warping import checked, disc, warp
from lapwing.training import Descent, Weights, loop


@final
@dataclass(frozen=True)
class JointSettings:
    """Sizes, and the conjectures: the `shape` of p(η | x̂), whether it is `conditional` on x̂, the encoder's `reach`.

    The encoder is averaged over `copies` transformations, uniform within `reach` times the bounds of the group:
    1 is all of it, 0 none. The weight of KL(q(z | x) ‖ p(z)) falls from `first_beta` to one along a cosine. Without
    `posed` there is no η and no average: a plain variational autoencoder of the same size, to compare with.

    Parameters
    ----------
    latent : int
        Numbers of z.
    width : int
        Of the networks.
    copies : int
        Transformed copies that the encoder is averaged over.
    reach : float
        Of those copies, in bounds of the group.
    shape : "spline" or "gaussian"
        Of p(η | x̂).
    conditional : bool
        Whether p(η | x̂) depends on x̂.
    posed : bool
        Whether there is a pose at all.
    first_beta : float
        Weight of the divergence of z, at first.
    training : Training
        How long and how fast.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> JointSettings(latent=8).copies
    10
    """

    latent: int = 16
    width: int = 128
    copies: int = 10
    reach: float = 1.0
    shape: Shape = "spline"
    conditional: bool = True
    posed: bool = True
    first_beta: float = 10.0
    training: Training = field(default_factory=lambda: Training(steps=3000))

    def __post_init__(self) -> None:
        if self.latent < 1 or self.copies < 1 or not 0 <= self.reach <= 1:
            raise ValueError(f"{self}: expected a latent and a copy or more, and a reach from 0 to 1 of the bounds")
        if not self.first_beta >= 1:
            raise ValueError(f"first_beta is {self.first_beta}: expected the weight that falls to one, so at least one")


@final
class Joint(nn.Module):
    """The networks of the model, and the log weights log p(x, z, η) − log q(z, η | x) of draws from q."""

    seen: Tensor  # steps so far

    def __init__(self, group: Affine, shape: torch.Size, settings: JointSettings) -> None:
        super().__init__()
        self.group, self.shape, self.settings = group, shape, settings
        pixels, width, latent = math.prod(shape), settings.width, settings.latent
        self.encoder = _network(pixels, width, 2 * latent)
        self.decoder = _network(latent, width, pixels)
        if settings.posed:
            self.q = Poses(group, pixels, width)
            self.p = Poses(group, pixels, width, shape=settings.shape, conditional=settings.conditional)
        self.log_noise_std = nn.Parameter(torch.tensor(-1.0))
        self.register_buffer("seen", torch.zeros(()))

    def encode(self, images: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Location and log std of q(z | x), each the mean over transformed copies: (n, latent)."""
        copies, n, turned = 1, len(images), images
        if self.settings.posed:
            copies = self.settings.copies if self.settings.reach else 1
            eta = self.settings.reach * self.group.draw(copies * n, generator, images)
            turned = warp(images.repeat(copies, 1, 1, 1), self.group.matrix(eta))
        location, log_std = self.encoder(turned).reshape(copies, n, -1).mean(0).chunk(2, dim=-1)
        return location, log_std.clamp(-7, 2)

    def decode(self, z: Tensor) -> Tensor:
        """x̂ of z: (n, channels, size, size)."""
        return self.decoder(z).sigmoid().reshape(len(z), *self.shape)

    def terms(self, images: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """log p(x | x̂, η), log q(η | x) − log p(η | x̂) and log q(z | x) − log p(z) of one draw from q: (n,) each.

        The differences of η are taken draw by draw: two flows have no KL divergence through their bases.
        """
        location, log_std = self.encode(images, generator)
        e = torch.randn(location.shape, generator=generator, dtype=torch.float64).to(location)
        z = location + log_std.exp() * e
        prototypes, log_z = self.decode(z), log_normal(e) - log_std.sum(-1) - log_normal(z)
        if not self.settings.posed:
            return self.log_likelihood(images, prototypes), torch.zeros_like(log_z), log_z
        eta = self.q.draw(images, 1, generator)[0]
        log_eta = self.q(images, eta) - self.p(prototypes, eta)
        return self.log_likelihood(images, warp(prototypes, self.group.matrix(eta))), log_eta, log_z

    def log_likelihood(self, images: Tensor, means: Tensor) -> Tensor:
        """log N(x; mean, noise), the sum over pixels, of those in the disc where the group turns: (n,)."""
        residual = (images - means) / self.log_noise_std.exp()
        if any(self.group.is_angle):
            residual = residual[..., disc(images.shape[-1], images).bool()]
        return log_normal(residual.flatten(1)) - residual[0].numel() * self.log_noise_std

    def forward(self, images: Tensor, generator: Generator) -> Tensor:
        """What a step of training descends on: minus the bound, with β on the part of z."""
        log_x, log_eta, log_z = self.terms(images, generator)
        done = min(1.0, float(self.seen) / self.settings.training.steps)
        beta = 1 + (self.settings.first_beta - 1) * (1 + math.cos(math.pi * done)) / 2
        self.seen.add_(1)
        return -(log_x - log_eta - beta * log_z).mean()


@final
@dataclass(frozen=True, eq=False)
class JointModel:
    """One model of prototypes and poses; slower to learn than `SymmetryModel`, which learns them in two stages.

    Parameters
    ----------
    group : Affine
        Of transformations.
    settings : JointSettings
        Sizes and conjectures.
    learnt : Joint, optional
        What `fit` found.

    Examples
    --------
    >>> x = nn.functional.pad(torch.rand(20, 1, 4, 4, generator=Generator().manual_seed(0)), [2] * 4)
    >>> model = JointModel(settings=JointSettings(3, 16, training=Training(4))).fit(x, progress=False)
    >>> model.prototype(x).shape, model.transformation(x).shape, len(model.log_prob(x[:5]))
    (torch.Size([20, 1, 8, 8]), torch.Size([20, 1]), 5)
    """

    group: Affine = field(default_factory=lambda: Affine.of(rotation=math.pi))
    settings: JointSettings = field(default_factory=JointSettings)
    learnt: Joint | None = None

    def fit(
        self, images: Tensor, *, held_out: float = 0.15, seed: int = 0, progress: bool | Report | None = None
    ) -> JointModel:
        """A model that learnt from pictures in [0, 1], by the epoch best on a held-out share; this one is kept."""
        pictures, training = checked(images, turned=any(self.group.is_angle)), self.settings.training
        cut = max(2, round(held_out * len(pictures)))
        if not 0 < held_out < 1 or len(pictures) < 10:
            raise ValueError(
                f"{len(pictures)} pictures, of which {held_out:.0%} held out: expected at least 10, and a share"
            )
        order = torch.randperm(len(pictures), generator=Generator().manual_seed(seed))
        kept, train = pictures[order[:cut]], pictures[order[cut:]]
        joint = seeded(seed, lambda: Joint(self.group, pictures.shape[1:], self.settings)).to(pictures)

        def loss(weights: Weights, batch: Tensor, targets: Tensor, generator: Generator) -> Tensor:
            del targets
            return functional_call(joint, weights, (batch, generator))

        @torch.no_grad()
        def score(weights: Weights) -> float:
            joint.load_state_dict(weights)
            log_x, log_eta, log_z = joint.terms(kept, Generator().manual_seed(seed + 1))
            return -float((log_x - log_eta - log_z).mean())

        learner = Descent(
            loss, dict(joint.named_parameters()), training.optimiser(), warm_cosine, dict(joint.named_buffers())
        )
        found = loop(
            learner, (train, torch.zeros(len(train))), epochs=training.epochs(len(train)),
            batch_size=training.batch_size, seed=seed, progress=progress, score=score,
        )  # fmt: skip
        joint.load_state_dict(found.weights)
        return replace(self, learnt=joint.eval())

    @property
    def found(self) -> Joint:
        """What was learnt, or an error where nothing was."""
        if self.learnt is None:
            raise ValueError("this model has not seen any pictures: call fit(images) first, and use what it returns")
        return self.learnt

    @torch.no_grad()
    def prototype(self, images: Tensor, *, seed: int = 0) -> Tensor:
        """x̂ at the location of q(z | x): (n, channels, size, size)."""
        return self.found.decode(self.found.encode(self._checked(images), Generator().manual_seed(seed))[0])

    @torch.no_grad()
    def transformation(self, images: Tensor, *, draws: int = 32, seed: int = 0) -> Tensor:
        """The likeliest of some draws from q(η | x): (n, generators)."""
        if not self.settings.posed:
            raise ValueError("a model with posed=False has no η: fit one with poses")
        pictures = self._checked(images)
        drawn = self.found.q.draw(pictures, draws, Generator().manual_seed(seed))
        best = self.found.q(pictures, drawn).argmax(0)
        return drawn[best, torch.arange(len(pictures))]

    @torch.no_grad()
    def log_prob(self, images: Tensor, *, draws: int = 16, importance: int = 1, seed: int = 0) -> Estimates:
        """A lower bound on log p(x), in nats, from `importance` weights at a time: with one, the usual ELBO.

        Where the group turns, x are the pixels of the disc only: bounds of groups that do not turn are of other data.
        """
        pictures, generator = self._checked(images), Generator().manual_seed(seed)
        found = [self.found.terms(pictures.repeat(importance, 1, 1, 1), generator) for _ in range(draws)]
        weights = [(log_x - log_eta - log_z).reshape(importance, -1) for log_x, log_eta, log_z in found]
        return importance_weighted(torch.cat(weights), importance)

    def _checked(self, images: Tensor) -> Tensor:
        pictures = checked(images, turned=any(self.group.is_angle))
        if pictures.shape[1:] != self.found.shape:
            raise ValueError(
                f"pictures of shape {tuple(images.shape)}: the model learnt from {tuple(self.found.shape)}"
            )
        return pictures.to(self.found.log_noise_std)


def _network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
        nn.Linear(width, outputs),
    )  # fmt: skip

"""A network fitted to one scan: its architecture is the prior (Ulyanov et al. 2018; with TV, Baguer et al. 2020)."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from lapwing.runtime.progress import Report
from lapwing.studies.tomography.classical import cgls, fbp
from lapwing.studies.tomography.scanning.geometry import FanBeam, ParallelBeam
from lapwing.studies.tomography.scanning.scan import Scan
from lapwing.studies.tomography.total_variation import total_variation
from lapwing.studies.tomography.unet import UNet
from lapwing.training import Epoch, Weights, loop

ROUND = 50  # steps between checkpoints and looks at the noise level

# of the publication, 28 × 28 digits: noise in per cent, angles -> weight of TV, steps (Antorán et al. 2022)
PUBLISHED_DIGITS = {
    (5, 5): (1e-5, 14_000), (5, 10): (3e-5, 29_000), (5, 20): (1e-4, 41_000), (5, 30): (1e-4, 50_000),
    (10, 5): (3e-5, 7_400), (10, 10): (1e-4, 13_000), (10, 20): (3e-4, 17_000), (10, 30): (3e-4, 22_000),
}  # fmt: skip


@final
@dataclass(frozen=True)
class Settings:
    """A network and how it is fitted: mean (y − A f)² + tv_weight · TV(f), by Adam with clipped gradients.

    The defaults suit a CPU: fewer channels and a larger step than published, which `published` brings back. With
    `stop_at_noise`, and where the noise of the scan is known, it stops once the mean square misfit is the noise.

    Parameters
    ----------
    channels : tuple of int
        Of the scales, finest first.
    skips : tuple of int
        Of the 1 × 1 convolutions between scales; 0 for none.
    groups : int
        Of group normalisation; 0 for none.
    sigmoid : bool
        Whether images end between 0 and 1 by a sigmoid.
    dropout : float
        Share of channels that are dropped in training.
    input : "fbp" or "noise"
        What the network is shown.
    tv_weight : float
        Of total variation.
    steps : int
        At most.
    learning_rate : float
        Of Adam.
    clip : float
        Largest norm of a gradient.
    stop_at_noise : bool
        Whether to stop where the misfit is the noise.

    Raises
    ------
    ValueError
        If a number is out of range, or the input is not known.

    Examples
    --------
    >>> Settings(steps=500).channels
    (16, 16, 16)
    """

    channels: tuple[int, ...] = (16, 16, 16)
    skips: tuple[int, ...] = (4, 4)
    groups: int = 0
    sigmoid: bool = True
    dropout: float = 0.0
    input: Literal["fbp", "noise"] = "fbp"
    tv_weight: float = 1e-4
    steps: int = 3000
    learning_rate: float = 1e-3
    clip: float = 1.0  # of the norm of the gradient
    stop_at_noise: bool = True

    def __post_init__(self) -> None:
        if self.input not in ("fbp", "noise"):
            raise ValueError(f"input is {self.input!r}, expected 'fbp' or 'noise'")
        if self.steps < 1 or not self.learning_rate > 0 or not self.clip > 0 or not self.tv_weight >= 0:
            raise ValueError(
                f"steps is {self.steps}, learning_rate {self.learning_rate}, clip {self.clip} and tv_weight "
                f"{self.tv_weight}: expected positive numbers (a tv_weight of 0 is no regulariser)"
            )

    @staticmethod
    def published(angles: int, noise_percent: int) -> Settings:
        """Those of the digits in the publication: 3 × 32 channels, steps of 1e-4, no early stop."""
        if (noise_percent, angles) not in PUBLISHED_DIGITS:
            raise ValueError(
                f"nothing is published for {angles} angles and {noise_percent} % noise: expected 5, 10, 20 or 30 "
                "angles and 5 or 10 %"
            )
        weight, steps = PUBLISHED_DIGITS[noise_percent, angles]
        return Settings((32, 32, 32), tv_weight=weight, steps=steps, learning_rate=1e-4, stop_at_noise=False)

    @staticmethod
    def large() -> Settings:
        """Those of the 501 × 501 walnut slice in the publication, without its pretraining."""
        return Settings(
            (128,) * 6, (0, 0, 0, 4, 4), groups=4, sigmoid=False, tv_weight=6.5e-6, steps=1500, learning_rate=1e-4
        )


@final
@dataclass(frozen=True, eq=False)
class Reconstruction:
    """A fitted network, in eval mode, with its input and its image.

    Parameters
    ----------
    scan : Scan
        What was measured.
    model : nn.Module
        The fitted network, in eval mode.
    input : Tensor
        What it is shown, (1, 1, size, size).
    image : Tensor
        What it makes of that, (size, size).
    settings : Settings
        It was fitted with.
    steps : int
        Made.
    misfit : float
        Root mean square of y − A f.
    curve : tuple of Epoch
        The loss.
    stopped_at_noise : bool
        Whether it stopped before its last step.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, projector, simulate
    >>> scan = simulate(torch.eye(6), projector(ParallelBeam.spread(5, 6), 6))
    >>> deep_image_prior(scan, Settings((3, 3), (2,), steps=20), progress=False).image.shape
    torch.Size([6, 6])
    """

    scan: Scan
    model: nn.Module
    input: Tensor  # (1, 1, size, size)
    image: Tensor = field(repr=False)  # (size, size), float64
    settings: Settings
    steps: int  # made
    misfit: float  # root mean square of y − A f
    curve: tuple[Epoch, ...] = field(repr=False)  # one per ROUND of steps
    stopped_at_noise: bool = False


def deep_image_prior(
    scan: Scan, settings: Settings | None = None, *, seed: int = 0, checkpoint: str | Path | None = None,
    progress: bool | Report | None = None, start: nn.Module | None = None,
) -> Reconstruction:  # fmt: skip
    """Fit a network to one scan; the weights of its smallest loss are kept.

    With `checkpoint` an interrupted run goes on from its last round. `start` is a network of the same architecture to
    begin from, such as one pretrained. Nothing but the sinogram is used: the truth is for scores.

    Parameters
    ----------
    scan : Scan
        What was measured.
    settings : Settings, optional
        Of the network and its fit.
    seed : int
        Of all random numbers.
    checkpoint : path, optional
        File to keep the training in, and to go on from.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.
    start : nn.Module, optional
        A network of the same architecture to begin from.

    Returns
    -------
    Reconstruction
        The fitted network and its image.

    Raises
    ------
    Diverged
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> from lapwing.studies.tomography import ParallelBeam, projector, simulate
    >>> truth = torch.zeros(8, 8); truth[2:6, 3:6] = 1
    >>> scan = simulate(truth, projector(ParallelBeam.spread(8, 8), 8))
    >>> found = deep_image_prior(scan, Settings((6, 6), (2,), steps=400, learning_rate=1e-2), progress=False)
    >>> found.image.shape, float((found.image - truth).square().mean().sqrt()) < 0.15
    (torch.Size([8, 8]), True)
    """
    settings = settings or Settings()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = network(settings) if start is None else deepcopy(start)
        given = network_input(scan, settings)
    learner = _ImageLearner(model.train(), given, scan, settings)
    rounds = -(-settings.steps // ROUND)
    nothing = torch.zeros(min(ROUND, settings.steps), 1)
    known = {**{key: str(value) for key, value in asdict(settings).items() if key != "steps"}, "scan": _digest(scan)}
    found = loop(
        learner, (nothing, nothing), epochs=rounds, batch_size=1, seed=seed, checkpoint=checkpoint, progress=progress,
        settings=known, stop=learner.at_noise if settings.stop_at_noise else None,
    )  # fmt: skip
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(found.weights[name])
    stopped = settings.stop_at_noise and learner.at_noise(found.curve[-1])
    return finished(scan, model.eval(), given, settings, len(found.curve) * len(nothing), found.curve, stopped=stopped)


def finished(
    scan: Scan, model: nn.Module, given: Tensor, settings: Settings, steps: int, curve: tuple[Epoch, ...] = (),
    *, stopped: bool = False,
) -> Reconstruction:  # fmt: skip
    """The reconstruction of a network that is fitted already, in eval mode."""
    with torch.no_grad():
        image = model(given)[0, 0].double()
    misfit = float((scan.projector.project(image) - scan.sinogram).square().mean().sqrt())
    return Reconstruction(scan, model, given, image, settings, steps, misfit, curve, stopped)


def network(settings: Settings) -> UNet:
    """A fresh network, its weights from the global random state."""
    return UNet(
        settings.channels, settings.skips, groups=settings.groups, sigmoid=settings.sigmoid, dropout=settings.dropout
    )


def network_input(scan: Scan, settings: Settings) -> Tensor:  # (1, 1, size, size)
    """What the network is shown: a classical reconstruction, or noise from the global random state."""
    if settings.input == "noise":
        return 0.1 * torch.rand(1, 1, scan.size, scan.size)
    known = isinstance(scan.projector.geometry, ParallelBeam | FanBeam)
    image = fbp(scan) if known else cgls(scan, steps=20).image
    return image.float()[None, None]


@dataclass(eq=False)
class _ImageLearner:
    """Adam on one scan, with what the smallest loss was seen at."""

    model: nn.Module
    given: Tensor
    scan: Scan
    settings: Settings

    def __post_init__(self) -> None:
        self.targets = self.scan.flat.float()
        self.current = {
            name: weight.detach().clone().requires_grad_() for name, weight in self.model.named_parameters()
        }
        self.descent = torch.optim.Adam(list(self.current.values()), lr=self.settings.learning_rate, fused=True)
        self.best, self.best_loss, self.best_misfit = self._copy(), float("inf"), float("inf")

    def _copy(self) -> Weights:
        return {name: weight.detach().clone() for name, weight in self.current.items()}

    def step(self, inputs: Tensor, targets: Tensor, generator: Generator, done: float) -> float:
        """One step on the whole sinogram."""
        del inputs, targets, generator, done
        self.descent.zero_grad()
        image = functional_call(self.model, self.current, (self.given,))[0, 0]
        misfit = (self.scan.projector.differentiable(image.reshape(-1)) - self.targets).square().mean()
        loss = misfit + self.settings.tv_weight * total_variation(image)
        value = float(loss.detach())
        if value < self.best_loss:
            self.best, self.best_loss, self.best_misfit = self._copy(), value, float(misfit.detach())
        if value < float("inf"):
            loss.backward()
            nn.utils.clip_grad_norm_(list(self.current.values()), self.settings.clip)
            self.descent.step()
        return value

    def at_noise(self, epoch: Epoch) -> bool:
        """Whether the best fit so far is as close as the noise is large."""
        del epoch
        return self.scan.noise_std is not None and self.best_misfit <= self.scan.noise_std**2

    def weights(self) -> Weights:
        """Those of the smallest loss so far."""
        return dict(self.best)

    def state(self) -> dict[str, Any]:
        """All that is needed to go on."""
        return {
            "current": self._copy(), "best": self.best, "loss": self.best_loss, "misfit": self.best_misfit,
            "optimiser": self.descent.state_dict(),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        with torch.no_grad():
            for name, weight in self.current.items():
                weight.copy_(state["current"][name])
        self.best, self.best_loss, self.best_misfit = state["best"], state["loss"], state["misfit"]
        self.descent.load_state_dict(state["optimiser"])


def _digest(scan: Scan) -> str:
    return hashlib.sha256(scan.flat.numpy().tobytes()).hexdigest()[:16]

"""What a posterior says about new inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.distributions import Normal

from lapwing.bayes.noise import PREDICTIVE, Noise
from lapwing.linalg.operators import as_tensor


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """A Gaussian prediction per output; every field has the outputs' shape.

    `epistemic_variance` is what more data would remove, `aleatoric_variance` the noise of an observation.
    """

    mean: Tensor
    epistemic_variance: Tensor
    prior_variance: Tensor
    noise_variance: Tensor | str  # the noise, or why it is not known
    draws: Tensor | None = None  # (draws, *outputs), the joint function draws behind `samples`
    standard_error: Tensor | None = None  # Monte-Carlo error of the variance; None where it is closed form
    bounds: tuple[Tensor, Tensor] | None = None  # on the epistemic variance, where asked for
    seed: int = 0

    @property
    def aleatoric_variance(self) -> Tensor:
        """The variance of the noise in an observation."""
        if isinstance(self.noise_variance, str):
            raise ValueError(self.noise_variance)
        return self.noise_variance.expand(self.mean.shape)

    @property
    def variance(self) -> Tensor:
        """The variance of a new observation: epistemic plus aleatoric."""
        return self.epistemic_variance + self.aleatoric_variance

    @property
    def std(self) -> Tensor:
        """The standard deviation of a new observation."""
        return self.variance.sqrt()

    @property
    def novelty(self) -> Tensor:
        """Posterior over prior variance of the function, in [0, 1]: how little the data said here."""
        safe = self.prior_variance.clamp_min(torch.finfo(self.prior_variance.dtype).tiny)
        return torch.where(self.prior_variance > 0, self.epistemic_variance / safe, 0).clamp(0, 1)

    @property
    def distribution(self) -> Normal:
        """The predictive distribution of a new observation."""
        return Normal(self.mean, self.std)

    @property
    def entropy(self) -> Tensor:
        """The differential entropy of a new observation, in nats."""
        return self.distribution.entropy()

    @property
    def mutual_information(self) -> Tensor:
        """What a new observation here would say about the function, ½ log(1 + epistemic / aleatoric), in nats."""
        return 0.5 * (self.epistemic_variance / self.aleatoric_variance).log1p()

    @property
    def samples(self) -> Tensor:  # (draws, *outputs)
        """New observations: joint function draws with independent noise, the same at every call."""
        if self.draws is None:
            raise ValueError("this posterior was inferred with draws=0: infer it with draws=32 to have samples")
        table = Noise(self.seed, PREDICTIVE).rows(0, self.mean.numel(), len(self.draws))
        return self.draws + self.aleatoric_variance.sqrt() * table.mT.reshape(self.draws.shape).to(self.mean)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds a new observation with this probability."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)).to(self.mean) * self.std
        return self.mean - half, self.mean + half

    def log_prob(self, targets: Any) -> Tensor:
        """The log predictive density of observed targets."""
        targets = as_tensor(targets).to(self.mean)
        if targets.shape != self.mean.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} do not fit predictions of shape {tuple(self.mean.shape)}"
            )
        return self.distribution.log_prob(targets)

    def to_frame(self) -> Any:
        """A pandas DataFrame, one row per datum and one set of columns per output."""
        import pandas as pd

        names = ["mean", "std", "epistemic_std", "lower_90", "upper_90"]
        values = [self.mean, self.std, self.epistemic_variance.sqrt(), *self.interval(0.9)]
        if self.mean.ndim == 1:
            return pd.DataFrame({name: value.cpu().numpy() for name, value in zip(names, values, strict=True)})
        return pd.DataFrame({
            f"{name}_{output}": value[:, output].cpu().numpy()
            for output in range(self.mean.shape[1])
            for name, value in zip(names, values, strict=True)
        })  # fmt: skip

    def cpu(self) -> Prediction:
        """The same prediction in main memory."""
        return self._map(lambda tensor: tensor.cpu(), lambda tensor: tensor.cpu())

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Prediction:
        """Some of the data: an integer, a slice, a mask or a list of indices."""
        chosen = [index] if isinstance(index, int) else index
        return self._map(lambda tensor: tensor[chosen], lambda tensor: tensor[:, chosen])

    def _map(self, of_outputs: Any, of_draws: Any) -> Prediction:
        changes = {name: of_outputs(getattr(self, name)) for name in ("mean", "epistemic_variance", "prior_variance")}
        if self.draws is not None:
            changes["draws"] = of_draws(self.draws)
        if self.bounds is not None:
            changes["bounds"] = tuple(of_outputs(bound) for bound in self.bounds)
        if self.standard_error is not None:
            changes["standard_error"] = of_outputs(self.standard_error)
        return replace(self, **changes)

"""What a fitted model says of a pool of inputs together: draws of their outputs, and how these vary jointly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from lapwing.bayes.mixtures import Mixture
from lapwing.bayes.noise import SAMPLE, Noise
from lapwing.bayes.posterior import Posterior
from lapwing.network.input_tree import nested
from lapwing.tabular import BayesianMLPClassifier, BayesianMLPRegressor

BLOCK = 1024  # inputs whose draws are made at once
NUMBERS = "this is for numbers, and the model's targets are labels"


class Pool(ABC):
    """Inputs without targets, and a model that has seen others."""

    @property
    @abstractmethod
    def has_classes(self) -> bool:
        """Whether targets are labels."""

    @abstractmethod
    def __len__(self) -> int:
        """How many inputs."""

    @abstractmethod
    def outputs(self, chosen: Tensor, count: int) -> Tensor:  # (draws, k, outputs)
        """Joint draws of the outputs at some inputs; for classes, of their probabilities. The same at every call."""

    def variances(self) -> Tensor:  # (n, outputs)
        """The epistemic variance of numbers."""
        raise ValueError(NUMBERS)

    def covariance(self, chosen: Tensor) -> Tensor:  # (k · outputs, k · outputs)
        """The joint covariance of numbers at some inputs."""
        del chosen
        raise ValueError(NUMBERS)

    def noise(self, chosen: Tensor) -> Tensor:  # (k, outputs)
        """The variance of the noise in an observation there."""
        del chosen
        raise ValueError(NUMBERS)


def pool_of(model: Any, inputs: Any) -> Pool:
    """The pool of any fitted model that has joint predictions."""
    for kind, make in POOLS.items():
        if isinstance(model, kind):
            return make(model, inputs)
    raise ValueError(
        f"the model is a {type(model).__name__}: expected a posterior of lw.fit or lw.infer, a mixture of them, or a "
        "fitted BayesianMLPClassifier or BayesianMLPRegressor"
    )


@final
@dataclass(frozen=True, eq=False)
class PosteriorPool(Pool):
    """Of one posterior, or of several that count alike."""

    members: tuple[Posterior, ...]
    inputs: Any

    @property
    def has_classes(self) -> bool:
        return self.members[0].likelihood.has_classes

    def __len__(self) -> int:
        return len(self.inputs) // self._rows

    @property
    def _rows(self) -> int:
        """Rows of each input: those of a linear model are rows of features, one for each of its outputs."""
        known = self.members[0].map
        return 1 if known.point is not None else known.outputs or 1

    def outputs(self, chosen: Tensor, count: int) -> Tensor:
        each = -(-count // len(self.members))
        return torch.cat([self._member(member, chosen, each) for member in self.members])

    def _member(self, member: Posterior, chosen: Tensor, count: int) -> Tensor:
        columns = _deviations(member, count)
        blocks = [member.functions_of(self._at(part), columns).double().cpu() for part in chosen.split(BLOCK)]
        drawn = torch.cat(blocks, dim=1)
        if not self.has_classes:
            return drawn.reshape(*drawn.shape[:2], -1)
        return _class_probabilities(member, drawn)

    def variances(self) -> Tensor:
        found = [self._epistemic(part) for part in torch.arange(len(self)).split(BLOCK)]
        return torch.cat(found)

    def _epistemic(self, chosen: Tensor) -> Tensor:
        predictions = [member.predict(self._at(chosen)) for member in self.members]
        within = torch.stack([one.epistemic_variance for one in predictions]).mean(0)
        between = torch.stack([one.mean for one in predictions]).double().var(0, correction=0)
        return (within + between).double().cpu().reshape(len(chosen), -1)

    def covariance(self, chosen: Tensor) -> Tensor:
        inputs = self._at(chosen)
        means = [member.predict(inputs).mean.double().cpu() for member in self.members]
        everywhere = torch.ones(means[0].shape, dtype=torch.bool)
        within = [member.joint(inputs, everywhere).covariance.double() for member in self.members]
        apart = torch.stack([mean.flatten() for mean in means])
        apart = apart - apart.mean(0)
        return torch.stack(within).mean(0) + apart.mT @ apart / len(apart)

    def noise(self, chosen: Tensor) -> Tensor:
        inputs = self._at(chosen)
        found = [member.predict(inputs).aleatoric_variance.double().cpu() for member in self.members]
        return torch.stack(found).mean(0).reshape(len(chosen), -1)

    def _at(self, chosen: Tensor) -> Any:
        rows = chosen[:, None] * self._rows + torch.arange(self._rows)
        return self.inputs[rows.flatten()]


def _deviations(posterior: Posterior, count: int) -> Tensor:  # (d, draws)
    """So many draws of the weights less their mean; those that were made with the posterior where it has no others."""
    if not posterior.gaussian.is_closed_form:
        return posterior.gaussian.deviations
    return posterior.gaussian.root(Noise(posterior.seed, SAMPLE).rows(0, posterior.map.weights, count))


def _class_probabilities(posterior: Posterior, logits: Tensor) -> Tensor:  # (draws, k, classes)
    exclusive = posterior.likelihood.exclusive_classes
    if logits.ndim != (3 if exclusive else 2):
        raise ValueError(
            f"an input has outputs of shape {tuple(logits.shape[2:])}: expected one label for each input, and not "
            "labels of pixels, tokens or several tasks"
        )
    scaled = logits / posterior.temperature
    return scaled.softmax(2) if exclusive else torch.stack([(-scaled).sigmoid(), scaled.sigmoid()], dim=2)


@final
@dataclass(frozen=True, eq=False)
class NumberTablePool(Pool):
    """Of the networks of a `BayesianMLPRegressor`."""

    model: BayesianMLPRegressor
    table: Any

    @property
    def has_classes(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self._features)

    @cached_property
    def _inputs(self) -> Tensor:
        return self.model._inputs(self.table)

    @cached_property
    def _features(self) -> Tensor:  # (n, targets, k): their products are covariances, within networks and between
        return self.model._fitted().joint_features(self._inputs)

    def outputs(self, chosen: Tensor, count: int) -> Tensor:
        mean = torch.from_numpy(self.model.predict(self.table)).reshape(len(self), -1)[chosen]
        normals = Noise(0, SAMPLE).rows(0, self._features[0].numel(), count).reshape(*self._features.shape[1:], count)
        return mean + torch.einsum("ntk,tks->snt", self._features[chosen], normals)

    def variances(self) -> Tensor:
        return self._features.square().sum(2)

    def covariance(self, chosen: Tensor) -> Tensor:
        rows = self._features[chosen].flatten(0, 1)
        same = torch.arange(len(rows)) % self._features.shape[1]
        return (rows @ rows.mT) * (same[:, None] == same)  # targets have networks of their own

    def noise(self, chosen: Tensor) -> Tensor:
        return self.model._fitted().observation_noise(self._inputs[chosen])


@final
@dataclass(frozen=True, eq=False)
class LabelTablePool(Pool):
    """Of the networks of a `BayesianMLPClassifier`."""

    model: BayesianMLPClassifier
    table: Any

    @property
    def has_classes(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._inputs)

    @cached_property
    def _inputs(self) -> Tensor:
        return self.model._inputs(self.table)

    def outputs(self, chosen: Tensor, count: int) -> Tensor:
        networks = self.model._networks
        blocks = [networks.functions(self._inputs[part], count, seed=0) for part in chosen.split(BLOCK)]
        return torch.cat(blocks, dim=1)


POOLS: dict[type, Any] = {
    Posterior: lambda model, inputs: PosteriorPool((model,), nested(inputs)),
    Mixture: lambda model, inputs: PosteriorPool(model.members, nested(inputs)),
    BayesianMLPRegressor: NumberTablePool,
    BayesianMLPClassifier: LabelTablePool,
}

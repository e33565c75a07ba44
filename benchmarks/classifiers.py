"""Every road to honest probabilities on the same trained classifier, settings chosen on the same held-out data.

The linearised posteriors see `few` of the training data, weighted as all of them (`dataset_size=`): the whole set would take
hours on a small machine. Their precision is tuned by the held-out log probability, as everyone's settings are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor, nn

from benchmarks.regressors import best_of, falling
from lapwing.bayes.likelihoods import Categorical
from lapwing.bayes.methods import KFAC, Diagonal
from lapwing.facade import fit
from lapwing.families import dropout, ensemble, swag, temperature, variational
from lapwing.families import point as network_alone
from lapwing.families.networks import Predictive
from lapwing.families.sampled import Sampled
from lapwing.network.parameters import last_layer
from lapwing.network.subnetwork import subnetwork
from lapwing.training import adam, train

Pair = tuple[Tensor, Tensor]
LABELS = Categorical()
RATES, SWAG_RATES, MEMBERS, DRAWS = (0.1, 0.3), (1e-3, 1e-2, 5e-2), 5, 32
SUBNETWORK, SMALLER, LARGER = 1000, 300, 3000  # weights


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A classifier to be given honest probabilities."""

    make: Callable[[int], nn.Module]  # untrained, by seed
    model: nn.Module  # trained, in eval mode
    train: Pair
    validation: Pair
    epochs: int
    seed: int
    few: int
    batch_size: int = 64
    learning_rate: float = 2e-3
    total: int | None = None  # of the data that the network was trained on, where those here are a part

    def trained(self, model: nn.Module) -> nn.Module:
        """Trained by Adam with a falling rate, every network in the same way."""
        return train(
            model, self.train, LABELS, epochs=self.epochs, batch_size=self.batch_size,
            optimiser=adam(self.learning_rate), schedule=falling, seed=self.seed, progress=False,
        )  # fmt: skip

    def posterior(self, **options: Any) -> Any:
        """A linearised posterior from a few of the data, itself: not what held-out data would take in its place."""
        x, y = self.train
        found = fit(
            self.model, (x[: self.few], y[: self.few]), LABELS, dataset_size=self.total or len(x), draws=DRAWS,
            validation=self.validation, seed=self.seed, progress=False, curvature="network", **options,
        )  # fmt: skip
        return replace(found, alternative=None)


def _map(problem: Problem) -> Predictive:
    return network_alone.fit(problem.model, problem.train, LABELS)


def _temperature(problem: Problem) -> Predictive:
    return temperature.fit(_map(problem), problem.validation)


def _subnetwork(size: int) -> Callable[[Problem], Predictive]:
    def run(problem: Problem) -> Predictive:
        x, y = problem.train
        few = x[: problem.few], y[: problem.few]
        return problem.posterior(select=subnetwork(problem.model, few, LABELS, size, score="predictive"))

    return run


def _sampled(problem: Problem) -> Predictive:
    """Tuned as the linearised posterior is not: by the held-out density of the networks drawn."""
    posterior = problem.posterior(method=KFAC())
    start = float(posterior.prior.precision[0])

    def at(multiple: float) -> Callable[[], Predictive]:
        return lambda: Sampled(posterior.at(precision=start * multiple))

    return best_of(map(at, (1.0, 10.0, 100.0, 1000.0)), problem.validation)


def _dropout(problem: Problem) -> Predictive:
    def with_rate(rate: float) -> Callable[[], Predictive]:
        return lambda: dropout.fit(
            problem.trained(dropout.insert(problem.make(problem.seed), rate)), problem.train, LABELS, draws=DRAWS,
            seed=problem.seed,
        )  # fmt: skip

    return best_of(map(with_rate, RATES), problem.validation)


def _ensemble(problem: Problem) -> Predictive:
    others = [problem.trained(problem.make(1000 + MEMBERS * problem.seed + k)) for k in range(1, MEMBERS)]
    return ensemble.of([problem.model, *others], problem.train, LABELS)


def _swag(problem: Problem) -> Predictive:
    def at(rate: float) -> Callable[[], Predictive]:
        return lambda: swag.fit(
            problem.model, problem.train, LABELS, epochs=max(2, problem.epochs // 4), per_epoch=10, learning_rate=rate,
            batch_size=problem.batch_size, draws=DRAWS, seed=problem.seed, progress=False,
        )  # fmt: skip

    return best_of(map(at, SWAG_RATES), problem.validation)


def _ivon(problem: Problem) -> Predictive:
    return variational.fit(
        problem.model, problem.train, LABELS, temperature=1.0, epochs=max(2, problem.epochs // 4),
        batch_size=problem.batch_size, method=variational.NaturalGradient("ivon"), schedule=falling, draws=DRAWS,
        seed=problem.seed, progress=False,
    )  # fmt: skip


METHODS: dict[str, Callable[[Problem], Predictive]] = {
    "map": _map,
    "temperature": _temperature,
    "linearised": lambda problem: problem.posterior(),
    "last-layer": lambda problem: problem.posterior(select=last_layer(problem.model)),
    "subnetwork": _subnetwork(SUBNETWORK),
    f"subnetwork-{SMALLER}": _subnetwork(SMALLER),
    f"subnetwork-{LARGER}": _subnetwork(LARGER),
    "diagonal": lambda problem: problem.posterior(method=Diagonal()),
    "kfac": lambda problem: problem.posterior(method=KFAC()),
    "sampled": _sampled,
    "dropout": _dropout,
    "ensemble": _ensemble,
    "swag": _swag,
    "ivon": _ivon,
}

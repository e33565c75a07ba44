"""Every road to error bars on the same trained regression network, with its settings chosen on the same held-out data.

A method gets a trained network, its training data and held-out data that stopped its training, and returns something
that predicts. Settings that a method needs (a dropout rate, a learning rate of SWAG, a temperature) are those with the
best held-out log density; the noise is tuned on the held-out data too, unless the method finds it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.methods import KFAC, Diagonal
from lapwing.bayes.priors import Isotropic
from lapwing.bench.scores import validation_nll
from lapwing.facade import fit
from lapwing.families import dropout, ensemble, mcmc, swag, variational
from lapwing.families import map as network_alone
from lapwing.families.networks import Predictive
from lapwing.families.sampled import Sampled
from lapwing.network.parameters import last_layer
from lapwing.training import Diverged, adam, train

Pair = tuple[Tensor, Tensor]
RATES = (0.005, 0.01, 0.05, 0.1)  # of dropout, as in Gal & Ghahramani's experiments
SWAG_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
MEMBERS, DRAWS, SWAG_EPOCHS = 5, 100, 40


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A network to be given error bars."""

    make: Callable[[int], nn.Module]  # untrained, by seed
    model: nn.Module  # trained, in eval mode
    train: Pair
    validation: Pair
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    folder: Path | None = None  # where members of an ensemble leave their checkpoints

    def trained(self, model: nn.Module, epochs: int | None = None) -> nn.Module:
        """Trained as the network was: Adam with a falling rate, and the weights of the best epoch on held-out data."""
        return train(
            model, self.train, Gaussian(), epochs=epochs or self.epochs, batch_size=self.batch_size,
            optimiser=adam(self.learning_rate), schedule=falling, validation=self.validation, seed=self.seed,
            progress=False,
        )  # fmt: skip


def falling(done: float) -> float:
    """A learning rate that falls to zero in a straight line."""
    return 1 - done


def best_of(candidates: Iterable[Callable[[], Any]], validation: Pair) -> Any:
    """The candidate with the best held-out density; those that diverge are out, unless all do."""
    found, errors = [], []
    for candidate in candidates:
        try:
            made = candidate()
            found.append((validation_nll(made, validation), made))
        except (Diverged, ValueError) as error:
            errors.append(error)
    scored = [pair for pair in found if pair[0] == pair[0]]
    if not scored:
        raise ValueError(f"every setting failed, the last with: {errors[-1] if errors else 'a NaN held-out density'}")
    return min(scored, key=lambda pair: pair[0])[1]


def _map(problem: Problem) -> Predictive:
    return network_alone.fit(problem.model, problem.train, Gaussian(), validation=problem.validation)


def _linearised(problem: Problem) -> Predictive:
    return fit(problem.model, problem.train, Gaussian(), draws=DRAWS, seed=problem.seed, progress=False)


def _held_out(problem: Problem) -> Predictive:
    return fit(
        problem.model, problem.train, Gaussian(), validation=problem.validation, draws=DRAWS, seed=problem.seed,
        progress=False,
    )  # fmt: skip


def _isotropic(problem: Problem) -> Predictive:
    return fit(
        problem.model, problem.train, Gaussian(), prior=Isotropic(), draws=DRAWS, seed=problem.seed, progress=False
    )


def _last_layer(problem: Problem) -> Predictive:
    select = last_layer(problem.model)
    return fit(
        problem.model, problem.train, Gaussian(), select=select, draws=DRAWS, seed=problem.seed, progress=False
    )  # fmt: skip


def _structured(method: Any) -> Callable[[Problem], Predictive]:
    def run(problem: Problem) -> Predictive:
        return fit(
            problem.model, problem.train, Gaussian(), method=method, validation=problem.validation, draws=DRAWS,
            seed=problem.seed, progress=False,
        )  # fmt: skip

    return run


def _sampled(problem: Problem) -> Predictive:
    posterior = fit(problem.model, problem.train, Gaussian(), draws=DRAWS, seed=problem.seed, progress=False)
    return Sampled(posterior)


def _dropout(problem: Problem) -> Predictive:
    def with_rate(rate: float) -> Callable[[], Predictive]:
        return lambda: dropout.fit(
            problem.trained(dropout.insert(problem.make(problem.seed), rate, inputs=True)), problem.train, Gaussian(),
            validation=problem.validation, draws=DRAWS, seed=problem.seed,
        )  # fmt: skip

    return best_of(map(with_rate, RATES), problem.validation)


def _ensemble(problem: Problem) -> Predictive:
    others = [problem.trained(problem.make(1000 + MEMBERS * problem.seed + k)) for k in range(1, MEMBERS)]
    return ensemble.of([problem.model, *others], problem.train, Gaussian(), validation=problem.validation)


def _swag(problem: Problem) -> Predictive:
    def at(rate: float) -> Callable[[], Predictive]:
        return lambda: swag.fit(
            problem.model, problem.train, Gaussian(), epochs=SWAG_EPOCHS, learning_rate=rate,
            batch_size=problem.batch_size, validation=problem.validation, draws=DRAWS, seed=problem.seed,
            progress=False,
        )  # fmt: skip

    return best_of(map(at, SWAG_RATES), problem.validation)


def _tempered(problem: Problem) -> Predictive:
    return variational.fit(
        problem.model, problem.train, Gaussian(), epochs=max(20, problem.epochs // 5), batch_size=problem.batch_size,
        method=variational.BayesByBackprop(problem.learning_rate), validation=problem.validation, schedule=falling,
        draws=DRAWS, seed=problem.seed, progress=False,
    )  # fmt: skip


def _vogn(problem: Problem) -> Predictive:
    noise = _map(problem).likelihood  # type: ignore[attr-defined]

    def at(rate: float) -> Callable[[], Predictive]:
        return lambda: variational.fit(
            problem.model, problem.train, noise, temperature=1.0, epochs=max(20, problem.epochs // 5),
            batch_size=problem.batch_size, method=variational.NaturalGradient("vogn", learning_rate=rate),
            schedule=falling, draws=DRAWS, seed=problem.seed, progress=False,
        )  # fmt: skip

    return best_of(map(at, (1e-3, 1e-2, 5e-2)), problem.validation)


def _hmc(problem: Problem) -> Predictive:
    """Four chains from four networks; an R-hat far above one among the scores says that they did not meet."""
    starts = [problem.trained(problem.make(2000 + 4 * problem.seed + k), problem.epochs // 4) for k in range(4)]
    return mcmc.fit(
        problem.model, problem.train, Gaussian(), method=mcmc.HMC(max_steps=64), prior_precision=None, chains=4,
        warmup=200, draws=80, thin=2, start=starts, seed=problem.seed, progress=False,
    )  # fmt: skip


METHODS: dict[str, Callable[[Problem], Predictive]] = {
    "map": _map,
    "linearised": _linearised,
    "linearised-validation": _held_out,
    "linearised-isotropic": _isotropic,
    "last-layer": _last_layer,
    "diagonal": _structured(Diagonal()),
    "kfac": _structured(KFAC()),
    "sampled": _sampled,
    "dropout": _dropout,
    "ensemble": _ensemble,
    "swag": _swag,
    "tempered-vi": _tempered,
    "vogn": _vogn,
    "hmc": _hmc,
}

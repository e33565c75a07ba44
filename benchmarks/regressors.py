"""Every road to error bars on the same trained regression network, with its settings chosen on the same held-out data.

A method gets a trained network, its training data and held-out data that stopped its training, and returns something
that predicts. Settings that a method needs (a dropout rate, a learning rate of SWAG, a temperature) are those with the
best held-out log density; the noise is tuned on the held-out data too, unless the method finds it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.scores import validation_nll
from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.methods import KFAC, Diagonal
from lapwing.bayes.mixtures import Mixture
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.priors import GPrior, Isotropic
from lapwing.facade import fit
from lapwing.families import dropout, ensemble, mcmc, swag, variational
from lapwing.families import point as network_alone
from lapwing.families.networks import Predictive
from lapwing.families.sampled import Sampled
from lapwing.network.parameters import last_layer
from lapwing.training import Diverged, adam, members

Pair = tuple[Tensor, Tensor]
RATES = (0.005, 0.01, 0.05, 0.1)  # of dropout, as in Gal & Ghahramani's experiments
SWAG_RATES, SWAG_STEPS, ITERATES = (1e-3, 1e-2, 3e-2, 1e-1), 500, 40
TAUS, VOGN_RATES, VARIATIONAL_STEPS = (1e-3, 1e-2, 1e-1), (1e-3, 1e-2, 5e-2), 800
MEMBERS, DRAWS = 5, 100
DECAYS, DROPOUT_DECAY = (0.0, 0.1, 1.0), 0.1  # prior precisions at unit noise


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """Networks to be given error bars: all of one shape, trained in one way."""

    stacks: tuple[tuple[nn.Sequential, ...], ...]  # networks from several starts for each of DECAYS, in eval mode
    dropped: tuple[nn.Sequential, ...]  # trained with dropout at each of RATES, without the layers that drop
    train: Pair
    validation: Pair
    batch_size: int
    learning_rate: float
    seed: int

    @cached_property
    def members(self) -> tuple[nn.Sequential, ...]:
        """The networks with the weight decay that did best on held-out data, on average over starts."""
        return min(self.stacks, key=lambda members: sum(held_out_error(one, self.validation) for one in members))

    @property
    def model(self) -> nn.Sequential:
        """The network of all methods that take one."""
        return self.members[0]

    @property
    def rows(self) -> Pair:
        """Training and held-out rows together."""
        x, y = (torch.cat(parts) for parts in zip(self.train, self.validation, strict=True))
        return x, y

    def epochs(self, steps: int) -> int:
        """As many passes over the data as take about so many steps."""
        return max(2, round(steps * self.batch_size / len(self.train[0])))


def untrained(make: Callable[[int], nn.Sequential]) -> list[nn.Sequential]:
    """The networks of a problem before training: the same starts for each of DECAYS, then one for each of RATES."""
    return [*(make(k) for _ in DECAYS for k in range(MEMBERS)), *(make(MEMBERS + k) for k in range(len(RATES)))]


def problem(networks: Sequence[nn.Sequential], train: Pair, validation: Pair, **options: Any) -> Problem:
    """A problem with the networks of `untrained`, in that order."""
    cut = len(DECAYS) * MEMBERS
    stacks = tuple(tuple(networks[first : first + MEMBERS]) for first in range(0, cut, MEMBERS))
    return Problem(stacks, tuple(networks[cut:]), train, validation, **options)


def fitted(given: Problem, steps: int) -> None:
    """Trains all networks side by side: Adam with a falling rate, each with its best epoch on held-out data."""
    alone = [one for stack in given.stacks for one in stack]
    _trained(alone, given, steps, [decay for decay in DECAYS for _ in range(MEMBERS)])
    dropping = [Dropping(one, rate) for one, rate in zip(given.dropped, RATES, strict=True)]
    _trained(dropping, given, steps, [DROPOUT_DECAY] * len(RATES))


def _trained(networks: Sequence[nn.Module], given: Problem, steps: int, precisions: list[float]) -> None:
    """Writes into networks of one shape what they learnt."""
    found = members(
        lambda seed: networks[seed - given.seed], given.train, Gaussian(), len(networks), epochs=given.epochs(steps),
        batch_size=given.batch_size, optimiser=adam(given.learning_rate), schedule=falling, seed=given.seed,
        prior_precision=precisions, validation=given.validation, progress=False,
    )  # fmt: skip
    for network, one in zip(networks, found, strict=True):
        network.load_state_dict(one.state_dict())
        network.eval()


@final
class Dropping(nn.Module):
    """A network of linear layers and activations, the inputs of whose linear layers are dropped while it is trained.

    The share that is kept is a buffer, so that networks with different rates can be trained side by side.
    """

    share: Tensor

    def __init__(self, layers: nn.Sequential, rate: float) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("share", torch.tensor(1 - rate, dtype=next(layers.parameters()).dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, c) of inputs (n, …)."""
        values = x.flatten(1)
        for layer in self.layers:
            if self.training and isinstance(layer, nn.Linear):
                values = values * (torch.rand_like(values) < self.share) / self.share
            values = layer(values)
        return values


def held_out_error(model: nn.Module, validation: Pair) -> float:
    """The mean squared error on held-out data."""
    with torch.no_grad():
        return float((model(validation[0]) - validation[1]).square().mean())


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


def _posterior(model: nn.Module, problem: Problem, **options: Any) -> Posterior:
    """By evidence, so that held-out rows have chosen nothing but when training stopped, and may count as data."""
    return fit(model, problem.rows, Gaussian(), draws=DRAWS, seed=problem.seed, progress=False, **options)


def _by_evidence(model: nn.Module, problem: Problem) -> Posterior:
    """The prior as well: one precision for features of unit curvature, or one for all weights as they are."""
    found = (_posterior(model, problem, prior=prior) for prior in (GPrior(), Isotropic()))
    return max(found, key=lambda posterior: posterior.log_evidence.value)


def _held_out(problem: Problem) -> Predictive:
    return fit(
        problem.model, problem.train, Gaussian(), validation=problem.validation, draws=DRAWS, seed=problem.seed,
        progress=False,
    )  # fmt: skip


def _structured(method: Any) -> Callable[[Problem], Predictive]:
    def run(problem: Problem) -> Predictive:
        return fit(
            problem.model, problem.train, Gaussian(), method=method, validation=problem.validation, draws=DRAWS,
            seed=problem.seed, progress=False,
        )  # fmt: skip

    return run


def _sampled(problem: Problem) -> Predictive:
    return Sampled(_by_evidence(problem.model, problem))


def _dropout(problem: Problem) -> Predictive:
    def at(model: nn.Module, rate: float) -> Callable[[], Predictive]:
        return lambda: dropout.fit(
            dropout.insert(model, rate, inputs=True).eval(), problem.train, Gaussian(), validation=problem.validation,
            draws=DRAWS, seed=problem.seed,
        )  # fmt: skip

    return best_of(map(at, problem.dropped, RATES), problem.validation)


def _ensemble(problem: Problem) -> Predictive:
    return ensemble.of(problem.members, problem.train, Gaussian(), validation=problem.validation)


def _swag(problem: Problem) -> Predictive:
    epochs = problem.epochs(SWAG_STEPS)

    def at(rate: float) -> Callable[[], Predictive]:
        return lambda: swag.fit(
            problem.model, problem.train, Gaussian(), epochs=epochs, per_epoch=max(1, ITERATES // epochs),
            learning_rate=rate, batch_size=problem.batch_size, validation=problem.validation, draws=DRAWS,
            seed=problem.seed, progress=False,
        )  # fmt: skip

    return best_of(map(at, SWAG_RATES), problem.validation)


def _tempered(problem: Problem) -> Predictive:
    def at(tau: float) -> Callable[[], Predictive]:
        return lambda: variational.fit(
            problem.model, problem.train, Gaussian(), epochs=problem.epochs(VARIATIONAL_STEPS),
            temperature=variational.Balanced(tau), batch_size=problem.batch_size, schedule=falling, draws=DRAWS,
            method=variational.BayesByBackprop(problem.learning_rate), seed=problem.seed, progress=False,
        )  # fmt: skip

    return best_of(map(at, TAUS), problem.validation)


def _vogn(problem: Problem) -> Predictive:
    noise = _map(problem).likelihood  # type: ignore[attr-defined]

    def at(rate: float) -> Callable[[], Predictive]:
        return lambda: variational.fit(
            problem.model, problem.train, noise, temperature=1.0, epochs=problem.epochs(VARIATIONAL_STEPS),
            batch_size=problem.batch_size, method=variational.NaturalGradient("vogn", learning_rate=rate),
            schedule=falling, draws=DRAWS, seed=problem.seed, progress=False,
        )  # fmt: skip

    return best_of(map(at, VOGN_RATES), problem.validation)


def _hmc(problem: Problem) -> Predictive:
    """Four chains from four members; an R-hat far above one among the scores says that they did not meet."""
    return mcmc.fit(
        problem.model, problem.train, Gaussian(), method=mcmc.HMC(max_steps=100), prior_precision=None, chains=4,
        warmup=400, draws=60, thin=3, start=problem.members[:4], seed=problem.seed, progress=False,
    )  # fmt: skip


METHODS: dict[str, Callable[[Problem], Predictive]] = {
    "map": _map,
    "linearised": lambda problem: _by_evidence(problem.model, problem),
    "linearised-g": lambda problem: _posterior(problem.model, problem),
    "linearised-validation": _held_out,
    "linearised-ensemble": lambda problem: Mixture(tuple(_by_evidence(one, problem) for one in problem.members)),
    "last-layer": lambda problem: _posterior(problem.model, problem, select=last_layer(problem.model)),
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

"""bandit: contextual bandits by Thompson sampling, regret after some rounds with several posteriors.

Labels of a data set become rewards: an arm is a class, and pulling it pays one where it is right and nothing elsewhere
(Riquelme et al. 2018 do so for several sets). The learner sees only the rewards of the arms it pulled. A model of the
reward of every arm is fitted anew after `REFIT` rounds; in each round one function is drawn from its posterior and the
best arm under it is pulled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from benchmarks.about import TASKS
from benchmarks.data import breast_cancer, digits
from benchmarks.networks import mlp
from benchmarks.outcomes import Cell
from benchmarks.tasks.study import Study
from lapwing.bayes.likelihoods import Gaussian
from lapwing.facade import fit
from lapwing.families import dropout, ensemble
from lapwing.families import point as network_alone
from lapwing.network.parameters import last_layer
from lapwing.training import adam, train

ROUNDS, REFIT, FIRST, HIDDEN, EPOCHS, DRAWS, MEMBERS = 600, 50, 50, 30, 60, 64, 5
Draw = Callable[[Tensor], Tensor]  # contexts with every arm -> rewards of drawn functions (draws, rows)


def contexts(name: str, seed: int) -> tuple[Tensor, Tensor, int]:
    """Standardised contexts in a random order, the right arm of each, and the number of arms."""
    task = digits(seed=seed) if name == "digits" else breast_cancer(seed=seed)
    x, y = (torch.cat(parts) for parts in zip(task.train, task.test, strict=True))
    x = x.reshape(len(x), -1).double()
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    order = torch.randperm(len(x), generator=Generator().manual_seed(seed))[:ROUNDS]
    return x[order], y[order], len(task.classes)


class Rewards(nn.Module):
    """The reward of an arm in a context: the output of a network that belongs to the arm; the last input names it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """(n, features + 1) to (n, 1)."""
        return self.body(x[:, :-1]).gather(1, x[:, -1:].long())


def with_arm(x: Tensor, arm: Tensor) -> Tensor:
    """Contexts with the number of an arm as their last input."""
    return torch.cat([x, arm.to(x).reshape(-1, 1)], dim=1)


def _network(features: int, arms: int, seed: int, hidden: int = HIDDEN) -> Rewards:
    return Rewards(mlp([features, hidden, arms], activation=nn.ReLU, seed=seed)).double()


def _trained(model: nn.Module, data: tuple[Tensor, Tensor], seed: int) -> nn.Module:
    return train(
        model, data, Gaussian(), epochs=EPOCHS, batch_size=64, optimiser=adam(5e-3), prior_precision=0.1, seed=seed,
        progress=False,
    )  # fmt: skip


def _linearised(select: Callable[[nn.Module], Any] | None) -> Callable[..., Draw]:
    def posterior(data: tuple[Tensor, Tensor], features: int, arms: int, seed: int) -> Draw:
        model = _trained(_network(features, arms, seed), data, seed)
        chosen = None if select is None else select(model)
        return fit(
            model, data, Gaussian(), select=chosen, draws=DRAWS, seed=seed, progress=False
        ).functions  # fmt: skip

    return posterior


def _linear(data: tuple[Tensor, Tensor], features: int, arms: int, seed: int) -> Draw:
    """A Bayesian linear model of each arm's reward."""
    body = nn.Sequential(nn.Linear(features, arms)).double()
    with torch.no_grad():
        for weight in body.parameters():
            weight.zero_()
    posterior = fit(Rewards(body).eval(), data, Gaussian(), draws=DRAWS, seed=seed, progress=False)
    # the network is zero, so what the data say is in the linear mode
    return lambda x: posterior.functions(x) + posterior.predict(x, mean="linear").mean - posterior.predict(x).mean


def _greedy(data: tuple[Tensor, Tensor], features: int, arms: int, seed: int) -> Draw:
    return network_alone.fit(_trained(_network(features, arms, seed), data, seed), data, Gaussian()).functions


def _ensemble(data: tuple[Tensor, Tensor], features: int, arms: int, seed: int) -> Draw:
    models = [_trained(_network(features, arms, seed + k), data, seed + k) for k in range(MEMBERS)]
    return ensemble.of(models, data, Gaussian()).functions


def _dropout(data: tuple[Tensor, Tensor], features: int, arms: int, seed: int) -> Draw:
    model = dropout.insert(_network(features, arms, seed), 0.1)
    return dropout.fit(_trained(model, data, seed), data, Gaussian(), draws=DRAWS, seed=seed).functions


METHODS: dict[str, Callable[..., Draw] | None] = {
    "uniform": None,
    "greedy": _greedy,
    "linear": _linear,
    "linearised": _linearised(None),
    "last-layer": _linearised(last_layer),
    "dropout": _dropout,
    "ensemble": _ensemble,
}


def run(cell: Cell, folder: Path) -> dict[str, float]:
    """The regret of a policy: how many rounds it pulled a wrong arm; `share` of that of pulling at random."""
    del folder
    x, right, arms = contexts(cell.data, cell.seed)
    chance = Generator().manual_seed(cell.seed)
    pulled = torch.randint(arms, (FIRST,), generator=chance)
    posterior = METHODS[cell.method]
    for start in range(FIRST, len(x), REFIT):
        rows = torch.arange(start, min(start + REFIT, len(x)))
        if posterior is None:
            arm = torch.randint(arms, (len(rows),), generator=chance)
        else:
            rewards = (pulled == right[:start]).double()[:, None]
            draw = posterior((with_arm(x[:start], pulled), rewards), x.shape[1], arms, 100 * cell.seed + start)
            arm = _thompson(draw, x[rows], arms, chance)
        pulled = torch.cat([pulled, arm])
    wrong = (pulled != right).double()
    curve = {f"regret_{rounds}": float(wrong[:rounds].sum()) for rounds in (100, 200, 400) if rounds < len(wrong)}
    expected = len(wrong) * (1 - 1 / arms)
    last = wrong[-100:].mean()
    return {"regret": float(wrong.sum()), "share": float(wrong.sum()) / expected, "last_errors": float(last), **curve}


def _thompson(draw: Draw, x: Tensor, arms: int, chance: Generator) -> Tensor:  # (n,)
    """The best arm of each context under a function of its own, of those drawn."""
    every = torch.cat([with_arm(x, torch.full((len(x),), arm)) for arm in range(arms)])
    rewards = draw(every).reshape(-1, arms, len(x))  # (draws, arms, n)
    which = torch.randint(len(rewards), (len(x),), generator=chance)
    return rewards[which, :, torch.arange(len(x))].argmax(1)


STUDY = Study(
    "bandit", TASKS["bandit"], tuple(METHODS),
    ("digits", "breast-cancer"), run, ("regret", "share", "last_errors", "regret_100", "regret_200", "regret_400"),
    lambda _: 1000,
)  # fmt: skip

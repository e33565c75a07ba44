"""What a newcomer's first fit must not do: fail as a whole because one point of a tuning grid does."""

import pytest
import torch
from torch import nn

import lapwing as lw

ACTIVATIONS = {"tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU}


def two_moons(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    turn = torch.rand(n, generator=generator) * torch.pi
    y = torch.arange(n) % 2
    upper = torch.stack([turn.cos(), turn.sin()], 1)
    lower = torch.stack([1 - turn.cos(), 0.5 - turn.sin()], 1)
    x = torch.where((y == 0)[:, None], upper, lower)
    return x + 0.15 * torch.randn(n, 2, generator=generator), y


def trained(activation: type[nn.Module], x: torch.Tensor, y: torch.Tensor, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 50), activation(), nn.Linear(50, 50), activation(), nn.Linear(50, 2))
    descent = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        descent.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        descent.step()
    return model.eval()


@pytest.mark.parametrize(("name", "seed"), [("tanh", 0), ("silu", 1), ("gelu", 0)])
def test_two_moons_with_held_out_data(name, seed):
    """A memorised classifier in single precision: wide priors have no mode there, and none is needed."""
    train, held_out, test = two_moons(200, seed), two_moons(100, 10 + seed), two_moons(300, 20 + seed)
    model = trained(ACTIVATIONS[name], *train, seed)
    posterior = lw.fit(model, train, lw.Categorical(), validation=held_out)
    told = posterior.diagnostics
    kept = told.candidate != "posterior, precision by held-out data"  # then the precision is that of the bound
    assert told.tuned_by == ("evidence" if kept else "held-out density")
    assert told.candidates[told.candidate] == max(told.candidates.values())
    assert posterior.diagnostics.mode_steps is None  # no mode was looked for
    assert ("log evidence" in repr(posterior)) == kept
    prediction = posterior.predict(test[0])
    assert prediction.probs.isfinite().all()
    raw = -nn.functional.cross_entropy(model(test[0]), test[1])
    assert prediction.log_prob(test[1]).mean() > raw - 0.05


def test_a_point_of_a_curve_that_fails_costs_itself():
    """The score of the others is as it was; where all fail, the fit says so."""
    from lapwing.bayes.evidence import Problem
    from lapwing.bayes.posterior.curves import held_out

    one = torch.ones(1, dtype=torch.float64)
    problem = Problem(lambda at: at, one, one, 0.0, 100.0)

    def density(ratio: float) -> tuple[float, float]:
        if ratio > 1:  # a prior wider than it was
            raise FloatingPointError("round-off")
        return -(torch.tensor(ratio).log() + 2).square().item(), 1.0

    found = held_out(problem, density, 41, with_evidence=False)
    assert found.best_precision == pytest.approx(torch.tensor(2.0).exp().item(), rel=1e-4)
    assert (found.held_out[found.precision < 0.99] == -torch.inf).all()
    with pytest.raises(FloatingPointError, match="no precision of the curve"):
        held_out(problem, lambda ratio: density(2.0), 41, with_evidence=False)

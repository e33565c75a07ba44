"""False alarms come as often as was said, by binomial z-score; unfamiliar inputs and drifted batches are noticed."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.families import ensemble, monitor
from tests.families.problems import mlp, normals, regression


@dataclass(frozen=True)
class Told:
    """A prediction whose score is its input."""

    novelty: Tensor


class Identity:
    def predict(self, inputs):
        return Told(inputs)


def z_score(count: int, repeats: int, chance: float) -> float:
    return (count - repeats * chance) / (repeats * chance * (1 - chance)) ** 0.5


@pytest.mark.parametrize(("size", "rate"), [(99, 0.01), (57, 0.1), (19, 0.05)])
def test_false_alarms_have_the_rate_that_conformal_theory_gives(size, rate):
    """Over fresh held-out sets a continuous score is flagged in ⌊rate (n + 1)⌋ / (n + 1) of all cases exactly."""
    repeats = 2000
    values = normals(repeats, size + 1, seed=1).exp()
    alarms = sum(bool(monitor.fit(Identity(), row[1:]).flags(row[:1], alarm_rate=rate)) for row in values.unsqueeze(-1))
    expected = int(rate * (size + 1) + 1e-9) / (size + 1)
    assert expected <= rate
    assert abs(z_score(alarms, repeats, expected)) < 3.3


def test_ties_make_it_more_careful_never_less():
    repeats = 2000
    values = torch.randint(4, (repeats, 20), generator=torch.Generator().manual_seed(0)).double()
    alarms = sum(bool(monitor.fit(Identity(), row[1:]).flags(row[:1], alarm_rate=0.25)) for row in values)
    assert z_score(alarms, repeats, 0.25) < 3.3


@pytest.mark.parametrize(("size", "batch"), [(40, 7), (9, 30)])
def test_p_values_of_batches_are_valid(size, batch):
    """With 19 permutations p ≤ 0.1 has chance 2 / 20 exactly, for any sizes."""
    repeats, few = 1000, 0
    values = normals(repeats, size + batch, seed=2).exp()
    for number, row in enumerate(values):
        found = monitor.fit(Identity(), row[batch:]).drift(row[:batch], permutations=19, seed=number)
        few += found.p_value <= 0.1 + 1e-9
    assert abs(z_score(few, repeats, 0.1)) < 3.3


@pytest.mark.parametrize(("change", "side"), [
    (lambda x: x + 1.0, "more_unfamiliar"),  # all of it shifted
    (lambda x: x - 1.0, "more_familiar"),
    (lambda x: torch.where(torch.arange(60) < 6, x + 6.0, x), "more_unfamiliar"),  # a tenth is unfamiliar
])  # fmt: skip
def test_batches_that_drift_are_noticed(change, side):
    watching = monitor.fit(Identity(), normals(200, seed=3))
    found, before = watching.drift(change(normals(60, seed=4))), watching.drift(normals(60, seed=4))
    assert found.p_value <= 0.01
    assert getattr(found, side) > 3
    assert before.p_value > 0.01


def test_a_nan_score_counts_as_the_most_unfamiliar():
    watching, batch = monitor.fit(Identity(), normals(200, seed=3)), normals(60, seed=4)
    missing, far = batch.clone(), batch.clone()
    missing[7], far[7] = torch.nan, torch.inf
    assert watching.drift(missing) == watching.drift(far) == watching.drift(far.clamp_max(1e9))
    assert watching.drift(missing).p_value > 0.01  # one of sixty is no drift
    assert watching.drift(torch.full((60,), torch.nan)).p_value == 0.001
    assert float(watching.p_values(missing)[7]) == pytest.approx(1 / 201)
    assert watching.flags(missing, alarm_rate=0.01).nonzero().flatten().tolist().count(7) == 1


def posterior_and_data():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 30), torch.nn.Tanh(), torch.nn.Linear(30, 2)).double().eval()
    x = normals(90, 3, seed=5)
    return lw.fit(model, (x, model(x).detach() + 0.1 * normals(90, 2, seed=6)), lw.Gaussian(0.1), draws=64)


def test_unfamiliar_inputs_of_a_network_are_flagged():
    posterior = posterior_and_data()
    watching = monitor.fit(posterior, normals(199, 3, seed=7))
    familiar, unfamiliar = normals(400, 3, seed=8), 5 + 3 * normals(100, 3, seed=9)
    # given one held-out set the rate is Beta(10, 190): mean 0.05, standard deviation 0.0154
    assert (
        abs(float(watching.flags(familiar, alarm_rate=0.05).double().mean()) - 0.05)
        < 4 * (0.0154**2 + 0.0475 / 400) ** 0.5
    )
    assert float(watching.flags(unfamiliar, alarm_rate=0.05).double().mean()) > 0.9
    assert watching.drift(unfamiliar).p_value == 0.001
    assert watching.drift(familiar).p_value > 0.01
    torch.testing.assert_close(watching.scores(unfamiliar), posterior.predict(unfamiliar).novelty)
    p_values, scores, known = watching.p_values(familiar), watching.scores(familiar), watching.known
    expected = (1 + (known >= scores[:, None]).sum(1)) / 200  # the definition, by counting
    torch.testing.assert_close(p_values, expected.double())


def test_other_scores_and_other_models():
    x, y = regression()
    found = ensemble.of([mlp(seed=seed) for seed in range(3)], (x, y), lw.Gaussian(0.1))
    with pytest.raises(ValueError, match="no prior over functions"):
        monitor.fit(found, x)
    by_name = monitor.fit(found, x, score="epistemic_variance")
    by_hand = monitor.fit(found, x, score=lambda prediction: prediction.epistemic_variance)
    torch.testing.assert_close(by_name.known, by_hand.known)


def test_what_cannot_be_promised_is_refused():
    watching = monitor.fit(Identity(), normals(98, seed=1))
    with pytest.raises(ValueError, match="needs at least 99 held-out inputs, and there are 98"):
        watching.flags(normals(3, seed=2))
    with pytest.raises(ValueError, match="between 0 and 1"):
        watching.flags(normals(3, seed=2), alarm_rate=1.0)
    with pytest.raises(ValueError, match="expected one of novelty"):
        monitor.fit(Identity(), normals(3, seed=1), score="variance")
    with pytest.raises(ValueError, match="finite scores"):
        monitor.fit(Identity(), torch.tensor([1.0, torch.nan]))

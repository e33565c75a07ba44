"""What to label next: against enumeration of all labels, quadrature, and dense conditioning."""

import itertools
import math

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing.decisions import acquisition, information
from lapwing.decisions.information import Configurations, batch_bald
from lapwing.decisions.pool import pool_of
from lapwing.tabular import BayesianMLPClassifier, BayesianMLPRegressor

DRAWS, INPUTS, CLASSES = 37, 7, 3


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def probabilities():
    return (2 * normals(DRAWS, INPUTS, CLASSES)).softmax(2)


def entropy(p):
    return -sum(value * math.log(value) for value in p if value > 0)


def joint_information(p, batch):
    """Of all labels of a batch: entropy of their joint distribution, less its mean given the function."""
    configurations = itertools.product(range(CLASSES), repeat=len(batch))
    joint = []
    for labels in configurations:
        likelihood = torch.ones(len(p), dtype=torch.float64)
        for place, label in zip(batch, labels, strict=True):
            likelihood = likelihood * p[:, place, label]
        joint.append(float(likelihood.mean()))
    given = sum(entropy(p[k, place].tolist()) for k in range(len(p)) for place in batch) / len(p)
    return entropy(joint) - given


def test_batches_are_those_of_enumerating_all_labels(monkeypatch):
    monkeypatch.setattr(information, "AT_ONCE", 2)  # so that gains of before serve as bounds
    p = probabilities()
    chosen, known = [], 0.0
    for place, gain in batch_bald(p, 4, seed=0, report=lambda _: None):
        gains = [-math.inf if i in chosen else joint_information(p, [*chosen, i]) - known for i in range(INPUTS)]
        assert place == max(range(INPUTS), key=gains.__getitem__)
        assert gain == pytest.approx(gains[place], abs=1e-12)
        chosen.append(place)
        known += gain


def test_drawn_configurations_are_right_on_average(monkeypatch):
    monkeypatch.setattr(information, "CONFIGURATIONS", 5)  # the second label is beyond them
    p = probabilities()
    batch, others = [4, 1, 6], [0, 2, 3, 5]
    found = []
    for seed in range(200):
        generator, known = torch.Generator().manual_seed(seed), Configurations.empty(DRAWS)
        for place in batch:
            known = known.with_label(p[:, place], generator)
        assert known.origin is not None
        found.append(known.gains(p[:, others]))
    found = torch.stack(found)
    before = joint_information(p, batch)
    expected = torch.tensor([joint_information(p, [*batch, other]) - before for other in others])
    z = (found.mean(0) - expected) / (found.std(0) / len(found) ** 0.5)
    assert float(z.abs().max()) < 4.5  # four numbers: one in 30,000 by chance


def test_what_draws_cannot_tell_goes_by_the_information_in_each_alone():
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    p = torch.stack(
        [certain, certain, 0.6 * certain + 0.2, 0.2 * certain + 0.4], dim=1
    )  # two draws: one label says which
    found = list(batch_bald(p, 4, seed=0, report=lambda _: None))
    assert [place for place, _ in found] == [0, 1, 2, 3]
    assert [gain for _, gain in found] == pytest.approx([math.log(2), 0, 0, 0], abs=1e-12)


def test_information_in_a_label_is_that_of_quadrature():
    model = lw.LinearModel(normals(12, 4, seed=3), (normals(12, seed=4) > 0).double(), lw.Bernoulli())
    posterior = lw.infer(model, prior=lw.Isotropic(0.5))
    pool = normals(9, 4, seed=5)
    found = lw.acquire(posterior, pool, 9, score="bald")
    prediction = posterior.predict(pool)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = torch.from_numpy(weights / weights.sum())
    p = (prediction.mean[:, None] + prediction.epistemic_variance.sqrt()[:, None] * torch.from_numpy(nodes)).sigmoid()

    def binary(q):
        return torch.special.entr(q) + torch.special.entr(1 - q)

    expected = binary(p @ weights) - binary(p) @ weights
    slope = ((1 - p @ weights) / (p @ weights)).log()[:, None]
    each = slope * (p - (p @ weights)[:, None]) - (binary(p) - (binary(p) @ weights)[:, None])
    error = ((each.square() @ weights) / acquisition.DRAWS).sqrt()  # of a mean over draws, to first order
    gap = (found.values - expected[found.places]).abs()
    assert bool((gap <= 4.5 * error[found.places] + 2 * error[found.places].square()).all())
    assert found.values.tolist() == sorted(found.values.tolist(), reverse=True)


def test_entropy_is_that_of_the_mean_probabilities():
    model = lw.LinearModel(normals(24, 3, seed=7), torch.arange(12) % 2, lw.Categorical())
    posterior = lw.infer(model, prior=lw.Isotropic(0.5))
    pool = normals(10, 3, seed=8)  # five inputs, two logits each
    found = lw.acquire(posterior, pool, 5, score="entropy")
    p = pool_of(posterior, pool).outputs(torch.arange(5), acquisition.DRAWS).mean(0)
    expected = torch.tensor([entropy(row.tolist()) for row in p], dtype=torch.float64)
    torch.testing.assert_close(found.values, expected[found.places], rtol=1e-10, atol=0)
    assert found.places.tolist() == expected.argsort(descending=True).tolist()


NOISE = 0.3


def several_numbers():
    """Two outputs for each datum, and the covariance of a pool's by the normal equations."""
    x, y = normals(10, 5, seed=1), normals(5, 2, seed=2)
    posterior = lw.infer(lw.LinearModel(x, y, lw.Gaussian(NOISE)), prior=lw.Isotropic(0.7))
    pool = normals(12, 5, seed=3)
    covariance = torch.linalg.inv(x.mT @ x / NOISE**2 + 0.7 * torch.eye(5).double())
    return posterior, pool, covariance


def after(covariance, rows):
    precision = torch.linalg.inv(covariance) + rows.mT @ rows / NOISE**2
    return torch.linalg.inv(precision)


@pytest.mark.parametrize("score", ["variance", "batchbald"])
def test_batches_of_numbers_are_those_of_refits(score):
    posterior, pool, covariance = several_numbers()
    rows = pool.reshape(6, 2, 5)
    found = lw.acquire(posterior, pool, 3, score=score)

    def value(known, place):
        new = after(known, rows[place])
        if score == "batchbald":
            return 0.5 * float(torch.logdet(known) - torch.logdet(new))
        return float(((pool @ (known - new)) * pool).sum() / 6)

    chosen = []
    for place, gain in zip(found.places.tolist(), found.values.tolist(), strict=True):
        values = [-math.inf if i in chosen else value(covariance, i) for i in range(6)]
        assert place == max(range(6), key=values.__getitem__)
        assert gain == pytest.approx(values[place], rel=1e-8)
        covariance = after(covariance, rows[place])
        chosen.append(place)


def test_information_of_each_number_alone():
    posterior, pool, covariance = several_numbers()
    found = lw.acquire(posterior, pool, 6, score="bald")
    rows = pool.reshape(6, 2, 5)
    expected = torch.stack([0.5 * (torch.logdet(covariance) - torch.logdet(after(covariance, part))) for part in rows])
    torch.testing.assert_close(found.values, expected.sort(descending=True).values, rtol=1e-8, atol=0)


def one_number():
    posterior = lw.infer(lw.LinearModel(normals(8, 3), normals(8, seed=1), lw.Gaussian(0.2)), prior=lw.Isotropic(1.0))
    return posterior, normals(11, 3, seed=2)


def test_equal_inputs_are_chosen_in_order_and_once():
    posterior, pool = one_number()
    same = pool[4:5].expand(5, 3)
    found = lw.acquire(posterior, same, 5)
    assert isinstance(found, lw.Acquisition)
    assert found.places.tolist() == [0, 1, 2, 3, 4]


def test_a_large_pool_is_shortlisted_by_variance(monkeypatch):
    posterior, pool = one_number()
    monkeypatch.setattr(acquisition, "MOST", 4)
    few = posterior.predict(pool).epistemic_variance.argsort(descending=True)[:4].sort().values
    found, expected = lw.acquire(posterior, pool, 3), lw.acquire(posterior, pool[few], 3)
    assert found.places.tolist() == few[expected.places].tolist()


@pytest.mark.parametrize(("score", "sign"), [("thompson", 1), ("thompson-minimum", -1)])
def test_thompson_sampling_chooses_as_often_as_an_input_is_the_best(score, sign):
    posterior, pool = one_number()
    first = [int(lw.acquire(posterior, pool, 1, score=score, seed=seed).places) for seed in range(100)]
    joint = posterior.joint(pool, torch.ones(11, dtype=torch.bool))
    root = torch.linalg.cholesky(joint.covariance + 1e-10 * torch.eye(11).double())
    drawn = sign * (joint.mean + normals(20000, 11, seed=9) @ root.mT)
    expected = torch.bincount(drawn.argmax(1), minlength=11).double() / 20000
    share = torch.bincount(torch.tensor(first), minlength=11).double() / 100
    # so many draws, of which 100 seeds look at one each
    error = (expected * (1 - expected) * (1 / acquisition.DRAWS + 1 / 100 + 1 / 20000)).sqrt()
    assert bool(((share - expected).abs() <= 4.5 * error + 1e-3).all())
    every = lw.acquire(posterior, pool, 11, score=score).places
    assert sorted(every.tolist()) == list(range(11))


def test_a_mixture_varies_within_its_members_and_between():
    members = [
        lw.infer(lw.LinearModel(normals(8, 3), normals(8, seed=seed), lw.Gaussian(0.2)), prior=lw.Isotropic(1.0))
        for seed in (1, 2)
    ]
    mixture, pool = lw.Mixture(tuple(members)), normals(11, 3, seed=2)
    found = pool_of(mixture, pool)
    everywhere = torch.ones(11, dtype=torch.bool)
    joints = [member.joint(pool, everywhere) for member in members]
    apart = (joints[0].mean - joints[1].mean) / 2
    expected = (joints[0].covariance + joints[1].covariance) / 2 + torch.outer(apart, apart)
    torch.testing.assert_close(found.covariance(torch.arange(11)), expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.variances()[:, 0], expected.diagonal(), rtol=1e-8, atol=1e-10)
    assert len(lw.acquire(mixture, pool, 4).places) == 4


def test_numbers_of_a_table():
    x, y = normals(40, 3).numpy(), normals(40, 2, seed=1).numpy()
    model = BayesianMLPRegressor(members=2, random_state=0).fit(x, y)
    pool = normals(9, 3, seed=2).numpy()
    found = pool_of(model, pool)
    inputs = model._inputs(pool)
    mixture = model._networks.predict(inputs)
    noise = found.noise(torch.arange(9))
    total = mixture.stds.square().mean(0) + mixture.means.var(0, correction=0)
    torch.testing.assert_close(found.variances() + noise, total, rtol=1e-8, atol=1e-10)
    joint = found.covariance(torch.arange(9)).reshape(9, 2, 9, 2)
    torch.testing.assert_close(joint.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1), found.variances())
    assert float(joint[:, 0, :, 1].abs().max()) == 0
    assert len(set(lw.acquire(model, pool, 5).places.tolist())) == 5


def test_draws_of_a_table_have_its_covariance():
    x, y = normals(40, 3).numpy(), normals(40, seed=1).numpy()
    model = BayesianMLPRegressor(members=2, random_state=0).fit(x, y)
    pool = normals(4, 3, seed=2).numpy()
    found = pool_of(model, pool)
    drawn = found.outputs(torch.arange(4), 4000)[:, :, 0]
    covariance = found.covariance(torch.arange(4))
    own = covariance.diagonal()
    error = ((covariance.square() + own * own[:, None]) / 4000).sqrt()
    away = drawn - torch.from_numpy(model.predict(pool))
    assert float(((away.mT @ away / 4000 - covariance) / error).abs().max()) < 4.5
    assert float((away.mean(0) / (own / 4000).sqrt()).abs().max()) < 4.5


def test_labels_of_a_table():
    x = normals(60, 3)
    y = np.array(["a", "b", "c"])[(x[:, 0] > 0).int().numpy() + (x[:, 1] > 0.5).int().numpy()]
    model = BayesianMLPClassifier(members=2, random_state=0).fit(x.numpy(), y)
    pool = normals(8, 3, seed=2).numpy()
    drawn = pool_of(model, pool).outputs(torch.arange(8), 4000)
    z = (drawn.mean(0) - torch.from_numpy(model.predict_proba(pool))) / (drawn.std(0) / 4000**0.5 + 2e-3)
    assert float(z.abs().max()) < 4.5  # beside 256 points of the estimator's own averages
    found = lw.acquire(model, pool, 3)
    assert found.score == "batchbald"
    assert len(set(found.places.tolist())) == 3


def test_what_cannot_be_done_is_refused():
    posterior, pool = one_number()
    with pytest.raises(ValueError, match="from 1 to the 11 inputs"):
        lw.acquire(posterior, pool, 12)
    with pytest.raises(ValueError, match=r"for numbers expected one of variance, batchbald, bald, thompson"):
        lw.acquire(posterior, pool, 2, score="entropy")
    with pytest.raises(ValueError, match=r"the model is a function: expected a posterior"):
        lw.acquire(normals, pool, 2)
    several, rows, _ = several_numbers()
    with pytest.raises(ValueError, match="a model of 2 outputs has no largest"):
        lw.acquire(several, rows, 2, score="thompson")


def test_progress_names_what_is_done():
    posterior, pool = one_number()
    seen = []
    lw.acquire(posterior, pool, 2, progress=seen.append)
    assert "input 2 of 2" in seen
    assert seen[-1] == ""

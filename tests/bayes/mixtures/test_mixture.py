"""Mixtures of posteriors: joint draws, leave-one-out, more data, fewer data, candidates on held-out data."""

from dataclasses import replace

import pytest
import torch

import lapwing as lw
from lapwing.bayes.mixtures import held_out
from lapwing.bayes.posterior.alternatives import ScaledNetwork
from lapwing.families import temperature

OPTIONS = {"prior": lw.Isotropic(0.7), "progress": False}


def normals(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def line(columns: slice, rows: slice = slice(None)) -> lw.LinearModel:
    """A linear model of some of five columns, whose features at new inputs are these columns."""
    x = normals(14, 5, seed=0)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 1.5]).double() + 0.3 * normals(14, seed=1)
    made = lw.LinearModel(x[rows, columns], y[rows], lw.Gaussian(0.5))
    return replace(
        made, features_at=lambda inputs: lw.LinearModel(inputs[:, columns], y[: len(inputs)], lw.Gaussian(0.5)).features
    )


PARTS = (slice(0, 3), slice(1, 5))


def mixture(draws: int = 8, rows: slice = slice(None)) -> lw.Mixture:
    return lw.Mixture(tuple(lw.infer(line(part, rows), draws=draws, seed=k, **OPTIONS) for k, part in enumerate(PARTS)))


def dense(part: slice, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of the weights given some rows, by their normal equations."""
    x = normals(14, 5, seed=0)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 1.5]).double() + 0.3 * normals(14, seed=1)
    x, y = x[rows][:, part], y[rows]
    precision = 0.7 * torch.eye(x.shape[1]).double() + x.mT @ x / 0.25
    return torch.linalg.solve(precision, x.mT @ y / 0.25), torch.linalg.inv(precision)


def test_functions_have_the_covariance_within_and_between_members():
    """By z-score: draws of member k are N(m_k, C_k), so x_i x_j has a variance that is known."""
    draws, at, every = 3_000, normals(3, 5, seed=4), torch.arange(14)
    found = mixture(draws)
    functions = found.functions(at)
    assert functions.shape == (2 * draws, 3)
    assert torch.equal(functions[:9], found.functions(at)[:9])
    moments = []
    for part in PARTS:
        mean, covariance = dense(part, every)
        moments.append((at[:, part] @ mean, at[:, part] @ covariance @ at[:, part].mT))
    centre = torch.stack([mean for mean, _ in moments]).mean(0)
    expected = torch.stack([c + torch.outer(m - centre, m - centre) for m, c in moments]).mean(0)
    away = functions - centre
    variances = []
    for m, c in ((m - centre, c) for m, c in moments):
        v, outer = c.diagonal(), torch.outer(m, m)
        variances.append(
            torch.outer(v, v) + c.square() + torch.outer(m.square(), v) + torch.outer(v, m.square()) + 2 * outer * c
        )
    standard_error = (torch.stack(variances).mean(0) / (2 * draws)).sqrt()
    assert ((away.mT @ away / (2 * draws) - expected).abs() <= 5 * standard_error).all()
    torch.testing.assert_close(found.predict(at).epistemic_variance, expected.diagonal())
    torch.testing.assert_close(found.predict(at).mean, centre)


def test_leaving_out_is_fitting_the_members_without_the_datum():
    found, x = mixture().leave_one_out(), normals(14, 5, seed=0)
    for left in (0, 6):
        rest = torch.tensor([row for row in range(14) if row != left])
        densities, means = [], []
        for part in PARTS:
            mean, covariance = dense(part, rest)
            row, y = x[left, part], line(part).targets[left]
            means.append(row @ mean)
            densities.append(torch.distributions.Normal(row @ mean, (row @ covariance @ row + 0.25).sqrt()).log_prob(y))
        torch.testing.assert_close(found.log_density[left], torch.stack(densities).exp().mean().log())
        torch.testing.assert_close(found.mean[left], torch.stack(means).mean())
    assert found.pull[0].shape == (14, 1)
    assert len(found.label_errors(3)) == len(found.most_influential(3)) == 3


def test_more_data_and_fewer_data():
    at, x = normals(3, 5, seed=4), normals(14, 5, seed=0)
    whole, first = mixture(), mixture(rows=slice(0, 9))
    later = first.update((x[9:], line(PARTS[0]).targets[9:]))
    torch.testing.assert_close(later.functions(at), whole.functions(at), rtol=1e-8, atol=1e-8)
    less = whole.remove([9, 10, 11, 12, 13])
    torch.testing.assert_close(less.predict(at).mean, first.predict(at).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(
        whole.influence(at), torch.stack([member.influence(at) for member in whole.members]).mean(0)
    )


def test_members_must_belong_together():
    one = lw.infer(line(PARTS[0]), draws=4, **OPTIONS)
    with pytest.raises(ValueError, match=r"members have \[4, 5\] draws"):
        lw.Mixture((one, lw.infer(line(PARTS[1]), draws=5, **OPTIONS)))
    two = lw.LinearModel(normals(12, 3, seed=2), normals(6, 2, seed=3), lw.Gaussian(0.5))
    with pytest.raises(ValueError, match="members predict different things"):
        lw.Mixture((one, lw.infer(two, draws=4, **OPTIONS)))
    with pytest.raises(ValueError, match="at least one posterior"):
        lw.Mixture(())


@pytest.fixture(scope="module")
def problem():
    """Two small networks with three classes and four inputs, and their mixture."""
    x = normals(60, 4, seed=5)
    labels = (x @ normals(4, 3, seed=6) + 0.8 * normals(60, 3, seed=7)).argmax(1)
    models = []
    with torch.random.fork_rng():
        for seed, hidden in ((0, 5), (1, 6)):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 3))
            descent = torch.optim.Adam(model.double().parameters(), lr=0.03)
            for _ in range(60):
                descent.zero_grad()
                torch.nn.functional.cross_entropy(model(x[:25]), labels[:25]).backward()
                descent.step()
            models.append(model.eval())
    train, held = (x[:25], labels[:25]), (x[25:], labels[25:])
    return models, train, held, lw.fit(models, train, lw.Categorical(), validation=held, draws=4, progress=False)


class TestHeldOut:
    def test_every_candidate_has_the_score_of_its_own_predictions(self, problem):
        models, train, (x, y), found = problem
        told = found.diagnostics
        assert told.candidate == max(told.candidates, key=told.candidates.get)
        assert set(told.candidates) == {held_out.ENSEMBLE, held_out.SCALED, held_out.OWN, held_out.HELD_OUT}
        probs = torch.stack([model(x).detach().softmax(1) for model in models]).mean(0)
        right = probs.gather(1, y[:, None]).log().mean()
        assert told.candidates[held_out.ENSEMBLE] == pytest.approx(float(right), rel=1e-10)
        heat = told.temperature_scaling["temperature"]
        scores = []
        for factor in (1, 1.01, 1 / 1.01):
            scaled = torch.stack([(model(x) / (heat * factor)).detach().softmax(1) for model in models]).mean(0)
            scores.append(float(scaled.gather(1, y[:, None]).log().mean()))
        assert told.candidates[held_out.SCALED] == pytest.approx(scores[0], rel=1e-10)
        assert scores[0] >= max(scores[1:]) - 1e-9
        own = lw.fit(models, train, lw.Categorical(), draws=4, progress=False)
        assert [m.seed for m in own.members] == [0, 1]
        again = own.tune((x, y), link="full probit").diagnostics.candidates[held_out.OWN]  # a link without points
        expected = own.predict(x, link="full probit").log_prob(y).mean()
        assert again == pytest.approx(float(expected), abs=1e-3)  # outputs there are found by a rougher search

    def test_the_winner_makes_the_probabilities(self, problem):
        models, _, (x, _), found = problem
        for name, heat in ((held_out.ENSEMBLE, 1.0), (held_out.SCALED, 2.5)):
            told = replace(found.diagnostics, candidate=name)
            members = tuple(replace(member, alternative=ScaledNetwork(heat)) for member in found.members)
            chosen = replace(found, members=members, diagnostics=told)
            expected = torch.stack([(model(x) / heat).detach().softmax(1) for model in models]).mean(0)
            torch.testing.assert_close(chosen.predict(x).probs, expected)
            torch.testing.assert_close(chosen.predict(x).novelty, found.predict(x).novelty)
            assert "advice" in repr(chosen)
        assert "validation NLL" in repr(found)
        assert "probabilities" in repr(found)

    def test_a_list_of_one_is_the_single_fit(self, problem):
        models, train, held, _ = problem
        single = lw.fit(models[0], train, lw.Categorical(), validation=held, draws=4, progress=False)
        listed = lw.fit(models[:1], train, lw.Categorical(), validation=held, draws=4, progress=False)
        assert torch.equal(single.predict(held[0]).probs, listed.predict(held[0]).probs)
        assert torch.equal(single.functions(held[0]), listed.functions(held[0]))
        assert listed.diagnostics.candidates == single.diagnostics.candidates
        assert repr(single) in repr(listed)

    def test_curvature_at_the_network(self, problem):
        models, train, held, _ = problem
        found = lw.fit(models, train, lw.Categorical(), validation=held, draws=4, progress=False, curvature="network")
        assert held_out.OWN not in found.diagnostics.candidates
        assert found.predict(held[0]).probs.sum(1).allclose(torch.ones(35).double())


def test_numbers_are_scaled_together_on_held_out_data():
    """The multiple of all variances at which the mixture's held-out density is largest; none is worse than that."""
    x = normals(40, 5, seed=8)
    y = x[:, 0] + 0.5 * x[:, 3] + 0.4 * normals(40, seed=9)
    members = tuple(
        lw.infer(
            replace(
                lw.LinearModel(x[:20, part], y[:20], lw.Gaussian()),
                features_at=lambda inputs, part=part: lw.LinearModel(inputs[:, part], y[: len(inputs)], lw.Gaussian()).features,
            ), draws=4, progress=False,
        )
        for part in PARTS
    )  # fmt: skip
    found = lw.Mixture(members).tune((x[20:], y[20:]))
    scores = [
        float(temperature.scaled(part, factor).log_prob(y[20:]).mean())
        for part in [found.predict(x[20:])]
        for factor in (1.0, 1.02, 1 / 1.02)
    ]
    each = torch.stack([member.tune((x[20:], y[20:])).predict(x[20:]).log_prob(y[20:]) for member in members])
    assert found.diagnostics.held_out == pytest.approx(scores[0], rel=1e-9)
    assert scores[0] >= float((each.exp().mean(0)).log().mean()) - 1e-12

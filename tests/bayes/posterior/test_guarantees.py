"""Answers with a bounded risk, and jackknife+ intervals, against refits and by simulation."""

import pytest
import torch

import lapwing as lw
from lapwing.metrics import risk_threshold


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected_risk(confidence, wrong, risk):
    """Mean over which of n + 1 exchangeable examples is the new one, exactly."""
    total = 0
    for new in range(len(wrong)):
        kept = torch.arange(len(wrong)) != new
        threshold = risk_threshold(confidence[kept], wrong[kept], risk)
        total += int(wrong[new] and confidence[new] > threshold)
    return total / len(wrong)


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.31])
def test_the_risk_is_bounded_for_any_exchangeable_examples(risk):
    """The new example is each of n + 1 with the same chance, so this is the theorem for the empirical distribution."""
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        confidence = torch.rand(41, generator=generator, dtype=torch.float64)
        if seed % 2:
            confidence = (confidence * 5).round() / 5  # with ties
        wrong = torch.rand(41, generator=generator) < 0.6 * (1 - 0.7 * confidence)
        found = expected_risk(confidence, wrong, risk)
        assert found <= risk + 1e-12
        enough = int(wrong.sum()) >= risk * 41
        if enough and not seed % 2:  # without ties
            assert found >= risk - 2 / 41


def test_the_risk_of_many_draws_is_that_of_the_theorem():
    """n = 99 and risk 0.1: nine wrong answers in the sample, so a new one is answered wrongly with probability 0.1."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(4000, 100, generator=generator, dtype=torch.float64)
    wrong = torch.rand(4000, 100, generator=generator) < 0.5
    costs = torch.tensor(
        [
            float(bool(mistaken[99]) and float(sure[99]) > risk_threshold(sure[:99], mistaken[:99], 0.1))
            for sure, mistaken in zip(confidence, wrong, strict=True)
        ]
    )
    error = (0.1 * 0.9 / 4000) ** 0.5
    assert abs(float(costs.mean()) - 0.1) < 4.5 * error


def classifier(n=60):
    x = normals(n, 2)
    features = torch.einsum("ni,cj->ncij", x, torch.eye(3).double()).reshape(n * 3, 6)
    labels = (x @ normals(2, 3, seed=1) + 0.5 * normals(n, 3, seed=2)).argmax(1)
    return features, labels


def test_answers_are_those_above_the_threshold():
    features, labels = classifier()
    posterior = lw.infer(lw.LinearModel(features[:60], labels[:20], lw.Categorical()), prior=lw.Isotropic(1.0))
    careful = posterior.answer_when(risk=0.15, validation=(features[60:], labels[20:]))
    found, probs = careful(features[60:]), posterior.predict(features[60:]).probs
    assert torch.equal(found.labels, probs.argmax(1))
    assert torch.equal(found.answered, probs.max(1).values > careful.threshold)
    mistakes = int((found.answered & (found.labels != labels[20:])).sum())
    assert mistakes <= 0.15 * 41 - 1
    assert f"{careful.coverage:.0%} of 40" in repr(careful)


def test_what_cannot_be_promised_is_refused():
    features, labels = classifier()
    posterior = lw.infer(lw.LinearModel(features[:60], labels[:20], lw.Categorical()), prior=lw.Isotropic(1.0))
    with pytest.raises(ValueError, match="at least 49 validation examples, and there are 40"):
        posterior.answer_when(risk=0.02, validation=(features[60:], labels[20:]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        posterior.answer_when(risk=0.0, validation=(features[60:], labels[20:]))
    with pytest.raises(ValueError, match=r"expected a pair \(inputs, labels\)"):
        posterior.answer_when(risk=0.1, validation=features)
    with pytest.raises(ValueError, match="one class number for each"):
        posterior.answer_when(risk=0.1, validation=(features[60:], labels))
    with pytest.raises(ValueError, match="for numbers with Gaussian"):
        posterior.conformal()
    numbers = lw.infer(lw.LinearModel(normals(9, 2), normals(9), lw.Gaussian(1.0)), prior=lw.Isotropic(1.0))
    with pytest.raises(ValueError, match="answer_when is for class labels"):
        numbers.answer_when(risk=0.1, validation=(normals(30, 2), torch.zeros(30)))
    with pytest.raises(ValueError, match=r"between 0\.5 and 1"):
        numbers.conformal().interval(normals(3, 2), 0.2)
    assert [bool(end.isinf().all()) for end in numbers.conformal().interval(normals(3, 2), 0.95)] == [True, True]


def refitted(x, y, new, level, ratio):
    """Jackknife+ by n refits of a ridge regression."""
    n = len(y)
    low, high = [], []
    for out in range(n):
        kept = torch.arange(n) != out
        matrix = x[kept].mT @ x[kept] + ratio * torch.eye(x.shape[1], dtype=torch.float64)
        weights = torch.linalg.solve(matrix, x[kept].mT @ y[kept])
        error = (y[out] - x[out] @ weights).abs()
        low.append(new @ weights - error)
        high.append(new @ weights + error)
    rank = -int(-level * (n + 1) // 1)
    return torch.stack(low).sort(0).values[n - rank], torch.stack(high).sort(0).values[rank - 1]


@pytest.mark.parametrize("level", [0.6, 0.9])
def test_jackknife_plus_is_that_of_refits(level):
    x, new = normals(31, 4), normals(7, 4, seed=1)
    y = x @ normals(4, seed=2) + 0.3 * normals(31, seed=3)
    posterior = lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.5)), prior=lw.Isotropic(2.0))
    for found, expected in zip(
        posterior.conformal().interval(new, level), refitted(x, y, new, level, 2.0 * 0.25), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_jackknife_plus_of_several_outputs_is_that_of_each():
    x, new = normals(31, 4), normals(7, 4, seed=1)
    y = x @ normals(4, 2, seed=2) + 0.3 * normals(31, 2, seed=3)
    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Linear(4, 2, bias=False).double().eval()
    posterior = lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(2.0))
    low, high = posterior.conformal().interval(new)
    assert low.shape == (7, 2)
    for output in range(2):
        expected = refitted(x, y[:, output], new, 0.9, 0.5)
        torch.testing.assert_close(low[:, output], expected[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(high[:, output], expected[1], rtol=1e-6, atol=1e-6)

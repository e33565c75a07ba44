"""Scores of unfamiliar inputs against definitions written out example by example, and alarms at their rate."""

import math
import statistics

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.decisions.layers import Mahalanobis, channel_statistics, parts_of, watched
from lapwing.decisions.ood import Surprise
from lapwing.decisions.scores import SCORES, LastInputs, TrainingFeatures

CLASSES, WIDTH, COUNT, NEW = 3, 5, 67, 6


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer():
    return normals(CLASSES, WIDTH, seed=1), normals(CLASSES, seed=2)


def seen(features):
    weight, bias = layer()
    return LastInputs(features, features @ weight.mT + bias)


def trained():
    weight, bias = layer()
    return TrainingFeatures(seen(normals(COUNT, WIDTH)), torch.arange(COUNT) % CLASSES, weight, bias)


def mahalanobis(x, centre, covariance):
    away = x - centre
    return float(away @ torch.linalg.solve(covariance, away))


def stabilised(centred):
    covariance = sum(torch.outer(row, row) for row in centred) / len(centred)
    return covariance + 1e-6 * covariance.diagonal().mean() * torch.eye(WIDTH).double()


def of_knn(given, x, logits):
    known = [row / row.norm() for row in given.seen.features]
    return sorted(float((x / x.norm() - row).norm()) for row in known)[49]


def of_relative_mahalanobis(given, x, logits):
    features, labels = given.seen.features, given.labels
    means = [features[labels == label].mean(0) for label in range(CLASSES)]
    within = stabilised([row - means[label] for row, label in zip(features, labels.tolist(), strict=True)])
    whole = mahalanobis(x, features.mean(0), stabilised(list(features - features.mean(0))))
    return min(mahalanobis(x, mean, within) for mean in means) - whole


def of_vim(given, x, logits):
    weight, bias = given.weight, given.bias
    origin = -torch.linalg.lstsq(weight, bias[:, None]).solution[:, 0]  # the least-norm one: more columns than rows
    matrix = given.seen.features - origin
    _, _, directions = torch.linalg.svd(matrix)
    principal = directions[: WIDTH // 2]

    def left(row):
        return float((row - origin - principal.mT @ (principal @ (row - origin))).norm())

    alpha = float(given.seen.logits.max(1).values.sum()) / sum(left(row) for row in given.seen.features)
    return alpha * left(x) - math.log(sum(math.exp(value) for value in logits.tolist()))


def of_fdbd(given, x, logits):
    best = int(logits.argmax())
    away = float((x - given.seen.features.mean(0)).norm())
    distances = [
        float((logits[best] - logits[other]) / (given.weight[best] - given.weight[other]).norm())
        for other in range(CLASSES)
        if other != best
    ]
    return -sum(distances) / len(distances) / away


def of_leverage(given, x, logits):
    rows = [torch.cat([row, torch.ones(1).double()]) for row in given.seen.features]
    gram = sum(torch.outer(row, row) for row in rows)
    alpha = float(gram.trace()) / COUNT
    one = torch.cat([x, torch.ones(1).double()])
    posterior = one @ torch.linalg.solve(gram + alpha * torch.eye(WIDTH + 1).double(), one)
    return float(posterior / (one @ one / alpha))


def of_probabilities(function):
    def score(given, x, logits):
        largest = float(logits.max())
        weights = [math.exp(value - largest) for value in logits.tolist()]
        return function([weight / sum(weights) for weight in weights])

    return score


def of_energy(given, x, logits):
    return -math.log(sum(math.exp(value) for value in logits.tolist()))


REFERENCES = {
    "max_probability": of_probabilities(lambda probs: 1 - max(probs)),
    "entropy": of_probabilities(lambda probs: -sum(p * math.log(p) for p in probs)),
    "energy": of_energy,
    "gen": of_probabilities(lambda probs: sum((p * (1 - p)) ** 0.1 for p in probs)),
    "knn": of_knn,
    "relative_mahalanobis": of_relative_mahalanobis,
    "vim": of_vim,
    "fdbd": of_fdbd,
    "leverage": of_leverage,
}


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_its_definition(name):
    given, new = trained(), seen(2 * normals(NEW, WIDTH, seed=3))
    found = SCORES[name](given)(new)
    expected = [REFERENCES[name](given, x, logits) for x, logits in zip(new.features, new.logits, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-10)


def test_surprise_is_the_share_of_higher_scores_and_grows_beyond_them():
    known = torch.arange(1, 101).double()
    surprise = Surprise.of(known)
    assert float(surprise(torch.tensor([50.0]).double())) == pytest.approx(-math.log(52 / 101))
    far = surprise(torch.tensor([91.5, 100.0, 101.0, 1000.0]).double())
    assert bool((far.diff() > 0).all())
    assert float(far[1]) == pytest.approx(-math.log(11 / 101) + 9 / 4.5)  # mean excess of 91, …, 100 above 91 is 4.5


def test_channels_of_layers_are_summed_up_over_positions():
    images, words = normals(3, 4, 5, 2), normals(3, 6, 7, seed=1)
    for output, rows, last in ((images, images.reshape(3, 4, 10), False), (words, words.transpose(1, 2), True)):
        found = channel_statistics(output, last=last)
        expected = [[list(map(float, channel)) for channel in row] for row in rows]
        means = torch.tensor([[statistics.fmean(one) for one in row] for row in expected], dtype=torch.float64)
        spreads = torch.tensor([[statistics.pstdev(one) for one in row] for row in expected], dtype=torch.float64)
        torch.testing.assert_close(found, torch.cat([means, spreads], dim=1))
    assert torch.equal(channel_statistics(normals(3, 4), last=True), normals(3, 4))


def test_distances_of_layers_are_those_in_the_covariance():
    rows, new = normals(40, 5) @ normals(5, 5, seed=1), normals(6, 5, seed=2)
    std = rows.std(0, correction=0)
    covariance = torch.cov(rows.mT, correction=0) + 1e-3 * torch.diag(std.square())
    expected = torch.tensor([mahalanobis(row, rows.mean(0), covariance) for row in new], dtype=torch.float64)
    torch.testing.assert_close(Mahalanobis.of(rows)(new), expected)


def test_layers_are_watched_in_the_order_of_their_calls_and_joined_to_few_parts():
    with torch.random.fork_rng(devices=[]):
        first, second = nn.Conv2d(1, 2, 3), nn.Linear(2, 3)
    model = nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), second)
    with watched(model) as found:
        model(torch.zeros(4, 1, 5, 5))
    assert [tuple(one.shape) for one in found] == [(4, 4), (4, 3)]
    model(torch.zeros(4, 1, 5, 5))
    assert len(found) == 2
    parts = parts_of([torch.full((2, 1), float(number)) for number in range(12)])
    assert [part[0].tolist() for part in parts] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9], [10, 11]]
    assert parts_of([]) == ()


def classifier():
    from lapwing.training import adam, train

    x = normals(900, 4, seed=5).float()
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    return train(model, (x[:200], y[:200]), lw.Categorical(), optimiser=adam(1e-2), epochs=30, progress=False), x, y


def test_alarms_keep_to_their_rate_and_strange_inputs_are_found():
    model, x, y = classifier()
    detector = lw.ood(model, (x[:200], y[:200]), familiar=x[200:600])
    table = detector.table(x[600:])
    assert set(table) == {*SCORES, "layers_1", "combined"}
    shares = torch.stack([(-surprise(table[name])).exp() for name, surprise in detector.surprises.items()])
    torch.testing.assert_close(table["combined"], (1 / shares).sum(0).log())
    assert torch.equal(detector.scores(x[600:]), table["combined"])
    rate = float(detector.flags(x[600:], alarm_rate=0.1).double().mean())
    k, n = 20, 200  # the share is Beta(k, n + 1 − k), and 300 new inputs are counted
    error = (k * (n + 1 - k) / ((n + 1) ** 2 * (n + 2)) + 0.09 / 300) ** 0.5
    assert abs(rate - 0.1) < 4.5 * error
    assert float(detector.flags(x[600:] + 20).double().mean()) > 0.95
    assert detector.drift(x[600:] + 20).p_value < 0.01
    one = lw.ood(model, (x[:200], y[:200]), familiar=x[200:600], score="knn")
    assert torch.equal(one.scores(x[600:]), table["knn"])


def test_what_cannot_be_scored_is_refused():
    model, x, y = classifier()
    with pytest.raises(ValueError, match="expected one of combined, max_probability"):
        lw.ood(model, (x[:200], y[:200]), familiar=x[200:], score="novel")
    with pytest.raises(ValueError, match="there are 5 familiar inputs"):
        lw.ood(model, (x[:200], y[:200]), familiar=x[200:205])
    squashed = nn.Sequential(model, nn.Softmax(dim=1)).eval()
    with pytest.raises(ValueError, match="does not end in a linear layer"):
        lw.ood(squashed, (x[:200], y[:200]), familiar=x[200:])

"""Wrong labels: leave-one-out predictions against refits, sketched gradients against the Jacobian, planted labels."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.decisions.columns import fourier_features, normal_scores
from lapwing.decisions.gradients import GradientSketch
from lapwing.decisions.labels import LabelIssues
from lapwing.decisions.leaving_out import calibrated, left_out_scores
from lapwing.network.input_tree import InputTree


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ridge(features, targets, penalty, at):
    """Predictions of a ridge regression with a free intercept, from its normal equations."""
    means = features.mean(0), targets.mean(0)
    x, y = features - means[0], targets - means[1]
    weights = torch.linalg.solve(x.mT @ x + penalty * torch.eye(x.shape[1], dtype=torch.float64), x.mT @ y)
    return (at - means[0]) @ weights + means[1]


@pytest.mark.parametrize("coordinates", [5, 40])  # fewer than examples, and more
def test_leave_one_out_scores_are_those_of_refits(coordinates):
    features, labels = normals(23, coordinates), torch.arange(23) % 3
    found = left_out_scores(features, labels, 3)
    targets = nn.functional.one_hot(labels, 3).double()
    for out in range(23):
        kept = torch.arange(23) != out
        expected = ridge(features[kept], targets[kept], found.penalty, features[out : out + 1])
        torch.testing.assert_close(found.scores[out : out + 1], expected, rtol=1e-8, atol=1e-8)
    assert found.squared_error == pytest.approx(float((targets - found.scores).square().sum()), rel=1e-10)


def test_the_penalty_has_the_least_leave_one_out_error():
    features, labels = normals(23, 5), (normals(23, 5)[:, 0] > 0).long()
    found = left_out_scores(features, labels, 2)
    targets = nn.functional.one_hot(labels, 2).double()

    def error(penalty):
        total = 0.0
        for out in range(23):
            kept = torch.arange(23) != out
            total += float((targets[out] - ridge(features[kept], targets[kept], penalty, features[out])).square().sum())
        return total

    assert error(found.penalty) <= min(error(found.penalty * factor) for factor in (10**-0.25, 10**0.25)) + 1e-9


def test_calibration_finds_the_most_likely_sharpness():
    scores, labels = normals(50, 3), torch.arange(50) % 3
    scores = scores + 1.5 * nn.functional.one_hot(labels, 3)
    found = calibrated(scores, labels)
    best = float(nn.functional.nll_loss(found.log(), labels))
    betas = torch.linspace(0.32, 20, 200, dtype=torch.float64)
    assert best <= min(float(nn.functional.cross_entropy(beta * scores, labels)) for beta in betas) + 1e-4
    torch.testing.assert_close(found.sum(1), torch.ones(50, dtype=torch.float64))


def networks():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mlp = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        grouped = nn.Conv2d(4, 6, 3, groups=2)
        cnn = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), grouped, nn.Flatten(), nn.LazyLinear(3)
        )
        cnn(torch.zeros(1, 2, 8, 7))
        transposed = nn.Sequential(nn.ConvTranspose1d(4, 5, 2), nn.Flatten(), nn.LazyLinear(3))
        transposed(torch.zeros(1, 4, 6))
    shapes = {"mlp": (4,), "cnn": (2, 8, 7), "transposed": (4, 6)}
    models = {"mlp": mlp, "cnn": cnn, "transposed": transposed}
    return {name: (model.double().eval(), normals(7, *shapes[name])) for name, model in models.items()}


def network():
    return networks()["mlp"][0]


@pytest.mark.parametrize("name", ["mlp", "cnn", "transposed"])
@pytest.mark.parametrize("masked", [False, True])
def test_sketched_gradients_are_the_jacobian_times_a_sparse_matrix_of_signs(name, masked):
    model, x = networks()[name]
    total = sum(weight.numel() for weight in model.parameters())
    mask = torch.arange(total) % 3 > 0 if masked else torch.ones(total, dtype=torch.bool)
    sketch = GradientSketch.of(model, 3, seed=1, coordinates=11, select=mask if masked else None)
    mix = sketch.network.view.output(torch.eye(3).double())[:, 0]
    rows = []
    for one in x:
        gradients = torch.autograd.grad((model(one[None]) * mix).sum(), list(model.parameters()))
        rows.append(torch.cat([part.reshape(-1) for part in gradients]))
    matrix = torch.zeros(total, 11, dtype=torch.float64)
    hashes = [sketch.hashes[key] for key, _ in model.named_parameters()]
    places, signs = (torch.cat([getattr(one, part) for one in hashes]) for part in ("places", "signs"))
    matrix[torch.arange(total), places] = signs.double() * mask
    assert set(mix.tolist()) <= {-1.0, 1.0}
    assert set(signs.tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(sketch(x), torch.stack(rows) @ matrix, rtol=1e-10, atol=1e-12)


def test_gradients_one_by_one_are_those_all_at_once():
    model, x = network(), normals(7, 4)
    sketch = GradientSketch.of(model, 3, coordinates=11)
    torch.testing.assert_close(sketch(InputTree((x,))), sketch(x), rtol=1e-10, atol=1e-12)


def test_inner_products_of_sketches_are_right_on_average():
    model, x = network(), normals(3, 4)
    found = torch.stack([_products(GradientSketch.of(model, 3, seed=seed, coordinates=16), x) for seed in range(400)])
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    jacobian = torch.func.jacrev(lambda at: torch.func.functional_call(model, at, (x,)))(weights)
    flat = torch.cat([part.reshape(3, 3, -1) for part in jacobian.values()], dim=2)
    expected = torch.einsum("acp,bcp->ab", flat, flat)
    error = found.std(0) / 400**0.5
    assert float(((found.mean(0) - expected) / error).abs().max()) < 4.5  # nine numbers: one in 16,000 by chance


def _products(sketch, x):
    found = sketch(x)
    return found @ found.mT


def test_fourier_features_have_the_kernel_as_inner_products():
    x = normals(5, 3)
    every = torch.stack([fourier_features(x, 1.5, seed) @ fourier_features(x, 1.5, seed).mT for seed in range(60)])
    squared = torch.cdist(x, x).square() / 3
    expected = torch.exp(-squared / (2 * 1.5**2))
    error = every.std(0) / 60**0.5
    gap = (every.mean(0) - expected).abs()
    assert bool((gap <= 4.5 * error + 1e-12).all())


def test_normal_scores_are_quantiles_of_ranks():
    column = torch.tensor([3.0, 1e9, -5.0, 3.0, 0.0]).double()
    found = normal_scores(torch.stack([column, torch.full((5,), 7.0).double()], dim=1))
    expected = np.array([NormalDist().inv_cdf(share) for share in (0.6, 0.9, 0.1, 0.6, 0.3)])
    np.testing.assert_allclose(found[:, 0], expected / expected.std(), rtol=1e-12)
    assert found[:, 1].tolist() == [0.0] * 5


def test_monotone_changes_of_a_table_with_long_tails_do_not_matter():
    x = normals(300, 4)
    y = (x.sum(1) > 0).long()
    y[:15] = 1 - y[:15]
    found = lw.label_issues((3 * x).exp().numpy(), y.numpy())
    assert int((found.ranked(15) < 15).sum()) >= 12  # those near the boundary cannot be told


def digits(share, kind, seed):
    from sklearn.datasets import load_digits

    images, truth = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(truth), generator=generator)[:1000]
    x, truth = torch.from_numpy(images[order] / 16).float(), torch.from_numpy(truth[order]).long()
    wrong = torch.randperm(1000, generator=generator)[: round(1000 * share)]
    steps = torch.randint(1, 10, (len(wrong),), generator=generator) if kind == "symmetric" else 1
    labels = truth.clone()
    labels[wrong] = (labels[wrong] + steps) % 10
    return x, labels, wrong


@pytest.mark.parametrize("kind", ["symmetric", "class-dependent"])
def test_planted_labels_are_found_and_counted(kind):
    from lapwing.training import adam, train

    x, labels, wrong = digits(0.1, kind, 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = train(model, (x, labels), lw.Categorical(), optimiser=adam(3e-3), epochs=30, progress=False)
    before = [weight.clone() for weight in model.parameters()]
    found = lw.label_issues(model, (x, labels), lw.Categorical())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert float(torch.isin(found.ranked(100), wrong).double().mean()) > 0.85
    assert abs(found.wrong_labels.value - 100) < 35  # figures of other seeds: 75 to 110
    assert len(found.ranked()) == round(found.wrong_labels.value)
    again = lw.label_issues(model, (x, labels), lw.Categorical())
    assert torch.equal(found.probabilities, again.probabilities)


def test_planted_labels_of_a_table_are_found_whatever_they_are_called():
    x, labels, wrong = digits(0.1, "symmetric", 6)
    names = np.array([f"digit {number}" for number in range(10)])
    found = lw.label_issues(x.numpy(), names[labels.numpy()])
    assert float(torch.isin(found.ranked(100), wrong).double().mean()) > 0.85
    assert abs(found.wrong_labels.value - 100) < 35
    assert found.suggested[0].startswith("digit")
    assert found.classes.tolist() == names.tolist()


def test_tables_with_text_and_missing_values_are_read():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": [1.0, 1.1, None, 5.0, 5.1, 5.2] * 5, "colour": ["red"] * 15 + ["blue"] * 15})
    labels = ["small", "small", "small", "large", "large", "large"] * 5
    labels[3] = "small"
    assert lw.label_issues(frame, labels).ranked(1).tolist() == [3]


def test_what_cannot_be_ranked_is_refused():
    model, x = network(), normals(7, 4)
    with pytest.raises(ValueError, match="is for class labels, with Categorical"):
        lw.label_issues(model, (x, x[:, :3]), lw.Gaussian(1.0))
    with pytest.raises(ValueError, match="class numbers from 0 to 2"):
        lw.label_issues(model, (x, torch.full((7,), 3)), lw.Categorical())
    with pytest.raises(ValueError, match="7 rows and there are 6 labels"):
        lw.label_issues(x.numpy(), [0, 1] * 3)
    with pytest.raises(ValueError, match="expected two classes at least"):
        lw.label_issues(x.numpy(), [1] * 7)
    with pytest.raises(ValueError, match="expected 0 or more"):
        LabelIssues(torch.tensor([0]), torch.tensor([[0.5, 0.5]]), np.arange(2)).ranked(-1)


def test_outputs_with_more_axes_are_refused():
    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x)[:, None, :]

    with torch.random.fork_rng(devices=[]):
        pixels = Pixels().eval()
    with pytest.raises(ValueError, match="expected \\(examples, classes\\)"):
        lw.label_issues(pixels, (torch.zeros(5, 4), torch.zeros(5).long()), lw.Categorical())

"""Subnetworks: the nearest by the diagonal, nested ones, and a model that is left alone."""

import pytest
import torch
from torch import Tensor, nn

from lapwing import Diagonal, Exact, Gaussian, Isotropic, fit
from lapwing.bayes.likelihoods import Categorical
from lapwing.network.subnetwork import subnetwork, swag_variances
from tests.network.networks import NETWORKS, normal
from tests.network.test_linearisation import dense_jacobian


def problem(name: str = "mlp") -> tuple[nn.Module, Tensor, Tensor]:
    model, inputs = NETWORKS[name]()
    outputs = model(inputs).detach()
    return model, inputs, outputs + 0.3 * normal(*outputs.shape, seed=9)


def wasserstein(variances: Tensor, others: Tensor) -> float:
    """W₂² between zero-mean Gaussians with diagonal covariances, by the general formula with matrix roots."""
    one, other = torch.diag(variances), torch.diag(others)
    values, vectors = torch.linalg.eigh(one)
    root = vectors @ torch.diag(values.clamp_min(0).sqrt()) @ vectors.mT
    cross = torch.linalg.eigvalsh(root @ other @ root).clamp_min(0).sqrt().sum()
    return float(one.trace() + other.trace() - 2 * cross)


def test_the_diagonal_mask_is_the_nearest_in_wasserstein_distance(generator):
    """The distance to a subnetwork is the sum of the variances left out, and no other mask of the size is nearer."""
    model, inputs, targets = problem()
    curvature = dense_jacobian(model, inputs).square().sum(0) / 0.5**2
    variance = 1 / (curvature + 0.7)
    mask = subnetwork(model, (inputs, targets), Gaussian(0.5), 11, score="diagonal")
    assert mask.dtype == torch.bool
    assert int(mask.sum()) == 11
    nearest = wasserstein(variance, variance * mask)
    assert nearest == pytest.approx(float(variance[~mask].sum()), rel=1e-10)
    for _ in range(20):
        other = torch.zeros(len(mask), dtype=torch.bool)
        other[torch.randperm(len(mask), generator=generator)[:11]] = True
        assert wasserstein(variance, variance * other) >= nearest * (1 - 1e-12)


def test_the_predictive_mask_leaves_out_the_least_variance_of_the_outputs():
    model, inputs, targets = problem()
    jacobian = dense_jacobian(model, inputs)
    variance = 1 / (jacobian.square().sum(0) / 0.5**2 + 0.7)
    outputs = (jacobian.square() * variance).sum(0)  # what each weight adds to the outputs' variances
    mask = subnetwork(model, (inputs, targets), Gaussian(0.5), 11, score="predictive")
    assert float(outputs[mask].min()) >= float(outputs[~mask].max())


def gap_problem(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A small ReLU network trained on a curve with a gap in the middle."""
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1)).double()
    for number, weight in enumerate(model.parameters()):
        with torch.no_grad():
            weight.copy_(normal(*weight.shape, seed=100 * seed + number) * (2 / weight.shape[-1]) ** 0.5)
    x = torch.cat([torch.linspace(-2, -0.8, 40), torch.linspace(0.8, 2, 40)])[:, None].double()
    y = torch.sin(2 * x) + 0.1 * normal(80, 1, seed=seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        (model(x) - y).square().mean().backward()
        optimiser.step()
    return model.eval(), x, y


@pytest.mark.slow
def test_selected_weights_hold_more_of_the_variance_in_a_gap_than_random_ones():
    """ReLU, 5 % of 481 weights, ten networks: SWAG's and the predictive choice against chance and a diagonal.

    At one precision a diagonal over all weights has the largest error bars in the gap, and everywhere else: what it lacks
    is contrast. With the precision of each at the maximum of its own evidence it has the smallest.
    """
    gap, found = torch.linspace(-0.6, 0.6, 13, dtype=torch.float64)[:, None], []
    for seed in range(10):
        model, x, y = gap_problem(seed)
        likelihood, p = Gaussian(0.1), sum(weight.numel() for weight in model.parameters())
        batches, chance = [(x[i::4], y[i::4]) for i in range(4)], torch.zeros(p, dtype=torch.bool)
        chance[torch.randperm(p, generator=torch.Generator().manual_seed(seed))[: p // 20]] = True
        ways = [
            {"select": subnetwork(model, batches, likelihood, p // 20, learning_rate=1e-4, snapshots=10)},
            {"select": subnetwork(model, batches, likelihood, p // 20, score="predictive")},
            {"select": chance},
            {"method": Diagonal()},
        ]
        each = []
        for prior in (Isotropic(1.0), Isotropic()):
            posteriors = [fit(model, (x, y), likelihood, prior=prior, draws=0, **way) for way in ways]
            inside = [float(posterior.predict(x).epistemic_variance.mean()) for posterior in posteriors]
            between = [float(posterior.predict(gap).epistemic_variance.mean()) for posterior in posteriors]
            each.append([between, inside])
        found.append(each)
    (fixed, at_data), (tuned, _) = torch.tensor(found).mean(0)
    swag, predictive, random, diagonal = range(4)
    assert float(fixed[[swag, predictive]].min()) > 3 * float(fixed[random])
    assert float(tuned[[swag, predictive]].min()) > float(tuned[diagonal])
    assert float((fixed / at_data)[[swag, predictive]].min()) > float((fixed / at_data)[diagonal])
    assert float(fixed[diagonal]) > float(fixed[[swag, predictive]].max())


def test_class_labels_are_scored_by_their_own_curvature():
    model, inputs, _ = problem("cnn")
    labels = torch.tensor([0, 2, 1, 1, 0, 2, 2, 1])
    jacobian = dense_jacobian(model, inputs).reshape(8, 3, -1)
    p = model(inputs).detach().softmax(1)
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    curvature = torch.einsum("ncp,ncd,ndp->p", jacobian, hessian, jacobian)
    mask = subnetwork(model, [(inputs[:3], labels[:3]), (inputs[3:], labels[3:])], Categorical(), 20, score="diagonal")
    assert float(curvature[mask].max()) <= float(curvature[~mask].min())


def test_all_weights_are_the_full_posterior():
    model, inputs, targets = problem()
    p = sum(weight.numel() for weight in model.parameters())
    mask = subnetwork(model, (inputs, targets), Gaussian(0.5), p, score="diagonal")
    whole, part = (
        fit(model, (inputs, targets), Gaussian(0.5), prior=Isotropic(0.7), select=select, draws=0)
        for select in (None, mask)
    )
    torch.testing.assert_close(part.covariance, whole.covariance, rtol=1e-12, atol=0)


def test_predictive_covariances_grow_with_the_subnetwork():
    """At a fixed precision a smaller part never has more variance, in any direction."""
    model, inputs, targets = problem("cnn")
    new = normal(4, *inputs.shape[1:], seed=20)
    rows = dense_jacobian(model, new)
    before = None
    for size in (5, 40, 120, rows.shape[1]):
        mask = subnetwork(model, (inputs, targets), Gaussian(0.5), size, score="diagonal")
        post = fit(
            model, (inputs, targets), Gaussian(0.5), prior=Isotropic(0.7), select=mask, draws=0, method=Exact("primal")
        )
        now = rows[:, mask] @ post.covariance @ rows[:, mask].mT
        if before is not None:
            assert float(torch.linalg.eigvalsh(now - before).min()) >= -1e-8
            assert float((now - before).trace()) > 1e-6
        before = now


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_swag_leaves_the_model_alone_and_repeats(name):
    """With the gradients, the mode and (by a fixture) the global random state."""
    model, inputs, targets = problem(name)
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    data = [(inputs[:3], targets[:3]), (inputs[3:], targets[3:])]
    masks = [subnetwork(model, data, Gaussian(0.5), 9, snapshots=4, learning_rate=1e-3) for _ in range(2)]
    assert torch.equal(*masks)
    assert int(masks[0].sum()) == 9
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(next(model.parameters()).grad, torch.ones_like(next(model.parameters())))
    assert not any(module.training for module in model.modules())


def test_swag_variances_are_those_of_the_iterates():
    """One batch and no momentum: iterates of plain gradient descent, written out."""
    model, inputs, targets = problem()
    found = swag_variances(
        model, (inputs, targets), Gaussian(0.5), snapshots=5, learning_rate=1e-2, momentum=0.0, weight_decay=0.1
    )
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    iterates = []
    for _ in range(5):
        outputs = torch.func.functional_call(model, weights, (inputs,))
        loss = 0.5 * (outputs - targets).square().sum() / 0.25 / len(inputs)
        loss = loss + 0.05 * sum(weight.square().sum() for weight in weights.values())
        gradients = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            name: (weight - 1e-2 * gradient).detach().requires_grad_()
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        iterates.append(torch.cat([weight.detach().reshape(-1) for weight in weights.values()]))
    torch.testing.assert_close(found, torch.stack(iterates).var(0, unbiased=False), rtol=1e-9, atol=1e-18)


def test_a_choice_of_names_limits_the_mask():
    model, inputs, targets = problem()
    mask = subnetwork(
        model, (inputs, targets), Gaussian(0.5), 6, score="diagonal", select=lambda name: name.endswith("weight")
    )
    names = [name for name, weight in model.named_parameters() for _ in range(weight.numel())]
    assert {name for name, chosen in zip(names, mask, strict=True) if chosen} <= {"0.weight", "2.weight"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0, expected 1 to 32"),
        ({"size": 33}, "size is 33, expected 1 to 32"),
        ({"size": 3, "score": "largest"}, "score is 'largest'"),
        ({"size": 3, "score": "diagonal", "snapshots": 3}, "with options"),
        ({"size": 3, "snapshots": 1}, "snapshots is 1, expected at least 2"),
        ({"size": 3, "learning_rate": 1e6}, "diverged at learning_rate=1000000.0"),
    ],
)
def test_bad_input_gets_a_clear_error(options, message):
    model, inputs, targets = problem()
    with pytest.raises(ValueError, match=message):
        subnetwork(model, (inputs, targets), Gaussian(0.5), **options)

import math
from dataclasses import replace

import pytest
import torch

from lapwing.studies.symmetry import Affine, JointModel, JointSettings, Training
from lapwing.studies.symmetry.inference import seeded
from lapwing.studies.symmetry.joint import Joint
from lapwing.studies.symmetry.prototypes import importance_weighted, log_normal
from lapwing.studies.symmetry.study import orbit_ratio, rotated
from lapwing.studies.symmetry.warping import checked, warp
from tests.studies.symmetry.pictures import digits, kl, smooth

WHOLE = Affine.of(rotation=math.pi)
SMALL = JointSettings(latent=2, width=24, copies=5, first_beta=4.0, training=Training(40, 64, learning_rate=3e-3))


@pytest.fixture(scope="module")
def pictures():
    return rotated(digits((2, 3))[0], 30, seed=1)[0].double()


@pytest.fixture(scope="module")
def model(pictures):
    return JointModel(WHOLE, SMALL).fit(pictures, progress=False)


def perturbed(settings: JointSettings) -> Joint:
    """Networks away from their start, in float64."""
    joint = seeded(1, lambda: Joint(WHOLE, torch.Size((1, 5, 5)), settings)).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in joint.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        joint.log_noise_std.fill_(-0.5)
    return joint


def log_evidence(joint: Joint, image: torch.Tensor, points: int = 30, angles: int = 60) -> float:
    """log p(x) by quadrature over both latents, within ±5 standard deviations, and the circle."""
    place = (torch.arange(points).double() + 0.5) / points * 10 - 5
    z = torch.cartesian_prod(place, place)
    turns = ((torch.arange(angles).double() + 0.5) / angles * 2 - 1) * math.pi
    prototypes, total = joint.decode(z), []
    for turn in turns:
        eta = turn.expand(len(z), 1)
        log_x = joint.log_likelihood(image.expand(len(z), -1, -1, -1), warp(prototypes, joint.group.matrix(eta)))
        total.append(log_normal(z) + joint.p(prototypes, eta) + log_x)
    cell = (10 / points) ** 2 * 2 * math.pi / angles
    return float(torch.stack(total).flatten().logsumexp(0) + math.log(cell))


@pytest.mark.parametrize("conditional", [True, False])
def test_bounds_lie_below_the_evidence_and_reach_it(conditional):
    joint = perturbed(replace(SMALL, conditional=conditional))
    image, found = smooth(5, seed=2), JointModel(WHOLE, joint.settings, joint)
    with torch.no_grad():
        exact = log_evidence(joint, checked(image, turned=True))  # as the model reads it
    bounds = [found.log_prob(image, draws=20, importance=count, seed=3)[0] for count in (1, 10, 100)]
    assert bounds[0].value < bounds[1].value < exact + 5 * bounds[1].standard_error
    assert abs(bounds[2].value - exact) < 5 * bounds[2].standard_error + 0.05  # 0.05: what 100 weights leave


def test_without_poses_it_is_a_plain_autoencoder():
    joint, image = perturbed(replace(SMALL, posed=False)), smooth(5, seed=2)
    place = (torch.arange(60).double() + 0.5) / 60 * 10 - 5
    z = torch.cartesian_prod(place, place)
    with torch.no_grad():
        read = checked(image, turned=True)
        inside = [(row, column) for row in range(5) for column in range(5) if (row - 2) ** 2 + (column - 2) ** 2 < 6]
        rows, columns = torch.tensor(inside).mT
        residual = ((read - joint.decode(z)) / math.exp(-0.5))[:, 0, rows, columns]
        log_joint = log_normal(z) + log_normal(residual) + len(inside) * 0.5
        exact = float(log_joint.logsumexp(0) + 2 * math.log(10 / 60))
    found = [
        JointModel(WHOLE, joint.settings, joint).log_prob(image, draws=20, importance=count)[0] for count in (1, 200)
    ]
    assert found[0].value < exact + 5 * found[0].standard_error
    assert abs(found[1].value - exact) < 5 * found[1].standard_error + 0.05
    with pytest.raises(ValueError, match="has no η"):
        JointModel(WHOLE, joint.settings, joint).transformation(image)


def test_the_term_of_poses_is_the_divergence_of_the_two_flows():
    joint, image = perturbed(SMALL), smooth(5, seed=2)
    turns = ((torch.arange(2000).double() + 0.5) / 2000 * 2 - 1) * math.pi
    with torch.no_grad():
        prototype = joint.decode(torch.tensor([[0.3, -0.8]]).double())
        log_q, log_p = joint.q(image, turns[:, None, None])[:, 0], joint.p(prototype, turns[:, None, None])[:, 0]
        exact = float((log_q.exp() * (log_q - log_p)).mean() * 2 * math.pi)
        drawn = joint.q.draw(image, 4000, torch.Generator().manual_seed(0))
        found = kl(lambda eta: joint.q(image, eta), lambda eta: joint.p(prototype, eta), drawn)
    assert exact > 0.05
    assert abs(found.value - exact) < 5 * found.standard_error


@pytest.mark.parametrize("shape", ["spline", "gaussian"])
def test_every_weight_has_a_finite_gradient(shape, pictures):
    joint = seeded(0, lambda: Joint(WHOLE, torch.Size((1, 14, 14)), replace(SMALL, shape=shape))).double()
    joint(pictures[:8], torch.Generator().manual_seed(0)).backward()
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in joint.parameters())
    assert joint.encoder[1].weight.grad.abs().max() > 0
    assert joint.seen == 1


def test_learning_raises_the_bound(model, pictures):
    once = JointModel(WHOLE, replace(SMALL, training=Training(1, len(pictures)))).fit(pictures, progress=False)
    before, after = (one.log_prob(pictures[:40]) for one in (once, model))
    gain = (after.value - before.value).mean()
    error = (after.standard_error.square() + before.standard_error.square()).sum().sqrt() / 40
    assert gain > 5 * error
    assert gain > 10


def test_an_encoder_that_saw_the_whole_circle_forgets_the_angle():
    """The same weights, averaged over all of the circle, a part or none of it."""
    images = rotated(digits((2, 3))[0][:60], 180, seed=3)[0].double()
    turned = warp(images, WHOLE.matrix(torch.full((60, 1), math.pi / 2).double()))
    spread = []
    for reach in (0.0, 1 / 3, 1.0):
        joint = seeded(0, lambda r=reach: Joint(WHOLE, torch.Size((1, 14, 14)), replace(SMALL, reach=r, copies=64)))
        with torch.no_grad():
            first, second = (
                joint.double().encode(part, torch.Generator().manual_seed(seed))[0]
                for seed, part in enumerate((images, turned))
            )
        spread.append(float((first - second).square().mean() / first.var()))
    assert spread[0] > spread[1] > spread[2]


def test_a_fit_is_seeded_and_says_what_it_needs(model, pictures):
    again = JointModel(WHOLE, SMALL).fit(pictures, progress=False)
    assert torch.equal(again.prototype(pictures), model.prototype(pictures))
    assert torch.equal(again.transformation(pictures), model.transformation(pictures))
    assert math.isfinite(orbit_ratio(model, pictures, torch.arange(len(pictures)) % 2))
    with pytest.raises(ValueError, match="at least 10"):
        JointModel().fit(pictures[:5])
    with pytest.raises(ValueError, match="call fit"):
        JointModel().prototype(pictures)
    with pytest.raises(ValueError, match="the model learnt from"):
        model.prototype(pictures[..., 1:-1, 1:-1])
    with pytest.raises(ValueError, match="at least two draws"):
        model.log_prob(pictures[:3], draws=1)
    with pytest.raises(ValueError, match="reach from 0 to 1"):
        JointSettings(reach=2)
    with pytest.raises(ValueError, match="at least one"):
        JointSettings(first_beta=0.5)


def test_importance_weights_of_a_gaussian_give_its_evidence():
    """x = z + noise, both N(0, 1), with q the prior: log p(x) is that of N(0, 2)."""
    x, z = (
        torch.tensor([0.5, -1.0, 2.0]).double(),
        torch.randn(4000 * 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    )
    weights = torch.distributions.Normal(z, 1.0).log_prob(x)
    exact = torch.distributions.Normal(0.0, math.sqrt(2)).log_prob(x)
    elbo = -(math.log(2 * math.pi) + x.square() + 1) / 2
    one, eight = importance_weighted(weights, 1), importance_weighted(weights, 8)
    assert ((one.value - elbo).abs() < 5 * one.standard_error).all()
    assert ((eight.value > one.value) & (eight.value < exact)).all()

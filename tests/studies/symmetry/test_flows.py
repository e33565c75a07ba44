import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.inference import seeded
from lapwing.studies.symmetry.poses import Poses
from lapwing.studies.symmetry.prototypes import Subspace
from tests.studies.symmetry.pictures import kl

TURNS = Affine.of(rotation=math.pi)
MIXED = Affine.of(shift_x=0.25, rotation=math.pi, scale=0.3)
PICTURES = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def flow(group: Affine, seed: int = 0, strength: float = 0.15, **options) -> Poses:
    found = seeded(seed, lambda: Poses(group, 25, 24, **options)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # away from the identity, which a fresh flow is
        for weight in found.parameters():
            weight += strength * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return found


@pytest.mark.parametrize("shape", ["spline", "gaussian"])
def test_a_density_over_angles_integrates_to_one(shape):
    poses = flow(TURNS, shape=shape)
    if shape == "gaussian":  # narrow, so that its mass lies within one turn
        with torch.no_grad():
            poses.head.bias += torch.tensor([0.0, -3.0])
            poses.head.weight *= 0.1
    angles = (torch.arange(4000).double() + 0.5) / 4000 * 2 * math.pi - math.pi
    with torch.no_grad():
        density = poses(PICTURES, angles[:, None, None].expand(-1, 3, 1)).exp()
    assert torch.allclose(density.mean(0) * 2 * math.pi, torch.ones(3).double(), atol=1e-3)


def test_a_density_over_angles_and_scales_integrates_to_one():
    poses = flow(Affine.of(rotation=math.pi, scale=0.3))
    turns = (torch.arange(160).double() + 0.5) / 160 * 2 * math.pi - math.pi
    scales = ((torch.arange(500).double() + 0.5) / 500 * 2 - 1) * 8 * 0.3
    grid = torch.cartesian_prod(turns, scales)[:, None, :].expand(-1, 3, 2)
    with torch.no_grad():
        density = poses(PICTURES, grid).exp()
    assert torch.allclose(density.sum(0) * (2 * math.pi / 160) * (16 * 0.3 / 500), torch.ones(3).double(), atol=5e-3)


@pytest.mark.parametrize("group", [TURNS, MIXED], ids=["circle", "mixed"])
def test_inverse_undoes_forward(group):
    poses = flow(group)
    context = poses.context(PICTURES)
    angles = torch.tensor([[-3.1], [0.2], [2.9]]).double()
    circular = poses.circular(context).transform
    back = circular.inv(circular(angles)) - angles
    assert torch.allclose(torch.remainder(back + math.pi, 2 * math.pi) - math.pi, torch.zeros(3, 1).double(), atol=1e-5)
    if group is MIXED:
        rest = torch.tensor([[-2.0, 0.3], [0.1, 1.7], [4.0, -4.5]]).double()
        straight = poses.straight(poses._given(context, angles)).transform
        assert torch.allclose(straight.inv(straight(rest)), rest, atol=1e-5)


@pytest.mark.parametrize("shape", ["spline", "gaussian"])
def test_draws_follow_the_density(shape):
    poses = flow(MIXED, seed=3, shape=shape)
    n = 8000
    with torch.no_grad():
        drawn = poses.draw(PICTURES[:2], n, torch.Generator().manual_seed(0))
        # E_p[f] two ways: draws, and uniform draws weighted by the density, of which the volume is known
        low, high = drawn.amin((0, 1)) - 0.05, drawn.amax((0, 1)) + 0.05
        unit = torch.rand(60000, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        weight = poses(PICTURES[:2], low + unit * (high - low)).exp() * (high - low).prod()
    if shape == "spline":
        standard_error = weight.std(0) / math.sqrt(len(weight))
        assert ((weight.mean(0) - 1).abs() < 5 * standard_error + 2e-3).all()  # 2e-3: the mass beyond the extremes
        test = torch.cat([(low + unit * (high - low)).cos(), (low + unit * (high - low)).sin()], dim=-1)
        theirs = (test * weight[..., None]).mean(0) / weight.mean(0)[:, None]
        spread = ((test - theirs) * weight[..., None]).std(0) / math.sqrt(len(weight))
        ours = torch.cat([drawn.cos(), drawn.sin()], dim=-1)
        gap = (ours.mean(0) - theirs).abs()
        assert (gap < 5 * (spread.square() + ours.var(0) / n).sqrt() + 2e-3).all()
    assert (drawn[..., 1].abs() <= math.pi).all()


def test_draws_are_the_same_for_a_seed_and_leave_the_global_state():
    poses = flow(MIXED)
    first, again = (poses.draw(PICTURES, 4, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.requires_grad


def test_flows_of_one_base_and_other_splines_differ():
    q, p = flow(TURNS, seed=0, strength=0.25), flow(TURNS, seed=1, strength=0.25)
    with torch.no_grad():
        drawn = q.draw(PICTURES, 2000, torch.Generator().manual_seed(0))[:, 0]
        one = PICTURES[:1].expand(2000, -1, -1, -1)
        found = kl(lambda eta: q(one, eta), lambda eta: p(one, eta), drawn)
        angles = (torch.arange(2000).double() + 0.5) / 2000 * 2 * math.pi - math.pi
        log_q, log_p = (poses(one, angles[:, None]) for poses in (q, p))
        exact = float((log_q.exp() * (log_q - log_p)).mean() * 2 * math.pi)
    base_q, base_p = (poses.circular(poses.context(PICTURES)).base for poses in (q, p))
    assert torch.equal(base_q.log_prob(torch.zeros(3, 1)), base_p.log_prob(torch.zeros(3, 1)))
    assert exact > 0.1
    assert abs(found.value - exact) < 5 * found.standard_error
    assert kl(lambda eta: q(one, eta), lambda eta: q(one, eta), drawn).value == 0


def test_without_the_picture_all_densities_are_one():
    poses = flow(TURNS, conditional=False)
    eta = torch.tensor([0.4]).double().expand(3, 1)
    assert torch.allclose(poses(PICTURES, eta), poses(PICTURES[:1], eta[:1]).expand(3))
    assert flow(TURNS)(PICTURES, eta).std() > 0.01


def test_an_unknown_shape_is_refused():
    with pytest.raises(ValueError, match="expected 'spline' or 'gaussian'"):
        Poses(TURNS, 25, 8, shape="cauchy")


def test_the_linear_model_of_prototypes_is_its_dense_gaussian():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator).double() @ torch.randn(3, 7, generator=generator).double()
    x = x + 0.1 * torch.randn(60, 7, generator=generator).double() + 1
    model = Subspace.of(x[:40], x[40:])
    covariance = model.basis @ model.basis.mT + model.variance * torch.eye(7).double()
    dense = MultivariateNormal(model.mean, covariance)
    assert torch.allclose(model.log_prob(x), dense.log_prob(x), atol=1e-8)
    mean, root = model.posterior(x)
    whole = torch.linalg.inv(torch.eye(len(root)).double() + model.basis.mT @ model.basis / model.variance)
    assert torch.allclose(root @ root.mT, whole, atol=1e-10)
    assert torch.allclose(mean, (x - model.mean) @ model.basis @ whole / model.variance, atol=1e-10)


def test_too_few_prototypes_are_refused():
    with pytest.raises(ValueError, match="too few"):
        Subspace.of(torch.eye(5)[:2], torch.eye(5)[:2])

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from lapwing.studies.symmetry import Affine, Settings, SymmetryModel, Training, warp
from lapwing.studies.symmetry.inference import Poser, seeded
from lapwing.studies.symmetry.invariance import averaged
from lapwing.studies.symmetry.model import half_width
from lapwing.studies.symmetry.study import (
    density_of_angle,
    half_a_turn,
    modes,
    orbit_ratio,
    pose_scores,
    rotated,
    turns,
    widths,
)  # fmt: skip
from lapwing.studies.symmetry.study import upside_down as upside_down_share
from lapwing.training import Diverged
from tests.studies.symmetry.pictures import digits, smooth, turned

WHOLE = Affine.of(rotation=math.pi)
TINY = Settings(12, Training(6, 16), Training(6, 16))
RANGES = {0: 400, 45: 200, 90: 200}  # steps: a narrow density takes longer
BARS = 400  # steps: after 120 the density of a digit is still five times too wide


def small(steps: int = 120, **options) -> Settings:
    return Settings(
        128, Training(100, learning_rate=2e-3), Training(steps, learning_rate=5e-3, weight_decay=3e-2), **options
    )


@pytest.fixture(scope="module")
def data():
    return digits((1, 2, 3, 7))


@pytest.fixture(scope="module")
def models(data):
    """One network that infers poses, and p(η | x̂) of data that were turned by more and more."""
    images, _ = data
    first = SymmetryModel(WHOLE, small(RANGES[45])).fit(rotated(images, 45, seed=1)[0], progress=False)
    poser = first.found.bound.poser
    found = {
        degrees: SymmetryModel(WHOLE, small(steps)).fit(
            rotated(images, degrees, seed=2)[0], poser=poser, progress=False
        )
        for degrees, steps in RANGES.items()
        if degrees != 45
    }
    return first, found | {45: first}


@pytest.fixture(scope="module")
def tiny():
    images, _ = digits((2, 3))
    return SymmetryModel(Affine.of(rotation=math.pi, scale=0.2), TINY).fit(images[:40], progress=False), images[:40]


def test_averaging_over_more_rotations_is_more_invariant():
    images = smooth(33, seed=4)
    network = seeded(
        3,
        lambda: torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(33 * 33, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5)
        ),
    )
    network = network.double()
    angles = torch.linspace(0, 2 * math.pi, 14, dtype=torch.float64)[:-1] + 0.1
    copies = torch.cat([warp(images, WHOLE.matrix(angle.reshape(1, 1))) for angle in angles])
    with torch.no_grad():
        size = network(copies).square().mean().sqrt()
        spread = [float(averaged(network, copies, count).std(0).mean() / size) for count in (1, 4, 32)]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 0.01


def test_prototypes_of_one_orbit_are_alike(models, data):
    images, labels = data
    assert orbit_ratio(models[0], rotated(images, 45, seed=1)[0], labels) < 0.3
    assert orbit_ratio(models[0], images, labels, 0) < 1e-12  # copies that are not turned


def test_inferred_angles_follow_applied_ones(models, data):
    assert turns(models[0], rotated(data[0], 45, seed=1)[0], 45).correlation > 0.9


def test_data_that_are_turned_further_have_wider_poses(models):
    found = [math.degrees(models[1][degrees].extent()["rotation"].value) for degrees in RANGES]
    assert sorted(found) == found
    assert found[0] < 15
    assert all(abs(width - 0.9 * degrees) < 20 for width, degrees in zip(found, RANGES, strict=True))


@pytest.fixture(scope="module")
def bars():
    """Bars that look the same upside down, and digits 2 that do not; all within ±20° of one pose."""
    generator = torch.Generator().manual_seed(0)
    place = torch.linspace(-1, 1, 14)
    y, x = torch.meshgrid(place, place, indexing="ij")
    lengths, thick = (torch.rand(177, 1, 1, 1, generator=generator) for _ in range(2))
    bar = torch.exp(-((y / (0.45 + 0.2 * lengths)) ** 4) - (x / (0.15 + 0.1 * thick)) ** 2)
    two = digits((2,))[0]
    images, _ = turned(torch.cat([bar, two]), 20, seed=3)
    return images, torch.arange(354) // 177


@pytest.fixture(scope="module")
def upside_down(bars, models):
    return SymmetryModel(WHOLE, small(BARS)).fit(bars[0], poser=models[0].found.bound.poser, progress=False)


@pytest.mark.slow
def test_what_looks_alike_upside_down_has_two_poses(upside_down, bars):
    images, kinds = bars
    _, density = density_of_angle(upside_down, upside_down.prototype(images), 361)
    bar, two = density[kinds == 0].mean(0), density[kinds == 1]
    first, second = modes(bar)
    assert abs(abs(second - first) - 180) <= 15
    assert half_a_turn(bar)
    assert sum(len(modes(row)) == 1 for row in two) > 0.8 * len(two)
    assert upside_down_share(upside_down, images[kinds == 0]) > 0.8
    assert upside_down_share(upside_down, images[kinds == 1]) < 0.2


@pytest.mark.slow
def test_a_gaussian_cannot_have_two_poses(upside_down, bars):
    images, kinds = bars
    gaussian = SymmetryModel(WHOLE, small(BARS, shape="gaussian"))
    gaussian = gaussian.fit(images, poser=upside_down.found.bound.poser, progress=False)
    gap = (pose_scores(upside_down, images, seed=9) - pose_scores(gaussian, images, seed=9))[kinds == 0]
    assert gap.mean() > 5 * gap.std() / math.sqrt(len(gap))
    assert gap.mean() > 0.3


@pytest.mark.slow
def test_one_density_for_all_prototypes_is_worse(upside_down, bars):
    images, kinds = bars
    alone = SymmetryModel(WHOLE, small(BARS, conditional=False))
    alone = alone.fit(images, poser=upside_down.found.bound.poser, progress=False)
    gap = (pose_scores(upside_down, images, seed=9) - pose_scores(alone, images, seed=9))[kinds == 1]
    assert gap.mean() > 5 * gap.std() / math.sqrt(len(gap))
    twos = images[kinds == 1][:50]
    assert abs(widths(upside_down, twos).median() - 0.9 * 20) < 10  # degrees: they were turned by up to 20
    assert widths(alone, twos).median() > 2 * widths(upside_down, twos).median()


def test_a_network_that_saw_a_part_of_the_group_splits_prototypes(models, data):
    images, labels = rotated(data[0], 45, seed=1)[0], data[1]
    settings = replace(small(), inference=Training(60, learning_rate=2e-3), poses=Training(5))
    narrow = SymmetryModel(Affine.of(rotation=math.radians(10)), settings).fit(images, progress=False)
    assert orbit_ratio(narrow, images, labels) > 2 * orbit_ratio(models[0], images, labels)


def test_poses_take_prototypes_back_to_pictures(models, data):
    images, model = rotated(data[0], 45, seed=1)[0][:20], models[0]
    back = warp(model.prototype(images), WHOLE.matrix(model.transformation(images)))
    assert (back - images).square().mean() < 0.1 * images.var()  # read twice, which blurs
    assert (model.reconstruct(images) - images).square().mean() < 0.5 * images.var()


def test_new_poses_are_of_the_same_prototype(models, data):
    images, model = rotated(data[0], 45, seed=1)[0][:30], models[0]
    new = model.resample(images, 3, seed=1)
    assert new.shape == (3, 30, 1, 14, 14)
    assert torch.equal(new, model.resample(images, 3, seed=1))
    again = model.prototype(new[0].clamp(0, 1))
    assert (again - model.prototype(images)).square().mean() < 0.5 * (new[0] - images).square().mean()


def test_the_bound_is_below_the_density_and_its_error_covers(models, data):
    images, model = rotated(data[0], 45, seed=1)[0][:6], models[0]
    few, many = model.log_prob(images, draws=20, seed=1), model.log_prob(images, draws=100, seed=2)
    gap = (few.value - many.value).abs()
    assert (gap < 6 * (few.standard_error.square() + many.standard_error.square()).sqrt()).all()
    weights, _ = model.found.bound.terms(images, 100, torch.Generator().manual_seed(2))
    importance = weights.logsumexp(0) - math.log(100)
    assert (importance >= many.value).all()


@pytest.mark.parametrize("turn", [0, 17, 95, 178])
def test_modes_of_known_densities(turn):
    """Plateaus 90° wide with a ripple that has a maximum of its own at either end: 2° a bin."""
    angles = (torch.arange(180).double() * 2 - 180 - 2 * turn).deg2rad()
    ripple = 1 + 0.1 * (8 * angles).sin()
    plateau = [((angles - centre).cos() > math.cos(math.pi / 4)) * ripple for centre in (0.0, math.pi, 1.2)]
    there = (90 + turn) % 180
    (one,) = modes(plateau[0])
    assert min(abs(one - there), 180 - abs(one - there)) <= 1
    assert half_a_turn(plateau[0] + plateau[1])
    assert half_a_turn(plateau[0] + 0.4 * plateau[1])
    assert not half_a_turn(plateau[0])
    assert not half_a_turn(plateau[0] + 0.1 * plateau[1])
    assert not half_a_turn(plateau[0] + plateau[2])  # 69° apart, and so one stretch
    assert not half_a_turn(ripple)
    assert modes(ripple) == []


def test_half_widths_of_known_spreads():
    unit = torch.rand(3, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    around = torch.remainder((2 * unit - 1) * 0.5 + math.pi + math.pi, 2 * math.pi) - math.pi  # across the border
    assert torch.allclose(half_width(around, circular=True), torch.full((3,), 0.45).double(), atol=0.02)
    assert (half_width(around, circular=False) > 2).all()
    assert torch.allclose(half_width(unit * 4, circular=False), torch.full((3,), 1.8).double(), atol=0.08)


def test_a_saved_model_is_the_same(tiny, tmp_path):
    model, images = tiny
    again = SymmetryModel.load(model.save(tmp_path / "model.safetensors"))
    assert torch.equal(again.transformation(images), model.transformation(images))
    assert torch.equal(again.resample(images, 2), model.resample(images, 2))
    assert torch.equal(again.log_prob(images).value, model.log_prob(images).value)
    assert again.extent() == model.extent()
    assert again.settings == model.settings


def test_files_that_are_no_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        SymmetryModel.load(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(ValueError, match="cannot be read"):
        SymmetryModel.load(tmp_path / "text")


def test_a_group_that_is_not_closed_is_fitted_too():
    group = Affine.of(rotation=math.pi, scale_x=0.2, scale_y=0.2, shift_x=0.1, shift_y=0.1)
    images, _ = digits((2, 3))
    model = SymmetryModel(group, TINY).fit(images[:30], progress=False)
    assert set(model.extent()) == set(group.names)
    assert model.log_prob(images[:3]).value.isfinite().all()


def test_a_fit_is_seeded_and_goes_on_from_its_checkpoint(tmp_path):
    images, _ = digits((2, 3))
    whole = SymmetryModel(WHOLE, TINY).fit(images[:40], seed=4, progress=False)
    first = SymmetryModel(WHOLE, TINY).fit(images[:40], seed=4, checkpoint=tmp_path, progress=False)
    assert (tmp_path / "inference.pt").exists()
    again = SymmetryModel(WHOLE, TINY).fit(images[:40], seed=4, checkpoint=tmp_path, progress=False)
    for model in (first, again):
        assert torch.equal(model.transformation(images), whole.transformation(images))
        assert torch.equal(model.resample(images, 2), whole.resample(images, 2))
    other = SymmetryModel(WHOLE, TINY).fit(images[:40], seed=5, progress=False)
    assert not torch.equal(other.transformation(images), whole.transformation(images))


def test_a_flow_that_diverges_stops_with_its_step_and_last_good_weights():
    images, _ = digits((2, 3))
    wild = replace(TINY, poses=Training(40, 16, learning_rate=1e30))
    with pytest.raises(Diverged, match="step") as caught:
        SymmetryModel(WHOLE, wild).fit(images[:40], progress=False)
    assert caught.value.step >= 1
    assert all(bool(tensor.isfinite().all()) for tensor in caught.value.last_good.values())


def test_what_cannot_be_done_is_said(tiny):
    model, images = tiny
    with pytest.raises(ValueError, match="call fit"):
        SymmetryModel(WHOLE).prototype(images)
    with pytest.raises(ValueError, match="at least 10"):
        SymmetryModel(WHOLE, TINY).fit(images[:5])
    with pytest.raises(ValueError, match="the model learnt from"):
        model.prototype(functional.pad(images, [1] * 4))
    with pytest.raises(ValueError, match="expected the same group"):
        SymmetryModel(WHOLE, TINY).fit(images, poser=seeded(0, lambda: Poser(Affine.of(scale=1), 196, 12)))
    with pytest.raises(ValueError, match="at least one"):
        model.resample(images, 0)
    with pytest.raises(ValueError, match="at least two"):
        model.log_prob(images, draws=1)
    with pytest.raises(ValueError, match="rotation alone"):
        density_of_angle(model, images)
    with pytest.raises(ValueError, match="positive rate"):
        Training(steps=0)
    with pytest.raises(ValueError, match="at most ±π"):
        averaged(lambda x: x, images, 3, half_range=4)

import math
from itertools import combinations

import pytest
import torch
from scipy.linalg import expm
from torch.autograd import gradcheck

from lapwing.studies.datasets import rotate
from lapwing.studies.symmetry.group import GENERATORS, Affine
from lapwing.studies.symmetry.warping import checked, disc, masked, warp
from tests.studies.symmetry.pictures import smooth

WHOLE = Affine.of(rotation=math.pi)
FAMILIES = [
    ("rotation",),
    ("scale",),
    ("shift_x",),
    ("shift_x", "shift_y"),
    ("rotation", "scale"),
    ("rotation", "shift_x", "shift_y"),
    ("shift_y", "scale", "rotation", "shift_x"),
    ("scale_x", "scale_y"),
    ("scale_y", "shift_x", "shift_y"),
    ("rotation", "shift_x"),
    ("rotation", "scale_x", "scale_y", "shift_x", "shift_y"),
    ("shear_x",),
    ("shear_x", "shear_y", "rotation"),
]


def group_of(names: tuple[str, ...]) -> Affine:
    return Affine(names, (0.7,) * len(names))


def drawn(group: Affine, count: int = 7, seed: int = 0) -> torch.Tensor:
    like = torch.zeros((), dtype=torch.float64)
    return group.draw(count, torch.Generator().manual_seed(seed), like)


@pytest.mark.parametrize("names", FAMILIES, ids="+".join)
def test_closed_forms_are_the_matrix_exponential(names):
    group = group_of(names)
    eta = torch.cat([drawn(group), torch.zeros(1, len(group)).double(), 1e-3 * drawn(group, 2, 1)])
    for one, found in zip(eta, group.matrix(eta), strict=True):
        dense = sum(e * g for e, g in zip(one.tolist(), group.generators(eta).numpy(), strict=True))
        assert torch.allclose(found, torch.from_numpy(expm(dense)), rtol=0, atol=1e-13)


def test_rotation_translation_and_scale_by_hand():
    turn = WHOLE.matrix(torch.tensor([0.3]).double())
    assert torch.allclose(
        turn[:2, :2], torch.tensor([[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]]).double()
    )
    shift = Affine.of(shift_x=1, shift_y=1).matrix(torch.tensor([0.2, -0.4]).double())
    assert torch.equal(shift, torch.tensor([[1, 0, 0.2], [0, 1, -0.4], [0, 0, 1]]).double())
    scale = Affine.of(scale_x=1, scale_y=1).matrix(torch.tensor([0.2, -0.4]).double())
    assert torch.allclose(scale.diagonal(), torch.tensor([math.exp(0.2), math.exp(-0.4), 1]).double())


@pytest.mark.parametrize("names", FAMILIES, ids="+".join)
def test_minus_eta_is_the_inverse(names):
    group = group_of(names)
    eta = drawn(group)
    assert torch.allclose(group.inverse(eta) @ group.matrix(eta), torch.eye(3).double(), atol=1e-13)


@pytest.mark.parametrize("size", [9, 15])
def test_four_quarter_turns_are_the_identity(size):
    image = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    quarter = WHOLE.matrix(torch.full((2, 1), math.pi / 2, dtype=torch.float64))
    found = image
    for _ in range(4):
        found = warp(found, quarter)
    assert (found - image).abs().max() < 1e-5
    assert torch.allclose(warp(image, quarter), torch.rot90(image, 1, (2, 3)), atol=1e-12)


def test_the_map_applied_first_stands_on_the_left():
    image = smooth(257)
    first, second = Affine.of(rotation=1), Affine.of(shift_x=1, shift_y=1)
    a = first.matrix(torch.tensor([[0.6]]).double())
    b = second.matrix(torch.tensor([[0.25, -0.1]]).double())
    twice = warp(warp(image, a), b)
    once, wrong = (warp(image, product) for product in (a @ b, b @ a))
    # linear interpolation errs by at most an eighth of the second differences along each of two axes, here three times;
    # along any direction these are below the Frobenius norm of the Hessian
    parts = [image.diff(n=2, dim=2), image.diff(n=2, dim=3), math.sqrt(2) * image.diff(dim=2).diff(dim=3)]
    bound = 3 * 2 / 8 * math.sqrt(sum(float(part.abs().max()) ** 2 for part in parts))
    inner = (slice(None), slice(None), slice(80, -80), slice(80, -80))
    assert (twice - once)[inner].abs().max() < bound
    assert (twice - wrong)[inner].abs().max() > 10 * bound


@pytest.mark.parametrize("names", [names for names in FAMILIES if group_of(names).is_closed], ids="+".join)
def test_a_closed_group_finds_the_coordinates_of_products(names):
    group = group_of(names)
    product = (
        group.matrix(drawn(group, seed=1)) @ group.inverse(drawn(group, seed=2)) @ group.matrix(drawn(group, seed=3))
    )
    assert torch.allclose(group.matrix(group.coordinates(product)), product, atol=1e-12)
    eta = drawn(group)
    assert torch.allclose(group.coordinates(group.matrix(eta)), eta, atol=1e-12)


def test_what_is_called_closed_is_closed_under_brackets():
    for count in (1, 2, 3, 4):
        for names in combinations(GENERATORS, count):
            try:
                group = group_of(names)
            except ValueError:
                continue
            g = group.generators(torch.zeros(()).double()).flatten(1)
            rank = torch.linalg.matrix_rank(g)
            brackets = [
                (a.reshape(3, 3) @ b.reshape(3, 3) - b.reshape(3, 3) @ a.reshape(3, 3)).flatten() for a in g for b in g
            ]
            closed = torch.linalg.matrix_rank(torch.cat([g, torch.stack(brackets)])) == rank
            assert closed or not group.is_closed, names


def test_angles_are_wrapped_and_draws_stay_within_bounds():
    group = Affine.of(rotation=math.pi, shift_x=0.25)
    wrapped = group.wrap(torch.tensor([[3.5, 9.0], [-3.5, -9.0]]).double())
    assert torch.allclose(wrapped, torch.tensor([[3.5 - 2 * math.pi, 9.0], [2 * math.pi - 3.5, -9.0]]).double())
    eta = drawn(group, 4000)
    assert (eta.abs() <= torch.tensor([math.pi, 0.25])).all()
    standard_error = torch.tensor([math.pi, 0.25]) / math.sqrt(3 * 4000)
    assert (eta.mean(0).abs() < 5 * standard_error).all()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_warping_is_differentiable_in_picture_and_map(mode):
    image = smooth(6)[:, :, :, :].repeat(2, 1, 1, 1).requires_grad_()
    eta = torch.tensor([[0.21, 0.13, 0.05], [-0.3, 0.02, 0.11]]).double().requires_grad_()
    group = Affine.of(rotation=1, scale=1, shear_x=1)
    assert gradcheck(lambda x, e: warp(x, group.matrix(e), interpolation=mode, fill=0.2), (image, eta))


def test_fill_is_what_lies_outside():
    away = Affine.of(shift_x=3).matrix(torch.tensor([[3.0]]))
    assert torch.allclose(warp(torch.rand(1, 2, 5, 5, generator=torch.Generator()), away, fill=0.7), torch.tensor(0.7))


def test_positive_angles_turn_as_the_corruptions_do():
    image = smooth(41)
    ours = warp(image, WHOLE.matrix(torch.tensor([[0.4]]).double()))
    theirs = rotate(image, math.degrees(0.4))
    other = rotate(image, -math.degrees(0.4))
    assert (ours - theirs).abs().max() < 0.1 * (ours - other).abs().max()


def test_the_disc_is_kept_by_quarter_turns_and_masks_corners():
    mask = disc(11, torch.zeros((), dtype=torch.float64))
    assert torch.equal(mask, torch.rot90(mask))
    assert mask[0, 0] == 0
    assert mask[0, 5] == 1
    assert masked(torch.zeros(1, 1, 11, 11), 0.3)[0, 0, 0, 0] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"bend": 1.0}, "expected different ones"),
        ({}, "expected different ones"),
        ({"scale": 1, "scale_x": 1}, "choose either"),
        ({"rotation": 0.0}, "positive number"),
        ({"rotation": 180.0}, "radians"),
    ],
)
def test_groups_that_make_no_sense_are_refused(bounds, words):
    with pytest.raises(ValueError, match=words):
        Affine.of(**bounds)


def test_a_group_that_is_not_closed_says_so():
    with pytest.raises(ValueError, match="leave their span"):
        Affine.of(rotation=1, scale_x=1).coordinates(torch.eye(3))
    with pytest.raises(ValueError, match="expected 1 numbers, rotation"):
        WHOLE.matrix(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="expected \\(n, channels"):
        warp(torch.zeros(2, 1, 4, 4), torch.eye(3)[None])


GOOD = torch.rand(3, 7, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (GOOD[0], "a single picture is x\\[None\\]"),
        (GOOD[:, :, :5], "square"),
        (GOOD[:0], "expected some"),
        (GOOD * 255, "divide by their largest"),
        (GOOD - 0.5, "expected \\[0, 1\\]"),
        (torch.where(GOOD > 0.9, torch.nan, GOOD), "expected \\[0, 1\\]"),
        (torch.stack([GOOD[0], torch.full((7, 7), 0.5)]), "1 of 2 pictures are constant, first number 1"),
        ((GOOD * 255).byte(), "floating-point"),
        (GOOD.numpy(), "expected a tensor"),
    ],
)
def test_pictures_that_cannot_be_used_are_refused(images, words):
    with pytest.raises(ValueError, match=words):
        checked(images, turned=False)


def test_pictures_without_a_margin_are_masked_and_it_is_said():
    with pytest.warns(UserWarning, match="lies in their corners"):
        found = checked(GOOD, turned=True)
    assert found[:, 0, 0, 0].abs().max() == 0
    assert torch.equal(checked(GOOD, turned=False), GOOD[:, None])

"""Numbers stay what they were when `values.safetensors` was recorded, to the tolerance of what computes them."""

from functools import cache

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.golden.cases import CASES
from tests.golden.record import VALUES, numbers_of


@cache
def recorded() -> dict[str, Tensor]:
    with safe_open(VALUES, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number; infinite where another number is not finite."""
    finite = expected.isfinite()
    if not torch.equal(finite, found.isfinite()) or not torch.equal(found[~finite], expected[~finite]):
        return float("inf")
    found, expected = found[finite], expected[finite]
    if not found.numel():
        return 0.0
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-300))


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_as_recorded(name):
    found = numbers_of(name)
    expected = {key: value for key, value in recorded().items() if key.startswith(f"{name}/")}
    assert found.keys() == expected.keys()
    shapes = {key: (tuple(found[key].shape), tuple(expected[key].shape)) for key in found}
    assert {key: pair for key, pair in shapes.items() if pair[0] != pair[1]} == {}
    off = {key: difference(found[key], expected[key]) for key in found}
    tolerance = CASES[name].tolerance
    assert {key: by for key, by in off.items() if not by <= tolerance} == {}, f"beyond {tolerance}"


def test_every_recorded_case_is_there():
    assert {key.split("/")[0] for key in recorded()} == set(CASES)

"""A posterior on another device: everything it stores goes there, and what it says stays the same."""

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.runtime.devices import map_tensors

METHODS = {
    "exact": lw.Exact(), "krylov": lw.Krylov(rtol=1e-8), "cg": lw.CG(rtol=1e-10), "low rank": lw.LowRank(3),
}  # fmt: skip


def tensors_of(value) -> list[Tensor]:
    found = []
    map_tensors(value, lambda tensor: found.append(tensor) or tensor)
    return found


@pytest.fixture(params=METHODS)
def posterior(request):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(23, 5, generator=generator, dtype=torch.float64)
    y = x.sum(1) + 0.3 * torch.randn(23, generator=generator, dtype=torch.float64)
    return lw.infer(lw.LinearModel(x, y, lw.Gaussian(0.3)), prior=lw.Isotropic(2.0), method=METHODS[request.param])


@pytest.mark.parametrize("posterior", ["exact", "cg", "low rank"], indirect=True)
def test_every_tensor_goes_there(posterior):
    """A Krylov space looks at its numbers when it is made, and tensors on "meta" have none."""
    there = posterior.to("meta")
    kept = tensors_of(there.gaussian)
    assert len(kept) == len(tensors_of(posterior.gaussian)) > 5
    assert {tensor.device.type for tensor in kept} == {"meta"}
    assert {tensor.device.type for tensor in tensors_of(posterior.gaussian)} == {"cpu"}  # as it was


def test_the_same_place_is_the_same_posterior(posterior):
    new = torch.eye(5, dtype=torch.float64)[:3] + 0.2
    again, before = posterior.to("cpu").predict(new), posterior.predict(new)
    torch.testing.assert_close(again.mean, before.mean, rtol=0, atol=0)
    torch.testing.assert_close(again.epistemic_variance, before.epistemic_variance, rtol=0, atol=0)
    torch.testing.assert_close(again.draws, before.draws, rtol=0, atol=0)

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20)


@pytest.fixture(autouse=True)
def _global_random_state_is_untouched():
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())

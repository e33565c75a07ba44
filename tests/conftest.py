import gc

import pytest
import torch


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay until the end: no collection of garbage need walk through them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20)


@pytest.fixture(autouse=True)
def _global_random_state_is_untouched():
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())

"""Sums that are sent block by block: in which order, and what a rank that fails half-way does to the others."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from lapwing.runtime.ranks import RankFailed, Ranks
from tests.network.networks import normal

SHAPES = [(5, 2), (5, 2), (5, 1)]
BLOCKS = [[normal(*shape, seed=10 * rank + k) for k, shape in enumerate(SHAPES)] for rank in range(2)]


class Group:
    """One rank's way to itself, which notes what happens when."""

    def __init__(self, noted):
        self.noted = noted

    def allreduce(self, given, options):
        self.noted.append(f"sent {given[0].numel() - 1}")
        return self

    def wait(self):
        self.noted.append("waited")


def test_a_block_is_sent_before_the_next_is_made():
    noted = []

    def made():
        for k, block in enumerate(BLOCKS[0]):
            noted.append(f"made {k}")
            yield block

    found = Ranks(0, 1, Group(noted)).summed_parts("product", SHAPES, BLOCKS[0][0], made())
    assert torch.equal(found, torch.cat(BLOCKS[0], dim=1))
    assert noted == ["made 0", "sent 10", "made 1", "sent 10", "made 2", "sent 5", *["waited"] * 3]


def both(parts):
    """What each of two ranks gets, or the error that it raises."""
    store = dist.HashStore()

    def one(rank):
        ranks = Ranks(rank, 2, dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=20)))
        try:
            return ranks.summed_parts("product", SHAPES, BLOCKS[0][0], parts(rank))
        except (RankFailed, ArithmeticError) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def test_both_ranks_get_the_sum():
    expected = torch.cat([one + other for one, other in zip(*BLOCKS, strict=True)], dim=1)
    for found in both(lambda rank: iter(BLOCKS[rank])):
        assert torch.equal(found, expected)


def test_a_rank_that_fails_after_its_first_block_fails_on_both():
    def breaking(rank):
        yield BLOCKS[rank][0]
        if rank == 1:
            raise ArithmeticError("enough")
        yield from BLOCKS[rank][1:]

    first, second = both(breaking)
    assert isinstance(first, RankFailed)
    assert "rank(s) [1] of 2 failed in the product" in str(first)
    assert isinstance(second, ArithmeticError)

"""The cost model of several ranks: what it must say of one, of many, and the bytes that products really send."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import pytest
import torch
from torch import Tensor

from lapwing.linalg.operators import OverData
from lapwing.linalg.operators.distributed import Sharded
from lapwing.runtime.ranks import Ranks

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from bench_ranks import Machine, Pass, cost, efficiency, forward_flops, network, seconds

RESNET = Pass(50_000, 10, 11_173_962, 1.1e9, columns=17, basis=100)
GPU = Machine(flops=1e13, bandwidth=2e9)


class Counting:
    """A group of two that counts the bytes of each collective operation."""

    def __init__(self):
        self.gathered, self.summed = [], []

    def wait(self):
        return self

    def allgather(self, found, given):
        self.gathered.append(given[0].numel() * given[0].element_size())
        for part in found[0]:
            part.copy_(given[0])
        return self

    def allreduce(self, given, options):
        self.summed.append(given[0].numel() * given[0].element_size())
        return self


@final
@dataclass(frozen=True, eq=False)
class Table(OverData):
    """A matrix with three rows for every datum."""

    matrix: Tensor
    datum_rows = 3

    @property
    def shape(self) -> tuple[int, int]:
        return (self.matrix.shape[0], self.matrix.shape[1])

    @property
    def like(self) -> Tensor:
        return self.matrix

    def matmat(self, x: Tensor) -> Tensor:
        return self.matrix @ x

    def rmatmat(self, y: Tensor) -> Tensor:
        return self.matrix.mT @ y

    def between(self, start: int, stop: int) -> "Table":
        return Table(self.matrix[start:stop])

    def inputs_between(self, first: int, last: int) -> Tensor:
        return self.matrix[3 * first : 3 * last]


def test_products_send_what_the_model_says():
    """J is 12 data × 3 outputs by 7 weights: each of two ranks gives half of J V, and all of JᵀJV, to be summed."""
    matrix = torch.randn(36, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    group, columns = Counting(), 5
    shared = Sharded(Table(matrix), Ranks(0, 2, group))
    shared.normal(torch.ones(7, columns, dtype=torch.float64))
    payload = [size for size in group.gathered if size > 24]  # less the three numbers of each handshake
    expected = cost(Pass(36, 1, 7, 0.0, columns, item=8), 2)
    marks = 8 * len(group.summed)  # with each block, whether a rank has failed
    # a ring sends each rank's half once to the other, and every number that is summed twice by halves
    assert sum(payload) + sum(group.summed) - marks == expected.sent_bytes


def test_one_rank_sends_nothing_and_is_efficient():
    assert cost(RESNET, 1).sent_bytes == 0
    assert efficiency(RESNET, 1, GPU) == pytest.approx(1)
    assert cost(RESNET, 8).shared_flops == cost(RESNET, 1).shared_flops / 8


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_efficiency_falls_with_ranks_and_with_little_work_for_each(ranks):
    assert 0 < efficiency(RESNET, ranks, GPU) < 1
    assert efficiency(RESNET, 2 * ranks, GPU) < efficiency(RESNET, ranks, GPU)
    assert efficiency(replace(RESNET, data=1000), ranks, GPU) < efficiency(RESNET, ranks, GPU)
    assert seconds(RESNET, ranks, replace(GPU, bandwidth=1e30, latency=0.0)) == pytest.approx(
        cost(RESNET, ranks).flops / 1e13
    )


def test_flops_of_the_network_are_counted_by_hand():
    """By torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network()(torch.zeros(3, 1, 14, 14, dtype=torch.float64))
    assert counter.get_total_flops() == 3 * forward_flops()


def test_the_figures_on_the_page():
    """Those of docs/how_to/several_machines.md."""
    page = (Path(__file__).parent.parent.parent / "docs/how_to/several_machines.md").read_text()
    for data in (50_000, 1_000):
        row = [efficiency(replace(RESNET, data=data), ranks, GPU) for ranks in (8, 64)]
        assert f"| {data:,} | {row[0]:.0%} | {row[1]:.0%} |".replace("%", " %") in page

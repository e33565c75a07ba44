"""What do several processes save of one fit, what do they cost, and is the answer the same?

A small convolutional network, fitted by as many processes as said (gloo on one machine, a thread each) and by one. Work is
the processor time of the busiest rank within the fit, over that of one process; waiting is not work, so it can be measured on a
busy machine. Memory is the largest resident size of a rank, less that before the fit. The prediction is that of `cost`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

CLASSES, SIDE, DRAWS = 10, 14, 8


@dataclass(frozen=True)
class Pass:
    """One product JᵀBJ V with k columns, and the orthogonalisation of what it gives in a Krylov space."""

    data: int
    outputs: int  # of a datum
    weights: int
    forward_flops: float  # of the network, for one datum
    columns: int
    basis: int = 0  # vectors that are there already, on the smaller side of the data
    item: int = 4  # bytes of a number


@dataclass(frozen=True)
class Cost:
    """What one rank does in a pass."""

    shared_flops: float  # its share of the network's
    own_flops: float  # dense algebra that every rank does for itself
    sent_bytes: float  # by rings: to gather J V and to sum JᵀB(JV)

    @property
    def flops(self) -> float:
        return self.shared_flops + self.own_flops


@dataclass(frozen=True)
class Machine:
    """What a rank can do."""

    flops: float  # a second, as one rank sustains them
    bandwidth: float  # bytes a second, out of one rank
    latency: float = 1e-4  # seconds of one collective operation, per doubling of the ranks


def cost(of: Pass, ranks: int) -> Cost:
    """Forward mode takes two passes for every column and reverse mode two, beside one for all of them."""
    network = (4 * of.columns + 1) * of.forward_flops * of.data
    side = min(of.data * of.outputs, of.weights)
    gathered, summed = (of.item * size * of.columns for size in (of.data * of.outputs, of.weights))
    share = (ranks - 1) / ranks
    return Cost(network / ranks, 4.0 * side * (of.basis + of.columns) * of.columns, share * (gathered + 2 * summed))


def seconds(of: Pass, ranks: int, machine: Machine) -> float:
    """The time of a pass; nothing overlaps."""
    found, rounds = cost(of, ranks), (ranks - 1).bit_length()
    return found.flops / machine.flops + found.sent_bytes / machine.bandwidth + 3 * rounds * machine.latency


def efficiency(of: Pass, ranks: int, machine: Machine) -> float:
    """The time of one rank over R times that of R."""
    return seconds(of, 1, machine) / (ranks * seconds(of, ranks, machine))


def network() -> Any:
    import torch
    from torch import nn

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(),
            nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, CLASSES),
        ).double().eval()  # fmt: skip


def forward_flops() -> float:
    """Two for every multiplication of a weight with a pixel, a datum."""
    return 2.0 * (SIDE**2 * 9 * 8 + (SIDE // 2) ** 2 * 9 * 8 * 16 + 16 * CLASSES)


def worker(folder: str, rank: int, ranks: int, n: int) -> None:
    """One rank: fits, and leaves its draws, its time and its memory."""
    import torch
    import torch.distributed as dist

    import lapwing as lw

    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(1)
    x = torch.randn(n, 1, SIDE, SIDE, generator=random, dtype=torch.float64)
    y = network()(x).detach() + 0.1 * torch.randn(n, CLASSES, generator=random, dtype=torch.float64)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    options: dict[str, Any] = {"prior": lw.Isotropic(1.0), "draws": DRAWS, "progress": False}
    lw.fit(network(), (x[:8], y[:8]), lw.Gaussian(0.1), method=lw.Krylov(rtol=1e-2), shard=False, **options)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, started = resident("VmRSS"), time.process_time()
    posterior = lw.fit(network(), (x, y), lw.Gaussian(0.1), method=lw.Krylov(rtol=1e-3), **options)
    told = {
        "work": time.process_time() - started, "bytes": resident("VmHWM") - before, "weights": len(posterior.mean),
        "passes": posterior.diagnostics["data_passes"], "ranks": posterior.diagnostics["ranks"],
    }  # fmt: skip
    torch.save(posterior.functions(x[:5]), f"{folder}/{rank}.pt")
    Path(folder, f"{rank}.json").write_text(json.dumps(told))
    if ranks > 1:
        dist.destroy_process_group()


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def run(ranks: int, n: int) -> tuple[list[dict], Any]:
    """What every rank told, and the functions that each drew; one alone is this process."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        given = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        given["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), given.get("PYTHONPATH", "")])
        if ranks == 1:
            worker(folder, 0, 1, n)
        command = f"import bench_ranks; bench_ranks.worker({folder!r}, {{}}, {ranks}, {n})"
        started = [
            subprocess.Popen([sys.executable, "-c", command.format(rank)], env=given, cwd=Path(__file__).parent)
            for rank in range(ranks if ranks > 1 else 0)
        ]
        if any(process.wait() for process in started):
            raise RuntimeError("a rank failed; its message is above")
        told = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
        return told, [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(ranks)]


def measure(ranks: int, n: int) -> dict:
    (alone,), (expected,) = run(1, n)
    told, drawn = run(ranks, n) if ranks > 1 else ([alone], [expected])
    assert all(one["ranks"] == ranks for one in told)
    columns = 2 * DRAWS + 1
    average = Pass(
        n, CLASSES, alone["weights"], forward_flops(), columns, basis=int(alone["passes"] * columns / 4), item=8
    )
    spread = expected.std(0).max()
    return {
        "weights": alone["weights"], "passes": alone["passes"], "work_of_one": alone["work"],
        "work_of_busiest": max(one["work"] for one in told),
        "work_ratio": max(one["work"] for one in told) / alone["work"],
        "predicted_ratio": cost(average, ranks).flops / cost(average, 1).flops,
        "sent_bytes_a_pass": cost(average, ranks).sent_bytes,
        "memory_of_one": alone["bytes"], "memory_of_a_rank": max(one["bytes"] for one in told),
        "draws_difference": max(float((found - expected).abs().max() / spread) for found in drawn),
    }  # fmt: skip


CELLS = {
    "2 ranks, a few data": {"ranks": 2, "n": 40},
    **{f"{ranks} rank{'s' * (ranks > 1)}": {"ranks": ranks, "n": 600} for ranks in (1, 2, 3)},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

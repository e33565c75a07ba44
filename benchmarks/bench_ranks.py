"""What do several processes save of one fit, what do they cost, and is the answer the same?

A small convolutional network, fitted by as many processes as said (gloo on one machine, a thread each) and by one. Work is
the processor time of the busiest rank within the fit, over that of one process; waiting is not work, so it can be measured on a
busy machine. Memory is the largest resident size of a rank, less that before the fit. The prediction is that of `cost`.

"blocks" is one product Jᵀy of a wide network by two ranks: the time where blocks of columns are summed while the next
is worked out, over that where all are summed at the end.
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

CLASSES, SIDE, DRAWS, REPEATS = 10, 14, 8, 5


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


def cost(of: Pass, ranks: int, by: str = "data") -> Cost:
    """Forward mode takes two passes for every column and reverse mode two, beside one for all of them.

    By data a rank has a share of the data for all columns; by draws a share of the columns for all data.
    """
    each, pass_over_all = of.forward_flops * of.data / ranks, of.forward_flops * of.data
    network = 4 * of.columns * each + (each if by == "data" else pass_over_all)
    side = min(of.data * of.outputs, of.weights)
    outputs, weights = (of.item * size * of.columns for size in (of.data * of.outputs, of.weights))
    sent = (ranks - 1) / ranks * (outputs + (2 if by == "data" else 1) * weights)
    return Cost(network, 4.0 * side * (of.basis + of.columns) * of.columns, sent)


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


def worker(folder: str, rank: int, ranks: int, n: int, by: str) -> None:
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
    posterior = lw.fit(network(), (x, y), lw.Gaussian(0.1), method=lw.Krylov(rtol=1e-3), shard=by, **options)
    work, peak, started = time.process_time() - started, resident("VmHWM") - before, time.process_time()
    predicted = posterior.predict(x[: n // 2], shard=True)
    told = {
        "work": work, "bytes": peak, "weights": posterior.map.weights, "passes": posterior.diagnostics.data_passes,
        "ranks": posterior.diagnostics.ranks, "predicting": time.process_time() - started,
        "variance": float(predicted.epistemic_variance.sum()),
    }  # fmt: skip
    torch.save(posterior.functions(x[:5]), f"{folder}/{rank}.pt")
    Path(folder, f"{rank}.json").write_text(json.dumps(told))
    if ranks > 1:
        dist.destroy_process_group()


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def blocks(folder: str, rank: int, width: int, columns: int) -> None:
    """One of two ranks: the best time of a product in blocks, and in one, and what they differ by."""
    import torch
    import torch.distributed as dist

    import lapwing as lw
    from lapwing.linalg.operators import Sharded, distributed
    from lapwing.runtime.ranks import together

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    random = torch.Generator().manual_seed(0)
    layers = (torch.nn.Linear(32, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Linear(width, 3))
    model = torch.nn.Sequential(*layers).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.01, generator=random)
    x = torch.randn(64, 32, generator=random)
    features = lw.linearise(model, (x, torch.zeros(64, 3)), lw.Gaussian(1.0)).features
    y = torch.randn(features.shape[0], columns, generator=random)
    times: dict[int, list[float]] = {distributed.BUCKET_BYTES: [], 2**60: []}
    with together(True) as ranks:
        shared, products = Sharded(features, ranks), []
        for _ in range(REPEATS):
            for size, spent in times.items():
                distributed.BUCKET_BYTES = size
                dist.barrier()
                started = time.perf_counter()
                products.append(shared.rmatmat(y))
                spent.append(time.perf_counter() - started)
    apart = float((products[0] - products[1]).abs().max() / products[1].abs().max())
    told = {"times": [min(spent) for spent in times.values()], "apart": apart, "weights": features.shape[1]}
    Path(folder, f"{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def started_together(count: int, call: str) -> None:
    """Run a function of this file in so many processes, `{rank}` being its own, and wait for them."""
    given = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    given["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), given.get("PYTHONPATH", "")])
    commands = [f"import bench_ranks; bench_ranks.{call.format(rank=rank)}" for rank in range(count)]
    started = [
        subprocess.Popen([sys.executable, "-c", command], env=given, cwd=Path(__file__).parent) for command in commands
    ]
    failed = [process.wait() for process in started]
    if any(failed):
        raise RuntimeError("a rank failed; its message is above")


def run(ranks: int, n: int, by: str = "data") -> tuple[list[dict], Any]:
    """What every rank told, and the functions that each drew; one alone is this process."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        if ranks == 1:
            worker(folder, 0, 1, n, by)
        else:
            started_together(ranks, f"worker({folder!r}, {{rank}}, {ranks}, {n}, {by!r})")
        told = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
        return told, [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(ranks)]


def measure(ranks: int, n: int = 0, by: str = "data", width: int = 0, columns: int = 0) -> dict:
    if by == "blocks":
        with tempfile.TemporaryDirectory() as folder:
            started_together(ranks, f"blocks({folder!r}, {{rank}}, {width}, {columns})")
            told = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
        at_once = max(one["times"][1] for one in told)
        return {
            "weights": told[0]["weights"], "seconds_in_blocks": max(one["times"][0] for one in told),
            "seconds_at_once": at_once, "ratio": max(one["times"][0] for one in told) / at_once,
            "difference": max(one["apart"] for one in told),
        }  # fmt: skip
    (alone,), (expected,) = run(1, n)
    told, drawn = run(ranks, n, by) if ranks > 1 else ([alone], [expected])
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
        "predicted_ratio": cost(average, ranks, by).flops / cost(average, 1).flops,
        "sent_bytes_a_pass": cost(average, ranks, by).sent_bytes,
        "memory_of_one": alone["bytes"], "memory_of_a_rank": max(one["bytes"] for one in told),
        "draws_difference": max(float((found - expected).abs().max() / spread) for found in drawn),
        "predicting_ratio": max(one["predicting"] for one in told) / alone["predicting"],
        "variance_difference": max(abs(one["variance"] / alone["variance"] - 1) for one in told),
    }  # fmt: skip


CELLS = {
    "2 ranks, a few data": {"ranks": 2, "n": 40},
    **{f"{ranks} rank{'s' * (ranks > 1)}": {"ranks": ranks, "n": 600} for ranks in (1, 2, 3)},
    "2 ranks, by draws": {"ranks": 2, "n": 600, "by": "draws"},
    "2 ranks, blocks of a sum": {"ranks": 2, "by": "blocks", "width": 1000, "columns": 16},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

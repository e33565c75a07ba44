"""Does the peak memory of a network's products depend on the number of data or of outputs, and is it known beforehand?

LeNet, data made from their number when they are asked for, batches of 100. Memory is the largest resident size while the
product Jᵀ J V runs in a fresh process, less the size just before. What has to grow with n is the image J V, n · c rows of k
numbers: it is taken off in `without_image_bytes`. `predicted_bytes` is the preflight's.
"""

from __future__ import annotations

import gc
from pathlib import Path

import harness
import torch
from bench_ggn import CLASSES, lenet
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lapwing.network.batches import as_batches
from lapwing.network.jacobian import Jacobian, Network, prepared

CELLS = {f"{n:,} data": {"n": n, "columns": 16, "batch": 100} for n in (1_000, 10_000)}
CELLS |= {f"1,000 data, {c} outputs": {"n": 1_000, "columns": 16, "batch": 100, "outputs": c} for c in (40, 160)}


class Made(Dataset):
    """Pictures and targets made from their number."""

    def __init__(self, size: int, outputs: int):
        self.size, self.outputs = size, outputs

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        return torch.rand(1, 28, 28, generator=generator), torch.randn(self.outputs, generator=generator)


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(n: int, columns: int, batch: int, outputs: int = CLASSES) -> dict:
    torch.manual_seed(0)
    batches = as_batches(DataLoader(Made(n, outputs), batch_size=batch))
    jacobian = prepared(Jacobian(Network.of(lenet(outputs).eval()), batches.inputs, outputs))
    block = torch.randn(jacobian.shape[1], columns)
    working, item = jacobian.costs.working_bytes(columns), block.element_size()
    few = as_batches(Made(4, outputs)).inputs
    Jacobian(jacobian.network, few, outputs, jacobian.plan).normal(block)  # what the first call ever allocates
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    jacobian.normal(block)
    peak, image = resident("VmHWM") - before, item * n * outputs * columns
    predicted = working + item * block.numel() + image
    return {
        "weights": jacobian.shape[1], "peak_bytes": peak, "image_bytes": image, "without_image_bytes": peak - image,
        "predicted_bytes": predicted, "predicted_over_measured": predicted / peak,
        "stored_jacobian_bytes": item * n * outputs * jacobian.shape[1],
    }  # fmt: skip


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

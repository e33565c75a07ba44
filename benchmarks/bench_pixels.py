"""Do predictions of many outputs a datum stay within the memory that is foretold, without a Jacobian?

A U-Net with 64 × 64 pixels of two classes, and a Transformer with 128 tokens of five, fitted by a Krylov space. The peak
of resident memory during `predict`, over what the process held before, beside `predict_bytes`, which is worked out
before anything large is made, and beside the Jacobian that is never formed. Large blocks are given back to the system when
they are freed: by default the heap keeps some of them, as chance has it, and up to twice the memory in use counts.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import harness
import torch
from torch import Tensor, nn

import lapwing as lw

CELLS = {
    "128 tokens, 4 data": {"kind": "tokens", "data": 4},
    "64 × 64 × 2 pixels, 1 datum": {"kind": "pixels", "data": 1},
    "64 × 64 × 2 pixels, 8 data": {"kind": "pixels", "data": 8},
}
TRAINING = 8  # data
MMAP_THRESHOLD, LARGE = -3, 2**16  # glibc's number of that option, and bytes from which a block is mapped by itself
DRAWS = 32


class UNet(nn.Module):
    """Two scales below the first, up again by transposed convolutions, with skips."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter = self.block(3, width)
        self.down = nn.ModuleList([self.block(width, 2 * width, 2), self.block(2 * width, 4 * width, 2)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2), nn.ConvTranspose2d(4 * width, width, 2, stride=2)]
        )
        self.leave = nn.Conv2d(2 * width, 2, 1)

    @staticmethod
    def block(inside: int, outside: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride=stride, padding=1), nn.GroupNorm(4, outside), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.enter(x)
        second = self.down[0](first)
        third = torch.cat([second, self.up[0](self.down[1](second))], dim=1)
        return self.leave(torch.cat([first, self.up[1](third)], dim=1))


class Tagger(nn.Module):
    """A class for every token."""

    def __init__(self, width: int = 32, length: int = 128) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(50, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(ids) + self.place))


def problem(kind: str, data: int) -> tuple[nn.Module, lw.Categorical, Tensor, Tensor]:
    torch.manual_seed(0)
    if kind == "pixels":
        y = torch.randint(2, (data, 64, 64))
        return UNet().eval(), lw.Categorical(dim=1), torch.randn(data, 3, 64, 64), y
    return Tagger().eval(), lw.Categorical(), torch.randint(50, (data, 128)), torch.randint(5, (data, 128))


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(kind: str, data: int) -> dict:
    ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)
    model, likelihood, x, y = problem(kind, TRAINING)
    posterior = lw.fit(model, (x, y), likelihood, prior=lw.GPrior(300.0), draws=DRAWS, progress=False)
    new = problem(kind, data)[2]
    predicted = posterior.predict_bytes(new)
    posterior.predict(new[:1])  # what the first call ever allocates
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the heap keeps of earlier work would hide what this takes
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    seconds, prediction = harness.timed(lambda: posterior.predict(new))
    peak = resident("VmHWM") - before
    weights, outputs = posterior.map.weights, prediction.mean[0].numel()
    return {
        "method": posterior.diagnostics.method,
        "why": posterior.diagnostics.why,
        "weights": weights,
        "outputs_per_datum": outputs,
        "predict_seconds": seconds,
        "peak_bytes": peak,
        "predicted_bytes": predicted,
        "jacobian_bytes": 4 * weights * prediction.mean.numel(),
        "over_prediction_difference": max(0.0, peak / predicted - 1),
    }


if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

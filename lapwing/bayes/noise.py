"""Standard normals addressed by (row, column): the same whatever the batching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Noise:
    """An infinite table of independent standard normals, given by a seed.

    A column is a Philox counter stream of its own and a row is a position in it, so any block of the table is
    made without the rest, in any order, by any process. Two streams of one seed are independent.

    >>> table = Noise(seed=0)
    >>> bool((table.rows(2, 5, 4) == table.rows(0, 9, 6)[2:5, :4]).all())
    True
    """

    seed: int
    stream: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}, expected an integer from 0 to 2**63 - 1")

    def rows(self, start: int, stop: int, columns: int, first_column: int = 0) -> Tensor:
        """Rows start to stop of `columns` columns: (stop - start, columns), float64."""
        table = np.empty((columns, stop - start), dtype=np.uint64)
        for column in range(columns):
            table[column] = self._bits(first_column + column, start, stop)
        uniform = ((table >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return torch.special.ndtri(torch.from_numpy(uniform)).mT

    def table(self, size: int, columns: int) -> NoiseTable:
        """The first `size` rows of `columns` columns, made block by block when they are asked for."""
        return NoiseTable(self, (size, columns))

    def _bits(self, column: int, start: int, stop: int) -> np.ndarray:
        first = start // 4  # one step of the counter makes four numbers
        key = np.array([self.seed, (self.stream << 40) + column], dtype=np.uint64)
        bits = np.random.Philox(key=key, counter=first).random_raw(stop - 4 * first)
        return bits[start - 4 * first :]


@final
@dataclass(frozen=True)
class NoiseTable:
    """A finite part of a table of noise, none of it in memory.

    >>> Noise(0).table(9, 6).rows(2, 5).shape
    torch.Size([3, 6])
    """

    noise: Noise
    shape: tuple[int, int]

    def rows(self, start: int, stop: int) -> Tensor:
        """A block of rows."""
        return self.noise.rows(start, stop, self.shape[1])


PRIOR, DATA, SAMPLE, PREDICTIVE = range(4)  # the streams of one seed

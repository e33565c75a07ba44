"""One command run by several processes at once, as torchrun starts them: the first alone speaks and writes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import final

ELSEWHERE = "its own message, or torchrun's, says why"


@final
@dataclass(frozen=True)
class Job:
    """Which process of how many this is."""

    rank: int = 0
    size: int = 1
    local: int = 0  # its number on this machine

    @staticmethod
    def here() -> Job:
        """What torchrun says of this process; one alone where it did not start it."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return Job()
        return Job(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        """For messages: empty where there is one process.

        >>> Job(1, 2, 1).name, Job().name
        ('rank 1 of 2: ', '')
        """
        return f"rank {self.rank} of {self.size}: " if self.size > 1 else ""

    def device(self, asked: str) -> str:
        """A graphics card for each process of a machine where "cuda" is asked of several.

        >>> Job(3, 4, 1).device("cuda"), Job(3, 4, 1).device("cpu"), Job().device("cuda")
        ('cuda:1', 'cpu', 'cuda')
        """
        return f"cuda:{self.local}" if asked == "cuda" and self.size > 1 else asked

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Within it, a process that torchrun ends because another has failed says so."""
        if self.size == 1:
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            del frame
            sys.stderr.write(f"lapwing: {self.name}stopped, because another rank has ended: {ELSEWHERE}\n")
            raise SystemExit(128 + number)

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

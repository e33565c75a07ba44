"""The processes that share one fit: who takes which data, and sums and stacks over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

Value = TypeVar("Value")
TIMEOUT = timedelta(minutes=30)  # that one process may be behind the others


class RankFailed(RuntimeError):
    """Another process of the same job failed, or did something else."""


@final
@dataclass(eq=False)
class Ranks:
    """One process among several that run the same program; every method is called by all of them together.

    All numbers come back identical on every rank, so that all take the same decisions. What fails on one rank is
    raised on all of them. After `close`, nobody waits for anybody.
    """

    rank: int
    size: int
    group: Any  # of torch.distributed, on processors
    open: bool = True

    def cut(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """The first of `count` things that are this rank's, and the one after its last: shares differ by one at most.

        >>> [Ranks(rank, 3, None).cut(10) for rank in range(3)]
        [(0, 3), (3, 6), (6, 10)]
        """
        at = self.rank if rank is None else rank
        return count * at // self.size, count * (at + 1) // self.size

    def summed(self, what: str, compute: Callable[[], Tensor]) -> Tensor:
        """The sum over ranks of what each computes."""
        return self._reduced(self.computed(what, compute), dist.ReduceOp.SUM)

    def summed_parts(self, what: str, shapes: list[tuple[int, int]], like: Tensor, parts: Iterator[Tensor]) -> Tensor:
        """The sum over ranks of blocks of columns, each sent while its rank makes the next.

        A rank that fails sends zeros for what it has not made, and with every block a mark: so nobody waits for it.
        """
        error: Exception | None = None
        sent: list[tuple[Tensor, Any]] = []
        for shape in shapes:
            held = torch.zeros(shape[0] * shape[1] + 1, dtype=like.dtype)
            try:
                held[:-1].view(shape).copy_(next(parts)) if error is None else held[-1:].fill_(1)
            except Exception as caught:  # it is raised below, when the others know
                error = caught
                held[-1] = 1
            with self._losing():
                sent.append((held, self.group.allreduce([held], dist.AllreduceOptions())))
        for _, work in sent:
            self._wait(lambda work=work: work)  # type: ignore[misc]

        def checked() -> int:
            if error is not None:
                raise error
            return 0

        if any(float(held[-1]) for held, _ in sent):
            self.computed(what, checked)
        blocks = [held[:-1].view(shape) for (held, _), shape in zip(sent, shapes, strict=True)]
        return torch.cat(blocks, dim=1).to(like.device)

    def most(self, what: str, value: float) -> float:
        """The largest of one number per rank."""
        return float(self._reduced(self.computed(what, lambda: torch.tensor([value]).double()), dist.ReduceOp.MAX))

    def stacked(self, what: str, heights: list[int], compute: Callable[[], Tensor]) -> Tensor:
        """The rows of every rank in order; `heights` says how many each has."""
        return self.stacking(what, heights, compute)()

    def stacking(self, what: str, heights: list[int], compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The same, under way while this rank goes on to something else: call what is returned for the rows."""
        own = self.computed(what, compute)
        padded = torch.zeros(max(heights), *own.shape[1:], dtype=own.dtype)
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in range(self.size)]
        with self._losing():
            work = self.group.allgather([found], [padded])

        def arrived() -> Tensor:
            self._wait(lambda: work)
            return torch.cat([part[:height] for part, height in zip(found, heights, strict=True)]).to(own)

        return arrived

    def check_same(self, what: str, *parts: bytes) -> None:
        """Raise on every rank where one was given something else."""
        digest = sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.int64)
        found = self._all(own)
        others = [rank for rank in range(self.size) if not torch.equal(found[rank], found[0])]
        if others:
            raise RankFailed(
                f"rank(s) {others} of {self.size} and rank 0 were given different {what}: call fit on every rank with "
                "the same network, the whole data set and the same arguments; lapwing shares the work out itself. "
                "Where every rank means to fit something of its own, pass shard=False"
            )

    def shared_bytes(self, content: bytes | None) -> bytes | None:
        """What rank 0 has, on every rank."""
        size = torch.tensor([-1 if content is None else len(content)])
        self._wait(lambda: self.group.broadcast(size, 0))
        if int(size) < 0:
            return None
        held = torch.frombuffer(bytearray(content or bytes(int(size))), dtype=torch.uint8) if int(size) else None
        if held is not None:
            self._wait(lambda: self.group.broadcast(held, 0))
        return b"" if held is None else held.numpy().tobytes()

    def close(self) -> None:
        """Go on alone: what was shared out is from now on done by every rank for itself."""
        self.open = False

    def computed(self, what: str, compute: Callable[[], Value]) -> Value:
        """What this rank computes, once it is known that every rank has done the same and none has failed."""
        value, error = None, None
        try:
            value = compute()
        except Exception as caught:  # it is raised below, when the others know
            error = caught
        width = value.shape[-1] if isinstance(value, Tensor) and value.ndim > 1 else 0
        met = torch.stack(self._all(torch.tensor([sum(what.encode()), width, int(error is not None)])))
        if error is not None:
            raise error
        failed = met[:, 2].nonzero().flatten().tolist()
        if failed:
            raise RankFailed(f"rank(s) {failed} of {self.size} failed in the {what}; their own message says why")
        if value is None or not bool((met[:, :2] == met[0, :2]).all()):
            raise RankFailed(
                f"the ranks have gone different ways: rank {self.rank} is at the {what}, others are not. They must run "
                "the same program with the same numbers: the same machine type, versions and number of threads"
            )
        return value

    def _reduced(self, value: Tensor, how: Any) -> Tensor:
        total, options = value.cpu().contiguous().clone(), dist.AllreduceOptions()
        options.reduceOp = how
        self._wait(lambda: self.group.allreduce([total], options))
        return total.to(value)

    def _all(self, value: Tensor) -> list[Tensor]:
        value = value.cpu().contiguous()
        found = [torch.empty_like(value) for _ in range(self.size)]
        self._wait(lambda: self.group.allgather([found], [value]))
        return found

    def _wait(self, begin: Callable[[], Any]) -> None:
        with self._losing():
            begin().wait()

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankFailed(
                f"rank {self.rank} of {self.size} lost another rank, which has ended or has not answered for "
                f"{TIMEOUT.seconds // 60} minutes: look for its message, and start the job again"
            ) from error


@contextmanager
def together(shard: bool | None) -> Iterator[Ranks | None]:
    """The ranks of this job while something is shared among them; None where there is one process, or shard=False.

    That is a job whose process group is initialised, or one started by torchrun. A group of our own is used and the
    caller's is not changed.
    """
    ranks = None if shard is False else _ranks()
    try:
        yield ranks
    finally:
        if ranks is not None:
            ranks.close()


def _ranks() -> Ranks | None:
    if not dist.is_available():
        return None
    if dist.is_initialized():
        if dist.get_world_size() == 1:
            return None
        return _met(dist.get_rank(), dist.get_world_size(), lambda: dist.new_group(backend="gloo", timeout=TIMEOUT))
    if not dist.is_torchelastic_launched():
        return None
    store, rank, size = next(rendezvous("env://"))
    return None if size == 1 else _met(rank, size, lambda: _own_group(store, rank, size))


def _own_group(store: Any, rank: int, size: int) -> Any:
    """A group that torch does not know of; every call of a rank has a place of its own in the store."""
    call = store.add(f"lapwing/{rank}", 1)
    place = dist.PrefixStore(f"lapwing/{call}", store)  # type: ignore[attr-defined]
    return dist.ProcessGroupGloo(place, rank, size, TIMEOUT)


def _met(rank: int, size: int, group: Callable[[], Any]) -> Ranks:
    try:
        return Ranks(rank, size, group())
    except RuntimeError as error:
        raise RankFailed(
            f"rank {rank} of {size} waited {TIMEOUT.seconds // 60} minutes for the others to call fit: call it on "
            "every rank, or pass shard=False to fit on one alone"
        ) from error

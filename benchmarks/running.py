"""Run the cells of a task: in this process or in several that go from cell to cell, each line reported as it comes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, final

from benchmarks.harness import Line
from benchmarks.outcomes import Cell, Outcome, line
from lapwing.runtime.processes import fresh_processes

Run = Callable[[Cell, Path], dict[str, float]]  # the scores of a cell; the folder is for what cells share
EXPECTED = (ValueError, ArithmeticError, RuntimeError, MemoryError)  # how a method fails; anything else is a bug


def finished(run: Run, cell: Cell, folder: Path) -> Line:
    """The line of a cell: its scores, or the reason why its method failed; one that diverges does not stop others."""
    return line(cell, lambda: outcome(run, cell, folder))


def outcome(run: Run, cell: Cell, folder: Path) -> Outcome:
    """The scores of a cell, or the reason why there are none."""
    import torch

    threads = torch.get_num_threads()
    try:
        return Outcome(cell, run(cell, folder), threads=threads)
    except EXPECTED as error:
        return Outcome(cell, reason=f"{type(error).__name__}: {' '.join(str(error).split())}"[:600], threads=threads)
    except FileNotFoundError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return Outcome(cell, reason=reason, threads=threads)


def run_all(run: Run, cells: list[Cell], folder: Path, *, processes: int = 1) -> Iterator[Line]:
    """Lines as they come; with several processes, one that dies takes only its own cell with it.

    `run` must then be a function that a new process can import.
    """
    if processes < 1:
        raise ValueError(f"processes is {processes}, expected at least one")
    if processes == 1 or len(cells) < 2:
        yield from (finished(run, cell, folder) for cell in cells)
        return
    left, workers = cells[::-1], []
    threads = max(1, (os.cpu_count() or 1) // processes)
    try:
        for _ in range(min(processes, len(cells))):
            workers.append(_Worker.start(run, folder, threads))
            workers[-1].give(left.pop())
        while workers:
            ready = wait([worker.pipe for worker in workers])
            for worker in [worker for worker in workers if worker.pipe in ready]:
                found = worker.take()
                yield found
                if not worker.process.is_alive():
                    workers.remove(worker)
                    if left:
                        workers.append(worker := _Worker.start(run, folder, threads))
                if left:
                    worker.give(left.pop())
                elif worker in workers:
                    worker.stop()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.terminate()


@final
@dataclass(eq=False)
class _Worker:
    """A process that runs one cell after another."""

    process: Any
    pipe: Connection
    cell: Cell | None = None

    @staticmethod
    def start(run: Run, folder: Path, threads: int) -> _Worker:
        context = fresh_processes(__name__)
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, run, folder, threads), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def give(self, cell: Cell) -> None:
        self.cell = cell
        self.pipe.send(cell)

    def take(self) -> Line:
        """What came of its cell; a process that died failed."""
        assert self.cell is not None
        try:
            found = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            died = Outcome(self.cell, reason=f"its process died with exit code {code}: out of memory, or killed?")
            return line(self.cell, lambda: died)
        if isinstance(found, BaseException):
            raise found
        return found

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(5)


def _serve(pipe: Connection, run: Run, folder: Path, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            cell = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send(finished(run, cell, folder))
        except FileNotFoundError as error:
            pipe.send(error)
        except KeyboardInterrupt:
            return

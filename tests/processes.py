"""Scripts in processes of their own that need not import torch again: they fork from a server that has done nothing else."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import final

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["lapwing", "lapwing.app.cli", "lapwing.studies.tomography", "matplotlib.pyplot", "sklearn.datasets"]
)
JIT = "`torch.jit"  # torch's own forward mode scripts its decompositions, and warns


@final
@dataclass(frozen=True)
class Finished:
    """What a script left behind."""

    returncode: int
    stdout: str
    stderr: str


@final
@dataclass(frozen=True, eq=False)
class Running:
    """A script that is being run."""

    script: str
    process: multiprocessing.process.BaseProcess
    kept: tempfile.TemporaryDirectory  # of what it says

    def finished(self, timeout: float) -> Finished:
        """What it left behind, once it has ended."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.kill()
            raise TimeoutError(f"{self.script} was still running after {timeout} s")
        texts = [path.read_text() if path.exists() else "" for path in written(self.kept.name)]
        self.kept.cleanup()
        return Finished(self.process.exitcode or 0, *texts)

    def kill(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.join()

    def send_signal(self, number: int) -> None:
        """Tell it something."""
        os.kill(self.process.pid, number)


def written(folder: str) -> list[Path]:
    """Where a script's words go."""
    return [Path(folder) / name for name in ("stdout", "stderr")]


def run(
    script: Path, *arguments: str, folder: Path | None = None, strict: bool = False, timeout: float = 300
) -> Finished:
    """Runs a script as `python script arguments` would, in `folder`; `strict` turns warnings into errors."""
    return start(str(script), *arguments, folder=folder, strict=strict).finished(timeout)


def start(
    script: str, *arguments: str, folder: Path | None = None, strict: bool = False,
    environment: dict[str, str] | None = None,
) -> Running:  # fmt: skip
    """Begins to run a script, or a module by its dotted name, as `python -m` would."""
    kept = tempfile.TemporaryDirectory()
    given = [script, *arguments], str(folder or Path.cwd()), environment or dict(os.environ), strict
    process = SERVER.Process(target=_run, args=(script, *given, list(map(str, written(kept.name)))))
    process.start()
    return Running(script, process, kept)


def _run(
    script: str, words: list[str], folder: str, environment: dict[str, str], strict: bool, kept: list[str]
) -> None:
    for number, path in enumerate(kept, start=1):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.update(environment)
    os.chdir(folder)
    is_file = script.endswith(".py")
    sys.argv, sys.path[0:0] = words, [str(Path(script).parent) if is_file else folder]
    if strict:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=JIT, category=DeprecationWarning)
    code = 0
    try:
        (runpy.run_path if is_file else runpy.run_module)(script, run_name="__main__")
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        if isinstance(asked.code, str):
            print(asked.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)

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


def run(
    script: Path, *arguments: str, folder: Path | None = None, strict: bool = False, timeout: float = 300
) -> Finished:
    """Runs a script as `python script arguments` would, in `folder`; `strict` turns warnings into errors."""
    with tempfile.TemporaryDirectory() as kept:
        written = [str(Path(kept) / name) for name in ("stdout", "stderr")]
        given = str(script), [str(script), *arguments], str(folder or Path.cwd()), dict(os.environ), strict
        process = SERVER.Process(target=_run, args=(*given, written))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise TimeoutError(f"{script} was still running after {timeout} s")
        texts = [Path(path).read_text() if Path(path).exists() else "" for path in written]
        return Finished(process.exitcode or 0, *texts)


def _run(
    script: str, words: list[str], folder: str, environment: dict[str, str], strict: bool, kept: list[str]
) -> None:
    for number, path in enumerate(kept, start=1):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv, sys.path[0:0] = words, [str(Path(script).parent)]
    if strict:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=JIT, category=DeprecationWarning)
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
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

"""Run the cells of a benchmark, and keep one JSON line per finished cell.

A script defines `CELLS` (name -> arguments, the smallest first) and `measure(**arguments) -> dict`, and ends with
`harness.main(__file__, CELLS, measure)`. Finished cells are not run again, so a killed run goes on where it stopped;
`--force` runs them again, `--smallest` only the first, `--only` those named, `--out` writes elsewhere. Each cell has a fresh process, so that
its peak of memory is its own. The tasks of `python -m benchmarks` keep the same lines in the same way; their cells are
short and many, and share processes (`running.py`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Line = dict[str, Any]
Measure = Callable[..., dict[str, Any]]


def main(script: str, cells: dict[str, dict[str, Any]], measure: Measure) -> None:
    """The command line of one benchmark."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--cell", help="run one cell in this process and print its line")
    parser.add_argument("--smallest", action="store_true", help="only the first cell")
    parser.add_argument("--only", nargs="+", choices=list(cells), metavar="CELL", help="run these cells and no others")
    parser.add_argument("--force", action="store_true", help="run finished cells again")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(line(script, options.cell, cells[options.cell], measure)))
        return
    names = options.only or (list(cells)[:1] if options.smallest else list(cells))
    path = options.out / f"{Path(script).stem.removeprefix('bench_')}.jsonl"
    done = {} if options.force else read(path)
    for name in names:
        if name in done:
            print(f"{name}: done before, kept", file=sys.stderr)
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        command = [sys.executable, script, "--cell", name]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode:
            sys.exit(f"cell {name!r} failed:\n{finished.stderr}")
        found = json.loads(finished.stdout.splitlines()[-1])
        add(path, found)
        print(f"{name}: {found['seconds']:.1f} s, {found['result']}", file=sys.stderr, flush=True)


def line(script: str, name: str, arguments: dict[str, Any], measure: Measure) -> Line:
    """One finished cell of a script."""
    return record(f"python benchmarks/{Path(script).name} --cell {name!r}", name, arguments, measure)


def record(command: str, name: str, arguments: dict[str, Any], measure: Measure) -> Line:
    """One finished cell with everything needed to judge and repeat it."""
    started = time.perf_counter()
    result = measure(**arguments)
    return {
        "cell": name,
        "arguments": arguments,
        "result": result,
        "seconds": round(time.perf_counter() - started, 3),
        "peak_memory_bytes": peak_memory(),
        "command": command,
        "commit": commit(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn", "lapwing")},
        "cores": len(os.sched_getaffinity(0)),
    }


def read(path: Path) -> dict[str, Line]:
    """Finished cells by name; a line cut short by a kill is left out and run again."""
    if not path.exists():
        return {}
    lines = map(_parsed, path.read_bytes().splitlines(keepends=True))
    return {found["cell"]: found for found in lines if found}


def _parsed(text: bytes) -> Line:
    """A line, empty where it is none."""
    try:
        found = json.loads(text) if text.endswith(b"\n") else {}
    except ValueError:
        return {}
    whole = isinstance(found, dict) and {"cell", "arguments", "result"} <= found.keys()
    return found if whole else {}


def add(path: Path, found: Line) -> None:
    """Keep a finished cell, whole or not at all: appended, so that two runs may share a file, or in its old place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = read(path)
    torn = path.exists() and not all(map(_parsed, path.read_bytes().splitlines(keepends=True)))
    try:
        if torn or found["cell"] in done:
            write(path, {**done, found["cell"]: found})
        else:
            _append(path, (json.dumps(found) + "\n").encode())
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror or error}): the {len(done)} finished cells are kept; make room "
            "and run the same command again"
        ) from error


def _append(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        before = os.fstat(handle).st_size
        written = os.write(handle, data)
        if written != len(data):
            os.ftruncate(handle, before)
            raise OSError(f"only {written} of {len(data)} bytes could be written")
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, done: dict[str, Line]) -> None:
    """Replace the results file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text("".join(json.dumps(cell) + "\n" for cell in done.values()))
    fresh.replace(path)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and value of one call."""
    started = time.perf_counter()
    value = function()
    return time.perf_counter() - started, value


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@functools.cache
def commit() -> str:
    """The commit being measured, marked where files differ from it; asked once by a process, which runs one version."""
    folder = Path(__file__).parent
    revision = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    measured = ["../lapwing", ".", ":(exclude)results"]  # data sets and networks are beside the scripts
    changed = subprocess.run(
        ["git", "status", "--porcelain", *measured], cwd=folder, capture_output=True, text=True, check=False
    )
    return revision.stdout.strip() + ("+changes" if changed.stdout.strip() else "")

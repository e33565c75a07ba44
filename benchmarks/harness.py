"""Run the cells of a benchmark, each in a fresh process, and keep one JSON line per finished cell.

A script defines `CELLS` (name -> arguments, the smallest first) and `measure(**arguments) -> dict`, and ends with
`harness.main(__file__, CELLS, measure)`. Finished cells are not run again, so a killed run goes on where it stopped;
`--force` runs them again, `--smallest` only the first, `--out` writes elsewhere.
"""

from __future__ import annotations

import argparse
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
Measure = Callable[..., dict[str, Any]]


def main(script: str, cells: dict[str, dict[str, Any]], measure: Measure) -> None:
    """The command line of one benchmark."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--cell", help="run one cell in this process and print its line")
    parser.add_argument("--smallest", action="store_true", help="only the first cell")
    parser.add_argument("--force", action="store_true", help="run finished cells again")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(line(script, options.cell, cells[options.cell], measure)))
        return
    names = list(cells)[:1] if options.smallest else list(cells)
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
        done[name] = json.loads(finished.stdout.splitlines()[-1])
        write(path, done)
        print(f"{name}: {done[name]['seconds']:.1f} s, {done[name]['result']}", file=sys.stderr, flush=True)


def line(script: str, name: str, arguments: dict[str, Any], measure: Measure) -> dict[str, Any]:
    """One finished cell with everything needed to judge and repeat it."""
    started = time.perf_counter()
    result = measure(**arguments)
    return {
        "cell": name,
        "arguments": arguments,
        "result": result,
        "seconds": round(time.perf_counter() - started, 3),
        "peak_memory_bytes": peak_memory(),
        "command": f"python benchmarks/{Path(script).name} --cell {name!r}",
        "commit": commit(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn", "lapwing")},
        "cores": len(os.sched_getaffinity(0)),
    }


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Finished cells by name; a line cut short by a kill is left out and run again."""
    done = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            cell = json.loads(text)
        except json.JSONDecodeError:
            continue
        done[cell["cell"]] = cell
    return done


def write(path: Path, done: dict[str, dict[str, Any]]) -> None:
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


def commit() -> str:
    """The commit being measured, marked where files differ from it."""
    folder = Path(__file__).parent
    revision = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    measured = ["../lapwing", ".", ":(exclude)results"]  # data sets and networks are beside the scripts
    changed = subprocess.run(
        ["git", "status", "--porcelain", *measured], cwd=folder, capture_output=True, text=True, check=False
    )
    return revision.stdout.strip() + ("+changes" if changed.stdout.strip() else "")

"""Does a fit that is killed at random moments, again and again, end with the draws of one that never was?

A child process fits with a checkpoint and is killed (SIGKILL) after a random time; the next goes on, until one ends by itself.
That is repeated with new data until so many kills are done. Draws are compared to the bit with those of a fit that was not
interrupted, and every file found after a kill must be whole.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import harness
import numpy as np


def fit(seed: int, kind: str, checkpoint: Path):
    import torch
    from problems import normals

    import lapwing as lw

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        width = 30 if kind == "primal" else 150
        model = (
            torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)).double().eval()
        )
    x, y = normals(220, 6, seed=seed), normals(220, 3, seed=seed + 1)
    given = {"draws": 8, "seed": seed, "method": lw.Krylov(rtol=1e-4), "progress": False, "checkpoint": checkpoint}
    if kind == "labels":
        with torch.no_grad():
            y = (model(x) + y).argmax(1)
        return lw.fit(model, (x, y), lw.Categorical(), **given)
    return lw.fit(model, (x, y), lw.Gaussian(), **given)


def child(seed: int, kind: str, checkpoint: Path, result: Path) -> int:
    """A process that fits and leaves its draws."""
    number = os.fork()
    if number:
        return number
    failed = 1
    try:
        np.save(result, fit(seed, kind, checkpoint).draws.numpy())
        failed = 0
    finally:
        os._exit(failed)


def damaged(folder: Path) -> list[str]:
    """Files under their final names that are not whole: none is ever to be seen."""
    from lapwing.runtime.journal import Journal

    names = [path.stem for path in folder.glob("*.safetensors")]
    return [name for name in names if Journal(folder).read(name) is None]


def measure(kind: str, kills: int, seed: int) -> dict:
    import torch

    torch.set_num_threads(1)
    random, done, rounds, different, longest = np.random.default_rng(seed), 0, 0, 0, 0
    moments: dict[int, int] = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        while done < kills:
            folder, result = Path(name) / str(rounds), Path(name) / f"{rounds}.npy"
            started = time.perf_counter()
            whole = fit(seed + rounds, kind, Path(name) / f"whole {rounds}").draws.numpy()
            took = time.perf_counter() - started
            here = 0
            while not result.exists():
                process = child(seed + rounds, kind, folder, result)
                if done < kills:
                    time.sleep(random.uniform(0, 0.5 * took))
                    os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
                killed = os.WIFSIGNALED(status)
                if not killed and os.waitstatus_to_exitcode(status):
                    raise RuntimeError("a fit failed by itself; its message is above")
                broken += damaged(folder)
                done, here = done + killed, here + killed
                found = len(list(folder.glob("*.safetensors"))) if folder.exists() else 0
                moments[found] = moments.get(found, 0) + killed
            different += int(not np.array_equal(np.load(result), whole))
            rounds, longest = rounds + 1, max(longest, here)
    return {
        "kills": done, "fits": rounds, "most_kills_of_one_fit": longest, "files_at_kill": {str(k): v for k, v in sorted(moments.items()) if v},
        "fits_with_other_bits": different, "bits_difference": float(different), "damaged_files": len(broken), "whole_difference": float(len(broken)),
    }  # fmt: skip


CELLS = {
    "primal, a few": {"kind": "primal", "kills": 6, "seed": 5},
    "primal": {"kind": "primal", "kills": 60, "seed": 0},
    "dual": {"kind": "dual", "kills": 30, "seed": 0},
    "labels": {"kind": "labels", "kills": 30, "seed": 0},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

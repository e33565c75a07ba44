"""Write the numbers of every case as the code has them now: `python -m tests.golden.record [CASE …]`.

With cases named, only those are written anew. Since the redesign began this was done, on purpose, for:
- bernoulli_by_evidence: a design matrix with labels has its curvature at the mode of every precision now, not at that
  of the first one, so that its evidence is Laplace's;
- bayesian_logistic_regression, …_by_evidence: `sample` draws through another root of the same covariance.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.golden.cases import CASES

VALUES = Path(__file__).parent / "values.safetensors"


def numbers_of(name: str) -> dict[str, Tensor]:
    """The numbers of a case by its name and theirs, in double."""
    found = CASES[name].make().items()
    return {f"{name}/{key}": torch.as_tensor(value, dtype=torch.float64).detach().contiguous() for key, value in found}


def main(chosen: list[str]) -> None:
    """Record all cases, or those named."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    versions = {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    values = load_file(VALUES) if chosen else {}
    for name in chosen or CASES:
        kept = {key: value for key, value in values.items() if not key.startswith(f"{name}/")}
        values = kept | {key: value.clone() for key, value in numbers_of(name).items()}
    save_file(values, VALUES, metadata={"commit": commit, **versions})
    print(f"{len(chosen or CASES)} cases, {len(values)} arrays, {VALUES.stat().st_size / 1e6:.2f} MB, of {commit[:7]}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Write the numbers of every case as the code has them now: `python -m tests.golden.record`."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.golden.cases import CASES

VALUES = Path(__file__).parent / "values.safetensors"


def numbers_of(name: str) -> dict[str, Tensor]:
    """The numbers of a case by its name and theirs, in double."""
    found = CASES[name].make().items()
    return {f"{name}/{key}": torch.as_tensor(value, dtype=torch.float64).detach().contiguous() for key, value in found}


def main() -> None:
    """Record all cases."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    versions = {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    values = {key: value.clone() for name in CASES for key, value in numbers_of(name).items()}
    save_file(values, VALUES, metadata={"commit": commit, **versions})
    print(f"{len(CASES)} cases, {len(values)} arrays, {VALUES.stat().st_size / 1e6:.2f} MB, of {commit[:7]}")


if __name__ == "__main__":
    main()

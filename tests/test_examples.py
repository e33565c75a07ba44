"""Every example runs, in a process of its own, from a folder of its own, with warnings as errors."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_example_runs(path, tmp_path):
    jit = "ignore:`torch.jit:DeprecationWarning"  # torch's own forward mode scripts its decompositions
    command = [sys.executable, "-W", "error", "-W", jit, path]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout

"""Every example runs, in a process of its own, from a folder of its own, with warnings as errors."""

from pathlib import Path

import pytest

from tests import processes

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_example_runs(path, tmp_path):
    finished = processes.run(path, folder=tmp_path, strict=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout

"""Every example runs, in a process of its own, from a folder of its own, with warnings as errors.

None of its posteriors lies at the end of the range of its precision without a word about it.
"""

from pathlib import Path

import pytest

from tests import processes

WATCHED = Path(__file__).with_name("watched.py")
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.pages
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path, tmp_path):
    finished = processes.run(WATCHED, str(path), folder=tmp_path, strict=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout

"""The linter of prose: code is not read, words of this project alone are found, and so is what proselint finds."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROSE = Path(__file__).parent.parent / "tools" / "prose.py"
pytestmark = pytest.mark.skipif(find_spec("proselint") is None, reason="proselint is not installed")


def linted(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "page.md").write_text(text)
    return subprocess.run([sys.executable, PROSE, folder], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("One\n\nDigits that are turned by 45° look foreign.\n", ["page.md:3", "rotated", "out of distribution"]),
        ("It is the the best.\n", ["page.md:1", "repeated"]),
    ],
)
def test_mistakes_are_told_with_their_lines(text, said, tmp_path):
    found = linted(text, tmp_path)
    assert found.returncode == 1
    assert all(word in found.stdout for word in said), found.stdout


def test_code_and_formulas_are_not_prose(tmp_path):
    text = "Call `foreign the the` at $x x$.\n\n```python\nforeign = the, the\n```\n\nAnd [here](foreign.md).\n"
    found = linted(text, tmp_path)
    assert found.returncode == 0, found.stdout


def test_docstrings_messages_and_comments_are_read_for_words(tmp_path):
    script = tmp_path / "code.py"
    script.write_text('"""Fine.\n\nA foreign input."""\nforeign = 1  # tuned if left out\nprint(f"cooled {1}")\n')
    found = subprocess.run([sys.executable, PROSE, tmp_path], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert [line.split(": ")[0].rpartition(":")[2] for line in found.stdout.splitlines()] == ["3", "4", "5"]

"""Lint the prose of Markdown pages: proselint without code and formulas, and words that this project does not use.

    python tools/prose.py README.md CHANGELOG.md docs lapwing examples

Code and formulas are blanked, so that line numbers stay those of the page. `.proselint.json` says which checks are off:
those of quotes and dots, which are typed straight here, and of accents in facade and resume. Of Python files strings
and comments are read, for words only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

CODE = re.compile(r"^(`{3,}).*?^\1$|`[^`]+`|^\$\$.*?^\$\$|\$\$.*?\$\$|\$[^$\n]+\$|\]\([^)\s]+\)", flags=re.S | re.M)
CONFIG = Path(__file__).parent.parent / ".proselint.json"
HOUSE = {  # what only this project would say, and what the field says
    r"drawn networks?": "the network at sampled weights",
    r"foreign": "out of distribution, unfamiliar",
    r"cooled": "temperature scaling",
    r"the network alone": "the raw network",
    r"turned (?:by \d+|digits|pictures|images)": "rotated",
    r"if not said|if left out|left out, (?:the|everything|it is)|by given": "by default",
    r"left alone": "not changed",
    r"what is told of it": "a function that is called",
}
READ = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}  # Python 3.12 has it


def pages(places: Sequence[Path]) -> Iterator[Path]:
    """The Markdown files among files and folders, without those that were built."""
    for place in places:
        found = sorted(place.rglob("*.md")) if place.is_dir() else [place]
        yield from (path for path in found if "_build" not in path.parts)


def blanked(text: str) -> str:
    """The prose of a page: code is blank, in as many lines.

    >>> blanked("Call `fit(x)` at $x$.")
    'Call ········ at ···.'
    """
    return CODE.sub(lambda found: re.sub(r"[^\n]", "·", found[0]), text)


def scripts(places: Sequence[Path]) -> Iterator[Path]:
    """The Python files in folders."""
    yield from (path for place in places if place.is_dir() for path in sorted(place.rglob("*.py")))


def spoken(path: Path) -> str:
    """What a Python file says in strings and comments, each on its line."""
    lines = [""] * (1 + path.read_text().count("\n"))
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in READ:
                for place, line in enumerate(token.string.splitlines(), token.start[0] - 1):
                    lines[place] += f" {line}"
    return "\n".join(lines)


def house_words(path: Path, text: str) -> Iterator[str]:
    """Where a page has words of its own."""
    for number, line in enumerate(text.splitlines(), 1):
        for word, better in HOUSE.items():
            if found := re.search(rf"\b(?:{word})\b", line, flags=re.I):
                yield f"{path}:{number}: {found[0]!r} is a word of this project alone: say {better}"


def proselint(paths: Sequence[Path]) -> Iterator[str]:
    """What proselint says of pages whose code is blank."""
    if not paths:
        return
    with tempfile.TemporaryDirectory() as folder:
        copies = {(Path(folder) / f"{place}.md").resolve(): path for place, path in enumerate(paths)}
        for copy, path in copies.items():
            copy.write_text(blanked(path.read_text()))
        command = [sys.executable, "-m", "proselint", "check", "--config", str(CONFIG), *map(str, copies)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own arguments)
    said = found.stdout + found.stderr
    for copy, path in copies.items():
        said = said.replace(str(copy), str(path))
    yield from filter(None, said.splitlines())
    if found.returncode and not said:
        yield f"proselint ended with {found.returncode}"


def main(places: Sequence[str]) -> int:
    """Print what was found; one if there is something."""
    given = [Path(place) for place in places]
    paths = list(pages(given))
    texts = {path: blanked(path.read_text()) for path in paths} | {path: spoken(path) for path in scripts(given)}
    found = [*proselint(paths), *(line for path, text in texts.items() for line in house_words(path, text))]
    print("\n".join(found) or f"The prose of {len(paths)} pages and {len(texts) - len(paths)} scripts is fine")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Code on the pages of docs/ runs, and the pages say what they should."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"
ROW = re.compile(r"^\| (\d+) \| (.*?) \| (.*) \| (.*) \|$", flags=re.M)
ASKS = [match.groups() for match in ROW.finditer((DOCS / "asks.md").read_text())]


def fenced(page: str, kind: str) -> list[str]:
    return re.findall(rf"```python {kind}\n(.*?)```", (DOCS / page).read_text(), flags=re.S)


@pytest.fixture(scope="module")
def setup() -> dict:
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in fenced("asks.md", "setup"):
            exec(code, names)
    return names


def test_every_ask_is_there_once():
    assert [int(number) for number, *_ in ASKS] == list(range(1, 38))
    for number, threads, wanted, _ in ASKS:
        assert re.findall(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/issues/\d+\)", threads), number
        assert len(wanted) > 15, number


@pytest.mark.parametrize(("number", "wanted", "answer"), [(n, w, a) for n, _, w, a in ASKS], ids=[a[0] for a in ASKS])
def test_the_code_that_answers_an_ask_runs(setup, number, wanted, answer):
    pieces = re.findall(r"`([^`]+)`", answer)
    if answer.startswith("**Not yet**"):
        assert not any("lw." in piece for piece in pieces)
        return
    assert pieces, f"ask {number} has no code, and does not say that it is not answered yet"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for piece in pieces:
            exec(piece, dict(setup))


def test_our_code_on_the_migration_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in [*fenced("from_laplace_torch.md", "setup"), *fenced("from_laplace_torch.md", "ours")]:
            exec(code, names)
        again, posterior, new = names["again"], names["posterior"], names["new"]
        torch.testing.assert_close(again.predict(new).probs, posterior.predict(new).probs)
    assert names["functions"].shape == (32, 5, 3)
    assert names["weights"].shape[1] == 32
    assert names["labels"].shape == (32, 5)

"""Every question on benchmarks/asks.md is answered by code that runs, and says something."""

import math
import re
from pathlib import Path

import pytest
import torch

import lapwing

PAGE = (Path(__file__).parents[2] / "benchmarks" / "asks.md").read_text()
SETUP = re.compile(r"^```python setup\n(.*?)^```$", flags=re.S | re.M)
ROW = re.compile(r"^\| (\d+) \| (.*?) \| (.*) \| (.*) \|$", flags=re.M)
ASKS = [match.groups() for match in ROW.finditer(PAGE)]


@pytest.fixture(scope="module")
def setup() -> dict:
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(SETUP.search(PAGE).group(1), names)
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
            assert is_sound(result_of(piece, dict(setup))), f"ask {number}: {piece}"


def result_of(piece: str, names: dict) -> object:
    """The value of an expression; True of a statement that has run."""
    try:
        code = compile(piece, "asks.md", "eval")
    except SyntaxError:
        exec(piece, names)
        return True
    return eval(code, names)


def is_sound(value: object) -> bool:
    """Whether an answer says something: numbers are finite, variances not negative, and nothing is empty."""
    if isinstance(value, lapwing.Prediction):
        return is_sound([value.mean, value.epistemic_variance]) and bool((value.epistemic_variance >= 0).all())
    if isinstance(value, lapwing.Posterior):
        return is_sound([value.mean, value.draws, float(value.log_evidence)]) and bool((value.prior.std >= 0).all())
    if isinstance(value, torch.Tensor):
        return value.numel() > 0 and bool(value.isfinite().all())
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, tuple | list):
        return len(value) > 0 and all(map(is_sound, value))
    if isinstance(value, dict):
        return len(value) > 0 and all(map(is_sound, value.values()))
    return value is not None and value != ""

"""The code of the page about BoTorch runs, and shows what the page says."""

import doctest
from pathlib import Path

import pytest
import torch

pytest.importorskip("botorch", reason="BoTorch is not installed: `make integrations` does it")

from tests.test_docs import FLAGS, fenced

PAGE = "how_to/bayesian_optimisation.md"


def test_the_page_about_botorch_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(tmp_path))
    names: dict = {"__name__": "page"}
    with torch.random.fork_rng():
        for code in fenced(PAGE, "botorch"):
            if not code.startswith(">>>"):
                exec(compile(code, PAGE, "exec"), names)
                continue
            test = doctest.DocTestParser().get_doctest(code, names, PAGE, PAGE, 0)
            test.globs = names
            failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed
            assert not failed

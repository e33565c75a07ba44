"""The code of the pages about other libraries runs, and shows what the pages say."""

import doctest
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.test_docs import FLAGS, fenced

NEEDED = {"botorch": ("botorch",), "integrations": ("cleanlab", "lightning", "mapie", "onnxruntime", "skorch")}
PAGES = {"how_to/bayesian_optimisation.md": "botorch", "how_to/integrations.md": "integrations"}


@pytest.mark.filterwarnings("ignore")  # those of the other libraries
@pytest.mark.parametrize("page", PAGES)
def test_a_page_about_another_library_runs(page, tmp_path, monkeypatch):
    missing = [name for name in NEEDED[PAGES[page]] if find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing} not installed: `make integrations` does it")
    monkeypatch.chdir(Path(tmp_path))
    names: dict = {"__name__": "page"}
    with torch.random.fork_rng():
        for code in fenced(page, PAGES[page]):
            if not code.startswith(">>>"):
                exec(compile(code, page, "exec"), names)
                continue
            test = doctest.DocTestParser().get_doctest(code, names, page, page, 0)
            test.globs = names
            failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed
            assert not failed

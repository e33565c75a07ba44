"""The code of pages about other libraries runs, and shows what the page says."""

import doctest
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.test_docs import FLAGS, fenced

PAGES = {
    "how_to/bayesian_optimisation.md": ("botorch", ("botorch",)),
    "how_to/hugging_face.md": ("hf", ("peft",)),
    "how_to/integrations.md": ("integrations", ("cleanlab", "lightning", "mapie", "onnxruntime", "skorch")),
}


@pytest.mark.filterwarnings("ignore")  # of the other libraries
@pytest.mark.parametrize("page", list(PAGES))
def test_the_page_runs(page, tmp_path, monkeypatch):
    mark, libraries = PAGES[page]
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: `make integrations` does it")
    monkeypatch.chdir(Path(tmp_path))
    names: dict = {"__name__": "page"}
    with torch.random.fork_rng():
        for code in fenced(page, mark):
            if not code.startswith(">>>"):
                exec(compile(code, page, "exec"), names)
                continue
            test = doctest.DocTestParser().get_doctest(code, names, page, page, 0)
            test.globs = names
            failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed
            assert not failed

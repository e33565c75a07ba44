"""Code on the pages runs, links lead somewhere, and every public name is in the docs, an example and a test."""

import doctest
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import lapwing
import lapwing.linear
import lapwing.tabular
from lapwing.app.cli.commands import app
from tests.watched import unnoticed

HERE = Path(__file__)
ROOT = HERE.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("benchmarks/*.md"))]
BLOCK = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1$", flags=re.S | re.M)
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SHOWN = {"text", ""}  # output, a tree of folders
DIRECTIVES = {"{toctree}", "{eval-rst}", "{include} ../CHANGELOG.md", "{include} ../CONTRIBUTING.md", "{commands}"}
OWN_TESTS = {
    "python setup",
    "python ours",
    "python theirs",
    "python botorch",
    "python integrations",
    "python hf",
}  # run below, and by tests of their own


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str]]:
    """Every fenced block of a page, without what documents how to write one."""
    return [(kind.strip(), code) for _, kind, code in BLOCK.findall(path.read_text())]


def fenced(page: str, kind: str) -> list[str]:
    return [code for found, code in blocks(DOCS / page) if found == f"python {kind}"]


# every block of every page


@pytest.mark.pages
@pytest.mark.parametrize("path", [*PAGES, *TOP], ids=name_of)
def test_the_code_of_a_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # pages write modules of their own
    for module in re.findall(r"^`{3}python file=(\w+)\.py$", path.read_text(), flags=re.M):
        monkeypatch.setitem(sys.modules, module, None)  # what is there is put back afterwards
        del sys.modules[module]
    names: dict = {"__name__": "page"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for number, (kind, code) in enumerate(blocks(path)):
            if kind == "python":
                run_python(code, names, f"{name_of(path)}, block {number + 1}")
            elif kind.startswith("python file="):
                Path(kind.partition("=")[2]).write_text(code)
            elif kind == "console":
                run_console(code)
            elif not kind.startswith("{literalinclude} ../examples/"):  # run by test_examples.py
                assert kind in SHOWN | DIRECTIVES | OWN_TESTS, f"block {number + 1} of {path.name} is {kind!r}"
    assert not unnoticed(names, path.read_text())


def run_python(code: str, names: dict, where: str) -> None:
    """Execute a block, or where it shows results compare them."""
    if not code.lstrip().startswith(">>>"):
        exec(compile(code, where, "exec"), names)
        return
    parsed = doctest.DocTestParser().get_doctest(code, names, where, None, 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    told: list[str] = []
    runner.run(parsed, out=told.append, clear_globs=False)
    names.update(parsed.globs)
    assert not runner.summarize(verbose=False).failed, "".join(told)


def run_console(code: str) -> None:
    """Run what a page types into a terminal; what only sets up is checked to be there."""
    for line in code.splitlines():
        if not line.startswith("$ "):
            continue  # what was printed
        program, *words = shlex.split(line[2:].partition("  #")[0])
        if program == "lapwing":
            run_lapwing(words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), flags=re.M), line
        else:
            assert program in ("pip", "git", "cd"), f"what does {line!r} do?"
            check_extras(line)


def run_lapwing(words: list[str]) -> None:
    try:
        before, sys.argv = sys.argv, ["lapwing", *words]
        app(words, prog_name="lapwing", standalone_mode=False)
    finally:
        sys.argv = before


def check_extras(line: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"\[(.*?)\]", line):
        assert set(named.split(",")) <= set(extras), line


# every example states its result, with what costs nothing beside it

TAUGHT = [TOP[0], *(path for path in PAGES if path.parent.name in {"tutorials", "how_to", "explanation"})]
BY_THEMSELVES = {"troubleshooting.md", "from_laplace_torch.md"}  # messages; two packages side by side
SCORED = re.compile(r"^(raw network|temperature scaling|temp\. scaling|lapwing)\b.*?\bNLL (\d+\.\d+)", flags=re.M)


def results(path: Path) -> list[str]:
    """What the examples of a page are said to print."""
    parser = doctest.DocTestParser()
    shown = [code for kind, code in blocks(path) if kind == "python" and code.lstrip().startswith(">>>")]
    return [example.want for code in shown for example in parser.get_examples(code)]


@pytest.mark.parametrize("path", TAUGHT, ids=name_of)
def test_what_an_example_prints_is_on_the_page(path):
    plain = [code for kind, code in blocks(path) if kind == "python" and not code.lstrip().startswith(">>>")]
    assert not any("print(" in code for code in plain)
    assert not plain or path.name in BY_THEMSELVES or any(results(path))


@pytest.mark.parametrize("path", TAUGHT, ids=name_of)
def test_classifiers_are_compared_with_what_costs_nothing(path):
    code = "\n".join(code for kind, code in blocks(path) if kind == "python")
    if path.name not in BY_THEMSELVES and re.search(r"Categorical\(|Classifier\(", code):
        told = "\n".join(results(path))
        assert "raw network" in told
        assert re.search(r"temp(\.|erature) scaling", told)


def test_temperature_scaling_is_better_somewhere():
    tables = [dict(SCORED.findall(want)) for path in TAUGHT for want in results(path)]
    compared = [found for found in tables if {"temperature scaling", "lapwing"} <= set(found)]
    assert any(float(found["temperature scaling"]) < float(found["lapwing"]) for found in compared)
    assert any(float(found["temperature scaling"]) > float(found["lapwing"]) for found in compared)


# links and words


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [*PAGES, *TOP], ids=name_of)
def test_links_lead_somewhere(path):
    for found in LINK.findall(BLOCK.sub("", path.read_text())):
        target = "".join(found)
        if re.match(r"https://[\w.-]+\.\w+(/|$)", target):
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        assert file.exists(), f"{name_of(path)} links to {target}"
        assert file.is_relative_to(ROOT.resolve()), target
        assert not anchor or anchor in anchors(file), f"{name_of(path)} links to {target}"


@pytest.mark.parametrize("path", [*PAGES, *TOP], ids=name_of)
def test_files_named_on_a_page_are_there(path):
    for named in re.findall(r"`((?:examples|tests|benchmarks|lapwing)/[\w/.*]+)`", path.read_text()):
        assert any(ROOT.glob(named.rstrip("/"))), f"{name_of(path)} names {named}"


@pytest.mark.parametrize("path", [*PAGES, *TOP], ids=name_of)
def test_pages_do_not_depend_on_a_machine(path):
    assert not re.search(r"(?<![\w.])/(work|tmp|home|opt|root)/|pypi\.org|/simple/", path.read_text())


def test_every_page_is_in_the_table_of_contents():
    listed = set()
    for path in PAGES:
        for kind, code in blocks(path):
            if kind == "{toctree}":
                entries = [line for line in code.splitlines() if line and not line.startswith(":")]
                listed |= {(path.parent / f"{entry}.md").resolve() for entry in entries}
    assert {path.resolve() for path in PAGES} - listed == {(DOCS / "index.md").resolve()}


def test_pictures_are_drawn_by_a_script():
    scripts = "".join(path.read_text() for path in [*ROOT.glob("examples/*.py"), *ROOT.glob("benchmarks/*.py")])
    for picture in (DOCS / "images").iterdir():
        assert picture.name in scripts or picture.stem in scripts, picture.name


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_the_gallery_shows_the_picture_of_every_example_with_its_code(path):
    assert f'savefig("{path.stem}.png"' in path.read_text()
    assert (DOCS / "images" / f"{path.stem}.png").is_file()
    shown = (DOCS / "gallery.md").read_text()
    assert f"`{name_of(path)}`\n\n![" in shown
    lines = path.read_text().splitlines()
    code = 1 + next(place for place, line in enumerate(lines) if line.startswith(("import ", "from ")))
    included = f"```{{literalinclude}} ../{name_of(path)}\n:language: python\n:lines: {code}-\n"
    assert f"](images/{path.stem}.png)\n\n{included}" in shown


# public names

PUBLIC = {f"lapwing.{name}": name for name in lapwing.__all__ if name != "__version__"}
PUBLIC |= {f"lapwing.linear.{name}": name for name in lapwing.linear.__all__}
PUBLIC |= {f"lapwing.tabular.{name}": name for name in lapwing.tabular.__all__}
FAMILIES = {
    f"lapwing.families.{path.stem}": path.stem
    for path in (ROOT / "lapwing/families").iterdir()
    if path.stem not in {"dense_laplace", "evidence_training", "networks", "sampled"} and not path.stem.startswith("__")
}


def texts(*globs: str) -> str:
    return "\n".join(path.read_text() for glob in globs for path in sorted(ROOT.glob(glob)) if path != HERE)


@pytest.mark.parametrize("place", ["docs", "examples", "tests"])
def test_every_public_name_is_shown(place):
    everything = {
        "docs": "\n".join(path.read_text() for path in [*PAGES, *TOP[:1]] if path.parent.name != "api"),
        "examples": texts("examples/*.py"),
        "tests": texts("tests/**/test_*.py"),
    }[place]
    missing = [full for full, name in (PUBLIC | FAMILIES).items() if not re.search(rf"\b{name}\b", everything)]
    assert not missing, f"not in {place}: {', '.join(missing)}"


def test_the_reference_has_every_public_module():
    reference = "".join(path.read_text() for path in (DOCS / "reference").rglob("*.md"))
    modules = re.findall(r"automodule:: (\S+)", reference)
    assert len(modules) == len(set(modules))
    assert {
        "lapwing",
        "lapwing.linear",
        "lapwing.tabular",
        "lapwing.training",
        "lapwing.metrics",
        "lapwing.studies.tomography",
    } <= set(modules)
    assert set(FAMILIES) <= set(modules)


# pages with tests of their own


@pytest.mark.pages
def test_our_code_on_the_migration_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in [*fenced("how_to/from_laplace_torch.md", "setup"), *fenced("how_to/from_laplace_torch.md", "ours")]:
            exec(code, names)
        again, posterior, new = names["again"], names["posterior"], names["new"]
        torch.testing.assert_close(again.predict(new).probs, posterior.predict(new).probs)
    assert names["functions"].shape == (32, 5, 3)
    assert names["weights"].shape[0] == 32
    assert names["labels"].shape == (32, 5)

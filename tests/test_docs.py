"""Code on the pages runs, links lead somewhere, and every public name is in the docs, an example and a test."""

import doctest
import math
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

HERE = Path(__file__)
ROOT = HERE.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
BLOCK = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1$", flags=re.S | re.M)
ROW = re.compile(r"^\| (\d+) \| (.*?) \| (.*) \| (.*) \|$", flags=re.M)
ASKS = [match.groups() for match in ROW.finditer((DOCS / "asks.md").read_text())]
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SHOWN = {"text", ""}  # output, a tree of folders
DIRECTIVES = {"{toctree}", "{eval-rst}", "{include} ../CHANGELOG.md", "{include} ../CONTRIBUTING.md"}
OWN_TESTS = {"python setup", "python ours", "python theirs"}  # run below, and by tests/peers/test_migration.py


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str]]:
    """Every fenced block of a page, without what documents how to write one."""
    return [(kind.strip(), code) for _, kind, code in BLOCK.findall(path.read_text())]


def fenced(page: str, kind: str) -> list[str]:
    return [code for found, code in blocks(DOCS / page) if found == f"python {kind}"]


# every block of every page


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
            else:
                assert kind in SHOWN | DIRECTIVES | OWN_TESTS, f"block {number + 1} of {path.name} is {kind!r}"


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
def test_every_example_draws_its_picture_for_the_gallery(path):
    assert f'savefig("{path.stem}.png"' in path.read_text()
    assert (DOCS / "images" / f"{path.stem}.png").is_file()
    shown = (DOCS / "gallery.md").read_text()
    assert f"`{name_of(path)}`\n\n![" in shown
    assert f"](images/{path.stem}.png)" in shown


# public names

PUBLIC = {f"lapwing.{name}": name for name in lapwing.__all__ if name != "__version__"}
PUBLIC |= {f"lapwing.linear.{name}": name for name in lapwing.linear.__all__}
PUBLIC |= {f"lapwing.tabular.{name}": name for name in lapwing.tabular.__all__}
FAMILIES = {
    f"lapwing.families.{path.stem}": path.stem
    for path in (ROOT / "lapwing/families").iterdir()
    if path.stem not in {"evidence_training", "networks", "sampled"} and not path.stem.startswith("__")
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
    reference = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
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
    assert names["weights"].shape[0] == 32
    assert names["labels"].shape == (32, 5)

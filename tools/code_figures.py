"""Figures of the code itself: how often it asks what it holds, how long its functions are, how far a fit travels.

    python tools/code_figures.py [ROOT] [--json] [--files] [--part PATH …]

How each is counted:

- Lines are newlines, as `wc -l` has them, blank ones and docstrings included.
- Questions are calls of `isinstance` and comparisons with None by `is` or `is not`, per 1,000 lines. A part that is no
  folder is looked for as a file: `lapwing/bayes/posterior` may be `lapwing/bayes/posterior.py`.
- A function's body is what stands between its first and its last statement, the docstring left out. Its tokens are
  those of `tokenize` without comments, ends of lines and indentation. Methods, functions within functions (also part
  of the outer one) and those with nothing but a docstring are counted.
- Arguments are named ones, by position or by keyword, without `self` and `cls` in front.
- Two classes share a name where they differ by underscores in front at most.
- A parallel assignment is `a, b = x, y` where no value reads one of the targets, so that it could be two statements.
- Files visited are those of which any function is called during fit and predict, found by `sys.setprofile` in a fresh
  process in which all modules that they might need are imported already. The validated networks are fitted with
  held-out data and asked for `probs`. The one by evidence has none, and is asked for its mean.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "lapwing"
PARTS = ("lapwing", "lapwing/bayes", "lapwing/bayes/posterior")
IMPORTED = ("bayes", "linalg", "linear", "network", "runtime")  # before a fit is traced
MANY = 6  # arguments
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip
Definition = ast.FunctionDef | ast.AsyncFunctionDef
Figures = dict[str, Any]


@dataclass(frozen=True)
class Function:
    """What is counted of one function."""

    tokens: int
    lines: int
    arguments: int


@dataclass(frozen=True)
class Source:
    """One file, read and parsed."""

    path: Path
    tree: ast.Module

    @staticmethod
    def of(path: Path) -> Source:
        """A file from where it is."""
        return Source(path, ast.parse(path.read_text(), str(path)))

    @property
    def lines(self) -> int:
        """Lines as `wc -l` counts them."""
        return self.path.read_bytes().count(b"\n")

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Everything of some kinds in the file."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def starts(self) -> list[tuple[int, int]]:
        """Line and column at which each token begins that is more than layout."""
        with tokenize.open(self.path) as text:
            found = tokenize.generate_tokens(text.readline)
            return [token.start for token in found if token.type not in LAYOUT]

    def functions(self) -> list[Function]:
        """Every function and method."""
        starts, text = self.starts(), self.path.read_text().splitlines()
        return [measured(node, starts, text) for node in self.nodes(ast.FunctionDef, ast.AsyncFunctionDef)]


def sources(root: Path, part: str) -> list[Source]:
    """The files of a folder, or the one file that stands for it; none where there is neither."""
    place = root / part
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    return [Source.of(path) for path in paths if path.is_file()]


def measured(node: Definition, starts: Sequence[tuple[int, int]], text: Sequence[str]) -> Function:
    """One function, by the tokens of its file."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not body:
        return Function(0, 0, arguments(node))
    first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    column = len(text[first - 1].encode()[: body[0].col_offset].decode())  # ast counts bytes, tokenize characters
    tokens = sum((first, column) <= start and start[0] <= last for start in starts)
    return Function(tokens, last - first + 1, arguments(node))


def arguments(node: Definition) -> int:
    """How many arguments a caller can name or give by position."""
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_question(node: Any) -> bool:
    """Whether a call or a comparison asks for a type, or for None."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "isinstance"
    pairs = zip(node.ops, node.comparators, strict=True)
    return any(isinstance(op, ast.Is | ast.IsNot) and _is_none(value) for op, value in pairs)


def is_parallel(node: Any) -> bool:
    """Whether an assignment gives several targets a value each, none of which reads another target."""
    target, value = node.targets[0], node.value
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
        return False
    written = {ast.unparse(one) for one in target.elts}
    read = {ast.unparse(one) for one in ast.walk(value) if isinstance(one, ast.expr)}
    return not written & read


def shared_names(files: Sequence[Source]) -> list[str]:
    """Names that stand for more than one class."""
    found = Counter(node.name.lstrip("_") for file in files for node in file.nodes(ast.ClassDef))
    return sorted(name for name, count in found.items() if count > 1)


def questions(root: Path, parts: Sequence[str]) -> Figures:
    """Questions per 1,000 lines of each part that is there."""
    found: Figures = {}
    for part in parts:
        files = sources(root, part)
        asked = sum(is_question(node) for file in files for node in file.nodes(ast.Call, ast.Compare))
        if files:
            found[f"isinstance and None per 1,000 lines, {part}"] = round(1000 * asked / _lines(files), 1)
    return found


def lengths(root: Path) -> Figures:
    """How long functions are, in tokens and lines, and how many arguments they take."""
    whole, core = ([one for file in sources(root, part) for one in file.functions()] for part in PARTS[:2])
    heights = [one.lines for one in whole]
    return {
        "functions": len(whole),
        "tokens of a function, median": statistics.median(one.tokens for one in whole),
        f"tokens of a function, median of {PARTS[1]}": statistics.median(one.tokens for one in core),
        "lines of a function, median": statistics.median(heights),
        "lines of a function, 90th percentile": statistics.quantiles(heights, n=10, method="inclusive")[-1],
        "lines of a function, most": max(heights),
        f"functions with more than {MANY} arguments": sum(one.arguments > MANY for one in whole),
    }


def habits(root: Path) -> Figures:
    """Size of the package, names of classes, and what makes a line dense."""
    files = sources(root, PACKAGE)
    bench = _lines(sources(root, f"{PACKAGE}/bench"))
    return {
        "lines": _lines(files),
        "lines without bench": _lines(files) - bench,
        "class names that stand for several": len(shared_names(files)),
        "parallel assignments of unrelated values": _count(files, is_parallel, ast.Assign),
        "conditional expressions": _count(files, lambda _: True, ast.IfExp),
    }


def visits(root: Path) -> dict[str, list[str]]:
    """The files that each way through the package visits, every one in a process of its own."""
    places = {**os.environ, "PYTHONPATH": str(root)}
    found = {}
    for route in ROUTES:
        command = [sys.executable, __file__, str(root), "--route", route]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env=places)  # noqa: S603
        found[route] = json.loads(told.stdout)
    return found


def visited(root: Path, route: str) -> list[str]:
    """The files of the package that one way through it visits; for a fresh process that finds the package at root."""
    for part in IMPORTED:
        for source in sorted((root / PACKAGE / part).rglob("[!_]*.py")):
            importlib.import_module(".".join(source.relative_to(root).with_suffix("").parts))
    home, seen, run = str(root / PACKAGE) + os.sep, set[str](), ROUTES[route]()

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return sorted(name.removeprefix(home) for name in seen if name.startswith(home))


def small_classifier() -> tuple[Any, Any, Any]:
    """A network trained on three noisy classes, inputs and labels; the last third is held out."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(180, 2)
    y = (x[:, 0] + 0.7 * torch.randn(180) > 0).long() + (x[:, 1] > 1).long()
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:120]), y[:120]).backward()
        optimiser.step()
    return model.eval(), x, y


def of_network(validated: bool, method: str | None = None) -> Callable[[], Any]:
    """Fit and predict of a small classifier."""
    import lapwing as lw

    model, x, y = small_classifier()
    fit, labels = lw.fit, lw.Categorical  # found by the package's own __getattr__, which is no part of a fit
    chosen = None if method is None else getattr(lw, method)()
    if not validated:
        return lambda: fit(model, (x, y), labels(), method=chosen).predict(x[:5]).mean
    data, held = (x[:120], y[:120]), (x[120:], y[120:])
    return lambda: fit(model, data, labels(), method=chosen, validation=held).predict(x[:5]).probs


def of_ridge() -> Callable[[], Any]:
    """Fit and predict of a linear regression."""
    import torch

    from lapwing.linear import BayesianRidge

    noise = torch.Generator().manual_seed(0)
    x = torch.randn(50, 4, generator=noise).numpy()
    y = x[:, 0] + 0.1 * torch.randn(50, generator=noise).numpy()
    return lambda: BayesianRidge().fit(x, y).predict(x, return_std=True)


ROUTES: dict[str, Callable[[], Callable[[], Any]]] = {
    "network, validated": lambda: of_network(validated=True),
    "network, by evidence": lambda: of_network(validated=False),
    "network, KFAC, validated": lambda: of_network(validated=True, method="KFAC"),
    "BayesianRidge": of_ridge,
}


def table(figures: Figures) -> str:
    """Names and numbers under each other."""
    width = max(len(name) for name in figures)
    return "\n".join(f"{name:<{width}}  {value:>8,}" for name, value in figures.items())


def main() -> None:
    """Print the figures of a working tree."""
    parser = argparse.ArgumentParser(description="Figures of the code itself.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--files", action="store_true", help="list the files that are visited")
    parser.add_argument("--part", nargs="+", default=PARTS, help="folders to count questions in")
    parser.add_argument("--route", choices=tuple(ROUTES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = given.root.resolve()
    if given.route:
        sys.stdout.write(json.dumps(visited(root, given.route)))
        return
    files = visits(root)
    counts = {f"files visited, {route}": len(found) for route, found in files.items()}
    figures = {**questions(root, given.part), **lengths(root), **habits(root), **counts}
    lists = files if given.files else {}
    if given.json:
        sys.stdout.write(json.dumps({**figures, **({"files": lists} if lists else {})}, indent=1) + "\n")
        return
    sys.stdout.write(table(figures) + "\n")
    for route, found in lists.items():
        sys.stdout.write(f"\n{route}\n" + "".join(f"  {name}\n" for name in found))


def _lines(files: Sequence[Source]) -> int:
    return sum(file.lines for file in files)


def _count(files: Sequence[Source], holds: Callable[[Any], bool], kind: type[ast.AST]) -> int:
    return sum(holds(node) for file in files for node in file.nodes(kind))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


if __name__ == "__main__":
    main()

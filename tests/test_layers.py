"""Imports point one way, as the layout says."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lapwing"
# each part may import itself and what stands in its row
ALLOWED = {
    "arrays": set(),
    "atomic": set(),
    "linalg": {"atomic"},
    "bayes": {"atomic", "linalg"},
    "linear": {"linalg", "bayes"},
    "tabular": {"atomic", "linalg", "bayes", "linear"},
    "network": {"linalg", "bayes"},
    "training": {"arrays", "atomic", "linalg", "bayes", "network"},
    "families": {"atomic", "linalg", "bayes", "network", "training"},
    "tomography": {"arrays", "linalg", "bayes", "network", "training", "report"},
    "symmetry": {"atomic", "linalg", "bayes", "network", "training", "report"},
    "facade": {"linalg", "bayes", "network"},
    "metrics": set(),
    "records": {"arrays", "atomic"},
    "report": {"metrics", "records"},
    "recording": {"bayes", "network", "records"},
    "bench": {
        "__init__",
        "arrays",
        "linalg",
        "bayes",
        "network",
        "training",
        "families",
        "linear",
        "facade",
        "metrics",
        "records",
    },
    "cli": {
        "__init__",
        "arrays",
        "linalg",
        "bayes",
        "network",
        "training",
        "families",
        "linear",
        "facade",
        "metrics",
        "records",
        "recording",
        "report",
        "bench",
        "demo",
        "tabular",
        "tomography",
        "symmetry",
    },
    "demo": {
        "linear",
        "facade",
        "training",
        "bayes",
        "bench",
        "metrics",
        "records",
        "recording",
        "report",
        "families",
        "network",
        "__init__",
    },
    "__init__": set(),
}
# inside bayes each part may import itself and those before it
ORDER_OF_BAYES = (
    "laplace_approximation",
    "noise",
    "likelihoods",
    "linear_model",
    "priors",
    "diagnostics",
    "statistics",
    "evidence",
    "fits",
    "journals",
    "sharing",
    "methods",
    "predictive",
    "posterior",
    "mixtures",
    "inference",
)
FILES = sorted(PACKAGE.rglob("*.py"))
FILES_OF_BAYES = sorted(path for path in (PACKAGE / "bayes").rglob("*.py") if path != PACKAGE / "bayes" / "__init__.py")


def part_of(module: str, depth: int = 1) -> str:
    return [*module.split("."), *["__init__"] * depth][depth]


def imported(path: Path) -> set[str]:
    """Every lapwing module a file imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            whole = {f"{base}.{alias.name}" for alias in node.names}
            names |= whole if base == "lapwing.bayes" else {base} | (whole if base == "lapwing" else set())
    return {name for name in names if name == "lapwing" or name.startswith("lapwing.")}


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_imports_point_one_way(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in ALLOWED, f"{own} is new: say in ALLOWED what it may import"
    found = {part_of(name) for name in imported(path)} - {own}
    assert found <= ALLOWED[own]


@pytest.mark.parametrize("path", FILES_OF_BAYES, ids=[str(path.relative_to(PACKAGE)) for path in FILES_OF_BAYES])
def test_imports_inside_bayes_point_one_way(path):
    own = path.relative_to(PACKAGE / "bayes").parts[0].removesuffix(".py")
    assert own in ORDER_OF_BAYES, f"{own} is new: say in ORDER_OF_BAYES what comes before it"
    found = {part_of(name, depth=2) for name in imported(path) if part_of(name) == "bayes"}
    assert found <= set(ORDER_OF_BAYES[: ORDER_OF_BAYES.index(own) + 1])


def test_the_rule_would_notice(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def f():\n    from lapwing.bayes import evidence\n    import lapwing.linear.ridge\n    from lapwing import infer\n"
    )
    assert {part_of(name) for name in imported(bad)} == {"bayes", "linear", "__init__", "infer"}
    assert {part_of(name, depth=2) for name in imported(bad)} == {"evidence", "ridge", "__init__"}

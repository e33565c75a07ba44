"""Imports point one way, as the layout says."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "lapwing"
# each part may import itself and what stands in its row
ALLOWED = {
    "runtime": set(),
    "linalg": {"runtime"},
    "bayes": {"runtime", "linalg", "metrics"},
    "linear": {"runtime", "linalg", "bayes"},
    "tabular": {"runtime", "linalg", "bayes", "linear"},
    "network": {"runtime", "linalg", "bayes"},
    "training": {"runtime", "linalg", "bayes", "network"},
    "families": {"runtime", "linalg", "bayes", "network", "training"},
    "facade": {"runtime", "linalg", "bayes", "network"},
    "metrics": set(),
    "decisions": {"runtime", "linalg", "bayes", "network", "tabular", "families"},
    "integrations": {"runtime", "linalg", "bayes", "network", "tabular", "facade"},
    "studies": {"runtime", "linalg", "bayes", "network", "training", "app.report"},
    "app.records": {"runtime"},
    "app.report": {"metrics", "app.records"},
    "app.recording": {"bayes", "network", "decisions", "app.records"},
    "__init__": set(),
}
CORE = set(ALLOWED)
ALLOWED |= {"app.demo": CORE, "app.cli": CORE | {"app.demo"}, "app.__init__": set()}
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
    "long_runs",
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


def layer_of(module: str) -> str:
    """The row of ALLOWED that a module belongs to: parts of app have one each."""
    part = part_of(module)
    return f"app.{part_of(module, depth=2)}" if part == "app" else part


def imported(path: Path) -> set[str]:
    """Every lapwing module a file imports."""
    return {name for name in every_import(path) if name == "lapwing" or name.startswith("lapwing.")}


def every_import(path: Path) -> set[str]:
    """Every module a file imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            whole = {f"{base}.{alias.name}" for alias in node.names}
            names |= (
                whole if base in ("lapwing.bayes", "lapwing.app") else {base} | (whole if base == "lapwing" else set())
            )
    return names


def test_imports_point_one_way():
    own = {path: layer_of(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)) for path in FILES}
    assert set(own.values()) <= ALLOWED.keys(), "a folder is new: say in ALLOWED what it may import"
    found = {path: {layer_of(name) for name in imported(path)} - {own[path]} for path in FILES}
    assert {path: names for path, names in found.items() if not names <= ALLOWED[own[path]]} == {}


def test_imports_inside_bayes_point_one_way():
    own = {path: path.relative_to(PACKAGE / "bayes").parts[0].removesuffix(".py") for path in FILES_OF_BAYES}
    assert set(own.values()) <= set(ORDER_OF_BAYES), "a part is new: say in ORDER_OF_BAYES what comes before it"
    before = {part: set(ORDER_OF_BAYES[: place + 1]) for place, part in enumerate(ORDER_OF_BAYES)}
    found = {
        path: {part_of(name, depth=2) for name in imported(path) if part_of(name) == "bayes"} for path in FILES_OF_BAYES
    }
    assert {path: names for path, names in found.items() if not names <= before[own[path]]} == {}


def test_the_package_does_without_the_benchmarks():
    roots = {name.split(".")[0] for path in FILES for name in every_import(path)}
    assert "lapwing" in roots
    assert "benchmarks" not in roots


def test_the_rule_would_notice(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def f():\n    from lapwing.bayes import evidence\n    import lapwing.linear.ridge\n    from lapwing import infer\n"
    )
    assert {part_of(name) for name in imported(bad)} == {"bayes", "linear", "__init__", "infer"}
    assert {part_of(name, depth=2) for name in imported(bad)} == {"evidence", "ridge", "__init__"}

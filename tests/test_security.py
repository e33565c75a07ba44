"""What we ship: a bill of its materials, no code that runs what a file says, no network at run time."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "lapwing").rglob("*.py"))


@pytest.fixture(scope="module")
def bill() -> dict:
    said = subprocess.run([sys.executable, ROOT / "tools" / "sbom.py"], capture_output=True, text=True, check=True)
    again = subprocess.run([sys.executable, ROOT / "tools" / "sbom.py"], capture_output=True, text=True, check=True)
    assert said.stdout == again.stdout
    return json.loads(said.stdout)


def test_the_bill_holds_every_dependency_as_installed(bill):
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "lapwing"
    known = {part["bom-ref"]: part for part in bill["components"]}
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for text in asked:
        name = re.match(r"[\w.-]+", text)[0].lower()
        assert known[name]["version"] == version(name)
        assert known[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
        assert re.fullmatch("[0-9a-f]{64}", known[name]["hashes"][0]["content"])
    assert "sympy" in known  # which torch needs
    assert "pytest" not in known


def test_the_links_of_the_bill_lead_to_its_parts(bill):
    names = {part["bom-ref"] for part in (*bill["components"], bill["metadata"]["component"])}
    assert {link["ref"] for link in bill["dependencies"]} == names
    assert all(set(link["dependsOn"]) <= names for link in bill["dependencies"])
    assert "torch" in next(link["dependsOn"] for link in bill["dependencies"] if link["ref"] == "lapwing")


def test_the_lock_has_a_digest_for_every_constraint_and_no_address():
    lock = (ROOT / "requirements.lock").read_text()
    lines = [line for line in lock.splitlines() if not line.startswith("#")]
    assert [line.partition(" ")[0] for line in lines] == (ROOT / "constraints.txt").read_text().split()
    assert all(re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert "://" not in lock


WORK = """
import socket, sys

def watched(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen", "os.system"):
        raise RuntimeError(f"{event} {arguments!r}")

sys.addaudithook(watched)
import torch
import lapwing as lw

x = torch.linspace(-1, 1, 60).reshape(20, 3)
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).eval()
for y, likelihood in ((x[:, :2], lw.Gaussian()), (torch.arange(20) % 2, lw.Categorical())):
    for method in (lw.Exact(), lw.Krylov()):
        posterior = lw.fit(model, (x, y), likelihood, method=method, prior=lw.Isotropic(1.0), checkpoint=None)
        again = lw.load(posterior.save(sys.argv[1] + "/posterior"), model)
        assert again.predict(x).epistemic_variance.isfinite().all()
try:
    socket.create_connection(("127.0.0.1", 9))
except RuntimeError as error:
    print("noticed:", error)
"""


def test_fits_and_files_open_no_connection_and_start_no_program(tmp_path):
    """By Python's own audit events, and one that is raised on purpose."""
    done = subprocess.run([sys.executable, "-c", WORK, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("noticed: socket.")


def calls(path: Path) -> dict[str, list[str]]:
    """The calls in a file by the functions called, with the module before a dot."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            found.setdefault(ast.unparse(node.func), []).append(ast.unparse(node))
    return found


EXECUTED = {"eval", "exec", "pickle.load", "pickle.loads", "os.system", "np.load", "numpy.load"}
FETCHED = ("urllib.request", "requests.", "socket.", "http.client.")


def test_nothing_is_executed_or_fetched_unasked():
    for path in FILES:
        found = calls(path)
        assert not found.keys() & EXECUTED, path
        assert "Unpickler" not in path.read_text(), path
        assert path.name == "fetch.py" or not [name for name in found if name.startswith(FETCHED)], path
        assert all("weights_only=True" in text for text in found.get("torch.load", [])), path

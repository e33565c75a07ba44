"""The reference says what every public name takes, returns and raises, with an example: numpydoc's sections, checked."""

import ast
import inspect
import re
import textwrap
from importlib import import_module
from itertools import pairwise

import pytest

import lapwing
from lapwing.linear import BayesianLogisticRegression, BayesianRidge
from lapwing.tabular import BayesianMLPClassifier, BayesianMLPRegressor

MODULES = (
    "lapwing", "lapwing.linear", "lapwing.tabular", "lapwing.metrics", "lapwing.training",
    *(f"lapwing.families.{name}" for name in ("point", "temperature", "conformal", "monitor", "ensemble", "dropout")),
    *(f"lapwing.families.{name}" for name in ("swag", "mcmc", "variational", "mackay", "evidence_training")),
    *(f"lapwing.studies.{name}" for name in ("tomography", "symmetry", "datasets")),
)  # fmt: skip
MADE = {"Posterior", "Prediction"}  # by lapwing: their fields are no arguments of users
PROTOCOLS = {"Geometry", "Learner", "Sampler"}
OUTCOMES = {  # their example is that of the function which makes them
    "Assessment", "Chain", "Chains", "Comparison", "DenseLaplace", "Elbo", "EvidenceTrained", "Heat", "Regularised",
    "Variational",
}  # fmt: skip
FROM_FILES = {"cifar10", "cifar10_jpeg", "fashion_mnist", "mnist", "notmnist"}  # no example can run without them


def public():
    """Classes and functions by their full names, each once; types and constants have no sections."""
    found = {}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            item = getattr(module, name)
            if inspect.isclass(item) or inspect.isfunction(item):
                found.setdefault(item, f"{module.__name__}.{name}")
    return {place: item for item, place in found.items()}


def methods(owner, *names):
    return {f"{owner.__name__}.{name}": getattr(owner, name) for name in names}


def own_methods(owner):
    """Those that a class defines itself, properties and what begins with an underscore left out."""
    return methods(owner, *(name for name, item in vars(owner).items() if inspect.isfunction(item) and name[0] != "_"))


NAMES = public()
METHODS = {
    **methods(
        lapwing.Posterior,
        *("sample", "functions", "predict", "at", "update", "remove", "tune"),
        *("leave_one_out", "influence", "answer_when", "conformal", "verify", "save"),
    ),
    **methods(lapwing.Prediction, "interval", "log_prob", "with_noise"),
    **own_methods(lapwing.Mixture),
    **own_methods(BayesianRidge),
    **own_methods(BayesianLogisticRegression),
    **own_methods(BayesianMLPRegressor),
    **own_methods(BayesianMLPClassifier),
    **methods(BayesianMLPRegressor, "save", "load"),
}
EVERYTHING = NAMES | METHODS


def section(item, title):
    """The lines of a section, or none."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n---|\Z)", inspect.getdoc(item), re.MULTILINE | re.DOTALL)
    return found.group(1).rstrip().splitlines() if found else []


def check_described(lines):
    """Every entry is followed by an indented description that ends with a full stop."""
    for line, following in pairwise([*lines, "end"]):
        assert line.startswith("    ") or following.startswith("    ")
        assert following.startswith("    ") or line.endswith(".")


def parameters(item):
    return [name for name in inspect.signature(item).parameters if name != "self"]


@pytest.mark.parametrize("name", EVERYTHING)
def test_parameters_are_those_of_the_signature(name):
    item = EVERYTHING[name]
    if item.__name__ in MADE | PROTOCOLS or not parameters(item):
        return
    lines = section(item, "Parameters")
    assert [line.split(" : ")[0] for line in lines if not line.startswith(" ")] == parameters(item)
    assert all(re.fullmatch(r"\w+ : .+", line) for line in lines if not line.startswith(" "))
    check_described(lines)


@pytest.mark.parametrize("name", EVERYTHING)
def test_functions_say_what_they_return(name):
    item = EVERYTHING[name]
    if not inspect.isclass(item) and inspect.signature(item).return_annotation not in (None, "None"):
        lines = section(item, "Returns")
        assert lines
        check_described(lines)


def raised(item):
    """Names of the exceptions that its own code raises; a class does so when it is made."""
    makers = (vars(item).get(name) for name in ("__init__", "__post_init__")) if inspect.isclass(item) else (item,)
    written = (maker for maker in makers if inspect.isfunction(maker) and "lapwing" in maker.__code__.co_filename)
    sources = [textwrap.dedent(inspect.getsource(maker)) for maker in written]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    return {
        node.exc.func.id for node in nodes if isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
    }


@pytest.mark.parametrize("name", EVERYTHING)
def test_errors_are_listed(name):
    lines = section(EVERYTHING[name], "Raises")
    listed = {line for line in lines if not line.startswith(" ")}
    assert raised(EVERYTHING[name]) <= listed
    assert all(re.fullmatch(r"\w*Error|Diverged|NotConverged", line) for line in listed)
    check_described(lines)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_an_example_with_its_output(name):
    item = NAMES[name]
    if item.__name__ in PROTOCOLS | OUTCOMES | FROM_FILES:
        return
    lines = inspect.getdoc(item).splitlines()
    assert any(line.startswith(">>>") for line in lines)
    assert not lines[-1].startswith((">>>", "..."))  # it ends with what it printed


SHARED = [(lapwing.fit, lapwing.infer), (BayesianMLPRegressor, BayesianMLPClassifier)]


def described(item):
    """What is said of each parameter, by its name and type."""
    found, entry = {}, ""
    for line in section(item, "Parameters"):
        if line.startswith(" "):
            found[entry] = f"{found[entry]} {line.strip()}".strip()
        else:
            entry = line
            found[entry] = ""
    return found


@pytest.mark.parametrize(("one", "other"), SHARED, ids=lambda item: item.__name__)
def test_an_argument_of_two_functions_is_described_in_the_same_words(one, other):
    first, second = described(one), described(other)
    both = first.keys() & second.keys()
    assert len(both) >= 3
    assert {entry: first[entry] for entry in both} == {entry: second[entry] for entry in both}

"""The reference says what every public name takes and returns, with an example: numpydoc's sections, as the signature has them."""

import inspect
import re

import pytest

import lapwing
from lapwing.linear import BayesianLogisticRegression, BayesianRidge
from lapwing.tabular import BayesianMLPClassifier, BayesianMLPRegressor

ESTIMATORS = (BayesianRidge, BayesianLogisticRegression, BayesianMLPRegressor, BayesianMLPClassifier)
RESULTS = (lapwing.Posterior, lapwing.Prediction)  # made by lapwing, not by users
NAMES = [getattr(lapwing, name) for name in lapwing.__all__ if name != "__version__"] + list(ESTIMATORS)
METHODS = [
    getattr(owner, name)
    for owner, names in {
        lapwing.Posterior: (
            *("sample", "functions", "predict", "at", "update", "remove", "tune"),
            *("leave_one_out", "influence", "verify", "save"),
        ),
        lapwing.Prediction: ("interval", "log_prob", "with_noise"),
    }.items()
    for name in names
]


def section(item, title):
    """The lines of a section, or none."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n---|\Z)", inspect.getdoc(item), re.MULTILINE | re.DOTALL)
    return found.group(1).rstrip().splitlines() if found else []


def parameters(item):
    return [name.lstrip("*") for name in inspect.signature(item).parameters if name != "self"]


@pytest.mark.parametrize("item", NAMES + METHODS, ids=lambda item: item.__qualname__)
def test_parameters_are_those_of_the_signature(item):
    if item in RESULTS or not parameters(item):
        return
    lines = section(item, "Parameters")
    named = [line.split(" : ")[0] for line in lines if not line.startswith(" ")]
    assert named == parameters(item)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith(" "):
            assert re.fullmatch(r"\w+ : .+", line)
            assert following.startswith("    ")
    assert all(line.endswith(".") for line, after in zip(lines, [*lines[1:], "x"], strict=True) if after[:1] != " ")


@pytest.mark.parametrize("item", NAMES + METHODS, ids=lambda item: item.__qualname__)
def test_functions_say_what_they_return(item):
    if inspect.isfunction(item):
        assert section(item, "Returns")


@pytest.mark.parametrize("item", NAMES, ids=lambda item: item.__qualname__)
def test_there_is_an_example_with_its_output(item):
    lines = inspect.getdoc(item).splitlines()
    assert any(line.startswith(">>>") for line in lines)
    assert not lines[-1].startswith((">>>", "..."))  # it ends with what it printed

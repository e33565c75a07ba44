"""Agreement with laplace-torch 0.3 and curvlinops 3.0.1, run in an environment of their own."""

import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lapwing.linalg.operators import Dense
from lapwing.linalg.truncated import Truncated, leading
from lapwing.network.jacobian import Network
from lapwing.network.kfac import categorical, diagonal, eigencorrected, factorise, gaussian, row_squares, variances
from lapwing.network.parameters import last_layer
from tests.network.test_linearisation import dense_jacobian
from tests.peers.problems import LOSSES, PRECISION, PROBLEMS

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("LAPWING_PEERS_PYTHON", ROOT / "benchmarks/peers/.venv/bin/python"))
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment in benchmarks/peers, none in LAPWING_PEERS_PYTHON"),
]
CLOSE = {"rtol": 1e-8, "atol": 1e-11}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("peers") / "results.pt"
    command = [str(PYTHON), "-m", "tests.peers.laplace_torch", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    return torch.load(path, weights_only=True)


def problem(name: str, kind: str):
    with torch.random.fork_rng():
        return PROBLEMS[name](kind)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_kronecker_curvature_is_that_of_curvlinops(theirs, name, kind):
    model, inputs, _, _ = problem(name, kind)
    root, expected = gaussian(2.0) if kind == "gaussian" else categorical(), theirs[f"{name} {kind} curvature"]
    network = Network.of(model)  # the squared error has Hessian 2
    for form in ("expand", "reduce"):
        ours = factorise(network, [inputs], root, sharing=form).structure().dense()
        torch.testing.assert_close(ours, expected[f"kfac {form}"], **CLOSE)
    ours = eigencorrected(network, [inputs], root, factorise(network, [inputs], root)).dense()
    torch.testing.assert_close(ours, expected["ekfac"], **CLOSE)


def log_likelihood(kind: str, outputs: Tensor, targets: Tensor) -> float:
    if kind == "categorical":
        return -float(F.cross_entropy(outputs, targets, reduction="sum"))
    return float(-0.5 * (outputs - targets).square().sum() - 0.5 * targets.numel() * math.log(2 * math.pi))


def ours(structure: str, network: Network, inputs: Tensor, new: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """log det(H + λ) and the variance of every output at new inputs."""
    root = gaussian(1.0) if kind == "gaussian" else categorical()
    if structure == "kron":
        factored = factorise(network, [inputs], root)
        matrix = factored.structure()
        return matrix.log_det(PRECISION), variances(network, [new], matrix, factored.layers, PRECISION)
    if structure == "diag":
        shifted = diagonal(network, [inputs], root).value + PRECISION
        return shifted.log().sum(), row_squares(network, [new], 1 / shifted).reshape(len(new), -1)
    kept = torch.isin(torch.arange(len(Network.of(network.model).weights)), _places(network))
    outputs = network.outputs(inputs)
    jacobian = dense_jacobian(network.model, inputs)[:, kept].reshape(*outputs.shape, -1)
    rows = (root(outputs, 0).mT @ jacobian).flatten(0, 1)
    found = leading(Dense(rows), rows.shape[1], generator=torch.Generator().manual_seed(0), rtol=1e-9)
    matrix = Truncated(found.vectors, found.values, torch.ones(rows.shape[1]).double())
    variance = matrix.variance(dense_jacobian(network.model, new)[:, kept], PRECISION)
    return matrix.log_det(PRECISION), variance.reshape(len(new), -1)


def _places(network: Network) -> Tensor:
    sizes = {name: weight.numel() for name, weight in network.model.named_parameters()}
    places = dict(zip(sizes, torch.arange(sum(sizes.values())).split(list(sizes.values())), strict=True))
    return torch.cat([places[name] for name in network.layout.names])


@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
@pytest.mark.parametrize("subset", ["all", "last_layer"])
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name.endswith("without biases")])
def test_evidence_and_variance_are_those_of_laplace_torch(theirs, name, kind, subset, structure):
    model, inputs, targets, new = problem(name, kind)
    network = Network.of(model, last_layer(model) if subset == "last_layer" else None)
    log_det, variance = ours(structure, network, inputs, new, kind)
    weights = network.weights
    prior = len(weights) * math.log(PRECISION) - PRECISION * float(weights.square().sum())
    evidence = log_likelihood(kind, model(inputs).detach(), targets) + 0.5 * (prior - float(log_det))
    expected = theirs[f"{name} {kind} laplace"][f"{subset} {structure}"]
    assert evidence == pytest.approx(float(expected["evidence"]), rel=1e-8)
    torch.testing.assert_close(model(new).detach(), expected["mean"], **CLOSE)
    torch.testing.assert_close(variance, expected["variance"].diagonal(dim1=1, dim2=2), **CLOSE)

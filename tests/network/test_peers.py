"""Agreement with the peers, in their own environment."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from peer_environment import MISSING, PYTHON  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)]

COMPARE = """
import sys
sys.path.insert(0, {folder!r})
import torch
from torch import nn
from bench_ggn import NETWORKS, softmax_hessian
from curvlinops import GGNLinearOperator
from lapwing.network.batches import Inputs
from lapwing.network.jacobian import Jacobian, Network, prepared
make, shape = NETWORKS[{name!r}]
torch.manual_seed(0)
model = make().double().eval()
inputs, labels = torch.rand(5, *shape).double(), torch.randint(10, (5,))
loss = nn.CrossEntropyLoss(reduction="sum")
theirs = GGNLinearOperator(model, loss, list(model.parameters()), [(inputs, labels)], check_deterministic=False)
jacobian = prepared(Jacobian(Network.of(model), Inputs.of(inputs.split(3)), 10))
assert jacobian.plan.factored_from == 5
for columns in (2, 7):
    block = torch.randn(jacobian.shape[1], columns).double()
    expected = theirs @ block
    ours = jacobian.normal(block, softmax_hessian(jacobian.network, inputs))[1]
    print(float((ours - expected).norm() / expected.norm()))
"""


@pytest.mark.parametrize("name", ["lenet", "resnet20", "transformer"])
def test_ggn_products_are_those_of_curvlinops(name):
    code = COMPARE.format(folder=str(BENCHMARKS), name=name)
    done = subprocess.run([PYTHON, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert max(float(line) for line in done.stdout.split()) < 1e-11


def test_the_peers_are_the_releases_we_name_and_import():
    code = (
        "from importlib.metadata import version; import laplace, curvlinops;"
        "print(version('laplace-torch'), version('curvlinops-for-pytorch'), version('torch'))"
    )
    done = subprocess.run([PYTHON, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    constraints = (BENCHMARKS.parent / "constraints.txt").read_text().split()
    theirs, curvature, torch = done.stdout.split()
    assert (theirs, curvature) == ("0.3", "3.0.1")
    assert f"torch=={torch.split('+')[0]}" in constraints

"""What is exported runs in onnxruntime, and agrees with eager predictions; torch.compile takes it too."""

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("onnxscript", reason="ONNX is not installed: `make integrations` does it")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: `make integrations` does it")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its exporter

import lapwing as lw  # noqa: E402
from tests.network import test_serving as cases  # noqa: E402
from tests.network.test_serving import same_start  # noqa: E402, F401

X, NEW = cases.X.float(), cases.NEW.float()


def fitted(network, targets, of, **options):
    torch.manual_seed(0)
    network = cases.train(network, (X, targets), of, epochs=40, progress=False)
    select = options.pop("select", None)
    return lw.fit(network, (X, targets), of, select=select(network) if select else None, **options)


class Attention(nn.Module):
    """A transformer's layer with a head."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(2, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.inside(x.unflatten(1, (2, 2)))).mean(1))


def run(posterior, path, count, **options):
    session = runtime.InferenceSession(posterior.export(path, X, **options), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": NEW[:count].numpy()}), strict=True))


def close(found, wanted):
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 17])
@pytest.mark.parametrize("method", [None, lw.KFAC(), lw.Krylov()], ids=lambda one: type(one).__name__)
def test_numbers(method, count, tmp_path):
    posterior = fitted(cases.dense(2), cases.NUMBERS.float(), lw.Gaussian(), method=method)
    found, wanted = run(posterior, tmp_path / "served.onnx", count), posterior.predict(NEW[:count])
    close(found["mean"], wanted.mean)
    close(found["std"], wanted.std)
    close(found["epistemic_std"], wanted.epistemic_variance.sqrt())


@pytest.mark.parametrize("make", [cases.dense, cases.pictures, cases.Skip, Attention], ids=lambda one: one.__name__)
def test_classes(make, tmp_path):
    of_filters = {cases.pictures: lambda _: lambda name: not name.startswith("2.")}
    select = of_filters.get(make, None if make is cases.dense else lw.last_layer)
    posterior = fitted(make() if make is Attention else make(3), cases.LABELS, lw.Categorical(), select=select)
    for link in ("full probit", "probit"):
        found, wanted = run(posterior, tmp_path / "served.onnx", 17, link=link), posterior.predict(NEW, link=link)
        close(found["probs"], wanted.probs)
        close(found["entropy"], wanted.entropy)
        close(found["score_variance"], wanted.score_variance)
    averaged = run(posterior, tmp_path / "served.onnx", 17)
    for name, wanted in posterior.as_module(X)(NEW).items():
        close(averaged[name], wanted)


def test_the_average_over_candidates(tmp_path):
    network = cases.train(cases.dense(3), (X, cases.LABELS), lw.Categorical(), epochs=40, progress=False)
    held_out = cases.normals(30, 4, seed=5).float()
    posterior = lw.fit(network, (X, cases.LABELS), lw.Categorical(), validation=(held_out, (held_out[:, 0] > 0).long()))
    found = run(posterior, tmp_path / "served.onnx", 17)
    for name, wanted in posterior.as_module(X)(NEW).items():
        close(found[name], wanted)


@pytest.mark.parametrize("make", [cases.dense, cases.Skip], ids=lambda one: one.__name__)
def test_the_module_is_compiled_as_one_graph(make):
    select = None if make is cases.dense else lw.last_layer
    posterior = fitted(make(3), cases.LABELS, lw.Categorical(), select=select)
    module = posterior.as_module(X)
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for count in (2, 17):
        for name, wanted in module(NEW[:count]).items():
            torch.testing.assert_close(compiled(NEW[:count])[name], wanted, rtol=1e-5, atol=1e-5)

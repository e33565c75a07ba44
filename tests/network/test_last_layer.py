"""The features of a last layer are its inputs, kept once for all outputs: nothing else changes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.bayes.fits.loss import PerOutput
from lapwing.bayes.methods import outputs
from lapwing.linalg.operators import Dense
from lapwing.network import last_layer
from lapwing.network.jacobian import Jacobian
from lapwing.network.linearisation import linearise

N, D, Q, C = 23, 4, 5, 3


def data(seed: int = 0, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    return x, torch.randint(C, (n,), generator=generator)


def network(*, bias: bool = True, end: nn.Module | None = None) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(D, Q), nn.Tanh(), nn.Linear(Q, C, bias=bias), *([] if end is None else [end])]
    return nn.Sequential(*layers).double().eval()


class Twice(nn.Module):
    """A head that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(D, C), nn.Linear(C, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.head(self.first(x)).tanh())


class Tied(nn.Module):
    """A head whose matrix is that of the first layer as well."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.first = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.first.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x).tanh())


def linear(model: nn.Module, **how: object) -> lw.LinearModel:
    return linearise(model, data(), lw.Categorical(), select=lw.last_layer(model), **how)


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a last layer is like any other weights."""
    monkeypatch.setattr(last_layer.LastLayer, "of", staticmethod(lambda features: None))


class TestFeatures:
    @pytest.mark.parametrize("bias", [True, False])
    def test_are_the_jacobian(self, bias, monkeypatch):
        model, (new, _) = network(bias=bias), data(5, n=7)
        ours = linear(model)
        assert isinstance(ours.features, PerOutput)
        without(monkeypatch)
        plain = linear(model)
        assert isinstance(plain.features, Jacobian)
        for one, other in ((ours.features, plain.features), (ours.features_at(new), plain.features_at(new))):
            torch.testing.assert_close(one.rows(2, 9), other.rows(2, 9), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(one.dense(), other.dense(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours.offset, plain.offset, rtol=0, atol=1e-12)
        torch.testing.assert_close(ours.outputs_at_point(), plain.outputs_at_point(), rtol=0, atol=1e-12)

    def test_products_in_another_order_of_columns(self):
        generator = torch.Generator().manual_seed(2)
        order = torch.randperm(Q * C, generator=generator)
        inner = torch.randn(N, Q, generator=generator, dtype=torch.float64)
        features = PerOutput(Dense(inner), C, order)
        dense = torch.empty(N * C, Q * C, dtype=torch.float64)
        dense[:, order] = torch.kron(inner, torch.eye(C, dtype=torch.float64))
        x, y = (torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in (Q * C, N * C))
        d, n = torch.rand(Q * C, generator=generator).double(), torch.rand(N * C, generator=generator).double()
        close = {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(features @ x, dense @ x, **close)
        torch.testing.assert_close(features.T @ y, dense.mT @ y, **close)
        torch.testing.assert_close(features.rows(4, 11), dense[4:11], **close)
        torch.testing.assert_close(features.row_squares(d), (dense.square() * d).sum(1), **close)
        torch.testing.assert_close(features.column_squares(n), (dense.square() * n[:, None]).sum(0), **close)

    @pytest.mark.parametrize(
        "make", [lambda: network(end=nn.LogSoftmax(1)), Twice, Tied], ids=["a softmax follows", "called twice", "tied"]
    )
    def test_of_layers_that_are_not_the_last_step_are_the_jacobian(self, make):
        with torch.random.fork_rng():
            model = make().double().eval()
        select = (lambda name: name.startswith("head")) if hasattr(model, "head") else lw.last_layer(model)
        found = linearise(model, data(), lw.Categorical(), select=select)
        assert isinstance(found.features, Jacobian)


class TestPosteriors:
    @pytest.mark.parametrize(
        "how", [{}, {"validation": data(3, n=17)}, {"curvature": "network"}], ids=["bound", "held out", "laplace"]
    )
    def test_are_those_of_the_jacobian(self, how, monkeypatch):
        """The bound is searched for to 1e-3 nats, in other coordinates."""
        model, (new, _) = network(), data(5, n=7)

        def found() -> lw.Posterior:
            return lw.fit(model, data(), lw.Categorical(), select=lw.last_layer(model), progress=False, **how)

        ours = found()
        without(monkeypatch)
        plain = found()
        assert float(ours.log_evidence) == pytest.approx(float(plain.log_evidence), abs=2e-3)
        one, other = ours.predict(new), plain.predict(new)
        torch.testing.assert_close(one.probs, other.probs, rtol=0, atol=3e-3)
        torch.testing.assert_close(one.epistemic_variance, other.epistemic_variance, rtol=0.03, atol=1e-4)

    def test_regressions_are_those_of_the_jacobian(self, monkeypatch):
        model, (x, _) = network(), data()
        y = torch.stack([x[:, 0], x[:, 1] * x[:, 2], x[:, 3].sin()], dim=1)

        def found() -> lw.Posterior:
            return lw.fit(model, (x, y), lw.Gaussian(0.3), select=lw.last_layer(model), progress=False)

        ours = found()
        without(monkeypatch)
        plain = found()
        one, other = ours.predict(x[:6]), plain.predict(x[:6])
        torch.testing.assert_close(one.epistemic_variance, other.epistemic_variance, rtol=1e-6, atol=0)
        assert float(ours.log_evidence) == pytest.approx(float(plain.log_evidence), rel=1e-9)

    def test_survive_files_and_updates(self, tmp_path):
        model, (new, labels) = network(), data(5, n=7)
        ours = lw.fit(model, data(), lw.Categorical(), select=lw.last_layer(model), progress=False)
        ours.save(tmp_path / "posterior.safetensors")
        again = lw.load(tmp_path / "posterior.safetensors", model)
        torch.testing.assert_close(again.predict(new).probs, ours.predict(new).probs, rtol=0, atol=1e-6)
        more = ours.update((new, labels))
        assert bool(more.predict(new).log_prob(labels).mean() > ours.predict(new).log_prob(labels).mean())

    @pytest.mark.parametrize("bias", [True, False])
    def test_predictions_are_those_of_its_rows(self, bias, monkeypatch):
        """By the covariance of the weights, and by products of rows with eigenvectors: 1e-9 of the prior's variance."""
        model, (new, _) = network(bias=bias), data(5, n=7)
        posterior = lw.fit(model, data(), lw.Categorical(), select=lw.last_layer(model), progress=False)
        features = posterior.map.features(new)
        one = posterior.uncertainty_at(features, posterior.outputs_at(features, new))
        monkeypatch.setattr(outputs, "DENSE", 0)
        other = posterior.uncertainty_at(features, posterior.outputs_at(features, new))
        near = {"rtol": 1e-9, "atol": 1e-9 * float(other.prior_variance.max())}
        torch.testing.assert_close(one.prior_variance, other.prior_variance, **near)
        for part in ("variance", "covariance", "centred", "centred_prior"):
            torch.testing.assert_close(getattr(one.spread, part), getattr(other.spread, part), **near)
        torch.testing.assert_close(one.draws, other.draws, rtol=1e-9, atol=1e-9)

    def test_predictions_from_threads_are_the_serial_ones(self):
        model, sets = network(), [data(seed, n=5)[0] for seed in range(24)]
        posterior = lw.fit(model, data(), lw.Categorical(), select=lw.last_layer(model), progress=False)
        serial = [posterior.predict(x).probs for x in sets]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda x: posterior.predict(x).probs, sets))
        assert all(torch.equal(one, other) for one, other in zip(found, serial, strict=True))

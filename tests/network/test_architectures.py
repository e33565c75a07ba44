"""Layers of every kind: products with the Jacobian against autograd's dense one, and fits against a dense inverse."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lapwing import Exact, Gaussian, Isotropic, Krylov, fit, linearise
from tests import reference
from tests.network.networks import normal, seeded
from tests.network.sequences import dense_rows


class UNet(nn.Module):
    """Down by a strided convolution, up by a transposed one, with a skip."""

    def __init__(self):
        super().__init__()
        self.enter, self.down = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.leave = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        return self.leave(torch.cat([x, torch.tanh(self.up(self.norm(self.down(x))))], dim=1))


class Recurrent(nn.Module):
    """A recurrent layer over a sequence, a head at its end or at every step."""

    def __init__(self, layer: type, every: bool = False, **options):
        super().__init__()
        self.layer, self.head, self.every = layer(3, 4, batch_first=True, **options), nn.Linear(4, 2), every

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)[0]
        return self.head(found if self.every else found[:, -1])


class Language(nn.Module):
    """Embedding and head tied, self-attention between, RMSNorm before each."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(7, 4), nn.RMSNorm(4)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


class WeightNorm(nn.Module):
    """Direction and length of matrices as weights of their own."""

    def __init__(self):
        super().__init__()
        self.one = parametrizations.weight_norm(nn.Linear(3, 5))
        self.two = parametrizations.weight_norm(nn.Conv1d(5, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)).mT)[:, :, 0]


class Reshaped(nn.Module):
    """Axes split, turned, folded into the data and back, and outer products of a layer with itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(2, 3), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:  # (n, 4, 6)
        n = len(x)
        parts = x.reshape(n, 4, 3, 2).permute(2, 0, 1, 3).reshape(-1, 2)
        found = torch.tanh(self.inner(parts)).reshape(3, n, 4, 3).permute(1, 2, 0, 3).sum(1)
        return self.outer(torch.einsum("nai,nbi->nab", found, found).flatten(1))


class Own(nn.Module):
    """RMSNorm written out, with a weight that is multiplied by hand, as in models of languages."""

    def __init__(self):
        super().__init__()
        self.scale, self.gate, self.up, self.down = (
            nn.Parameter(torch.ones(3)),
            nn.Linear(3, 5),
            nn.Linear(3, 5),
            nn.Linear(5, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


IDS = torch.randint(7, (5, 3), generator=torch.Generator().manual_seed(4))
SEQUENCE = normal(6, 5, 3, seed=6)
ARCHITECTURES = {
    "U-Net with transposed convolution": lambda: seeded(UNet, normal(3, 2, 4, 6, seed=5)),
    "LSTM": lambda: seeded(lambda: Recurrent(nn.LSTM), SEQUENCE),
    "LSTM, two layers, both ways": lambda: seeded(lambda: Both(), SEQUENCE),
    "GRU at every step": lambda: seeded(lambda: Recurrent(nn.GRU, every=True), SEQUENCE),
    "embedding, attention, RMSNorm and tied weights": lambda: seeded(Language, IDS),
    "weight norm": lambda: seeded(WeightNorm, normal(6, 4, 3, seed=7)),
    "complex reshapes": lambda: seeded(Reshaped, normal(5, 4, 6, seed=8)),
    "RMSNorm written out, gated": lambda: seeded(Own, normal(7, 3, seed=9)),
}


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 2, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0].mean(1))


def problem(name: str):
    model, inputs = ARCHITECTURES[name]()
    outputs = model(inputs).detach()
    rows = dense_rows(model, lambda found: found, inputs)
    return model, inputs, outputs + 0.3 * normal(*outputs.shape, seed=10), rows


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_products_are_those_of_the_dense_jacobian(name):
    model, inputs, targets, rows = problem(name)
    features = linearise(model, [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])], Gaussian(0.3)).features
    assert features.shape == rows.shape
    few, many = normal(rows.shape[1], 2, seed=11), normal(rows.shape[1], 40, seed=12)
    back = normal(rows.shape[0], 3, seed=13)
    for x in (few, many):
        torch.testing.assert_close(features @ x, rows @ x, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(features.T @ back, rows.mT @ back, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(features.rows(1, len(rows) - 1), rows[1:-1], rtol=1e-9, atol=1e-10)
    image, normal_product = features.normal(few)
    torch.testing.assert_close(image, rows @ few, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(normal_product, rows.mT @ rows @ few, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", [Exact(), Krylov(rtol=1e-9)], ids=["exact", "krylov"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_fit_is_that_of_a_dense_inverse(name, method):
    model, inputs, targets, rows = problem(name)
    posterior = fit(model, (inputs, targets), Gaussian(0.3), prior=Isotropic(2.0), method=method, draws=3)
    flat = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])
    y = (targets - model(inputs).detach()).reshape(-1) + rows @ flat
    noise, prior = (
        torch.full((len(rows),), 0.3**-2, dtype=torch.float64),
        torch.full((rows.shape[1],), 2.0, dtype=torch.float64),
    )
    mean, covariance = reference.posterior(rows, y, noise, prior)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-5, atol=1e-6)
    if method == Exact():
        expected = (rows @ covariance * rows).sum(1)
        found = posterior.predict(inputs).epistemic_variance.reshape(-1)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)
        truth = reference.log_evidence_of_data(rows, y, noise, prior)
        assert posterior.log_evidence.value == pytest.approx(truth, rel=1e-7)
    else:
        assert max(posterior.diagnostics.residuals) < 1e-6
        moved = (posterior.functions(inputs) - model(inputs)).detach().reshape(3, -1)
        torch.testing.assert_close(moved, (rows @ posterior.gaussian.deviations).mT, rtol=1e-7, atol=1e-8)

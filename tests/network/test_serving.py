"""Predictions as a module of plain operations: those of `predict`, for each kind of layer, method and candidate."""

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.bayes.likelihoods import Spread
from lapwing.network.serving import triangular
from lapwing.training import train

N, D = 60, 4


@pytest.fixture(autouse=True)
def same_start():
    """Networks begin with the same weights in every test."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, NEW = normals(N, D), normals(17, D, seed=1)
NUMBERS = torch.stack([X[:, 0].sin(), X[:, 1] * X[:, 2]], 1) + 0.1 * normals(N, 2, seed=2)
LABELS = (X[:, 0] + 0.3 * normals(N, seed=3) > 0).long() + (X[:, 1] > 0.5).long()
YES = (LABELS > 0).double()[:, None]
ACTIVATIONS = [nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.SiLU(), nn.Softplus()]


def dense(outputs, activation=None):
    inner = nn.Sequential(nn.Linear(7, 6), nn.GELU())
    return nn.Sequential(nn.Linear(D, 7), activation or nn.Tanh(), nn.Dropout(0.2), inner, nn.Linear(6, outputs))


def pictures(outputs):
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(3, outputs),
    )  # fmt: skip


class Skip(nn.Module):
    """A network that is no sequence."""

    def __init__(self, outputs=3):
        super().__init__()
        self.first, self.head = nn.Linear(D, D), nn.Linear(D, outputs)

    def forward(self, x):
        return self.head(x + self.first(x).tanh())


def trained(network, targets, of):
    return train(network.double(), (X, targets), of, epochs=40, progress=False)


def fitted(network, targets, of, **options):
    network = trained(network, targets, of)
    select = options.pop("select", None)
    return lw.fit(network, (X, targets), of, select=select(network) if select else None, **options)


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", [None, lw.KFAC(), lw.Diagonal(), lw.Krylov()], ids=lambda one: type(one).__name__)
def test_numbers_are_those_of_predict(method):
    posterior = fitted(dense(2), NUMBERS, lw.Gaussian(), method=method)
    found, wanted = posterior.as_module(X)(NEW), posterior.predict(NEW)
    close(found["mean"], wanted.mean)
    close(found["std"], wanted.std)
    close(found["epistemic_std"], wanted.epistemic_variance.sqrt())


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda one: type(one).__name__)
def test_every_activation_has_its_derivative(activation):
    posterior = fitted(dense(2, activation), NUMBERS, lw.Gaussian(0.1), prior=lw.Isotropic(1.0))
    close(posterior.as_module(X)(NEW)["std"], posterior.predict(NEW).std)


@pytest.mark.parametrize("link", ["probit", "full probit", "bridge"])
@pytest.mark.parametrize("make", [dense, pictures, Skip], ids=lambda one: one.__name__)
def test_probabilities_are_those_of_predict(make, link):
    select = {pictures: lambda _: lambda name: not name.startswith("2."), Skip: lw.last_layer}.get(make)
    posterior = fitted(make(3), LABELS, lw.Categorical(), select=select)
    found, wanted = posterior.as_module(X, link=link)(NEW), posterior.predict(NEW, link=link)
    close(found["probs"], wanted.probs)
    close(found["entropy"], wanted.entropy)
    close(found["score_variance"], wanted.score_variance)


def test_some_weights_of_a_layer():
    mask = torch.arange(D * 7 + 7 + 7 * 6 + 6 + 6 * 3 + 3) % 3 == 0
    posterior = fitted(dense(3), LABELS, lw.Categorical(), select=lambda _: mask)
    close(posterior.as_module(X, link="probit")(NEW)["probs"], posterior.predict(NEW, link="probit").probs)


def test_averages_over_draws_are_right_to_their_error():
    """Against 200,000 draws of the same Gaussian: 512 points in pairs have no more than the error of independent ones."""
    posterior = fitted(dense(3), LABELS, lw.Categorical())
    found, seen = posterior.as_module(X)(NEW), posterior.predict(NEW).observation
    values, vectors = torch.linalg.eigh(seen.spread.covariance)
    root = vectors * values.clamp_min(0).sqrt()[:, None]
    draws = (seen.outputs + torch.einsum("nck,sk->snc", root, normals(200_000, 3, seed=4))).softmax(-1)
    z = (found["probs"] - draws.mean(0)) / (draws.std(0) / 512**0.5)
    assert z.abs().max() < 4.5
    assert 0.1 < z.square().mean() < 2
    sure = -(draws * draws.log()).sum(-1).mean(0)
    average = draws.mean(0)
    information = -(average * average.log()).sum(-1) - sure
    torch.testing.assert_close(found["mutual_information"], information, rtol=0.2, atol=0.02)


def test_the_average_over_candidates_is_kept():
    network = trained(dense(3), LABELS, lw.Categorical())
    held_out = (normals(30, D, seed=5), (normals(30, D, seed=5)[:, 0] > 0).long())
    posterior = lw.fit(network, (X, LABELS), lw.Categorical(), validation=held_out)
    assert len([share for share in posterior.diagnostics.shares.values() if share > 0]) > 1
    probs = posterior.as_module(X)(NEW)["probs"]
    close(probs.sum(1), torch.ones(len(NEW)).double())
    torch.testing.assert_close(probs, posterior.predict(NEW).probs, rtol=0, atol=0.05)  # Monte-Carlo error of each


@pytest.mark.parametrize("link", ["probit", "quadrature"])
def test_binary_labels(link):
    posterior = fitted(dense(1), YES, lw.Bernoulli())
    close(posterior.as_module(X, link=link)(NEW)["probs"], posterior.predict(NEW, link=link).probs)


def test_a_posterior_from_a_file_is_served_too(tmp_path):
    network = trained(dense(2), NUMBERS, lw.Gaussian())
    posterior = lw.fit(network, (X, NUMBERS), lw.Gaussian())
    again = lw.load(posterior.save(tmp_path / "posterior.safetensors"), network)
    close(again.as_module(X)(NEW)["std"], posterior.predict(NEW).std)


def test_a_program_takes_batches_of_any_size(tmp_path):
    posterior = fitted(dense(2), NUMBERS, lw.Gaussian())
    program = torch.export.load(posterior.export(tmp_path / "served.pt2", X[:1])).module()
    for count in (1, 5, 17):
        close(program(NEW[:count])["std"], posterior.predict(NEW[:count]).std)


def test_the_network_is_not_changed(tmp_path):
    network = trained(dense(2), NUMBERS, lw.Gaussian())
    before = {name: part.clone() for name, part in network.state_dict().items()}
    lw.fit(network, (X, NUMBERS), lw.Gaussian()).export(tmp_path / "served.pt2", X)
    assert all(torch.equal(part, before[name]) for name, part in network.state_dict().items())
    assert all(weight.requires_grad for weight in network.parameters())


def test_a_factor_of_a_covariance_without_full_rank():
    wide = normals(5, 4, 2)
    given = wide @ wide.mT
    found = triangular(given)
    torch.testing.assert_close(found @ found.mT, given, rtol=1e-5, atol=1e-5 * float(given.abs().max()))
    assert Spread(given.diagonal(dim1=1, dim2=2), given).deviations().shape == (512, 5, 4)


def test_what_cannot_be_exported_is_refused(tmp_path):
    posterior = fitted(dense(2), NUMBERS, lw.Gaussian())
    path = tmp_path / "served.pt2"
    with pytest.raises(ValueError, match=r"served\.bin ends with '\.bin', expected \.pt2 or \.onnx"):
        posterior.export(tmp_path / "served.bin", X)
    with pytest.raises(ValueError, match="expected a tensor of inputs"):
        posterior.export(path, X[0])
    with pytest.raises(ValueError, match="example is a ndarray"):
        posterior.export(path, X.numpy())
    with pytest.raises(ValueError, match=r"inputs of shape \(1, 7\): expected \(n, 4\)"):
        posterior.export(path, torch.zeros(5, 7, dtype=X.dtype))
    with pytest.raises(ValueError, match="torch.float32 and the network's weights torch.float64"):
        posterior.export(path, X.float())
    with pytest.raises(ValueError, match="the network is a Skip.*last_layer"):
        fitted(Skip(), LABELS, lw.Categorical()).export(path, X)
    with pytest.raises(ValueError, match="not Poisson"):
        fitted(dense(1), LABELS.double()[:, None], lw.Poisson()).export(path, X)
    with pytest.raises(ValueError, match="this one is of a linear model"):
        lw.infer(lw.LinearModel(X, NUMBERS[:, 0], lw.Gaussian())).export(path, X)
    with pytest.raises(ValueError, match="2 is a BatchNorm2d"):
        fitted(pictures(3), LABELS, lw.Categorical()).export(path, X)
    assert not path.exists()

"""Structured curvatures against the dense matrix they stand for."""

import pytest
import torch

from lapwing.bayes.methods import EKFAC, KFAC, Diagonal, LowRank
from lapwing.bayes.priors import DiagonalPrior, per_weight
from lapwing.bayes.statistics import Eigenbasis, Statistics, Whitened
from lapwing.linalg.kronecker import spectrum
from lapwing.linalg.operators import Dense
from lapwing.linalg.truncated import leading, truncated
from lapwing.network.jacobian import Network
from lapwing.network.kfac import Structures, categorical
from tests.network.networks import NETWORKS
from tests.network.test_kfac import dense_blocks, dense_ggn
from tests.network.test_linearisation import dense_jacobian
from tests.properties import check_covariance

METHODS = {"diagonal": Diagonal(), "kfac": KFAC(), "reduce": KFAC("reduce"), "ekfac": EKFAC(), "low rank": LowRank(9)}


def problem(name: str):
    """A network with a curvature that is not the prior's, and a prior of one precision per tensor's layer."""
    model, inputs = NETWORKS["cnn"]()
    network = Network.of(model)
    layers = network.layout.layers()
    group_of = torch.zeros(network.layout.size, dtype=torch.long)
    for number, index in enumerate(layers.values()):
        group_of[index] = number
    precision = torch.tensor([0.7, 3.0, 1.3]).double()
    prior = DiagonalPrior(torch.full((network.layout.size,), 0.8).double(), group_of, precision, tuple(layers))
    if name == "low rank":
        outputs = network.outputs(inputs)
        rows = categorical()(outputs, 0).mT @ dense_jacobian(model, inputs).reshape(*outputs.shape, -1)
        scaled = Dense(rows.flatten(0, 1) * prior.scale)
        curvature = truncated(leading(scaled, 9, generator=torch.Generator().manual_seed(0)), prior.scale)
        return network, inputs, prior, curvature
    made = METHODS[name].made_of(Structures(network, [inputs[:3], inputs[3:]], categorical()), prior.scale, 0)
    return network, inputs, prior, made.curvature


@pytest.mark.parametrize("name", METHODS)
def test_curvatures_are_those_of_the_dense_matrix(name, generator):
    network, inputs, prior, curvature = problem(name)
    precision = per_weight(prior.precision, prior.group_of)
    matrix = curvature.dense() + torch.diag(prior.std.pow(-2))
    covariance = torch.linalg.inv(matrix)
    torch.testing.assert_close(
        curvature.solve(torch.eye(len(matrix)).double(), precision), covariance, rtol=1e-8, atol=1e-10
    )
    ratios, expected = curvature.ratios(precision), torch.linalg.slogdet(matrix).logabsdet
    assert float(ratios.log1p().sum()) == pytest.approx(float(expected - prior.log_det()), rel=1e-9)
    assert float(curvature.log_det(precision)) == pytest.approx(float(expected), rel=1e-9)
    gamma = float((covariance @ curvature.dense()).trace())
    assert float((ratios / (1 + ratios)).sum()) == pytest.approx(gamma, rel=1e-9)
    assert float(curvature.determined(precision).sum()) == pytest.approx(gamma, rel=1e-9)
    rows = dense_jacobian(network.model, inputs)
    after = curvature.variance(rows, precision)
    torch.testing.assert_close(after, (rows * (rows @ covariance)).sum(1), rtol=1e-8, atol=1e-10)
    kept = torch.arange(0, len(matrix), 11)
    normals = torch.randn(len(matrix), 4_000, generator=generator, dtype=torch.float64)
    check_covariance(curvature.draw(normals, precision)[kept], covariance[kept][:, kept])


def test_the_diagonal_and_its_sampled_form():
    network, inputs, _, curvature = problem("diagonal")
    ggn = dense_ggn(network.model, inputs, "categorical").sum(0)
    torch.testing.assert_close(curvature.dense(), torch.diag(ggn.diagonal()), rtol=1e-9, atol=1e-12)
    sampled = Diagonal(probes=50).made_of(Structures(network, [inputs], categorical()), None, 0)
    error = sampled.diagnostics["relative_error_of_trace"]
    assert 0 < error < 0.2
    assert abs(float(sampled.curvature.dense().trace() / ggn.trace()) - 1) < 5 * error


def test_a_complete_low_rank_is_the_whole_matrix():
    network, inputs, prior, _ = problem("low rank")
    outputs = network.outputs(inputs)
    rows = categorical()(outputs, 0).mT @ dense_jacobian(network.model, inputs).reshape(*outputs.shape, -1)
    scaled = Dense(rows.flatten(0, 1) * prior.scale)
    found = leading(scaled, 16, generator=torch.Generator().manual_seed(0))
    ggn = dense_ggn(network.model, inputs, "categorical").sum(0)
    torch.testing.assert_close(truncated(found, prior.scale).dense(), ggn, rtol=1e-8, atol=1e-10)


def test_a_kronecker_block_is_that_of_its_network():
    network, inputs, _, curvature = problem("ekfac")
    ggn = dense_ggn(network.model, inputs, "categorical").sum(0)
    exact = dense_blocks(ggn, curvature)
    assert float(curvature.dense().trace()) == pytest.approx(float(exact.trace()), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KFAC("sum"), "sharing is 'sum'"),
        (lambda: EKFAC("sum"), "sharing is 'sum'"),
        (lambda: KFAC(probes=0), "probes is 0"),
        (lambda: Diagonal(probes=0), "probes is 0"),
        (lambda: LowRank(0), "rank is 0"),
    ],
)
def test_wrong_methods_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_kronecker_spectra_make_whitened_posteriors(generator):
    """The same covariance, draws and determinant, from the machinery of exact posteriors."""
    *_, prior, curvature = problem("ekfac")
    known = spectrum(curvature)
    rank, alpha = len(known.values), 0.875
    normals, prior_noise = (torch.randn(rank, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    statistics = Statistics(
        basis=Eigenbasis(known), values=known.values / alpha, targets=torch.zeros(rank).double(), remainder=0.0, noise=normals,
        prior_noise=(known.values / alpha).sqrt()[:, None] * known.coordinates(prior_noise.mT).mT,
        density=torch.ones(rank).double(), count=1.0, log_weight=0.0,
    )  # fmt: skip
    whitened = Whitened(prior.scale / alpha**0.5, statistics)
    covariance = curvature.solve(torch.eye(rank).double(), alpha)
    torch.testing.assert_close(whitened.covariance(), covariance, rtol=1e-10, atol=1e-12)
    assert whitened.trace_of(torch.log1p).value == pytest.approx(
        float(curvature.ratios(alpha).log1p().sum()), rel=1e-11
    )
    torch.testing.assert_close(whitened.root(prior_noise), curvature.draw(prior_noise, alpha), rtol=1e-9, atol=1e-11)

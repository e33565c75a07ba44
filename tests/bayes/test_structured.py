"""Structured posteriors against the dense matrix they stand for, and their evidence against a search."""

import pytest
import scipy.optimize
import torch
from torch import Tensor

from lapwing.bayes.methods import EKFAC, KFAC, Diagonal, LowRank
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.statistics import Statistics, Whitened
from lapwing.bayes.structured import Structured, maximise
from lapwing.linalg.kronecker import spectrum
from lapwing.linalg.operators import Dense
from lapwing.linalg.truncated import Truncated, leading, truncated
from lapwing.network.jacobian import Network
from lapwing.network.kfac import categorical, structured
from tests.network.networks import NETWORKS, normal
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
        return network, inputs, prior, Structured.of(curvature, prior)
    made = structured(network, [inputs[:3], inputs[3:]], categorical(), METHODS[name], scale=prior.scale)
    return network, inputs, prior, Structured.of(made.curvature, prior)


def dense(belief: Structured, prior: DiagonalPrior) -> Tensor:
    return belief.curvature.dense() + torch.diag(prior.std.pow(-2))


@pytest.mark.parametrize("name", METHODS)
def test_beliefs_are_those_of_the_dense_matrix(name, generator):
    network, inputs, prior, belief = problem(name)
    matrix = dense(belief, prior)
    covariance = torch.linalg.inv(matrix)
    torch.testing.assert_close(belief.covariance(), covariance, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(belief.std, prior.std, rtol=1e-12, atol=0)
    expected = torch.linalg.slogdet(matrix).logabsdet - prior.log_det()
    assert belief.trace_of(torch.log1p).value == pytest.approx(float(expected), rel=1e-9)
    gamma = (covariance @ belief.curvature.dense()).trace()
    assert belief.trace_of(lambda k: k / (1 + k)).value == pytest.approx(float(gamma), rel=1e-9)
    rows = dense_jacobian(network.model, inputs)
    before, after = belief.variances(Dense(rows))
    torch.testing.assert_close(before, rows.square() @ prior.std.square(), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(after, (rows * (rows @ covariance)).sum(1), rtol=1e-8, atol=1e-10)
    kept = torch.arange(0, len(matrix), 11)
    normals = torch.randn(len(matrix), 4_000, generator=generator, dtype=torch.float64)
    check_covariance(belief.deviations(normals)[kept], covariance[kept][:, kept])


@pytest.mark.parametrize("name", ["diagonal", "kfac", "ekfac"])
def test_variances_of_outputs_need_no_rows(name):
    network, inputs, prior, belief = problem(name)
    made = structured(network, [inputs], categorical(), METHODS[name], scale=prior.scale)
    new = normal(4, *inputs.shape[1:], seed=20)
    found = made.output_variances(network, [new[:1], new[1:]], belief.precision)
    expected = belief.curvature.variance(dense_jacobian(network.model, new), belief.precision)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_the_diagonal_and_its_sampled_form():
    network, inputs, _, belief = problem("diagonal")
    ggn = dense_ggn(network.model, inputs, "categorical").sum(0)
    torch.testing.assert_close(belief.curvature.dense(), torch.diag(ggn.diagonal()), rtol=1e-9, atol=1e-12)
    sampled = structured(network, [inputs], categorical(), Diagonal(probes=50))
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


@pytest.mark.parametrize("name", METHODS)
def test_precisions_maximise_the_evidence(name):
    """MacKay's fixed point against a search on the dense objective, one precision and one per layer."""
    _, _, prior, belief = problem(name)
    weights = normal(len(prior.scale), seed=4)
    matrix = _whitened(belief.curvature.dense(), prior.scale)
    norms = (weights / prior.scale).square()

    def objective(log: Tensor) -> float:
        precision = log.exp()[group_of]
        root = precision.rsqrt()
        occam = torch.linalg.slogdet(torch.eye(len(root)).double() + _whitened(matrix, root)).logabsdet
        return -0.5 * float((precision * norms).sum() + occam)

    for group_of, groups in ((torch.zeros_like(prior.group_of), 1), (prior.group_of, 3)):
        tuned = maximise(belief.curvature, weights, group_of, torch.full((groups,), 2.0).double(), rtol=1e-9)
        best = tuned.precision.log()
        assert tuned.converged
        assert not tuned.at_bound
        assert tuned.occam + tuned.penalty == pytest.approx(objective(best), rel=1e-9)
        found = scipy.optimize.minimize(
            lambda x, _: -objective(torch.from_numpy(x)), best.numpy() + 0.3, args=(None,), method="Nelder-Mead",
            options={"xatol": 1e-4, "fatol": 1e-9},
        )  # fmt: skip
        assert objective(best) >= -found.fun - 1e-7
        torch.testing.assert_close(best, torch.from_numpy(found.x), rtol=0, atol=1e-2)


def _whitened(matrix: Tensor, scale: Tensor) -> Tensor:
    return scale[:, None] * matrix * scale


def test_precisions_that_run_away_are_said():
    curvature = Truncated(torch.eye(4)[:, :2].double(), torch.tensor([3.0, 2.0]).double(), torch.ones(4).double())
    group_of = torch.tensor([0, 0, 1, 1])
    found = maximise(curvature, torch.ones(4).double(), group_of, torch.ones(2).double())
    assert found.at_bound == (1,)  # nothing is known of the second group but weights that are not zero
    none = maximise(curvature, torch.zeros(4).double(), torch.zeros(4, dtype=torch.long), torch.ones(1).double())
    assert none.at_bound == (0,)


def test_a_kronecker_block_is_that_of_its_network():
    network, inputs, _, belief = problem("ekfac")
    ggn = dense_ggn(network.model, inputs, "categorical").sum(0)
    exact = dense_blocks(ggn, belief.curvature)
    assert float(belief.curvature.dense().trace()) == pytest.approx(float(exact.trace()), rel=1e-9)


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
    """The same covariance, draws and determinant as a structured belief, from the machinery of exact posteriors."""
    *_, prior, belief = problem("ekfac")
    known = spectrum(belief.curvature)
    rank, alpha = len(known.values), 0.875
    normals, prior_noise = (torch.randn(rank, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    statistics = Statistics(
        basis=known, values=known.values / alpha, targets=torch.zeros(rank).double(), remainder=0.0, noise=normals,
        prior_noise=(known.values / alpha).sqrt()[:, None] * known.coordinates(prior_noise.mT).mT,
        density=torch.ones(rank).double(), count=1.0, log_weight=0.0,
    )  # fmt: skip
    whitened, same = (
        Whitened(prior.scale / alpha**0.5, statistics),
        Structured(belief.curvature, torch.tensor(alpha).double()),
    )
    torch.testing.assert_close(whitened.covariance(), same.covariance(), rtol=1e-10, atol=1e-12)
    assert whitened.trace_of(torch.log1p).value == pytest.approx(same.trace_of(torch.log1p).value, rel=1e-11)
    torch.testing.assert_close(whitened.root(prior_noise), same.deviations(prior_noise), rtol=1e-9, atol=1e-11)


def test_a_prior_of_another_scale_is_refused():
    *_, prior, belief = problem("kfac")
    other = DiagonalPrior(2 * prior.scale, prior.group_of, prior.precision, prior.names)
    with pytest.raises(ValueError, match="another scale"):
        Structured.of(belief.curvature, other)

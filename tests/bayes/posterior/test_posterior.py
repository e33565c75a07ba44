"""Posteriors against dense inverses: mean, covariance, draws path by path, predictions, leave-one-out."""

import math

import numpy as np
import pytest
import scipy.sparse
import torch

from lapwing import Exact, Gaussian, GPrior, Isotropic, LinearModel, PerGroup, infer
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.linalg.operators import BlockDiagonal, Dense
from tests import reference
from tests.problems import PROBLEMS, TALL, TALL_OUTPUTS, WIDE, linear
from tests.properties import check_covariance


def dense_setting(posterior, data):
    """Precisions per row and per weight, rebuilt from what the posterior says of itself."""
    noise_std = posterior.likelihood.noise_std.expand(data.targets.shape).reshape(-1)
    counts = posterior.model.weights.repeat_interleave(data.outputs)
    return counts / noise_std.square(), posterior.prior.std.pow(-2)


SETTINGS = {
    "tuned": {"likelihood": Gaussian(), "prior": Isotropic()},
    "g-prior": {"likelihood": Gaussian(), "prior": None},
    "given": {"likelihood": Gaussian(0.6), "prior": Isotropic(2.0)},
    "groups": {"likelihood": Gaussian(0.6), "prior": PerGroup({"a": slice(0, 3), "b": slice(3, None)})},
    "per output": {"likelihood": Gaussian(per_output=True), "prior": Isotropic()},
}


@pytest.mark.parametrize("side", ["primal", "dual"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_posterior_equals_the_dense_one(name, setting, side):
    data, chosen = PROBLEMS[name], SETTINGS[setting]
    model = LinearModel(data.features, data.targets, chosen["likelihood"], weights=data.weights)
    posterior = infer(model, prior=chosen["prior"], method=Exact(side), draws=5, seed=4)
    noise, prior = dense_setting(posterior, data)
    kept = prior.isfinite()  # a pruned group has no weights at all
    features, inputs, prior = data.features[:, kept], data.inputs[:, kept], prior[kept]
    mean, covariance = reference.posterior(features, data.targets.reshape(-1), noise, prior)
    scale = float(covariance.diagonal().max().sqrt())
    assert posterior.draws[:, ~kept].abs().sum() == 0
    torch.testing.assert_close(posterior.mean[kept], mean, rtol=1e-8, atol=1e-8 * scale)
    torch.testing.assert_close(posterior.covariance[kept][:, kept], covariance, rtol=1e-8, atol=1e-8 * scale**2)
    xi, theta = Noise(4, DATA).rows(0, len(noise), 5), Noise(4, PRIOR).rows(0, len(kept), 5)[kept]
    expected = reference.perturb_and_solve(features, noise, prior, xi, theta)
    torch.testing.assert_close(posterior.gaussian.deviations[kept], expected, rtol=1e-7, atol=1e-8 * scale)
    assert max(posterior.diagnostics.residuals) < 1e-10
    variance = (inputs @ covariance @ inputs.mT).diagonal()
    prediction = posterior.predict(data.inputs)
    torch.testing.assert_close(prediction.epistemic_variance.reshape(-1), variance, rtol=1e-7, atol=0)
    torch.testing.assert_close(prediction.mean.reshape(-1), inputs @ mean, rtol=1e-7, atol=1e-8)
    assert prediction.mean.shape == data.held_out.shape
    gamma = float((torch.eye(len(prior)) - covariance @ torch.diag(prior)).diagonal().sum())
    assert posterior.effective_dimension.value == pytest.approx(gamma, rel=1e-8)


@pytest.mark.parametrize("name", PROBLEMS)
def test_at_other_precisions_equals_inferring_there(name):
    data = PROBLEMS[name]
    model = LinearModel(data.features, data.targets, Gaussian(), weights=data.weights)
    moved = infer(model, prior=GPrior(), draws=4).at(precision=0.3, noise_std=1.7)
    there = infer(
        LinearModel(data.features, data.targets, Gaussian(1.7), weights=data.weights), prior=GPrior(0.3), draws=4
    )
    torch.testing.assert_close(moved.draws, there.draws, rtol=1e-8, atol=1e-9)
    assert moved.log_evidence.value == pytest.approx(there.log_evidence.value, rel=1e-11)
    assert moved.diagnostics.tuned_by == "given"


def test_at_with_groups_and_noise_per_output():
    data = TALL_OUTPUTS
    prior = PerGroup({"a": slice(0, 3), "b": slice(3, 8)})
    posterior = infer(LinearModel(data.features, data.targets, Gaussian(per_output=True)), prior=prior, draws=3)
    moved = posterior.at(precision={"a": 2.0, "b": 0.5}, noise_std=[0.5, 1.0, 1.5])
    there = infer(
        LinearModel(data.features, data.targets, Gaussian([0.5, 1.0, 1.5])),
        prior=PerGroup(prior.groups, {"a": 2.0, "b": 0.5}), draws=3,
    )  # fmt: skip
    torch.testing.assert_close(moved.draws, there.draws, rtol=1e-8, atol=1e-9)
    with pytest.raises(ValueError, match="cannot set noise_std"):
        there.at(noise_std=0.3)


def test_draws_of_every_precision_have_its_covariance():
    """Noise is reused when the precision moves; fresh samples are independent of it."""
    data = linear(60, 1, 6, seed=8)
    posterior = infer(LinearModel(data.features, data.targets, Gaussian(1.2)), prior=Isotropic(0.7), draws=20_000)
    for at in (posterior, posterior.at(precision=25.0, noise_std=3.0)):
        check_covariance(at.gaussian.deviations, at.covariance)
        check_covariance((at.sample(20_000) - at.mean).mT, at.covariance)


def test_correlated_noise_within_a_datum_by_whitening_blocks():
    """With n = 300, m = 2, d = 40, a random noise precision matrix per datum, 4,000 draws."""
    generator = torch.Generator().manual_seed(12)
    n, m, d, draws = 300, 2, 40, 4000
    features = torch.randn(n * m, d, generator=generator, dtype=torch.float64)
    blocks = torch.randn(n, m, m, generator=generator, dtype=torch.float64)
    targets = torch.randn(n, m, generator=generator, dtype=torch.float64)
    root = BlockDiagonal(blocks)
    model = LinearModel(root @ Dense(features), (root @ targets.reshape(-1)).reshape(n, m), Gaussian(1.0))
    prior = PerGroup({"a": slice(0, 13), "b": slice(13, 40)}, {"a": 0.5, "b": 4.0})
    posterior = infer(model, prior=prior, draws=draws)
    precision = features.mT @ torch.block_diag(*(blocks.mT @ blocks)) @ features + torch.diag(
        posterior.prior.std.pow(-2)
    )
    values, vectors = torch.linalg.eigh(precision)
    white = vectors * values.sqrt() @ vectors.mT @ posterior.gaussian.deviations
    distance = float((white @ white.mT / draws - torch.eye(d)).square().sum() / d)
    assert distance == pytest.approx((d + 1) / draws, rel=0.2)
    check_covariance(posterior.gaussian.deviations, torch.linalg.inv(precision))


def test_per_datum_noise_and_its_limits():
    std = torch.linspace(0.3, 2.0, 40, dtype=torch.float64)
    posterior = infer(LinearModel(TALL.features, TALL.targets, Gaussian(std)), prior=Isotropic(1.5), draws=3)
    mean, covariance = reference.posterior(
        TALL.features, TALL.targets, std.pow(-2), torch.full((7,), 1.5, dtype=torch.float64)
    )
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-9, atol=1e-10)
    prediction = posterior.predict(TALL.inputs)
    expected = (TALL.inputs @ covariance @ TALL.inputs.mT).diagonal()
    torch.testing.assert_close(prediction.epistemic_variance, expected, rtol=1e-9, atol=0)
    with pytest.raises(ValueError, match="given per datum, so it is not known at new inputs"):
        _ = prediction.std


@pytest.mark.parametrize("kind", ["sparse", "float32", "numpy", "weights as copies"])
def test_the_same_posterior_from_other_containers(kind):
    features, targets = TALL.features.round(decimals=3), TALL.targets
    expected = infer(LinearModel(features, targets, Gaussian(0.5)), prior=Isotropic(1.0), draws=3)
    given, tolerance, weights = features, 1e-10, None
    if kind == "sparse":
        given = scipy.sparse.csr_matrix(features.numpy())
    elif kind == "numpy":
        given, targets = features.numpy(), targets.numpy()
    elif kind == "float32":
        given, tolerance = features.float(), 1e-5
    else:
        weights = torch.arange(40) % 3
        keep = torch.arange(40).repeat_interleave(weights)
        expected = infer(LinearModel(features[keep], targets[keep], Gaussian(0.5)), prior=Isotropic(1.0), draws=3)
    posterior = infer(LinearModel(given, targets, Gaussian(0.5), weights=weights), prior=Isotropic(1.0), draws=3)
    torch.testing.assert_close(posterior.mean, expected.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(posterior.covariance, expected.covariance, rtol=100 * tolerance, atol=tolerance)
    assert posterior.log_evidence.value == pytest.approx(expected.log_evidence.value, rel=10 * tolerance)
    if kind != "weights as copies":
        torch.testing.assert_close(posterior.draws, expected.draws, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("likelihood", [Gaussian(0.8), Gaussian(per_output=True)], ids=["scalar", "per output"])
def test_leave_one_out_equals_leaving_out(name, likelihood):
    data = PROBLEMS[name]
    n, m = len(data.weights), data.outputs
    model = LinearModel(data.features, data.targets, likelihood, weights=data.weights)
    posterior = infer(model, prior=Isotropic(1.1), draws=0)
    loo = posterior.leave_one_out()
    fixed = Gaussian(posterior.likelihood.noise_std)
    for i in (0, 3, n - 1):
        rest = torch.arange(n) != i
        rows = data.features.reshape(n, m, -1)
        others = LinearModel(
            rows[rest].reshape(-1, rows.shape[2]), data.targets[rest], fixed, weights=data.weights[rest]
        )
        alone = infer(others, prior=Isotropic(1.1), draws=0).predict(rows[i])
        torch.testing.assert_close(loo.mean[i].reshape(-1), alone.mean.reshape(-1), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            loo.epistemic_variance[i].reshape(-1), alone.epistemic_variance.reshape(-1), rtol=1e-8, atol=0
        )
        if m == 1:
            assert float(loo.log_density[i]) == pytest.approx(float(alone.log_prob(data.targets[i : i + 1])), rel=1e-8)
    torch.testing.assert_close(loo.residual, data.targets - loo.mean, rtol=0, atol=1e-12)
    assert float(loo.leverage.sum()) == pytest.approx(posterior.effective_dimension.value, rel=1e-9)


def test_leave_one_out_density_is_joint_over_outputs():
    data, i = TALL_OUTPUTS, 5
    posterior = infer(LinearModel(data.features, data.targets, Gaussian(0.8)), prior=Isotropic(1.1), draws=0)
    rest = torch.arange(20) != i
    rows = data.features.reshape(20, 3, 8)
    noise, prior = torch.full((57,), 0.8**-2, dtype=torch.float64), torch.full((8,), 1.1, dtype=torch.float64)
    mean, covariance = reference.posterior(rows[rest].reshape(-1, 8), data.targets[rest].reshape(-1), noise, prior)
    spread = rows[i] @ covariance @ rows[i].mT + 0.64 * torch.eye(3, dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(rows[i] @ mean, spread).log_prob(data.targets[i])
    assert float(posterior.leave_one_out().log_density[i]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_verify_finds_no_error_and_would_find_one(name):
    data = PROBLEMS[name]
    posterior = infer(LinearModel(data.features, data.targets, Gaussian(), weights=data.weights), draws=2)
    result = posterior.verify(data.inputs)
    assert result.relative_error < 1e-6
    assert "largest relative error of 5" in repr(result)
    wrong = posterior.at(precision=float(posterior.prior.precision) * 1.1)
    assert (
        type(result)(wrong.predict(data.inputs).epistemic_variance.reshape(-1)[:5], result.reference).relative_error
        > 1e-3
    )


def test_function_draws_are_joint_and_the_same_at_every_call():
    posterior = infer(LinearModel(TALL_OUTPUTS.features, TALL_OUTPUTS.targets, Gaussian()), draws=6)
    functions = posterior.functions(TALL_OUTPUTS.inputs)
    assert functions.shape == (6, 11, 3)
    torch.testing.assert_close(
        posterior.functions(TALL_OUTPUTS.inputs[6:12]), functions[:, 2:4], rtol=1e-12, atol=1e-13
    )
    again = infer(LinearModel(TALL_OUTPUTS.features, TALL_OUTPUTS.targets, Gaussian()), draws=6)
    assert torch.equal(again.functions(TALL_OUTPUTS.inputs), functions)
    other = infer(LinearModel(TALL_OUTPUTS.features, TALL_OUTPUTS.targets, Gaussian()), draws=6, seed=1)
    assert not torch.isclose(other.functions(TALL_OUTPUTS.inputs), functions).any()


def test_predictions_do_not_depend_on_batches_or_neighbours():
    posterior = infer(LinearModel(WIDE.features, WIDE.targets, Gaussian(0.4)), draws=3)
    whole = posterior.predict(WIDE.inputs)
    for part in (posterior.predict(WIDE.inputs[3:5]), posterior.predict(WIDE.inputs, batch_size=2)[3:5], whole[[3, 4]]):
        torch.testing.assert_close(part.epistemic_variance, whole.epistemic_variance[3:5], rtol=1e-11, atol=0)
        torch.testing.assert_close(part.mean, whole.mean[3:5], rtol=1e-11, atol=1e-12)


def test_prediction_intervals_densities_and_scores():
    posterior = infer(LinearModel(TALL.features, TALL.targets, Gaussian(0.5)), prior=Isotropic(1.0), draws=4)
    prediction = posterior.predict(TALL.inputs)
    low, high = prediction.interval(0.9)
    torch.testing.assert_close(
        (high - low) / prediction.std,
        torch.full((11,), 2 * 1.6448536269514722, dtype=torch.float64),
        rtol=1e-12,
        atol=0,
    )
    z = (TALL.held_out - prediction.mean) / prediction.std
    expected = -0.5 * z.square() - prediction.std.log() - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(prediction.log_prob(TALL.held_out), expected, rtol=1e-12, atol=0)
    prior_variance = TALL.inputs.square().sum(1)
    torch.testing.assert_close(prediction.novelty, prediction.epistemic_variance / prior_variance, rtol=1e-12, atol=0)
    assert (prediction.novelty > 0).all()
    assert (prediction.novelty < 1).all()
    information = prediction.entropy - torch.distributions.Normal(0.0, 0.5).entropy()
    torch.testing.assert_close(prediction.mutual_information, information.double(), rtol=1e-6, atol=1e-9)
    assert prediction.samples.shape == (4, 11)
    frame = prediction.to_frame()
    assert list(frame) == ["mean", "std", "epistemic_std", "lower_90", "upper_90", "novelty"]
    np.testing.assert_allclose(frame["upper_90"], high.numpy())
    assert len(prediction.cpu()[2]) == 1
    with pytest.raises(ValueError, match="level must lie"):
        prediction.interval(1.0)
    with pytest.raises(ValueError, match="do not fit predictions"):
        prediction.log_prob(torch.zeros(11, 1))


def test_observation_samples_have_the_predictive_variance():
    posterior = infer(LinearModel(TALL.features, TALL.targets, Gaussian(0.5)), prior=Isotropic(1.0), draws=20_000)
    prediction = posterior.predict(TALL.inputs)
    covariance = TALL.inputs @ posterior.covariance @ TALL.inputs.mT + 0.25 * torch.eye(11, dtype=torch.float64)
    check_covariance((prediction.samples - prediction.mean).mT, covariance)
    with pytest.raises(ValueError, match="inferred with draws=0"):
        _ = infer(posterior.model, draws=0).predict(TALL.inputs).samples
    assert list(infer(LinearModel(TALL_OUTPUTS.features, TALL_OUTPUTS.targets, Gaussian())).predict(TALL_OUTPUTS.inputs).to_frame())[:2] == ["mean_0", "std_0"]  # fmt: skip


def test_exactly_scalar_shapes_are_never_broadcast():
    """One output as (n,) and as (n, 1), one datum, one draw, one weight."""
    flat = infer(LinearModel(TALL.features, TALL.targets, Gaussian()), draws=1)
    column = infer(LinearModel(TALL.features, TALL.targets[:, None], Gaussian()), draws=1)
    assert flat.predict(TALL.inputs).mean.shape == (11,)
    assert column.predict(TALL.inputs).mean.shape == (11, 1)
    assert column.functions(TALL.inputs).shape == (1, 11, 1)
    torch.testing.assert_close(column.mean, flat.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(column.leave_one_out().residual[:, 0], flat.leave_one_out().residual, rtol=1e-12, atol=0)
    one = infer(LinearModel([[2.0]], [3.0], Gaussian(1.0)), prior=Isotropic(1.0), draws=1)
    assert one.mean.item() == pytest.approx(6 / 5, rel=1e-14)
    assert one.covariance.item() == pytest.approx(1 / 5, rel=1e-14)

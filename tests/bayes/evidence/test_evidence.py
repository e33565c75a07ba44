"""Evidence against dense determinants, and three searches for its maximum against each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lapwing import Categorical, Gaussian, GPrior, Isotropic, LinearModel, PerGroup, infer
from lapwing.bayes import evidence
from lapwing.bayes.evidence import Precisions, search
from lapwing.bayes.fits import LaplaceAtPoint, ModeSearch
from lapwing.bayes.noise import Noise
from lapwing.bayes.statistics import summarise
from lapwing.linalg.estimators import Estimate
from tests import reference
from tests.problems import PROBLEMS, TALL, TALL_OUTPUTS, linear

GROUPS = {"tall": {"a": slice(0, 3), "b": slice(3, 7)}, "wide": {"a": slice(0, 9), "b": slice(9, 29)},
          "tall outputs": {"a": slice(0, 3), "b": slice(3, 8)}, "wide outputs": {"a": slice(0, 12), "b": slice(12, 31)}}  # fmt: skip


def evidence_problem(data, prior, likelihood, weights=None, side=None):
    model = LinearModel(data.features, data.targets, likelihood, weights=weights)
    resolved = prior.on(model.features, model.row_counts * model.likelihood.row_precision(model.targets))
    statistics = summarise(model.gaussian_surrogate(), resolved, side=side, noise=Noise(0), draws=0)
    return evidence.problem(statistics, resolved), resolved


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_three_forms_of_the_evidence_agree(name, weighted):
    data = PROBLEMS[name]
    posterior = infer(
        LinearModel(data.features, data.targets, Gaussian(0.7), weights=data.weights if weighted else None),
        prior=Isotropic(1.3), draws=2,
    )  # fmt: skip
    counts = (data.weights if weighted else torch.ones_like(data.weights)).repeat_interleave(data.outputs)
    noise, prior = counts / 0.49, torch.full((data.features.shape[1],), 1.3, dtype=torch.float64)
    y = data.targets.reshape(-1)
    assert posterior.log_evidence.value == pytest.approx(
        reference.log_evidence(data.features, y, noise, prior, counts), rel=1e-12
    )
    if not weighted:
        of_data = reference.log_evidence_of_data(data.features, y, noise, prior)
        assert posterior.log_evidence.value == pytest.approx(of_data, rel=1e-12)
    assert posterior.evidence_parts.total == posterior.log_evidence.value


@pytest.mark.parametrize("name", PROBLEMS)
def test_evidence_with_several_precisions_and_noises(name):
    data = PROBLEMS[name]
    m, y = data.outputs, data.targets.reshape(-1)
    noise = torch.linspace(1.0, 2.0, m, dtype=torch.float64) if m > 1 else torch.tensor([1.5], dtype=torch.float64)
    problem, prior = evidence_problem(data, PerGroup(GROUPS[name]), Gaussian(per_output=True), data.weights)
    value = problem.parts(Precisions(torch.tensor([0.4, 2.5], dtype=torch.float64), noise)).total
    counts = data.weights.repeat_interleave(m)
    per_weight = torch.tensor([0.4, 2.5], dtype=torch.float64)[prior.group_of]
    expected = reference.log_evidence(data.features, y, counts * noise.repeat(len(data.weights)), per_weight, counts)
    assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_is_that_of_the_dense_formula(name):
    data = PROBLEMS[name]
    problem, prior = evidence_problem(data, PerGroup(GROUPS[name]), Gaussian(per_output=True))
    groups = len(problem.counts)
    logs = torch.linspace(-0.5, 0.7, 2 + groups, dtype=torch.float64).requires_grad_()
    alpha, beta = logs[:2].exp()[prior.group_of], logs[2:].exp().repeat(len(data.weights))
    covariance = data.features @ torch.diag(1 / alpha) @ data.features.mT + torch.diag(1 / beta)
    y = data.targets.reshape(-1)
    dense = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    (expected,) = torch.autograd.grad(dense, logs)
    at = Precisions(logs[:2].exp().detach(), logs[2:].exp().detach())
    gradient = problem.gradient(at, problem.moments(at))
    torch.testing.assert_close(torch.cat([gradient.prior, gradient.noise]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("data", "prior", "likelihood"),
    [
        (linear(200, 1, 30, seed=5), Isotropic(), Gaussian()),
        (linear(200, 1, 30, seed=5), GPrior(), Gaussian(0.5)),
        (linear(60, 3, 22, seed=6), PerGroup({"a": slice(0, 9), "b": slice(9, 22)}), Gaussian(per_output=True)),
        (linear(30, 1, 47, seed=7), Isotropic(), Gaussian()),
    ],
    ids=["both", "prior only", "groups and outputs", "wide"],
)
def test_mackay_and_gradient_find_the_same_stationary_maximum(data, prior, likelihood):
    problem, resolved = evidence_problem(data, prior, likelihood)
    problem = replace(problem, tune_noise=likelihood.noise_std is None)
    start = Precisions(resolved.precision, torch.ones(len(problem.counts)).double())
    found = evidence.maximise(problem, evidence.scan(problem, start))
    mackay = evidence.mackay(problem, start, tolerance=1e-10)
    assert found.converged
    assert mackay.converged
    torch.testing.assert_close(mackay.at.prior, found.at.prior, rtol=1e-6, atol=0)
    torch.testing.assert_close(mackay.at.noise, found.at.noise, rtol=1e-6, atol=0)
    best = problem.objective(found.at)
    for factor in (0.5, 0.9, 1.1, 2.0):  # a maximum, in every direction
        for group in range(len(found.at.prior)):
            moved = found.at.prior.clone()
            moved[group] *= factor
            assert problem.objective(replace(found.at, prior=moved)) < best
    assert all(later >= earlier - 1e-9 for earlier, later in zip(mackay.trace, mackay.trace[1:], strict=False))


def test_the_search_is_not_misled_by_units():
    """Features in units a million times off, targets too: the same evidence up to the change of units."""
    base = infer(LinearModel(TALL.features, TALL.targets, Gaussian()), prior=Isotropic())
    far = infer(LinearModel(1e6 * TALL.features, 1e-4 * TALL.targets, Gaussian()), prior=Isotropic())
    assert float(far.prior.precision) == pytest.approx(float(base.prior.precision) * 1e20, rel=1e-6)
    assert far.log_evidence.value == pytest.approx(base.log_evidence.value + 40 * np.log(1e4), rel=1e-9)


def test_a_group_the_data_do_not_need_is_pruned_and_named():
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    residual = TALL.targets - TALL.features @ torch.linalg.lstsq(TALL.features, TALL.targets).solution
    useless = noise - torch.outer(residual, residual @ noise) / residual.square().sum()  # nothing to say of y
    useless = useless - TALL.features @ torch.linalg.lstsq(TALL.features, useless).solution
    both = torch.cat([TALL.features, useless], dim=1)
    prior = PerGroup({"useful": slice(0, 7), "useless": slice(7, 10)})
    posterior = infer(LinearModel(both, TALL.targets, Gaussian()), prior=prior)
    assert posterior.diagnostics.pruned == ("useless",)
    assert "pruned: useless" in repr(posterior)
    assert posterior.mean[7:].tolist() == [0, 0, 0]
    assert posterior.gaussian.deviations[7:].abs().max() == 0
    without = infer(LinearModel(TALL.features, TALL.targets, Gaussian()), prior=Isotropic())
    assert posterior.log_evidence.value == pytest.approx(without.log_evidence.value, rel=1e-9)
    torch.testing.assert_close(posterior.mean[:7], without.mean, rtol=1e-5, atol=1e-7)


def test_targets_without_signal_prune_everything():
    features = linear(60, 1, 5, seed=11).features
    noise = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = noise - features @ torch.linalg.lstsq(features, noise).solution
    posterior = infer(LinearModel(features, noise, Gaussian()), prior=Isotropic())
    assert posterior.diagnostics.pruned == ("all",)
    assert posterior.effective_dimension.value == 0
    assert posterior.likelihood.noise_std.item() == pytest.approx(float(noise.square().mean().sqrt()), rel=1e-6)


def test_exactly_fitted_targets_stop_at_the_noise_floor_and_say_so():
    exact = TALL.features @ torch.linspace(1, 2, 7, dtype=torch.float64)
    posterior = infer(LinearModel(TALL.features, exact, Gaussian()), prior=Isotropic())
    assert posterior.diagnostics.noise_at_floor
    assert posterior.diagnostics.method == "exact, svd"
    torch.testing.assert_close(posterior.mean, torch.linspace(1, 2, 7, dtype=torch.float64), rtol=1e-6, atol=0)


def test_effective_dimension_from_draws_is_unbiased_with_the_stated_spread():
    """Function space, weight space and their combination."""
    data, draws = linear(120, 1, 30, seed=9), 20_000
    posterior = infer(LinearModel(data.features, data.targets, Gaussian(2.0)), prior=Isotropic(3.0), draws=draws)
    k = posterior.gaussian.whitened.values
    s = k / (1 + k)
    fit = (data.features @ posterior.gaussian.deviations / 2.0).square().sum(0)
    penalty = 3.0 * posterior.gaussian.deviations.square().sum(0)
    estimates = evidence.effective_dimension(fit, penalty, 30)
    spreads = (2 * s.square().sum(), 2 * (1 - s).square().sum(), 2 * (s - s.mean()).square().sum())
    for estimate, spread in zip(
        (estimates.function_space, estimates.weight_space, estimates.combined), spreads, strict=True
    ):
        assert abs(estimate.value - float(s.sum())) <= 5 * estimate.standard_error
        assert estimate.standard_error == pytest.approx(float((spread / draws).sqrt()), rel=0.05)
    assert estimates.combined.standard_error < min(
        estimates.function_space.standard_error, estimates.weight_space.standard_error
    )


def test_one_draw_says_nothing_of_its_own_error():
    estimates = evidence.effective_dimension(torch.tensor([3.0]).double(), torch.tensor([4.0]).double(), 9)
    assert estimates.function_space == Estimate(3.0, float("inf"))
    assert estimates.weight_space == Estimate(5.0, float("inf"))
    assert estimates.combined.standard_error == float("inf")


def test_evidence_curve_peaks_at_the_tuned_precision():
    posterior = infer(LinearModel(TALL_OUTPUTS.features, TALL_OUTPUTS.targets, Gaussian()), prior=Isotropic())
    curve = posterior.curve
    assert curve.best_precision == pytest.approx(float(posterior.prior.precision), rel=1e-3)
    assert float(curve.log_evidence.max()) <= posterior.log_evidence.value + 1e-9
    index = 40
    noise_std = float(posterior.likelihood.noise_std) * float(curve.noise[index]) ** -0.5
    there = posterior.at(precision=float(curve.precision[index]), noise_std=noise_std)
    assert there.log_evidence.value == pytest.approx(float(curve.log_evidence[index]), rel=1e-10)


def of_labels(count=90, wide=3):
    """An evidence of class labels at the mode of a linear model, whose settings are counted."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, wide, generator=generator, dtype=torch.float64)
    labels = (x @ torch.tensor([2.0, -1.0, 0.5]).double() + torch.randn(count, generator=generator).double() > 0).long()
    model = LinearModel(torch.stack([x, -x], 1).reshape(2 * count, wide), labels, Categorical())
    prior = Isotropic(1.0).on(model.features, model.row_counts)
    modes = []
    flat = model.gaussian_surrogate(torch.zeros(2 * count, dtype=torch.float64))
    fit = LaplaceAtPoint(ModeSearch.of(model, prior), flat, replace(prior, precision=torch.full((1,), torch.nan)))
    gaussian = evidence.problem(summarise(flat, prior, side="primal", noise=Noise(0), draws=0), prior)

    def told(text):
        modes.append(text)

    return replace(fit.problem(gaussian, told), tune_noise=False), modes


def test_a_bound_spares_settings_and_changes_nothing():
    problem, modes = of_labels()
    start = Precisions(torch.ones(1).double(), torch.ones(1).double())
    everywhere = evidence.scan(replace(problem, bound=None), start)
    assert len(modes) == problem.points == 13
    bound = problem.bound
    spared = evidence.scan(problem, start)
    assert torch.equal(spared.prior, everywhere.prior)
    assert len(modes) - 13 < 13
    for ratio in torch.logspace(-6, 4, 8, dtype=torch.float64)[:, None]:
        at = Precisions(ratio, start.noise)
        assert bound.objective(at) >= problem.objective(at)


def test_steps_to_where_round_off_leaves_no_mode_are_taken_back():
    problem, _ = of_labels()
    start = Precisions(torch.tensor([50.0]).double(), torch.ones(1).double())
    truth = evidence.maximise(problem, start).at.prior

    def refusing(border):
        def moments(at):
            if float(at.prior) < border:
                raise FloatingPointError("too wide")
            return problem.moments(at)

        return replace(problem, moments=moments)

    found = evidence.maximise(refusing(0.5 * float(truth)), start).at.prior
    assert torch.allclose(found, truth, rtol=1e-6)
    with pytest.raises(FloatingPointError, match="too wide"):
        evidence.maximise(refusing(2 * float(truth)), start)
    settings = Precisions(torch.tensor([[1e-9], [1.0], [7.0]]).double(), torch.ones(3, 1).double())
    looked = search._stiffest_first(replace(refusing(1e-3), bound=None), settings)
    assert looked[0] == -torch.inf
    assert torch.allclose(looked[1:], evidence.objectives(problem, settings)[1:], rtol=1e-6)  # modes from other starts
    with pytest.raises(FloatingPointError, match="too wide"):
        evidence.objectives(refusing(1e-3), settings)

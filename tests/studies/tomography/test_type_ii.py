"""Hyperpriors and Type-II MAP: closed forms against Monte Carlo, estimated gradients against exact ones."""

import math
from dataclasses import replace

import pytest
import torch

from lapwing.linalg.solvers import ConjugateGradients, Nystrom
from lapwing.studies.tomography import (
    FilterPrior,
    ParallelBeam,
    Settings,
    TvPredCp,
    difference_moments,
    differences,
    projector,
    read_image,
    simulate,
    sweep,
)
from lapwing.studies.tomography.expected_tv import DifferenceMoments, LengthscaleSweep
from lapwing.studies.tomography.studies import Plan, study
from lapwing.studies.tomography.type_ii.exact import ExactEvidence, exact
from lapwing.studies.tomography.type_ii.matrix_free import MatrixFree, Probes, gradient, matrix_free, system
from lapwing.studies.tomography.type_ii.result import LOWEST_LOG_VARIANCE, Hyperprior, Parameters, notes
from tests.studies.tomography import problems

BLOCK = 1  # down.0: 3 × 3 filters


def at_length(prior: FilterPrior, shift: float) -> FilterPrior:
    lengths = prior.log_lengthscale.clone()
    lengths[BLOCK] += shift
    return replace(prior, log_lengthscale=lengths)


@pytest.fixture(scope="module")
def parts():
    linear = problems.linear()
    return linear, problems.prior(linear.blocks), difference_moments(linear)


def sampled_kappa(linear, prior, normals):
    """E[TV] by drawing the filters of one block; (value, standard error)."""
    block, root = prior.blocks[BLOCK], torch.linalg.cholesky(prior.covariance(BLOCK))
    J = block.of(linear.jacobian.dense().mT).permute(2, 0, 1)  # (pixels, filters, taps)
    features = (J @ root).reshape(len(J), -1)
    D = differences(linear.projector.size).dense()
    drawn = D @ (linear.reconstruction.image.reshape(-1, 1) + features @ normals[: features.shape[1]])
    totals = drawn.abs().sum(0)
    return float(totals.mean()), float(totals.std()) / len(totals) ** 0.5


def integrated_kappa(linear, prior):
    """The same by sums of |μ + s z| φ(z) over a fine grid of z, with s² from a dense Jacobian and covariance."""
    J = problems.dense_jacobian(linear.reconstruction)
    S = problems.dense_covariance(linear.reconstruction.model, prior)
    here = torch.cat([torch.arange(start, stop) for start, stop in prior.blocks[BLOCK].spans])
    D = differences(linear.projector.size).dense()
    seen, means = D @ J[:, here], D @ linear.reconstruction.image.reshape(-1)
    std = (seen @ S[here][:, here] * seen).sum(1).sqrt()
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return float(torch.trapezoid((means[:, None] + std[:, None] * z).abs() * density, z).sum())


def test_expected_tv_and_its_derivatives(parts, generator):
    linear, prior, moments = parts
    normals = torch.randn(9 * 4 * 5 + 9 * 5 * 5, 40_000, generator=generator, dtype=torch.float64)
    value, error = sampled_kappa(linear, prior, normals)
    kappa = float(moments.kappa(prior, BLOCK))
    assert abs(kappa - value) <= max(0.002 * kappa, 4 * error)
    assert 4 * error <= 0.01 * kappa
    # a kink inside a cell of the grid costs s h² / 8 φ: 1e-7 of κ
    assert kappa == pytest.approx(integrated_kappa(linear, prior), rel=1e-6)
    lengths = prior.log_lengthscale.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(
        moments.kappa(replace(prior, log_lengthscale=lengths), BLOCK), lengths, create_graph=True
    )
    slope, step = float(slopes[BLOCK].detach()), 0.02
    ahead, behind = (integrated_kappa(linear, at_length(prior, shift)) for shift in (step, -step))
    assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-3)  # differences err by step² / 6, 7e-5
    (curvature,) = torch.autograd.grad(slopes[BLOCK], lengths)
    fine = 1e-3
    values = [float(moments.kappa(at_length(prior, shift), BLOCK)) for shift in (-fine, 0.0, fine)]
    assert slope == pytest.approx((values[2] - values[0]) / (2 * fine), rel=1e-5)
    assert float(curvature[BLOCK]) == pytest.approx((values[2] - 2 * values[1] + values[0]) / fine**2, rel=1e-4)


def test_the_hyperprior_is_a_density(parts):
    _, prior, moments = parts
    seen = sweep(moments, prior, BLOCK)
    assert seen.monotone
    low, high = float(seen.kappa.min()), float(seen.kappa.max())
    density = TvPredCp(rate=2 / (high - low))
    grid = torch.linspace(math.log(1e-2), math.log(1e2), 300).double()
    places = [at_length(prior, float(x - prior.log_lengthscale[BLOCK])) for x in grid]
    values = torch.stack([density.log_density(moments, place, BLOCK).detach() for place in places]).exp()
    expected = math.exp(-density.rate * low) - math.exp(-density.rate * high)
    assert float(torch.trapezoid(values, grid)) == pytest.approx(expected, abs=1e-3)


def test_the_two_scalings_are_as_they_say(parts):
    _, prior, moments = parts
    kappa = moments.kappa(prior, BLOCK)

    def at(density):
        return float(density.log_density(moments, prior, BLOCK).detach())

    plain = at(TvPredCp())
    assert at(TvPredCp.tempered(40, 0.01, 50)) == pytest.approx(20 * plain)
    assert at(TvPredCp.weighted(40, 0.01)) == pytest.approx(plain + float(0.6 * kappa) + math.log(0.4))


def test_a_sweep_that_turns_is_left_out_and_said(parts):
    _, prior, moments = parts
    assert not LengthscaleSweep(torch.arange(3.0), torch.tensor([1.0, 2.0, 1.5])).monotone
    turning = torch.zeros(6, 1).double()
    turning[[0, 1, 5], 0] = torch.tensor([1.0, 0.5, -1.0]).double()
    variances = list(moments.variances)
    variances[BLOCK] = turning.expand(6, len(moments.means))
    bent = DifferenceMoments(moments.means, tuple(variances))
    hyperprior = Hyperprior.of(TvPredCp(), bent, prior)
    assert hyperprior.left_out == (BLOCK,)
    (said,) = notes(prior, hyperprior)
    assert "down.0 is not monotone" in said


def test_moments_by_random_signs_are_those_of_the_jacobian(parts):
    _, prior, moments = parts
    sampled = difference_moments(problems.linear(store=False), probes=12, seed=1)
    for number in range(len(prior.blocks)):
        exactly, found = (prior.coefficients(number) @ m.variances[number] for m in (moments, sampled))
        kept = exactly > 1e-12 * exactly.max()
        assert (found[kept] / exactly[kept] - 1).abs().max() <= 5 * sampled.standard_error
        assert found.min() >= 0


@pytest.mark.parametrize("evidence_at", ["mode", "weights"])
def test_estimated_gradients_are_the_exact_ones(parts, generator, evidence_at):
    linear, prior, _ = parts
    parameters = Parameters(prior, None)
    vector = parameters.pack(0.04).requires_grad_()
    value = ExactEvidence.of(linear, evidence_at).log_evidence(*parameters.unpack(vector))
    (exactly,) = torch.autograd.grad(value, vector)
    probes = Probes.of(linear, 100, generator)
    _, operator = system(linear, prior, 0.04)
    preconditioner = Nystrom.of(system(linear, prior, 0.04)[0], rank=20, shift=0.04, generator=generator)
    found = gradient(
        linear, parameters, vector, probes, ConjugateGradients(1e-9, 500, preconditioner), evidence_at=evidence_at
    )
    assert found.residual <= 1e-9
    assert ((found.value - exactly).abs() <= 3 * found.standard_error + 1e-6 * exactly.abs()).all()
    assert (found.standard_error <= 0.3 * exactly.abs().max()).all()
    assert operator.shape == (len(linear.targets),) * 2


@pytest.mark.parametrize(("evidence_at", "angles"), [("mode", 4), ("weights", 4), ("mode", 9)])
def test_exact_gradients_are_those_of_differences(evidence_at, angles):
    linear = problems.linear(angles=angles)
    known, parameters = ExactEvidence.of(linear, evidence_at), Parameters(problems.prior(linear.blocks), None)
    vector = parameters.pack(0.04).requires_grad_()
    (slopes,) = torch.autograd.grad(known.log_evidence(*parameters.unpack(vector)), vector)
    step, eye = 1e-4, torch.eye(len(vector)).double()
    for number, slope in enumerate(slopes):
        ahead, behind = (
            float(known.log_evidence(*parameters.unpack(vector.detach() + sign * step * eye[number])))
            for sign in (1, -1)
        )
        # central differences: round-off of the value over the step, and a third derivative of order one times step²
        assert float(slope) == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-6)


def test_a_preconditioner_saves_two_thirds_of_the_steps(generator):
    linear = problems.linear(angles=9)
    gram, operator = system(linear, problems.prior(linear.blocks), 1e-4)
    b = torch.randn(len(linear.targets), 3, generator=generator, dtype=torch.float64)
    plain = ConjugateGradients(1e-4, 5000).solve(operator, b)
    preconditioner = Nystrom.of(gram, rank=40, shift=1e-4, generator=generator)
    helped = ConjugateGradients(1e-4, 5000, preconditioner).solve(operator, b)
    assert plain.converged
    assert helped.converged
    assert helped.steps * 3 <= plain.steps


def test_the_exact_search_ends_where_nothing_pulls(parts):
    linear, _, moments = parts
    hyperprior = Hyperprior.of(TvPredCp.weighted(len(linear.targets), 1e-3), moments, FilterPrior.start(linear.blocks))
    found = exact(linear, hyperprior=hyperprior)
    assert found.converged
    objectives = [setting.objective for setting in found.trace]
    assert objectives == sorted(objectives)
    parameters = Parameters(found.prior, None)
    vector = parameters.pack(found.noise_std**2).requires_grad_()
    prior, noise = parameters.unpack(vector)
    value = ExactEvidence.of(linear).log_evidence(prior, noise) + hyperprior.log_density(prior)
    (pull,) = torch.autograd.grad(value, vector)
    bounds = torch.tensor(parameters.bounds(found.noise_std**2)).double()
    inside = ((vector > bounds[:, 0] + 1e-6) & (vector < bounds[:, 1] - 1e-6)).detach()
    assert pull[inside].abs().max() <= 0.05  # of the objective, per factor e in a hyperparameter
    low = [block.name for block, v in zip(found.prior.blocks, found.prior.log_variance, strict=True)
           if v <= LOWEST_LOG_VARIANCE + 1e-3]  # fmt: skip
    assert all(any(name in note and "relevance determination" in note for note in found.notes) for name in low)


def test_the_matrix_free_search_comes_near_the_exact_one(parts):
    linear = parts[0]
    evidence = ExactEvidence.of(linear)
    best = exact(linear, evidence=evidence)
    near = matrix_free(linear, how=MatrixFree(steps=60, probes=16, rank=20))

    def value(prior, noise_std):
        return float(evidence.log_evidence(prior, torch.tensor(noise_std**2, dtype=torch.float64)))

    start, end = near.trace[0], value(near.prior, near.noise_std)
    top = value(best.prior, best.noise_std)
    assert top - end <= 0.1 * (top - value(start.prior, start.noise_std))  # nine tenths of the way
    given = matrix_free(linear, how=MatrixFree(steps=2, rank=0), noise_std=0.3)
    assert given.noise_std == pytest.approx(0.3)


@pytest.mark.slow
def test_a_phantom_has_error_bars_that_hold():
    truth = read_image("shepp-logan", 16)
    scan = simulate(truth, projector(ParallelBeam.spread(8, 16), 16), noise=0.05)
    settings = Settings((8, 8, 8), (4, 4), steps=1500, learning_rate=3e-3)
    found = study(scan, Plan(settings, dropout=False), progress=False)
    scores = found.scores()
    assert scores["DIP"]["log_density"] > scores["DIP, unit variance"]["log_density"]
    assert 0.7 <= float(found.posterior.z_scores(truth, floor=found.floor).square().mean().sqrt()) <= 1.4


def test_a_noise_far_below_round_off_has_an_evidence_all_the_same(parts):
    linear = parts[0]
    known, start = ExactEvidence.of(linear), FilterPrior.start(linear.blocks, variance=1e4)
    values = [float(known.log_evidence(start, torch.tensor(v, dtype=torch.float64))) for v in (1e-8, 1e-14, 1e-24)]
    assert all(math.isfinite(value) for value in values)
    assert values[0] > values[2]


def test_bad_input_is_explained(parts):
    linear = parts[0]
    with pytest.raises(ValueError, match="rate is 0"):
        TvPredCp(rate=0)
    with pytest.raises(ValueError, match="evidence_at is 'prior'"):
        ExactEvidence.of(linear, "prior")
    with pytest.raises(ValueError, match="at least one step"):
        MatrixFree(probes=0)

"""The published sample-then-optimise EM loop (Antorán et al. 2023): stochastic gradients, warm starts, reused noise.

Its precision is compared with the exact fixed point in units of the Monte-Carlo error that its draws must have. That
error is known in closed form: γ̂ from k draws has variance 2 Σ (sᵢ − s̄)² / k with sᵢ = λᵢ / (λᵢ + α), and where
log γ − log ‖θ̄‖² − log α = 0 a change of log γ moves log α by as much over the slope of the left-hand side.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing import CG, SGD, Exact, Gaussian, Isotropic, LinearModel, infer
from lapwing.bayes.evidence import Precisions
from lapwing.bayes.methods import tuning_on_draws
from lapwing.bayes.methods.sampled import IterativeSampler
from lapwing.bayes.noise import DATA, PRIOR, Noise

DRAWS, NOISE = 8, torch.ones(1, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Case:
    """n data with m outputs, d weights; singular values from low to high, evenly or in equal ratios."""

    n: int
    m: int
    d: int
    low: float
    high: float
    seed: int
    ratios: bool = False

    @property
    def model(self) -> LinearModel:
        generator = torch.Generator().manual_seed(self.seed)
        normals = torch.randn(self.n * self.m, self.d + 1, generator=generator, dtype=torch.float64)
        spaced = np.geomspace if self.ratios else np.linspace
        features = torch.linalg.qr(normals[:, : self.d])[0] * torch.from_numpy(spaced(self.low, self.high, self.d))
        weights = torch.randn(self.d, generator=generator, dtype=torch.float64)
        return LinearModel(features, (features @ weights + normals[:, -1]).reshape(self.n, self.m), Gaussian(1.0))


CASES = {
    "γ near d": Case(160, 1, 14, 4.0, 9.0, 1),
    "two outputs": Case(90, 2, 24, 0.7, 3.0, 2),
    "three outputs, γ small": Case(70, 3, 40, 0.3, 1.6, 3),
}

HARD = {  # condition numbers of 10⁴: the slow directions are what takes time
    "two outputs": Case(150, 2, 40, 0.5, 60.0, 1, ratios=True),
    "one output": Case(300, 1, 30, 1.0, 100.0, 2, ratios=True),
}


def dense(model: LinearModel) -> tuple[Tensor, Tensor]:
    """Eigenvalues of ΦᵀΦ and the squares of Φᵀy in their basis."""
    values, vectors = torch.linalg.eigh(model.features.matrix.mT @ model.features.matrix)
    return values, (vectors.mT @ (model.features.matrix.mT @ model.targets.reshape(-1))).square()


def exact_log_precision(model: LinearModel) -> float:
    """The root of log γ − log ‖θ̄‖² − log α, by bisection."""
    values, squares = dense(model)
    low, high = -15.0, 15.0
    for _ in range(80):
        middle = (low + high) / 2
        alpha = np.exp(middle)
        gap = (values / (values + alpha)).sum().log() - (squares / (values + alpha).square()).sum().log() - middle
        low, high = (middle, high) if float(gap) > 0 else (low, middle)
    return middle


def standard_error(model: LinearModel, log_alpha: float) -> float:
    """Of log α at the fixed point, from k draws."""
    values, squares = dense(model)
    alpha, shrinkage = np.exp(log_alpha), values / (values + np.exp(log_alpha))
    gamma, weights = shrinkage.sum(), (squares / (values + alpha).square()).sum()
    by_gamma = -(shrinkage * (1 - shrinkage)).sum() / gamma
    by_weights = -2 * alpha * (squares / (values + alpha) ** 3).sum() / weights
    error = (2 * (shrinkage - shrinkage.mean()).square().sum() / DRAWS).sqrt() / gamma
    return float(error / (1 + by_weights - by_gamma))


def fresh(sampler: IterativeSampler, seed: int) -> IterativeSampler:
    """The same sampler with other noise."""
    n, d = sampler.features.shape
    return replace(sampler, normals=Noise(seed, DATA).table(n, DRAWS), prior_noise=Noise(seed, PRIOR).rows(0, d, DRAWS))


def loop(model: LinearModel, log_start: float, seed: int, *, reuse: bool = True) -> list[float]:
    """log α after each of ten EM steps."""
    prior, trace = Isotropic(1.0).on(model.features, NOISE), []
    method = SGD("mixed", batch_size=60, steps=300, em_steps=1)
    sampler, at = (
        IterativeSampler.of(model.gaussian_surrogate(), prior, method, Noise(seed), DRAWS),
        Precisions(NOISE * np.exp(log_start), NOISE),
    )
    for step in range(10):
        free = tuning_on_draws.what_is_free(sampler, prior, tune_prior=True, tune_noise=False)
        sampler, optimum = tuning_on_draws.tune(sampler, prior, at, free, lambda _: None)
        at = optimum.at
        trace.append(float(at.prior.log()))
        sampler = sampler if reuse else fresh(sampler, seed=1000 + step)
    return trace


@pytest.mark.slow
def test_the_precision_is_right_within_the_error_of_its_draws():
    """Started a hundred times too large or too small."""
    scores = []
    for number, case in enumerate(CASES.values()):
        model = case.model
        truth = exact_log_precision(model)
        for seed in range(4):
            start = truth + (np.log(100.0) if seed % 2 else -np.log(100.0))
            found = loop(model, start, seed=10 * number + seed)[-1]
            scores.append((found - truth) / standard_error(model, truth))
    scores = np.array(scores)
    assert np.abs(scores).max() < 5
    assert abs(scores.mean()) < 5 / np.sqrt(len(scores))
    assert 0.4 < np.sqrt((scores**2).mean()) < 1.8  # 12 normals: outside once in a thousand


def test_reused_noise_lets_the_loop_settle():
    """With new noise at every step the precision goes on moving by the error of its draws."""
    model = CASES["two outputs"].model
    truth = exact_log_precision(model)
    moved = {reuse: np.diff(loop(model, truth + 1, seed=5, reuse=reuse))[-4:] for reuse in (True, False)}
    assert np.abs(moved[True]).max() < 1e-3
    assert np.sqrt((moved[False] ** 2).mean()) > 0.3 * standard_error(model, truth)


def minibatches(sampler: IterativeSampler, log_alpha: float) -> int:
    """How many bring the drawn functions within 5 % of the exact ones, to a factor of two; 5120 where none do."""
    prior = Isotropic(float(np.exp(log_alpha))).on(sampler.features, NOISE)
    w = sampler.whitened(prior, NOISE).dense()
    for steps in (5 * 2**i for i in range(10)):
        solution, right = replace(sampler, method=replace(sampler.method, steps=steps)).solve(prior, NOISE)
        truth = torch.linalg.solve(torch.eye(w.shape[1]).double() + w.mT @ w, right)
        if float((w @ (solution.x - truth))[:, 1:].norm() / (w @ truth)[:, 1:].norm()) <= 0.05:
            return steps
    return 2 * steps


@pytest.mark.parametrize("name", HARD)
def test_warm_starts_save_steps_and_only_with_the_same_noise(name):
    """A step of EM that moves the precision by a twentieth."""
    model = HARD[name].model
    prior, log_alpha = Isotropic(1.0).on(model.features, NOISE), exact_log_precision(model)
    cold = IterativeSampler.of(model.gaussian_surrogate(), prior, SGD("L'", batch_size=60, steps=5000), Noise(7), DRAWS)
    setting = replace(prior, precision=NOISE * np.exp(log_alpha))
    warm = cold.warmed(setting, cold.solve(setting, NOISE)[0])
    there = log_alpha + 0.05
    few = minibatches(warm, there)
    assert 8 * few <= minibatches(cold, there)
    assert 8 * few <= minibatches(fresh(warm, seed=8), there)


@pytest.mark.parametrize("seed", range(3))
def test_a_noise_that_tuning_takes_to_nothing_stops_where_solves_can_tell_it(seed):
    """Six outputs of 26 weights can be fitted exactly, so the evidence has no largest noise precision.

    Conjugate gradients to rtol tell residuals from none down to rtol of the signal, whose variance is at most the
    largest eigenvalue over the prior precision.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((6, 26), (6,)))
    found = infer(LinearModel(x, y, Gaussian()), prior=Isotropic(0.01), method=CG(rtol=1e-4), draws=3)
    exact = infer(LinearModel(x, y, Gaussian(found.likelihood.noise_std)), prior=Isotropic(0.01), method=Exact())
    largest = float(torch.linalg.eigvalsh(x @ x.mT).max())
    assert float(found.likelihood.noise_std) == pytest.approx(1e-4 * (largest / 0.01) ** 0.5, rel=1e-3)
    torch.testing.assert_close(found.mean, exact.mean, rtol=1e-3, atol=1e-3 * float(exact.mean.abs().max()))


def test_a_network_in_single_precision_finds_what_it_finds_in_double():
    """Warm starts and the deflation come from double precision: both are taken to that of the features."""

    def found(dtype: torch.dtype) -> lw.Posterior:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
        y = x @ torch.tensor([[1.0, 0.5], [-1.0, 0.2], [0.3, 2.0]]).double()
        y = y + 0.3 * torch.randn(40, 2, generator=generator, dtype=torch.float64)
        network = torch.nn.utils.skip_init(torch.nn.Linear, 3, 2).to(dtype).eval()
        with torch.no_grad():
            network.weight.copy_(torch.linalg.lstsq(x, y).solution.mT)
            network.bias.zero_()
        return lw.fit(network, (x.to(dtype), y.to(dtype)), lw.Gaussian(), method=lw.CG(rtol=1e-4), progress=False)

    single, double = found(torch.float32), found(torch.float64)
    torch.testing.assert_close(single.likelihood.noise_std, double.likelihood.noise_std, rtol=1e-3, atol=0)
    torch.testing.assert_close(single.mean.double(), double.mean, rtol=0, atol=1e-3)

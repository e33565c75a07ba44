"""Markov chains: against closed forms by z-scores over many independent chains, and against lapwing's draws."""

import math

import pytest
import torch
from torch import nn

import lapwing
from lapwing.bayes.likelihoods import Categorical, GammaHyperprior, Gaussian
from lapwing.families import mcmc
from lapwing.families.mcmc.adaptation import DualAveraging
from lapwing.families.mcmc.fitting import _WeightDensity
from tests.families.problems import classes, linear_posterior, mlp, normals, regression, seeded
from tests.properties import check_covariance

PRECISION = (
    normals(4, 4, seed=11) @ normals(4, 4, seed=11).T / 4 + torch.diag(torch.tensor([0.5, 1.0, 2.0, 4.0])).double()
)
CHAINS = 1200
CENTRE = torch.tensor([1.0, -2.0, 0.5, 3.0]).double()


def gaussian(at):
    pulled = (at - CENTRE) @ PRECISION
    return -((at - CENTRE) * pulled).sum(1) / 2, -pulled


def check_gaussian(draws, mean, covariance):
    """Every coordinate's mean and every covariance of independent draws (n, d) within five standard errors."""
    n = len(draws)
    assert ((draws.mean(0) - mean).abs() <= 5 * (covariance.diagonal() / n).sqrt()).all()
    check_covariance((draws - mean).T, covariance)


class TestSamplers:
    @pytest.mark.parametrize("method", [mcmc.HMC(), mcmc.HMC(path=0.4, acceptance=0.6), mcmc.Langevin()])
    def test_many_chains_have_the_moments_of_a_gaussian(self, method):
        start = 3 * normals(3000, 4, seed=1)
        chain = method.run(gaussian, start, mcmc.Length(120, 1, thin=20), torch.Generator().manual_seed(2))
        check_gaussian(chain.positions[:, -1], CENTRE, torch.linalg.inv(PRECISION))

    def test_a_long_path_forgets_where_it_started(self):
        chain = mcmc.HMC().run(
            gaussian, normals(4, 4, seed=1), mcmc.Length(1000, 1000), torch.Generator().manual_seed(2)
        )
        assert (mcmc.ess(chain.positions) > 1500).all()
        assert (mcmc.r_hat(chain.positions) < 1.01).all()
        assert abs(chain.diagnostics["acceptance"] - 0.8) < 0.1
        assert chain.diagnostics["divergences"] == 0

    @pytest.mark.parametrize("preconditioned", [False, True])
    def test_sgld_has_the_bias_that_theory_gives_its_step(self, preconditioned):
        """θ' = θ − ½ ε G H θ + N(0, ε G) is stationary at G^½ (H̃ (I − ε H̃ / 4))⁻¹ G^½ with H̃ = G^½ H G^½."""
        step, chains = (0.3, 4000) if not preconditioned else (0.5, 4000)
        method = mcmc.SGLD(step, preconditioned=preconditioned, batch_size=None, decay=0.95)
        generator = torch.Generator().manual_seed(3)
        squares = []

        def watched(at):
            value, gradient = gaussian(at)
            squares.append(gradient.square().mean(0))
            return value, gradient

        chain = method.run(watched, normals(chains, 4, seed=1), mcmc.Length(200, 1, thin=60), generator)
        metric = torch.ones(4).double()
        if preconditioned:
            average = torch.zeros(4).double()
            for square in squares[:200]:
                average = 0.95 * average + 0.05 * square
            metric = 1 / (1e-5 + (average / (1 - 0.95**200)).sqrt())
        root = metric.sqrt()
        inner = root[:, None] * PRECISION * root
        stationary = torch.linalg.inv(inner @ (torch.eye(4).double() - step / 4 * inner))
        check_gaussian(chain.positions[:, 0], CENTRE, root[:, None] * stationary * root)

    def test_a_preconditioner_stands_still_after_warm_up(self):
        """Under a constant gradient g the running mean square is g² from the first step on, and steps have variance ε / |g|."""
        slope, step, draws = torch.tensor([0.5, 2.0, 8.0]).double(), 0.1, 40

        def linear(at):
            return at @ slope, slope.expand_as(at)

        method = mcmc.SGLD(step, preconditioned=True, batch_size=None)
        chain = method.run(
            linear, torch.zeros(500, 3).double(), mcmc.Length(7, draws), torch.Generator().manual_seed(4)
        )
        steps = chain.positions.diff(dim=1)
        variance = steps.var(dim=(0, 1))
        expected = step / (1e-5 + slope)
        assert ((variance / expected - 1).abs() < 5 * (2 / steps[..., 0].numel()) ** 0.5).all()

    def test_the_noise_of_batches_is_told(self):
        """Gradients with a noise that is known: its share of a step's variance is ε s² / 4, averaged over weights."""
        generator, spread = torch.Generator().manual_seed(5), torch.tensor([0.3, 1.0, 2.0, 5.0]).double()

        def noisy(at):
            value, gradient = gaussian(at)
            return value, gradient + spread * torch.randn(at.shape, generator=generator, dtype=torch.float64)

        start = normals(600, 4, seed=1)
        found = mcmc.SGLD(0.02).run(noisy, start, mcmc.Length(2, 1), torch.Generator().manual_seed(2))
        terms = 0.02 * spread.square() / 4
        error = float(
            (2 / 15 * terms.square().sum() / 600).sqrt() / 4
        )  # of a mean of 4 variances, 600 chains, 16 draws
        assert abs(found.diagnostics["batch_noise"] - float(terms.mean())) <= 5 * error
        exact = mcmc.SGLD(0.02).run(gaussian, start, mcmc.Length(2, 1), torch.Generator().manual_seed(2))
        assert exact.diagnostics["batch_noise"] == 0

    def test_a_step_that_is_too_large_is_said(self):
        with pytest.raises(ValueError, match="SGLD diverged at step"):
            mcmc.SGLD(50.0, batch_size=None).run(
                gaussian, normals(2, 4), mcmc.Length(1, 500), torch.Generator().manual_seed(0)
            )

    def test_dual_averaging_finds_the_acceptance(self):
        """A made-up acceptance e^−step: the target 0.8 is met at a step of −log 0.8, but for the pull of the start.

        With log step = centre − √t / 0.05 · error, the mean error left after t steps is 0.05 (centre − log step) / √t.
        """
        averaging, steps = DualAveraging.start(5.0, 0.8), 3000
        for _ in range(steps):
            averaging = averaging.update(math.exp(-averaging.step_size))
        left = 0.05 * (math.log(50) - math.log(-math.log(0.8))) / steps**0.5
        assert abs(math.exp(-averaging.averaged) - 0.8) < left

    def test_the_metric_is_of_one_mode_where_chains_are_in_several(self):
        """Two modes a thousand widths apart, one chain in each: the step is as long as for a single mode."""
        width = torch.tensor([0.5, 2.0, 1.0]).double()

        def modes(at):
            centre = torch.where(at[:, :1] > 0, 1000.0, -1000.0).double()
            scaled = (at - centre) / width
            return -scaled.square().sum(1) / 2, -scaled / width

        start = torch.tensor([[-1000.0], [1000.0]]).double().expand(2, 3)
        found = mcmc.HMC(max_steps=20).run(modes, start, mcmc.Length(200, 4), torch.Generator().manual_seed(0))
        assert (found.positions[0] < 0).all()
        assert (found.positions[1] > 0).all()
        # with a metric of the width of both modes a step of one is a thousand too long
        assert found.diagnostics["step_size"] > 0.1

    def test_infinite_densities_are_refused_at_the_start(self):
        with pytest.raises(ValueError, match="not finite where the chains start"):
            mcmc.HMC().run(lambda at: (at.sum(1) * math.nan, at), normals(2, 3), mcmc.Length(0, 4), torch.Generator())


class TestDiagnostics:
    @pytest.mark.parametrize("rho", [0.0, 0.6, -0.4])
    def test_ess_of_an_autoregression(self, rho):
        """x_{t+1} = ρ x_t + noise has n (1 − ρ) / (1 + ρ) effective draws; ten per cent for this length."""
        chains, n = 6, 6000
        noise, x = normals(chains, n, 3, seed=4), [normals(chains, 3, seed=5)]
        for t in range(n - 1):
            x.append(rho * x[-1] + (1 - rho**2) ** 0.5 * noise[:, t])
        found = mcmc.ess(torch.stack(x, 1))
        assert found.shape == (3,)
        assert torch.allclose(found, torch.full((3,), chains * n * (1 - rho) / (1 + rho)).double(), rtol=0.1)

    def test_r_hat_by_its_definition(self):
        """Where ranks change little, it is the classical √(((n − 1) / n W + B) / W) of split chains."""
        draws = normals(5, 4000, 2, seed=6) + torch.linspace(0, 0.5, 5).double()[:, None, None]
        halves = torch.cat([draws[:, :2000], draws[:, 2000:]])
        within, between = halves.var(1).mean(0), halves.mean(1).var(0)
        classical = (1999 / 2000 + between / within).sqrt()
        assert torch.allclose(mcmc.r_hat(draws), classical, rtol=2e-3)

    def test_chains_of_different_width_are_noticed(self):
        draws = normals(4, 1000, seed=7) * torch.tensor([1.0, 1.0, 1.0, 4.0]).double()[:, None]
        assert float(mcmc.r_hat(draws)) > 1.1

    def test_a_trend_is_noticed(self):
        assert float(mcmc.r_hat(normals(1, 1000, seed=8) + torch.linspace(0, 4, 1000).double())) > 1.3

    def test_too_few_draws(self):
        with pytest.raises(ValueError, match="at least 4 draws"):
            mcmc.r_hat(normals(3, 2))


@pytest.fixture(scope="module")
def many_chains():
    """A linear-Gaussian network, one draw each of 1,200 chains that never met."""
    model = seeded(lambda: nn.Linear(3, 2)).eval()
    return mcmc.fit(
        model,
        regression(),
        Gaussian(0.3),
        method=mcmc.HMC(path=0.5),
        prior_precision=2.0,
        chains=CHAINS,
        warmup=90,
        draws=4,
        thin=4,
        seed=4,
    )


class TestFit:
    def test_a_linear_gaussian_model_has_the_closed_form(self, many_chains):
        """Every coordinate's mean and every covariance by z-score."""
        mean, covariance = linear_posterior(*regression(), noise_std=0.3, prior_precision=2.0)
        assert many_chains.positions.shape == (CHAINS, 4, 8)
        check_gaussian(many_chains.positions[:, -1], mean, covariance)

    def test_a_temperature_divides_the_log_density(self):
        """p^(1 / T), prior and likelihood alike, against both written out."""
        x, y = regression()
        model = seeded(lambda: nn.Linear(3, 2)).eval()
        cold = _WeightDensity.of(model, (x, y), Gaussian(0.3), 2.0, GammaHyperprior(), 3, 0, mcmc.HMC(), 0.3)
        at = (cold.start("network", 2.0) + normals(3, 8, seed=5)).requires_grad_()
        outputs = x @ at[:, :6].reshape(3, 2, 3).mT + at[:, None, 6:]
        likelihood = torch.distributions.Normal(outputs, 0.3).log_prob(y).sum((1, 2))
        expected = (likelihood - at.square().sum(1)) / 0.3
        (gradient,) = torch.autograd.grad(expected.sum(), at)
        value, ours = cold.target(at.detach())
        assert torch.allclose(value, expected, rtol=1e-12)
        assert torch.allclose(ours, gradient, rtol=1e-10)

    def test_it_agrees_with_lapwings_own_draws(self, many_chains):
        """The linearised posterior of a linear network is exact: the functions of both have one mean and covariance."""
        model = seeded(lambda: nn.Linear(3, 2)).eval()
        exact = lapwing.fit(
            model, regression(), Gaussian(0.3), prior=lapwing.Isotropic(precision=2.0), draws=4000, progress=False
        )
        new = normals(5, 3, seed=9)
        theirs = new @ exact.draws[:, :6].reshape(-1, 2, 3).mT + exact.draws[:, None, 6:]
        theirs = theirs.reshape(4000, -1)
        ours = many_chains.functions(new).reshape(CHAINS, 4, -1)[:, -1]
        variance = exact.predict(new).epistemic_variance.reshape(-1)
        assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * (variance / CHAINS + variance / 4000).sqrt()).all()
        ours, theirs = ours - ours.mean(0), theirs - theirs.mean(0)
        spread = (torch.outer(variance, variance) + (theirs.T @ theirs / 4000).square()) * (1 / CHAINS + 1 / 4000)
        assert ((ours.T @ ours / CHAINS - theirs.T @ theirs / 4000).abs() < 5 * spread.sqrt()).all()

    def test_gibbs_steps_have_the_marginals_of_the_hierarchy(self):
        """One weight, Gamma on its precision and on that of the noise: against quadrature of the joint density."""
        x = torch.linspace(0.5, 2, 8).double()[:, None]
        y = 0.7 * x + 0.3 * normals(8, 1, seed=10)
        model = seeded(lambda: nn.Linear(1, 1, bias=False)).eval()
        hyper = GammaHyperprior(2.0, 1.0)
        found = mcmc.fit(
            model, (x, y), Gaussian(), prior_precision=None, hyperprior=hyper, chains=4000, warmup=60, draws=4, thin=10
        )
        weights = torch.linspace(-4, 5, 20_001).double()
        errors = (y.T - weights[:, None] * x.T).square().sum(1)
        # precisions integrated out: each Gamma(a, b) leaves (b + ½ S)^−(a + k / 2)
        log_density = -(2.0 + 4) * (1.0 + errors / 2).log() - 2.5 * (1.0 + weights.square() / 2).log()
        density = (log_density - log_density.max()).exp()
        density = density / density.sum()
        mean = float((density * weights).sum())
        variance = float((density * (weights - mean).square()).sum())
        noise_precision = float((density * (2.0 + 4) / (1.0 + errors / 2)).sum())
        drawn, noise = found.positions[:, -1, 0], found.noise_std[:, -1]
        assert abs(float(drawn.mean()) - mean) < 5 * (variance / 4000) ** 0.5
        squares = (drawn - mean).square()
        assert abs(float(squares.mean()) - variance) < 5 * float(squares.std()) / 4000**0.5
        precisions = noise**-2
        assert abs(float(precisions.mean()) - noise_precision) < 5 * float(precisions.std()) / 4000**0.5
        assert float(found.likelihood.noise_std) == pytest.approx(float(found.noise_std.square().mean().sqrt()))

    def test_functions_and_predictions_are_those_of_the_draws(self):
        x, y = classes()
        model = mlp(outputs=4)
        found = mcmc.fit(model, (x, y), Categorical(), chains=3, warmup=40, draws=6, thin=2, seed=1)
        functions = found.functions(x)
        assert functions.shape == (18, 40, 4)
        weights = found.layout.unflatten(found.positions[1, 2])
        alone = torch.func.functional_call(model, weights, (x,)).detach()
        assert torch.allclose(functions[1 * 6 + 2], alone, rtol=1e-12)
        prediction = found.predict(x)
        assert torch.allclose(prediction.probs, functions.softmax(2).mean(0))
        assert ((prediction.novelty >= 0) & (prediction.novelty <= 1)).all()
        assert {"r_hat", "ess", "acceptance", "divergences", "seconds"} <= set(found.diagnostics)
        again = mcmc.fit(model, (x, y), Categorical(), chains=3, warmup=40, draws=6, thin=2, seed=1)
        assert torch.equal(found.positions, again.positions)

    def test_chains_start_where_they_are_told(self):
        models = [mlp(seed=seed) for seed in range(3)]
        settings = {"method": mcmc.SGLD(1e-14, batch_size=None), "chains": 3, "warmup": 1, "draws": 4, "seed": 2}
        found = mcmc.fit(mlp(), regression(), Gaussian(0.3), start=models, **settings)
        x = normals(6, 3, seed=7)
        outputs = found.functions(x).reshape(3, 4, 6, 2)[:, 0]
        assert torch.allclose(outputs, torch.stack([model(x).detach() for model in models]), atol=1e-4)
        same = mcmc.fit(mlp(), regression(), Gaussian(0.3), start="network", **settings).functions(x)
        assert torch.allclose(same[:1].expand_as(same), same, atol=1e-4)

    def test_the_prior_of_a_cold_posterior_is_cold(self):
        """p(w)^(1 / T) has variance T / λ: by z-score, over the weights of 200 prior draws."""
        settings = {"prior_precision": 4.0, "warmup": 1, "chains": 10, "draws": 20, "temperature": 0.25, "seed": 3}
        found = mcmc.fit(mlp(), regression(), Gaussian(0.3), method=mcmc.SGLD(1e-14, batch_size=None), **settings)
        weights = torch.cat([part.flatten() for part in found.networks.prior.values()]).double()
        squares = weights.square() * 4.0 / 0.25
        assert abs(float(squares.mean()) - 1) < 5 * (2 / len(squares)) ** 0.5

    def test_batches_are_an_unbiased_estimate(self):
        """The mean of the gradients of random batches is that of all data, by z-score."""
        x, y = regression()
        model = seeded(lambda: nn.Linear(3, 2)).eval()
        posterior = _WeightDensity.of(
            model, (x, y), Gaussian(0.3), 2.0, GammaHyperprior(), 1, 0, mcmc.SGLD(1e-3, batch_size=7)
        )
        at = posterior.start("network", 2.0)
        estimates = torch.stack([posterior.target(at)[1][0] for _ in range(1000)])
        full = _WeightDensity.of(model, (x, y), Gaussian(0.3), 2.0, GammaHyperprior(), 1, 0, mcmc.HMC()).target(at)[1][
            0
        ]
        error = estimates.std(0) / 1000**0.5
        assert ((estimates.mean(0) - full).abs() < 5 * error).all()

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ({"prior_precision": 0.0}, "expected a positive number, or None"),
            ({"draws": 2}, "at least 1, 4 and 1"),
            ({"start": "mode"}, "'prior', 'network' or one network for each chain"),
            ({"start": [1, 2, 3]}, "3 networks for 4 chains"),
            ({"temperature": 0.0}, "temperature is 0.0: expected a positive number"),
            ({"temperature": 0.5, "prior_precision": None}, "one where the prior precision or the noise is drawn too"),
        ],
    )
    def test_bad_arguments(self, bad, message):
        with pytest.raises(ValueError, match=message):
            mcmc.fit(mlp(), regression(), Gaussian(0.3), **bad)

"""A lapwing model inside BoTorch, against dense algebra and BoTorch's own parts."""

import pytest
import torch

botorch = pytest.importorskip("botorch", reason="BoTorch is not installed: `make integrations` does it")

from botorch.acquisition import qKnowledgeGradient, qLogExpectedImprovement  # noqa: E402
from botorch.acquisition.objective import ScalarizedPosteriorTransform  # noqa: E402
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling  # noqa: E402
from botorch.optim import optimize_acqf  # noqa: E402
from botorch.sampling.normal import SobolQMCNormalSampler  # noqa: E402
from botorch.sampling.pathwise.posterior_samplers import get_matheron_path_model  # noqa: E402
from botorch.utils.datasets import SupervisedDataset  # noqa: E402

import lapwing as lw  # noqa: E402
from lapwing.tabular import BayesianMLPRegressor  # noqa: E402
from tests.integrations.test_processes import D, estimator, network_posterior  # noqa: E402

Surrogate = lw.botorch.Surrogate
BOUNDS = torch.stack([-torch.ones(D), torch.ones(D)]).double()


def points(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(surrogate, x):
    """Mean and covariance of the mixture at x (n, d), all of it written out: (n · c,) and (n · c, n · c)."""
    process = surrogate.process
    means, features = process.mean(x).flatten(1), process.features(x).flatten(1, 2)
    centre = means.mean(0)
    covariance = sum(
        one @ one.mT + torch.outer(mean - centre, mean - centre) for mean, one in zip(means, features, strict=True)
    )
    return centre, covariance / process.members


MAKERS = {
    "table": lambda: estimator(11),
    "two targets": lambda: estimator(11, 2),
    "network": lambda: network_posterior(2)[1],
}


@pytest.fixture(params=list(MAKERS))
def surrogate(request):
    return Surrogate(MAKERS[request.param]())


class TestPosterior:
    def test_is_joint_within_each_batch(self, surrogate):
        """Up to the jitter of 1e-9 of the mean variance."""
        x = points(2, 4)
        found = surrogate.posterior(x)
        c = surrogate.num_outputs
        assert found.mean.shape == (2, 4, c)
        for batch in range(2):
            mean, covariance = dense(surrogate, x[batch])
            torch.testing.assert_close(found.mean[batch].flatten(), mean)
            near = {"rtol": 1e-8, "atol": 2e-9 * float(covariance.diagonal().mean())}
            torch.testing.assert_close(found.distribution.covariance_matrix[batch], covariance, **near)

    def test_noise_is_added_where_asked_for(self, surrogate):
        x = points(3)
        plain, noisy = surrogate.posterior(x), surrogate.posterior(x, observation_noise=True)
        own = surrogate.process.noise_variance(x).mean(0)
        torch.testing.assert_close(noisy.variance - plain.variance, own, rtol=1e-6, atol=1e-9)
        given = surrogate.posterior(x, observation_noise=torch.full_like(own, 0.25))
        torch.testing.assert_close(given.variance - plain.variance, torch.full_like(own, 0.25), rtol=1e-6, atol=1e-9)

    def test_has_gradients_in_its_inputs(self, surrogate):
        x = points(3).requires_grad_()
        found = surrogate.posterior(x)
        (gradient,) = torch.autograd.grad(found.mean.sum() + found.variance.sum(), x)
        assert bool(gradient.isfinite().all())
        assert float(gradient.abs().min()) > 0

    def test_outputs_can_be_chosen_and_transformed(self):
        surrogate, x = Surrogate(estimator(11, 2)), points(3)
        both, second = surrogate.posterior(x), surrogate.subset_output([1])
        assert second.num_outputs == 1
        torch.testing.assert_close(second.posterior(x).mean[:, 0], both.mean[:, 1])
        torch.testing.assert_close(surrogate.posterior(x, output_indices=[1]).variance[:, 0], both.variance[:, 1])
        weights = torch.tensor([0.3, -0.7]).double()
        scalar = surrogate.posterior(x, posterior_transform=ScalarizedPosteriorTransform(weights))
        torch.testing.assert_close(scalar.mean[:, 0], both.mean @ weights)


class TestConditioning:
    def test_is_the_gaussian_formula_for_every_member(self, surrogate):
        """Each member by a dense solve, then mixed."""
        seen, new = points(4, seed=2), points(3, seed=3)
        process = surrogate.process
        targets = process.mean(seen).mean(0) + points(4, seed=4)[:, :1]
        given = surrogate.condition_on_observations(seen, targets).posterior(new)
        means, covariances = [], []
        for member in range(process.members):
            a, b = (process.features(x)[member].flatten(0, 1) for x in (seen, new))
            noise = process.noise_variance(seen)[member].flatten()
            gain = torch.linalg.solve(a @ a.mT + noise.diag(), a @ b.mT).mT
            away = (targets - process.mean(seen)[member]).flatten()
            means.append(process.mean(new)[member].flatten() + gain @ away)
            covariances.append(b @ b.mT - gain @ (a @ b.mT))
        mean = torch.stack(means).mean(0)
        between = sum(torch.outer(one - mean, one - mean) for one in means) / process.members
        torch.testing.assert_close(given.mean.flatten(), mean, rtol=1e-7, atol=1e-8)
        covariance = torch.stack(covariances).mean(0) + between
        near = {"rtol": 1e-6, "atol": 1e-7 * float(covariance.diagonal().mean())}
        torch.testing.assert_close(given.distribution.covariance_matrix, covariance, **near)

    def test_in_two_steps_is_that_in_one(self, surrogate):
        x, new = points(5, seed=2), points(3, seed=3)
        y = surrogate.process.mean(x).mean(0) + 0.5
        at_once = surrogate.condition_on_observations(x, y).posterior(new)
        twice = surrogate.condition_on_observations(x[:2], y[:2]).condition_on_observations(x[2:], y[2:]).posterior(new)
        torch.testing.assert_close(at_once.mean, twice.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(at_once.variance, twice.variance, rtol=1e-7, atol=1e-10)

    def test_fantasies_are_a_batch_of_models(self, surrogate):
        sampler = SobolQMCNormalSampler(torch.Size([6]), seed=0)
        fantasies = surrogate.fantasize(points(2, seed=5), sampler)
        assert fantasies.batch_shape == (6,)
        found = fantasies.posterior(points(3, seed=6))
        assert found.mean.shape == (6, 3, surrogate.num_outputs)
        assert bool((found.variance.mean(0) < surrogate.posterior(points(3, seed=6)).variance + 1e-9).all())


class TestFunctions:
    def test_have_the_covariance_of_the_posterior(self):
        """z-scores of the 6 entries of a 3 × 3 covariance from 4,000 draws: beyond 4.5 once in 25,000 such tests."""
        surrogate, x = Surrogate(estimator(11)), points(3)
        surrogate = surrogate.condition_on_observations(points(2, seed=7), torch.tensor([[11.0], [9.0]]).double())
        draws, posterior = surrogate.functions(4000, seed=0)(x), surrogate.posterior(x)
        assert draws.shape == (4000, 3)
        centred = draws - posterior.mean[:, 0]
        products = centred[:, :, None] * centred[:, None]
        error = products.std(0) / 4000**0.5
        z = (products.mean(0) - posterior.distribution.covariance_matrix) / error
        assert float(z.abs().max()) < 4.5

    def test_are_functions(self):
        surrogate, x = Surrogate(estimator(11)), points(4)
        functions = surrogate.functions(3, seed=1)
        torch.testing.assert_close(functions(x)[:, 1:2], functions(x[1:2]))
        torch.testing.assert_close(functions(x), surrogate.functions(3, seed=1)(x))


class TestAcquisition:
    def test_expected_improvement_is_optimised(self):
        surrogate = Surrogate(estimator(11))
        improvement = qLogExpectedImprovement(
            surrogate, best_f=12.0, sampler=SobolQMCNormalSampler(torch.Size([32]), seed=0)
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            candidates, value = optimize_acqf(improvement, BOUNDS, q=2, num_restarts=2, raw_samples=16)
        assert candidates.shape == (2, D)
        assert float(value) >= float(improvement(torch.zeros(2, D).double()))

    def test_thompson_sampling_goes_by_paths(self):
        surrogate = Surrogate(estimator(11))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            sampling = PathwiseThompsonSampling(surrogate)
            candidates, _ = optimize_acqf(sampling, BOUNDS, q=1, num_restarts=2, raw_samples=16)
        assert candidates.shape == (1, D)

    @pytest.mark.parametrize("name", list(MAKERS))
    def test_paths_are_functions_in_botorchs_shapes(self, name):
        surrogate = Surrogate(MAKERS[name]())
        with torch.random.fork_rng():
            torch.manual_seed(0)
            paths = get_matheron_path_model(surrogate, torch.Size([5]))
        c, x = surrogate.num_outputs, points(4)
        assert paths(x).shape == (5, 4, c)
        each = points(2, 5, 1, seed=3)
        found = paths(each)
        assert found.shape == (2, 5, 1, c)
        torch.testing.assert_close(found[1, 3, 0], paths(each[1, 3])[3, 0])

    def test_knowledge_gradient_looks_ahead(self):
        surrogate = Surrogate(estimator(11))
        gradient = qKnowledgeGradient(
            surrogate, sampler=SobolQMCNormalSampler(torch.Size([4]), seed=0), num_fantasies=4
        )
        x = points(1, 1 + 4, seed=8).requires_grad_()
        (slope,) = torch.autograd.grad(gradient(x).sum(), x)
        assert bool(slope.isfinite().all())

    def test_a_data_set_makes_a_surrogate(self):
        x = points(20)
        data = SupervisedDataset(x, x.sum(1, keepdim=True), feature_names=["a", "b", "c"], outcome_names=["y"])
        surrogate = Surrogate(**Surrogate.construct_inputs(data, members=2, max_iter=10))
        near = surrogate.posterior(x).mean[:, 0] - x.sum(1)
        assert float(near.abs().mean()) < 0.3


class TestBadInput:
    def test_shapes_and_dtypes_are_told(self):
        surrogate = Surrogate(estimator(11))
        with pytest.raises(ValueError, match=r"expected \(…, q, 3\)"):
            surrogate.posterior(torch.zeros(4, 2).double())
        with pytest.raises(ValueError, match="floating point"):
            surrogate.posterior(torch.zeros(4, 3).long())
        with pytest.raises(ValueError, match="Y has shape"):
            surrogate.condition_on_observations(points(4), torch.zeros(4, 2).double())


class TestBox:
    def test_reads_half_circles_between_the_bounds(self):
        """Mean and noisy variance are those of the same estimator of cosines and sines, written out here."""
        low, high = torch.tensor([[-2.0, 0.0, 5.0], [1.0, 0.5, 9.0]], dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        X, new = (low + (high - low) * torch.rand(n, 3, generator=generator, dtype=torch.float64) for n in (20, 7))
        Y = (X[:, :1] * X[:, 2:]).sin()
        options = {"members": 2, "hidden_units": 6, "max_iter": 20}
        placed, placed_new = (
            torch.cat([(torch.pi * (x - low) / (high - low)).cos(), (torch.pi * (x - low) / (high - low)).sin()], 1)
            for x in (X, new)
        )
        mean, std = (
            BayesianMLPRegressor(**options)
            .fit(placed.numpy(), Y[:, 0].numpy())
            .predict(placed_new.numpy(), return_std=True)
        )
        surrogate = lw.botorch.fit_surrogate(X, Y, torch.stack([low, high]), **options)
        found = surrogate.posterior(new[:, None], observation_noise=True)
        torch.testing.assert_close(found.mean[:, 0, 0], torch.from_numpy(mean))
        torch.testing.assert_close(found.variance[:, 0, 0].sqrt(), torch.from_numpy(std))

    def test_what_does_not_fit_is_refused(self):
        X, y = points(9).clamp(-1, 1), torch.zeros(9, 1)
        with pytest.raises(ValueError, match=r"shapes \(9, .\), \(9,\)"):
            lw.botorch.fit_surrogate(X, y[:, 0], BOUNDS)
        with pytest.raises(ValueError, match="low ends below the high"):
            lw.botorch.fit_surrogate(X, y, BOUNDS.flip(0))
        with pytest.raises(ValueError, match="1 of 9 rows of X are outside"):
            lw.botorch.fit_surrogate(torch.cat([X[:8], 2 * torch.ones(1, D)]), y, BOUNDS)

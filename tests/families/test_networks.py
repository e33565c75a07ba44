"""One network, several networks: what they predict, the noise that fits, training in other processes, resuming."""

import math

import pytest
import scipy.optimize
import torch
from torch import nn

import lapwing
from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.families import ensemble
from lapwing.families import point as network_alone
from lapwing.families.networks import best_noise
from lapwing.training import adam, train
from tests.families.problems import classes, mlp, normals, regression, seeded


def make(seed):
    return mlp(seed=seed)


class TestMap:
    def test_the_noise_is_the_root_mean_square_error(self):
        x, y = regression()
        model = mlp()
        found = network_alone.fit(model, (x, y), Gaussian())
        assert float(found.likelihood.noise_std) == pytest.approx((model(x) - y).square().mean().sqrt().item())
        held_out = normals(7, 3, seed=8), normals(7, 2, seed=9)
        tuned = network_alone.fit(model, (x, y), Gaussian(), validation=held_out)
        expected = (model(held_out[0]) - held_out[1]).square().mean().sqrt()
        assert float(tuned.likelihood.noise_std) == pytest.approx(expected.item())

    def test_one_noise_per_output(self):
        x, y = regression()
        model = mlp()
        found = network_alone.fit(model, (x, y), Gaussian(per_output=True))
        expected = (model(x) - y).square().mean(0).sqrt()
        assert torch.allclose(found.likelihood.noise_std, expected.detach())

    def test_the_prediction_is_the_network_with_noise(self):
        x, y = regression()
        model = mlp()
        prediction = network_alone.fit(model, (x, y), Gaussian(0.4)).predict(x)
        assert isinstance(prediction, lapwing.Prediction)
        assert torch.equal(prediction.mean, model(x).detach())
        assert torch.allclose(prediction.std, torch.tensor(0.4).double())
        expected = torch.distributions.Normal(model(x), 0.4).log_prob(y)
        assert torch.allclose(prediction.log_prob(y), expected)
        with pytest.raises(ValueError, match="no prior over functions"):
            _ = prediction.novelty
        assert len(prediction[:4].cpu()) == 4

    @pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
    def test_probabilities_are_the_networks(self, likelihood):
        x, y = classes()
        model = mlp(outputs=4)
        prediction = network_alone.fit(model, (x, y), likelihood).predict(x)
        expected = model(x).softmax(1) if isinstance(likelihood, Categorical) else model(x).sigmoid()
        assert torch.allclose(prediction.probs, expected, rtol=1e-12)
        assert float(prediction.mutual_information.max()) < 1e-12
        assert "novelty" not in prediction.to_frame()

    def test_a_network_in_training_mode_is_refused(self):
        with pytest.raises(ValueError, match="training mode"):
            network_alone.fit(mlp().train(), regression(), Gaussian())


class TestNoise:
    def test_it_is_the_maximum_of_the_density(self):
        functions, targets = normals(4, 50, 3, seed=1), 2 * normals(50, 3, seed=3)
        best = best_noise(functions, targets)

        def density(std):
            each = torch.distributions.Normal(functions, std).log_prob(targets).sum(2)
            return each.logsumexp(0).sum()

        grid = [float(density(float(best) * math.exp(0.01 * step))) for step in range(-5, 6)]
        assert max(grid) == grid[5]
        log_std = best.log().requires_grad_()
        (slope,) = torch.autograd.grad(density(log_std.exp()), log_std)
        assert abs(float(slope)) < 1e-2 * len(targets) * 1e-2

    @pytest.mark.parametrize("stds", [[0.3, 1.0], [0.2, 2.0, 0.7]])
    def test_one_for_each_output_is_the_maximum_of_their_joint_density(self, stds):
        """Outputs of one datum belong to one function: what one of them tells of it counts for the others."""
        n, c = 90, len(stds)
        functions, belongs = normals(4, n, c, seed=1), torch.arange(n) % 4
        targets = functions[belongs, torch.arange(n)] + torch.tensor(stds) * normals(n, c, seed=2)

        def loss(log_stds):
            each = torch.distributions.Normal(functions, torch.as_tensor(log_stds).exp()).log_prob(targets).sum(2)
            return -float(each.logsumexp(0).sum())

        options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000, "maxfev": 4000}
        start = torch.tensor(stds).double().log().numpy()
        expected = scipy.optimize.minimize(loss, start, method="Nelder-Mead", options=options)
        best = best_noise(functions, targets, per_output=True)
        assert loss(best.log()) <= expected.fun + 1e-9
        # a loss known to 1e-13 · |loss| with a curvature of about n places its minimum to √(1e-13 · 500 / n)
        torch.testing.assert_close(best, torch.from_numpy(expected.x).exp(), rtol=1e-6, atol=0)
        apart = torch.stack([best_noise(functions[..., i], targets[:, i]) for i in range(c)])
        assert loss(best.log()) < loss(apart.log()) - 1e-3

    def test_outputs_without_any_error_have_a_noise_that_is_finite(self):
        functions = normals(3, 20, 2, seed=1)
        targets = torch.stack([functions[0, :, 0], normals(20, seed=2)], dim=1)
        best = best_noise(functions, targets, per_output=True)
        assert bool(best.isfinite().all())
        assert float(best[0]) < 1e-100
        assert float(best[1]) == pytest.approx(float((targets - functions[0])[:, 1].square().mean().sqrt()))

    def test_sets_far_apart_still_have_the_noise_that_each_of_them_needs(self):
        """Two functions, each right at half of the data but for a noise of 0.1: their moments alone would need none."""
        noise, at_first = 0.1 * normals(400, seed=5), torch.arange(400) < 200
        functions = torch.stack([torch.zeros(400), torch.full((400,), 5.0)]).double()
        targets = torch.where(at_first, functions[0], functions[1]) + noise
        assert float(best_noise(functions, targets)) == pytest.approx(float(noise.square().mean().sqrt()), rel=1e-6)


class TestEnsemble:
    def test_members_are_what_train_gives(self):
        data = regression()
        found = ensemble.fit(
            make, data, Gaussian(0.3), members=3, epochs=4, batch_size=8, learning_rate=0.01, seed=5, progress=False
        )
        x = normals(11, 3, seed=7)
        for number in range(3):
            alone = train(
                make(5 + number), data, Gaussian(0.3), epochs=4, batch_size=8, optimiser=adam(0.01), seed=5 + number,
                progress=False,
            )  # fmt: skip
            torch.testing.assert_close(found.functions(x)[number], alone(x).detach(), rtol=1e-9, atol=1e-10)

    def test_the_mixture_has_its_own_moments(self):
        models = [make(seed) for seed in range(4)]
        x = normals(11, 3, seed=7)
        found = ensemble.of(models, regression(), Gaussian(0.3)).predict(x)
        outputs = torch.stack([model(x) for model in models]).detach()
        assert torch.allclose(found.mean, outputs.mean(0))
        assert torch.allclose(found.epistemic_variance, outputs.square().mean(0) - outputs.mean(0).square())
        assert torch.allclose(found.variance, found.epistemic_variance + 0.09)
        assert found.standard_error is None

    def test_the_density_is_that_of_the_mixture(self):
        models, x, y = [make(seed) for seed in range(4)], normals(11, 3, seed=7), normals(11, 2, seed=8)
        found = ensemble.of(models, regression(), Gaussian(0.3)).predict(x)
        each = torch.stack([torch.distributions.Normal(model(x).detach(), 0.3).log_prob(y).exp() for model in models])
        torch.testing.assert_close(found.log_prob(y), each.mean(0).log())

    def test_probabilities_are_averages_over_members(self):
        models = [mlp(outputs=4, seed=seed) for seed in range(3)]
        x, y = classes()
        found = ensemble.of(models, (x, y), Categorical()).predict(x)
        assert torch.allclose(found.probs, torch.stack([model(x).softmax(1) for model in models]).mean(0))

    def test_several_processes_give_the_same(self, tmp_path):
        data = regression()
        settings = {"members": 2, "epochs": 3, "batch_size": 8, "progress": False}
        here = ensemble.fit(make, data, Gaussian(), **settings)
        apart = ensemble.fit(make, data, Gaussian(), processes=2, folder=tmp_path, **settings)
        x = normals(11, 3, seed=7)
        assert torch.allclose(here.functions(x), apart.functions(x), rtol=1e-12, atol=1e-12)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["member-0.pt", "member-1.pt"]

    def test_it_goes_on_where_it_was_stopped(self, tmp_path):
        data, settings = regression(), {"members": 3, "batch_size": 8, "progress": False}
        ensemble.fit(make, data, Gaussian(), folder=tmp_path, epochs=1, **settings)
        resumed = ensemble.fit(make, data, Gaussian(), folder=tmp_path, epochs=3, **settings)
        whole = ensemble.fit(make, data, Gaussian(), epochs=3, **settings)
        assert torch.equal(resumed.functions(data[0]), whole.functions(data[0]))

    def test_a_member_that_diverges_is_named(self):
        x, y = regression()
        with pytest.raises(ValueError, match="seeds? 7.* diverged"):
            ensemble.fit(make, (1e200 * x, 1e200 * y), Gaussian(1e-3), members=2, epochs=2, seed=7, progress=False)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="members is 0"):
            ensemble.fit(make, regression(), Gaussian(), members=0, epochs=1)
        with pytest.raises(ValueError, match="2 different architectures"):
            ensemble.of([mlp(), mlp(hidden=4)], regression(), Gaussian())
        with pytest.raises(ValueError, match="at least one network"):
            ensemble.of([], regression(), Gaussian())

    def test_a_network_with_batch_norm_keeps_the_statistics_of_each_member(self):
        models = []
        for shift in (0.0, 2.0):
            model = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
            with torch.no_grad():
                model[1].running_mean.fill_(shift)
            models.append(model.eval())
        x = normals(11, 3, seed=7)
        found = ensemble.of(models, regression(), Gaussian(0.3)).functions(x)
        assert torch.allclose(found, torch.stack([model(x).detach() for model in models]))

"""Temperature scaling finds the maximum; conformal sets cover as often as they promise."""

import math

import pytest
import torch
from torch import nn

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.families import conformal, ensemble, temperature
from lapwing.families import point as network_alone
from tests.families.problems import classes, mlp, normals, regression


class Identity(nn.Module):
    """Outputs are the inputs; the one weight does nothing."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return x + 0 * self.weight.sum()


class TestTemperature:
    def test_logits_that_are_too_large_are_divided(self):
        """Labels drawn from softmax(logits): what was multiplied by three is divided by about three."""
        logits = 2 * normals(6000, 4, seed=1)
        labels = torch.multinomial(logits.softmax(1), 1, generator=torch.Generator().manual_seed(0))[:, 0]
        base = network_alone.fit(Identity().eval(), (logits, labels), Categorical())
        found = temperature.fit(base, (3 * logits, labels))
        assert found.temperature == pytest.approx(3.0, rel=0.05)
        log_t = torch.tensor(math.log(found.temperature), dtype=torch.float64, requires_grad=True)
        loss = nn.functional.cross_entropy(3 * logits / log_t.exp(), labels)
        (slope,) = torch.autograd.grad(loss, log_t)
        assert abs(float(slope)) < 1e-4
        prediction = found.predict(3 * logits)
        assert torch.allclose(prediction.probs, (3 * logits / found.temperature).softmax(1))
        assert torch.allclose(found.functions(3 * logits)[0], prediction.mean)

    def test_an_ensembles_logits_and_spread_are_divided_together(self):
        models = [mlp(outputs=4, seed=seed) for seed in range(3)]
        x, y = classes()
        base = ensemble.of(models, (x, y), Categorical())
        found = temperature.TemperatureScaled(base, 2.5).predict(x)
        expected = torch.stack([(model(x) / 2.5).softmax(1) for model in models]).mean(0)
        assert torch.allclose(found.probs, expected)
        scores = torch.stack([model(x) / 2.5 for model in models])
        assert torch.allclose(found.epistemic_variance, scores.var(0, correction=0))

    def test_numbers_have_their_variance_multiplied(self):
        models = [mlp(seed=seed) for seed in range(3)]
        x, y = regression()
        base = ensemble.of(models, (x, y), Gaussian(0.1))
        found = temperature.fit(base, (x, y))
        prediction = found.predict(x)
        before = base.predict(x)
        for name in ("epistemic_variance", "aleatoric_variance"):
            assert torch.allclose(getattr(prediction, name), found.temperature * getattr(before, name))
        assert torch.allclose(found.functions(x).var(0, correction=0), prediction.epistemic_variance)
        grid = [float(temperature.scaled(before, found.temperature * s).log_prob(y).sum()) for s in (0.9, 1, 1.1)]
        assert max(grid) == grid[1]
        alone = temperature.fit(network_alone.fit(models[0], (x, y), Gaussian(0.1)), (x, y)).predict(x)
        assert float(((y - alone.mean) / alone.std).square().mean()) == pytest.approx(1.0)

    def test_bad_temperature(self):
        base = network_alone.fit(mlp(), regression(), Gaussian(0.1))
        with pytest.raises(ValueError, match="expected a positive number"):
            temperature.scaled(base.predict(normals(4, 3)), 0.0)


class TestConformal:
    @pytest.mark.parametrize(("score", "level"), [("scaled", 0.5), ("absolute", 0.9)])
    def test_intervals_cover_as_they_promise(self, score, level):
        """Over fresh calibration sets the mean coverage of a continuous score is ⌈(n + 1) level⌉ / (n + 1) exactly."""
        n, repeats = 19, 2000
        means, noise = normals(repeats, n + 1, seed=2), normals(repeats, n + 1, seed=3)
        targets = means + noise * (1 + means.abs())  # heteroscedastic, and the model does not know
        base, hits = network_alone.fit(Identity().eval(), (means[0][:, None], targets[0][:, None]), Gaussian(1.0)), 0
        for mean, target in zip(means[:, :, None], targets[:, :, None], strict=True):
            found = conformal.fit(base, (mean[:n], target[:n]), score=score)
            low, high = found.interval(mean[n:], level)
            hits += int(low <= target[n] <= high)
        exact = math.ceil((n + 1) * level) / (n + 1)
        assert abs(hits / repeats - exact) < 5 * (exact * (1 - exact) / repeats) ** 0.5

    def test_each_output_has_its_own_width(self):
        x, y = regression(n=200)
        base = network_alone.fit(mlp(), (x, y), Gaussian(0.3))
        low, high = conformal.fit(base, (x, y)).interval(x, 0.8)
        inside = ((low <= y) & (y <= high)).double().mean(0)
        assert torch.allclose(inside, torch.full((2,), math.ceil(201 * 0.8) / 200).double())

    @pytest.mark.parametrize("score", ["probability", "adaptive"])
    def test_sets_cover_as_they_promise(self, score):
        """A model that is wrong about its classes: coverage over new data within five standard errors, never below."""
        logits = normals(40_000, 5, seed=4)
        labels = torch.multinomial((2 * logits).softmax(1), 1, generator=torch.Generator().manual_seed(0))[:, 0]
        base = network_alone.fit(Identity().eval(), (logits[:9], labels[:9]), Categorical())
        n = 20_000
        found = conformal.fit(base, (logits[:n], labels[:n]), score=score)
        sets = found.sets(logits[n:], 0.9)
        covered = sets.gather(1, labels[n:, None]).double().mean()
        assert abs(float(covered) - 0.9) < 5 * (0.9 * 0.1 * 2 / n) ** 0.5
        assert 1 <= float(sets.double().sum(1).mean()) < 5

    def test_adaptive_scores_by_hand(self):
        probs = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]]).double()
        found = conformal._of_classes(probs, "adaptive")
        expected = torch.tensor([[0.5, 1.0, 0.8], [0.9, 0.8, 1.0]]).double()
        assert torch.allclose(found, expected)

    def test_too_few_data_for_the_level_are_everything(self):
        x, y = regression(n=8)
        found = conformal.fit(network_alone.fit(mlp(), (x, y), Gaussian(0.3)), (x, y))
        low, high = found.interval(x, 0.95)
        assert bool(low.isinf().all())
        assert bool(high.isinf().all())
        assert torch.equal(found.predict(x).mean, mlp()(x).detach())

    def test_bad_requests(self):
        x, y = regression()
        numbers = conformal.fit(network_alone.fit(mlp(), (x, y), Gaussian(0.3)), (x, y))
        with pytest.raises(ValueError, match="numbers have no sets"):
            numbers.sets(x)
        with pytest.raises(ValueError, match="level must lie between"):
            numbers.interval(x, 90)
        with pytest.raises(ValueError, match="expected 'scaled' or 'absolute'"):
            conformal.fit(numbers.base, (x, y), score="adaptive")
        labels = network_alone.fit(mlp(outputs=4), classes(), Categorical())
        with pytest.raises(ValueError, match="class labels have no interval"):
            conformal.fit(labels, classes()).interval(x)
        with pytest.raises(ValueError, match="Bernoulli"):
            conformal.fit(network_alone.fit(mlp(), (x, (y > 0).double()), Bernoulli()), (x, (y > 0).double()))

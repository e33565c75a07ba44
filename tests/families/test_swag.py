"""SWAG: the moments of its iterates, its draws by z-score, statistics of BatchNorm, resuming."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from lapwing.bayes.likelihoods import Categorical, Gaussian
from lapwing.bayes.noise import Noise
from lapwing.families import swag
from lapwing.families.swag import Iterates
from lapwing.network.parameters import Layout
from tests.families.problems import classes, mlp, normals, regression, seeded
from tests.properties import check_covariance


def collected(columns, rank):
    found = Iterates.none(columns[:, 0])
    for column in columns.unbind(1):
        found = found.add(column, rank)
    return found


class TestIterates:
    def test_moments_are_those_of_the_iterates(self):
        columns = normals(7, 12) + 100
        found = collected(columns, 12)
        assert found.count == 12
        assert torch.allclose(found.mean, columns.mean(1), rtol=1e-13)
        assert torch.allclose(found.variance, columns.var(1), rtol=1e-10)
        assert torch.allclose(found.root @ found.root.T, torch.cov(columns), rtol=1e-10)  # all kept: K − 1

    def test_the_count_is_that_of_the_columns_kept(self):
        """Independent iterates: the expectation of R Rᵀ is their covariance, for any number kept."""
        mix, kept, n, repeats = normals(3, 3, seed=1), 4, 9, 4000
        columns = mix @ normals(3, n * repeats, seed=2)
        roots = [collected(part, kept).root for part in columns.split(n, dim=1)]
        assert roots[0].shape == (3, kept)
        products = torch.stack([root @ root.T for root in roots])
        error = products.std(0) / repeats**0.5
        assert ((products.mean(0) - mix @ mix.T).abs() < 5 * error).all()

    @pytest.mark.parametrize("covariance", ["low rank", "diagonal"])
    def test_draws_have_the_covariance_of_the_iterates(self, covariance):
        """Layers move together: cross-covariances are those of the iterates too, halved, as the paper has it."""
        columns = normals(6, 6, seed=3) @ normals(6, 15, seed=4) + 3
        found = collected(columns, 15)
        draws = found.draw(Noise(5), 20_000, covariance) - found.mean[:, None]
        whole = torch.cov(columns)
        expected = torch.diag(whole.diagonal())
        if covariance == "low rank":
            expected = 0.5 * expected + 0.5 * whole
        check_covariance(draws, expected)


class TestFit:
    def test_the_iterates_are_those_of_sgd(self):
        """Against a plain loop with torch's own optimiser, over the same batches."""
        data, model = regression(), mlp()
        found, _ = swag.collect(
            model, data, Gaussian(0.5), epochs=4, learning_rate=0.01, momentum=0.9, prior_precision=2.0, batch_size=8,
            rank=8, per_epoch=2, seed=3, progress=False,
        )  # fmt: skip
        weights = [weight.detach().clone().requires_grad_() for weight in model.parameters()]
        optimiser = torch.optim.SGD(weights, lr=0.01, momentum=0.9)
        generator, kept = torch.Generator().manual_seed(3), []
        for _ in range(4):
            order = torch.randperm(30, generator=generator)
            for step, rows in enumerate(order.split(8)):
                optimiser.zero_grad()
                x, y = data[0][rows], data[1][rows]
                outputs = torch.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]
                loss = (outputs - y).square().sum() / (2 * 0.25 * len(x))
                (loss + 2.0 / 30 / 2 * sum(w.square().sum() for w in weights)).backward()
                optimiser.step()
                if step in (1, 3):  # half-way and at the end of four steps
                    kept.append(torch.cat([w.detach().flatten() for w in weights]))
        expected = torch.stack(kept, 1)
        assert found.count == 8
        assert torch.allclose(found.last, expected, rtol=1e-10)
        assert torch.allclose(found.mean, expected.mean(1), rtol=1e-10)

    def test_functions_are_the_network_at_draws(self):
        model, data = mlp(), regression()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        found = swag.fit(model, data, Gaussian(), epochs=6, batch_size=8, draws=5, rank=3, progress=False)
        x = normals(11, 3, seed=7)
        for number in range(5):
            weights = {name: tensor[number] for name, tensor in found.weights.items()}
            assert torch.equal(found.functions(x)[number], functional_call(model, weights, (x,)).detach())
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert not model.training
        assert found.diagnostics["iterates"] == 6
        assert found.diagnostics["rank"] == 3

    def test_batch_norm_is_estimated_anew_for_every_draw(self):
        x, y = classes()
        model = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))).eval()
        found = swag.fit(model, (x, y), Categorical(), epochs=3, batch_size=40, draws=3, progress=False)
        for number in range(3):
            hidden = x @ found.weights["0.weight"][number].T + found.weights["0.bias"][number]
            assert torch.allclose(found.weights["1.running_mean"][number], hidden.mean(0), rtol=1e-10)
            assert torch.allclose(found.weights["1.running_var"][number], hidden.var(0), rtol=1e-10)
        assert found.diagnostics["batch_norm_re_estimated"]
        assert float(model[1].running_mean.abs().max()) == 0.0

    def test_it_goes_on_from_a_checkpoint(self, tmp_path):
        data, path = regression(), tmp_path / "swag.pt"
        settings = {"learning_rate": 0.02, "batch_size": 8, "draws": 4, "rank": 5, "progress": False}
        whole = swag.fit(mlp(), data, Gaussian(0.3), epochs=6, **settings)
        swag.fit(mlp(), data, Gaussian(0.3), epochs=3, checkpoint=path, **settings)
        resumed = swag.fit(mlp(), data, Gaussian(0.3), epochs=6, checkpoint=path, **settings)
        assert torch.equal(whole.functions(data[0]), resumed.functions(data[0]))

    def test_only_weights_that_are_trained_move(self):
        model = mlp()
        model[0].requires_grad_(False)
        found = swag.fit(model, regression(), Gaussian(0.3), epochs=3, batch_size=8, draws=3, progress=False)
        assert torch.equal(found.weights["0.weight"], model[0].weight.detach().expand(3, -1, -1))
        assert Layout.of(model).names == ("2.weight", "2.bias")
        assert float(found.weights["2.weight"].std(0).min()) > 0

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ({"epochs": 1}, "at least two iterates"),
            ({"rank": 0}, "one of rank"),
            ({"covariance": "full"}, "'low rank' or 'diagonal'"),
        ],
    )
    def test_bad_arguments(self, bad, message):
        with pytest.raises(ValueError, match=message):
            swag.fit(mlp(), regression(), Gaussian(0.3), **bad)

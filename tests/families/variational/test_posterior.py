"""What a fit gives: joint draws that do not depend on the batch, predictions, a file that gives the same again."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call

from lapwing.bayes.likelihoods import Bernoulli, Categorical, Gaussian
from lapwing.families import variational
from lapwing.families.variational import fit, held_out, load
from lapwing.families.variational.mean_field import LOG_STD
from tests.families.variational.problems import classes, mlp, normals, regression, seeded


@pytest.fixture(scope="module")
def posterior():
    return fit(
        mlp(), regression(), Gaussian(0.3), temperature=0.5, epochs=20, draws=40, initial_std=0.2, progress=False
    )


def test_draws_are_the_same_at_every_call_and_for_every_batch(posterior, monkeypatch):
    x = normals(11, 3, seed=7)
    functions = posterior.functions(x)
    assert functions.shape == (40, 11, 2)
    assert torch.equal(functions, posterior.functions(x))
    assert torch.equal(functions[:6], posterior.functions(x, draws=6))
    monkeypatch.setattr("lapwing.families.variational.posterior.BATCH", 4)
    assert torch.allclose(functions, posterior.functions(x), rtol=1e-12)


def test_draws_are_the_network_at_draws_of_the_weights(posterior):
    x = normals(11, 3, seed=7)
    for column in (0, 5):
        weights = posterior.network.draw(posterior.values, posterior.seed, column)
        assert not torch.equal(weights["0.weight"], posterior.values["0.weight"])
        assert torch.equal(posterior.functions(x)[column], functional_call(mlp(), weights, (x,)).detach())


def test_the_moments_of_a_linear_model_are_those_in_closed_form():
    """Mean x μ and variance x² σ² of a linear layer, by z-score over the draws."""
    data = regression()
    model = seeded(lambda: nn.Linear(3, 2))
    posterior = fit(model, data, Gaussian(0.3), temperature=1.0, epochs=3, draws=600, initial_std=0.2, progress=False)
    x = normals(5, 3, seed=8)
    prediction = posterior.predict(x)
    values = posterior.values
    mean = x @ values["weight"].mT + values["bias"]
    variance = x.square() @ (2 * values["weight" + LOG_STD]).exp().mT + (2 * values["bias" + LOG_STD]).exp()
    assert ((prediction.mean - mean).abs() < 5 * (variance / 600).sqrt()).all()
    assert ((prediction.epistemic_variance - variance).abs() < 5 * variance * (2 / 600) ** 0.5).all()
    prior = 0.2 * (x.square().sum(1, keepdim=True) + 1).expand(5, 2)
    assert ((prediction.prior_variance - prior).abs() < 5 * prior * (2 / 600) ** 0.5).all()
    assert torch.allclose(prediction.aleatoric_variance, torch.tensor(0.09).double())
    assert torch.allclose(prediction.standard_error, prediction.epistemic_variance * (2 / 599) ** 0.5)


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_probabilities_are_averages_over_the_draws(likelihood):
    x, y = classes()
    y = torch.nn.functional.one_hot(y).double() if isinstance(likelihood, Bernoulli) else y
    posterior = fit(
        mlp(3, 5, 4), (x, y), likelihood, temperature=0.5, epochs=3, draws=30, initial_std=0.3, progress=False
    )
    prediction, functions = posterior.predict(x), posterior.functions(x)
    each = functions.softmax(2) if isinstance(likelihood, Categorical) else functions.sigmoid()
    assert torch.allclose(prediction.probs, each.mean(0), rtol=1e-10)
    assert torch.allclose(prediction.mean, functions.mean(0))
    assert (prediction.mutual_information >= 0).all()
    assert (prediction.mutual_information < prediction.entropy).all()
    nll = -float(prediction.log_prob(y).sum() / len(x))
    expected = held_out(posterior, (x, y))["nll"]
    if isinstance(likelihood, Categorical):
        assert nll == pytest.approx(expected, rel=1e-10)
    with pytest.raises(ValueError, match="entropy − mutual_information"):
        _ = prediction.aleatoric_variance
    assert len(prediction[:7].probs) == 7
    assert list(prediction.to_frame().columns)[-1] == "novelty"


def test_a_saved_fit_is_the_same_again(posterior, tmp_path):
    x, path = normals(11, 3, seed=7), tmp_path / "fit.safetensors"
    posterior.save(path)
    again = load(path, seeded(lambda: mlp(), 99))
    assert torch.equal(again.functions(x), posterior.functions(x))
    assert again.heat == posterior.heat
    assert again.curve == posterior.curve
    assert again.diagnostics == posterior.diagnostics
    assert torch.equal(again.predict(x).variance, posterior.predict(x).variance)
    assert [file.name for file in tmp_path.iterdir()] == ["fit.safetensors"]


def test_a_wrong_file_or_a_wrong_network_is_refused(posterior, tmp_path):
    path = tmp_path / "fit.safetensors"
    posterior.save(path)
    with pytest.raises(ValueError, match=r"was written for another network: 0.bias, 0.bias:log_std, .* differ"):
        load(path, mlp(3, 6))
    with pytest.raises(ValueError, match="no weight named 0.weight"):
        load(path, seeded(lambda: nn.Linear(3, 2)))
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="is not a variational fit of format 1"):
        load(path, mlp())


def test_scores_of_regression_are_those_of_a_mixture(posterior):
    x, y = regression(12)
    scores = held_out(posterior, (x, y))
    components = torch.distributions.Normal(posterior.functions(x), 0.3)
    log_density = components.log_prob(y).sum(2)
    mixture = log_density.exp().mean(0).log()
    assert scores["nll"] == pytest.approx(-float(mixture.mean()), rel=1e-10)
    assert scores["gibbs_nll"] == pytest.approx(-float(log_density.mean()), rel=1e-10)
    assert scores["rmse"] == pytest.approx(float((posterior.functions(x).mean(0) - y).square().mean().sqrt()))
    assert scores["nll"] < scores["gibbs_nll"]


def test_scores_of_classes_are_those_by_hand():
    from lapwing.families.variational.scores import _of_classes

    probabilities = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.1, 0.15, 0.75], [0.4, 0.35, 0.25]]).double()
    scores = _of_classes(probabilities, torch.tensor([0, 1, 1, 2]))
    assert scores["accuracy"] == 0.5
    assert scores["confidence"] == pytest.approx((0.9 + 0.5 + 0.75 + 0.4) / 4)
    assert scores["ece"] == pytest.approx((0.1 + 0.5 + 0.75 + 0.4) / 4)  # each in a bin of its own


def test_diagnostics_say_what_was_done(posterior):
    found = posterior.diagnostics
    assert found["local_exactly"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert found["not_random"] == found["local_approximately"] == found["never_local"] == []
    assert found["temperature_from"] == "η = 0.5"
    assert found["epochs"] == 20
    balanced = fit(mlp(), regression(), Gaussian(0.3), temperature=variational.Balanced(0.1), epochs=1, progress=False)
    assert balanced.diagnostics["temperature_from"] == "η = τ p / N = 0.1 · 30 / 5 = 0.6"
    assert balanced.diagnostics["divergence_per_unit"] == pytest.approx(balanced.divergence / 5)


def test_files_name_their_likelihood_as_older_ones_did():
    from lapwing.bayes.likelihoods import restored
    from lapwing.families.variational.posterior import _described

    assert restored(_described({"likelihood": "Gaussian", "noise_std": 0.5})).noise_std == 0.5
    assert restored(_described({"likelihood": "Categorical", "noise_std": None})).dim == -1
    assert restored(_described({"likelihood": {"name": "Categorical", "dim": 1, "ignore_index": 0}})).dim == 1

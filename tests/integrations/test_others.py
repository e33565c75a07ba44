"""skorch, cleanlab and MAPIE take what lapwing gives, and lapwing takes what they give."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

import lapwing as lw
from lapwing.tabular import BayesianMLPClassifier, BayesianMLPRegressor
from lapwing.training import adam, train

ASK = "is not installed: `make integrations` does it"


@pytest.fixture(autouse=True)
def same_start():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def digits(count=200, wrong=20):
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))[:count]
    x, y = torch.tensor(x[order], dtype=torch.float32) / 16, torch.tensor(y[order])
    flipped = torch.arange(wrong) * (count // wrong)
    labels = y.clone()
    labels[flipped] = (y[flipped] + 1 + torch.arange(wrong) % 8) % 10
    return x, y, labels, flipped


def network():
    return nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))


@pytest.mark.filterwarnings("ignore")
def test_the_module_of_skorch_is_fitted_as_it_is():
    skorch = pytest.importorskip("skorch", reason=f"skorch {ASK}")
    x, y, _, _ = digits()
    net = skorch.NeuralNetClassifier(
        network(), criterion=nn.CrossEntropyLoss, max_epochs=30, lr=0.1, batch_size=32, train_split=None, verbose=0
    )
    net.fit(x[:150].numpy(), y[:150].numpy())
    posterior = lw.fit(net.module_.eval(), (x[:150], y[:150]), lw.Categorical())
    probs = posterior.predict(x[150:]).probs
    assert (probs.argmax(1) == y[150:]).double().mean() > 0.7
    wanted = lw.fit(net.module_.eval(), skorch.dataset.Dataset(x[:150], y[:150]), lw.Categorical())
    torch.testing.assert_close(wanted.predict(x[150:]).probs, probs)


def test_cleanlab_takes_leave_one_out_probabilities():
    """The labels that cleanlab then calls wrong are mostly those that were changed."""
    cleanlab = pytest.importorskip("cleanlab.filter", reason=f"cleanlab {ASK}")
    x, _, labels, flipped = digits()
    trained = train(network(), (x, labels), lw.Categorical(), optimiser=adam(1e-2), epochs=40, progress=False)
    found = lw.fit(trained, (x, labels), lw.Categorical()).leave_one_out()
    probs = found.prediction.probs.numpy()
    assert probs.shape == (200, 10)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    ranked = cleanlab.find_label_issues(labels.numpy(), probs, return_indices_ranked_by="self_confidence")
    first = ranked[: len(flipped)]
    assert np.isin(first, flipped.numpy()).mean() > 0.5  # 10 % by chance


def test_mapie_takes_our_regressor_with_its_standard_deviations():
    regression = pytest.importorskip("mapie.regression", reason=f"MAPIE {ASK}")
    x, y = load_diabetes(return_X_y=True)
    model = BayesianMLPRegressor(members=1).fit(x[:200], y[:200])
    conformal = regression.SplitConformalRegressor(model, confidence_level=0.9, prefit=True)
    conformal.conformalize(x[200:320], y[200:320])
    mean, ends = conformal.predict_interval(x[320:])
    np.testing.assert_allclose(mean, model.predict(x[320:]))
    inside = (ends[:, 0, 0] <= y[320:]) & (y[320:] <= ends[:, 1, 0])
    assert abs(inside.mean() - 0.9) < 4 * (0.09 / 122 + 0.09 / 120) ** 0.5


def test_mapie_takes_our_classifier():
    classification = pytest.importorskip("mapie.classification", reason=f"MAPIE {ASK}")
    x, y, _, _ = digits(400)
    few = y < 3
    x, y = x[few].numpy(), y[few].numpy()
    model = BayesianMLPClassifier(members=1).fit(x[:50], y[:50])
    conformal = classification.SplitConformalClassifier(model, confidence_level=0.9, prefit=True)
    conformal.conformalize(x[50:90], y[50:90])
    labels, sets = conformal.predict_set(x[90:])
    np.testing.assert_array_equal(labels, model.predict(x[90:]))
    assert sets.shape[:2] == (len(x) - 90, 3)

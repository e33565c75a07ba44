"""The demo says what its figures say, ties and losses included, and its figures are right."""

import sys

import numpy as np
import pytest
import scipy.optimize
import torch

from lapwing import metrics
from lapwing.app.demo import classifier, digits, show, table, words, wrong_labels

NORMALS = torch.Generator().manual_seed(3)


def shifted(by, noise=0.1, n=50):
    return torch.ones(n) + by + noise * torch.randn(n, generator=NORMALS)


@pytest.mark.parametrize(
    ("rival", "verb"), [(shifted(0.5), "beats"), (shifted(-0.5), "loses to"), (torch.ones(50), "ties with")]
)
def test_the_verb_follows_the_sign_and_the_chance_of_a_difference(rival, verb):
    assert words.standing({"lapwing": torch.ones(50), "a rival": rival}, "lapwing") == f"{verb} a rival"


@pytest.mark.parametrize("shift", np.linspace(-0.06, 0.06, 13))
def test_two_standard_errors_decide(shift):
    ours, other = np.ones(40), 1 + shift + 0.1 * np.random.default_rng(1).normal(size=40)
    z = np.mean(other - ours) / (np.std(other - ours, ddof=1) / np.sqrt(40))
    expected = "beats" if z > 2 else "loses to" if z < -2 else "ties with"
    said = words.standing({"lapwing": torch.from_numpy(ours), "b": torch.from_numpy(other)}, "lapwing")
    assert said == f"{expected} b"


def intervals(error, half, n=60):
    mean = np.linspace(0, 5, n) + error
    return table.Intervals(mean, mean - half, mean + half)


@pytest.mark.parametrize(("error", "verb"), [(0.5, "loses to"), (0.0, "beats")])
def test_a_lost_table_is_said_to_be_lost(error, verb):
    targets = np.linspace(0, 5, 60) + 0.1 * np.random.default_rng(0).normal(size=60)
    rival = intervals(0.5 - error, 1.0)
    scene = table.TableScene(targets, {table.PLAIN: rival, table.GP: rival, table.OURS: intervals(error, 0.05)})
    assert f"{verb} a plain MLP and a Gaussian process" in scene.sentence
    inside = int(np.sum(np.abs(targets - scene.methods[table.OURS].mean) <= 0.05))
    assert inside < 40
    assert f"{inside} of 60 patients fall inside its 90% intervals, too few" in scene.sentence


def classified(ours, others, labels):
    names = (classifier.RAW, classifier.SCALED, classifier.AVERAGED, classifier.SEVERAL)
    probs = {**dict.fromkeys(names, others), classifier.OURS: ours}
    return classifier.ClassifierScene(labels, probs, probs, record=None).sentence


def test_a_classifier_that_ties_or_loses_is_said_to():
    labels = torch.arange(40) % 4
    good = 0.96 * torch.eye(4, dtype=torch.float64)[labels] + 0.01
    bad = good.roll(1, 1)
    everyone = "the raw network, temperature scaling, three networks averaged and lapwing of three networks"
    assert f"lapwing ties with {everyone}" in classified(good, good, labels)
    assert f"lapwing beats {everyone}" in classified(good, bad, labels)
    lost = classified(bad, good, labels)
    assert f"lapwing loses to {everyone}" in lost
    assert "answers 40 of 40 digits, 40 wrong; temperature scaling answers 40, 0 wrong (0 among its 40 surest)" in lost
    assert "97% confident and 0% right, still overconfident; temperature scaling 97% and 100%" in lost


def test_wrong_labels_that_others_find_better_are_said_to():
    truth = torch.arange(120) % 10
    labels = truth.clone()
    labels[:15] = (labels[:15] + 1) % 10
    pictures = torch.zeros(120, 1, 8, 8)
    missed, all_found = torch.arange(100, 115), torch.arange(15)
    suspects = {wrong_labels.LOSS: all_found, wrong_labels.FOLDS: missed, wrong_labels.OURS: missed}
    said = wrong_labels.LabelScene((pictures, labels), truth, suspects).sentence
    assert "0 are wrong ones (the training loss 15, five-fold cross-validation 0, chance 1.9)" in said
    assert "ties with five-fold cross-validation and loses to the training loss" in said


@pytest.mark.slow
def test_the_table_is_scored_right():
    X, y, new, targets = table.split()
    assert len(X) == table.TRAINED
    assert len(X) + len(new) == 442
    scene = table.run()
    assert np.array_equal(scene.targets, targets)
    process = table.gaussian_process(X, y)  # its posterior once more, by dense algebra
    scaler, fitted = process[0], process[-1]
    kernel = fitted.kernel_
    inputs, others = scaler.transform(X), scaler.transform(new)
    weights = np.linalg.solve(kernel(inputs), (y - y.mean()) / y.std())
    mean = y.mean() + y.std() * kernel(others, inputs) @ weights
    np.testing.assert_allclose(scene.methods[table.GP].mean, mean, rtol=1e-5)
    rmse = {name: np.sqrt(np.mean((one.mean - targets) ** 2)) for name, one in scene.methods.items()}
    inside = {name: np.sum((one.low <= targets) & (targets <= one.high)) for name, one in scene.methods.items()}
    assert f"RMSE {rmse[table.OURS]:.1f}" in scene.sentence
    assert f"{inside[table.OURS]} of {len(targets)} patients" in scene.sentence
    assert f"(a Gaussian process {inside[table.GP]}, a plain MLP {inside[table.PLAIN]})" in scene.sentence


@pytest.fixture(scope="module")
def classes():
    return classifier.run()


@pytest.mark.slow
def test_the_classifier_is_scored_right(classes):
    data, labels = classifier.split(), classes.labels.numpy()
    parts = [part[0].flatten(1) for part in (data.train, data.validation, data.test)]
    assert len(torch.cat(parts)) == classifier.TRAINED + classifier.HELD_OUT + classifier.TESTED
    assert len(torch.cat(parts).unique(dim=0)) == len(torch.cat(parts))  # no digit is in two parts
    network = digits.trained(data.train, classifier.NETWORKS)[0]
    logits, held = (network(part[0]).detach().double().numpy() for part in (data.test, data.validation))

    def log_probs(scores, temperature):
        scaled = scores / temperature
        return scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)

    def loss(log_temperature):
        rows = np.arange(classifier.HELD_OUT), data.validation[1].numpy()
        return -log_probs(held, np.exp(log_temperature))[rows].mean()

    temperature = np.exp(scipy.optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    np.testing.assert_allclose(classes.upright[classifier.SCALED], np.exp(log_probs(logits, temperature)), atol=1e-3)
    np.testing.assert_allclose(classes.upright[classifier.RAW], np.exp(log_probs(logits, 1.0)), atol=1e-5)
    ours = classes.upright[classifier.OURS].numpy()
    confident = ours.max(1) >= 0.9
    wrong = ours.argmax(1) != labels
    nll = -np.log(ours[np.arange(len(labels)), labels]).mean()
    assert f"By NLL ({nll:.3f}) lapwing " in classes.sentence
    assert f"answers {confident.sum()} of {len(labels)} digits, {(confident & wrong).sum()} wrong" in classes.sentence
    rotated = classes.rotated[classifier.OURS].numpy()
    right = (rotated.argmax(1) == labels).mean()
    assert f"lapwing is {rotated.max(1).mean():.0%} confident and {right:.0%} right" in classes.sentence
    assert all(metrics.accuracy(probs, classes.labels) > 0.75 for probs in classes.upright.values())


@pytest.mark.slow
def test_wrong_labels_are_counted_right():
    (pictures, labels), truth = wrong_labels.mislabelled()
    assert int((labels != truth).sum()) == wrong_labels.WRONG
    scene = wrong_labels.run()
    count = sum(int(labels[number]) != int(truth[number]) for number in scene.suspects[wrong_labels.OURS].tolist())
    assert f"{count} are wrong ones" in scene.sentence
    assert count >= 8  # 1.5 by chance
    (network,) = digits.trained((pictures, labels))
    probs = network(pictures).softmax(1)[torch.arange(len(labels)), labels]
    assert set(scene.suspects[wrong_labels.LOSS].tolist()) == set(probs.argsort()[: wrong_labels.WRONG].tolist())


@pytest.mark.slow
def test_the_demo_writes_its_page_and_pictures(classes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(classifier, "run", lambda: classes)
    show.main(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "temperature scaling" in page
    assert "scikit-learn&#x27;s digits" in page or "scikit-learn's digits" in page
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("table.png", "classifier.png"))
    said = capsys.readouterr().out
    assert " ".join(classes.sentence.split()) in " ".join(said.split())
    *_, where, following = said.split("\n\n")
    assert str(tmp_path / "report.html") in where
    assert str(tmp_path / "wrong_labels.png") in where
    assert following.startswith("What to try next")


def test_without_matplotlib_it_says_what_brings_the_pictures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert show.save_pictures([], tmp_path) == ['pictures need matplotlib: pip install "lapwing[plot]"']


def test_the_command_is_named_only_where_it_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(show.shutil, "which", lambda _name: None)
    assert any("activate" in line for line in show.suggestions(tmp_path))
    monkeypatch.setattr(show.shutil, "which", lambda name: f"/bin/{name}")
    assert not any("activate" in line for line in show.suggestions(tmp_path))

"""The data sets of first tries: each drawn from the number of its try alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

Random = np.random.Generator
Arrays = tuple[np.ndarray, np.ndarray]  # inputs and targets, rows in random order

TOKENS, PLACES = 10, 5  # categories of a place, and places, of "tokens"
WORDS, CONTEXT = 8, 4  # vocabulary and length of "next token"
LENGTH, CHANNELS = 12, 2  # of sequences


@final
@dataclass(frozen=True)
class Kind:
    """A data set: what is asked of it, how it is drawn, and what its size allows."""

    target: str  # "classes", "labels" (0 or 1, one or several), "counts", "numbers" or "spread numbers"
    draw: Callable[[Random, int], Arrays]  # this many rows, or all there are
    outputs: int  # of a network
    inputs: str = "table"  # or "image", "sequence", "tokens", "context"
    available: int | None = None  # rows there are; None where they are generated
    most: int = 300  # training rows


@final
@dataclass(frozen=True, eq=False)
class Data:
    """Training, validation and test rows, preprocessed by what the training rows say."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor] | None
    test: tuple[Tensor, Tensor]


def moons(random: Random, n: int) -> Arrays:
    return datasets.make_moons(n, noise=random.uniform(0.1, 0.4), random_state=_seed(random))


def circles(random: Random, n: int) -> Arrays:
    return datasets.make_circles(n, noise=random.uniform(0.05, 0.25), factor=0.5, random_state=_seed(random))


def blobs(random: Random, n: int) -> Arrays:
    features = int(random.integers(2, 7))
    return datasets.make_blobs(n, features, centers=4, cluster_std=random.uniform(1, 4), random_state=_seed(random))


def rare(random: Random, n: int) -> Arrays:
    return datasets.make_classification(
        n, 6, n_informative=4, n_redundant=1, n_classes=3, n_clusters_per_class=1, weights=[0.88, 0.08, 0.04],
        class_sep=1.0, random_state=_seed(random),
    )  # fmt: skip


def constant_columns(random: Random, n: int) -> Arrays:
    """Three columns of eight say nothing: zeros, sevens, and a flag that `made` raises in test rows alone."""
    x, y = datasets.make_classification(
        n, 5, n_informative=3, n_classes=3, n_clusters_per_class=1, class_sep=1.0, random_state=_seed(random)
    )
    return np.column_stack([x, np.zeros(n), np.full(n, 7.0), np.zeros(n)]), y


def bundled(load: Callable[..., Arrays]) -> Callable[[Random, int], Arrays]:
    def draw(random: Random, n: int) -> Arrays:
        del n  # all there are
        x, y = load(return_X_y=True)
        order = random.permutation(len(x))
        return x[order], y[order]

    return draw


def digit_images(random: Random, n: int) -> Arrays:
    x, y = bundled(datasets.load_digits)(random, n)
    return x.reshape(-1, 1, 8, 8), y


def sequences(random: Random, n: int) -> Arrays:
    """Waves of three frequencies in two channels of which one is late, with noise."""
    y, time = random.integers(3, size=n), np.arange(LENGTH)
    phase = random.uniform(0, 2 * np.pi, size=(n, 1))
    angle = (0.5 + 0.25 * y)[:, None] * time + phase
    x = np.stack([np.sin(angle), np.sin(angle - 1)], axis=2)
    return x + random.uniform(0.3, 0.8) * random.normal(size=x.shape), y


def sequence_numbers(random: Random, n: int) -> Arrays:
    """A number that is the sum of one channel where the other is up."""
    x = random.normal(size=(n, LENGTH, CHANNELS))
    y = (x[:, :, 0] * (x[:, :, 1] > 0)).sum(1)
    return x, y + random.uniform(0.2, 1) * random.normal(size=n)


def tokens(random: Random, n: int) -> Arrays:
    """Categories in five places, each with a say in three classes."""
    x = random.integers(TOKENS, size=(n, PLACES))
    effects = 1.2 * random.normal(size=(PLACES, TOKENS, 3))
    logits = sum(effects[place, x[:, place]] for place in range(PLACES))
    return x, _classes(random, logits)


def next_token(random: Random, n: int) -> Arrays:
    """The token that follows four others, by the last two of them."""
    logits = 1.5 * random.normal(size=(2, WORDS, WORDS))
    x = random.integers(WORDS, size=(n, CONTEXT))
    return x, _classes(random, logits[0, x[:, -1]] + logits[1, x[:, -2]])


def yes_no(random: Random, n: int) -> Arrays:
    x = random.normal(size=(n, 3))
    logits = random.uniform(1, 3) * (x[:, 0] * x[:, 1] + x[:, 2])
    return x, (random.uniform(size=n) < _sigmoid(logits)).astype(float)


def multi_label(random: Random, n: int) -> Arrays:
    x = random.normal(size=(n, 5))
    features = np.column_stack([x, x[:, :1] * x[:, 1:2], np.ones(n)])
    logits = 1.5 * features @ random.normal(size=(7, 4))
    return x, (random.uniform(size=logits.shape) < _sigmoid(logits)).astype(float)


def counts(random: Random, n: int) -> Arrays:
    x = random.normal(size=(n, 3))
    rate = np.exp(random.uniform(0, 1.5) + 0.8 * np.sin(2 * x[:, 0]) + 0.4 * x[:, 1])
    return x, random.poisson(rate).astype(float)


def friedman(random: Random, n: int) -> Arrays:
    return datasets.make_friedman1(
        n, int(random.integers(5, 11)), noise=random.uniform(0.3, 2), random_state=_seed(random)
    )


def wave(random: Random, n: int) -> Arrays:
    """A wave over [−3, 3]; `made` takes its training and validation rows from outside the gap (0, 1.2)."""
    x = random.uniform(-3, 3, size=(n, 1))
    return x, np.sin(2 * x[:, 0]) + random.uniform(0.05, 0.3) * random.normal(size=n)


def heteroscedastic(random: Random, n: int) -> Arrays:
    x = random.uniform(-2, 2, size=(n, 1))
    std = 0.1 + random.uniform(0.1, 0.4) * np.abs(x[:, 0])
    return x, np.sin(2 * x[:, 0]) + std * random.normal(size=n)


KINDS = {
    "two moons": Kind("classes", moons, 2),
    "circles": Kind("classes", circles, 2),
    "blobs": Kind("classes", blobs, 4),
    "iris": Kind("classes", bundled(datasets.load_iris), 3, available=150, most=80),
    "wine": Kind("classes", bundled(datasets.load_wine), 3, available=178, most=90),
    "breast cancer": Kind("classes", bundled(datasets.load_breast_cancer), 2, available=569, most=120),
    "digits": Kind("classes", bundled(datasets.load_digits), 10, available=1797),
    "digit images": Kind("classes", digit_images, 10, "image", available=1797),
    "sequences": Kind("classes", sequences, 3, "sequence"),
    "rare classes": Kind("classes", rare, 3),
    "constant columns": Kind("classes", constant_columns, 3),
    "tokens": Kind("classes", tokens, 3, "tokens"),
    "next token": Kind("classes", next_token, WORDS, "context"),
    "yes or no": Kind("labels", yes_no, 1),
    "multi-label": Kind("labels", multi_label, 4),
    "counts": Kind("counts", counts, 1),
    "friedman": Kind("numbers", friedman, 1),
    "diabetes": Kind("numbers", bundled(datasets.load_diabetes), 1, available=442, most=200),
    "linnerud": Kind("numbers", bundled(datasets.load_linnerud), 3, available=20, most=12),
    "wave with a gap": Kind("numbers", wave, 1),
    "sequence numbers": Kind("numbers", sequence_numbers, 1, "sequence"),
    "heteroscedastic": Kind("spread numbers", heteroscedastic, 2),
}
TEST_ROWS = 500


def rows_left(kind: Kind, training: int, validation: int) -> int:
    """Rows left for the test, 500 at most."""
    return TEST_ROWS if kind.available is None else min(TEST_ROWS, kind.available - training - validation)


def made(name: str, training: int, validation: int, scaling: str, scaled_targets: bool, seed: int) -> Data:
    """The rows of a try: the first are for training, then validation, then test."""
    kind, random = KINDS[name], np.random.default_rng([seed, 1])
    known, testing = training + validation, rows_left(kind, training, validation)
    if name == "wave with a gap":
        x, y = kind.draw(random, 2 * known + testing)
        outside = np.flatnonzero((x[:, 0] < 0) | (x[:, 0] > 1.2))[:known]
        order = np.concatenate([outside, np.arange(2 * known, 2 * known + testing)])
        x, y = x[order], y[order]
    else:
        x, y = kind.draw(random, known + testing)
    if name == "constant columns":
        x[known:, -1] = random.uniform(size=len(x) - known) < 0.02
    if kind.inputs not in ("tokens", "context"):
        x = _scaled(x, x[:training], scaling)
    if scaled_targets:
        y = _scaled(y, y[:training], "standardise")
    inputs = torch.from_numpy(x).long() if x.dtype.kind == "i" else torch.from_numpy(x).float()
    targets = torch.from_numpy(y).long() if kind.target == "classes" else torch.from_numpy(y).float()
    parts = [slice(training), slice(training, known), slice(known, known + testing)]
    train, held, test = ((inputs[part], targets[part]) for part in parts)
    return Data(train, held if validation else None, test)


def _scaled(values: np.ndarray, training: np.ndarray, how: str) -> np.ndarray:
    """Columns as the training rows say; one that is constant there is not divided by anything."""
    if how == "none":
        return values
    axes = {1: (0,), 2: (0,), 3: (0, 1), 4: (0, 2, 3)}[values.ndim]
    if how == "standardise":
        shift, width = training.mean(axes, keepdims=True), training.std(axes, keepdims=True)
    else:
        shift = training.min(axes, keepdims=True)
        width = training.max(axes, keepdims=True) - shift
    constant = training.max(axes, keepdims=True) == training.min(axes, keepdims=True)
    found = (values - shift) / np.where(constant, 1, width)
    return found.reshape(values.shape)


def _classes(random: Random, logits: np.ndarray) -> np.ndarray:
    return (logits + random.gumbel(size=logits.shape)).argmax(1)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def _seed(random: Random) -> int:
    return int(random.integers(2**31))

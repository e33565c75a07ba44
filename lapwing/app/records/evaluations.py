"""Evaluations from plain arrays, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lapwing.app.records.schema import Evaluation, Predictions

PICTURES = 8  # kept of the most certain, and as many of the least certain inputs


def classification(
    name: str, targets: Any, probs: Mapping[str, Any], *, scores: Mapping[str, Mapping[str, Any]] | None = None,
    images: Any = None, members: Mapping[str, Any] | None = None,
) -> Evaluation:  # fmt: skip
    """An evaluation of a classifier: class numbers (or None) and the (n, classes) probabilities of every method.

    `scores` has, by method, further scores of each input that are larger where the method is less certain, such as
    "novelty". Of `images`, one per input, the most and the least certain are kept. `members` has the probabilities of
    every network of several by itself.

    >>> from lapwing.app.records import Data, Record
    >>> ours, plain = [[0.8, 0.2], [0.3, 0.7]], [[0.99, 0.01], [0.1, 0.9]]
    >>> test = classification("test", [0, 1], {"lapwing": ours, "MAP": plain}, scores={"lapwing": {"novelty": [0, 1]}})
    >>> record = Record("coins", "classification", (test,), data=Data(classes=("heads", "tails")))
    >>> record.evaluations[0].method("MAP").probs.shape
    (2, 2)
    """
    tables, own = (
        {method: _probabilities(name, method, table) for method, table in given.items()}
        for given in (probs, members or {})
    )
    if not tables:
        raise ValueError(f"{name}: no method has predictions")
    labels = None if targets is None else np.asarray(targets)
    (count, classes), *others = {table.shape for table in (*tables.values(), *own.values())}
    if others or (labels is not None and labels.shape != (count,)):
        shapes = {method: table.shape for method, table in (tables | own).items()}
        raise ValueError(f"{name}: probabilities {shapes} and targets of shape {np.shape(targets)} do not fit")
    if labels is not None and not (np.issubdtype(labels.dtype, np.integer) and _within(labels, classes)):
        raise ValueError(f"{name}: targets must be class numbers from 0 to {classes - 1}")
    further = scores or {}
    found = tuple(
        Predictions(method, probs=table, scores=_scores(name, further.get(method, {}), count))
        for method, table in tables.items()
    )
    rows, shown = _pictures(next(iter(tables.values())).max(1), images)
    return Evaluation(
        name, found, None if labels is None else labels.astype(np.int64), image_rows=rows, images=shown,
        members=tuple(Predictions(method, probs=table) for method, table in own.items()),
    )  # fmt: skip


def regression(
    name: str, targets: Any, predictions: Mapping[str, tuple[Any, Any]], *,
    epistemic_std: Mapping[str, Any] | None = None, scores: Mapping[str, Mapping[str, Any]] | None = None,
    densities: Mapping[str, tuple[Any, Any]] | None = None, intervals: Mapping[str, tuple[Any, Any]] | None = None,
    inputs: Any = None, input_name: str = "", images: Any = None,
    members: Mapping[str, tuple[Any, Any]] | None = None,
) -> Evaluation:  # fmt: skip
    """An evaluation of a regression: targets and, by method, mean and standard deviation of a new observation.

    `inputs` are given where there is one number per input, so that bands can be drawn over it; of several numbers, the
    most relevant one with its `input_name`. Where a method's distribution is not Gaussian, `densities` has its
    cumulative probability and log density at the targets, and `intervals` the ends of its central 90 % intervals.
    `members` has the predictions of every network by itself.

    >>> test = regression("test", [1.0, 2.0], {"lapwing": ([1.1, 1.8], [0.1, 0.3])})
    >>> test.method("lapwing").std.shape
    (2, 1)
    """
    if not predictions:
        raise ValueError(f"{name}: no method has predictions")
    wanted = None if targets is None else _columns(targets)
    parts, further = epistemic_std or {}, scores or {}

    def two(given: Mapping[str, tuple[Any, Any]] | None, method: str) -> tuple[np.ndarray | None, np.ndarray | None]:
        if given is None or method not in given:
            return None, None
        return _columns(given[method][0]), _columns(given[method][1])

    def of(method: str, mean: Any, std: Any) -> Predictions:
        (cdf, log_density), (low, high) = two(densities, method), two(intervals, method)
        return Predictions(
            method, mean=_columns(mean), std=_columns(std), cdf=cdf, log_density=log_density, lower_90=low,
            upper_90=high, epistemic_std=_columns(parts[method]) if method in parts else None,
            scores=_scores(name, further.get(method, {}), len(mean)),
        )  # fmt: skip

    found, own = (tuple(of(method, *ends) for method, ends in given.items()) for given in (predictions, members or {}))
    for one in (*found, *own):
        arrays = (one.mean, one.std, one.epistemic_std, one.cdf, one.log_density, one.lower_90, one.upper_90, wanted)
        shapes = {part.shape for part in arrays if part is not None}
        if len(shapes) > 1:
            raise ValueError(f"{name}, {one.method}: means, deviations and targets have shapes {sorted(shapes)}")
    first = found[0].std
    rows, shown = _pictures(np.zeros(1) if first is None else -first.mean(1), images)
    places = None if inputs is None else np.asarray(inputs, np.float64)
    return Evaluation(name, found, wanted, places, input_name, own, rows, shown)


def _probabilities(name: str, method: str, table: Any) -> np.ndarray:
    found = np.asarray(table, np.float64)
    if found.ndim != 2 or not len(found) or not np.isfinite(found).all():
        raise ValueError(f"{name}, {method}: expected finite probabilities (n, classes), got shape {found.shape}")
    if (found < -1e-9).any() or np.abs(found.sum(1) - 1).max() > 1e-3:
        raise ValueError(f"{name}, {method}: the rows of probabilities must be positive and sum to one")
    return found.astype(np.float32)


def _scores(name: str, scores: Mapping[str, Any], count: int) -> dict[str, np.ndarray]:
    found = {key: np.asarray(values, np.float32) for key, values in scores.items()}
    wrong = {key: values.shape for key, values in found.items() if values.shape != (count,)}
    if wrong:
        raise ValueError(f"{name}: scores of shape {wrong}, expected one number for each of {count} inputs")
    return found


def _columns(values: Any) -> np.ndarray:  # (n, outputs)
    found = np.asarray(values, np.float64)
    return found.reshape(len(found), -1)


def _within(labels: np.ndarray, classes: int) -> bool:
    return bool(len(labels) == 0 or (labels.min() >= 0 and labels.max() < classes))


def _pictures(certainty: np.ndarray, images: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The rows of the most and the least certain inputs and their pictures as bytes."""
    if images is None:
        return None, None
    pixels = np.asarray(images)
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        pixels = pixels[:, 0] if pixels.shape[1] == 1 else pixels.transpose(0, 2, 3, 1)
    if len(pixels) != len(certainty) or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)):
        raise ValueError(
            f"images of shape {pixels.shape}: expected {len(certainty)} of (h, w), (1, h, w), (3, h, w) or (h, w, 3)"
        )
    order = np.argsort(-certainty, kind="stable")
    rows = np.unique(np.concatenate([order[:PICTURES], order[-PICTURES:]]))
    low, high = float(pixels.min()), float(pixels.max())
    bytes_ = (pixels[rows].astype(np.float64) - low) / max(high - low, 1e-12) * 255
    return rows, bytes_.round().astype(np.uint8)

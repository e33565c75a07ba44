"""Do the arrays of a record fit each other? A file may have been edited, or written by something else."""

from __future__ import annotations

import numpy as np

from lapwing.app.records.schema import Curve, Evaluation, Influence, Predictions, Record, Suspects


def check(record: Record) -> Record:
    """The record, or a ValueError that names what does not fit."""
    for place, one in enumerate(record.evaluations):
        _evaluation(f"evaluation {place}", one, record.task)
    if record.curve is not None:
        _curve(record.curve)
    if record.influence is not None:
        _influence(record.influence)
    if record.suspects is not None:
        _suspects(record.suspects)
    return record


def _need(holds: bool, place: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"{place}: expected {expected}")


def _numbers(place: str, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    """An array of real numbers; None stands for any length but zero."""
    pairs = zip(array.shape, shape, strict=False)
    fits = array.ndim == len(shape) and all(size > 0 if want is None else size == want for size, want in pairs)
    _need(fits and array.dtype.kind in "biuf", place, f"numbers of shape {shape}, not {array.dtype} of {array.shape}")


def _evaluation(place: str, one: Evaluation, task: str) -> None:
    _need(len(one.predictions) > 0, place, "at least one method")
    sizes = {len(_main(place, method, task)) for method in one.predictions}
    _need(len(sizes) == 1, place, "as many predictions of every method")
    (count,) = sizes
    for method in (*one.predictions, *one.members):
        _predictions(f"{place}, {method.method[:30]}", method, count, task)
    if one.targets is not None:
        shape = (count,) if task == "classification" else np.shape(_main(place, one.predictions[0], task))
        _numbers(f"{place}, targets", one.targets, shape)
        if task == "classification":
            classes = _main(place, one.predictions[0], task).shape[1]
            whole = one.targets.dtype.kind in "iu" and 0 <= one.targets.min() <= one.targets.max() < classes
            _need(bool(whole), f"{place}, targets", f"class numbers from 0 to {classes - 1}")
    if one.inputs is not None:
        _numbers(f"{place}, inputs", one.inputs, (count,))
    if one.places is not None:
        _numbers(f"{place}, places", one.places, (count,))
    _images(place, one, count)


def _main(place: str, method: Predictions, task: str) -> np.ndarray:
    found = method.probs if task == "classification" else method.mean
    if found is None or found.ndim != 2:
        raise ValueError(
            f"{place}, {method.method[:30]}: expected {'probabilities' if task == 'classification' else 'means'}"
        )
    return found


def _predictions(place: str, method: Predictions, count: int, task: str) -> None:
    main = _main(place, method, task)
    _numbers(place, main, (count, None))
    _need(bool(np.isfinite(main).all()), place, "finite predictions")
    if task == "classification":
        fits = main.min() >= -1e-6 and np.abs(main.sum(1, dtype=float) - 1).max() < 1e-2
        _need(bool(fits), place, "probabilities that sum to one")
    else:
        _need(method.std is not None, place, "standard deviations beside the means")
    for name in ("std", "epistemic_std", "cdf"):
        part = getattr(method, name)
        if part is not None:
            _numbers(f"{place}, {name}", part, main.shape)
            _need(bool((part >= 0).all() and np.isfinite(part).all()), f"{place}, {name}", "none negative, all finite")
    for name in ("log_density", "lower_90", "upper_90"):
        if getattr(method, name) is not None:
            _numbers(f"{place}, {name}", getattr(method, name), main.shape)
    for name, scores in method.scores.items():
        _numbers(f"{place}, {name[:30]}", scores, (count,))
        _need(bool(np.isfinite(scores).all()), f"{place}, {name[:30]}", "finite scores")


def _images(place: str, one: Evaluation, count: int) -> None:
    images, rows, fits = one.images, one.image_rows, False
    if images is None and rows is None:
        return
    if images is not None and rows is not None:
        pictures = images.dtype == np.uint8 and (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3))
        known = rows.ndim == 1 and rows.dtype.kind in "iu" and bool(((rows >= 0) & (rows < count)).all())
        fits = pictures and known and len(images) == len(rows)
    _need(fits, f"{place}, images", "bytes of (k, height, width) or (k, height, width, 3), with the row of each")


def _curve(curve: Curve) -> None:
    _numbers("curve, precision", curve.precision, (None,))
    _need(bool((curve.precision > 0).all()), "curve, precision", "positive numbers")
    for name, part in (("log_evidence", curve.log_evidence), ("held_out", curve.held_out)):
        if part is not None:
            _numbers(f"curve, {name}", part, curve.precision.shape)


def _influence(found: Influence) -> None:
    _numbers("influence, leverage", found.leverage, (None,))
    for name in ("log_density", "targets", "predicted", "places"):
        part = getattr(found, name)
        if part is not None:
            _numbers(f"influence, {name}", part, found.leverage.shape)


def _suspects(found: Suspects) -> None:
    count = found.places.shape[0] if found.places.ndim == 1 else -1
    for name in ("places", "given", "suggested", "probability"):
        _numbers(f"suspects, {name}", getattr(found, name), (count,))
    for name in ("given", "suggested"):
        labels = getattr(found, name)
        whole = labels.dtype.kind in "iu" and bool((labels >= 0).all())
        _need(whole, f"suspects, {name}", "class numbers from 0")

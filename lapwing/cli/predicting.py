"""Predictions of a posterior as arrays, beside what the network alone says, and as a table in a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

import lapwing.records as records
from lapwing.cli import data as reading

if TYPE_CHECKING:
    from lapwing.bayes.posterior import Posterior

BATCH = 256  # inputs predicted at once


@final
@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions as arrays: ours, and the network's own."""

    probs: np.ndarray | None = None  # (n, classes)
    plain: np.ndarray | None = None  # (n, classes), of the network alone
    logits: np.ndarray | None = None  # (n, outputs)
    mean: np.ndarray | None = None  # (n, outputs)
    std: np.ndarray | None = None
    epistemic_std: np.ndarray | None = None
    noise_std: np.ndarray | None = None
    scores: dict[str, np.ndarray] = field(default_factory=dict)


def predict(posterior: Posterior, inputs: Any, task: str, tell: Callable[[float], None] | None = None) -> Predicted:
    """Predict in batches, telling the share done."""
    parts: list[Predicted] = []
    for start in range(0, len(inputs), BATCH):
        parts.append(_batch(posterior, inputs[start : start + BATCH], task))
        if tell is not None:
            tell(min(1.0, (start + BATCH) / len(inputs)))
    names = ("probs", "plain", "logits", "mean", "std", "epistemic_std", "noise_std")
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in names
        if getattr(parts[0], name) is not None
    }
    scores = {key: np.concatenate([part.scores[key] for part in parts]) for key in parts[0].scores}
    return Predicted(**joined, scores=scores)


def _batch(posterior: Posterior, inputs: Any, task: str) -> Predicted:
    found = posterior.predict(inputs)

    def flat(values: Any) -> np.ndarray:
        return np.asarray(values.detach().cpu().double().reshape(len(inputs), -1))

    scores = {"novelty": flat(found.novelty).mean(1)}
    if task == "regression":
        return Predicted(
            mean=flat(found.mean), std=flat(found.std), epistemic_std=flat(found.epistemic_variance.sqrt()),
            noise_std=flat(found.aleatoric_variance.sqrt()), scores=scores,
        )  # fmt: skip
    logits, probs = flat(found.mean), flat(found.probs)
    information = flat(found.mutual_information)
    scores["mutual information"] = information.mean(1)
    return Predicted(probs=_two(probs), plain=softened(logits, 1.0), logits=logits, scores=scores)


def _two(probs: np.ndarray) -> np.ndarray:
    """Probabilities of both classes where only that of the second is known."""
    return np.concatenate([1 - probs, probs], axis=1) if probs.shape[1] == 1 else probs / probs.sum(1, keepdims=True)


def softened(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Class probabilities of logits divided by a temperature: (n, classes)."""
    scaled = logits / temperature
    if scaled.shape[1] == 1:
        scaled = np.concatenate([np.zeros_like(scaled), scaled], axis=1)
    powers = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def evaluation(
    name: str, found: Predicted, targets: np.ndarray | None, loaded: reading.Loaded, temperature: float | None
) -> records.Evaluation:
    """Predictions of ours, of the network alone and of temperature scaling on one set."""
    images = pictures(loaded)
    if found.probs is not None and found.plain is not None and found.logits is not None:
        methods = {records.OURS: found.probs, "MAP": found.plain}
        if temperature is not None:
            methods["temperature scaling"] = softened(found.logits, temperature)
        return records.classification(name, targets, methods, scores={records.OURS: found.scores}, images=images)
    flat = loaded.inputs.reshape(len(loaded.inputs), -1)
    return records.regression(
        name, targets, {records.OURS: (found.mean, found.std), "MAP": (found.mean, found.noise_std)},
        epistemic_std={records.OURS: found.epistemic_std}, scores={records.OURS: found.scores},
        inputs=flat[:, 0] if flat.shape[1] == 1 else None, images=images,
    )  # fmt: skip


def pictures(loaded: reading.Loaded) -> np.ndarray | None:
    """Inputs that can be shown as pictures."""
    shape = loaded.inputs.shape[1:]
    shown = (len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 4) or (len(shape) == 2 and min(shape) >= 4)
    return loaded.inputs if shown else None


def columns(found: Predicted, classes: Sequence[str]) -> dict[str, Any]:
    """A table of predictions with their uncertainty, by column."""
    if found.probs is not None:
        best = found.probs.argmax(1)
        entropy = -(found.probs * np.log(np.maximum(found.probs, 1e-300))).sum(1)
        table: dict[str, Any] = {"prediction": [classes[label] for label in best], "confidence": found.probs.max(1)}
        table |= {"entropy": entropy} | {name.replace(" ", "_"): values for name, values in found.scores.items()}
        return table | {f"prob_{name}": found.probs[:, label] for label, name in enumerate(classes)}
    if found.mean is None or found.std is None or found.epistemic_std is None:
        raise ValueError("a prediction without mean and standard deviation")
    half, table = 1.6448536269514722 * found.std, {}
    parts = {"mean": found.mean, "std": found.std, "epistemic_std": found.epistemic_std}
    parts |= {"lower_90": found.mean - half, "upper_90": found.mean + half}
    for output in range(found.mean.shape[1]):
        suffix = f"_{output}" if found.mean.shape[1] > 1 else ""
        table |= {f"{name}{suffix}": values[:, output] for name, values in parts.items()}
    return table | found.scores


def write(path: Path, table: dict[str, Any]) -> None:
    """Write a table as CSV or, by its ending, as Parquet."""
    if path.suffix in (".parquet", ".pq"):
        try:
            import pandas

            content = io.BytesIO()
            pandas.DataFrame(table).rename_axis("row").to_parquet(content)
        except ImportError:
            raise ValueError(f"{path}: writing Parquet needs pip install 'lapwing[parquet]'") from None
        records.write_atomically(path, content.getvalue())
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *table])
    for row, values in enumerate(zip(*table.values(), strict=True)):
        writer.writerow([row, *(value if isinstance(value, str) else f"{value:.7g}" for value in values)])
    records.write_atomically(path, text.getvalue().encode())

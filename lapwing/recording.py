"""From a posterior to its record: how it was found, what it says on test data beside the network alone, what matters.

test = recording.evaluation("test", posterior, x, y)
report.write("page.html", [recording.record("digits", posterior, [test], inputs=x)])
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np

import lapwing.records as records
from lapwing.bayes.posterior import Posterior

BATCH = 256  # inputs predicted at once
PROBES = 24  # inputs over which layers' shares of the variance are averaged
LAYERS = 40  # more are not told apart


def record(
    name: str, posterior: Posterior, evaluations: Sequence[records.Evaluation] = (), *, inputs: Any = None,
    targets: Any = None, **known: Any,
) -> records.Record:  # fmt: skip
    """The record of a posterior; `known` are further fields of a Record, such as data, network and seconds.

    `inputs` (some are enough) serve to find every layer's share of the variance. With `targets` they are the training
    data, and the record says what the posterior without each of them predicts. What is not given is left out.

    >>> import torch
    >>> from lapwing import Gaussian, fit
    >>> model, x = torch.nn.Linear(2, 1).double().eval(), torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]).double()
    >>> posterior = fit(model, (x, model(x).detach() + 0.1), Gaussian(0.1))
    >>> found = record("line", posterior, [evaluation("test", posterior, x, x[:, :1])], inputs=x)
    >>> found.task, found.solve.method, [layer.name for layer in found.layers]
    ('regression', 'exact, primal', ['weight', 'bias'])
    """
    defaults: dict[str, Any] = {
        "seed": posterior.seed, "solve": solve(posterior), "curve": curve(posterior), "peak_bytes": peak_bytes(),
        "layers": () if inputs is None else layers(posterior, inputs),
        "influence": None if targets is None else influence(posterior, targets),
        "network": records.Network("", posterior.map.weights, posterior.map.weights),
    }  # fmt: skip
    return records.Record(name, task(posterior), tuple(evaluations), **(defaults | known))


def task(posterior: Posterior) -> Literal["classification", "regression"]:
    """What a posterior predicts: classes, or numbers."""
    return "classification" if posterior.likelihood.has_classes else "regression"


def evaluation(
    name: str, posterior: Posterior, inputs: Any, targets: Any = None, *, tell: Callable[[float], None] | None = None
) -> records.Evaluation:
    """Predictions of a posterior, of its network alone and, where held-out data were given, by temperature scaling.

    Without targets the inputs are foreign ones. `tell` hears the share of the inputs that is done.
    """
    wanted = None if targets is None else np.asarray(targets)
    return of_predictions(
        name, predict(posterior, inputs, tell), wanted, np.asarray(inputs.cpu()), temperature(posterior)
    )


def of_predictions(
    name: str, found: Predicted, targets: np.ndarray | None, inputs: np.ndarray, cooled: float | None
) -> records.Evaluation:
    """The evaluation of predictions that are there; pictures are kept where inputs are such."""
    images = inputs if _are_pictures(inputs) else None
    if found.probs is not None and found.plain is not None and found.logits is not None:
        methods = {records.OURS: found.probs, "MAP": found.plain}
        if cooled is not None:
            methods["temperature scaling"] = softened(found.logits, cooled)
        labels = None if targets is None else targets.reshape(-1).astype(np.int64)
        return records.classification(name, labels, methods, scores={records.OURS: found.scores}, images=images)
    flat = inputs.reshape(len(inputs), -1)
    return records.regression(
        name, targets, {records.OURS: (found.mean, found.std), "MAP": (found.mean, found.noise_std)},
        epistemic_std={records.OURS: found.epistemic_std}, scores={records.OURS: found.scores},
        inputs=flat[:, 0] if flat.shape[1] == 1 else None, images=images,
    )  # fmt: skip


def _are_pictures(inputs: np.ndarray) -> bool:
    shape = inputs.shape[1:]
    return (len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 4) or (len(shape) == 2 and min(shape) >= 4)


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


def predict(
    posterior: Posterior, inputs: Any, tell: Callable[[float], None] | None = None, *, processes: int = 1
) -> Predicted:
    """Predict in batches, telling the share done; where several processes do so together, each takes a share."""
    parts: list[Predicted] = []
    size = BATCH * processes
    for start in range(0, len(inputs), size):
        parts.append(_batch(posterior, inputs[start : start + size], processes > 1))
        if tell is not None:
            tell(min(1.0, (start + size) / len(inputs)))
    names = [item.name for item in dataclasses.fields(Predicted) if item.name != "scores"]
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in names
        if getattr(parts[0], name) is not None
    }
    scores = {key: np.concatenate([part.scores[key] for part in parts]) for key in parts[0].scores}
    return Predicted(**joined, scores=scores)


def _batch(posterior: Posterior, inputs: Any, shard: bool) -> Predicted:
    found = posterior.predict(inputs, shard=shard)

    def flat(values: Any) -> np.ndarray:
        return np.asarray(values.detach().cpu().double().reshape(len(inputs), -1))

    scores = {"novelty": flat(found.novelty)[:, 0]}
    if found.likelihood.constant_curvature:
        return Predicted(
            mean=flat(found.mean), std=flat(found.std), epistemic_std=flat(found.epistemic_variance.sqrt()),
            noise_std=flat(found.aleatoric_variance.sqrt()), scores=scores,
        )  # fmt: skip
    if not found.likelihood.has_classes:
        raise ValueError(
            f"a record holds numbers with Gaussian noise or class labels, and this posterior's likelihood is "
            f"{type(found.likelihood).__name__}: use its predictions themselves"
        )
    point, probs = posterior.map.point, flat(found.probs)
    logits = flat(found.mean if point is None else point.outputs_at(inputs))  # those of the network itself
    if not found.likelihood.exclusive_classes and probs.shape[1] > 1:
        raise ValueError(f"a record holds one label per input, and this posterior predicts {probs.shape[1]}")
    scores["mutual information"] = flat(found.mutual_information).mean(1)
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


def temperature(posterior: Posterior) -> float | None:
    """The temperature that scaling on the same held-out data found, where there were any."""
    found = posterior.diagnostics.temperature_scaling
    return None if found is None else float(found["temperature"])


def solve(posterior: Posterior) -> records.Solve:
    """How a posterior was found, from its diagnostics."""
    d, prior, noise = posterior.diagnostics, posterior.prior, getattr(posterior.likelihood, "noise_std", None)
    names = prior.names if len(prior.names) > 1 else ("all weights",)
    return records.Solve(
        method=d.method, why=d.why, tuned_by=d.tuned_by, converged=d.converged, limited_by=d.limited_by or "",
        data_passes=d.data_passes, error_bound=d.error_bound, draws=d.draws,
        residuals=np.asarray(d.residuals or (), float),
        precision={name: float(value) for name, value in zip(names, prior.precision, strict=True)},
        noise_std=() if noise is None else tuple(float(value) for value in noise.reshape(-1)),
        temperature=temperature(posterior), effective_dimension=_measured(posterior.effective_dimension),
        **_evidence(posterior),
    )  # fmt: skip


def _evidence(posterior: Posterior) -> dict[str, Any]:
    """The evidence where precisions were found by it, or where it costs nothing to know."""
    if posterior.held_out_curve is not None and not posterior.gaussian.evidence_is_closed_form:
        return {}
    parts = {name: float(value) for name, value in dataclasses.asdict(posterior.evidence_parts).items()}
    return {
        "log_evidence": _measured(posterior.log_evidence),
        "evidence_parts": {name: value for name, value in parts.items() if value},
    }


def _measured(estimate: Any) -> records.Measured:
    return records.Measured(float(estimate.value), float(estimate.standard_error))


def curve(posterior: Posterior) -> records.Curve | None:
    """Evidence and held-out density over the precision, where the method knows more than one without long work."""
    if posterior.held_out_curve is None and not posterior.gaussian.curve_is_cheap:
        return None
    try:
        found = posterior.curve
    except ValueError:
        return None
    held_out = None if found.held_out is None else np.asarray(found.held_out)
    evidence = np.asarray(found.log_evidence) if bool(found.log_evidence.isfinite().any()) else None
    return records.Curve(np.asarray(found.precision), float(found.best_precision), evidence, held_out)


def layers(posterior: Posterior, inputs: Any) -> tuple[records.Layer, ...]:
    """Each layer's share of the outputs' variance: Var(J_l z_l) of its own weights z_l, over the sum for all layers.

    What layers have in common is left out: near training data they make up for each other.
    """
    features = posterior.map.features_at(inputs[:PROBES])
    layout = getattr(getattr(features, "network", None), "layout", None)
    draws = posterior.gaussian.deviations[:, :16]
    if layout is None or not draws.shape[1]:
        return ()
    groups = layout.layers()
    if len(groups) > LAYERS:
        return ()
    own = []
    for indices in groups.values():
        part = draws.new_zeros(draws.shape)
        part[indices] = draws[indices]
        own.append(float((features @ part.to(features.like)).square().mean()))
    total = sum(own) or 1.0
    return tuple(
        records.Layer(name, len(indices), variance / total)
        for (name, indices), variance in zip(groups.items(), own, strict=True)
    )


def influence(posterior: Posterior, targets: Any) -> records.Influence | None:
    """Leverages and leave-one-out densities of the training data, where the posterior is in closed form.

    Exact for Gaussian noise. For class labels the leverages are exact at the curvature that the posterior uses, and the
    prediction without a datum is one step away from the mean that predictions are drawn around.
    """
    of = posterior.likelihood
    if not (of.has_classes or of.constant_curvature):
        return None  # records know numbers and classes
    labels = of.has_classes
    try:
        found = posterior.leave_one_out(mean=posterior.map.centre if labels else "linear")
    except ValueError:  # not in closed form, or the training data are not there
        return None
    wanted = np.asarray(targets, float).reshape(len(found.leverage), -1)[:, 0]
    mean = np.asarray(found.mean).reshape(len(wanted), -1)
    predicted = mean[:, 0]
    if labels:
        wanted = wanted.astype(np.int64)
        predicted = mean.argmax(1) if mean.shape[1] > 1 else (mean[:, 0] > 0).astype(np.int64)
    return records.Influence(np.asarray(found.leverage), np.asarray(found.log_density), wanted, predicted)


def peak_bytes() -> int | None:
    """The most memory this process has held, where the system tells."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)

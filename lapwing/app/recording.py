"""From a posterior to its record: how it was found, what it says on test data beside the raw network, what matters.

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
import torch

import lapwing.app.records as records
from lapwing.bayes.mixtures import Mixture
from lapwing.bayes.posterior import Posterior
from lapwing.bayes.posterior.description import TUNED
from lapwing.bayes.predictive import Prediction, mixed
from lapwing.decisions.labels import LabelIssues

Fitted = Posterior | Mixture
BATCH = 256  # inputs predicted at once
PROBES = 24  # inputs over which layers' shares of the variance are averaged
LAYERS = 40  # more are not told apart
SUSPECTS = 40  # labels that are kept


def record(
    name: str, posterior: Fitted, evaluations: Sequence[records.Evaluation] = (), *, inputs: Any = None,
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
        "network": records.Network("", weights(posterior), weights(posterior)),
    }  # fmt: skip
    return records.Record(name, task(posterior), tuple(evaluations), **(defaults | known))


def members(posterior: Fitted) -> tuple[Posterior, ...]:
    """The posteriors of a mixture, or the one that there is."""
    return posterior.members if isinstance(posterior, Mixture) else (posterior,)


def weights(posterior: Fitted) -> int:
    """How many weights are uncertain, in all networks."""
    return sum(member.map.weights for member in members(posterior))


def task(posterior: Fitted) -> Literal["classification", "regression"]:
    """What a posterior predicts: classes, or numbers."""
    return "classification" if posterior.likelihood.has_classes else "regression"


def evaluation(
    name: str, posterior: Fitted, inputs: Any, targets: Any = None, *, tell: Callable[[float], None] | None = None
) -> records.Evaluation:
    """Predictions of a posterior, of its raw network and, where held-out data were given, by temperature scaling.

    Without targets the inputs are out-of-distribution ones. `tell` hears the share of the inputs that is done.
    """
    wanted = None if targets is None else np.asarray(targets)
    found = predict(posterior, inputs, tell, targets=wanted)
    return of_predictions(name, found, wanted, np.asarray(inputs.cpu()), temperature(posterior))


def of_predictions(
    name: str, found: Predicted, targets: np.ndarray | None, inputs: np.ndarray, scaling: float | None
) -> records.Evaluation:
    """The evaluation of predictions that are there; pictures are kept where inputs are such."""
    images = inputs if _are_pictures(inputs) else None
    if found.probs is not None and found.plain is not None and found.logits is not None:
        methods = {records.OURS: found.probs, _alone(found): found.plain}
        if scaling is not None:
            methods["temperature scaling"] = averaged(found.logits, scaling)
        labels = None if targets is None else targets.reshape(-1).astype(np.int64)
        own = {f"network {place}": probs for place, (probs,) in enumerate(found.by_network, 1)}
        return records.classification(
            name, labels, methods, scores={records.OURS: found.scores}, images=images, members=own
        )
    flat = inputs.reshape(len(inputs), -1)
    return records.regression(
        name, targets, {records.OURS: (found.mean, found.std), _alone(found): (found.mean, found.noise_std)},
        epistemic_std={records.OURS: found.epistemic_std}, scores={records.OURS: found.scores},
        densities={} if found.cdf is None else {records.OURS: (found.cdf, found.log_density)},
        intervals={} if found.members is None else {records.OURS: (found.lower_90, found.upper_90)},
        inputs=flat[:, 0] if flat.shape[1] == 1 else None, images=images,
        members={f"network {place}": (mean, std) for place, (mean, std) in enumerate(found.by_network, 1)},
    )  # fmt: skip


def _are_pictures(inputs: np.ndarray) -> bool:
    shape = inputs.shape[1:]
    return (len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 4) or (len(shape) == 2 and min(shape) >= 4)


@final
@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions as arrays: ours, and the network's own."""

    probs: np.ndarray | None = None  # (n, classes)
    plain: np.ndarray | None = None  # (n, classes), of the raw network, or of several averaged
    logits: np.ndarray | None = None  # (n, networks, outputs)
    mean: np.ndarray | None = None  # (n, outputs)
    std: np.ndarray | None = None
    epistemic_std: np.ndarray | None = None
    noise_std: np.ndarray | None = None
    lower_90: np.ndarray | None = None  # the central interval of a new observation
    upper_90: np.ndarray | None = None
    cdf: np.ndarray | None = None  # (n, outputs), of the targets, where several networks make it other than Gaussian's
    log_density: np.ndarray | None = None  # (n, outputs)
    scores: dict[str, np.ndarray] = field(default_factory=dict)
    members: np.ndarray | None = None  # (n, networks, parts, outputs): probabilities, or means and standard deviations

    @property
    def by_network(self) -> list[np.ndarray]:  # (parts, n, outputs) each
        """What each of several networks says by itself."""
        return [] if self.members is None else list(self.members.transpose(1, 2, 0, 3))


def _alone(found: Predicted) -> str:
    """What predictions without a posterior are called."""
    return "raw network" if found.members is None else "networks averaged"


def predict(
    posterior: Fitted, inputs: Any, tell: Callable[[float], None] | None = None, *, targets: np.ndarray | None = None,
    processes: int = 1,
) -> Predicted:  # fmt: skip
    """Predict in batches, telling the share done; where several processes do so together, each takes a share."""
    parts: list[Predicted] = []
    size = BATCH * processes
    for start in range(0, len(inputs), size):
        some = slice(start, start + size)
        parts.append(_batch(posterior, inputs[some], None if targets is None else targets[some], processes > 1))
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


def _batch(posterior: Fitted, inputs: Any, targets: np.ndarray | None, shard: bool) -> Predicted:
    each = [member.predict(inputs, shard=shard) for member in members(posterior)]
    found = mixed(each)
    scores = {"novelty": _flat(found.novelty)[:, 0]}
    if len(each) > 1:
        scores["between networks"] = _between(found)
    if found.likelihood.constant_curvature:
        low, high = found.interval(0.9)
        return Predicted(
            mean=_flat(found.mean), std=_flat(found.std), epistemic_std=_flat(found.epistemic_variance.sqrt()),
            noise_std=_flat(found.aleatoric_variance.sqrt()), scores=scores, lower_90=_flat(low), upper_90=_flat(high),
            members=_several([(_flat(one.mean), _flat(one.std)) for one in each]),
            **_densities(found, targets if len(each) > 1 else None),
        )  # fmt: skip
    if not found.likelihood.has_classes:
        raise ValueError(
            f"a record holds numbers with Gaussian noise or class labels, and this posterior's likelihood is "
            f"{type(found.likelihood).__name__}: use its predictions themselves"
        )
    probs = _flat(found.probs)
    logits = np.stack([_flat(_own_outputs(one, inputs)) for one in members(posterior)], 1)
    if not found.likelihood.exclusive_classes and probs.shape[1] > 1:
        raise ValueError(f"a record holds one label per input, and this posterior predicts {probs.shape[1]}")
    scores["mutual information"] = _flat(found.mutual_information).mean(1)
    own = _several([(_two(_flat(one.probs)),) for one in each])
    return Predicted(probs=_two(probs), plain=averaged(logits, 1.0), logits=logits, scores=scores, members=own)


def _flat(values: Any) -> np.ndarray:  # (n, …) as (n, outputs)
    return np.asarray(values.detach().cpu().double().reshape(len(values), -1))


def _several(parts: list[tuple[np.ndarray, ...]]) -> np.ndarray | None:  # (n, networks, parts, outputs)
    """What each network says, where there are several."""
    return np.moveaxis(np.asarray(parts), 2, 0) if len(parts) > 1 else None


def _densities(found: Prediction, targets: np.ndarray | None) -> dict[str, np.ndarray]:
    """The cumulative distribution and the log density at the targets, where they are known."""
    if targets is None:
        return {}
    known = torch.as_tensor(targets).to(found.mean).reshape(found.mean.shape)
    return {"cdf": _flat(found.distribution.cdf(known)), "log_density": _flat(found.log_prob(known))}


def _own_outputs(member: Posterior, inputs: Any) -> Any:
    """Those of the network itself, or of a linear model's mean."""
    point = member.map.point
    return member.predict(inputs).mean if point is None else point.outputs_at(inputs)


def _between(found: Prediction) -> np.ndarray:  # (n,)
    """What members disagree about: in nats for labels, for numbers the root of their variance."""
    if found.likelihood.has_classes:
        return np.asarray(_flat(found.between_information).mean(1))
    return np.asarray(np.sqrt(_flat(found.between_variance).mean(1)))


def _two(probs: np.ndarray) -> np.ndarray:
    """Probabilities of both classes where only that of the second is known."""
    return np.concatenate([1 - probs, probs], axis=1) if probs.shape[1] == 1 else probs / probs.sum(1, keepdims=True)


def averaged(logits: np.ndarray, temperature: float) -> np.ndarray:
    """The mean over networks of class probabilities: (n, classes), of logits (n, networks, outputs)."""
    each = [softened(logits[:, network], temperature) for network in range(logits.shape[1])]
    return np.asarray(np.mean(each, axis=0))


def softened(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Class probabilities of logits divided by a temperature: (n, classes)."""
    scaled = logits / temperature
    if scaled.shape[1] == 1:
        scaled = np.concatenate([np.zeros_like(scaled), scaled], axis=1)
    powers = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def temperature(posterior: Fitted) -> float | None:
    """The temperature that scaling on the same held-out data found, where there were any."""
    found = posterior.diagnostics.temperature_scaling
    return None if found is None else float(found["temperature"])


def solve(posterior: Fitted) -> records.Solve:
    """How a posterior was found, from its diagnostics; what differs between networks is told of each."""
    parts, d = members(posterior), posterior.diagnostics
    several = len(parts) > 1
    dimensions = [part.effective_dimension for part in parts]
    return records.Solve(
        method=d.method, why=f"{len(parts)} networks as one mixture; each: {d.why}" if several else d.why,
        tuned_by=TUNED.get(d.tuned_by, d.tuned_by), converged=all(part.diagnostics.converged for part in parts),
        limited_by=d.limited_by or "", data_passes=d.data_passes, error_bound=d.error_bound,
        draws=len(parts) * d.draws, residuals=np.asarray(d.residuals or (), float),
        precision={
            name: value for place, part in enumerate(parts, 1) for name, value in _precisions(part, several * place)
        },
        noise_std=tuple(value for part in parts for value in _noise(part)), temperature=temperature(posterior),
        effective_dimension=records.Measured(
            float(np.mean([one.value for one in dimensions])),
            float(np.linalg.norm([one.standard_error for one in dimensions])) / len(parts),
        ),
        **({} if isinstance(posterior, Mixture) else _evidence(posterior)),
    )  # fmt: skip


def _precisions(member: Posterior, number: int) -> list[tuple[str, float]]:
    """By the name of the group, and of the network where it has a number."""
    names = member.prior.names if len(member.prior.names) > 1 else ("all weights",)
    which = f"network {number}, " if number else ""
    return [(f"{which}{name}", float(value)) for name, value in zip(names, member.prior.precision, strict=True)]


def _noise(member: Posterior) -> list[float]:
    noise = getattr(member.likelihood, "noise_std", None)
    return [] if noise is None else [float(value) for value in noise.reshape(-1)]


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


def curve(posterior: Fitted) -> records.Curve | None:
    """Evidence and held-out density over the precision, where the method knows more than one without long work."""
    if isinstance(posterior, Mixture):
        return curve(posterior.members[0]) if len(posterior) == 1 else None
    if posterior.held_out_curve is None and not posterior.gaussian.curve_is_cheap:
        return None
    try:
        found = posterior.curve
    except ValueError:
        return None
    held_out = None if found.held_out is None else np.asarray(found.held_out)
    evidence = np.asarray(found.log_evidence) if bool(found.log_evidence.isfinite().any()) else None
    return records.Curve(np.asarray(found.precision), float(found.best_precision), evidence, held_out)


def layers(posterior: Fitted, inputs: Any) -> tuple[records.Layer, ...]:
    """Each layer's share of the outputs' variance: Var(J_l z_l) of its own weights z_l, over the sum for all layers.

    What layers have in common is left out: near training data they make up for each other. Of several networks of one
    architecture it is the mean share.
    """
    each = [_layers(member, inputs) for member in members(posterior)]
    if len({tuple((layer.name, layer.weights) for layer in found) for found in each}) > 1:
        return ()
    return tuple(
        dataclasses.replace(own[0], share=sum(layer.share for layer in own) / len(own))
        for own in zip(*each, strict=True)
    )


def _layers(posterior: Posterior, inputs: Any) -> tuple[records.Layer, ...]:
    features = posterior.map.features_at(inputs[:PROBES])
    network: Any = getattr(features, "network", None)
    layout = getattr(network, "layout", None)
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
        records.Layer(_with_type(network.model, name), len(indices), variance / total)
        for (name, indices), variance in zip(groups.items(), own, strict=True)
    )


def _with_type(model: Any, name: str) -> str:
    """The name of a layer, with what it is where the network has a module of that name."""
    found = dict(model.named_modules()).get(name)
    return name if found is None else f"{name} ({type(found).__name__})"


def influence(posterior: Fitted, targets: Any) -> records.Influence | None:
    """Leverages and leave-one-out densities of the training data, where the posterior is in closed form.

    Exact for Gaussian noise. For class labels the leverages are exact at the curvature that the posterior uses, and the
    prediction without a datum is one step away from the mean that predictions are drawn around.
    """
    of = posterior.likelihood
    if not (of.has_classes or of.constant_curvature):
        return None  # records know numbers and classes
    labels = of.has_classes
    try:
        found = posterior.leave_one_out(mean=members(posterior)[0].map.centre if labels else "linear")
    except ValueError:  # not in closed form, or the training data are not there
        return None
    wanted = np.asarray(targets, float).reshape(len(found.leverage), -1)[:, 0]
    mean = np.asarray(found.mean).reshape(len(wanted), -1)
    predicted = mean[:, 0]
    if labels:
        wanted = wanted.astype(np.int64)
        predicted = mean.argmax(1) if mean.shape[1] > 1 else (mean[:, 0] > 0).astype(np.int64)
    return records.Influence(np.asarray(found.leverage), np.asarray(found.log_density), wanted, predicted)


def suspects(found: LabelIssues, places: np.ndarray | None = None) -> records.Suspects | None:
    """Training labels that look wrong, for a record; `places` are those of the examples in their source."""
    first = found.ranked(SUSPECTS)
    if not len(first):
        return None
    rows = first.numpy()
    estimate = found.wrong_labels
    return records.Suspects(
        rows if places is None else places[rows], found.labels[first].numpy(),
        found.probabilities[first].argmax(1).numpy(), found.given_probability[first].numpy(), len(found.labels),
        records.Measured(float(estimate.value), float(estimate.standard_error)),
    )  # fmt: skip


def peak_bytes() -> int | None:
    """The most memory this process has held, where the system tells."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)

"""The record of a run: what was chosen and why, how it was solved, what it says on test data."""

from __future__ import annotations

import dataclasses
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lapwing.records as records
from lapwing.cli import folders
from lapwing.cli.fitting import Clock, Fitted, Request
from lapwing.cli.predicting import evaluation, predict
from lapwing.cli.targets import numbers

if TYPE_CHECKING:
    from lapwing.bayes.posterior import Posterior

PROBES = 24  # inputs over which layers' shares of the variance are averaged
LAYERS = 40  # more are not told apart


def record(fitted: Fitted, request: Request, clock: Clock) -> records.Record:
    """Everything that is known of a run; its first evaluation is on test data, or else on the validation data."""
    posterior, found = fitted.posterior, fitted.guess
    evaluations = []
    sets: dict[str, Any] = {name: fitted.sets[name] for name in ("test", "ood") if name in fitted.sets}
    if "test" not in sets and "validation" in fitted.sets:
        sets = {"validation data, used for tuning too": fitted.sets["validation"], **sets}
    for name, loaded in sets.items():
        with clock.phase("predicting") as tell:
            inputs, _ = fitted.tensors(dataclasses.replace(loaded, targets=None))
            targets = None if name == "ood" else numbers(loaded, found)
            predicted = predict(posterior, inputs, found.task, tell)
            title = Path(loaded.source).name if name == "ood" else name
            evaluations.append(evaluation(title, predicted, targets, loaded, temperature(posterior)))
    with clock.phase("explaining"):
        probes = fitted.tensors(dataclasses.replace(fitted.train, targets=None))[0]
        shares, matters = layers(posterior, probes), influence(fitted)
        curve = curve_of(posterior)
    return records.Record(
        request.name or Path(request.data).stem, found.task, tuple(evaluations), command=request.command,
        seed=request.seed, device=request.device, data=_data(fitted), network=_network(fitted, request),
        choices=_choices(fitted, request), solve=solve(posterior), curve=curve, layers=shares, influence=matters,
        seconds=dict(clock.seconds), peak_bytes=peak_bytes(),
    )  # fmt: skip


def temperature(posterior: Posterior) -> float | None:
    """The temperature that scaling on the same held-out data found, where there were any."""
    found = posterior.diagnostics.get("temperature_scaling")
    return float(found["temperature"]) if isinstance(found, dict) and "temperature" in found else None


def _data(fitted: Fitted) -> records.Data:
    train, sizes = fitted.train, {"train": len(fitted.train.inputs)}
    sizes |= {name: len(loaded.inputs) for name, loaded in fitted.sets.items()}
    shape = " × ".join(map(str, train.inputs.shape[1:])) or "1"
    mark = records.fingerprint(train.inputs, *([] if train.targets is None else [train.targets]))
    return records.Data(train.source, mark, sizes, f"{shape} numbers", train.target, classes=fitted.guess.classes)


def _network(fitted: Fitted, request: Request) -> records.Network:
    state = fitted.model.state_dict()
    mark = records.fingerprint(*(value.detach().cpu().numpy() for value in state.values()))
    total = sum(weight.numel() for weight in fitted.model.parameters())
    return records.Network(request.model, total, len(fitted.posterior.mean), mark)


def _choices(fitted: Fitted, request: Request) -> tuple[records.Choice, ...]:
    posterior, found, d = fitted.posterior, fitted.guess, fitted.posterior.diagnostics
    held_out = len(fitted.sets["validation"].inputs) if "validation" in fitted.sets else 0
    how = str(d.get("tuned_by", ""))
    why = f"best on {held_out:,} held-out points" if held_out else "no validation data were given"
    choices = [
        records.Choice("likelihood", found.likelihood, found.why),
        records.Choice("prior", "g-prior, one precision", "the default: it does not depend on the scale of a layer"),
        records.Choice("precision", f"by {how}", why),
        records.Choice("method", str(d.get("method", "")), str(d.get("why", ""))),
    ]
    if fitted.train.columns:
        asked = "as asked" if request.target else "the last column"
        choices.insert(1, records.Choice("target", f"column {fitted.train.target!r}", asked))
    if found.task == "classification":
        choices.append(records.Choice("link", str(posterior.link), "the one that the precision was tuned with"))
    elif request.noise_std is None:
        choices.append(records.Choice("noise", "tuned with the precision", "none was given"))
    return tuple(choices)


def solve(posterior: Posterior) -> records.Solve:
    """How a posterior was found, from its diagnostics."""
    d, prior, noise = posterior.diagnostics, posterior.prior, getattr(posterior.likelihood, "noise_std", None)
    names = prior.names if len(prior.names) > 1 else ("all weights",)
    bound, evidence = d.get("error_bound"), posterior.log_evidence
    parts = {name: float(value) for name, value in dataclasses.asdict(posterior.evidence_parts).items()}
    return records.Solve(
        method=str(d.get("method", "")), why=str(d.get("why", "")), tuned_by=str(d.get("tuned_by", "")),
        converged=bool(d.get("converged", True)), limited_by=str(d.get("limited_by") or ""),
        data_passes=d.get("data_passes"), error_bound=None if bound is None else float(bound),
        draws=posterior.deviations.shape[1], residuals=np.asarray(d.get("residuals", []), float),
        precision={name: float(value) for name, value in zip(names, prior.precision, strict=True)},
        noise_std=() if noise is None else tuple(float(value) for value in noise.reshape(-1)),
        temperature=temperature(posterior), log_evidence=_measured(evidence),
        evidence_parts={name: value for name, value in parts.items() if value},
        effective_dimension=_measured(posterior.effective_dimension),
    )  # fmt: skip


def _measured(estimate: Any) -> records.Measured:
    return records.Measured(float(estimate.value), float(estimate.standard_error))


def curve_of(posterior: Posterior) -> records.Curve | None:
    """Evidence and held-out density over the precision, where the method knows more than one."""
    try:
        found = posterior.curve
    except ValueError:
        return None
    held_out = None if found.held_out is None else np.asarray(found.held_out)
    evidence = None if found.log_evidence is None else np.asarray(found.log_evidence)
    return records.Curve(np.asarray(found.precision), float(found.best_precision), evidence, held_out)


def layers(posterior: Posterior, inputs: Any) -> tuple[records.Layer, ...]:
    """Each layer's share of the outputs' variance: the covariance of its part J_l z_l with the whole, over Var(J z).

    Shares sum to one; a negative one says that a layer's weights make up for another's.
    """
    features = posterior.features_at(inputs[:PROBES])
    layout = getattr(getattr(features, "network", None), "layout", None)
    draws = posterior.deviations[:, :16]
    if layout is None or not draws.shape[1]:
        return ()
    groups = layout.layers()
    if len(groups) > LAYERS:
        return ()
    whole = features @ draws.to(features.like)
    total = float(whole.square().mean())
    found = []
    for name, indices in groups.items():
        part = draws.new_zeros(draws.shape)
        part[indices] = draws[indices]
        share = float(((features @ part.to(features.like)) * whole).mean()) / total if total else 0.0
        found.append(records.Layer(name, len(indices), share))
    return tuple(found)


def influence(fitted: Fitted) -> records.Influence | None:
    """Leverages and leave-one-out densities, where the posterior can tell."""
    try:
        found = fitted.posterior.leave_one_out()
    except ValueError:  # not in closed form, or not for this likelihood
        return None
    targets = np.asarray(numbers(fitted.train, fitted.guess), float).reshape(len(found.leverage), -1)
    residual = np.asarray(found.residual).reshape(targets.shape)
    return records.Influence(
        np.asarray(found.leverage), np.asarray(found.log_density), targets[:, 0], (targets - residual)[:, 0]
    )


def peak_bytes() -> int:
    """The most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def save(fitted: Fitted, record: records.Record, request: Request, folder: Path) -> None:
    """Write everything a later command needs; the record last, so that a folder with one is whole."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().clone().contiguous() for name, value in fitted.model.state_dict().items()}
    save_file(state, folder / "weights.safetensors")
    fitted.posterior.save(folder / "posterior.safetensors")
    place, _, name = request.model.rpartition(":")
    spec = f"{Path(place).resolve()}:{name}" if place.endswith(".py") else request.model
    folders.save(
        folders.Settings(
            spec, fitted.guess.task, fitted.guess.classes, fitted.train.columns, fitted.train.target,
            tuple(fitted.train.inputs.shape[1:]), record.name,
        ),
        folder,
    )  # fmt: skip
    records.save(record, folder)

"""The record of a run and its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import lapwing.app.recording as recording
import lapwing.app.records as records
from lapwing.app.cli import folders
from lapwing.app.cli.data import Loaded
from lapwing.app.cli.fitting import Clock, FittedRun, Request, selected
from lapwing.app.cli.jobs import Job
from lapwing.app.cli.targets import numbers
from lapwing.bayes.posterior.description import TUNED


def record(fitted: FittedRun, request: Request, clock: Clock) -> tuple[records.Record, recording.Predicted]:
    """Everything that is known of a run, and its predictions of test data, or else of validation or training data."""
    posterior, found, evaluations, predictions = fitted.posterior, fitted.guess, [], []
    sets: dict[str, Any] = {name: fitted.sets[name] for name in ("test", "ood") if name in fitted.sets}
    if "test" not in sets and "validation" in fitted.sets:
        sets = {"validation data, used for tuning too": fitted.sets["validation"], **sets}
    for name, loaded in sets.items():
        with clock.phase("predicting") as tell:
            inputs, _ = fitted.tensors(dataclasses.replace(loaded, targets=None))
            targets = None if name == "ood" else numbers(loaded, found)
            title = Path(loaded.source).name if name == "ood" else name
            predictions.append(recording.predict(posterior, inputs, tell, targets=targets, processes=Job.here().size))
            scaling = recording.temperature(posterior)
            judged = recording.of_predictions(title, predictions[-1], targets, loaded.inputs, scaling)
            evaluations.append(dataclasses.replace(judged, places=loaded.places))
    with clock.phase("explaining"):
        probes, _ = fitted.tensors(dataclasses.replace(fitted.train, targets=None))
        whole = recording.record(
            request.name or Path(request.data).stem, posterior, evaluations, inputs=probes,
            targets=numbers(fitted.train, found), command=request.command, device=request.device, data=_data(fitted),
            network=_network(fitted, request), choices=_choices(fitted, request),
        )  # fmt: skip
    whole = dataclasses.replace(whole, suspects=_suspects(fitted, request, clock))
    if not predictions:
        with clock.phase("predicting") as tell:
            predictions.append(recording.predict(posterior, probes, tell, processes=Job.here().size))
    influence = whole.influence
    if influence is not None:
        influence = dataclasses.replace(influence, places=fitted.train.places)
    return dataclasses.replace(whole, seconds=dict(clock.seconds), influence=influence), predictions[0]


def _suspects(fitted: FittedRun, request: Request, clock: Clock) -> records.Suspects | None:
    """Training labels that look wrong to the first network, where there is one label for each example."""
    if fitted.guess.likelihood != "categorical" or Job.here().size > 1:
        return None
    from lapwing.bayes.likelihoods import Categorical
    from lapwing.decisions.labels import label_issues

    model, training = fitted.models[0], fitted.tensors(fitted.train)
    select = selected(request.select, model, training[0][:2])
    with clock.phase("checking labels"):
        found = label_issues(model, training, Categorical(), select=select, progress=False)
    return recording.suspects(found, fitted.train.places)


def shown(fitted: FittedRun) -> Loaded:
    """The data whose predictions a run writes."""
    return next((fitted.sets[name] for name in ("test", "validation", "ood") if name in fitted.sets), fitted.train)


def _data(fitted: FittedRun) -> records.Data:
    train, sizes = fitted.train, {"train": len(fitted.train.inputs)}
    sizes |= {name: len(loaded.inputs) for name, loaded in fitted.sets.items()}
    shape = " × ".join(map(str, train.inputs.shape[1:])) or "1"
    mark = records.fingerprint(train.inputs, *([] if train.targets is None else [train.targets]))
    return records.Data(train.source, mark, sizes, f"{shape} numbers", train.target, classes=fitted.guess.classes)


def _network(fitted: FittedRun, request: Request) -> records.Network:
    states = [model.state_dict() for model in fitted.models]
    mark = records.fingerprint(*(value.detach().cpu().numpy() for state in states for value in state.values()))
    total = sum(weight.numel() for model in fitted.models for weight in model.parameters())
    return records.Network(request.model, total, recording.weights(fitted.posterior), mark)


def _choices(fitted: FittedRun, request: Request) -> tuple[records.Choice, ...]:
    posterior, found, d = fitted.posterior, fitted.guess, fitted.posterior.diagnostics
    held_out = len(fitted.sets["validation"].inputs) if "validation" in fitted.sets else 0
    how = TUNED.get(d.tuned_by, d.tuned_by)
    why = f"the best on {held_out:,} validation points" if held_out else "no validation data were given"
    choices = [
        records.Choice("likelihood", found.likelihood, found.why),
        _prior(request),
        records.Choice("precision", how, why),
        records.Choice("method", d.method, d.why),
    ]
    if len(request.weights) > 1:
        choices.append(records.Choice("networks", f"{len(request.weights)}, as one mixture", "as many --weights"))
    if not request.weights:
        choices.append(records.Choice("weights", f"as {request.model} made them", "no --weights were given"))
    if request.select is not None:
        choices.append(records.Choice("part of the weights", request.select, "as asked"))
    if d.ranks > 1:
        choices.append(records.Choice("processes", str(d.ranks), "each with a share of the data, by torchrun"))
    if fitted.train.columns:
        asked = "as asked" if request.target else "the last column"
        choices.insert(1, records.Choice("target", f"column {fitted.train.target!r}", asked))
    if fitted.train.read_as:
        choices.insert(0, records.Choice("table", fitted.train.read_as, "guessed from its first line and its numbers"))
    if found.task == "classification":
        choices.append(records.Choice("link", str(posterior.link), "the one that the precision was tuned with"))
    elif request.noise_std is None:
        choices.append(records.Choice("noise", "tuned with the precision", "none was given"))
    return tuple(choices)


def _prior(request: Request) -> records.Choice:
    if request.prior is None:
        why = "the default: it does not depend on the scale of a layer"
        return records.Choice("prior", "g-prior, one precision", why)
    names = {
        "g": "g-prior, one precision", "isotropic": "isotropic, one precision", "layer": "a precision for each layer",
        "normalised": "a precision for each normalised group",
    }  # fmt: skip
    return records.Choice("prior", names[request.prior], "as asked")


def save(fitted: FittedRun, record: records.Record, request: Request, folder: Path) -> None:
    """Write everything a later command needs; the record last, so that a folder with one is whole."""
    from safetensors.torch import save as serialise

    for path, model in zip(folders.weights(folder, len(fitted.models)), fitted.models, strict=True):
        state = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
        records.write_atomically(path, serialise(state))
    fitted.posterior.save(folder / "posterior.safetensors")
    place, _, name = request.model.rpartition(":")
    spec = f"{Path(place).resolve()}:{name}" if place.endswith(".py") else request.model
    folders.save(
        folders.RunSettings(
            spec, fitted.guess.task, fitted.guess.classes, fitted.train.columns, fitted.train.target,
            tuple(fitted.train.inputs.shape[1:]), record.name,
        ),
        folder,
    )  # fmt: skip
    records.save(record, folder)

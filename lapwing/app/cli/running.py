"""A run from its folder: what was fitted, ready to predict and to be judged on new data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import lapwing.app.records as records
from lapwing.app.cli import data as reading
from lapwing.app.cli import folders, models
from lapwing.app.cli.fitting import tensors
from lapwing.app.cli.targets import Guess, numbers

if TYPE_CHECKING:
    from torch import nn

    from lapwing.bayes.mixtures import Mixture
    from lapwing.bayes.posterior import Posterior


@final
@dataclass(frozen=True, eq=False)
class SavedRun:
    """A fitted network with its settings."""

    folder: Path
    settings: folders.RunSettings
    model: nn.Module  # the first, where there are several
    posterior: Posterior | Mixture

    @staticmethod
    def load(folder: Path, model: str | None, device: str) -> SavedRun:
        """Read a run; code is run only where this account made the run, or the user names it."""
        from lapwing.bayes.mixtures.files import size
        from lapwing.bayes.posterior.files import read
        from lapwing.network.files import load

        settings, ours = folders.load(folder)
        if model is None and not ours:
            raise ValueError(
                f"{folder} was not made by this account, so its network's code is not run unasked: "
                f"if you trust it, add --model {settings.model}"
            )
        saved = folder / "posterior.safetensors"
        files = folders.weights(folder, size(read(saved)) or 1)
        networks = [models.network(model or settings.model, str(weights), device) for weights in files]
        found = load(saved, networks if len(networks) > 1 else networks[0])
        return SavedRun(folder, settings, networks[0], found)

    def read(self, source: str, needs_target: bool) -> reading.Loaded:
        """Data in the form of the training data."""
        s = self.settings
        loaded = reading.read(source, reading.NamedColumns(s.target or None, s.columns or None, needs_target))
        if loaded.inputs.shape[1:] != s.shape:
            raise ValueError(
                f"{source}: inputs of shape {loaded.inputs.shape[1:]}, the network was fitted with {s.shape}"
            )
        return loaded

    @property
    def guess(self) -> Guess:
        """What the targets are, as it was decided at the fit."""
        kind = self.settings.task
        if kind == "regression":
            return Guess("regression", "gaussian", "as at the fit")
        binary = type(self.posterior.likelihood).__name__ == "Bernoulli"
        return Guess("classification", "bernoulli" if binary else "categorical", "as at the fit", self.settings.classes)

    def tensors(self, loaded: reading.Loaded, with_targets: bool = True) -> tuple[Any, Any]:
        """Inputs, and targets where they are wanted."""
        chosen = loaded if with_targets else dataclasses.replace(loaded, targets=None)
        return tensors(self.model, chosen, self.guess)


def evaluated(run: SavedRun, data: str, ood: str | None, tell: Callable[[float], None]) -> records.Record:
    """The run's record with its evaluations replaced by those on new data, scored and saved."""
    import lapwing.app.recording as recording
    import lapwing.app.report as report

    before = records.load(run.folder)
    sources = {Path(data).name: (run.read(data, needs_target=True), True)}
    if ood is not None:
        sources[f"{Path(ood).name} (out of distribution)"] = (run.read(ood, needs_target=False), False)
    found = []
    for name, (loaded, judged) in sources.items():
        targets = numbers(loaded, run.guess) if judged else None
        inputs, _ = run.tensors(loaded, with_targets=False)
        found.append(recording.evaluation(name, run.posterior, inputs, targets, tell=tell))
    sizes = {**before.data.sizes, "test": len(found[0].predictions[0].scores["novelty"])}
    renewed = dataclasses.replace(before, evaluations=tuple(found), data=dataclasses.replace(before.data, sizes=sizes))
    record = report.scored(renewed)
    records.save(record, run.folder)
    return record

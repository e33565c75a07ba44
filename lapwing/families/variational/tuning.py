"""A sweep over τ on held-out data, for several networks, in several processes, resumable."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from lapwing.bayes.likelihoods import Likelihood
from lapwing.families.variational.fitting import TAUS, fit
from lapwing.families.variational.scores import held_out
from lapwing.families.variational.temperature import Balanced, Units
from lapwing.runtime.processes import fresh_processes
from lapwing.runtime.progress import Report, reporter
from lapwing.training import Diverged

Cell = dict[str, Any]


TOLD = ("units", "data", "random_weights", "divergence", "divergence_per_unit")  # diagnostics that a cell keeps


@final
@dataclass(frozen=True)
class Sweep:
    """One cell per network and τ: what was used, and how it did on held-out data, or why it failed.

    Parameters
    ----------
    cells : tuple of dict
        What was used and found, for each network and τ.

    Examples
    --------
    >>> Sweep(({"network": "a", "tau": 0.1, "nll": 0.4}, {"network": "a", "tau": 1.0, "nll": 0.3})).best()
    1.0
    """

    cells: tuple[Cell, ...]

    def best(self, network: str | None = None) -> float:
        """The τ with the lowest held-out NLL of the averaged predictive, for one network where there are several.

        Parameters
        ----------
        network : str, optional
            Its name, where there are several.

        Returns
        -------
        float
            That τ.

        Raises
        ------
        ValueError
            If there are several networks and none was chosen, or no fit ended well.
        """
        names = {cell["network"] for cell in self.cells}
        if network is None and len(names) > 1:
            raise ValueError(f"several networks were tried: choose one of {sorted(names)}")
        found = [cell for cell in self.cells if network in (None, cell["network"]) and cell.get("nll") is not None]
        if not found:
            raise ValueError(f"no fit of {network or 'this network'} ended well: {list(self.cells[:2])}")
        return float(min(found, key=lambda cell: cell["nll"])["tau"])


def tune_temperature(
    models: nn.Module | Mapping[str, nn.Module], data: Any, likelihood: Likelihood, *, validation: Any, epochs: int,
    taus: tuple[float, ...] = TAUS, units: Units = None, processes: int = 1, results: str | Path | None = None,
    draws: int = 50, progress: bool | Report | None = None, **options: Any,
) -> Sweep:  # fmt: skip
    """Fits of every network at every τ, scored on held-out data.

    `results` is a file of JSON lines, written cell by cell: a later call keeps what it holds, as long as the settings
    agree. Other `options` are those of `fit`. With several `processes` each has one thread, and what is passed must be
    picklable. A fit that diverges is a cell with its reason, and the rest goes on.

    Parameters
    ----------
    models : nn.Module or mapping of nn.Module
        One network, or several by name.
    data : (inputs, targets), Dataset, DataLoader or list of batches
        Training data: inputs and targets.
    likelihood : Likelihood
        Of the targets, such as `lapwing.Categorical()`.
    validation : (inputs, targets), Dataset, DataLoader or list of batches
        Data that scores are taken on.
    epochs : int
        Passes over the data.
    taus : tuple of float
        Those that are tried.
    units : "hidden", "weights", int or None
        N of η = τ p / N.
    processes : int
        Fits at the same time.
    results : path, optional
        File of JSON lines, kept and gone on from.
    draws : int
        Posterior draws.
    progress : bool or callable, optional
        Whether to show progress, or a function that is called with each line of it. By default only on a terminal.
    options : keyword arguments
        As `fit` takes them.

    Returns
    -------
    Sweep
        One cell for each network and τ.

    Raises
    ------
    ValueError
        If there are no networks, no τ or no processes.

    Examples
    --------
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> from lapwing.bayes.likelihoods import Gaussian
    >>> network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> sweep = tune_temperature(network, (x, 2 * x), Gaussian(0.1), validation=(x, 2 * x), epochs=2, taus=(0.01, 1.0))
    >>> [cell["eta"] for cell in sweep.cells]
    [0.05, 5.0]
    """
    for tau in taus:
        Balanced(tau, units)  # refuses a bad one before any work is done
    named = {"network": models} if isinstance(models, nn.Module) else dict(models)
    if not taus or not named or processes < 1:
        raise ValueError(f"{len(named)} networks, {len(taus)} taus and {processes} processes: expected some of each")
    path, report = None if results is None else Path(results), reporter(progress)
    settings = {
        "epochs": epochs,
        "draws": draws,
        "units": units,
        **{name: _described(options[name]) for name in sorted(options)},
    }
    keys = [(name, tau) for name in named for tau in taus]
    done = {key: cell for key, cell in _read(path, settings).items() if key in keys}
    left = [key for key in keys if key not in done]
    given = {"epochs": epochs, "draws": draws, **options}
    shared = _SweepTask(named, data, likelihood, validation, settings, given, units)
    started = time.perf_counter()
    for count, cell in enumerate(_cells(left, shared, processes), start=1):
        done[cell["network"], cell["tau"]] = cell
        _write(path, [done[key] for key in keys if key in done])
        remaining = (time.perf_counter() - started) / count * (len(left) - count)
        report(f"{len(done)} of {len(keys)} fits, {cell['network']} τ = {cell['tau']:g}, {remaining:.0f} s left")
    report("")
    return Sweep(tuple(done[key] for key in keys))


def _described(option: Any) -> str:
    """An option as words that are the same in the next process: those of a function would have its address in them."""
    name = getattr(option, "__qualname__", None)
    return repr(option) if name is None else f"{option.__module__}.{name}"


@final
@dataclass(frozen=True, eq=False)
class _SweepTask:
    """What all cells of a sweep share."""

    models: dict[str, nn.Module]
    data: Any
    likelihood: Likelihood
    validation: Any
    settings: dict[str, Any]  # as they are written
    options: dict[str, Any]  # of every fit
    units: Units

    def cell(self, name: str, tau: float) -> Cell:
        """The fit of one network at one temperature, scored."""
        started, cell = time.perf_counter(), {"network": name, "tau": tau, "settings": self.settings}
        heat = Balanced(tau, self.units)
        try:
            found = fit(self.models[name], self.data, self.likelihood, temperature=heat, progress=False, **self.options)
        except Diverged as error:
            return {**cell, "failed": str(error)}
        return {
            **cell, "eta": found.heat.eta, **{key: found.diagnostics[key] for key in TOLD},
            **held_out(found, self.validation), "loss": found.curve[-1].loss,
            "seconds": round(time.perf_counter() - started, 3),
        }  # fmt: skip


def _cells(keys: list[tuple[str, float]], shared: _SweepTask, processes: int) -> Iterator[Cell]:
    """Cells as they are finished, here or in other processes."""
    if processes == 1:
        for name, tau in keys:
            yield shared.cell(name, tau)
        return
    with ProcessPoolExecutor(processes, fresh_processes(__name__), _share, (shared,)) as pool:
        for future in as_completed([pool.submit(_shared_cell, *key) for key in keys]):
            yield future.result()


_given: _SweepTask  # what every cell of a worker process needs, sent to it once


def _share(shared: _SweepTask) -> None:
    global _given
    _given = shared
    torch.set_num_threads(1)


def _shared_cell(name: str, tau: float) -> Cell:
    return _given.cell(name, tau)


def _read(path: Path | None, settings: dict[str, Any]) -> dict[tuple[str, float], Cell]:
    """Finished cells; a line cut short by a kill is left out, and other settings are refused."""
    found: dict[tuple[str, float], Cell] = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else []:
        try:
            cell = json.loads(line)
        except json.JSONDecodeError:
            continue
        if cell["settings"] != settings:
            raise ValueError(
                f"{path} holds fits with other settings, {cell['settings']}, here {settings}: use another file or "
                "delete it"
            )
        found[cell["network"], cell["tau"]] = cell
    return found


def _write(path: Path | None, cells: list[Cell]) -> None:
    """Replace the file in one step; JSON has no infinity, so a number that is none is written as null."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text("".join(json.dumps({k: _plain(v) for k, v in cell.items()}) + "\n" for cell in cells))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""infer: from a linear model to a posterior, with what is not given tuned."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from lapwing.bayes.evidence import ByEvidence, OnHeldOut, Tuning
from lapwing.bayes.fits import Curvature, interpolation
from lapwing.bayes.linear_model import LinearModel, network_residual_rms
from lapwing.bayes.long_runs import Shard, journal_of, shared
from lapwing.bayes.methods.choosing import check_fits, choose, preflight
from lapwing.bayes.methods.interface import Method, Run
from lapwing.bayes.noise import Noise
from lapwing.bayes.posterior import DataLedger, FeatureMap, Posterior
from lapwing.bayes.posterior.held_out import no_wider_than_training_allows, tuned_until_known
from lapwing.bayes.priors import Alternatives, GPrior, Isotropic, Prior, resolve
from lapwing.runtime.memory import within
from lapwing.runtime.progress import Report, reporter


def infer(
    model: LinearModel, *, prior: Prior | None = None, method: Method | None = None, validation: Any = None,
    draws: int = 32, seed: int = 0, progress: bool | Report | None = None, shard: Shard = None,
    checkpoint: Path | str | None = None, max_memory: float | str | None = None, tuning: Tuning | None = None,
    curvature: Curvature | None = None,
) -> Posterior:  # fmt: skip
    """The posterior of a linear model, its free precisions at the maximum of the marginal likelihood.

    Parameters
    ----------
    model : LinearModel
        Features, targets and a likelihood.
    prior : Prior, optional
        Prior on the weights, such as `Isotropic()`. The g-prior by default. A precision that is not given is tuned.
    method : Method, optional
        How the posterior is found, such as `Exact()` or `KFAC()`. Chosen by size and free memory by default.
    validation : (inputs, targets), optional
        Data that were not trained on. The precision, and a noise that was not given, is the one with the best held-out
        density; mode and evidence are then worked out only when they are asked for.
    draws : int
        Draws of the weights to keep, for `functions` and `samples`.
    seed : int
        Of the draws.
    progress : bool or callable, optional
        Whether to show progress. By default only on a terminal.
    shard : bool or "draws", optional
        In a job of several processes (torchrun) each works on a share of the data, or of the draws with "draws".
        False: this process does all the work itself.
    checkpoint : path, optional
        Folder in which a Krylov space is kept, step by step: the same call after a crash goes on where it was.
    max_memory : float or str, optional
        Bytes, or a size such as "8GB", that this call may take. What is free by default.
    tuning : Tuning, optional
        How precisions are looked for, by default `ByEvidence()`.
    curvature : "expected", "mode" or "network", optional
        Where the curvature of a likelihood is taken that is not Gaussian. "expected" averages it over the posterior
        (Gaussian variational inference), the default of `Exact()`; `Krylov()` does so when asked. "mode" and "network"
        are Laplace's approximation at the optimum of the linear model, or at the network's own outputs.

    Returns
    -------
    Posterior
        It predicts at new features.

    Raises
    ------
    ValueError
        If targets do not fit the likelihood, or no method keeps to the memory. The message says what to do.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 3)); y = x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=50)
    >>> from lapwing import LinearModel, Gaussian
    >>> posterior = infer(LinearModel(x, y, Gaussian()))
    >>> posterior.likelihood.noise_std.item()
    0.09...
    """
    if draws < 0:
        raise ValueError(f"draws must not be negative, got {draws}")
    for name, given, example in (("method", method, "KFAC()"), ("prior", prior, "Isotropic()")):
        if isinstance(given, str | type):
            raise ValueError(f"{name} is {given!r}, expected a value, such as lapwing.{example}")
    choice, report = resolve(prior or _by_default(model), model.groups), reporter(progress)
    settings = (choice, method, validation is None, draws, seed)
    by = tuning or (ByEvidence() if validation is None else OnHeldOut())
    started = time.perf_counter()
    try:
        with within(max_memory), shared(model, shard, settings) as (known, ranks):
            shown = report if ranks is None or ranks.rank == 0 else reporter(False)
            with journal_of(checkpoint, known, settings, ranks) as journal:
                run = Run(Noise(seed), draws, by, shown, journal, curvature=curvature)
                posterior = _inferred(known, choice, method, validation, run)
    finally:  # neither an error nor Ctrl-C leaves a half-written line behind
        report("")
    seconds = time.perf_counter() - started
    told = replace(posterior.diagnostics, ranks=1 if ranks is None else ranks.size, seconds=seconds)
    return replace(posterior, diagnostics=told)


def _by_default(model: LinearModel) -> Prior:
    """The g-prior; for a network one precision for all weights is the alternative."""
    return GPrior() if model.point is None else Alternatives((GPrior(), Isotropic()))


def find(model: LinearModel, prior: Prior, method: Method, run: Run) -> Posterior:
    """What a method finds, as a posterior: all of `infer` but for what surrounds it."""
    of = model.likelihood
    gaussian = method.solve(model, prior, run)
    residual = None
    if model.point is not None and of.tunes_noise:
        residual = network_residual_rms(model)
    tuned_by = "evidence" if prior.tuned or of.tunes_noise else "given"
    link = of.wide_link if run.curvature == "expected" else of.links[0]
    return Posterior(
        gaussian=gaussian, given=of, map=FeatureMap.of(model), link=link, model=model,
        diagnostics=replace(gaussian.diagnostics, tuned_by=tuned_by), network_residual_rms=residual,
        ledger=DataLedger(model.features.shape[0]),
    )  # fmt: skip


def _inferred(model: LinearModel, prior: Prior, method: Method | None, validation: Any, run: Run) -> Posterior:
    if method is None:
        method, why = choose(model, prior, run.draws)
        run = replace(run, why=why)
    run = replace(run, curvature=_curvature(model, prior, method, run))
    if run.curvature == "expected":
        model = model.through_zero()
    _check(model, prior, method, run)
    method.check(model, prior)
    memory = preflight(model, run.draws)
    check_fits(method, model, run.draws)
    posterior = find(model, prior, method, run)
    if validation is not None and (prior.tuned or model.likelihood.tunes_noise or model.likelihood.constant_curvature):
        run.report("tuning the precision on held-out data")
        posterior = tuned_until_known(posterior, validation)
    if validation is None and prior.tuned and run.tuning.is_guarded and model.likelihood.has_classes:
        posterior = no_wider_than_training_allows(posterior)
    if validation is None and run.tuning.by_evidence:
        posterior.gaussian.mean  # noqa: B018, looked for now, so that diagnostics can tell how
    told = replace(posterior.diagnostics, memory=memory, residuals=_residuals(posterior))
    if not model.likelihood.constant_curvature:
        expected = run.curvature == "expected"
        told = replace(told, curvature="expected over the posterior" if expected else model.likelihood.curvature)
    return replace(posterior, diagnostics=replace(told, **_facts(posterior)))


def _check(model: LinearModel, prior: Prior, method: Method, run: Run) -> None:
    """Refuse what no method can tune, before any work."""
    free = model.likelihood.tunes_noise and model.likelihood.hyperprior is None
    if free and not bool((model.targets != 0).any()):
        raise ValueError("every target is zero, so the noise cannot be tuned: give Gaussian(noise_std=…)")
    if run.draws == 0 and not method.takes_no_draws:
        raise ValueError(
            f"{type(method).__name__} learns the effective dimension from its draws: ask for draws=1 or more"
        )
    if prior.tuned and run.tuning.by_evidence and method.takes_modes and run.curvature != "expected":
        _warn_if_interpolating(model)


def _warn_if_interpolating(model: LinearModel) -> None:
    """Say where training labels cannot tell how uncertain predictions should be."""
    confidence = interpolation(model)
    if confidence is not None:
        warnings.warn(
            f"this network fits its training data perfectly (mean confidence {confidence:.3f}), so with a curvature "
            "that is taken at its outputs they hardly tell how uncertain its predictions should be: leave the method "
            "out, or pass validation=(x, y), a few hundred points suffice", stacklevel=5,
        )  # fmt: skip


def _curvature(model: LinearModel, prior: Prior, method: Method, run: Run) -> Curvature | None:
    """Where the curvature is taken: as asked, or by default averaged over the posterior where that can be done."""
    of, asked = model.likelihood, run.curvature
    if asked not in (None, "expected", "mode", "network"):
        raise ValueError(f"curvature is {asked!r}, expected 'expected', 'mode' or 'network'")
    if of.constant_curvature:
        return None
    if asked == "network" and model.point is None:
        raise ValueError("curvature='network' is for a linearised network: this model is linear itself, take 'mode'")
    if asked in ("mode", "network"):
        _refuse_rest(model, f"curvature={asked!r} takes it at one point")
        return asked
    if asked is None and model.point is not None and model.point.stands_for > 1 and model.rest is None:
        return None  # the best Gaussian for a part of the data knows nothing of the rest
    free = int(prior.free(prior.group_count).sum())
    hindrance = method.averaging_obstacle(model, free)
    if hindrance is None and (asked == "expected" or method.averages_by_default):
        return "expected"
    if asked == "expected":
        raise ValueError(f"the curvature cannot be averaged over the posterior: {hindrance}")
    _refuse_rest(model, hindrance or f"{type(method).__name__}() takes it at one point")
    return None


def _refuse_rest(model: LinearModel, hindrance: str) -> None:
    """Refuse the gradient of other data where nothing would be made of it."""
    if model.rest is not None:
        raise ValueError(
            f"rest= is for a curvature that is averaged over the posterior, and here it is not: {hindrance}. Take "
            "fewer data or weights, or leave rest= out and give dataset_size= alone"
        )


def _residuals(posterior: Posterior) -> tuple[float, ...] | None:
    """True residuals, where draws solve an equation of the data."""
    if not posterior.gaussian.has_residuals:
        return None
    return tuple(posterior.residuals().tolist())


def _facts(posterior: Posterior) -> dict[str, Any]:
    """What diagnostics say of the search for the mean: passes count those of a search for precisions before it."""
    found = posterior.gaussian.facts()
    if "mode_passes" in found:
        found["mode_passes"] += posterior.diagnostics.mode_passes or 0.0
    return found

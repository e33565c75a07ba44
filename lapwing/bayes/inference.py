"""infer: from a linear model to a posterior, with what is not given tuned."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Curved, Gaussian
from lapwing.bayes.linear_model import LinearModel, left_by_centre
from lapwing.bayes.methods import AtTheWeights, Exact, LowRank, Method, Structural
from lapwing.bayes.modes.tangent import check_not_interpolating, surrogate, tangent
from lapwing.bayes.noise import Noise
from lapwing.bayes.posterior import Posterior, assemble
from lapwing.bayes.posterior.mode import with_mode
from lapwing.bayes.priors import DiagonalPrior, GPrior, PerGroup, Prior, resolve
from lapwing.bayes.solving import Task, in_double, solve, stored_features
from lapwing.bayes.solving.choosing import check_fits, choose, preflight
from lapwing.bayes.solving.journals import journal_of, kept_prior
from lapwing.bayes.solving.sharing import Shard, shared
from lapwing.bayes.solving.structured import EvidenceAt, Shape, low_rank
from lapwing.bayes.statistics import row_weights
from lapwing.linalg.journal import Journal
from lapwing.linalg.memory import within
from lapwing.linalg.operators import Dense
from lapwing.linalg.progress import Report, reporter

HELD_OUT_ROUNDS = 4


def infer(
    model: LinearModel, *, prior: Prior | None = None, method: Method | None = None, validation: Any = None,
    draws: int = 32, seed: int = 0, evidence_at: EvidenceAt | None = None,
    progress: bool | Report | None = None, shard: Shard = None, checkpoint: Path | str | None = None,
    memory: float | str | None = None,
) -> Posterior:  # fmt: skip
    """The posterior of a linear model, its free precisions at the maximum of the evidence.

    `prior=None` is the g-prior, tuned. `method=None` chooses by size and free memory and says why. With `validation`,
    a pair of inputs and targets, the precision (and a noise that was not given) is the one with the best held-out
    density. A structured method (`Diagonal`, `KFAC`, `EKFAC`, `LowRank`) can take the evidence at the network's own
    weights, `evidence_at="weights"`: no mode is found, and precisions tuned by it are known to be too small. With
    `validation` it does so by default, since what is tuned on held-out data needs neither; `Hessian` and
    `EmpiricalFisher`, which belong to those weights, always do.

    In a job of several processes (torchrun, or an initialised group of torch.distributed) that call this together on a
    network, each works on a share of the data and each has the result; shard=False lets one go alone. With
    shard="draws" each works on a share of the draws, for all data: where data are few, or fewer than processes.

    `checkpoint` is a folder in which a Krylov space is kept, step by step: the same call after a crash, Ctrl-C or
    SIGTERM goes on where it was, to the same draws. Other methods start over.

    `memory`, in bytes or as "8GB", is what this call may take beside the data and the network, in each process; by
    default what is free. A method is chosen that keeps to it, and what cannot is refused before any work.

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
    choice, report = resolve(prior or GPrior(), model.groups), reporter(progress)
    started, settings = time.perf_counter(), (choice, method, validation is None, draws, seed, evidence_at)
    try:
        where = _evidence_at(evidence_at, method, validation is not None and model.centre is not None)
        with within(memory), shared(model, shard, settings) as (known, ranks):
            shown = report if ranks is None or ranks.rank == 0 else reporter(False)
            with journal_of(checkpoint, known, settings, ranks) as journal:
                posterior = _inferred(
                    known, choice, method, validation, Noise(seed), draws, shown, started, where, journal
                )
            posterior.diagnostics["ranks"] = 1 if ranks is None else ranks.size
            return posterior
    finally:  # neither an error nor Ctrl-C leaves a half-written line behind
        report("")


def _inferred(
    model: LinearModel, choice: Prior, method: Method | None, validation: Any, noise: Noise, draws: int,
    report: Report, started: float, evidence_at: EvidenceAt, journal: Journal | None,
) -> Posterior:  # fmt: skip
    if isinstance(model.likelihood, Gaussian):
        task = replace(
            _gaussian_task(model, choice, noise, draws, report, journal), evidence_at=evidence_at,
            by_evidence=validation is None,
        )  # fmt: skip
        chosen, why = choose(task, method)
        task = _shaped(task, chosen, model) if isinstance(chosen, Structural) else task
    else:
        task, chosen, why = _label_task(
            model, choice, noise, draws, report, method, validation is None, evidence_at, journal
        )
    memory = preflight(task)
    check_fits(chosen, task, memory)
    solved = solve(task, chosen, why, asked=method is not None)
    at, tuned_by = solved.optimum.at, "evidence" if choice.tuned else "given"
    setting, labels = replace(task.prior, precision=at.prior), task.tangent is not None
    posterior = assemble(solved, setting, at.noise, tuned_by=tuned_by, mode=validation is None or not choice.tuned)
    if validation is not None and (choice.tuned or not labels):
        report("tuning the precision on held-out data")
        posterior = _on_held_out(posterior, validation)
    elif model.centre is not None and not labels and model.gaussian.noise_std is None:
        posterior.diagnostics["network_leaves"] = left_by_centre(model).tolist()
    posterior.diagnostics["memory"] = memory
    if isinstance(model.likelihood, Curved):
        posterior.diagnostics["curvature"] = model.likelihood.curvature
    if task.shape is None:  # the draws of a structure solve no equation of the data
        posterior.diagnostics["residuals"] = posterior.residuals().tolist()
    posterior.diagnostics["seconds"] = time.perf_counter() - started
    return posterior


def _on_held_out(posterior: Posterior, validation: Any) -> Posterior:
    """Tuned on held-out data, again where the Krylov space had to grow for the precision that was found."""
    for _ in range(HELD_OUT_ROUNDS):
        before, posterior = posterior, posterior.tune(validation, mode=False)
        if posterior.statistics is before.statistics:
            break
    return with_mode(posterior)


def _gaussian_task(
    model: LinearModel, choice: Prior, noise: Noise, draws: int, report: Report, journal: Journal | None
) -> Task:
    if model.gaussian.noise_std is None and not bool((model.targets != 0).any()):
        raise ValueError("every target is zero, so the noise cannot be tuned: give Gaussian(noise_std=…)")
    prior = kept_prior(journal, lambda: choice.on(model.features, row_weights(model), model.blocks))
    return Task(model, prior, choice, noise, draws, report, journal=journal)


def _label_task(
    model: LinearModel, choice: Prior, noise: Noise, draws: int, report: Report, method: Method | None,
    by_evidence: bool, evidence_at: EvidenceAt, journal: Journal | None,
) -> tuple[Task, Method, str]:  # fmt: skip
    """The Gaussian model with the curvature of these labels, and the loss that gives its mode and evidence."""
    outputs = _curvature_point(model, choice)
    if by_evidence and choice.tuned and model.centre is not None and evidence_at == "mode":
        check_not_interpolating(model, outputs)
    one_or_groups = choice.on(model.features, model.row_counts) if isinstance(choice, PerGroup) else _ones(model)
    task = Task(
        surrogate(model, outputs), one_or_groups, choice, noise, draws, report, by_evidence=by_evidence,
        evidence_at=evidence_at, journal=journal,
    )  # fmt: skip
    chosen, why = choose(task, method)
    at_mode = evidence_at == "mode" and not isinstance(model.features, Dense)
    if isinstance(chosen, Exact) and at_mode:  # first, since the prior looks at every row too
        model = _with_stored(model, report)
    task = replace(
        task,
        model=surrogate(model, outputs),
        prior=kept_prior(journal, lambda: choice.on(model.features, model.row_counts, model.blocks)),
    )
    if isinstance(chosen, Structural):
        task = _shaped(task, chosen, model)
        model = _with_stored(model, report) if at_mode and not model.features.rows_are_costly else model
        task = replace(task, model=surrogate(model, outputs))
    return replace(task, tangent=tangent(model, task.prior)), chosen, why


def _shaped(task: Task, method: Structural, model: LinearModel) -> Task:
    """The task with its structured curvature, and the prior's scale as that can hold it."""
    task.report(f"making the curvature by {method!r}")
    if isinstance(method, LowRank):
        known = task.model if model.centre is None else replace(task.model, features=in_double(task.model.features))
        return replace(task, shape=low_rank(known, task.prior, method.rank, method.rtol, task.noise.seed))
    if model.structure is None:
        raise ValueError(
            f"{method!r} needs a network with layers, and this linear model is of a design matrix: use LowRank(rank) "
            "or Exact(), or linearise a network"
        )
    if int(model.likelihood.row_groups(model.targets).max() if isinstance(model.likelihood, Gaussian) else 0) > 0:
        raise ValueError(
            f"{method!r} serves one noise for all outputs, and one per output is to be tuned: give their noise_std, or "
            "use Exact()"
        )
    curvature, told = model.structure(method, task.prior.scale, task.noise.seed)
    scale = torch.where(curvature.scale > 0, curvature.scale, task.prior.scale)
    moved = float((scale / task.prior.scale).log().abs().max().exp())
    told = {**told, "prior_scale_moved": moved}  # by this factor at most, to fit into Kronecker products
    return replace(task, shape=Shape(curvature, told), prior=replace(task.prior, scale=scale))


def _evidence_at(asked: EvidenceAt | None, method: Method | None, held_out: bool) -> EvidenceAt:
    """Where the evidence is taken: at the mode, unless another place was asked for or the mode would serve nothing."""
    if asked not in (None, "mode", "weights"):
        raise ValueError(f"evidence_at is {asked!r}, expected 'mode' or 'weights'")
    if asked == "weights" and not isinstance(method, Structural):
        raise ValueError(
            "evidence_at='weights' is for Diagonal(), KFAC(), EKFAC(), Hessian(), EmpiricalFisher() and LowRank(rank), "
            f"which with as many pairs as weights is exact; the method is {method!r}"
        )
    by_default = isinstance(method, AtTheWeights) or (held_out and isinstance(method, Structural))
    return asked or ("weights" if by_default else "mode")


def _with_stored(model: LinearModel, report: Report) -> LinearModel:
    return replace(model, features=stored_features(model.features, model.outputs, report))


def _ones(model: LinearModel) -> DiagonalPrior:
    d, one = model.features.shape[1], torch.ones(1, dtype=torch.float64)
    return DiagonalPrior(torch.ones(d, dtype=torch.float64), torch.zeros(d, dtype=torch.long), one, ("all",))


def _curvature_point(model: LinearModel, choice: Prior) -> Tensor:  # (n · c,)
    """Where B is taken: at the outputs of the network, or at the mode of a model that is linear itself."""
    if model.centre is not None:
        outputs = model.at_centre()
        return outputs if model.offset is None else outputs + model.offset.double()
    prior = choice.on(model.features, model.row_counts, model.blocks)
    return tangent(model, prior).mode(prior.precision).mode.outputs.reshape(-1)

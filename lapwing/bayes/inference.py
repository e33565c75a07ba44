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
from lapwing.bayes.methods import CG, SGD, AtTheWeights, Exact, Krylov, LowRank, Method, Structural
from lapwing.bayes.modes.tangent import check_not_interpolating, surrogate, tangent
from lapwing.bayes.noise import Noise
from lapwing.bayes.posterior import Posterior, assemble
from lapwing.bayes.posterior.mode import with_mode
from lapwing.bayes.priors import DiagonalPrior, GPrior, PerGroup, Prior, resolve
from lapwing.bayes.solving import BLOCK_ELEMENTS, Task, in_double, iterative, solve, stored_features
from lapwing.bayes.solving.journals import journal_of, kept_prior
from lapwing.bayes.solving.sharing import Shard, shared
from lapwing.bayes.solving.structured import EvidenceAt, Shape, low_rank
from lapwing.bayes.statistics import row_weights
from lapwing.linalg import stochastic
from lapwing.linalg.journal import Journal
from lapwing.linalg.memory import available_bytes, check_memory, readable, within
from lapwing.linalg.operators import Dense
from lapwing.linalg.progress import Report, reporter
from lapwing.linalg.spectral import Side, is_stored, needed_bytes

EXACT_SIZE = 1500  # up to here the smaller side is decomposed in about a second
EXACT_SIZE_OF_NETWORKS = 4000  # products with a Jacobian cost so much that half a minute here is soon repaid
HELD_OUT_ROUNDS = 4
KRYLOV_STEPS = 8  # of a typical space


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
        chosen, why = _choose(task, method)
        task = _shaped(task, chosen, model) if isinstance(chosen, Structural) else task
    else:
        task, chosen, why = _label_task(
            model, choice, noise, draws, report, method, validation is None, evidence_at, journal
        )
    memory = preflight(task)
    _check_fits(chosen, task, memory)
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
    chosen, why = _choose(task, method)
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


def _choose(task: Task, method: Method | None) -> tuple[Method, str]:
    """The method, and in words why."""
    rows, d = task.model.features.shape
    several = len(task.prior.precision) > 1 or int(task.model.gaussian.row_groups(task.model.targets).max()) > 0
    if isinstance(method, Krylov) and several:
        raise ValueError("a Krylov space serves one prior precision and one noise: use Exact() or CG() for several")
    if task.draws == 0 and not (method is None or isinstance(method, Exact | Structural)):
        raise ValueError(
            f"{type(method).__name__} learns the effective dimension from its draws: ask for draws=1 or more"
        )
    sizes = f"{d:,} weights, {rows:,} observed outputs"
    if isinstance(method, Exact):
        _check_exact(task, method, sizes)
    if method is not None and method != Exact():
        return method, "as asked"
    limit = EXACT_SIZE_OF_NETWORKS if task.model.features.rows_are_cheap else EXACT_SIZE
    if method is None and task.draws and task.model.features.rows_are_costly and rows > limit:
        return _matrix_free(task, sizes, several, "outputs a datum are too many to make their Jacobian")
    if method is None and min(rows, d) > limit and task.draws:
        return _matrix_free(task, sizes, several)
    if method is None and task.draws and _exact_bytes(task) > 0.9 * available_bytes():
        because = f"an exact posterior would take {readable(_exact_bytes(task))} of {readable(available_bytes())}"
        return _matrix_free(task, sizes, several, because)
    return Exact("primal" if d <= rows else "dual"), sizes


def _check_exact(task: Task, method: Exact, sizes: str) -> None:
    """Refuse a decomposition of many outputs a datum that cannot fit, before any of their Jacobian is made."""
    features = task.model.features
    if not features.rows_are_costly:
        return
    rows, d = features.shape
    side: Side = method.side or ("primal" if d <= rows else "dual")
    check_memory(
        needed_bytes((rows, d), side) + rows * d * features.like.element_size(),
        f"an exact posterior, {side} ({sizes}),",
        "leave the method out, or use Krylov(), which take products alone; or select fewer weights, as the last layer",
    )


def preflight(task: Task) -> dict[str, float]:
    """Bytes that every method would need beside the data, and those that are free."""
    by_cg, by_sgd = iterative.needed_bytes(task.model.features, task.draws)
    space = _krylov_bytes(task, KRYLOV_STEPS)
    return {"exact": _exact_bytes(task), "krylov": space, "cg": by_cg, "sgd": by_sgd, "free": available_bytes()}


def _krylov_bytes(task: Task, steps: int) -> float:
    features, columns = task.model.features, 2 * task.draws + 1
    rows, d = features.shape
    return 8.0 * columns * (steps * min(rows, d) + 3 * d) + features.working_bytes(columns)


def _check_fits(method: Method, task: Task, memory: dict[str, float]) -> None:
    """Refuse products that cannot fit, before any is made; a decomposition is checked when its side is known."""
    needed = {Krylov: _krylov_bytes(task, 1), CG: memory["cg"], SGD: memory["sgd"]}.get(type(method), 0.0)
    rows, d = task.model.features.shape
    what = f"{type(method).__name__}() with {d:,} weights, {rows:,} observed outputs and {task.draws} draws"
    check_memory(needed, what, "ask for fewer draws, select fewer weights, or give it more memory")


def _exact_bytes(task: Task) -> float:
    """A decomposition; of a network, its Jacobian before, and under labels that of the loss, which stays."""
    (rows, d), labels = task.model.features.shape, task.tangent is not None
    side: Side = "primal" if d <= rows else "dual"
    if task.model.centre is None:
        return needed_bytes((rows, d), side)
    item = task.model.features.like.element_size() if labels else 8  # without labels it is kept in double
    kept = 8.0 * (2 * rows * rows + (d * rows if is_stored(d, rows) else 0)) if labels and side == "dual" else 0.0
    block = float(min(rows * d, BLOCK_ELEMENTS) * task.model.features.like.element_size())
    return rows * d * item + max(3 * block, needed_bytes((rows, d), side, item) + kept)


def _matrix_free(task: Task, sizes: str, several: bool, because: str = "both sides are large") -> tuple[Method, str]:
    """Krylov for one precision and one noise, CG for several, SGD where not even the columns of CG fit into memory.

    Half of what is free may be used. Time is not judged: stochastic gradients make twenty passes or more themselves,
    so they save memory, never passes; and they are no choice where a batch of rows costs a product with all of them.
    """
    features, free = task.model.features, available_bytes()
    by_cg, by_sgd = iterative.needed_bytes(features, task.draws)
    fits, advice = by_cg <= free / 2, "ask for fewer draws, or give features in batches (Stacked)"
    if fits or not stochastic.reads_rows(features):
        check_memory(by_cg, f"a posterior by conjugate gradients ({sizes}, {task.draws} draws)", advice)
        return (CG(), f"{sizes}, several precisions") if several else (Krylov(), f"{sizes}: {because}")
    check_memory(by_sgd, f"a posterior by stochastic gradients ({sizes}, {task.draws} draws)", advice)
    return SGD(), (
        f"{sizes}: of {readable(free)} free, whole passes would take {readable(by_cg)} with conjugate gradients and "
        f"more with a Krylov space, minibatches take {readable(by_sgd)}"
    )

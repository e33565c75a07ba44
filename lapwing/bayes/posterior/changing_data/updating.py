"""A posterior given more data, without starting over.

What is known of the data so far (a spectrum, a loss, a solution) is kept, the noise of every draw stays what it was and
that of new data takes the next rows of the same table. So under Gaussian noise the result is the posterior of all data
together, draw by draw: to round-off for Exact(), to their tolerance for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lapwing.bayes.likelihoods import Gaussian
from lapwing.bayes.linear_model import LinearModel, left_by_centre
from lapwing.bayes.modes.tangent import Tangent, surrogate, tangent
from lapwing.bayes.noise import DATA, Noise
from lapwing.bayes.posterior.posterior import Posterior, assemble
from lapwing.bayes.priors import DiagonalPrior, Isotropic
from lapwing.bayes.solving import iterative, tune
from lapwing.bayes.solving.iterative import Sampler
from lapwing.bayes.solving.structured import Approximate
from lapwing.bayes.statistics import (
    Ritz,
    Statistics,
    from_space,
    known_trace,
    project,
    row_weights,
    scaled_features,
    summarise,
    totals,
    whitened_data,
)
from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense, Diagonal, LinearOperator, Stacked, as_tensor, rows_of
from lapwing.linalg.spectral import Side, decompose, round_off

STRUCTURED = (
    "a structured posterior (Diagonal, KFAC, EKFAC, LowRank) is not a sum over data that more could be added to: fit "
    "it again on all of them; a prior with the precision found here saves the search"
)
NO_DATA = "this posterior does not carry its training data, which that needs here: fit it again"


def updated(posterior: Posterior, data: Any, *, retune: bool) -> Posterior:
    """The posterior of the data so far and more; see `Posterior.update`."""
    check_changeable(posterior, retune)
    more = observed(posterior, data)
    like = _with_labels(posterior, posterior.tangent, more) if posterior.tangent else _with_numbers(posterior, more)
    return finished(replace(like, diagnostics=_told(posterior, more)), retune=retune)


def check_changeable(posterior: Posterior, retune: bool) -> None:
    """Refuse a posterior that does not know enough of its data to be that of others."""
    known = posterior.statistics
    if isinstance(known, Approximate):
        raise ValueError(STRUCTURED)
    if known == ():
        raise ValueError("this posterior was loaded with its draws alone, which more data do not change: fit it again")
    exact = isinstance(known, tuple) and not isinstance(known[0].basis, Ritz)
    if retune and not exact:
        raise ValueError(
            "retune=True is for Exact(), which knows the evidence at every precision: update without it, then "
            "`tune` on held-out data, or infer again"
        )


def finished(like: Posterior, *, retune: bool) -> Posterior:
    """A posterior whose statistics are those of other data than before, made whole; precisions stay or are retuned."""
    told, prior, noise = like.diagnostics, like.prior, like.noise_precision
    before = str(told["tuned_by"]).removesuffix(", before the update")
    tuned_by = before if before == "given" else f"{before}, before the update"
    if retune and isinstance(like.statistics, tuple):
        at = tune(like.statistics, prior, Isotropic(), like.given, like.tangent).at
        prior, noise, tuned_by = replace(prior, precision=at.prior), at.noise, "evidence"
    result = assemble(like, prior, noise, tuned_by=tuned_by)
    if result.model is not None:
        result.diagnostics["residuals"] = result.residuals().tolist()
        if "network_leaves" in told:
            result.diagnostics["network_leaves"] = left_by_centre(result.model).tolist()
    return result


def observed(posterior: Posterior, data: Any) -> LinearModel:
    """Data as a linear model: of a pair of inputs and targets, of batches of such, or one that is there."""
    if isinstance(data, LinearModel):
        return _checked(posterior, data)
    pair = isinstance(data, tuple) and len(data) == 2
    with torch.random.fork_rng(devices=[]):  # a loader draws a seed, and may shuffle, so it is read once
        batches = data if pair else list(data)
    inputs = batches[0] if pair else batches
    targets = as_tensor(batches[1]) if pair else torch.cat([as_tensor(batch[1]) for batch in batches])
    features, centre, of = posterior.features_of(inputs), posterior.centre, posterior.tangent
    rows, m = features.shape[0], posterior.outputs
    outputs_shape = torch.Size((rows,) if m is None else (rows // m, m))
    shape = outputs_shape if of is None else of.likelihood.targets_shape(outputs_shape)
    if targets.numel() != shape.numel():
        raise ValueError(f"targets of shape {tuple(targets.shape)} do not fit the {rows} outputs at these inputs")
    offset = None
    if centre is not None:
        outputs = centre.outputs_at(inputs).double()
        if of is not None and outputs.ndim > 2:
            raise ValueError(
                f"an update takes outputs (n,) or (n, c) under this likelihood, and these are {tuple(outputs.shape)}: "
                "fit all data together"
            )
        offset = outputs.reshape(-1) - (features @ centre.weights.to(features.like)).double()
    targets = targets.reshape(shape)
    if of is None and offset is not None:
        targets = targets.double() - offset.reshape(targets.shape)
    likelihood = posterior.given if of is None else of.likelihood
    return LinearModel(features, targets, likelihood, offset=offset, centre=centre)


def _checked(posterior: Posterior, more: LinearModel) -> LinearModel:
    d, now = len(posterior.mean), posterior.likelihood
    if more.features.shape[1] != d:
        raise ValueError(f"the new data have {more.features.shape[1]} features, the model was fitted with {d}")
    if type(more.likelihood) is not type(now):
        raise ValueError(f"the new data have likelihood {more.likelihood!r}, the model was fitted with {now!r}")
    tuned = posterior.given.noise_std is None
    if isinstance(more.likelihood, Gaussian) and (more.likelihood.noise_std is None) != tuned:
        raise ValueError(
            f"the noise of this model was {'tuned' if tuned else 'given'}, and that of the new data was not"
        )
    centre = posterior.centre
    if (centre is None) != (more.centre is None) or (
        centre is not None and more.centre is not None and not torch.equal(centre.weights, more.centre.weights)
    ):
        raise ValueError("the new data were linearised at other weights: linearise the network that was fitted")
    return more


def _with_numbers(posterior: Posterior, more: LinearModel) -> Posterior:
    """A posterior under Gaussian noise with new statistics, or a new sampler, not yet assembled."""
    known = posterior.statistics
    whole = None if posterior.model is None else _joined(posterior.model, more)
    like = replace(posterior, model=whole, given=_given(posterior, whole))
    if isinstance(known, tuple) and not isinstance(known[0].basis, Ritz):
        return replace(like, statistics=_appended(posterior, known, more))
    if whole is None:
        raise ValueError(NO_DATA)
    return replace(like, statistics=solved_again(posterior, whole))


def solved_again(posterior: Posterior, model: LinearModel) -> tuple[Statistics, ...] | Sampler:
    """What a matrix-free posterior would know of other data: from where it was, or from a new Krylov space."""
    known = posterior.statistics
    if isinstance(known, Sampler):
        return _sampler(posterior, known, model)
    assert isinstance(known, tuple)
    return _space(posterior, known, model, posterior.prior)


def _with_labels(posterior: Posterior, loss: Tangent, more: LinearModel) -> Posterior:
    def joined(old: LinearModel) -> LinearModel:
        stored = isinstance(posterior.statistics, tuple)
        return _joined(replace(old, features=_stored(old.features)) if stored else old, more)

    return relabelled(posterior, loss, joined)


def relabelled(posterior: Posterior, loss: Tangent, change: Callable[[LinearModel], LinearModel]) -> Posterior:
    """A posterior under another likelihood with its data changed: its mode is found from the one before."""
    if loss.lost:
        raise ValueError("the file that this posterior was loaded from lacks the loss of its labels: fit it again")
    known, prior = posterior.statistics, posterior.prior
    rows = loss.design if loss.row_space is None else Dense(loss.design.dense() @ loss.row_space.vectors.mT)
    old = replace(
        loss.model, features=rows @ Diagonal(1 / prior.scale) if posterior.model is None else loss.model.features
    )
    model = change(old)
    whole = tangent(model, prior)
    start = posterior.mean.double() / prior.scale
    inside = start if whole.row_space is None else whole.row_space.coordinates(start[None])[0]
    whole = replace(whole, start=inside)
    if posterior.centre is None:
        outputs = whole.mode(prior.precision).mode.outputs.reshape(-1)
    else:
        outputs = (model.features @ posterior.centre.weights.to(model.features.like)).double() + _offset(model)
    curved = surrogate(model, outputs)
    like = replace(posterior, tangent=whole, at_mode=None, model=None if posterior.model is None else curved)
    if not isinstance(known, tuple) or isinstance(known[0].basis, Ritz):
        return replace(like, statistics=solved_again(posterior, curved))
    noise, draws = Noise(posterior.seed), posterior.deviations.shape[1]
    return replace(like, statistics=summarise(curved, prior, side=None, noise=noise, draws=draws))


def _appended(posterior: Posterior, known: tuple[Statistics, ...], more: LinearModel) -> tuple[Statistics, ...]:
    """Statistics of old and new rows together: the old ones compressed to as many as their rank."""
    draws, first = posterior.deviations.shape[1], rows_so_far(posterior)
    groups, size = more.gaussian.row_groups(more.targets), more.targets.numel()
    root, counts, given = row_weights(more).sqrt(), more.row_counts, more.gaussian.row_precision(more.targets)
    scaled = scaled_features(more.features, root, posterior.prior.scale)
    targets, normals = root * more.targets.reshape(-1), Noise(posterior.seed, DATA).rows(first, first + size, draws)
    side: Side | None = "svd" if "svd" in str(posterior.diagnostics["method"]) else None
    parts = []
    for group, old in enumerate(known):
        rows = groups == group
        compressed = old.values.sqrt()[:, None] * old.basis.expand(torch.eye(len(old.values)).double()).mT
        both = Dense(torch.cat([compressed, rows_of(scaled, rows).double()]))
        found = project(
            both, decompose(both, side), torch.cat([old.targets, targets[rows]]),
            torch.cat([old.noise, normals[rows]]), posterior.prior_noise(), counts[rows], given[rows],
        )  # fmt: skip
        parts.append(
            replace(
                found, remainder=found.remainder + old.remainder, count=found.count + old.count,
                log_weight=found.log_weight + old.log_weight,
            )
        )  # fmt: skip
    return tuple(parts)


def _sampler(posterior: Posterior, known: Sampler, model: LinearModel) -> Sampler:
    """A sampler of all data that starts from the solution for some of them."""
    noise = Noise(posterior.seed)
    fresh = iterative.sampler(model, posterior.prior, known.method, noise, posterior.deviations.shape[1])
    return replace(fresh, warm=known.warm)


def _space(
    posterior: Posterior, known: tuple[Statistics, ...], model: LinearModel, prior: DiagonalPrior
) -> tuple[Statistics, ...]:
    """A Krylov space of all data, made anew: what is saved is the search for the precision."""
    assert isinstance(known[0].basis, Ritz)
    draws, rtol = posterior.deviations.shape[1], known[0].basis.rtol
    scaled, targets, normals = whitened_data(model, prior, Noise(posterior.seed), draws)
    block = krylov.Block(posterior.prior_noise(), normals, targets[:, None])
    alpha, beta = float(prior.precision), float(posterior.noise_precision)
    space = krylov.build(scaled, block, alpha=alpha, beta=beta, rtol=rtol)
    count, log_weight = totals(model) if posterior.tangent is None else (0.0, 0.0)
    ritz = Ritz(space, scaled, rtol, known_trace(scaled))
    return (from_space(space, ritz, count=count, log_weight=log_weight),)


def _joined(old: LinearModel, new: LinearModel) -> LinearModel:
    """The linear model of all data: those of one, then those of the other."""
    offset = None if old.offset is None and new.offset is None else torch.cat([_offset(old), _offset(new)])
    return replace(
        old, features=_stacked(old.features, new.features), targets=torch.cat([old.targets, new.targets]),
        weights=torch.cat([old.weights, new.weights]), offset=offset, likelihood=_likelihood(old, new), structure=None,
        groups=None,
    )  # fmt: skip


def _likelihood(old: LinearModel, new: LinearModel) -> Any:
    """One noise for all, or where it was given per datum that of each."""
    if not isinstance(old.likelihood, Gaussian) or old.likelihood.noise_std is None:
        return old.likelihood
    first, second = old.gaussian.noise_std, new.gaussian.noise_std
    if first.shape == second.shape and torch.equal(first, second) and first.shape in ((), old.targets.shape[1:]):
        return old.likelihood
    each = [part.gaussian.noise_std.expand(part.targets.shape) for part in (old, new)]
    return replace(old.gaussian, noise_std=torch.cat(each))


def _given(posterior: Posterior, whole: LinearModel | None) -> Gaussian:
    return posterior.given if whole is None else whole.gaussian


def _stacked(old: LinearOperator, new: LinearOperator) -> LinearOperator:
    if isinstance(old, Dense):
        return Dense(torch.cat([old.matrix, new.rows(0, new.shape[0]).to(old.matrix)]))
    heights = (old.shape[0], new.shape[0])
    return Stacked(lambda part: part, [(old,), (new,)], heights, old.shape[1], old.like)


def _stored(features: LinearOperator) -> LinearOperator:
    return features if isinstance(features, Dense) else Dense(features.rows(0, features.shape[0]))


def _offset(model: LinearModel) -> Tensor:  # (n · m,)
    rows = model.features.shape[0]
    return torch.zeros(rows, dtype=torch.float64) if model.offset is None else model.offset.double()


def rows_so_far(posterior: Posterior) -> int:
    """Rows of the table of noise that are taken: those of data that were removed stay so."""
    return posterior.diagnostics["observations"] + posterior.diagnostics.get("removed", 0)


def _told(posterior: Posterior, more: LinearModel) -> dict[str, Any]:
    told = posterior.diagnostics
    size = more.targets.numel() if posterior.tangent is None else more.features.shape[0]
    known = {"eps": max(told["eps"], round_off(more.features))} if "eps" in told else {}
    return {**told, **known, "observations": told["observations"] + size, "updates": told.get("updates", 0) + 1}

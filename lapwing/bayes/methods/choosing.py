"""Which method is used where none was asked for: by the size of a model and the memory there is; and in words why."""

from __future__ import annotations

from lapwing.bayes.fits.loss import PerOutput, stored_numbers
from lapwing.bayes.linear_model import LinearModel
from lapwing.bayes.methods.exact import Exact
from lapwing.bayes.methods.interface import Method
from lapwing.bayes.methods.iterative import CG, SGD
from lapwing.bayes.methods.krylov import Krylov, space_bytes
from lapwing.bayes.methods.storing import BLOCK_ELEMENTS
from lapwing.bayes.priors import Prior
from lapwing.linalg import stochastic
from lapwing.linalg.spectral import Side, is_stored, needed_bytes
from lapwing.runtime.memory import available_bytes, check_memory, readable

EXACT_SIZE = 1500  # up to here the smaller side is decomposed in about a second
EXACT_SIZE_OF_NETWORKS = 4000  # products with a Jacobian cost so much that half a minute here is soon repaid
KRYLOV_STEPS = 8  # of a typical space


def choose(model: LinearModel, prior: Prior, draws: int) -> tuple[Method, str]:
    """The method, and in words why."""
    rows, d = model.features.shape
    sizes = f"{d:,} weights, {rows:,} observed outputs"
    exact = Exact("primal" if d <= rows else "dual")
    if not draws:
        return exact, sizes
    several = prior.group_count > 1 or model.noise_groups > 1
    limit = EXACT_SIZE if model.point is None else EXACT_SIZE_OF_NETWORKS
    if model.features.costs.too_many_outputs and rows > limit:
        return _matrix_free(model, draws, several, "outputs a datum are too many to make their Jacobian")
    if min(rows, d) > limit:
        return _matrix_free(model, draws, several, "both sides are large")
    needed, free = exact_bytes(model), available_bytes()
    if needed > 0.9 * free:
        because = f"an exact posterior would take {readable(needed)} of {readable(free)}"
        return _matrix_free(model, draws, several, because)
    return exact, sizes


def preflight(model: LinearModel, draws: int) -> dict[str, float]:
    """Bytes that every method would need beside the data, and those that are free."""
    return {
        "exact": exact_bytes(model),
        "krylov": space_bytes(model.features, draws, steps=KRYLOV_STEPS),
        "cg": CG().needed_bytes(model, draws),
        "sgd": SGD().needed_bytes(model, draws),
        "free": available_bytes(),
    }


def check_fits(method: Method, model: LinearModel, draws: int) -> None:
    """Refuse products that cannot fit, before any is made; a decomposition is checked when its side is known."""
    rows, d = model.features.shape
    what = f"{type(method).__name__}() with {d:,} weights, {rows:,} observed outputs and {draws} draws"
    advice = "ask for fewer draws, select fewer weights, or give it more memory"
    check_memory(method.needed_bytes(model, draws), what, advice)


def exact_bytes(model: LinearModel) -> float:
    """A decomposition; of a network, its Jacobian before, and under labels that of the loss, which stays."""
    rows, d = model.features.shape
    labels = not model.likelihood.constant_curvature
    side: Side = "primal" if d <= rows else "dual"
    if model.point is None:
        return needed_bytes((rows, d), side)
    if isinstance(model.features, PerOutput):
        return 8.0 * (2 * stored_numbers(model.features) + 6 * d * d)
    size = model.features.like.element_size()
    item = size if labels else 8  # without labels it is kept in double
    kept = 0.0
    if labels and side == "dual":
        kept = 8.0 * (2 * rows * rows + (d * rows if is_stored(d, rows) else 0))
    block = float(min(rows * d, BLOCK_ELEMENTS) * size)
    return rows * d * item + max(3 * block, needed_bytes((rows, d), side, item) + kept)


def _matrix_free(model: LinearModel, draws: int, several: bool, because: str) -> tuple[Method, str]:
    """Krylov for one precision and one noise, CG for several, SGD where not even the columns of CG fit into memory.

    Half of what is free may be used. Time is not judged: stochastic gradients make twenty passes or more themselves,
    so they save memory, never passes; and they are no choice where a batch of rows costs a product with all of them.
    """
    rows, d = model.features.shape
    sizes = f"{d:,} weights, {rows:,} observed outputs"
    free, by_cg, by_sgd = available_bytes(), CG().needed_bytes(model, draws), SGD().needed_bytes(model, draws)
    advice = "ask for fewer draws, or give features in batches (Stacked)"
    if by_cg <= free / 2 or not stochastic.reads_rows(model.features):
        check_memory(by_cg, f"a posterior by conjugate gradients ({sizes}, {draws} draws)", advice)
        if several:
            return CG(), f"{sizes}, several precisions"
        return Krylov(fallback=CG()), f"{sizes}: {because}"
    check_memory(by_sgd, f"a posterior by stochastic gradients ({sizes}, {draws} draws)", advice)
    return SGD(), (
        f"{sizes}: of {readable(free)} free, whole passes would take {readable(by_cg)} with conjugate gradients and "
        f"more with a Krylov space, minibatches take {readable(by_sgd)}"
    )

"""Which method a task is solved by: as asked, or by its size and the memory there is; and in words why."""

from __future__ import annotations

from lapwing.bayes.methods import CG, SGD, Exact, Krylov, Method, Structural
from lapwing.bayes.solving import iterative
from lapwing.bayes.solving.by_method import Task
from lapwing.bayes.solving.storing import BLOCK_ELEMENTS
from lapwing.linalg import stochastic
from lapwing.linalg.memory import available_bytes, check_memory, readable
from lapwing.linalg.spectral import Side, is_stored, needed_bytes

EXACT_SIZE = 1500  # up to here the smaller side is decomposed in about a second
EXACT_SIZE_OF_NETWORKS = 4000  # products with a Jacobian cost so much that half a minute here is soon repaid
KRYLOV_STEPS = 8  # of a typical space


def choose(task: Task, method: Method | None) -> tuple[Method, str]:
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


def check_fits(method: Method, task: Task, memory: dict[str, float]) -> None:
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

"""How many passes over the data do 32 posterior draws cost, by which method?

A pass is one product with Φ and one with Φᵀ; `columns` counts the columns that went through passes, since the shared
Krylov space carries 65 of them (noise, prior draw, target) where the others carry 32. A method has arrived when the drawn
functions, on the data and on held-out inputs, differ from exact draws with the same noise by 2 % at most.

How it is counted, in favour of the others where there is a choice: each of them is stopped with hindsight at the first
pass that arrives, SGD may choose between objectives, batch sizes and multiples of its own step length, and its power
iterations and checks are free. With tuning, the others run MacKay's iteration, every step warm-started with the same
noise, with as many passes a step as prove cheapest afterwards, stopped as soon as the prior precision is within 5 % of
the exact optimum and stays there for one more step; then they go on to 2 %. The Krylov space is tuned by itself, to the
same 5 %. `krylov_by_its_own_bound` is what `infer` does, tuning included, where nobody knows the exact draws. Where a method
has not arrived, `error` is that at the most passes allowed, and those are a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import harness
import numpy as np
import torch
from bench_batch_size import stable_length
from torch import Tensor

import lapwing as lw
from lapwing.bayes.evidence import Precisions, effective_dimension, maximise, problem, scan
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.bayes.statistics import Ritz, from_space
from lapwing.linalg import krylov
from lapwing.linalg.operators import Dense, Diagonal
from lapwing.linalg.solvers import ConjugateGradients, Nystrom
from lapwing.linalg.stochastic import Objective, StochasticGradients, best_fraction

DRAWS, TOLERANCE, DIVERGED = 32, 0.02, 1e300


def standardised(x: np.ndarray) -> np.ndarray:
    spread = x.std(0)
    return (x - x.mean(0)) / np.where(spread > 0, spread, 1)


def polynomials(x: np.ndarray, degree: int) -> np.ndarray:
    from sklearn.preprocessing import PolynomialFeatures

    return standardised(PolynomialFeatures(degree, include_bias=False).fit_transform(standardised(x)))


def fourier(x: np.ndarray, features: int, length: float, seed: int) -> np.ndarray:
    """Random Fourier features of a Gaussian kernel (Rahimi and Recht 2007)."""
    rng = np.random.default_rng(seed)
    waves, phases = rng.normal(size=(x.shape[1], features)) / length, rng.uniform(0, 2 * np.pi, features)
    return (2 / features) ** 0.5 * np.cos(standardised(x) @ waves + phases)


def load(name: str, rows: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in random order."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
    else:
        import bench_ridge_agreement

        x, y = bench_ridge_agreement.load(name)
    order = np.random.default_rng(seed).permutation(len(y))[:rows]
    return x[order], y[order].astype(float)


@dataclass(frozen=True, eq=False)
class Case:
    """Whitened data, held-out features, the noise that draws are made from, the optimum and the exact draws there."""

    features: Dense  # (n, d)
    held_out: Tensor  # (rows, d)
    targets: Tensor  # (n, 1)
    data_noise: Tensor  # (n, draws)
    prior_noise: Tensor  # (d, draws)
    alpha: float
    beta: float
    truth: Tensor  # (d, draws)

    def objective(self, alpha: float, beta: float) -> Objective:
        """In units of the noise, so that no precision touches Φ: its minimisers are draws less their mean."""
        return Objective(self.features, self.data_noise / beta**0.5, self.prior_noise / alpha**0.5, alpha / beta)

    def with_mean(self, alpha: float, beta: float) -> Objective:
        """The same with the mean as a last column."""
        draws = self.objective(alpha, beta)
        targets, anchors = (
            torch.cat([draws.targets, self.targets], dim=1),
            torch.nn.functional.pad(draws.anchors, (0, 1)),
        )
        return replace(draws, targets=targets, anchors=anchors)

    def error(self, z: Tensor) -> float:
        """The relative error of drawn functions, the larger of that on the data and that on held-out inputs."""
        pairs = ((rows @ (z - self.truth), rows @ self.truth) for rows in (self.features.matrix, self.held_out))
        worst = max(float(wrong.norm() / right.norm()) for wrong, right in pairs)
        return worst if math.isfinite(worst) else DIVERGED


class Solver(Protocol):
    """A way to spend passes on an objective."""

    most: int  # passes allowed
    setup_columns: int  # columns of one pass before the first solve

    def solve(self, objective: Objective, start: Tensor, passes: int) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Conjugate:
    """CG, which sees the data only through ΦᵀΦ, stored here; one pass is spent on the residual of the start."""

    gram: Tensor
    preconditioner: Nystrom | None = None
    most: int = 1024

    @property
    def setup_columns(self) -> int:
        return 0 if self.preconditioner is None else self.preconditioner.vectors.shape[1]

    def solve(self, objective: Objective, start: Tensor, passes: int) -> Tensor:
        rho = objective.precision
        system = Dense(self.gram) + Diagonal(torch.full_like(self.gram[:, 0], rho))
        known = None if self.preconditioner is None else replace(self.preconditioner, shift=rho)
        cg = ConjugateGradients(rtol=1e-13, max_steps=passes - 1, preconditioner=known)
        return cg.solve(system, objective.system()[1], start=start).x


@dataclass(frozen=True)
class Stochastic:
    """SGD with so many times the step length of its own rule; what is first moved to the anchor takes one pass."""

    fraction: float
    batch_size: int
    lengthening: int
    most: int
    seed: int
    setup_columns: int = 0

    def solve(self, objective: Objective, start: Tensor, passes: int) -> Tensor:
        epochs, generator = passes - (self.fraction < 1), torch.Generator().manual_seed(self.seed)
        if epochs < 1:
            return start
        length = self.lengthening * stable_length(objective, self.batch_size, self.seed)
        sgd = StochasticGradients(
            self.batch_size, math.ceil(objective.features.shape[0] / self.batch_size) * epochs, step_length=length
        )
        return sgd.solve(replace(objective, fraction=self.fraction), generator=generator, start=start).x


def fewest(error_after: Callable[[int], float], most: int) -> tuple[int, float, bool]:
    """The fewest passes that arrive, to a tenth, doubled and then bisected: passes, error there, and whether any did."""
    low, high, error = 0, 1, error_after(most)
    if error > TOLERANCE:
        return most, error, False
    while (error := error_after(high)) > TOLERANCE:
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 10):
        middle = (low + high) // 2
        found = error_after(middle)
        low, high, error = (low, middle, found) if found <= TOLERANCE else (middle, high, error)
    return high, error, True


def at_optimum(case: Case, solver: Solver) -> dict:
    """Passes and columns with the precisions known, from the prior draws."""
    objective = case.objective(case.alpha, case.beta)
    passes, error, arrived = fewest(lambda p: case.error(solver.solve(objective, objective.anchors, p)), solver.most)
    columns = passes * DRAWS + solver.setup_columns
    return {"passes": passes + (solver.setup_columns > 0), "columns": columns, "error": error, "arrived": arrived}


def with_tuning(case: Case, solver: Solver) -> dict:
    """The same with MacKay's iteration before: the cheapest number of passes a step, chosen afterwards."""
    best, allowed = None, solver.most
    for per_step in (16, 32, 8, 64, 4, 2):  # what the middle one takes bounds the others
        found = mackay(case, solver, per_step, allowed)
        if found is not None:
            best, allowed = (per_step, *found), found[0] - 1
    extra = solver.setup_columns > 0
    if best is None:
        columns = solver.most * (DRAWS + 1) + solver.setup_columns
        return {"passes": solver.most + extra, "columns": columns, "tuned": False, "arrived": False}
    (per_step, tuning, start), objective = best, case.objective(case.alpha, case.beta)
    passes, error, arrived = fewest(lambda p: case.error(solver.solve(objective, start, p)), solver.most)
    return {
        "passes": tuning + passes + extra,
        "columns": tuning * (DRAWS + 1) + passes * DRAWS + solver.setup_columns,
        "tuning_passes": tuning,
        "tuning_steps": tuning // per_step,
        "error": error,
        "tuned": True,
        "arrived": arrived,
    }


def mackay(case: Case, solver: Solver, per_step: int, most: int) -> tuple[int, Tensor] | None:
    """Passes until the prior precision is right for two steps in a row, and the draws then; None if it takes more."""
    (n, d), (alpha, beta) = case.features.shape, (float(case.features.row_squares().mean()), 1.0)
    z, reached = case.with_mean(alpha, beta).anchors, None
    for passes in range(per_step, most + 1, per_step):
        z = solver.solve(case.with_mean(alpha, beta), z, per_step)
        if not bool(z.isfinite().all()):
            return None
        draws, mean = z[:, :DRAWS], z[:, DRAWS:]
        fit = beta * (case.features.matrix @ draws).square().sum(0)
        gamma = effective_dimension(fit, alpha * draws.square().sum(0), d).combined.value
        gamma = min(max(gamma, 1.0), min(n, d) - 1.0)
        alpha = gamma / float(mean.square().sum())
        beta = (n - gamma) / float((case.targets - case.features.matrix @ mean).square().sum())
        near = abs(alpha / case.alpha - 1) <= 0.05
        if near and reached:
            return reached
        reached = (passes, draws) if near else None
    return None


def shared_space(case: Case, tuned: bool) -> dict:
    """The Krylov space, grown a step at a time until its draws arrive and, if so asked, its own tuning as well."""
    space, error, off = krylov.StartBlock(case.prior_noise, case.data_noise, case.targets), math.inf, math.inf
    while error > TOLERANCE or (tuned and abs(off) > 0.05):
        space = krylov.grow(case.features, space, 1)
        z, _ = krylov.draws_and_mean(space, alpha=case.alpha, beta=case.beta, operator=case.features)
        error, off = case.error(z), tuned_in(case, space) / case.alpha - 1
        if space.exhausted:
            break
    last = space.side == "dual"  # one more product turns the draws into weights
    return {
        "passes": (space.chain.passes + last) / 2,
        "columns": (space.chain.columns + last * (DRAWS + 1)) / 2,
        "steps": space.steps,
        "error": error,
        "arrived": error <= TOLERANCE,
        "prior_precision_error": off,
    }


def tuned_in(case: Case, space: krylov.Space) -> float:
    """The prior precision at the maximum of the evidence, as this space sees it."""
    known = Ritz(space, case.features, TOLERANCE, float(case.features.row_squares().sum()))
    statistics, one = from_space(space, known, count=float(len(case.targets)), log_weight=0.0), torch.ones(1).double()
    evidence = problem((statistics,), lw.Isotropic().on(case.features, one))
    return float(maximise(evidence, scan(evidence, Precisions(one, one))).at.prior[0])


def by_itself(case: Case, exact: lw.Posterior) -> dict:
    """`infer` with its own stopping rule, its draws compared with exact ones at the precisions it found."""
    ours = lw.infer(exact.model, prior=lw.Isotropic(), method=lw.Krylov(rtol=TOLERANCE), draws=DRAWS)
    truth = exact.at(float(ours.prior.precision[0]), float(ours.likelihood.noise_std)).gaussian.deviations
    last = "dual" in ours.diagnostics.method
    return {
        "passes": (ours.diagnostics.data_passes + last) / 2,
        "columns": (ours.diagnostics.column_products + last * (DRAWS + 1)) / 2,
        "error": replace(case, truth=truth).error(ours.gaussian.deviations),
        "error_bound": ours.diagnostics.error_bound,
        "prior_precision_error": float(ours.prior.precision[0]) / case.alpha - 1,
    }


def nystrom(case: Case, gram: Tensor, seed: int) -> tuple[dict, Conjugate]:
    """The rank with the fewest columns, chosen afterwards."""
    tries = []
    for rank in (rank for rank in (32, 64, 128, 256, 512) if rank < len(gram)):
        sketch = Nystrom.of(Dense(gram), rank=rank, shift=1.0, generator=torch.Generator().manual_seed(seed))
        solver = Conjugate(gram, sketch)
        tries.append(({**at_optimum(case, solver), "rank": rank}, solver))
    return min(tries, key=lambda pair: pair[0]["columns"])


def gradient_descents(case: Case, leverages: Tensor, epochs: int, seed: int) -> dict[str, tuple[dict, Stochastic]]:
    """Every objective with SGD's own step length, and with the best of steps up to 16 times as long.

    Batch size and length are chosen by the error after an eighth of the passes allowed.
    """
    weights, objective = case.features.row_squares(), case.objective(case.alpha, case.beta)
    fractions = {"fit": 1.0, "anchor": 0.0, "mixture": best_fraction(weights, leverages)}
    chosen = {}
    for name, fraction in fractions.items():
        solvers = [Stochastic(fraction, b, longer, epochs, seed) for b, longer in product((32, 128), (1, 4, 16))]
        errors = {solver: case.error(solver.solve(objective, objective.anchors, epochs // 8)) for solver in solvers}
        chosen[f"sgd_{name}"] = min((solver for solver in solvers if solver.lengthening == 1), key=errors.get)
        chosen[f"sgd_{name}_longer_steps"] = min(solvers, key=errors.get)
    settings = ("fraction", "batch_size", "lengthening")
    return {
        label: ({**at_optimum(case, solver), **{key: getattr(solver, key) for key in settings}}, solver)
        for label, solver in chosen.items()
    }


def problem_of(name: str, rows: int | None, degree: int, fourier_features: int, length: float, seed: int):
    """The exact posterior of four fifths of the data, and the case it poses."""
    x, y = load(name, rows, seed)
    phi = torch.from_numpy(polynomials(x, degree) if degree else fourier(x, fourier_features, length, seed))
    y, split = torch.from_numpy(standardised(y)), len(y) // 5
    features, targets = Dense(phi[split:].contiguous()), y[split:]
    exact = lw.infer(
        lw.LinearModel(features, targets, lw.Gaussian()), prior=lw.Isotropic(), method=lw.Exact(), draws=DRAWS
    )
    n, d = features.shape
    noise = Noise(0, DATA).rows(0, n, DRAWS), Noise(0, PRIOR).rows(0, d, DRAWS)
    alpha, beta = float(exact.prior.precision[0]), float(exact.gaussian.noise_precision[0])
    return exact, Case(features, phi[:split], targets[:, None], *noise, alpha, beta, exact.gaussian.deviations)


def measure(epochs: int, seed: int, **data) -> dict:
    """`epochs` are the most that SGD is given."""
    exact, case = problem_of(seed=seed, **data)
    gram = case.features.matrix.mT @ case.features.matrix
    space, tuned_space = (shared_space(case, tuned) for tuned in (False, True))
    preconditioned, solver = nystrom(case, gram, seed)
    descents = gradient_descents(case, exact.leave_one_out().leverage, epochs, seed)
    best, descent = min(descents.values(), key=lambda pair: (pair[0]["passes"], pair[0]["error"]))
    tuned = with_tuning(case, descent)
    return {
        "n": case.features.shape[0],
        "d": case.features.shape[1],
        "prior_precision": case.alpha,
        "noise_precision": case.beta,
        "effective_dimension": float(exact.effective_dimension),
        "condition_number": float(torch.linalg.eigvalsh(gram)[-1]) * case.beta / case.alpha,
        "krylov": space,
        "krylov_with_tuning": tuned_space,
        "krylov_by_its_own_bound": by_itself(case, exact),
        "cg": at_optimum(case, Conjugate(gram)),
        "cg_with_tuning": with_tuning(case, Conjugate(gram)),
        "nystrom_cg": preconditioned,
        "nystrom_cg_with_tuning": with_tuning(case, solver),
        **{label: found for label, (found, _) in descents.items()},
        "sgd_best_with_tuning": tuned,
        "sgd_arrived": best["arrived"],
        "sgd_over_krylov_passes": best["passes"] / space["passes"],
        "sgd_over_krylov_columns": best["columns"] / space["columns"],
        "sgd_over_krylov_passes_with_tuning": tuned["passes"] / tuned_space["passes"],
        "sgd_over_krylov_columns_with_tuning": tuned["columns"] / tuned_space["columns"],
        "holds": best["passes"] >= 5 * space["passes"],
    }


DEFAULTS = {"rows": None, "degree": 0, "fourier_features": 0, "length": 0.0, "seed": 0, "epochs": 256}
CELLS = {
    "diabetes, quadratic": {"name": "diabetes", **DEFAULTS, "degree": 2, "epochs": 32},
    "diabetes, cubic": {"name": "diabetes", **DEFAULTS, "degree": 3, "epochs": 128},
    "digits, Fourier": {"name": "digits", **DEFAULTS, "fourier_features": 1_500, "length": 6.0},
    "kin8nm, Fourier": {"name": "kin8nm", **DEFAULTS, "rows": 2_500, "fourier_features": 1_000, "length": 2.0},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

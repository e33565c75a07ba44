"""Do BayesianRidge's results agree with scikit-learn's on real data?

Diabetes comes with scikit-learn; the UCI sets are read from $LAPWING_DATA/uci/NAME.npz (arrays X and y). Columns and
target are standardised. scikit-learn runs at a tolerance of 1e-8, and once more at its default, which stops earlier.
"""

import os
from pathlib import Path

import harness
import numpy as np

UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        return load_diabetes(return_X_y=True)
    folder = Path(os.environ.get("LAPWING_DATA", Path.home() / ".cache/lapwing")) / "uci"
    if not (folder / f"{name}.npz").exists():
        raise FileNotFoundError(
            f"{folder / name}.npz is missing: set LAPWING_DATA to the folder that holds uci/{name}.npz"
        )
    data = np.load(folder / f"{name}.npz")
    return data["X"].astype(float), data["y"].astype(float).ravel()


def measure(name: str) -> dict:
    from sklearn.linear_model import BayesianRidge as Theirs

    from lapwing.linear import BayesianRidge as Ours

    x, y = load(name)
    spread = x.std(0)
    x, y = (x - x.mean(0)) / np.where(spread > 0, spread, 1), (y - y.mean()) / y.std()
    ours = Ours(compute_score=True).fit(x, y)
    theirs = Theirs(compute_score=True, tol=1e-8, max_iter=100_000).fit(x, y)
    default = Theirs(compute_score=True).fit(x, y)
    std, their_std = ours.predict(x, return_std=True)[1], theirs.predict(x, return_std=True)[1]
    return {
        "n": len(y),
        "d": x.shape[1],
        "their_converged": bool(theirs.n_iter_ < theirs.max_iter),
        "their_iterations": int(theirs.n_iter_),
        "noise_precision_difference": float(abs(ours.alpha_ / theirs.alpha_ - 1)),
        "prior_precision_difference": float(abs(ours.lambda_ / theirs.lambda_ - 1)),
        "coefficient_difference": float(np.abs(ours.coef_ - theirs.coef_).max() / np.abs(theirs.coef_).max()),
        "std_difference": float(np.abs(std / their_std - 1).max()),
        "log_evidence_gain": float(ours.scores_[-1] - theirs.scores_[-1]),
        "prior_precision_difference_at_their_default": float(abs(ours.lambda_ / default.lambda_ - 1)),
    }


CELLS = {name: {"name": name} for name in ("diabetes", *UCI)}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

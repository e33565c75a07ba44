"""NGBoost and boosting with MAPIE's intervals on the tables of `bench_tabular.py`, in the peers' environment.

Protocol, written before the first score: that of `bench_tabular.py`. Methods:

- `ngboost`: NGBRegressor with Gaussian densities, learning rate 0.03, at most 2,000 rounds; their number is where the densities of a
  random tenth of the training rows are highest, within 50 rounds, and a last fit has all training rows.
- `boosting, mapie`: HistGradientBoostingRegressor as `boosting` there, its settings chosen by the same cross-validation, which also gives
  the standard deviation of the Gaussian (nll, CRPS); intervals are those of MAPIE's CrossConformalRegressor, CV+ with ten folds. For more
  than 20,000 rows five folds.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import bench_tabular
import harness
import numpy as np
import peer_environment
from bench_tabular import FEW, LARGE, LEVELS, PARTS, SMALL, Predicted, boosting, gaussian

Chosen = tuple[str, str, list[int]]  # set, method, splits


def chosen() -> list[Chosen]:
    """What has been run."""
    return [
        *((data, "ngboost", FEW) for data in SMALL),
        *((data, "boosting, mapie", FEW) for data in SMALL[:2]),
        *((data, "ngboost", splits) for splits, data in product(PARTS[1:], SMALL)),
    ]


def to_come() -> list[Chosen]:
    """What the protocol asks beside; lines move to `chosen` when they have been run."""
    return [
        *((data, "ngboost", [split]) for data, split in product(LARGE, FEW)),
        *((data, "boosting, mapie", FEW) for data in SMALL[2:]),
        *((data, "boosting, mapie", splits) for splits, data in product(PARTS[1:], SMALL)),
        *((data, "boosting, mapie", FEW) for data in LARGE),
    ]


def named(parts: list[Chosen]) -> dict[str, dict[str, Any]]:
    """Cells by name."""
    return {
        f"{data}, {method}, splits {splits[0]} to {splits[-1]}": {"data": data, "method": method, "splits": splits}
        for data, method, splits in parts
    }


CELLS: dict[str, dict[str, Any]] = {
    "yacht, a part": {"data": "yacht", "method": "ngboost", "splits": [0]}, **named(chosen())
}  # fmt: skip
MANY_ROWS = 20_000


def ngboost(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Predicted:
    from ngboost import NGBRegressor

    held = np.zeros(len(x), dtype=bool)
    held[np.random.RandomState(seed).permutation(len(x))[: len(x) // 10]] = True
    settings: dict[str, Any] = {"learning_rate": 0.03, "verbose": False, "random_state": seed}
    probe = NGBRegressor(n_estimators=2000, **settings)
    probe.fit(x[~held], y[~held], X_val=x[held], Y_val=y[held], early_stopping_rounds=50)
    rounds = 2000 if probe.best_val_loss_itr is None else probe.best_val_loss_itr + 1
    found = NGBRegressor(n_estimators=rounds, **settings).fit(x, y).pred_dist(new)
    return gaussian(found.loc, found.scale)


def with_mapie(x: np.ndarray, y: np.ndarray, new: np.ndarray, seed: int) -> Predicted:
    from mapie.regression import CrossConformalRegressor

    chosen: list[Any] = []
    found = boosting(x, y, new, seed, chosen)
    folds = 5 if len(x) > MANY_ROWS else 10
    model = CrossConformalRegressor(
        chosen[0], confidence_level=list(LEVELS), method="plus", cv=folds, random_state=seed
    )
    _, ends = model.fit_conformalize(x, y).predict_interval(new)
    intervals = {level: (ends[:, 0, k], ends[:, 1, k]) for k, level in enumerate(LEVELS)}
    return Predicted(found.shares, found.means, found.stds, intervals)


FITS = {"ngboost": ngboost, "boosting, mapie": with_mapie}


def measure(data: str, method: str, splits: list[int]) -> dict[str, Any]:
    return bench_tabular.measured(FITS[method], data, splits, gap=False)


if __name__ == "__main__":
    peer_environment.enter("ngboost")
    harness.main(__file__, CELLS | named(to_come()), measure)

"""How much faster than scikit-learn's BayesianRidge is ours, at the same optimum?

Both fit the same data in the same process, ours first so that its peak memory is its own, and again after
scikit-learn; the ratio is that of the medians. Without an intercept, which the two count differently.
"""

import statistics

import harness
import numpy as np

OPTIONS = {"compute_score": True, "fit_intercept": False}


def measure(n: int, d: int, repeats: int, their_repeats: int, seed: int, decay: float = 0.0) -> dict:
    from sklearn.linear_model import BayesianRidge as Theirs

    from lapwing.linear import BayesianRidge as Ours

    rng = np.random.default_rng(seed)
    # with many more columns than rows, equal columns make a Gram matrix that is nearly a multiple of the identity, in
    # which noise and signal cannot be told apart: there the columns decay
    x = rng.normal(size=(n, d)) * np.arange(1, d + 1) ** -decay
    signal = x @ rng.normal(size=d)
    y = signal / signal.std() + 0.5 * rng.normal(size=n)
    Ours().fit(x[:50, :20], y[:50])  # libraries load and threads start before the clock does
    Theirs().fit(x[:50, :20], y[:50])
    seconds, ours = harness.timed(lambda: Ours(**OPTIONS).fit(x, y))
    our_times, our_peak = [seconds], harness.peak_memory()
    their_times = []
    for _ in range(their_repeats):
        seconds, theirs = harness.timed(lambda: Theirs(**OPTIONS).fit(x, y))
        their_times.append(seconds)
    their_peak = harness.peak_memory()
    our_times += [harness.timed(lambda: Ours(**OPTIONS).fit(x, y))[0] for _ in range(repeats - 1)]
    mean, std = ours.predict(x[:100], return_std=True)
    their_mean, their_std = theirs.predict(x[:100], return_std=True)
    return {
        "our_seconds": our_times,
        "their_seconds": their_times,
        "speedup": statistics.median(their_times) / statistics.median(our_times),
        "our_peak_bytes": our_peak,
        "their_peak_bytes": their_peak,
        "data_bytes": x.nbytes,
        "their_iterations": int(theirs.n_iter_),
        "their_converged": bool(theirs.n_iter_ < theirs.max_iter),
        "log_evidence_gain": float(ours.scores_[-1] - theirs.scores_[-1]),
        "noise_precision_difference": float(abs(ours.alpha_ / theirs.alpha_ - 1)),
        "prior_precision_difference": float(abs(ours.lambda_ / theirs.lambda_ - 1)),
        "mean_difference": float(np.abs(mean - their_mean).max() / y.std()),
        "std_difference": float(np.abs(std / their_std - 1).max()),
    }


PLAN = {
    "400 × 30": {"n": 400, "d": 30, "repeats": 5, "their_repeats": 5, "seed": 0},
    "20,000 × 1,000": {"n": 20_000, "d": 1_000, "repeats": 5, "their_repeats": 3, "seed": 0},
    "5,000 × 5,000": {"n": 5_000, "d": 5_000, "repeats": 5, "their_repeats": 1, "seed": 0},
    "1,000 × 20,000": {"n": 1_000, "d": 20_000, "repeats": 5, "their_repeats": 1, "seed": 0, "decay": 0.5},
    "4,000 × 4,000": {"n": 4_000, "d": 4_000, "repeats": 3, "their_repeats": 1, "seed": 0, "decay": 0.5},
    "1,000 × 8,000": {"n": 1_000, "d": 8_000, "repeats": 5, "their_repeats": 1, "seed": 0, "decay": 0.5},
}
RUN = 6  # cells of the plan that have been run
CELLS = dict(list(PLAN.items())[:RUN])

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

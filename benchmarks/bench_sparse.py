"""What does BayesianRidge cost on sparse data, in units of SciPy's own product XᵀXV?

X has 50 non-zeros a row in random columns, the worst case for a cache, and 16 draws make a block of 33 columns. The
product itself grows faster than the number of non-zeros, so the fit is measured in passes of that product, timed in the
same process before and after: `overhead` is the time of the whole fit, end to end, over passes × SciPy's time per pass. It
should neither be far above one nor grow with the data.
"""

import statistics

import harness

DRAWS, NON_ZEROS = 16, 50


def matrix(n: int, d: int, seed: int):
    """Normal entries in random places; the few places drawn twice in a row hold a sum."""
    import numpy as np
    import scipy.sparse

    rng = np.random.default_rng(seed)
    places = np.sort(rng.integers(d, size=(n, NON_ZEROS), dtype=np.int32), axis=1)
    starts = np.arange(0, n * NON_ZEROS + 1, NON_ZEROS)
    x = scipy.sparse.csr_array((rng.normal(size=n * NON_ZEROS), places.ravel(), starts), shape=(n, d))
    x.sum_duplicates()
    return x, rng


def measure(n: int, d: int, repeats: int, seed: int) -> dict:
    from lapwing.linear import ridge

    x, rng = matrix(n, d, seed)
    y = x @ rng.normal(size=d) / NON_ZEROS**0.5 + 0.5 * rng.normal(size=n) + 1.0
    block = rng.normal(size=(d, 2 * DRAWS + 1))
    before, posteriors = harness.peak_memory(), []

    def one_pass() -> float:
        return harness.timed(lambda: x.T @ (x @ block))[0]

    def recorded(*arguments, found=ridge.find):
        posteriors.append(found(*arguments))
        return posteriors[-1]

    ridge.DRAWS, ridge.find = DRAWS, recorded
    one_pass()
    passes = [one_pass() for _ in range(repeats)]
    seconds, model = harness.timed(lambda: ridge.BayesianRidge().fit(x, y))
    peak = harness.peak_memory()
    passes += [one_pass() for _ in range(repeats)]
    (posterior,), per_pass = posteriors, statistics.median(passes)
    found = posterior.gaussian.ritz
    chain, side = found.space.chain, found.space.side
    products = chain.passes + (side == "dual")  # one more makes weights of what is kept on the side of the data
    return {
        "seconds": seconds,
        "scipy_seconds_per_pass": per_pass,
        "scipy_seconds": passes,
        "passes": products / 2,
        "columns": chain.columns / 2,
        "block_steps": found.space.steps,
        "directions": len(found.space.ritz),
        "side": side,
        "limited_by": found.space.limited_by,
        "overhead": seconds / (products / 2 * per_pass),
        "overhead_per_block_step": seconds / (found.space.steps * per_pass),
        "error_bound": found.error(float(model.lambda_), float(model.alpha_)),
        "prior_precision": float(model.lambda_),
        "noise_precision": float(model.alpha_),
        "non_zeros": x.nnz,
        "data_bytes": x.data.nbytes + x.indices.nbytes + x.indptr.nbytes,
        "peak_bytes": peak,
        "peak_above_data_bytes": peak - before,
    }


# on one busy core a pass takes 0.1, 0.4, 2.7, 4.8 and 18 s: no cell is expected to take more than six minutes
CELLS = {
    "10⁴ × 10⁴": {"n": 10_000, "d": 10_000, "repeats": 3, "seed": 0},
    "10⁴ × 10⁵": {"n": 10_000, "d": 100_000, "repeats": 5, "seed": 0},
    "10⁵ × 10⁵": {"n": 100_000, "d": 100_000, "repeats": 3, "seed": 0},
    "10⁵ × 10⁶": {"n": 100_000, "d": 1_000_000, "repeats": 3, "seed": 0},
    "10⁶ × 10⁵": {"n": 1_000_000, "d": 100_000, "repeats": 2, "seed": 0},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

"""The page docs/explanation/links.md, from the results of bench_links.py."""

from table_networks import results, table

ORDER = ("none", "probit", "full probit", "bridge", "bridge with norm", "monte carlo", "quadrature")


def errors(cells: dict) -> str:
    rows = []
    for name, r in results(cells):
        found = [r["links"].get(link) for link in ORDER]
        shown = [f"{one['mean_error']:.1e} / {one['largest_error']:.1e}" if one else "–" for one in found]
        rows.append([name, *shown, f"{r['reference_difference']:.0e} ({r['reference']})"])
    return table(["logits", *ORDER, "error of the truth itself"], rows)


def page(parts: dict) -> str:
    return f"""# Links

A network's outputs are Gaussian under the posterior: a mean, and a covariance between the outputs of one input. What you
want is the probability of each class, which is an average of the softmax (or of the sigmoid) over that Gaussian, and for
which there is no formula. A *link* is a way to get that average. Choose one by `posterior.predict(x, link=...)` or
`posterior.tune(validation, link=...)`; without a choice it is the one that the precision was tuned with, and the
first of the likelihood's `links` otherwise.

| link | what it does | needs |
|---|---|---|
| `"probit"` | divides every logit by √(1 + π/8 · its variance) (MacKay 1992) | variances |
| `"full probit"`, the default | the same for the difference of every two logits, so that what all logits share does not count (Lu, Ie and Sha 2020) | covariances |
| `"bridge"` | takes the mean of a Dirichlet whose logits have this mean and covariance (Hobbhahn et al. 2022) | covariances |
| `"bridge with norm"` | the same after bringing the logits to a common variance | covariances |
| `"monte carlo"` | averages over 512 draws in pairs of opposite sign, or over the posterior's own draws | covariances, or draws |
| `"quadrature"` | computes the integral, where every output stands alone: `Bernoulli()`, `Poisson()`, `HeteroscedasticGaussian()`, and your own with one output | variances |

## Errors

Each cell: the mean over inputs, and the worst, of the largest error of a probability. Means of logits are normal with a
standard deviation of 3, and the standard deviation of the logits around them is what the first column says: 0.5 is an input
like the training data, 2 one where the data say little, 6 one where they say nothing. "none" leaves the uncertainty
out. The truth is the integral itself, by quadrature or by two million draws, and its own error stands last.

{errors(parts["links"])}

The default costs next to nothing and is the best of the closed forms; Monte Carlo is the one to take where inputs are far
from the data and classes are many. The bridges are as published: they take the logits as conditioned on their sum being
zero, so that a constant added to all logits, which no softmax notices, moves them wherever classes differ in variance, as
they do here. They are for comparison.

Written by `benchmarks/table.py` from `benchmarks/results/links.jsonl`; run it again with `python
benchmarks/bench_links.py --force`. Covariances are those of random factors: those of your network may be kinder or not, and
`link="monte carlo"` beside the default tells.
"""

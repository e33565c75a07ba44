"""The part of benchmarks/README.md that is about networks."""

from statistics import fmean, median


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def results(cells: dict) -> list[tuple[str, dict]]:
    return [(name, cell["result"]) for name, cell in cells.items()]


def resnet(cells: dict) -> str:
    rows = []
    for name, r in results(cells):
        for part in ("test", "jpeg", "noise"):
            ours, rival, plain = (r[part][method] for method in ("lapwing", "temperature scaling", "MAP"))
            gap = f"{ours['nll_over_temperature_scaling']:+.3f} ± {ours['standard_error']:.3f}"
            rows.append([
                name, part, f"{plain['nll']:.3f} / {plain['ece']:.3f}", f"{rival['nll']:.3f} / {rival['ece']:.3f}",
                f"**{ours['nll']:.3f} / {ours['ece']:.3f}**", gap, f"{plain['accuracy']:.1%} → {ours['accuracy']:.1%}",
            ])  # fmt: skip
    return table(
        ["posterior", "images", "network, NLL / ECE", "temperature scaling", "lapwing", "NLL over temperature scaling",
         "accuracy"], rows,
    )  # fmt: skip


def novelty(cells: dict) -> str:
    keys = (
        "novelty",
        "entropy of lapwing",
        "entropy of temperature scaling",
        "entropy of MAP",
        "mutual information",
        "variance",
    )
    rows = [[name, *(f"{r['auroc'][key]:.3f}" for key in keys)] for name, r in results(cells)]
    return table(["posterior", *keys], rows)


def resnet_peers(cells: dict) -> str:
    rows = [
        [name, f"{r['their_fit_seconds']:.1f} / {r['our_fit_seconds']:.1f} s", f"**{r['fit_ratio']:.1f}×**",
         f"{r['their_predict_seconds']:.1f} / {r['our_predict_seconds']:.1f} s", f"**{r['predict_ratio']:.1f}×**",
         f"{r['their_nll']:.3f} / {r['our_nll']:.3f}", f"{r['their_ece']:.3f} / {r['our_ece']:.3f}"]
        for name, r in results(cells) if "fit_ratio" in r
    ]  # fmt: skip
    return table(["structure", "fit and tune, theirs / ours", "ratio", "predict", "ratio", "NLL", "ECE"], rows)


def peers_alone(cells: dict) -> str:
    """What KFAC costs before any tuning, and the peak memory of each side in a process of its own."""
    plain, both = cells["KFAC, n = 1,000, not tuned"]["result"], cells["KFAC, n = 1,000"]["result"]
    ours, theirs = (cells[f"KFAC, {who} alone"]["peak_memory_bytes"] / 1e9 for who in ("ours", "laplace-torch"))
    return (
        f"Without tuning, a KFAC fit is {plain['untuned_fit_ratio']:.2f} times as fast as laplace-torch's: both spend most of it on "
        "the same backward passes. Ours has 32 draws by then. "
        f"Peak memory, each alone with 200 training images: {theirs:.1f} GB and {ours:.1f} GB. The KFAC row is scored on 60 "
        f"images, too few to tell the two NLLs apart; laplace-torch chose {both['their_precision']:.0g}, the end of its grid."
    )


def ggn(cells: dict) -> str:
    rows = [
        [name, f"{median(r['their_seconds']):.3g} / {median(r['our_seconds']):.3g} s", f"**{r['speedup']:.1f}×**",
         f"{r['their_passes']:.0f} / {r['our_passes']:.0f}", f"{r['our_passes'] / r['textbook_passes']:.2f}",
         f"{r['product_difference']:.1e}"]
        for name, r in results(cells)
    ]  # fmt: skip
    return table(
        ["product", "curvlinops / lapwing", "ratio", "forward passes that take as long", "ours over 4k + 1",
         "results differ by"], rows,
    )  # fmt: skip


def whole_fit(cells: dict) -> str:
    rows = [
        [name, f"{r['weights']:,} / {r['rows']:,}", f"{r['effective_dimension']:.0f}", f"**{r['block_passes'] / 2:.0f}**",
         f"{r['columns_per_draw']:.1f}", f"{r['mode_passes']:.0f}", f"{r['function_error']:.1%} (bound {r['error_bound']:.1%})",
         f"{r['fit_seconds']:.0f} s"]
        for name, r in results(cells)
    ]  # fmt: skip
    return table(
        ["network", "weights / rows", "γ", "block passes", "columns per draw", "single passes for the mode",
         "error of drawn functions", "fit"], rows,
    )  # fmt: skip


def sgd(cells: dict) -> str:
    """Errors of drawn functions after so many epochs of SGD on L′, beside the Krylov space's."""
    rows = [
        [name, f"{r['function_error']:.1%} after {r['block_passes'] / 2:.0f}",
         ", ".join(f"{error:.1%} after {epochs}" for epochs, error in r["sgd"].items())]
        for name, r in results(cells)
    ]  # fmt: skip
    return table(["network", "Krylov: error after passes", "SGD on L′: error after passes"], rows)


def variances(cells: dict) -> str:
    rows = [
        [name, f"{at['jvps']}", f"{at['sd_error']:.1%} ± {at['standard_error']:.1%}", f"{at['theory']:.1%}",
         f"{at['space_sd_error']:.1%}"]
        for name, r in results(cells) for at in r["rows"]
    ]  # fmt: skip
    return table(
        ["network", "draws, a Jacobian product each", "error of standard deviations", "1 / √(2 k)",
         "by the space's own bounds"], rows,
    )  # fmt: skip


def natural_gradient(cells: dict) -> str:
    rows = [
        [name.split(",")[0], f"{r['epochs']}", f"{r['elbo']:.0f} ± {r['standard_error']:.0f}"]
        for name, r in results(cells)[1:]
    ]  # fmt: skip
    return table(["method", "epochs", "ELBO, nats"], rows)


def memory(cells: dict) -> str:
    rows = [
        [name, f"{r['stored_jacobian_bytes'] / 1e9:.1f} GB", f"{r['peak_bytes'] / 1e6:.1f} MB",
         f"{r['predicted_over_measured']:.2f}"]
        for name, r in results(cells)
    ]  # fmt: skip
    return table(
        ["LeNet, 16 columns", "Jacobian, if it were stored", "peak of a product", "predicted / measured"], rows
    )


def fit_memory(cells: dict) -> str:
    rows = [
        [name, f"{r['peak_bytes'] / 1e6:,.0f} MB", f"{r['predicted_bytes'] / 1e6:,.0f} MB",
         f"{r['predicted_over_measured']:.2f}"]
        for name, r in results(cells)
    ]  # fmt: skip
    return table(["LeNet, exact, class labels", "peak of the fit", "foretold", "foretold / measured"], rows)


def variational(cells: dict) -> str:
    rows = [
        [
            name,
            f"{r['test_nll']:.3f}",
            f"{r['test_accuracy']:.1%}",
            f"{r['test_ece']:.3f}",
            f"{r['divergence_per_unit']:.3g}",
        ]
        for name, r in results(cells)
    ]
    return table(["hidden units, temperature", "test NLL", "accuracy", "ECE", "KL per unit"], rows)


def cold_posterior(cells: dict, variational_cells: dict) -> str:
    """Langevin dynamics over T, and the variational fits at the temperatures that mean the same."""
    rows = [
        [f"{name}, Langevin", f"{r['nll']:.3f}", f"{r['gibbs_nll']:.3f}", f"{r['accuracy']:.1%}", f"{r['ece']:.3f}",
         f"{r['r_hat']:.2f}"]
        for name, r in results(cells)
    ]  # fmt: skip
    rows += [
        [f"{name}, variational", f"{r['test_nll']:.3f}", f"{r['test_gibbs_nll']:.3f}", f"{r['test_accuracy']:.1%}",
         f"{r['test_ece']:.3f}", "–"]
        for name, r in results(variational_cells) if name in ("N = 64, η = 1", "N = 64, η = 0.1")
    ]  # fmt: skip
    return table(["hidden units, temperature", "test NLL", "of single draws", "accuracy", "ECE", "largest R-hat"], rows)


def variational_cost(speed: dict, peers: dict) -> str:
    rows = [
        [name, f"{speed[name]['result']['ratio']:.2f}×" if name in speed else "–", f"{r['speedup']:.2f}×",
         f"{memory_ratio(speed[name]['result']):.1f}×" if name in speed else "–"]
        for name, r in results(peers)
    ]  # fmt: skip
    columns = ("network", "epoch over a deterministic one", "faster than bayesian-torch by")
    return table([*columns, "memory over a deterministic epoch"], rows)


def memory_ratio(result: dict) -> float:
    return result["random_growth_bytes"] / max(result["plain_growth_bytes"], 1)


PUBLISHED = {
    "MAP": "91.4 % / .258 / .017 / .864", "networks drawn, own precision": "84.4 % / .942 / .411 / .945",
    "linearised, KFAC": "92.3 % / .244 / .012 / .955",
}  # fmt: skip


SETS = {"fashion": "Fashion-MNIST", "cifar": "CIFAR-10 (JPEG)"}


def fashion(cells: dict) -> str:
    """Means over the seeds of each set and length of training, with the paired difference of NLL to the raw network."""
    alike: dict[tuple[str, int], list[dict]] = {}
    for name, result in results(cells)[1:]:
        given = cells[name]["arguments"]
        alike.setdefault((SETS[given["name"]], given["epochs"]), []).append(result)
    rows = []
    for (source, epochs), found in alike.items():
        right = fmean(r["training_accuracy"] for r in found)
        for road in found[0]["roads"]:
            at = [r["roads"][road] for r in found]
            gap = f"{fmean(r['nll_over_map'] for r in at):+.4f} ± {joint_error(at, 'nll_over_map_error'):.4f}"
            rows.append([
                f"{source}, {epochs}, {len(found)} ({right:.1%})", road, f"{fmean(r['accuracy'] for r in at):.1%}",
                *(f"{fmean(r[score] for r in at):.3f}" for score in ("nll", "ece", "auroc")), "–" if road == "MAP" else gap,
                PUBLISHED.get(road, "–") if source == "Fashion-MNIST" else "–",
            ])  # fmt: skip
    head = [
        "images, epochs, seeds (right in training)",
        "method",
        "accuracy",
        "NLL",
        "ECE",
        "AUROC, out of distribution",
        "NLL over MAP",
    ]
    return table([*head, "published"], rows)


def joint_error(found: list[dict], name: str) -> float:
    """The standard error of a mean over seeds from those of the seeds, each over its test images."""
    return sum(one[name] ** 2 for one in found) ** 0.5 / len(found)


def page(parts: dict) -> str:
    return f"""
## A network somebody else trained

ResNet-20 on CIFAR-10 interpolates its training data. All weights, conditioned on n training images each counted 50,000 / n
times, the precision tuned on 200 held-out images; temperature scaling on the same 200. The other 800 test images were scored
once. NLL differences are paired. Some settings were tried before, on other images, to choose the default (below).

{resnet(parts["resnet20"])}

How well a score tells pictures of clothes from CIFAR-10's test images (AUROC):

{novelty(parts["resnet20"])}

All weights tie with temperature scaling in distribution and on JPEG images, where they are a little better calibrated, and
lose on strong noise. For novelty nothing wins everywhere: on clothes the entropy of temperature scaling is best, on letters
(below) the share of prior variance that the data left is. Raw variance is worse than useless, since dull pictures have
small features. On memorised data a few hundred held-out images decide the width of both, and the rest is the network's.

What was tried on 200 validation images, 300 JPEG-compressed test images outside the 1,000, 200 of those with noise, and 200
letters (difference of NLL to temperature scaling, and AUROC of novelty against the letters; temperature scaling's entropy
has 0.928), with the full-probit link unless said:

| prior | validation | JPEG | noise | novelty |
| --- | --- | --- | --- | --- |
| **one curvature per tensor** (the default) | +0.001 ± 0.007 | −0.005 ± 0.005 | +0.014 ± 0.030 | 0.964 |
| the same, curvature weighted by the softmax's | +0.001 ± 0.007 | −0.002 ± 0.005 | +0.070 ± 0.028 | 0.955 |
| isotropic | +0.001 ± 0.007 | −0.006 ± 0.005 | +0.061 ± 0.031 | 0.973 |
| isotropic, Monte Carlo | +0.004 ± 0.010 | −0.011 ± 0.014 | +0.219 ± 0.078 | 0.972 |
| isotropic, diagonal probit | +0.006 ± 0.010 | +0.015 ± 0.012 | not run | not run |
| every layer the same share of prior variance | +0.002 ± 0.006 | −0.009 ± 0.006 | +0.059 ± 0.031 | 0.936 |
| one curvature per weight | +0.004 ± 0.009 | +0.001 ± 0.005 | +0.071 ± 0.028 | 0.940 |
| one curvature per weight, Monte Carlo | +0.015 ± 0.010 | −0.005 ± 0.015 | +0.184 ± 0.077 | 0.936 |
| last layer only | +0.027 ± 0.018 | +0.032 ± 0.013 | +0.050 ± 0.028 | 0.776 |
| last layer only, Monte Carlo | +0.036 ± 0.023 | +0.022 ± 0.012 | +0.203 ± 0.077 | 0.815 |

Beside laplace-torch 0.3, both tuned on the same held-out images, 200 of them, 60 for KFAC:

{resnet_peers(parts["resnet20_peers"])}

{peers_alone(parts["resnet20_peers"])}

## Raw network, Laplace without linearisation, linearised Laplace

Fashion-MNIST in small: three convolutions and three linear layers (26,794 weights), 10,000 training images. Precisions and the
temperature are tuned on 400 images of their own, 1,000 test images scored once; out-of-distribution images are MNIST's, ranked by the entropy.
KFAC sees all training images, the exact posterior 60 or 150 of them counted as all. Published (Immer et al. 2021: accuracy /
NLL / ECE / AUROC) are a larger network and all 60,000 images. After ten epochs the network underfits, and no posterior has
anything to mend. Trained to the end it is too sure of itself; then the linearised posteriors have the best NLL and rank
out-of-distribution images best, temperature scaling included, as published. The network at weights sampled from the same posterior
is worse than it but, at a precision tuned on held-out data, not as bad as published.

{fashion(parts["fashion_table"])}

## Gauss–Newton products

Blocks of columns in float32, both packages in one process and in turns.

{ggn(parts["ggn"])}

## A whole fit

Posterior, evidence-tuned precision at the mode, and draws, by one shared Krylov space. A block pass is a product of all
columns with the Jacobian and one with its transpose. The single-column passes for the mode are what takes the time.

{whole_fit(parts["lenet_fit"])}

What stochastic gradients on L′ need for the same draws, with few enough data for the truth to be known; a pass is an epoch:

{sgd(parts["lenet_sgd"])}

What a predictive variance costs and how good it is. More draws are the only cheap way to a better one: the middle of the
space's bounds needs a product for every output at each input, and a pass over the training data.

{variances(parts["variance"])}

## Memory of products

{memory(parts["network_memory"])}

{fit_memory(parts["fit_memory"])}

## Tempered variational inference

One hidden layer on 6,000 MNIST images, 12 epochs, one seed; τ is tuned on 2,000 others, and the test images are 2,000 more.

{variational(parts["variational"])}

The same network by stochastic gradient Langevin dynamics, four chains: at (likelihood × prior)^(1/T), and at
likelihood^(1/η) × prior, which is what a variational fit is after. At T = η = 1 all are after the same. Here a cold
posterior hardly differs and a cold likelihood does. At η = 1 the chains do little better than the Gaussians, which hints that the
posterior itself, not its approximation, is too near this prior. But it is one seed and one width, and by R-hat the chains have
not met, least of all at small η, where they also started at the prior: a trend, no more.

{cold_posterior(parts["cold_posterior"], parts["variational"])}

{variational_cost(parts["variational_speed"], parts["variational_peers"])}

Natural gradients with half the epochs of Bayes by Backprop: digits, 50 hidden units, η = 0.1, settings chosen on seed 0, three
other seeds.

{natural_gradient(parts["natural_gradient"])}
"""

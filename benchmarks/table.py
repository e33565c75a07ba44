"""Write the pages that are made from results; `--check` only says whether they are up to date."""

import sys
from pathlib import Path

import harness
import table_classes as classes
import table_evidence as evidence
import table_integrations as integrations
import table_large as large
import table_links as links
import table_networks as networks
import table_posteriors as posteriors
import table_results as results
import table_studies
import table_tabular as tabular
import table_tomography as tomography
import table_trust as trust

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def ridge(cells: dict) -> str:
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: item[1]["arguments"]["n"] * item[1]["arguments"]["d"]):
        r = cell["result"]
        rows.append([
            name, f"{median(r['their_seconds']):.3g} s ({r['their_iterations']} iterations)",
            f"{median(r['our_seconds']):.3g} s", f"**{r['speedup']:.1f}×**",
            f"{r['their_peak_bytes'] / 1e9:.2f} / {r['our_peak_bytes'] / 1e9:.2f} GB",
            f"{r['prior_precision_difference']:.1e}, {r['noise_precision_difference']:.1e}",
            f"{r['log_evidence_gain']:+.1e}", f"{r['std_difference']:.1e}",
        ])  # fmt: skip
    return table(
        ["n × d", "scikit-learn", "lapwing", "ratio", "peak memory, theirs / ours",
         "prior and noise precision differ by", "evidence gained", "predictive std differs by"], rows,
    )  # fmt: skip


def agreement(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        keys = ("noise_precision", "prior_precision", "coefficient", "std")
        converged = "" if r["their_converged"] else " (scikit-learn did not converge)"
        rows.append(
            [f"{name}{converged}", f"{r['n']:,} × {r['d']}", *(f"{r[f'{key}_difference']:.1e}" for key in keys)]
        )
    return table(["data", "n × d", "noise precision", "prior precision", "coefficients", "predictive std"], rows)


def passes(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r = cell["result"]

        def shown(run: dict) -> str:
            return f"{run['passes']:.0f}" + ("" if run["arrived"] else " (not there yet)")

        rows.append([
            name, f"{r['effective_dimension']:.0f}", f"**{shown(r['krylov'])} / {shown(r['krylov_with_tuning'])}**",
            f"{shown(r['cg'])} / {shown(r['cg_with_tuning'])}",
            f"{shown(r['nystrom_cg'])} / {shown(r['nystrom_cg_with_tuning'])}",
            f"{shown(r['sgd_best_with_tuning'])}",
            f"{r['sgd_over_krylov_passes']:.0f}× / {r['sgd_over_krylov_passes_with_tuning']:.0f}×",
            f"{r['sgd_over_krylov_columns']:.0f}× / {r['sgd_over_krylov_columns_with_tuning']:.0f}×",
        ])  # fmt: skip
    return table(
        ["data", "γ", "shared Krylov, fixed / with tuning", "CG, fixed / with tuning", "Nyström CG, fixed / with tuning",
         "best SGD with tuning", "best SGD over Krylov, passes", "the same in products with a column"], rows,
    )  # fmt: skip


def variance(cells: dict) -> str:
    rows = [
        [name, f"{r['effective_dimension']:.0f}", f"{r['measured_ratio']:.3g}", f"{r['predicted_ratio']:.3g}",
         f"{r['mixture_over_better']:.3f}"]
        for name, r in ((name, cell["result"]) for name, cell in cells.items())
    ]  # fmt: skip
    return table(
        ["problem", "γ", "variance of L / L′, measured", "by the leverages", "mixture / the better of both"], rows
    )


def batch_size(cells: dict) -> str:
    rows = [
        [name, f"{r['effective_dimension']:.0f}", f"{r['predicted_ratio']:.1f}", f"{r['batch_size_ratio']:.1f}"]
        for name, r in ((name, cell["result"]) for name, cell in cells.items())
    ]
    return table(["problem", "γ", "predicted ratio", "batches of L that match those of L′ are larger by"], rows)


def one_sample(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        errors = [f"{k} draws: {r[f'draws_{k}']['prior_precision_error_rms']:.1%}" for k in cell["arguments"]["draws"]]
        rows.append([name, f"{r['rows']:,} × {r['weights']:,}", f"{r['effective_dimension']:.0f}", ", ".join(errors)])
    return table(["problem", "rows × weights", "γ", "error of the tuned prior precision (root mean square)"], rows)


def sparse(cells: dict) -> str:
    rows = [
        [name, f"{r['seconds']:.3g} s", f"{r['passes']:.1f}", f"{r['scipy_seconds_per_pass']:.3g} s",
         f"**{r['overhead']:.2f}**", f"{r['peak_bytes'] / 1e9:.2f} GB"]
        for name, r in ((name, cell["result"]) for name, cell in cells.items())
    ]  # fmt: skip
    return table(
        [
            "rows × columns",
            "fit, tuned, 16 draws",
            "passes",
            "SciPy's XᵀXV, 33 columns",
            "fit / (passes × SciPy)",
            "peak memory",
        ],
        rows,
    )


def streaming(cells: dict) -> str:
    rows = [
        [name, f"{r['stored_features_bytes'] / 1e6:,.0f} MB", f"{r['targets_bytes'] / 1e6:,.1f} MB",
         f"{r['fit_bytes'] / 1e6:,.0f} MB", f"{r['passes']:.0f}"]
        for name, r in ((name, cell["result"]) for name, cell in cells.items())
    ]  # fmt: skip
    return table(
        [
            "problem",
            "features, if they were stored",
            "targets",
            "peak memory of the fit",
            "passes",
        ],
        rows,
    )


def symmetry(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        rows.append([
            name, f"{r['half_width']:.1f} ± {r['half_width_error']:.1f}°", f"{r['half_width_of_applied']:.1f}°",
            f"{r['published_half_width']:.1f}°" if name.startswith("MNIST") and "start" not in name else "–",
            f"{r['inferred_half_width']:.0f}°", f"{r['orbit_ratio']:.3f}", f"{r['correlation']:.3f}",
            f"{r['median_error']:.1f}°", f"{r['upside_down_2']:.0%}, {r['upside_down_8']:.0%}",
        ])  # fmt: skip
    return table(
        ["data, turned by up to", "half-width of p(η \\| x̂)", "0.9 ρ", "published", "half-width of all inferred angles",
         "orbit over kinds", "correlation", "median error of an angle", "two ways up: 2, 8"], rows,
    )  # fmt: skip


def symmetry_data(cells: dict) -> str:
    found: dict[str, dict[str, str]] = {}
    for name, cell in cells.items():
        data, _, model = name.partition(" pictures, ")
        found.setdefault(data, {})[model] = f"{cell['result']['log_prob']:.1f} ± {cell['result']['standard_error']:.1f}"
    models = ["linear", "autoencoder", "prototypes", "prototypes, bicubic"]
    rows = [[data, *(own.get(model, "–") for model in models)] for data, own in found.items()]
    return table(["pictures turned by any angle", *models], rows)


def symmetry_poses(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        if cell["arguments"]["part"] == "poses":
            rows.append([
                name.removeprefix("poses, "), f"{r['upside_down_8']:.0%}", f"{r['upside_down_2']:.0%}",
                f"{r['overlap_8']:.2f}", f"{r['overlap_2']:.2f}", f"{r['pose_score']:.2f} ± {r['pose_score_error']:.2f}",
                f"{r['pose_score_8']:.2f}", f"{r['pose_score_2']:.2f}",
            ])  # fmt: skip
    return table(
        ["p(η \\| x̂)", "8s with two modes", "2s with two modes", "overlap, 8s", "overlap, 2s", "log p(η \\| x̂), all kinds",
         "8s", "2s"], rows,
    )  # fmt: skip


def symmetry_reach(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        if cell["arguments"]["part"] != "poses":
            rows.append([
                name, f"{r['orbit_ratio_in_data']:.3f}", f"{r['orbit_ratio']:.3f}", f"{r['found_again_in_data']:.0%}",
                f"{r['found_again']:.0%}",
            ])  # fmt: skip
    return table(
        ["made alike over", "orbit over kinds, ±30°", "whole circle", "found again, ±30°", "whole circle"], rows
    )


def page() -> str:
    parts = {path.stem: harness.read(path) for path in sorted(harness.RESULTS.glob("*.jsonl"))}
    some = next(iter(parts["ridge"].values()))
    versions = ", ".join(f"{name} {number}" for name, number in some["versions"].items() if name != "lapwing")
    return f"""# Benchmarks

Written by `benchmarks/table.py` from `benchmarks/results/*.jsonl`; each of those lines holds its command, commit, versions
and times. `python benchmarks/bench_….py --force` measures again; `make bench` runs what has no line yet. The machine was shared
while some cells were timed; ratios are within one process, but their last digit means little. {some["cores"]} cores, Python {some["python"]}, {versions}.

## BayesianRidge against scikit-learn's

Both fit the same data in the same process, medians of several fits, without an intercept. "Evidence gained" is our log
evidence minus theirs: theirs stops when the coefficients move by less than 1e-3, ours at the maximum. Up to 1,500 on the
smaller side ours is exact; beyond, precisions come from 32 probes, and predictive standard deviations from 32 draws, each
with about 13 % of error on the epistemic part: that is the price of the 5,000 × 5,000 row. On small data the fixed cost of
the global search makes ours slower, by milliseconds. The columns of the 1,000 × 20,000 row decay: with equal columns noise
and signal cannot be told apart there, and the two packages end at different optima.

{ridge(parts["ridge"])}

## The same results on real data

Relative differences to scikit-learn's `BayesianRidge` run to a tolerance of 1e-8, on standardised columns. They come from
the intercept, which costs one observation in ours and none in theirs.

{agreement(parts["ridge_agreement"])}

## Passes over the data to 2 % error of 32 drawn functions

One pass is a product with the features and one with their transpose, of all columns at once. The Krylov space is tuned on
the way, grown until its own prior precision is within 5 % too; the others repeat their solves for every step of the
precisions, warm-started with the same noise, and stop at the first pass that arrives.

{passes(parts["passes"])}

![Passes of every method](../docs/images/passes.png)

## Gradient noise of L, L′ and their mixture

{variance(parts["gradient_variance"])}

Where γ ≈ nm/17 batches of L must be about sixteen times larger for the same error:

{batch_size(parts["batch_size"])}

![Error over batch size](../docs/images/batch_size.png)

## One sample is enough

The prior precision tuned with one, two and eight draws, against the exact one, over 20 seeds (4 in the smallest).

{one_sample(parts["one_sample"])}

![Error of the tuned precision over draws](../docs/images/one_sample.png)

## Sparse data

50 non-zeros a row in random columns. SciPy's own product is the unit, timed in the same process: the fit costs its
products and an overhead for orthogonalisation and tuning that weighs most where products are cheapest.

{sparse(parts["sparse"])}

## Streamed features

Rows made on the fly, by products alone: neither the features nor any block of all rows is stored. What still grows with n
are the targets, their weights and temporaries of that length.

{streaming(parts["streaming"])}

## How far were pictures turned?

Two stages: a network that infers poses, and a flow p(η | x̂). "Start" is that network before any training, when it is a
pose by third moments; the flow is trained in every row. 0.9 ρ is what was applied, and the spread that pictures have of
their own comes on top. The published half-widths are of all angles that another model inferred; of ours that statistic
says little, since the zero of each prototype is arbitrary. The last column is the share of pictures whose p(η | x̂) has
two modes half a turn apart: an 8 of MNIST has none, since it is drawn one way up and its halves differ. In the last row each
8 was averaged with itself upside down before it was turned, and most have both. No continuous network gives one pose to
a picture that looks the same both ways up, hence that row's larger errors of angles and prototypes. Training the network
makes prototypes of one orbit several times more alike; the widths hardly need it. The steps and the width for
digits were chosen while looking at these test pictures; the ones of MNIST had not been looked at.

{symmetry(parts["symmetry"])}

### Without each conjecture

![Poses of two-fold digits under three models, and prototypes over the range of the encoder](../docs/images/symmetry_conjectures.png)

MNIST turned by ±30°, one seed. First the poses, with two-fold 8s as above: a flow that sees the prototype, a Gaussian, and a flow
that does not see it. The overlap is that of p(η | x̂) with itself half a turn on, between 0 and 1; log densities are in
nats, of test pictures.

{symmetry_poses(parts["symmetry_conjectures"])}

Then how far the invariance reaches: the range ±ρ over which the network of the two stages is made alike, or over which the
encoder of the joint model is averaged. "Found again" is the share of test pictures whose prototype is nearest to that of the
same picture turned otherwise, of all pictures'. Copies are turned by ±30°, as the data were, or by any angle. What was
conjectured is that prototypes of data at ±30° split where ρ is below 60°. Along the whole circle they do, and more:
both models need more than ±60°, and the joint model all of it. Within the range of the data the two stages split only at
ρ = 0, probably since the network learns to follow an angle from other pictures than the one that is turned; the joint model splits
less and less up to ±90°, without a border at 60°. It is trained for 500 steps, so that its prototypes are blurred and
alike: hence low ratios, and few that are found again.

{symmetry_reach(parts["symmetry_conjectures"])}

### Does it save data?

A linear Gaussian model of pictures, a variational autoencoder of pictures, and poses with a linear Gaussian model of
prototypes, on 300 test pictures, in nats a picture by the exact density or a bound from 64 importance weights; errors are over
pictures, one seed. The size and the steps of the autoencoder, and bicubic reading, were chosen on training pictures that
were held out; it had up to twice the time of the others, and might do better with more. Poses with prototypes beat
it, by most where pictures are few, and with 20,000 they are level. That needs bicubic reading: a picture that is read
twice bilinearly at 14 × 14 pixels is blurred, and what is blurred counts as noise, over 30 nats. That is not all that is
missing: the linear model of pictures is still ahead of both.

{symmetry_data(parts["symmetry_data"])}
{posteriors.page(parts)}{large.page(parts)}{networks.page(parts)}{evidence.page(parts)}{tomography.page(parts)}{trust.page(parts)}{tabular.page(parts)}\
{classes.page(parts)}{integrations.page(parts)}"""


def pages() -> dict[Path, str]:
    """Every page that is made from results."""
    parts = {path.stem: harness.read(path) for path in sorted(harness.RESULTS.glob("*.jsonl"))}
    return {
        HERE / "README.md": page(),
        HERE / "tables.md": table_studies.page(parts),
        DOCS / "explanation" / "links.md": links.page(parts),
        DOCS / "results.md": results.page(parts),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path.relative_to(HERE.parent)} is not what the results say: run benchmarks/table.py")

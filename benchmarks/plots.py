"""Draw docs/images/*.png from benchmarks/results/*.jsonl; a results file that is missing is passed over."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import first_tries as fits
import harness
import matplotlib as mpl
import numpy as np
import table_results

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

IMAGES = Path(__file__).parent.parent / "docs" / "images"
# Okabe and Ito's colours, which colour-blind readers can tell apart; markers and hatches differ too
BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000",
)  # fmt: skip
OBJECTIVES = {
    "fit": ("L, noise in the fit term", RED, "s"),
    "anchor": ("L′, noise in the anchor", BLUE, "o"),
    "mixture": ("mixture", GREEN, "^"),
}
Cells = dict[str, dict[str, Any]]


def batch_size(cells: Cells) -> Figure:
    """Error of the draws over batch size, one panel a problem."""
    figure, panels = plt.subplots(1, len(cells), figsize=(4.2 * len(cells), 3.6), squeeze=False, layout="constrained")
    for axes, (name, cell) in zip(panels[0], cells.items(), strict=True):
        result = cell["result"]
        for key, (label, colour, marker) in OBJECTIVES.items():
            axes.loglog(result["batch_sizes"], result["errors"][key], color=colour, marker=marker, label=label)
        axes.set_xscale("log", base=2)
        axes.set_title(f"{name}\nL needs batches {result['batch_size_ratio']:.0f} × as large", fontsize=9)
        axes.set(xlabel="rows in a batch")
        axes.grid(which="both", alpha=0.2)
    panels[0][0].set_ylabel("relative error of the draws (energy norm)")
    panels[0][-1].legend(frameon=False)
    return figure


def gradient_variance(cells: Cells) -> Figure:
    """Measured over predicted ratio of variances."""
    figure, axes = plt.subplots(figsize=(4.6, 3.8), layout="constrained")
    results = [cell["result"] for cell in cells.values()]
    both = [result[key] for result in results for key in ("predicted_ratio", "measured_ratio")]
    ends = [min(both) / 2, max(both) * 2]
    axes.loglog(ends, ends, color=BLACK, linewidth=0.8, label="measured = predicted")
    axes.axhline(1, color=ORANGE, linestyle="--", linewidth=0.8, label="below: L′ loses")
    colours = (BLUE, RED, GREEN, PURPLE, SKY, ORANGE)
    for index, (name, result) in enumerate(zip(cells, results, strict=True)):
        point = (result["predicted_ratio"], result["measured_ratio"])
        axes.plot(*point, color=colours[index % 6], marker="os^vDP"[index % 6], linestyle="none", label=name)
    axes.set(xlabel="predicted by the leverages", ylabel="measured", title="gradient variance of L over that of L′")
    axes.legend(frameon=False, fontsize=8)
    return figure


def passes(cells: Cells) -> Figure:
    """Passes of every method, with the precisions known and with their tuning."""
    methods = {
        "krylov": ("shared Krylov space", BLUE),
        "nystrom_cg": ("CG, Nyström preconditioner", GREEN),
        "cg": ("CG from the prior draw", SKY),
        "sgd": ("best SGD", RED),
    }
    figure, axes = plt.subplots(figsize=(1.6 + 2.0 * len(cells), 3.8), layout="constrained")
    width = 0.8 / len(methods)
    for index, (key, (label, colour)) in enumerate(methods.items()):
        places = [place + width * (index - (len(methods) - 1) / 2) for place in range(len(cells))]
        found = [_fixed_and_tuned(cell["result"], key) for cell in cells.values()]
        tuned = axes.bar(places, [run["passes"] for _, run in found], width, color=colour, alpha=0.35, hatch="//")
        axes.bar(places, [run["passes"] for run, _ in found], width, color=colour, label=label)
        texts = ["" if run["arrived"] else "more" for _, run in found]
        axes.bar_label(tuned, texts, fontsize=7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(cells)), cells)
    axes.set(xlabel="data", ylabel="passes over the data", title="32 draws to 2 %; hatched: tuning included")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _fixed_and_tuned(result: dict[str, Any], key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if key != "sgd":
        return result[key], result[f"{key}_with_tuning"]
    names = ("fit", "anchor", "mixture")
    runs = [result[f"sgd_{name}{steps}"] for name in names for steps in ("", "_longer_steps")]
    return min(runs, key=lambda run: (run["passes"], run["error"])), result["sgd_best_with_tuning"]


def one_sample(cells: Cells) -> Figure:
    """Error of the tuned prior precision over the number of draws."""
    figure, axes = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
    styles = ((BLUE, "o"), (RED, "s"), (GREEN, "^"))
    for (colour, marker), (name, cell) in zip(styles, cells.items(), strict=False):
        draws, result = cell["arguments"]["draws"], cell["result"]
        errors = [100 * result[f"draws_{k}"]["prior_precision_error_rms"] for k in draws]
        label = f"{name}, γ = {result['effective_dimension']:.0f}"
        axes.loglog(draws, errors, color=colour, marker=marker, label=label)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set(xlabel="posterior draws", ylabel="rms error of the prior precision, %")
    axes.grid(which="both", alpha=0.2)
    axes.legend(frameon=False)
    return figure


def sparse(cells: Cells) -> Figure:
    """Time of a whole fit over that of its products in SciPy."""
    figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
    bars = axes.bar(list(cells), [cell["result"]["overhead"] for cell in cells.values()], color=BLUE)
    seconds = [f"{cell['result']['seconds']:.3g} s" for cell in cells.values()]
    axes.bar_label(bars, seconds, fontsize=8, color="white", padding=-12)
    axes.axhline(1, color=BLACK, linewidth=0.8)
    axes.set(xlabel="rows × columns, 50 non-zeros a row", ylabel="time of the fit / of its products in SciPy")
    return figure


def streaming(cells: Cells) -> Figure:
    """Memory of the fit beside that of stored features."""
    figure, axes = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
    columns = {
        "stored_features_bytes": ("features, if they were stored", ORANGE, "//"),
        "fit_bytes": ("the fit", BLUE, ""),
        "targets_bytes": ("targets", SKY, ".."),
    }
    for index, (key, (label, colour, hatch)) in enumerate(columns.items()):
        places = [place + 0.27 * (index - 1) for place in range(len(cells))]
        heights = [cell["result"][key] / 1e6 for cell in cells.values()]
        axes.bar(places, heights, 0.27, color=colour, hatch=hatch, label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(cells)), cells)
    axes.set(xlabel="data", ylabel="peak memory, MB")
    axes.legend(frameon=False, fontsize=8)
    return figure


def variational(cells: Cells) -> Figure:
    """Held-out scores over τ, a line a width: they fall together. Open marks are η = 1, which moves with the width."""
    figure, panels = plt.subplots(1, 3, figsize=(11.5, 3.8), layout="constrained")
    scores = {"test_nll": "NLL on test images", "test_accuracy": "accuracy", "test_ece": "calibration error"}
    styles = ((BLUE, "o"), (RED, "s"), (GREEN, "^"), (PURPLE, "D"))
    found = [cell for cell in cells.values() if cell["arguments"]["data"] == "mnist"]
    widths = sorted({cell["arguments"]["hidden"] for cell in found})
    for (colour, marker), width in zip(styles, widths, strict=False):
        own = [cell for cell in found if cell["arguments"]["hidden"] == width]
        balanced = [cell["result"] for cell in own if cell["arguments"]["tau"] is not None]
        at_one = [cell["result"] for cell in own if cell["arguments"]["eta"] == "1"]
        for axes, key in zip(panels, scores, strict=True):
            taus, values = [result["tau"] for result in balanced], [result[key] for result in balanced]
            axes.semilogx(taus, values, color=colour, marker=marker, label=f"N = {width:,}")
            for result in at_one:
                axes.plot(result["tau"], result[key], color=colour, marker=marker, fillstyle="none", markersize=10)
    for axes, label in zip(panels, scores.values(), strict=True):
        axes.set(xlabel="τ = η N / p", ylabel=label)
        axes.grid(alpha=0.2)
    panels[0].legend(frameon=False, title="open: η = 1")
    return figure


def symmetry_conjectures(cells: Cells) -> Figure:
    """p(η | x̂) of two-fold 8s under three models, who has two modes, and prototypes over the range of the encoder."""
    figure, panels = plt.subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    kinds = {"flow": (BLUE, "-", ""), "Gaussian": (RED, "--", "//"), "without x̂": (GREEN, ":", "..")}
    for index, (kind, (colour, line, hatch)) in enumerate(kinds.items()):
        result = cells[f"poses, {kind}"]["result"]
        density = result["mean_density_8"]
        angles = [(place + 0.5) / len(density) * 360 - 180 for place in range(len(density))]
        half = len(density) // 4  # so that both modes lie within the panel
        panels[0].plot([angle + 90 for angle in angles], density[half:] + density[:half], color=colour, linestyle=line)
        shares = [100 * result[f"upside_down_{digit}"] for digit in (8, 2)]
        bars = panels[1].bar([place + 0.27 * (index - 1) for place in (0, 1)], shares, 0.27, color=colour, hatch=hatch)
        panels[1].bar_label(bars, fmt="%.0f", fontsize=8)
        bars.set_label(kind)
    panels[0].set_xticks([-90, 0, 90, 180, 270], ["−90°", "0°", "90°", "180°", "270°"])
    panels[0].set(
        xlabel="pose η, from the larger mode", ylabel="density per degree", title="mean p(η | x̂) of two-fold 8s"
    )
    panels[1].set_xticks([0, 1], ["two-fold 8s:\nall should", "2s:\nnone should"])
    panels[1].set(ylabel="two modes half a turn apart, %", title="met both ways up", ylim=(0, 108))
    panels[1].legend(frameon=False, title="p(η | x̂)")
    for part, name, colour, marker in (("network", "two stages", BLUE, "o"), ("encoder", "joint model", ORANGE, "s")):
        for ending, where, line in (("", "whole circle", "-"), ("_in_data", "±30°, as the data", ":")):
            reaches = [cell["arguments"]["reach"] for name, cell in cells.items() if name.startswith(f"{part} ±")]
            found = [cell["result"] for name, cell in cells.items() if name.startswith(f"{part} ±")]
            style = {"color": colour, "marker": marker, "linestyle": line, "label": f"{name}, {where}"}
            panels[2].semilogy(reaches, [result[f"orbit_ratio{ending}"] for result in found], **style)
            panels[3].plot(reaches, [100 * result[f"found_again{ending}"] for result in found], **style)
    panels[2].set(ylabel="difference along an orbit / of kinds", title="prototypes of one picture")
    panels[3].set(ylabel="nearest to its own prototype, %", title="a picture turned is found again", ylim=(0, 103))
    for axes in panels[2:]:
        axes.set_xticks([0, 30, 60, 90, 180])
        axes.set_xlabel("range ±ρ of the encoder, degrees; data ±30°")
        axes.grid(which="both", alpha=0.2)
    panels[2].legend(frameon=False, fontsize=8, loc="upper right", borderaxespad=0)
    return figure


def first_tries(cells: Cells) -> Figure:
    """NLL of first fits of classifiers with validation data less that of temperature scaling, by data set."""
    tries = [cell["result"] for cell in cells.values() if cell["result"]["number"] in fits.FINAL]
    tries = [one for one in tries if one["validation_rows"] and "minus_ts" in one]
    by_set = {name: [one for one in tries if one["data"] == name] for name in sorted({one["data"] for one in tries})}
    figure, axes = plt.subplots(figsize=(9.6, 3.6), layout="constrained")
    for place, found in enumerate(by_set.values()):
        for number, one in enumerate(found):
            gap, sure = one["minus_ts"], abs(one["minus_ts"]) > 2 * one["minus_ts_se"]
            colour = BLUE if gap < 0 else RED
            spread = 0.6 * ((number + 0.5) / len(found) - 0.5)
            face = colour if sure else "none"
            axes.plot(place + spread, gap, "o", color=colour, markerfacecolor=face, markersize=4)
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_xticks(range(len(by_set)), by_set, rotation=35, ha="right", fontsize=8)
    axes.set_ylabel("NLL less that of\ntemperature scaling")
    axes.grid(axis="y", alpha=0.2)
    return figure


def tabular(cells: Cells) -> Figure:
    """NLL of regressors of tables less that of lapwing's, mean over splits with its standard error."""
    found = table_results.nlls(cells)
    figure, axes = plt.subplots(figsize=(7.6, 3.2), layout="constrained")
    peers = {"gp": ("Gaussian process", BLUE, ""), "boosting": ("boosting", ORANGE, "//"), "mlp": ("MLP", GREEN, "..")}
    for number, (method, (label, colour, hatch)) in enumerate(peers.items()):
        gaps = [
            np.array([found[method][data][split] - ours for split, ours in found["lapwing"][data].items()])
            for data in table_results.UCI
        ]
        errors = [2 * gap.std(ddof=1) / len(gap) ** 0.5 for gap in gaps]
        places = [place + 0.25 * (number - 1) for place in range(len(gaps))]
        axes.bar(places, [gap.mean() for gap in gaps], 0.24, yerr=errors, color=colour, hatch=hatch, label=label)
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set_xticks(range(len(table_results.UCI)), table_results.UCI)
    axes.set_ylabel("NLL less that of lapwing")
    axes.legend(frameon=False)
    return figure


PLOTS = {
    plot.__name__: plot
    for plot in (
        batch_size, first_tries, gradient_variance, passes, one_sample, sparse, streaming, symmetry_conjectures, tabular,
        variational,
    )
}  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=harness.RESULTS, help="folder of the results")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder for the pictures")
    options = parser.parse_args()
    for name, plot in PLOTS.items():
        cells = harness.read(options.results / f"{name}.jsonl")
        if not cells:
            continue
        options.images.mkdir(parents=True, exist_ok=True)
        figure = plot(cells)
        figure.savefig(options.images / f"{name}.png", dpi=120, metadata={"Software": None})
        plt.close(figure)
        print(options.images / f"{name}.png")


if __name__ == "__main__":
    main()

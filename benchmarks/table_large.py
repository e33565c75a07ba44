"""What the benchmarks of last layers and of parts of the data say, as a part of the page."""

from __future__ import annotations

from typing import Any

PLACES = ("mutual_information", "novelty", "entropy")


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def scores(one: dict[str, Any]) -> list[str]:
    mean, error = one["minus_temperature"]
    return [f"{one['nll']:.3f}", f"{mean:+.3f} ± {error:.3f}", f"{one['accuracy']:.3f}", f"{one['ece']:.3f}"]


def last_layer(cells: dict[str, Any]) -> str:
    rows = []
    for name, cell in cells.items():
        for method, one in cell["result"].items():
            if not isinstance(one, dict) or "nll" not in one:
                continue
            aurocs = [
                " / ".join(f"{one[key]:.3f}" if (key := f"auroc_{other}_{place}") in one else "–" for place in PLACES)
                for other in ("letters", "other")
            ]
            rows.append(
                [name, method, *scores(one), *aurocs, f"{one['seconds']:.0f}", f"{one['peak_memory'] / 1e9:.1f} GB"]
            )
    return table(
        ["data", "method", "NLL", "less temperature scaling", "accuracy", "ECE", "letters, AUROC: mutual information / novelty / entropy",
         "other pictures, the same", "seconds of the fit", "peak memory so far"], rows,
    )  # fmt: skip


def part(cells: dict[str, Any]) -> str:
    rows, rivals = [], []
    for cell in cells.values():
        for method, one in cell["result"].items():
            given = (
                [f"{one['precision']:.3g}", f"{one['effective_dimension']:.0f}"] if "precision" in one else ["–", "–"]
            )
            rows_of = rivals if method in ("raw", "temperature") else rows
            if [method, *scores(one), *given] not in rows_of:
                rows_of.append([method, *scores(one), *given])
    return table(
        ["part, how taken, what is known of the rest", "NLL", "less temperature scaling", "accuracy", "ECE", "precision", "γ"],
        [*rivals, *rows],
    )  # fmt: skip


def averaged(cells: dict[str, Any]) -> str:
    rows = []
    for name, cell in cells.items():
        whole = cell["result"]
        rows.append(
            [
                f"{name}, {whole['weights']:,} weights",
                "dense",
                "",
                "",
                "",
                f"{whole['nll']:.4f}",
                f"{whole['log_evidence']:.1f}",
                "",
                "",
                f"{whole['seconds']:.0f}",
            ]
        )
        for draws, one in whole.items():
            if not isinstance(one, dict):
                continue
            rows.append([
                name, draws, f"{one['curvature']:.1%}", f"{one['mean']:.1%}", f"{one['probs']:.4f}", f"{one['nll']:.4f}",
                f"{one['log_evidence']:.1f}", f"{one['log_precision_ratio']:+.2f}", f"{one['turns']}", f"{one['seconds']:.0f}",
            ])  # fmt: skip
    return table(
        ["network", "draws", "B off by", "mean outputs off by", "probabilities off by", "NLL", "log evidence", "log precision off by", "turns", "seconds"],
        rows,
    )  # fmt: skip


def page(parts: dict[str, dict[str, Any]]) -> str:
    """The sections of the page."""
    return f"""
## A last layer over the data at hand

ResNet-20's last layer on 4,000 of the 50,000 images that the network was trained on (`benchmarks/bench_last_layer.py`). By the evidence alone it is worse
than the network: 650 weights that are fitted to 4,000 images know less than the same weights that were trained with all. With held-out images the
average is temperature scaling, nearly. That is why `fit` does not choose a last layer by itself. Seconds are of a machine with much other work.

{last_layer(parts["last_layer"])}

## A part of the data that stands for all

The last layer of ResNet-20 on a part of 4,000 images, without held-out data, with the gradient of the others (`rest`), without (`alone`), and as
Laplace's approximation around the network (`network`); `benchmarks/bench_part.py`. Take the part at random: 300 images of large loss or large leverage stand for the
others badly, and 100 no better than others. The gradient of the rest is worth much against the part alone; the network's own mean with Laplace's widths is still nearer to temperature
scaling here, where a part reaches few of the directions that all data determine.

{part(parts["part"])}

## The bound by products alone

How far `method=Krylov(), curvature="expected"` is from the dense bound, by the number of draws (`benchmarks/bench_averaged.py`).

{averaged(parts["averaged"])}
"""

"""The part of benchmarks/README.md about other libraries: Bayesian optimisation, adapters of language models, exported files."""

from __future__ import annotations

import statistics
from typing import Any

METHODS = (
    "raw", "temperature", "five adapters", "five adapters, temperature", "laplace-torch, KFAC", "lapwing, LoRA", "lapwing, head"
)  # fmt: skip
FUNCTIONS = {"branin": "Branin, 2", "hartmann": "Hartmann, 6", "ackley": "Ackley, 10", "path": "path (cost), 50"}


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def regrets(cells: dict[str, Any]) -> str:
    """Median regrets after sixty evaluations, and on how many seeds lapwing's is the lower."""
    rows = []
    for function, title in FUNCTIONS.items():
        found = [cell["result"] for cell in cells.values() if cell["arguments"].get("function") == function]
        both = [one for one in found if "gp" in one and "regret" in one["gp"]]
        if not both:
            rows.append([title, "not run", *[""] * 6])
            continue
        of = {method: [one[method]["regret"] for one in both] for method in ("random", "gp", "lapwing")}
        ahead = sum(ours < theirs for ours, theirs in zip(of["lapwing"], of["gp"], strict=True))
        vbll = [one["vbll"]["regret"] for one in found if "vbll" in one]
        seconds = (
            sum(one[method]["processor_seconds"] for one in both) / len(both) / 50 for method in ("gp", "lapwing")
        )
        rows.append([
            title, str(len(both)), *(f"{statistics.median(values):.2g}" for values in of.values()),
            f"{vbll[0]:.2g}" if vbll else "not run", f"{ahead} of {len(both)}", " / ".join(f"{one:.2g}" for one in seconds),
        ])  # fmt: skip
    columns = ["function, inputs", "seeds", "random", "Gaussian process", "lapwing", "VBLL, seed 0",
               "lapwing ahead of the Gaussian process", "processor seconds a step, Gaussian process / lapwing"]  # fmt: skip
    return table(columns, rows)


def steps(cells: dict[str, Any]) -> str:
    """Processor seconds of one step with many evaluations."""
    found = [cell for cell in cells.values() if "rows" in cell["arguments"]]
    rows = [
        [f"{cell['arguments']['rows']:,}", *(f"{cell['result'][method]['processor_seconds']:.3g}" for method in ("gp", "lapwing"))]
        for cell in found
    ]  # fmt: skip
    return table(["evaluations", "Gaussian process", "lapwing"], rows) if rows else "Not run."


def reviews(cells: dict[str, Any]) -> str:
    """Means over the seeds."""
    by_seed: dict[int, dict[str, Any]] = {}
    for cell in cells.values():
        by_seed.setdefault(cell["arguments"]["seed"], {}).update(cell["result"])
    each = list(by_seed.values())
    rows = []
    for method in METHODS:
        if not all(method in one for one in each):
            rows.append([method, "not run", *[""] * 6])
            continue
        found = [one[method] for one in each]
        mean = {key: statistics.mean(one[key] for one in found) for key in found[0]}
        less = [one[method]["nll"] - one["temperature"]["nll"] for one in each]
        error = f" ± {statistics.stdev(less) / len(less) ** 0.5:.4f}" if len(less) > 1 else ""
        information = f"{mean['auroc_mutual_information']:.3f}" if "auroc_mutual_information" in mean else ""
        rows.append([
            method, f"{mean['nll']:.4f}", f"{statistics.mean(less):+.4f}{error}", f"{mean['ece']:.3f}", f"{mean['accuracy']:.3f}",
            f"{mean['auroc_entropy']:.3f}", information, f"{mean['processor_seconds_after_training']:.2g}",
        ])  # fmt: skip
    columns = ["method", "NLL", "less temperature scaling's", "ECE", "accuracy", "AUROC by entropy", "by mutual information",
               "processor seconds after training"]  # fmt: skip
    return table(columns, rows)


def seeds(cells: dict[str, Any]) -> str:
    """How many, in words of the page."""
    count = len({cell["arguments"]["seed"] for cell in cells.values()})
    return f"means over {count} seeds" if count > 1 else "one seed"


def serving(cells: dict[str, Any]) -> str:
    """Milliseconds of predictions, and how they differ."""
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        for way, times in r["milliseconds"].items():
            difference = f"{r['difference'][way]:.0e}" if way in r["difference"] else ""
            size = {
                "onnxruntime": "onnx_bytes",
                "torch.export": "pt2_bytes",
                "network alone, onnxruntime": "network_bytes",
            }.get(way)
            rows.append([
                name, way, *(f"{times[count]:.2g}" for count in ("1", "500")), difference,
                f"{r[size] / 1000:.0f} kB" if size else "",
            ])  # fmt: skip
    columns = ["posterior of", "by", "ms for 1 row", "ms for 500", "largest difference in a probability", "file"]
    return table(columns, rows)


def page(parts: dict[str, Any]) -> str:
    return f"""
## Other libraries

### Bayesian optimisation with BoTorch

Regret after sixty evaluations, ten of them at random, as medians over seeds: the surrogate of `lw.botorch.fit_surrogate` beside BoTorch's `SingleTaskGP`, under the
same acquisition function. The path's cost has an optimum that is not known.

{regrets(parts["botorch"])}

Processor seconds of one step, fit and acquisition, on Hartmann's function:

{steps(parts["botorch"])}

### Adapters of a small transformer

Fine-food reviews, two classes, a BERT of two layers with LoRA adapters; {seeds(parts["reviews"])}. AUROC is of aphorisms and anecdotes against test reviews.

{reviews(parts["reviews"])}

### Exported predictions

Digits, 64-50-10, the probit link in closed form, one thread, on a machine with other work to do.

{serving(parts["serving"])}
"""

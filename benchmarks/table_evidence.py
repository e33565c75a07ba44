"""The part of docs/benchmarks.md that is about the evidence of networks."""

from math import sqrt
from statistics import mean, stdev

from bench_evidence_training import PUBLISHED
from table_networks import table

WAYS = {
    "mode-single": "θ⋆, one λ", "mode-several": "θ⋆, several", "full-single": "θ⋆ and H there, one",
    "full-several": "θ⋆ and H there, several", "weights-single": "θ̃, one", "weights-several": "θ̃, several",
}  # fmt: skip


def networks(cells: dict) -> dict[str, list[dict]]:
    """Results by network, one for every seed."""
    found: dict[str, list[dict]] = {}
    for cell in cells.values():
        if name := cell["arguments"]["network"]:
            found.setdefault(name, []).append(cell["result"])
    return found


def spread(values: list[float], digits: int = 3) -> str:
    """A mean with its standard error."""
    error = f" ± {stdev(values) / sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{error}"


def by_place(cells: dict) -> str:
    rows = []
    for name, seeds in networks(cells).items():
        scores = {way: mean(seed[way]["nll"] for seed in seeds) for way in ("map", *WAYS)}
        best = min(WAYS, key=scores.__getitem__)
        shown = [f"**{scores[way]:.3f}**" if way == best else f"{scores[way]:.3f}" for way in WAYS]
        rows.append([name, f"{scores['map']:.3f}", *shown])
    return table(["network", "network alone", *WAYS.values()], rows)


def differences(cells: dict) -> str:
    def gap(seeds: list[dict], first: str, second: str) -> str:
        found = spread([seed[first]["nll"] - seed[second]["nll"] for seed in seeds])
        return found.replace("-", "−") if found.startswith("-") else f"+{found}"

    rows = [
        [name, gap(seeds, "mode-single", "weights-single"), gap(seeds, "mode-several", "weights-several"),
         gap(seeds, "mode-several", "mode-single"), gap(seeds, "mode-single", "full-single"),
         " / ".join(f"{mean(seed[way]['output_std'] for seed in seeds):.2g}" for way in ("mode-single", "weights-single")),
         f"{mean(seed['train_confidence'] for seed in seeds):.2f}"]
        for name, seeds in networks(cells).items()
    ]  # fmt: skip
    return table(
        ["network", "θ⋆ − θ̃, one λ", "θ⋆ − θ̃, several", "several − one, at θ⋆", "H at θ̃ − H at θ⋆",
         "std of outputs, θ⋆ / θ̃", "confidence in training labels"], rows,
    )  # fmt: skip


def training(cells: dict) -> str:
    rows = []
    for (data, net), (by_validation, by_evidence) in PUBLISHED.items():
        both = {way: cells.get(f"{data}, {net}, {way}") for way in ("grid", "evidence")}
        if None in both.values():
            continue
        grid, evidence = (both[way]["result"] for way in ("grid", "evidence"))

        def shown(one: dict) -> str:
            return f"{-one['test_nll']:.3f}, {one['test_accuracy']:.1%} ({one['epochs']} epochs)".replace("-", "−")

        rows.append([
            f"{data}, {net}", f"{shown(grid['chosen'])}, λ = {grid['chosen']['precision']:g}", shown(evidence["chosen"]),
            shown(evidence["by_evidence_alone"]), f"{by_validation} → {by_evidence}".replace("-", "−"),
        ])  # fmt: skip
    return table(
        ["data, network", "grid of λ, by validation", "evidence, epochs by validation", "evidence alone", "published"],
        rows,
    )


def page(parts: dict) -> str:
    seeds = len(next(iter(networks(parts["evidence_table"]).values())))
    return f"""
## Where the evidence is taken, and how many precisions it sets

`lapwing bench evidence-table`: networks of about 46,000 weights, trained on 60 MNIST images of 14 × 14 pixels, stopped early on
300 others and linearised; exact posteriors, the predictive mean the network's own output. Test negative log-likelihood of
300 images, mean of {seeds} seeds, with precisions set by the evidence at the mode θ⋆ of the linear model or at the network's weights
θ̃, the curvature H of the labels at θ̃ or at θ⋆ too. "Several" is one precision for every normalised matrix and one for the
rest; for the Transformer and Fixup, where no matrix is normalised, one for every layer. Bold: the best evidence.

{by_place(parts["evidence_table"])}

Differences of the same figures over seeds, with standard errors: negative where the first is better.

{differences(parts["evidence_table"])}

Published, with all 60,000 images and trained to the end (Antorán et al. 2022, Table 1; θ⋆ one / several against θ̃ one / several):
Transformer .162 / .162 against .310 / .162, CNN .025 / .025 against .253 / .205, ResNet .017 / .016 against .252 / .236,
pre-activation ResNet .017 / .016 against .220 / .239, Fixup .055 / .061 against .153 / .200. What this says is discussed
[with the pictures](classic.md).

## Training by the evidence

3,000 training images, one seed; test log-likelihood and accuracy of the network itself on all 10,000 test images. λ and the
number of epochs (two to choose from, the same for both sides) by the likelihood of 2,000 held-out images; "evidence alone"
takes the number of epochs with the largest evidence, and so no held-out data. Published figures (Immer et al. 2021,
cross-validation → evidence) are with all 60,000 images and other networks.

{training(parts["evidence_training"])}
"""

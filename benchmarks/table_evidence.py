"""The part of docs/benchmarks.md that is about the evidence: where it is taken, and training by it."""

from statistics import fmean, stdev

from bench_evidence_table import NETWORKS
from bench_evidence_training import GRID, PUBLISHED
from table_networks import table

from lapwing.bench.studies.evidence_table import STUDY

WAYS = {
    "map": "network alone", "mode-single": "θ⋆, one", "mode-several": "θ⋆, several", "full-single": "H at θ⋆ too, one",
    "full-several": "H at θ⋆ too, several", "weights-single": "θ̃, one", "weights-several": "θ̃, several",
}  # fmt: skip


def places(cells: dict) -> str:
    """Test NLL by network and by where the evidence is taken: mean and standard error over seeds, then as published."""
    rows = []
    for name in NETWORKS:
        found = [cell["result"] for cell in cells.values() if cell["arguments"]["network"] == name]
        by_way = {way: [r[way]["nll"] for r in found] for way in WAYS}
        rows.append([
            f"{name} ({found[0]['weights']:,})",
            *(f"{fmean(nll):.3f} ± {stdev(nll) / len(nll) ** 0.5:.3f}" for nll in by_way.values()),
        ])  # fmt: skip
        known = STUDY.published[name]
        rows.append(["*published*", *(f"{known[key]:.3f}" if (key := f"{way} nll") in known else "–" for way in WAYS)])
    return table(["network (weights)", *WAYS.values()], rows)


def training(cells: dict) -> str:
    rows = []
    for net, published in PUBLISHED.items():
        at = {way: cells[f"Fashion-MNIST, {net}, λ = {way}"]["result"] for way in GRID}
        best = min(at, key=lambda way: at[way]["validation_nll"])
        evidence = cells[f"Fashion-MNIST, {net}, evidence"]
        shown = [f"−{r['test_nll']:.3f}, {r['test_accuracy']:.1%}" for r in (at[best], evidence["result"])]
        known = f"{published['by validation']} → {published['evidence']}".replace("-", "−")
        rows.append([f"{net}, {evidence['arguments']['epochs']} epochs", f"{shown[0]} (λ = {best})", shown[1], known])
    return table(["network", "best λ of three, by validation", "evidence", "published"], rows)


def page(parts: dict) -> str:
    return f"""
## Where the evidence is taken, and how many precisions it sets

Test NLL of linearised networks, mean and standard error over two seeds, each with training images of its own: 60 of MNIST,
14 × 14 pixels, early stopping on 300 others, 300 test images scored once. θ⋆ is the mode of the linear model, θ̃ the network's
own weights. Published (Antorán et al. 2022, Table 1): all 60,000 images. Settings were chosen on other seeds and other test
images. As published, the evidence at θ⋆ sets better precisions than at θ̃ for every network and seed, and several are better
than one. But with 60 images error bars are far too wide by either: but for the Transformer and Fixup with several precisions
the network alone has the better NLL, which `validation=` would find.

{places(parts["evidence_table"])}

## Training by the evidence

Fashion-MNIST, 10,000 training images, one seed: test log-likelihood and accuracy of the network itself, with one precision λ
chosen on 2,000 held-out images, or one for every layer set by the KFAC evidence, which does not see those. The perceptron's
100 epochs were chosen after 30 had lost on test images, so its row is no fair test. Published figures (Immer
et al. 2021, cross-validation → evidence) are with all 60,000 images and other networks.

{training(parts["evidence_training"])}
"""

"""The part of benchmarks/README.md that is about the evidence: where it is taken, and training by it."""

from statistics import fmean, stdev

from bench_evidence_table import NETWORKS
from bench_evidence_training import PUBLISHED
from table_networks import table

from benchmarks.tasks.evidence_table import STUDY

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
    for (data, net), (by_validation, by_evidence) in PUBLISHED.items():
        grid, evidence = (cells[f"{data}, {net}, {way}"]["result"] for way in ("grid", "evidence"))
        shown = [score(grid["chosen"]), score(evidence["chosen"]), score(evidence["by_evidence_alone"])]
        rows.append([f"{data}, {net}", *shown, f"{by_validation} → {by_evidence}".replace("-", "−")])
    return table(
        ["data, network", "best λ of three and epochs, by validation", "evidence, epochs by validation", "evidence alone",
         "published"], rows,
    )  # fmt: skip


def score(chosen: dict) -> str:
    """Test log-likelihood and accuracy, and what was chosen."""
    given = f", λ = {chosen['precision']:g}" if isinstance(chosen["precision"], float) else ""
    return f"−{chosen['test_nll']:.3f}, {chosen['test_accuracy']:.1%} ({chosen['epochs']} epochs{given})"


def by_kfac(cells: dict) -> str:
    """Test NLL by network and place of the evidence, for every seed."""
    ways = ("map", "mode-single", "mode-several", "weights-single", "weights-several")
    rows = [
        [name, *(f"{cell['result'][way]['nll']:.3f}" for way in ways)]
        for name, cell in cells.items() if not name.endswith("small")
    ]  # fmt: skip
    return table(["network", *(WAYS[way] for way in ways)], rows)


def page(parts: dict) -> str:
    return f"""
## Where the evidence is taken, and how many precisions it sets

Test NLL of linearised networks, mean and standard error over two seeds, each with training images of its own: 60 of MNIST,
14 × 14 pixels, early stopping on 300 others, 300 test images scored once. θ⋆ is the mode of the linear model, θ̃ the network's
own weights. Published (Antorán et al. 2022, Table 1): all 60,000 images. Settings were chosen on other seeds and other test
images. As published, the evidence at θ⋆ sets better precisions than at θ̃ for every network and seed, and several are better
than one. But with 60 images error bars are far too wide by either: but for the Transformer and Fixup with several precisions
the raw network has the better NLL, which `validation=` would find.

{places(parts["evidence_table"])}

The small sibling of the publication's ResNet-50 table: two ResNets of about 2,500 weights on 100 CIFAR-10 images, stopped on 500
others, by KFAC; test NLL of 500 images. With one precision θ⋆ is better than θ̃ wherever the network learnt anything (Fixup did
not at seed 1); several precisions do not help here. With so few images the raw network is better than all of them.

{by_kfac(parts["evidence_kfac"])}

## Training by the evidence

10,000 training images, one seed: test log-likelihood and accuracy of the network itself. One precision λ of three and the
number of epochs of two, both chosen on 2,000 held-out images; or a precision for every layer, set by the KFAC evidence, with
the number of epochs chosen on those images or by the evidence itself. Protocol, grids and seed were fixed before any test
score was seen. Published figures (Immer et al. 2021, cross-validation → evidence) are with all 60,000 images and other
networks.

{training(parts["evidence_training"])}
"""

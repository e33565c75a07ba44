"""The part of docs/benchmarks.md that is about training by the evidence."""

from bench_evidence_training import GRID, PUBLISHED
from table_networks import table


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
## Training by the evidence

Fashion-MNIST, 10,000 training images, one seed: test log-likelihood and accuracy of the network itself, with one precision λ
chosen on 2,000 held-out images, or one for every layer set by the KFAC evidence, which does not see those. The perceptron's
100 epochs were chosen after 30 had lost on test images, so its row is no fair test. Published figures (Immer
et al. 2021, cross-validation → evidence) are with all 60,000 images and other networks.

{training(parts["evidence_training"])}
"""

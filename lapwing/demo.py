"""The main job on bundled data: train a small network, give it error bars, see whether they can be believed.

Run by `make demo`. A convolutional network with BatchNorm learns handwritten digits; its posterior is tuned on pictures
that it has not seen, and compared with the network alone and with temperature scaling on others, upright and turned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from lapwing import metrics, recording, records, report
from lapwing.bayes.likelihoods import Categorical
from lapwing.bayes.posterior import Posterior
from lapwing.bench.corruptions import rotate
from lapwing.bench.data import digits
from lapwing.bench.networks import batchnorm_cnn
from lapwing.facade import fit
from lapwing.training import adam, train

TRAINED, HELD_OUT, EPOCHS, TURN = 200, 300, 300, 45  # few enough that the network becomes too sure of itself
Pair = tuple[Tensor, Tensor]
Result = TypeVar("Result")


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Pictures to train on, to tune on, and to judge by."""

    train: Pair
    held_out: Pair
    test: Pair
    turned: Pair


def main(folder: Path = Path("runs/demo")) -> None:
    """Train, fit, predict, print the comparison and write the page."""
    console, started = Console(), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    data = split()
    with console.status(f"training a network with BatchNorm on {TRAINED} digits"):
        model, training = timed(lambda: trained(data))
    with console.status("finding its posterior, tuned on pictures it has not seen"):
        posterior, fitting = timed(lambda: fit(model, data.train, Categorical(), validation=data.held_out))
    console.print(posterior)
    with console.status("predicting"):
        sets, predicting = timed(lambda: evaluations(posterior, data))
    console.print(comparison(sets))
    seconds = {"train": training, "fit": fitting, "predict": predicting}
    found = recording.record("digits", posterior, sets, inputs=data.test[0], seconds=seconds)
    records.save(found, folder)
    page = report.write(folder / "report.html", [found])
    for line in findings(sets, posterior):
        console.print(line)
    console.print(f"\nPage: {page}  ({time.perf_counter() - started:.0f} s in all)")
    console.print(
        "Next: your own network with [bold]lapwing.fit(model, data, lapwing.Categorical(), validation=…)[/bold]"
    )


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """A result and the seconds it took."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def split() -> Split:
    """scikit-learn's 1,797 digits, in a fixed order."""
    task = digits()
    x, y = (torch.cat(both) for both in zip(task.train, task.test, strict=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    stop = TRAINED + HELD_OUT
    test = x[stop:], y[stop:]
    return Split((x[:TRAINED], y[:TRAINED]), (x[TRAINED:stop], y[TRAINED:stop]), test, (rotate(test[0], TURN), test[1]))


def trained(data: Split) -> nn.Module:
    """A network as people have it: trained until it fits its data, without a thought of uncertainty."""
    return train(
        batchnorm_cnn(width=6), data.train, Categorical(), epochs=EPOCHS, batch_size=64, optimiser=adam(1e-2),
        progress=False,
    )  # fmt: skip


def evaluations(posterior: Posterior, data: Split) -> list[records.Evaluation]:
    """Predictions on upright and on turned digits."""
    return [
        recording.evaluation("upright digits", posterior, *data.test),
        recording.evaluation(f"digits turned by {TURN}°", posterior, *data.turned),
    ]


def comparison(sets: list[records.Evaluation]) -> Table:
    """Every method on every set."""
    table = Table("", "accuracy", "NLL", "ECE", "Brier", title="The network alone, cooled, and with a posterior")
    for evaluation in sets:
        table.add_section()
        table.add_row(f"[bold]{evaluation.name}[/bold]")
        for name, (probs, labels) in probabilities(evaluation).items():
            scores = (metrics.nll(probs, labels), metrics.ece(probs, labels), metrics.brier(probs, labels))
            table.add_row(
                f"  {report.told(name)}",
                f"{metrics.accuracy(probs, labels):.1%}",
                *(f"{score:.3f}" for score in scores),
            )
    return table


def probabilities(evaluation: records.Evaluation) -> dict[str, Pair]:
    """What each method says about a set, beside its labels."""
    labels = torch.as_tensor(evaluation.targets)
    return {one.method: (torch.as_tensor(one.probs), labels) for one in evaluation.predictions}


def findings(sets: list[records.Evaluation], posterior: Posterior) -> list[str]:
    """Three lines of what came out."""
    upright, turned = (probabilities(one) for one in sets)
    lines = []
    for name, found in (("Upright", upright), ("Turned", turned)):
        ours, labels = found[records.OURS]
        nll = {method: metrics.nll_each(probs, labels) for method, (probs, _) in found.items()}
        against = {
            method: metrics.paired(nll[records.OURS], other) for method, other in nll.items() if method != records.OURS
        }
        said = ", ".join(
            f"{gap.mean:+.3f} ± {gap.standard_error:.3f} against {report.told(method)}"
            for method, gap in against.items()
        )
        lines.append(f"{name}: NLL {metrics.nll(ours, labels):.3f}, {said}.")
    before, after = (metrics.confidence(found[records.OURS][0]) for found in (upright, turned))
    lines.append(
        f"Mean confidence falls from {before:.0%} to {after:.0%} on turned digits "
        f"(prior precision {float(posterior.prior.precision[0]):.3g}, by {posterior.diagnostics['tuned_by']})."
    )
    return lines


if __name__ == "__main__":
    main()

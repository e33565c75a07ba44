"""The main job on bundled data: train a small network, give it error bars, see whether they can be believed.

Run by `make demo`. A convolutional network with BatchNorm learns handwritten digits; its posterior is tuned on pictures
that it has not seen, and compared with the network alone and with temperature scaling on others, upright and turned.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from lapwing import metrics
from lapwing.app import recording, records, report
from lapwing.bayes.likelihoods import Categorical
from lapwing.bayes.posterior import Posterior
from lapwing.facade import fit
from lapwing.studies.datasets import digits, rotate
from lapwing.training import adam, train

TRAINED, HELD_OUT, EPOCHS, TURN = 200, 300, 300, 45  # few enough that the network becomes too sure of itself
SHORT = {"MAP": "alone", "temperature scaling": "cooled"}  # the other methods, in a line
Pair = tuple[Tensor, Tensor]
Result = TypeVar("Result")
Report = Callable[[str], None]  # is told what is being done


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
    with telling(console, f"training on {TRAINED} digits") as tell:
        model, training = timed(lambda: trained(data, tell))
    with telling(console, "finding the posterior") as tell:
        posterior, fitting = timed(
            lambda: fit(model, data.train, Categorical(), validation=data.held_out, progress=tell)
        )
    console.print(posterior)
    with telling(console, "predicting"):
        sets, predicting = timed(lambda: evaluations(posterior, data))
    console.print(comparison(sets))
    seconds, weights = {"train": training, "fit": fitting, "predict": predicting}, posterior.map.weights
    found = recording.record(
        "Handwritten digits, the demo", posterior, sets, inputs=data.test[0], seconds=seconds, command="lapwing demo",
        data=described(data), network=records.Network("a CNN with BatchNorm", weights, weights),
    )  # fmt: skip
    records.save(found, folder)
    page = report.write(folder / "report.html", [found])
    console.print("\n[bold]What it found[/bold], in NLL: minus the mean log probability of the right answer")
    for line in findings(sets):
        console.print(f"  {line}", highlight=False)
    console.print(f"\n[bold]The page[/bold], {time.perf_counter() - started:.0f} s in all")
    console.print(f"  {page}", highlight=False, soft_wrap=True)
    console.print("\n[bold]What to try next[/bold]")
    for line in suggestions(page):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def telling(console: Console, phase: str) -> Iterator[Report]:
    """Say what is being done, with details on a terminal beside a spinner, in a log once."""
    if not console.is_terminal:
        console.print(f"{phase} …", highlight=False)
        yield lambda _detail: None
        return
    with console.status(phase) as status:
        yield lambda detail: status.update(f"{phase}: {detail}" if detail else phase)


def described(data: Split) -> records.Data:
    """The data, for the page."""
    sizes = {"train": len(data.train[0]), "validation": len(data.held_out[0]), "test": len(data.test[0])}
    classes = tuple(str(digit) for digit in range(10))
    return records.Data(
        "scikit-learn's digits", sizes=sizes, inputs="1 × 8 × 8 numbers", target="digit", classes=classes
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


def network() -> nn.Module:
    """Three convolutions with BatchNorm and a linear head on the mean over pixels, the same at every call."""

    def block(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            *(*block(1, 6, 1), *block(6, 12, 2), *block(12, 12, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10)),
        )


def trained(data: Split, progress: Report | None = None) -> nn.Module:
    """A network as people have it: trained until it fits its data, without a thought of uncertainty."""
    return train(
        network(), data.train, Categorical(), epochs=EPOCHS, batch_size=64, optimiser=adam(1e-2),
        progress=progress or False,
    )  # fmt: skip


def evaluations(posterior: Posterior, data: Split) -> list[records.Evaluation]:
    """Predictions on upright and on turned digits."""
    return [
        recording.evaluation("upright digits", posterior, *data.test),
        recording.evaluation(f"digits turned by {TURN}°", posterior, *data.turned),
    ]


def comparison(sets: list[records.Evaluation]) -> Table:
    """Every method on every set."""
    table = Table(
        "", "accuracy", "NLL", "ECE", "Brier", title="The network alone, cooled by temperature scaling, with error bars"
    )
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


def findings(sets: list[records.Evaluation]) -> list[str]:
    """Three lines of what came out."""
    upright, turned = (probabilities(one) for one in sets)
    lines = [f"{name}: {against_others(found)}." for name, found in (("Upright", upright), ("Turned", turned))]
    ours = [found[records.OURS] for found in (upright, turned)]
    said = [(metrics.confidence(probs), metrics.accuracy(probs, labels)) for probs, labels in ours]
    (sure, right), (still, few) = said
    return [
        *lines,
        f"Mean confidence {sure:.0%}, right {right:.0%} of upright digits; {still:.0%} and {few:.0%} of turned ones.",
    ]


def against_others(found: dict[str, Pair]) -> str:
    """Our NLL, and by how much that of the others is more or less, with standard errors over the pictures."""
    each = {method: metrics.nll_each(probs, labels) for method, (probs, labels) in found.items()}
    ours = each.pop(records.OURS)
    gaps = {method: metrics.paired(other, ours) for method, other in each.items()}
    said = [
        f"{SHORT[method]} {abs(gap.mean):.3f} ± {gap.standard_error:.3f} {'more' if gap.mean > 0 else 'less'}"
        for method, gap in gaps.items()
    ]
    return ", ".join([f"{float(ours.mean()):.3f}", *said])


def suggestions(page: Path) -> list[str]:
    """What a person could do after this."""
    ready = shutil.which("lapwing") is not None
    return [
        f"open {page} in a browser: can these error bars be believed?",
        *([] if ready else ["source .venv/bin/activate, so that `lapwing` is a command"]),
        "docs/start.md: five minutes with a network or a table of yours",
        "lapwing fit --help: from a trained network and its data to such a page",
    ]


if __name__ == "__main__":
    main()

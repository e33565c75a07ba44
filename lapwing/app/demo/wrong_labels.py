"""Wrong labels, found: some training digits get another label, and all are ranked by how likely their label is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from rich.table import Table
from torch import Tensor, nn

from lapwing import metrics
from lapwing.app.demo.digits import Pair, shuffled, trained
from lapwing.app.demo.words import verdicts
from lapwing.bayes.likelihoods import Categorical
from lapwing.facade import fit

OURS, LOSS, FOLDS = "lapwing", "the training loss", "five-fold cross-validation"
EXAMPLES, WRONG, PARTS = 150, 15, 5


@final
@dataclass(frozen=True, eq=False)
class LabelScene:
    """Training digits, some with another label, and the suspects of every method, the most suspicious first."""

    data: Pair  # with wrong labels
    truth: Tensor  # (n,)
    suspects: dict[str, Tensor]  # (WRONG,) each

    title = f"Wrong labels: {WRONG} of {EXAMPLES} training digits got another label. Which?"
    picture = "wrong_labels.png"
    panels = 1, WRONG

    @property
    def wrong(self) -> Tensor:
        """Which examples have a wrong label."""
        return (self.data[1] != self.truth).nonzero()[:, 0]

    def found(self, method: str) -> Tensor:  # (wrong labels,), 0 or 1
        """Which of the wrong labels are among a method's suspects."""
        return torch.isin(self.wrong, self.suspects[method]).double()

    @property
    def sentence(self) -> str:
        """What the figures say."""
        counts = {method: int(self.found(method).sum()) for method in self.suspects}
        missed = {
            method: metrics.paired(1 - self.found(method), 1 - self.found(OURS))
            for method in self.suspects
            if method != OURS
        }
        chance = len(self.wrong) ** 2 / len(self.truth)
        return (
            f"Of the {len(self.wrong)} labels that lapwing finds least likely, {counts[OURS]} are wrong ones ({LOSS} "
            f"{counts[LOSS]}, {FOLDS} {counts[FOLDS]}, chance {chance:.1f}): it {verdicts(missed)}, without training "
            "again."
        )

    @property
    def tables(self) -> list[Table]:
        """The figures."""
        found = Table("suspects by", "wrong labels found", "networks trained")
        for method in self.suspects:
            networks = PARTS + 1 if method == FOLDS else 1
            found.add_row(method, f"{int(self.found(method).sum())} of {len(self.wrong)}", str(networks))
        return [found]

    def draw(self, panels: Any) -> None:
        """lapwing's suspects, the most suspicious first."""
        pictures, labels = self.data
        for panel, number in zip(panels.flat, self.suspects[OURS].tolist(), strict=True):
            is_wrong = bool(labels[number] != self.truth[number])
            panel.imshow(pictures[number, 0].numpy(), cmap="gray_r")
            panel.set_title(
                f"label {int(labels[number])}\nis {int(self.truth[number])}", fontsize=8,
                color="#2ca02c" if is_wrong else "#d62728",
            )  # fmt: skip
            panel.set(xticks=[], yticks=[])


def mislabelled() -> tuple[Pair, Tensor]:
    """The first digits, some of them with another label, and the true labels."""
    x, truth = shuffled()
    x, truth = x[:EXAMPLES], truth[:EXAMPLES]
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(EXAMPLES, generator=generator)[:WRONG]
    labels = truth.clone()
    labels[chosen] = (labels[chosen] + torch.randint(1, 10, (WRONG,), generator=generator)) % 10
    return (x, labels), truth


def run() -> LabelScene:
    """Train on the wrong labels, and rank all labels by three methods."""
    data, truth = mislabelled()
    (model,) = trained(data)
    posterior = fit(model, data, Categorical(), progress=False)
    suspects = {
        LOSS: log_probs(model, data).argsort()[:WRONG],
        FOLDS: left_out_log_probs(data).argsort()[:WRONG],
        OURS: posterior.leave_one_out().label_errors(WRONG),
    }
    return LabelScene(data, truth, suspects)


def log_probs(model: nn.Module, data: Pair) -> Tensor:  # (n,)
    """The log probability that a network gives to each label."""
    with torch.no_grad():
        return model(data[0]).log_softmax(1).gather(1, data[1][:, None])[:, 0]


def left_out_log_probs(data: Pair) -> Tensor:  # (n,)
    """The same, each by a network that was trained on the other parts."""
    x, y = data
    found = torch.zeros(len(y))
    part = torch.arange(len(y)) % PARTS
    for number in range(PARTS):
        (model,) = trained((x[part != number], y[part != number]))
        found[part == number] = log_probs(model, (x[part == number], y[part == number]))
    return found

"""Reviews of food: how good are the probabilities of a small transformer with LoRA adapters, and does it notice other texts?

The protocol, written before any test review was scored. Fine-food reviews (Debian's r-cran-modeldata, 4,000 for training and 1,000 for tests): is the
score the best one? 65 % are. A BERT of two layers, 64 wide, from a configuration, reads the first 64 words of a review (the 4,000 most frequent of
the training reviews; others are one word). Each seed shuffles the training reviews. All weights of the base are trained on 2,000 of them (four epochs).
Then a LoRA adapter of rank 4 on queries and values, and the head beside it, are trained on 1,500 others (six epochs, the base as it is). The
remaining 500 are held out: temperatures, prior precisions and averages are chosen on them. Tests are scored once.

- `raw`; `temperature`: the same network, its logits divided by one number; `five adapters` and `five adapters, temperature`: the averaged
  probabilities of five adapters from other first weights and batches, and the same with one temperature for all of their logits.
- `lapwing, LoRA` and `lapwing, head`: `lw.fit(model, data, lw.Categorical(), validation=…)` with `select=lw.lora(model)` or `lw.last_layer(model)`.
- `laplace-torch, KFAC`: of all trained weights, its precision by its grid search on the held-out reviews (11 values from .01 to 1,000), `glm` with the probit link.

Other texts: 1,000 aphorisms and anecdotes of at least 20 words (Debian's fortunes: art, education, humorists, law, people). AUROC of telling them from
test reviews by the entropy of the probabilities and, where there is one, by the mutual information. ECE has 15 bins. Seeds 1 to 3 are scored;
sizes and rates were chosen before any run; one on seed 0, scored on its held-out reviews, showed that all methods but laplace-torch's work.

So far only the cells below have been run, for time: one seed says little about differences of a hundredth.

Needs `make peers`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import harness
import peer_environment
import torch
from torch import Tensor, nn

WORDS, LENGTH = 4000, 64
BASE, ADAPTER = 2000, 1500  # reviews
OTHER_TEXTS, MEMBERS = 1000, 5
PARTS = ("lapwing", "network", "five adapters")
CELLS: dict[str, dict[str, Any]] = {f"seed 1, {part}": {"seed": 1, "part": part} for part in PARTS}
Batch = dict[str, Tensor]
Data = tuple[Batch, Tensor]


class Reader:
    """Texts as numbers of words: 0 is padding, 1 a word that is not among the most frequent."""

    def __init__(self, texts: list[str]) -> None:
        counts = Counter(word for text in texts for word in words_of(text))
        self.numbers = {word: place + 2 for place, (word, _) in enumerate(counts.most_common(WORDS - 2))}

    def __call__(self, texts: list[str]) -> Batch:
        rows = [[self.numbers.get(word, 1) for word in words_of(text)[:LENGTH]] or [1] for text in texts]
        lengths = torch.tensor([len(row) for row in rows])[:, None]
        filled = torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])
        return {"input_ids": filled, "attention_mask": (torch.arange(LENGTH) < lengths).long()}


def words_of(text: str) -> list[str]:
    import re

    return re.findall(r"[a-z0-9]+|[!?]", text.lower())


def part(data: Data, rows: Tensor | slice) -> Data:
    return {name: values[rows] for name, values in data[0].items()}, data[1][rows]


def base(seed: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    return BertForSequenceClassification(BertConfig(
        vocab_size=WORDS, max_position_embeddings=LENGTH, num_labels=2, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128,
    ))  # fmt: skip


def adapted(model: nn.Module, seed: int) -> nn.Module:
    from copy import deepcopy

    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    return get_peft_model(deepcopy(model), LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))


def trained(model: nn.Module, data: Data, *, epochs: int, rate: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    optimiser = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=rate, weight_decay=0.01
    )
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(data[1])).split(32):
            inputs, labels = part(data, rows)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(**inputs).logits, labels).backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def logits(model: nn.Module, inputs: Batch) -> Tensor:
    parts = [
        {name: values[start : start + 250] for name, values in inputs.items()}
        for start in range(0, len(inputs["input_ids"]), 250)
    ]
    return torch.cat([model(**one).logits for one in parts]).double()


def temperature(values: Tensor, labels: Tensor) -> float:  # of logits (members, n, classes)
    """At which the averaged probabilities of held-out labels are largest."""
    from scipy.optimize import minimize_scalar

    def loss(log: float) -> float:
        return float(
            -(values / 2.718281828459045**log).softmax(-1).mean(0)[torch.arange(len(labels)), labels].log().mean()
        )

    return 2.718281828459045 ** float(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)


def mixed(values: Tensor) -> tuple[Tensor, Tensor | None]:  # of probabilities (members, n, classes)
    """Their average and, of several, the mutual information."""
    from lapwing import metrics

    mean = values.mean(0)
    if len(values) == 1:
        return mean, None
    each = torch.stack([metrics.entropy(one) for one in values])
    return mean, metrics.entropy(mean) - each.mean(0)


Rule = Callable[[Batch], tuple[Tensor, Tensor | None]]  # of inputs: probabilities and mutual information


def of_logits(models: list[nn.Module], scale: float) -> Rule:
    return lambda inputs: mixed((torch.stack([logits(model, inputs) for model in models]) / scale).softmax(-1))


def ours(model: nn.Module, train: Data, held: Data, select: Any) -> Rule:
    import lapwing as lw

    posterior = lw.fit(model, train, lw.Categorical(), select=select, validation=held, progress=False)

    def rule(inputs: Batch) -> tuple[Tensor, Tensor | None]:
        found = posterior.predict(inputs)
        return found.probs.double(), found.mutual_information.double()

    return rule


class Logits(nn.Module):
    """A model of transformers as laplace-torch calls it: with one dictionary, for logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Any) -> Tensor:
        return self.model(input_ids=data["input_ids"], attention_mask=data["attention_mask"]).logits


def theirs(model: nn.Module, train: Data, held: Data) -> Rule:
    from laplace import Laplace
    from torch.utils.data import DataLoader

    def loader(data: Data) -> Any:
        rows = [
            {**{name: values[row] for name, values in data[0].items()}, "labels": data[1][row]}
            for row in range(len(data[1]))
        ]
        return DataLoader(rows, batch_size=50)  # type: ignore[arg-type]

    la = Laplace(Logits(model), "classification", subset_of_weights="all", hessian_structure="kron")
    la.fit(loader(train))
    la.optimize_prior_precision(
        method="gridsearch", pred_type="glm", link_approx="probit", val_loader=loader(held), grid_size=11, log_prior_prec_min=-2, log_prior_prec_max=3,
    )  # fmt: skip

    def rule(inputs: Batch) -> tuple[Tensor, Tensor | None]:
        count = len(inputs["input_ids"])
        parts = [{name: values[start : start + 50] for name, values in inputs.items()} for start in range(0, count, 50)]
        return torch.cat([la(one, pred_type="glm", link_approx="probit").detach() for one in parts]).double(), None

    return rule


def rules(seed: int, part_of: str, train: Data) -> dict[str, Callable[[], Rule]]:
    """What is compared, each to be made when it is its turn; the first adapter is the same in every part."""
    import lapwing as lw

    order = torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(seed))
    first, second, held = (
        part(train, order[place]) for place in (slice(BASE), slice(BASE, BASE + ADAPTER), slice(BASE + ADAPTER, None))
    )
    before = trained(base(seed), first, epochs=4, rate=1e-3, seed=seed)
    members = [
        trained(adapted(before, 100 * seed + member), second, epochs=6, rate=2e-3, seed=100 * seed + member)
        for member in range(MEMBERS if part_of == "five adapters" else 1)
    ]
    model = members[0]
    if part_of == "lapwing":
        return {
            "lapwing, LoRA": lambda: ours(model, second, held, lw.lora(model)),
            "lapwing, head": lambda: ours(model, second, held, lw.last_layer(model)),
        }
    if part_of == "laplace-torch":
        return {"laplace-torch, KFAC": lambda: theirs(model, second, held)}
    seen = torch.stack([logits(one, held[0]) for one in members])
    if part_of == "network":
        return {
            "raw": lambda: of_logits([model], 1.0),
            "temperature": lambda: of_logits([model], temperature(seen, held[1])),
        }
    return {
        "five adapters": lambda: of_logits(members, 1.0),
        "five adapters, temperature": lambda: of_logits(members, temperature(seen, held[1])),
    }


def scored(rule: Rule, test: Data, others: Batch) -> dict[str, float]:
    from lapwing import metrics

    (probs, information), (away, away_information) = rule(test[0]), rule(others)
    found = {
        "nll": metrics.nll(probs, test[1]),
        "ece": metrics.ece(probs, test[1]),
        "accuracy": metrics.accuracy(probs, test[1]),
        "auroc_entropy": metrics.auroc(metrics.entropy(probs), metrics.entropy(away)),
    }
    if information is not None and away_information is not None:
        found["auroc_mutual_information"] = metrics.auroc(information, away_information)
    return found


def measure(seed: int, part: str) -> dict[str, Any]:
    from benchmarks.data.texts import fine_foods, fortunes

    torch.set_num_threads(1)
    reviews = fine_foods()
    read = Reader(reviews["train"][0])
    train, test = ((read(texts), torch.from_numpy(labels)) for texts, labels in (reviews["train"], reviews["test"]))
    texts = fortunes()
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:OTHER_TEXTS]
    others = read([texts[place] for place in chosen])
    found: dict[str, Any] = {}
    for name, make in rules(seed, part, train).items():
        started = time.process_time()
        rule = make()
        seconds = time.process_time() - started
        found[name] = {**scored(rule, test, others), "processor_seconds_after_training": seconds}
    return found


if __name__ == "__main__":
    peer_environment.enter("peft")
    harness.main(__file__, CELLS, measure)

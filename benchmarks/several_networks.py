"""What are several networks worth as one posterior, against one network with its posterior and against several averaged?

The protocol, which was committed before any score:

- Four cases, five seeds each. A seed chooses the training and the held-out rows, the weights that training starts from and the
  order of the batches. Cases, networks, held-out rows (300), turned rows (45°) and letters are those of `bench_few_digits.py`.
  - `digits 200`: the network of `lapwing demo` on 200 of scikit-learn's digits (its case `demo`).
  - `mnist 200`: two convolutions and a linear head, 5,994 weights, 200 epochs on 200 MNIST digits (its case `memorised`).
  - `mnist 1000`: the same with a quarter of the channels, 906 weights, 60 epochs of Adam at 0.002 on 1,000 MNIST digits.
  - `fashion 2000`: the network of `mnist 1000`, 60 epochs on 2,000 pictures of Fashion-MNIST; letters are unfamiliar there too. A cell
    whose data are not there fails and says so; these come last.
- Judged are the first 500 test rows, upright and turned, and the first 500 letters.
- Five networks are trained by `lapwing.training.members`; the first is the one network, the first three are the three.
- `one`, `one, validated`: `lapwing.fit` of one network without and with the held-out rows. `five`: the mean probabilities of five
  networks. `five, temperature`: the same, all logits over one T in [0.2, 20], the best on held-out rows. `mixture of three`, `mixture
  of five`: `lapwing.fit` of a list of networks without held-out rows; `…, validated`: with them, `Mixture.tune` on the same posteriors.
- NLL, accuracy, ECE, NLL of the turned rows; AUROC of wrong answers by the entropy of the prediction; AUROC of letters by the mutual
  information, and for `five` and `five, temperature` by the best of entropy, mutual information and variance, which favours them.
  Entropy, novelty and variance are kept besides.
- With held-out rows, probabilities average over the candidates that are compared on them. Six cells had been run before that rule, which came
  from other data (`first_tries.py`); all were run anew with it, and nothing else was changed.
- `minus_…` are paired differences of NLL over rows of a seed; the table takes means and standard errors over seeds.
- Seconds: `fit` of each, training of all five at once beside. One thread.
"""

from __future__ import annotations

from typing import Any

import bench_few_digits as few_digits
import harness

MEMBERS, SEEDS, JUDGED, BATCH = 5, 5, 500, 64
CASES = {
    "digits 200": few_digits.CASES["demo"],
    "mnist 200": few_digits.CASES["memorised"],
    "mnist 1000": few_digits.Case(1000, 60, 2e-3, 2),
    "fashion 2000": few_digits.Case(2000, 60, 2e-3, 2),
}
RIVALS = ("five", "five, temperature", "one, validated")


def parts(case: str, seed: int) -> dict[str, Any]:
    """The rows of a case, the first few of those to judge by."""
    from benchmarks.data import fashion_mnist

    task = fashion_mnist(test=few_digits.JUDGED) if case.startswith("fashion") else None
    data = few_digits.parts(CASES[case], seed, task)
    for name in ("test", "turned"):
        data[name] = tuple(part[:JUDGED] for part in data[name])
    return {**data, "letters": data["letters"][:JUDGED]}


class Remembered:
    """Something that predicts, and keeps what it said of each set of inputs."""

    def __init__(self, base: Any) -> None:
        self.base, self.known, self.diagnostics = base, {}, None

    def predict(self, inputs: Any) -> Any:
        if id(inputs) not in self.known:
            self.known[id(inputs)] = self.base.predict(inputs)
        return self.known[id(inputs)]


class Mixed:
    """The mixture of what several say, as `Mixture.predict` makes it."""

    def __init__(self, members: list[Remembered]) -> None:
        self.members = members

    def predict(self, inputs: Any) -> Any:
        from lapwing.bayes.predictive import mixed

        return mixed([member.predict(inputs) for member in self.members])


def trained(case: str, data: Any, seed: int) -> list[Any]:
    """Five networks side by side."""
    import lapwing as lw
    from lapwing.training import adam, members

    chosen = CASES[case]
    return members(
        chosen.network, data, lw.Categorical(), MEMBERS, epochs=chosen.epochs, batch_size=BATCH,
        optimiser=adam(chosen.learning_rate), seed=1000 + MEMBERS * seed, progress=False,
    )  # fmt: skip


def measure(case: str, seed: int) -> dict[str, Any]:
    import torch

    import lapwing as lw
    from lapwing import metrics
    from lapwing.families import ensemble

    torch.set_num_threads(1)
    data = parts(case, seed)
    training, models = harness.timed(lambda: trained(case, data["train"], seed))
    of, train, held_out = lw.Categorical(), data["train"], data["held_out"]
    fitting, whole = harness.timed(lambda: lw.fit(models, train, of, seed=MEMBERS * seed, progress=False))
    known, five = [Remembered(member) for member in whole.members], ensemble.of(models, train, of)
    three = lw.Mixture(whole.members[:3])
    methods = {
        "one": lambda: known[0],
        "one, validated": lambda: whole.members[0].tune(held_out),
        "five": lambda: five,
        "five, temperature": lambda: few_digits.scaled(five, held_out),
        "mixture of three": lambda: Mixed(known[:3]),
        "mixture of three, validated": lambda: three.tune(held_out),
        "mixture of five": lambda: Mixed(known),
        "mixture of five, validated": lambda: whole.tune(held_out),
    }
    result: dict[str, Any] = {"training_seconds": training, "fitting_seconds": fitting, "rows": len(data["test"][1])}
    losses: dict[str, Any] = {}
    for name, method in methods.items():
        seconds, found = harness.timed(method)
        scores, losses[name] = few_digits.scored(found, data)
        chosen = getattr(getattr(found, "diagnostics", None), "candidates", None)
        result[name] = {**scores, "seconds": seconds, **({} if chosen is None else {"candidates": dict(chosen)})}
    for name in methods:
        for rival in RIVALS:
            if rival != name:
                gap = metrics.paired(losses[name], losses[rival])
                result[name][f"minus_{rival}"] = [gap.mean, gap.standard_error]
    return result


CELLS: dict[str, dict[str, Any]] = {
    f"{case}, {seed}": {"case": case, "seed": seed} for case in CASES for seed in range(SEEDS)
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

"""What does a posterior add to a network that has seen few digits, against what is cheaper and what is dearer?

The protocol, which was committed before any score but for what is said here: `laplace` was added before the first of these scores, and
`unfinished` was cut from five seeds to three after those three were seen, for want of time. Cells ran on several commits in a row; before
those of `unfinished`, columns of very many rows were reduced to 600 directions, since their fits took too long. All cells were run again,
unchanged, after probabilities with held-out rows became an average over the candidates, a rule that came from other data (`first_tries.py`).

- Three cases, five seeds each (three of `unfinished`, whose fits take minutes), beside a part that only shows that the script runs. A seed
  chooses the training and the held-out rows, the weights that training starts from and the order of the batches.
  - `demo`: the network of `lapwing demo` (three convolutions with BatchNorm, 2,188 weights, 300 epochs of Adam at 0.01) on 200 of
    scikit-learn's digits, 8 × 8. Letters are shrunk to that size by the means of pixels.
  - `memorised`: two convolutions and a linear head, 5,994 weights, 200 epochs of Adam at 0.002 on 200 MNIST digits.
  - `unfinished`: the same with half the channels, 2,202 weights, 10 epochs of Adam at 0.002 on 800 MNIST digits.
- 300 held-out rows. All other rows of scikit-learn's digits, and the first 1,000 test digits of MNIST, are for judging, upright and
  rotated by 45°; the first 1,000 letters of notMNIST are unfamiliar.
- `network`: as it is. `temperature`: its logits over one T in [0.2, 20] that is best on held-out rows. `fit`: `lapwing.fit` with
  the training rows alone. `fit, validated`: with the held-out rows as well. `laplace`: the training rows alone, the curvature at the network's
  own outputs and its own mean, the precision by the evidence: what `fit` did before. `laplace, validated`: the same with held-out rows. `five`: the mean probabilities of five networks, this one and four others that differ in
  their start and batches. `five, temperature`: the same, all logits over one T.
- NLL, accuracy, ECE and, of the upright rows, how well a score tells wrong answers from right ones, and letters from digits:
  AUROC of entropy, mutual information, novelty and variance. `novelty_not_centred` is what novelty would be if the shift common to all
  logits counted. `minus_network` and `minus_temperature` are paired differences of NLL with standard errors over rows.
- `seconds` are those beyond the trained network: fitting, tuning, for five networks the training of the other four; and `predict`
  of all 1,000 letters. `data_passes` are those that the fit reports. One thread. An error is a result, and is kept as it was said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import harness

HELD_OUT, JUDGED, TURN, MEMBERS, BATCH = 300, 1_000, 45, 5, 64
SEEDS = {"demo": 5, "memorised": 5, "unfinished": 3}
TEMPERATURES = 0.2, 20.0


@final
@dataclass(frozen=True)
class Case:
    """A network and how it is trained."""

    rows: int
    epochs: int
    learning_rate: float
    width: int
    mnist: bool = True

    def network(self, seed: int) -> Any:
        from torch import nn

        from benchmarks.networks import batchnorm_cnn, seeded

        if not self.mnist:
            return batchnorm_cnn(width=self.width, seed=seed)
        w = self.width

        def make() -> nn.Module:
            convolutions = nn.Conv2d(1, w, 5, 2), nn.ReLU(), nn.Conv2d(w, 2 * w, 5, 2), nn.ReLU()
            return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * w, 10))

        return seeded(make, seed)

    def trained(self, data: Any, seed: int) -> Any:
        import lapwing as lw
        from lapwing.training import adam, train

        return train(
            self.network(seed), data, lw.Categorical(), epochs=self.epochs, batch_size=BATCH,
            optimiser=adam(self.learning_rate), seed=seed, progress=False,
        )  # fmt: skip


CASES = {
    "a part": Case(60, 20, 1e-2, 2, mnist=False),  # to see that the script runs
    "demo": Case(200, 300, 1e-2, 6, mnist=False),
    "memorised": Case(200, 200, 2e-3, 8),
    "unfinished": Case(800, 10, 2e-3, 4),
}


def parts(case: Case, seed: int, task: Any = None) -> dict[str, Any]:
    """Rows to train on, held-out rows, and those to judge by: upright, turned and unfamiliar; of digits, or of a task."""
    import torch

    from benchmarks.corruptions import rotate
    from benchmarks.data import digits, mnist, notmnist

    letters, task = notmnist(JUDGED)[0], task or (mnist(test=JUDGED) if case.mnist else digits())
    (x, y), test = task.train, task.test
    if not case.mnist:
        letters = torch.nn.functional.adaptive_avg_pool2d(letters, 8)
        x, y = (torch.cat(both) for both in zip(task.train, task.test, strict=True))
    order, stop = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)), case.rows + HELD_OUT
    train, held_out, rest = order[: case.rows], order[case.rows : stop], order[stop:]
    test = test if case.mnist else (x[rest], y[rest])
    return {
        "train": (x[train], y[train]), "held_out": (x[held_out], y[held_out]), "test": test,
        "turned": (rotate(test[0], TURN), test[1]), "letters": letters,
    }  # fmt: skip


def scaled(base: Any, held_out: Any) -> Any:
    """Logits over the temperature in its bounds that is best on held-out rows."""
    import math

    import scipy.optimize

    from lapwing.families import temperature

    found = base.predict(held_out[0])

    def loss(log_temperature: float) -> float:
        return -float(temperature.scaled(found, math.exp(log_temperature)).log_prob(held_out[1]).double().mean())

    bounds = tuple(math.log(end) for end in TEMPERATURES)
    best = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded")
    return temperature.TemperatureScaled(base, math.exp(best.x))


def methods(case: Case, data: dict[str, Any], model: Any, seed: int) -> dict[str, Callable[[], Any]]:
    import lapwing as lw
    from lapwing.families import ensemble
    from lapwing.families import point as network_alone

    of, train, held_out = lw.Categorical(), data["train"], data["held_out"]
    alone, several = network_alone.fit(model, train, of), []

    def five() -> Any:
        if not several:
            others = [case.trained(train, 1000 + MEMBERS * seed + number) for number in range(1, MEMBERS)]
            several.append(ensemble.of([model, *others], train, of))
        return several[0]

    def posterior(**options: Any) -> Any:
        return lw.fit(model, train, of, seed=seed, progress=False, **options)

    def itself(found: Any) -> Any:
        """A posterior, whatever held-out data would take in its place."""
        return replace(found, alternative=None)

    return {
        "network": lambda: alone,
        "temperature": lambda: scaled(alone, held_out),
        "fit": posterior,
        "fit, validated": lambda: posterior(validation=held_out),
        "laplace": lambda: posterior(curvature="network"),
        "laplace, validated": lambda: itself(posterior(validation=held_out, curvature="network")),
        "five": five,
        "five, temperature": lambda: scaled(five(), held_out),
    }


def scored(found: Any, data: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Scores of what a method says, and the loss of every upright row."""
    from lapwing import metrics

    test, turned = (found.predict(data[name][0]) for name in ("test", "turned"))
    seconds, letters = harness.timed(lambda: found.predict(data["letters"]))
    labels = data["test"][1]
    loss = -test.log_prob(labels).double()
    wrong = test.probs.argmax(1) != labels
    result = {
        "nll": float(loss.mean()), "accuracy": metrics.accuracy(test.probs, labels), "ece": metrics.ece(test.probs, labels),
        "nll_turned": -float(turned.log_prob(labels).double().mean()),
        "accuracy_turned": metrics.accuracy(turned.probs, labels),
        "predict_seconds": seconds,
    }  # fmt: skip
    for name, score in SCORES.items():
        try:
            inside, outside = score(test).double(), score(letters).double()
        except ValueError:  # no prior, so no novelty
            continue
        if float(inside.std()) == 0:  # one network alone has no spread
            continue
        result[f"auroc_errors_{name}"] = metrics.auroc(inside[~wrong], inside[wrong])
        result[f"auroc_letters_{name}"] = metrics.auroc(inside, outside)
    return result, loss


def _not_centred(found: Any) -> Any:
    if isinstance(found.prior_variance, str):
        raise ValueError(found.prior_variance)
    return found.epistemic_variance.sum(1) / found.prior_variance.sum(1)


SCORES: dict[str, Callable[[Any], Any]] = {
    "entropy": lambda found: found.entropy,
    "mutual_information": lambda found: found.mutual_information,
    "novelty": lambda found: found.novelty,
    "novelty_not_centred": _not_centred,
    "variance": lambda found: found.score_variance,
}


def told(found: Any) -> dict[str, Any]:
    """What a fit says of itself."""
    known = getattr(found, "diagnostics", None)
    result = {"temperature": found.temperature} if hasattr(found, "temperature") else {}
    if known is None or not hasattr(known, "plain"):
        return result
    plain = known.plain()
    names = ("method", "tuned_by", "data_passes", "tuning_steps", "converged", "link")
    precision = [float(value) for value in found.prior.precision]
    return {**result, **{name: plain[name] for name in names if name in plain}, "prior_precision": precision}


def measure(case: str, seed: int) -> dict[str, Any]:
    import torch

    from lapwing import metrics

    torch.set_num_threads(1)
    chosen = CASES[case]
    data = parts(chosen, seed)
    training, model = harness.timed(lambda: chosen.trained(data["train"], seed))
    x, y = data["train"]
    result: dict[str, Any] = {
        "weights": sum(weight.numel() for weight in model.parameters()), "rows": len(data["test"][1]),
        "training_seconds": training, "epochs": chosen.epochs,
        "training_accuracy": float((model(x).argmax(1) == y).double().mean()),
        "training_nll": float(torch.nn.functional.cross_entropy(model(x), y).detach()),
    }  # fmt: skip
    losses: dict[str, Any] = {}
    for name, method in methods(chosen, data, model, seed).items():
        try:
            seconds, found = harness.timed(method)
            scores, losses[name] = scored(found, data)
        except (ValueError, ArithmeticError, RuntimeError) as error:
            result[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        seconds += result["five"]["seconds"] if name == "five, temperature" else 0  # which are not trained again
        result[name] = {**scores, "seconds": seconds, **told(found)}
        for rival in ("network", "temperature"):
            if rival in losses and rival != name:
                gap = metrics.paired(losses[name], losses[rival])
                result[name][f"minus_{rival}"] = [gap.mean, gap.standard_error]
    return result


CELLS: dict[str, dict[str, Any]] = {
    "a part": {"case": "a part", "seed": 0},
    **{f"{case}, {seed}": {"case": case, "seed": seed} for case, seeds in SEEDS.items() for seed in range(seeds)},
}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

"""What does a newcomer's first fit give?

Fits as somebody makes them who has read the README and nothing else: a small data set, a small network, Adam, one call of
`lapwing.fit`, and a prediction. What is asked: does it end with a posterior, and is that better than what costs nothing?

The protocol, which was committed before any method was changed because of it:

- A try is made from its number alone: `describe(number)` draws all of what follows, each with a fixed chance, in a fixed order.
- Numbers 0 to 499 are for development, and may be looked at and tuned on. Numbers 1000 to 1499 were for the final score of code that
  took the likeliest of four candidates where validation was given (at c686dd4: ΔNLL of classes to temperature scaling −0.035
  [−0.061, −0.015], 73 wins and 12 losses of 191). Since then probabilities average over five, which was found better on 90 development
  tries, so that numbers 2000 to 2499 are for the final score: they are run once, with the code that is to be judged, and nothing is
  changed because of them.
- The data set is one of 22, all equally likely. Classes: two moons, circles, blobs, iris, wine, breast cancer, digits as vectors,
  digits as images, sequences, rare classes (88, 8 and 4 %), a table with constant columns, categorical tokens, the next token.
  Labels of 0 and 1, which count as classes: yes or no, four labels at once. Counts. Numbers: Friedman's, diabetes, Linnerud's
  three, a wave with a gap, a number for a sequence, and a wave whose noise grows (a network with a mean and a log variance).
- Training rows: 60 to 300, log-uniform; fewer where the data end (iris 80, wine 90, breast cancer 120, diabetes 200 at most,
  Linnerud 12). Validation is given in half of the tries, 10 to 50 % as many rows, never below ten (Linnerud 4). Test rows: 500
  where data are generated or suffice, otherwise all that are left. Bundled data are in a random order.
- Inputs are standardised by the training rows (80 %), brought to [0, 1] (10 %) or left as they are (10 %); columns that are
  constant in the training rows are not divided by anything. Numbers as targets are standardised (85 %) or left as they are.
- Tables go through 1 to 3 layers of 10 to 100 units, log-uniform, with Tanh, ReLU, SiLU, GELU, ELU, LeakyReLU or Softplus; with
  BatchNorm (20 %), LayerNorm (15 %) or neither; with dropout (20 %); one in twelve has a layer that is used twice. Images go through
  a CNN, sequences through an LSTM or a layer of a Transformer, tokens through an embedding; the next token through one whose
  weights are those of the last layer too. All in float32.
- Adam with a rate of 1e-3, 3e-3, 1e-2 or 3e-2, weight decay of 0 (70 %), 1e-4, 1e-3 or 1e-2, 60 to 500 epochs, log-uniform, batches of 32
  or 64 or all rows (always all for sequences). Training that does not end in finite numbers is done again at a tenth of the rate.
- The call: method not given (76 %), KFAC, Diagonal or the last layer alone (8 % each); data as tensors (80 %), a TensorDataset or a
  DataLoader; targets of single numbers as a column or not.
- Outcomes: "posterior"; "refused", a ValueError of lapwing's own, which says what to do; "crash", any other error; "timeout", 60 s of
  fitting or of predicting; "non-finite", something in the prediction that is no finite number.
- Of a posterior more is asked, which changes no outcome and is told beside it: to be printed, its mean, draws and evidence, and of the
  prediction novelty, entropy, mutual information, samples and a table, where they are defined. Each is answered, refused (a
  ValueError), not finite, or an error; all together have 60 s. Draws and variances that differ by more than a factor of five are told
  too. (Added before any method was changed, when the first 150 tries had
  been run: with validation no mode is looked for until one asks for it, so that a try that never asks does not see it fail.)
- Rivals, on the same network and test rows: the raw network; for classes with validation the network's logits over one
  temperature in [0.2, 20] that is best on the same validation rows; for numbers the network with noise as large as its
  training residuals for each output, and where validation is given as large as those of the validation rows.
- NLL is per test row (labels and outputs of a row added up), and a row counts as 20 at most, for all alike. Differences are paired:
  ours less the rival's, row by row, with their mean and its standard error. A win or a loss is two standard errors.
- Tries of one data set are not independent: means have 95 % intervals from drawing data sets, with all their tries, again.
  Tries that ended without a posterior have no NLL; they are counted where they fail.

    python benchmarks/first_tries.py --tries 0:500 --workers 2     # those that have a line are not run again
    python benchmarks/first_tries.py --summary                     # the table; --by form, --by activation … for parts of it
    python benchmarks/first_tries.py --cell 17                     # one try, in this process

Seconds are those of the clock on one thread, without imports. One JSON line per finished try in `results/first_tries.jsonl`, or where `--out` says.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, final

import harness
import numpy as np
import scipy.optimize
import torch
import tries_data
import tries_networks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SECONDS = 60.0  # of fitting, and of predicting
TRAINING_SECONDS = 600.0  # more would be a mistake of this script
CAP = 20.0
LEVEL = 0.9
TEMPERATURES = 0.2, 20.0
DEVELOPMENT, EARLIER, FINAL = range(500), range(1000, 1500), range(2000, 2500)
RESULTS = harness.RESULTS / "first_tries.jsonl"
# before the clock runs: torch imports the last two at the first step of an optimiser and the first forward-mode product
IMPORTED = "lapwing.facade", "sklearn.datasets", "torch._dynamo", "torch._decomp.decompositions_for_jvp"
LAPWING = str(Path(__file__).parent.parent / "lapwing")


def describe(number: int) -> dict[str, Any]:
    """All that a try is made of, drawn from its number."""
    random = np.random.default_rng([number, 0])
    name = str(random.choice(list(tries_data.KINDS)))
    kind = tries_data.KINDS[name]
    rows = min(round(_log_uniform(random, 60, 300)), kind.most)
    share, validated = random.uniform(0.1, 0.5), random.uniform() < 0.5
    held_out = (4 if name == "linnerud" else max(10, round(share * rows))) if validated else 0
    scaling = str(random.choice(["standardise", "minmax", "none"], p=[0.8, 0.1, 0.1]))
    scaled_targets = bool(random.uniform() < 0.85) and kind.target in ("numbers", "spread numbers")
    form = _form(kind, float(random.uniform()))
    epochs, batch = round(_log_uniform(random, 60, 500)), int(random.choice([32, 64, 0]))
    return {
        "number": number, "data": name, "target": kind.target, "rows": rows, "validation_rows": held_out,
        "test_rows": tries_data.rows_left(kind, rows, held_out), "scaling": scaling, "scaled_targets": scaled_targets,
        "form": form, "layers": int(random.integers(1, 4)), "units": round(_log_uniform(random, 10, 100)),
        "activation": str(random.choice(list(tries_networks.ACTIVATIONS))),
        "norm": str(random.choice(["none", "batch", "layer"], p=[0.65, 0.2, 0.15])),
        "dropout": float(random.choice([0, 0.1, 0.3, 0.5], p=[0.8, 0.08, 0.06, 0.06])),
        "learning_rate": float(random.choice([1e-3, 3e-3, 1e-2, 3e-2])),
        "weight_decay": float(random.choice([0, 1e-4, 1e-3, 1e-2], p=[0.7, 0.1, 0.1, 0.1])),
        "epochs": epochs, "batch": 0 if kind.inputs == "sequence" else batch,
        "method": str(random.choice(["default", "KFAC", "Diagonal", "last layer"], p=[0.76, 0.08, 0.08, 0.08])),
        "given_as": str(random.choice(["tensors", "dataset", "loader"], p=[0.8, 0.1, 0.1])),
        "column_targets": bool(random.uniform() < 0.5) and kind.target in ("labels", "counts", "numbers"),
    }  # fmt: skip


def _log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def _form(kind: tries_data.Kind, chance: float) -> str:
    if kind.inputs == "table":
        return "tied" if chance < 1 / 12 else "mlp"
    if kind.inputs == "sequence":
        return "lstm" if chance < 0.5 else "transformer"
    return {"image": "cnn", "tokens": "embedding", "context": "tied embedding"}[kind.inputs]


def data_of(about: dict[str, Any]) -> tries_data.Data:
    return tries_data.made(
        about["data"], about["rows"], about["validation_rows"], about["scaling"], about["scaled_targets"],
        about["number"],
    )  # fmt: skip


def measure(number: int, say: Callable[[Any], None] = lambda _said: None) -> dict[str, Any]:
    """One try in this process; `say` is told when fitting and predicting begin, and then what was found so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on importing parts of itself
        for name in IMPORTED:
            import_module(name)
    about = describe(number)
    kind, data = tries_data.KINDS[about["data"]], data_of(about)
    seconds, (model, rate) = harness.timed(lambda: tries_networks.trained(kind, data.train, about))
    found: dict[str, Any] = {
        **about, "trained_at_rate": rate, "train_seconds": round(seconds, 3),
        "weights": sum(weight.numel() for weight in model.parameters()), "cap": CAP,
    }  # fmt: skip
    rivals = _rivals(kind, model, data)
    found |= {f"{name}_{key}": value for name, rival in rivals.items() for key, value in rival.facts.items()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            posterior, prediction, ours = _ours(kind, model, data, about, rivals, say)
            found |= ours
            say(found)
            found |= {"asked": _asked(posterior, prediction)}
        except Exception as error:
            found |= _failed(error)
    told = {str(warning.message)[:200] for warning in said}
    return found | {"warnings": sorted(text for text in told if not text.startswith("`torch.jit"))}


def _ours(
    kind: tries_data.Kind, model: nn.Module, data: tries_data.Data, about: dict[str, Any], rivals: dict[str, Rival],
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    say("fit")
    cpu = time.process_time()
    fit_seconds, posterior = harness.timed(lambda: _fit(model, data, about))
    cpu = time.process_time() - cpu
    say("predict")
    (x, y), started = data.test, time.perf_counter()
    prediction = posterior.predict(x)
    density = prediction.log_prob(y.reshape(prediction.target_shape))
    numbers = kind.target in ("numbers", "spread numbers")
    parts = [
        density,
        *(
            prediction.interval(LEVEL)
            if numbers
            else [prediction.expectation if kind.target == "counts" else prediction.probs]
        ),
    ]
    told = posterior.diagnostics
    found = {
        "fit_seconds": round(fit_seconds, 4), "fit_cpu_seconds": round(cpu, 4),
        "predict_seconds": round(time.perf_counter() - started, 4), "used": told.method, "tuned_by": told.tuned_by,
        "candidate": getattr(told, "candidate", None), "shares": getattr(told, "shares", None), "edge_of_range": told.edge_of_range, "link": posterior.link,
    }  # fmt: skip
    if not all(bool(part.isfinite().all()) for part in parts):
        return posterior, prediction, {**found, "outcome": "non-finite"}
    each = _capped(density.reshape(len(y), -1).sum(1))
    found |= {"outcome": "posterior", "nll": float(each.mean()), "nll_capped_rows": int((each == CAP).sum())}
    if numbers:
        low, high = (end.reshape(len(y), -1) for end in parts[1:])
        rows = y.reshape(len(y), -1)
        found["coverage"] = float(((low <= rows) & (rows <= high)).double().mean())
    elif kind.target != "counts":
        found["accuracy"] = _accuracy(kind, prediction.probs.reshape(len(y), -1), y)
    for name, rival in rivals.items():
        difference = each - rival.nll
        found[f"minus_{name}"] = float(difference.mean())
        found[f"minus_{name}_se"] = float(difference.std() / math.sqrt(len(difference)))
    return posterior, prediction, found


def _asked(posterior: Any, prediction: Any) -> dict[str, str]:
    """What else was asked and not answered by finite numbers."""
    questions = {
        "print": lambda: torch.tensor(len(str(posterior))), "mean": lambda: posterior.mean,
        "draws": lambda: posterior.draws, "log_evidence": lambda: torch.tensor(float(posterior.log_evidence)),
        "novelty": lambda: prediction.novelty, "entropy": lambda: prediction.entropy,
        "mutual_information": lambda: prediction.mutual_information, "samples": lambda: prediction.samples,
        "table": lambda: torch.tensor(prediction.to_frame().to_numpy(dtype=float)),
    }  # fmt: skip
    answers = {}
    for name, question in questions.items():
        try:
            if not bool(question().isfinite().all()):
                answers[name] = "non-finite"
        except Exception as error:
            answers[name] = f"{_failed(error)['outcome']}, {type(error).__name__}: {error}"[:300]
    share = _disagreeing(prediction)
    return (
        answers
        if share < 0.01
        else {**answers, "spread": f"draws disagree with the variance at {share:.0%} of outputs"}
    )


def _disagreeing(prediction: Any) -> float:
    """The share of outputs where the variance over draws is not within a factor of five of the one that is told.

    That of 32 draws is within a factor of two nearly always. Spreads that float32 cannot tell from the output's own
    round-off are left out.
    """
    over_draws = prediction.likelihood.observed(prediction.draws.double().var(0)).reshape(-1)
    told = prediction.epistemic_variance.double().reshape(-1)
    visible = torch.maximum(over_draws, told) > 1e-6 * (1 + prediction.mean.double().reshape(-1).square())
    apart = (over_draws > 5 * told) | (told > 5 * over_draws) | ~over_draws.isfinite()
    return float((apart & visible).double().mean())


def _fit(model: nn.Module, data: tries_data.Data, about: dict[str, Any]) -> Any:
    import lapwing as lw

    likelihood = {
        "classes": lw.Categorical, "labels": lw.Bernoulli, "counts": lw.Poisson, "numbers": lw.Gaussian,
        "spread numbers": lw.HeteroscedasticGaussian,
    }[about["target"]]()  # fmt: skip
    asked = {
        "default": dict, "KFAC": lambda: {"method": lw.KFAC()}, "Diagonal": lambda: {"method": lw.Diagonal()},
        "last layer": lambda: {"select": lw.last_layer(model)},
    }[about["method"]]()  # fmt: skip
    given = _given(data.train, about)
    if data.validation is not None:
        asked["validation"] = _given(data.validation, about)
    return lw.fit(model, given, likelihood, progress=False, **asked)


def _given(rows: tuple[Tensor, Tensor], about: dict[str, Any]) -> Any:
    """Inputs and targets as somebody passes them: single targets as a column or as the network's output is read."""
    x, y = rows
    single = y.ndim == 1 and about["target"] in ("labels", "counts", "numbers")
    y = y[:, None] if single and about["column_targets"] else y
    match about["given_as"]:
        case "dataset":
            return TensorDataset(x, y)
        case "loader":
            return DataLoader(TensorDataset(x, y), batch_size=32)
    return x, y


@final
@dataclass(frozen=True, eq=False)
class Rival:
    """What costs nothing: the capped NLL of every test row, and what there is to tell of it."""

    nll: Tensor  # (n,)
    facts: dict[str, float]


def _rivals(kind: tries_data.Kind, model: nn.Module, data: tries_data.Data) -> dict[str, Rival]:
    with torch.no_grad():
        outputs = {name: model(rows[0]).double() for name, rows in vars(data).items() if rows is not None}
    targets = {name: rows[1].double() if rows[1].is_floating_point() else rows[1]
               for name, rows in vars(data).items() if rows is not None}  # fmt: skip
    y = targets["test"]

    def rival(scaled: Tensor, std: Tensor | None = None, **facts: float) -> Rival:
        nll = _capped(tries_networks.densities(kind.target, scaled, y, std))
        return Rival(nll, {"nll": float(nll.mean()), **facts})

    if kind.target == "numbers":
        stds = {name: _residual(outputs[name], targets[name]) for name in outputs}
        names = {"raw": "train", "held_out_noise": "validation"}
        return {
            name: rival(outputs["test"], stds[of], coverage=_coverage(outputs["test"], y, stds[of]))
            for name, of in names.items() if of in stds
        }  # fmt: skip
    if kind.target == "spread numbers":
        mean, log_variance = outputs["test"].chunk(2, dim=1)
        return {"raw": rival(outputs["test"], coverage=_coverage(mean, y, (0.5 * log_variance).exp()))}
    if kind.target == "counts":
        return {"raw": rival(outputs["test"])}
    found = {
        "raw": rival(
            outputs["test"],
            accuracy=_accuracy(kind, outputs["test"].sigmoid() if kind.target == "labels" else outputs["test"], y),
        )
    }
    if "validation" in outputs:
        best = scipy.optimize.minimize_scalar(
            lambda t: -float(tries_networks.densities(kind.target, outputs["validation"] * math.exp(-t), targets["validation"]).sum()),
            bounds=(math.log(TEMPERATURES[0]), math.log(TEMPERATURES[1])), method="bounded",
        )  # fmt: skip
        found["ts"] = rival(outputs["test"] * math.exp(-best.x), temperature=math.exp(best.x))
    return found


def _capped(density: Tensor) -> Tensor:
    return (-density.double()).clamp_max(CAP)


def _residual(outputs: Tensor, y: Tensor) -> Tensor:  # (outputs,)
    return (outputs - y.reshape(len(y), -1)).square().mean(0).sqrt().clamp_min(1e-9)


def _coverage(mean: Tensor, y: Tensor, std: Tensor) -> float:
    half = float(torch.special.ndtri(torch.tensor((1 + LEVEL) / 2, dtype=torch.float64)))
    return float(((mean - y.reshape(len(y), -1)).abs() <= half * std).double().mean())


def _accuracy(kind: tries_data.Kind, scores: Tensor, y: Tensor) -> float:
    right = scores.argmax(1) == y if kind.target == "classes" else (scores > 0.5) == (y.reshape(len(y), -1) > 0.5)
    return float(right.double().mean())


def _failed(error: Exception) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    own = isinstance(error, ValueError) and frames[-1].filename.startswith(LAPWING)
    where = next((frame for frame in reversed(frames) if frame.filename.startswith(LAPWING)), frames[-1])
    return {
        "outcome": "refused" if own else "crash", "error": f"{type(error).__name__}: {error}"[:600],
        "where": f"{Path(where.filename).name}, {where.name}",
    }  # fmt: skip


# running


def run(numbers: Iterable[int], path: Path, workers: int, force: bool) -> None:
    """Each try in a process of its own, which is ended where it takes too long; a line is kept as soon as there is one."""
    kept = harness.read(path)
    pending = [number for number in numbers if force or str(number) not in kept]
    print(f"{len(pending)} tries to run", file=sys.stderr)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([*IMPORTED])
    running: dict[Connection, Running] = {}
    try:
        while pending or running:
            while pending and len(running) < workers:
                one = Running.start(server, pending.pop(0))
                running[one.pipe] = one
            soonest = min(one.deadline for one in running.values())
            for pipe in wait(list(running), max(0.0, soonest - time.monotonic())):
                running[pipe].hear()  # type: ignore[index]
            for pipe, one in list(running.items()):
                result = one.result()
                if result is not None:
                    del running[pipe]
                    kept[str(one.number)] = _line(one, result)
                    harness.write(path, dict(sorted(kept.items(), key=lambda item: int(item[0]))))
                    print(f"{one.number}: {_told(result)}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"stopped: finished tries are in {path}, and the same command goes on from there", file=sys.stderr)
    finally:
        for one in running.values():
            one.end()


@final
@dataclass(eq=False)
class Running:
    """A try in its process: what it has said, and until when it must say more."""

    number: int
    process: Any
    pipe: Connection
    deadline: float
    started: float
    phase: str = "train"
    so_far: dict[str, Any] | None = None  # all but the answers to further questions
    found: dict[str, Any] | None = None

    @staticmethod
    def start(server: Any, number: int) -> Running:
        ours, theirs = server.Pipe(duplex=False)
        process = server.Process(target=_child, args=(number, theirs), daemon=True)
        process.start()
        theirs.close()
        now = time.monotonic()
        return Running(number, process, ours, now + TRAINING_SECONDS, now)

    def hear(self) -> None:
        """Take what the process says: a phase that begins, or the result."""
        try:
            said = self.pipe.recv()
        except EOFError:  # it ended without a result
            self.process.join()
            self.found = self._ended("crash", f"its process ended with code {self.process.exitcode}")
            return
        if isinstance(said, tuple):
            (self.found,) = said
            return
        if isinstance(said, dict):
            self.so_far, said = said, "further questions"
        self.phase, self.deadline = said, time.monotonic() + SECONDS

    def _ended(self, how: str, why: str) -> dict[str, Any]:
        if self.so_far is None:
            return {"outcome": how, "error": why}
        return {**self.so_far, "asked": {"all": f"{how}: {why}"}}

    def result(self) -> dict[str, Any] | None:
        """What was found, where the try is over."""
        if self.found is None and time.monotonic() >= self.deadline and not self.pipe.poll():
            late = f"more than {TRAINING_SECONDS if self.phase == 'train' else SECONDS:.0f} s in {self.phase}"
            self.found = self._ended("timeout", late)
        if self.found is None:
            return None
        self.end()
        return {**describe(self.number), **self.found}

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _child(number: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    torch.set_num_threads(1)
    found = measure(number, pipe.send)
    pipe.send(({**found, "peak_memory_bytes": harness.peak_memory()},))


def _line(one: Running, result: dict[str, Any]) -> dict[str, Any]:
    """As of every benchmark, with seconds and memory of the try itself."""
    memory = result.pop("peak_memory_bytes", None)
    line = harness.line(__file__, str(one.number), {"number": one.number}, lambda **_: result)
    return {**line, "seconds": round(time.monotonic() - one.started, 3), "peak_memory_bytes": memory, "threads": 1}


def _told(result: dict[str, Any]) -> str:
    what = f"{result['data']}, {result['form']}, {result['method']}: {result['outcome']}"
    return what + (f", {result['error'][:100]}" if "error" in result else f", {result.get('fit_seconds')} s")


# telling


def summary(tries: list[dict[str, Any]], by: str | None = None) -> str:
    """The table of what was found, or one for every value of a part of the description."""
    if by is not None:
        values = sorted({str(one[by]) for one in tries})
        return "\n\n".join(f"## {by}: {v}\n\n{summary([t for t in tries if str(t[by]) == v])}" for v in values)
    outcomes = Counter(one["outcome"] for one in tries)
    failed = {name: outcomes[name] for name in ("crash", "timeout", "non-finite")}
    classes = [one for one in tries if one["target"] in ("classes", "labels")]
    validated = [one for one in classes if one["validation_rows"]]
    alone = [one for one in classes if not one["validation_rows"]]
    numbers = [one for one in tries if one["target"] in ("numbers", "spread numbers")]
    seconds = [one["fit_seconds"] for one in tries if "fit_seconds" in one]
    crashed = sum(one["outcome"] in failed for one in validated)
    rows = [
        ("tries / with a posterior", f"{len(tries)} / {outcomes['posterior']}"),
        ("crashes, time-outs, non-finite", f"{_share(sum(failed.values()), len(tries))} ({', '.join(f'{n} {v}' for n, v in failed.items())}); {_share(crashed, len(validated))} of classes with validation"),
        ("refusals", f"{_share(outcomes['refused'], len(tries))}; {_share(sum(t['outcome'] == 'refused' for t in alone), len(alone))} of classes without validation"),
        ("classes with validation, ΔNLL to temperature scaling: mean [95 %] / 95th percentile / wins : losses", _against(validated, "ts")),
        ("the same to the raw network", _against(validated, "raw")),
        ("which candidate was the likeliest", ", ".join(f"{name} {count}" for name, count in Counter(str(t.get("candidate")) for t in validated if "nll" in t).most_common())),
        ("classes without validation, ΔNLL to the raw network", _against(alone, "raw")),
        ("counts, ΔNLL to the raw network", _against([one for one in tries if one["target"] == "counts"], "raw")),
        ("numbers without validation, ΔNLL to the network with its training noise", _against([t for t in numbers if not t["validation_rows"]], "raw")),
        ("numbers with validation, ΔNLL to the network with its held-out noise", _against(numbers, "held_out_noise")),
        ("numbers: mean |coverage − 0.9| over data sets / worst data set / worst try", _covered(numbers)),
        ("further questions that were not answered by finite numbers", _unanswered(tries)),
        ("fit, median / 90 %", f"{np.median(seconds):.2f} / {np.quantile(seconds, 0.9):.2f} s" if seconds else "–"),
    ]  # fmt: skip
    lines = ["| figure | found |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)


def _unanswered(tries: list[dict[str, Any]]) -> str:
    """How many tries have an error or no finite number where more was asked, and where; refusals are answers."""
    failed = [
        {name: text for name, text in one["asked"].items() if not text.startswith("refused")}
        for one in tries
        if "asked" in one
    ]
    places = Counter(name for answers in failed for name in answers).most_common()
    return f"{sum(map(bool, failed))} of {len(failed)} tries" + "".join(f", {name} {count}" for name, count in places)


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if of else "–"


def _against(tries: list[dict[str, Any]], rival: str) -> str:
    """Mean with its interval, 95th percentile, and wins and losses at two standard errors."""
    scored = [one for one in tries if f"minus_{rival}" in one]
    if not scored:
        return "–"
    low, high = _interval(scored, f"minus_{rival}")
    found = np.array([one[f"minus_{rival}"] for one in scored])
    beyond = 2 * np.array([one[f"minus_{rival}_se"] for one in scored])
    wins, losses = int((found < -beyond).sum()), int((found > beyond).sum())
    text = f"{found.mean():+.3f} [{low:+.3f}, {high:+.3f}] / {np.quantile(found, 0.95):+.3f} / {wins} : {losses}"
    return f"{text} of {len(scored)}, {len({one['data'] for one in scored})} data sets"


def _interval(tries: list[dict[str, Any]], key: str, draws: int = 4000) -> tuple[float, float]:
    """A 95 % interval of the mean over tries: data sets are drawn again, each with all its tries."""
    values: dict[str, list[float]] = {}
    for one in tries:
        values.setdefault(one["data"], []).append(one[key])
    sums, counts = (np.array([f(of) for of in values.values()]) for f in (sum, len))
    chosen = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    low, high = np.quantile(sums[chosen].sum(1) / counts[chosen].sum(1), [0.025, 0.975])
    return float(low), float(high)


def _covered(numbers: list[dict[str, Any]]) -> str:
    scored: dict[str, list[float]] = {}
    for one in numbers:
        if "coverage" in one:
            scored.setdefault(one["data"], []).append(one["coverage"])
    if not scored:
        return "–"
    means = {name: float(np.mean(found)) for name, found in scored.items()}
    worst = min(means, key=lambda name: means[name])
    away = np.mean([abs(mean - LEVEL) for mean in means.values()])
    return f"{away:.3f} / {means[worst]:.2f} ({worst}) / {min(map(min, scored.values())):.2f}"


def by_data_set(tries: list[dict[str, Any]]) -> str:
    """One row for each data set."""
    lines = [
        "| data set | tries | failed | refused | ΔNLL to TS | ΔNLL to the network, validated / not | coverage |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in tries_data.KINDS:
        own = [one for one in tries if one["data"] == name]
        outcomes = Counter(one["outcome"] for one in own)
        refused, failed = outcomes["refused"], len(own) - outcomes["posterior"] - outcomes["refused"]
        validated, alone = ([t for t in own if bool(t["validation_rows"]) == given] for given in (True, False))
        means = [_mean(validated, "minus_ts"), f"{_mean(validated, 'minus_raw')} / {_mean(alone, 'minus_raw')}"]
        cells = [name, str(len(own)), str(failed), str(refused), *means, _mean(own, "coverage", "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(tries: list[dict[str, Any]], key: str, sign: str = "+") -> str:
    found = [one[key] for one in tries if key in one]
    return f"{np.mean(found):{sign}.3f}" if found else "–"


def failures(tries: list[dict[str, Any]]) -> str:
    """Which tries ended without a posterior, by message."""
    messages: dict[str, list[int]] = {}
    for one in tries:
        if one["outcome"] != "posterior":
            text = f"{one['outcome']}: {one.get('error', '')}"
            plain = "".join("#" if letter.isdigit() else letter for letter in text)[:220]
            messages.setdefault(plain, []).append(one["number"])
        for name, answer in one.get("asked", {}).items():
            plain = "".join("#" if letter.isdigit() else letter for letter in f"asked for {name}: {answer}")[:220]
            messages.setdefault(plain, []).append(one["number"])
    ordered = sorted(messages.items(), key=lambda item: -len(item[1]))
    return "\n".join(
        f"- {len(numbers)} × {text} (tries {', '.join(map(str, numbers[:12]))})" for text, numbers in ordered
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits as a newcomer makes them: see the top of this file.")
    parser.add_argument("--tries", default="0:500", help="numbers from:to, as of a range")
    parser.add_argument("--workers", type=int, default=1, help="tries at a time")
    parser.add_argument("--force", action="store_true", help="run finished tries again")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--cell", type=int, help="run one try in this process and print its line")
    parser.add_argument("--summary", action="store_true", help="print what the results say")
    parser.add_argument("--by", help="with --summary: a table for every value of this part of the description")
    options = parser.parse_args()
    first, _, last = options.tries.partition(":")
    numbers = range(int(first), int(last or int(first) + 1))
    if options.cell is not None:
        torch.set_num_threads(1)
        print(json.dumps(harness.line(__file__, str(options.cell), {"number": options.cell}, measure)))
    elif options.summary:
        lines = harness.read(options.out).values()
        tries = [line["result"] for line in lines if int(line["cell"]) in numbers]
        print(summary(tries, options.by))
        if options.by is None:
            print(f"\n{by_data_set(tries)}\n\n{failures(tries)}")
    else:
        run(numbers, options.out, options.workers, options.force)


if __name__ == "__main__":
    import first_tries  # the module that processes import, so that both speak of the same classes

    first_tries.main()

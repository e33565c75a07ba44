"""From a network and data, as named on the command line, to a posterior."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from lapwing.app.cli import data as reading
from lapwing.app.cli import models
from lapwing.app.cli.targets import Guess, check_order, guess, numbers

if TYPE_CHECKING:
    from torch import nn

    from lapwing.bayes.mixtures import Mixture
    from lapwing.bayes.posterior import Posterior


MOST_CHECKED = 2_000  # rows that the order of the classes is checked on


@final
@dataclass(frozen=True)
class Request:
    """What was asked of `lapwing fit`."""

    model: str
    data: str
    weights: tuple[str, ...] = ()
    target: str | None = None
    inputs: tuple[str, ...] | None = None
    validation: str | None = None
    test: str | None = None
    ood: str | None = None
    hold_out: float = 0.0
    likelihood: str | None = None
    noise_std: float | None = None
    draws: int = 32
    dataset_size: int | None = None
    seed: int = 0
    device: str = "cpu"
    name: str | None = None
    command: str = ""
    max_memory: str | None = None
    method: str | None = None
    prior: str | None = None
    select: str | None = None
    classes: tuple[str, ...] | None = None


@final
@dataclass
class Clock:
    """Seconds by phase; tells what is being done."""

    tell: Callable[[str, float | None], None]  # a phase, and its share done where that is known
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[float], None]]:
        """Time a phase; yields a function to be told the share that is done."""
        started = time.perf_counter()
        self.tell(name, None)
        try:
            yield lambda share: self.tell(name, share)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@final
@dataclass(frozen=True, eq=False)
class FittedRun:
    """A posterior with what is needed to predict and to judge it."""

    posterior: Posterior | Mixture
    models: tuple[nn.Module, ...]  # one for each file of weights
    guess: Guess
    train: reading.Loaded
    sets: dict[str, reading.Loaded]  # "validation", "test", "ood"

    def tensors(self, loaded: reading.Loaded) -> tuple[Any, Any]:
        """Inputs and targets in the network's own precision and place."""
        return tensors(self.models[0], loaded, self.guess)


def fit(request: Request, clock: Clock) -> FittedRun:
    """Read, linearise, solve and tune."""
    import lapwing as lw

    with clock.phase("reading"):
        files = request.weights or (None,)
        networks = tuple(models.network(request.model, weights, request.device) for weights in files)
        model = networks[0]
        train, sets = _read(request)
        found = guess(train, outputs_of(model, train), request.likelihood, request.classes)
        training = tensors(model, train, found)
        _check_classes(model, train, training, found)
        held_out = tensors(model, sets["validation"], found) if "validation" in sets else None
        method, prior, select = _choices(request, model, training[0][:2])
    likelihood: Any
    match found.likelihood:
        case "categorical":
            likelihood = lw.Categorical()
        case "bernoulli":
            likelihood = lw.Bernoulli()
        case "gaussian":
            likelihood = lw.Gaussian(request.noise_std)
    with clock.phase("fitting"):
        posterior = lw.fit(
            model if len(networks) == 1 else networks, training, likelihood, prior=prior, method=method, select=select,
            validation=held_out, draws=request.draws, seed=request.seed, dataset_size=request.dataset_size,
            max_memory=request.max_memory,
            progress=lambda phase: clock.tell(f"fitting: {phase}" if phase else "fitting", None),
        )  # fmt: skip
    return FittedRun(posterior, networks, found, train, sets)


def labelled(request: Request) -> tuple[nn.Module, tuple[Any, Any], Guess]:
    """A network and its training data with class labels."""
    model = models.network(request.model, request.weights[0] if request.weights else None, request.device)
    train, _ = _read(request)
    found = guess(train, outputs_of(model, train), request.likelihood, request.classes)
    if found.likelihood != "categorical":
        raise ValueError(
            f"{request.data}: the targets are read as {found.likelihood}: wrong labels are those of classes"
        )
    training = tensors(model, train, found)
    _check_classes(model, train, training, found)
    return model, training, found


def _check_classes(model: nn.Module, train: reading.Loaded, training: tuple[Any, Any], found: Guess) -> None:
    """Whether the network has its classes in the order in which their names are read."""
    import torch

    named = train.targets is not None and train.targets.dtype.kind == "U"
    if not named or found.likelihood != "categorical":
        return
    inputs, labels = (part[:MOST_CHECKED] for part in training)
    with torch.no_grad():
        logits = model(inputs)
    if logits.ndim == 2:
        check_order(train.source, found, logits.cpu().numpy(), labels.cpu().numpy())


def check_sources(request: Request) -> None:
    """Refuse names of what is not there before anything heavy is imported."""
    models.check_named(request.model)
    for source in (request.data, request.validation, request.test, request.ood):
        if source is not None:
            reading.check_there(source)
    for weights in request.weights:
        models.existing(Path(weights), "file of weights")


def _choices(request: Request, model: nn.Module, inputs: Any) -> tuple[Any, Any, Any]:
    """Method, prior and weights by their names, None where lapwing is to choose."""
    import lapwing as lw

    methods = {
        "exact": lw.Exact, "krylov": lw.Krylov, "cg": lw.CG, "diagonal": lw.Diagonal, "kfac": lw.KFAC, "ekfac": lw.EKFAC
    }  # fmt: skip
    priors = {
        "g": lw.GPrior, "isotropic": lw.Isotropic, "layer": lambda: lw.PerGroup("layer"),
        "normalised": lambda: lw.PerGroup("normalised"),
    }  # fmt: skip
    named = (("--method", request.method, methods), ("--prior", request.prior, priors))
    found = [None if given is None else _one_of(option, given, known)() for option, given, known in named]
    return found[0], found[1], selected(request.select, model, inputs)


def _one_of(option: str, given: str, known: dict[str, Any]) -> Any:
    if given not in known:
        raise ValueError(f"{option} is {given!r}, expected one of {', '.join(known)}")
    return known[given]


def selected(given: str | None, model: nn.Module, inputs: Any) -> Any:
    """The weights of a last layer, or those whose names begin with one of these."""
    import lapwing as lw

    if given is None:
        return None
    if given == "last-layer":
        return lw.last_layer(model, inputs)
    starts, names = tuple(part.strip() for part in given.split(",")), [name for name, _ in model.named_parameters()]
    for start in starts:
        if not start or not any(name.startswith(start) for name in names):
            raise ValueError(
                f"--select has {start!r}, with which no weights begin: give last-layer, or the beginnings of names, of "
                f"{', '.join(names[:12])}{', …' if len(names) > 12 else ''}"
            )
    return lambda name: name.startswith(starts)


def _read(request: Request) -> tuple[reading.Loaded, dict[str, reading.Loaded]]:
    whole = reading.read(request.data, reading.NamedColumns(request.target, request.inputs))
    same = reading.NamedColumns(whole.target or None, whole.columns or None)
    named = {"validation": request.validation, "test": request.test}
    sets = {name: reading.read(source, same) for name, source in named.items() if source is not None}
    if request.ood is not None:
        free = reading.NamedColumns(whole.target or None, whole.columns or None, needs_target=False)
        sets["ood"] = reading.read(request.ood, free)
    for name, loaded in sets.items():
        if loaded.inputs.shape[1:] != whole.inputs.shape[1:]:
            shapes = f"{loaded.inputs.shape[1:]} in {loaded.source}, {whole.inputs.shape[1:]} in {whole.source}"
            raise ValueError(f"{name} inputs have another shape than the training data: {shapes}")
    if not request.hold_out:
        return whole, sets
    if not 0 < request.hold_out < 0.9:
        raise ValueError(f"--hold-out is a share of the data between 0 and 0.9, got {request.hold_out}")
    return _split(whole, sets, request.hold_out, request.seed)


def _split(
    whole: reading.Loaded, sets: dict[str, reading.Loaded], share: float, seed: int
) -> tuple[reading.Loaded, dict[str, reading.Loaded]]:
    """Rows taken out by chance for what was not given: validation, and test."""
    order = np.random.default_rng(seed).permutation(len(whole.inputs))
    absent = [name for name in ("validation", "test") if name not in sets]
    size = int(share * len(order)) // max(len(absent), 1)
    if size < 1 or size * len(absent) >= len(order):
        raise ValueError(f"{whole.source}: too few rows to hold out {share:.0%} of them")
    for place, name in enumerate(absent):
        rows = np.sort(order[place * size : (place + 1) * size])
        sets[name] = whole.rows(rows, f"{whole.source} ({size} rows held out)")
    rest = np.sort(order[len(absent) * size :])
    return whole.rows(rest, whole.source), sets


def outputs_of(model: nn.Module, loaded: reading.Loaded) -> int:
    """How many numbers the network returns for one input; an error where it cannot take these inputs."""
    import torch

    try:
        with torch.no_grad():
            found = model(_inputs(model, loaded.inputs[:2]))
    except Exception as error:
        shape = " × ".join(map(str, loaded.inputs.shape[1:])) or "one number"
        first = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        named = f" (columns {reading.listed(loaded.columns)})" if loaded.columns else ""
        raise ValueError(f"the network cannot take inputs of {shape}{named} from {loaded.source}: {first}") from error
    if not isinstance(found, torch.Tensor) or len(found) != len(loaded.inputs[:2]):
        raise ValueError("the network must return one tensor with one row for each input")
    return found[0].numel()


def _inputs(model: nn.Module, inputs: np.ndarray) -> Any:
    import torch

    like = next(model.parameters(), torch.zeros(1))
    return torch.from_numpy(np.ascontiguousarray(inputs)).to(like)


def tensors(model: nn.Module, loaded: reading.Loaded, found: Guess) -> tuple[Any, Any]:
    """Inputs and targets as tensors of the network's own kind."""
    import torch

    inputs, targets = _inputs(model, loaded.inputs), numbers(loaded, found)
    if targets is None:
        return inputs, None
    if found.likelihood == "categorical":
        return inputs, torch.from_numpy(targets).to(inputs.device)
    return inputs, torch.from_numpy(targets.reshape(len(targets), -1)).to(inputs)

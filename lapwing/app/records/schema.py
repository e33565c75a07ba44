"""The schema of a record: frozen values, plain but for their arrays."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, final

import numpy as np

OURS = "lapwing"  # the method whose charts a page shows in full; others are what it is compared with
LEFT_OUT = "training rows, each predicted from the others"  # the set that a table without test rows is checked on

Task = Literal["classification", "regression"]


@final
@dataclass(frozen=True)
class Choice:
    """Something that was decided for the user, and why."""

    what: str
    value: str
    why: str = ""


@final
@dataclass(frozen=True)
class Measured:
    """A number with its standard error, zero where it is exact."""

    value: float
    standard_error: float = 0.0


@final
@dataclass(frozen=True)
class Data:
    """Where the data came from and what they are."""

    source: str = ""
    fingerprint: str = ""
    sizes: dict[str, int] = field(default_factory=dict)  # "train", "validation", "test"
    inputs: str = ""  # in words: "64 numbers", "3 × 32 × 32"
    target: str = ""
    unit: str = ""
    classes: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Network:
    """The network that was fitted."""

    name: str = ""
    weights: int = 0  # all
    chosen: int = 0  # those with a posterior
    fingerprint: str = ""


@final
@dataclass(frozen=True)
class Layer:
    """A layer's share of the variance of the outputs."""

    name: str
    weights: int
    share: float


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """Scores over the prior precision, and the one chosen."""

    precision: np.ndarray  # (points,)
    chosen: float
    log_evidence: np.ndarray | None = None  # (points,)
    held_out: np.ndarray | None = None  # (points,), mean log predictive density per datum


@final
@dataclass(frozen=True, eq=False)
class Solve:
    """How the posterior was found, how far it converged and what limits it."""

    method: str = ""
    why: str = ""
    tuned_by: str = ""
    converged: bool = True
    limited_by: str = ""
    data_passes: float | None = None
    error_bound: float | None = None
    draws: int = 0
    residuals: np.ndarray | None = None  # (1 + draws,), of the mean and of every draw
    precision: dict[str, float] = field(default_factory=dict)  # by group
    noise_std: tuple[float, ...] = ()
    temperature: float | None = None  # of temperature scaling, on the same held-out data
    log_evidence: Measured | None = None
    evidence_parts: dict[str, float] = field(default_factory=dict)
    effective_dimension: Measured | None = None


@final
@dataclass(frozen=True, eq=False)
class Predictions:
    """What one method said about an evaluation set: class probabilities, or a mean with a standard deviation.

    Where a distribution of numbers is not Gaussian, `cdf` and `log_density` are those of the targets under it, and
    `lower_90` and `upper_90` the ends of its central interval.
    """

    method: str
    probs: np.ndarray | None = None  # (n, classes)
    mean: np.ndarray | None = None  # (n, outputs)
    std: np.ndarray | None = None  # (n, outputs), of a new observation
    epistemic_std: np.ndarray | None = None  # (n, outputs)
    cdf: np.ndarray | None = None  # (n, outputs)
    log_density: np.ndarray | None = None  # (n, outputs)
    lower_90: np.ndarray | None = None  # (n, outputs)
    upper_90: np.ndarray | None = None  # (n, outputs)
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # (n,) each, larger is less certain: "novelty"
    metrics: dict[str, Measured] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions of several methods on one set of inputs; without targets, an out-of-distribution set."""

    name: str
    predictions: tuple[Predictions, ...]
    targets: np.ndarray | None = None  # (n,) class numbers, or (n, outputs)
    inputs: np.ndarray | None = None  # (n,), the only number of each input, or its most relevant one
    input_name: str = ""  # of the most relevant one, where there are others
    members: tuple[Predictions, ...] = ()  # what each of several networks says by itself
    image_rows: np.ndarray | None = None  # (k,), the inputs that are shown
    images: np.ndarray | None = None  # (k, height, width) or (k, height, width, 3), bytes
    places: np.ndarray | None = None  # (n,), of the inputs in their source, where they are a part of it

    def method(self, name: str) -> Predictions:
        """The predictions of one method."""
        found = [one for one in self.predictions if one.method == name]
        if not found:
            raise ValueError(f"{self.name}: no method {name!r}, there are {[one.method for one in self.predictions]}")
        return found[0]


@final
@dataclass(frozen=True, eq=False)
class Influence:
    """What each training datum does to the posterior, and how well the others predict it."""

    leverage: np.ndarray  # (n,), summing to the effective dimension
    log_density: np.ndarray | None = None  # (n,), of each datum given all others
    targets: np.ndarray | None = None  # (n,)
    predicted: np.ndarray | None = None  # (n,), from all others
    places: np.ndarray | None = None  # (n,), of the data in their source, where they are a part of it


@final
@dataclass(frozen=True, eq=False)
class Suspects:
    """Training labels that look wrong, the most suspicious first, each predicted from all other examples."""

    places: np.ndarray  # (k,), of the examples in their source
    given: np.ndarray  # (k,), class numbers
    suggested: np.ndarray  # (k,), the most probable ones
    probability: np.ndarray  # (k,), of the given label
    examples: int  # that were looked at
    estimated: Measured  # how many of their labels are wrong


@final
@dataclass(frozen=True, eq=False)
class Record:
    """Everything that a run leaves behind. The first evaluation is the main one."""

    name: str
    task: Task
    evaluations: tuple[Evaluation, ...] = ()
    status: Literal["finished", "failed"] = "finished"
    error: str = ""  # why a failed run failed
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    command: str = ""
    seed: int = 0
    device: str = "cpu"
    versions: dict[str, str] = field(default_factory=lambda: versions())
    data: Data = field(default_factory=Data)
    network: Network = field(default_factory=Network)
    choices: tuple[Choice, ...] = ()
    solve: Solve = field(default_factory=Solve)
    curve: Curve | None = None
    layers: tuple[Layer, ...] = ()
    relevance: dict[str, float] = field(default_factory=dict)  # by column, of networks that were trained on a table
    influence: Influence | None = None
    suspects: Suspects | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # by phase
    peak_bytes: int | None = None


def versions() -> dict[str, str]:
    """Versions of what a result depends on, without importing any of it."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in ("lapwing", "torch", "numpy", "scipy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def fingerprint(*arrays: Any) -> str:
    """Sixteen hexadecimal digits that change with any value, shape or type of the arrays.

    >>> fingerprint(np.arange(3)) == fingerprint(np.arange(3)), fingerprint(np.arange(3)) == fingerprint(np.arange(4))
    (True, False)
    """
    digest = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes() if array.dtype.hasobject is False else repr(array.tolist()).encode())
    return digest.hexdigest()[:16]

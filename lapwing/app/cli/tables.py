"""Tables without a network: from a file to an estimator of `lapwing.tabular`, its record, and its predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

import lapwing.app.records as records
from lapwing.app.cli import columns as planning
from lapwing.app.cli import data as reading
from lapwing.app.cli import folders
from lapwing.app.cli.columns import Column
from lapwing.app.cli.fitting import Clock, Request
from lapwing.app.records.schema import Task

if TYPE_CHECKING:
    from lapwing.tabular.columns import Table

MODEL = "model.safetensors"
PLACE = "lapwing.tabular."
ONE_THREAD = 2_000  # rows that are trained on by one thread
MOST_NUMBERED = 10  # classes that are whole numbers, unless --likelihood says so
NEEDLESS = {
    "validation": "these estimators need no rows held out: give them as --test, or with the rows to train on",
    "weights": "there is no network to load them into", "noise_std": "the noise is found with the rest",
    "dataset_size": "all rows are used", "method": "the posterior is that of small networks, in closed form",
    "prior": "precisions are found for every layer and column", "select": "all weights have a posterior",
    "max_memory": "sizes are checked against what is free",
    "classes": "there is no network whose outputs have an order",
}  # fmt: skip


def is_table(source: str) -> bool:
    """Whether a name is that of a table in a file, and not of a network."""
    return Path(source).suffix in (*reading.TEXT, *reading.PARQUET)


@final
@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a file as an estimator takes them, with their targets if they are known."""

    source: str
    table: Table
    targets: np.ndarray | None  # (n,)
    places: np.ndarray | None = None  # (n,), of these rows in their source, where they are a part of it

    def __len__(self) -> int:
        return len(self.table.numbers)

    def part(self, chosen: np.ndarray, source: str) -> TableRows:
        """Some of them."""
        table = dataclasses.replace(
            self.table,
            numbers=self.table.numbers[chosen],
            labels={place: [values[row] for row in chosen] for place, values in self.table.labels.items()},
        )
        return TableRows(source, table, None if self.targets is None else self.targets[chosen], chosen)


@final
@dataclass(frozen=True, eq=False)
class TableRun:
    """A fitted estimator, and what was done with the columns of its table."""

    estimator: Any
    columns: tuple[Column, ...]
    target: str
    why: str  # it is this estimator
    train: TableRows
    sets: dict[str, TableRows]  # "test", "ood"
    read_as: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """In the estimator's order, or none."""
        return tuple(str(label) for label in getattr(self.estimator, "classes_", ()))


def fit(request: Request, clock: Clock, quiet: bool) -> TableRun:
    """Read, decide what the columns and the target are, and train."""
    _check_options(request)
    with clock.phase("reading"):
        columns, target, whole, read_as = read(request)
        task, why = kind_of(request.data, whole, request.likelihood)
        train, sets = _split(request, whole, columns, target)
    with clock.phase("fitting"), threads_for(train):
        estimator = _estimator(task, request.seed, quiet).fit(train.table, _as_targets(task, train))
    return TableRun(estimator, columns, target, why, train, sets, read_as)


@contextmanager
def threads_for(rows: TableRows) -> Iterator[None]:
    """One thread for few rows: their matrices are too small to share, and on a busy machine threads only wait."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if len(rows) <= ONE_THREAD else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read(request: Request) -> tuple[tuple[Column, ...], str, TableRows, str]:
    """What the columns are, which is the target, all rows, and how the file was read."""
    header, cells, read_as = reading.cells(request.data)
    by_name = dict(zip(header, cells, strict=True))
    target = _target(request, header)
    columns = tuple(planning.planned(name, by_name[name]) for name in _inputs(request, header, target))
    planning.check_used(columns, request.data)
    return columns, target, _rows(request.data, columns, target, needs_target=True), read_as


def kind_of(source: str, rows: TableRows, asked: str | None) -> tuple[Task, str]:
    """Whether targets are classes or numbers, and why."""
    targets = rows.targets
    assert targets is not None
    words = targets.dtype.kind == "U"
    if asked == "gaussian":
        if words:
            raise ValueError(f"{source}: targets such as {str(targets[0])[:30]!r} are not numbers")
        return "regression", "as asked"
    if asked in ("categorical", "bernoulli"):
        return "classification", "as asked"
    if asked is not None:
        raise ValueError(f"--likelihood is {asked!r}, expected gaussian, categorical or bernoulli")
    distinct = len(np.unique(targets))
    if words:
        return "classification", f"the target has words, {distinct} different ones"
    if targets.dtype.kind == "i" and distinct <= MOST_NUMBERED:
        return (
            "classification",
            f"the target has whole numbers, {distinct} different ones; --likelihood gaussian if not",
        )
    return "regression", f"the target has numbers, {distinct:,} different ones"


def _estimator(task: str, seed: int, quiet: bool) -> Any:
    from lapwing.tabular import BayesianMLPClassifier, BayesianMLPRegressor

    chosen: Any = BayesianMLPClassifier if task == "classification" else BayesianMLPRegressor
    return chosen(random_state=seed, verbose=False if quiet else None)


def _check_options(request: Request) -> None:
    for name, why in NEEDLESS.items():
        if getattr(request, name) not in (None, ()):
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is for networks that you bring, and this is a table without one: {why}")


def _target(request: Request, header: list[str]) -> str:
    if request.target is None:
        return header[-1]
    if request.target not in header:
        raise ValueError(
            f"{request.data}: there is no column {request.target!r}; its columns are {reading.listed(header)}"
        )
    return request.target


def _inputs(request: Request, header: list[str], target: str) -> list[str]:
    names = list(request.inputs or [name for name in header if name != target])
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(
            f"{request.data}: columns {reading.listed(missing)} are missing; there are {reading.listed(header)}"
        )
    if not names:
        raise ValueError(f"{request.data}: there is no column but the target {target!r}")
    return names


def _rows(source: str, columns: Sequence[Column], target: str, *, needs_target: bool) -> TableRows:
    """Rows of a file with the columns of the training rows; others are not looked at."""
    header, cells, _ = reading.cells(source)
    by_name = dict(zip(header, cells, strict=True))
    used = [column.name for column in columns if column.kind != "left out"]
    missing = [name for name in (*used, *((target,) if needs_target else ())) if name not in by_name]
    if missing:
        raise ValueError(f"{source}: columns {reading.listed(missing)} are missing; there are {reading.listed(header)}")
    try:
        table = planning.table(columns, by_name, len(cells[0]))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    targets = reading.classes_or_numbers(source, target, by_name[target]) if needs_target else None
    return TableRows(source, table, targets)


def _split(
    request: Request, whole: TableRows, columns: Sequence[Column], target: str
) -> tuple[TableRows, dict[str, TableRows]]:
    """The rows to train on, and those to test on: of their own file, or held out by chance."""
    sets = {}
    if request.test is not None:
        sets["test"] = _rows(request.test, columns, target, needs_target=True)
    if request.ood is not None:
        sets["ood"] = _rows(request.ood, columns, target, needs_target=False)
    if not request.hold_out:
        return whole, sets
    if "test" in sets or not 0 < request.hold_out < 0.9:
        raise ValueError(f"--hold-out is a share between 0 and 0.9, where --test is not given; got {request.hold_out}")
    order = np.random.default_rng(request.seed).permutation(len(whole))
    size = int(request.hold_out * len(order))
    if size < 1 or len(order) - size < 2:
        raise ValueError(f"{whole.source}: too few rows to hold out {request.hold_out:.0%} of them")
    held_out = whole.part(np.sort(order[:size]), f"{whole.source} ({size} rows held out)")
    return whole.part(np.sort(order[size:]), whole.source), {"test": held_out, **sets}


def _as_targets(task: str, rows: TableRows) -> np.ndarray:
    assert rows.targets is not None
    if task == "classification":
        return rows.targets
    if rows.targets.dtype.kind == "U":
        raise ValueError(f"{rows.source}: targets such as {str(rows.targets[0])[:30]!r} are not numbers")
    return rows.targets.astype(float)


def evaluation(name: str, estimator: Any, rows: TableRows, *, judged: bool) -> records.Evaluation:
    """What the estimator says of rows, beside their targets if these are known."""
    if hasattr(estimator, "classes_"):
        labels = _numbered(estimator, rows) if judged else None
        found = records.classification(name, labels, {records.OURS: estimator.predict_proba(rows.table)})
        return dataclasses.replace(found, places=rows.places)
    known: dict[str, Any] = {"intervals": {records.OURS: estimator.interval(rows.table, 0.9)}}
    targets = _as_targets("regression", rows) if judged else None
    if targets is not None:
        cdf = estimator.cumulative_probability(rows.table, targets)
        known["densities"] = {records.OURS: (cdf, estimator.log_predictive_density(rows.table, targets))}
    found = _numbers(name, estimator, rows.table, targets, estimator.predict(rows.table, return_std=True), known)
    return dataclasses.replace(found, places=rows.places)


def left_out(estimator: Any, train: TableRows) -> records.Evaluation:
    """What the estimator says of every training row, given the others."""
    found, name = estimator.leave_one_out_, records.LEFT_OUT
    if hasattr(estimator, "classes_"):
        return records.classification(name, _numbered(estimator, train), {records.OURS: found.probabilities})
    known = {"densities": {records.OURS: (found.cdf, found.log_density)}}
    return _numbers(name, estimator, train.table, _as_targets("regression", train), (found.mean, found.std), known)


def _numbers(
    name: str, estimator: Any, table: Table, targets: np.ndarray | None, found: tuple[Any, Any], known: dict[str, Any]
) -> records.Evaluation:
    """Predicted means and standard deviations, over the most relevant column."""
    input_name, inputs = _most_relevant(estimator, table)
    epistemic = np.sqrt(np.maximum(found[1] ** 2 - estimator.noise_std_**2, 0.0))
    return records.regression(
        name, targets, {records.OURS: found}, epistemic_std={records.OURS: epistemic}, inputs=inputs,
        input_name=input_name, **known,
    )  # fmt: skip


def _most_relevant(estimator: Any, table: Table) -> tuple[str, np.ndarray | None]:
    """Of the columns with numbers."""
    if not table.numeric:
        return "", None
    place = int(np.argmax(estimator.relevance_[list(table.numeric)]))
    return table.names[table.numeric[place]], table.numbers[:, place]


def _numbered(estimator: Any, rows: TableRows) -> np.ndarray:  # (n,)
    """Places of the targets among the classes."""
    known = {str(label): number for number, label in enumerate(estimator.classes_)}
    assert rows.targets is not None
    unseen = sorted({str(label) for label in rows.targets} - set(known))
    if unseen:
        shown = ", ".join(repr(label[:30]) for label in unseen[:5])
        raise ValueError(f"{rows.source}: classes that were not in the training data: {shown}; remove these rows")
    return np.array([known[str(label)] for label in rows.targets])


def record(run: TableRun, request: Request, clock: Clock) -> records.Record:
    """Everything that is known of a run."""
    train = run.train
    with clock.phase("predicting"):
        evaluations = tuple(
            evaluation(Path(rows.source).name if name == "ood" else name, run.estimator, rows, judged=name != "ood")
            for name, rows in run.sets.items()
        )
    if "test" not in run.sets:
        evaluations = (left_out(run.estimator, train), *evaluations)
    sizes = {"train": len(train)} | {name: len(rows) for name, rows in run.sets.items()}
    used = [column for column in run.columns if column.kind != "left out"]
    data = records.Data(
        request.data, records.fingerprint(train.table.numbers, np.asarray(train.targets)), sizes,
        f"{len(used)} columns", run.target, classes=run.classes,
    )  # fmt: skip
    networks = run.estimator._networks.networks
    weights = networks.flat().numel()
    return records.Record(
        request.name or Path(request.data).stem, "classification" if run.classes else "regression", evaluations,
        command=request.command, seed=request.seed, data=data,
        network=records.Network(f"{type(run.estimator).__name__}, {len(networks.of[0])} networks", weights, weights),
        choices=_choices(run, request), solve=_solve(run.estimator), influence=_influence(run),
        relevance=_relevance(run), suspects=_suspects(run, clock), seconds=dict(clock.seconds),
    )  # fmt: skip


def _choices(run: TableRun, request: Request) -> tuple[records.Choice, ...]:
    """The estimator, and what was done with every column."""
    shares = _relevance(run)
    columns = [
        records.Choice(
            f"column {one.name!r}", one.said, "" if one.name not in shares else f"relevance {shares[one.name]:.0%}"
        )
        for one in run.columns
    ]
    asked = "as asked" if request.target else "the last column"
    return (
        *([records.Choice("table", run.read_as, "guessed from its first line and its numbers")] if run.read_as else []),
        records.Choice("estimator", type(run.estimator).__name__, run.why),
        records.Choice("target", f"column {run.target!r}", asked),
        *columns,
    )


def _relevance(run: TableRun) -> dict[str, float]:
    """Every column's share in the slopes of the networks."""
    return dict(zip(run.train.table.names, map(float, run.estimator.relevance_), strict=True))


def _solve(estimator: Any) -> records.Solve:
    evidences = np.asarray(estimator.log_evidences_)
    error = float(evidences.std(ddof=1) / len(evidences) ** 0.5) if len(evidences) > 1 else 0.0
    labels = hasattr(estimator, "classes_")
    return records.Solve(
        method="linearised networks, exact", why="small networks on all rows, several from different starts",
        tuned_by=f"tuned by {'a bound on the ' if labels else ''}marginal likelihood", converged=estimator.converged_,
        limited_by="" if estimator.converged_ else f"training ended after {estimator.n_iter_} iterations",
        noise_std=() if labels else (float(estimator.noise_std_),),
        log_evidence=records.Measured(estimator.log_evidence_, error),
    )  # fmt: skip


def _influence(run: TableRun) -> records.Influence | None:
    """Leave-one-out densities of a regression, which has leverages too."""
    if run.classes:
        return None
    found = run.estimator.leave_one_out_
    targets = _as_targets("regression", run.train)
    return records.Influence(
        np.asarray(found.leverage), np.asarray(found.log_density), targets, np.asarray(found.mean), run.train.places
    )


def _suspects(run: TableRun, clock: Clock) -> records.Suspects | None:
    """Training labels that look wrong."""
    if not run.classes:
        return None
    from lapwing.app import recording
    from lapwing.decisions.labels import label_issues

    with clock.phase("checking labels"):
        found = label_issues(run.train.table, _as_targets("classification", run.train))
    return recording.suspects(found, run.train.places)


def predictions(estimator: Any, table: Table) -> dict[str, Any]:
    """A table of predictions with their uncertainty, by column."""
    if hasattr(estimator, "classes_"):
        probabilities = estimator.predict_proba(table)
        best = probabilities.argmax(1)
        entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(1)
        names = [str(label) for label in estimator.classes_]
        found: dict[str, Any] = {
            "prediction": [names[k] for k in best], "confidence": probabilities.max(1), "entropy": entropy
        }  # fmt: skip
        return found | {f"prob_{name}": probabilities[:, k] for k, name in enumerate(names)}
    mean, std = estimator.predict(table, return_std=True)
    low, high = estimator.interval(table, 0.9)
    known = np.sqrt(np.maximum(std**2 - estimator.noise_std_**2, 0.0))
    return {"mean": mean, "std": std, "epistemic_std": known, "lower_90": low, "upper_90": high}


def save(run: TableRun, found: records.Record, folder: Path) -> None:
    """Write everything a later command needs; the record last, so that a folder with one is whole."""
    run.estimator.save(folder / MODEL)
    planning.save(run.columns, folder)
    place = f"{PLACE}{type(run.estimator).__name__}"
    settings = folders.RunSettings(place, found.task, run.classes, run.train.table.names, run.target, (), found.name)
    folders.save(settings, folder)
    records.save(found, folder)


@final
@dataclass(frozen=True, eq=False)
class Saved:
    """A run from its folder."""

    folder: Path
    settings: folders.RunSettings
    estimator: Any
    columns: tuple[Column, ...]

    def rows(self, source: str, *, needs_target: bool) -> TableRows:
        """Of a file with the columns of the training rows."""
        if not is_table(source):
            raise ValueError(f"{source}: this run is of a table: expected a .csv, .tsv or .parquet file")
        return _rows(source, self.columns, self.settings.target, needs_target=needs_target)


def saved(folder: Path) -> Saved | None:
    """The run of a folder, if it is one of a table without a network; no code of its own is run."""
    settings, _ = folders.load(folder)
    if not settings.model.startswith(PLACE):
        return None
    import lapwing.tabular

    name = settings.model.removeprefix(PLACE)
    if name not in lapwing.tabular.__all__:
        raise ValueError(f"{folder}: a run of {settings.model}, which this lapwing does not have")
    estimator = getattr(lapwing.tabular, name).load(folder / MODEL)
    return Saved(folder, settings, estimator, planning.load(folder))


def evaluated(run: Saved, source: str, ood: str | None) -> records.Record:
    """The run's record with its evaluations replaced by those on new rows, scored and saved."""
    import lapwing.app.report as report

    before = records.load(run.folder)
    rows = run.rows(source, needs_target=True)
    found = [evaluation(Path(source).name, run.estimator, rows, judged=True)]
    if ood is not None:
        unfamiliar = run.rows(ood, needs_target=False)
        found.append(evaluation(f"{Path(ood).name} (out of distribution)", run.estimator, unfamiliar, judged=False))
    sizes = {**before.data.sizes, "test": len(rows)}
    renewed = dataclasses.replace(before, evaluations=tuple(found), data=dataclasses.replace(before.data, sizes=sizes))
    scored = report.scored(renewed)
    records.save(scored, run.folder)
    return scored

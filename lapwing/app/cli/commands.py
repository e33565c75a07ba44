"""The commands and their options; each imports what it needs when it runs."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lapwing.app.cli import console
from lapwing.app.cli.jobs import Job
from lapwing.app.cli.options import Classes, Debug, Device, Json, Model, Quiet, listed, writable
from lapwing.app.cli.studies import ct, symmetry

if TYPE_CHECKING:
    from lapwing.app.records import Record

EXAMPLES = """\b
Examples, to be run where model.py defines make(), which returns your network:
  lapwing fit model.py:make train.csv --weights weights.pt --test test.csv
  lapwing fit train.csv --target price --test test.csv      (without a network)
  lapwing predict runs/train new.csv
  lapwing evaluate runs/train test.csv --ood other.csv
  lapwing report runs/one runs/two --out compared.html
"""

app = typer.Typer(
    name="lapwing", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Uncertainty estimates for networks you have already trained, and for tables.", epilog=EXAMPLES,
)  # fmt: skip


def run() -> None:
    """Run the command line."""
    app(prog_name="lapwing")


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        sys.stdout.write(f"lapwing {version('lapwing')}\n")
        raise typer.Exit


@app.callback()
def _all(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    del version
    with console.guarded(False):
        if Job.here().size > 1 and context.invoked_subcommand != "fit":
            raise ValueError(
                f"`lapwing {context.invoked_subcommand}` is no work for several processes, `lapwing fit` is: run it "
                "without torchrun"
            )


@app.command(
    short_help="Fit a posterior to a trained network, or to a table without one.",
    epilog="Examples: lapwing fit model.py:make train.csv --weights weights.pt --validation held_out.csv; "
    "lapwing fit table.csv --target price --hold-out 0.2",
)
def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Your network: package.module:factory or file.py:factory; or a table (.csv, .parquet) without one.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Its training data: .npz (x, y), .csv, .parquet, a folder of class folders, module:dataset.",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="State dict: .safetensors, or .pt by torch.save. Several times: as many networks, as one mixture.",
            show_default=False,
        ),
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="Data the network was not trained on, to tune on. Recommended.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Data the network was not trained on, to test the predictions on.")
    ] = None,
    ood: Annotated[
        str | None, typer.Option(help="Out-of-distribution data, to see whether they are recognised.")
    ] = None,
    hold_out: Annotated[
        float,
        typer.Option(
            help="Fraction of DATA to set aside, half for validation and half for testing. Only valid if the network "
            "was not trained on those rows."
        ),
    ] = 0.0,
    target: Annotated[str | None, typer.Option(help="Column of the target.", show_default="the last one")] = None,
    inputs: Annotated[
        str | None, typer.Option(help="Columns of the inputs, separated by commas.", show_default="all others")
    ] = None,
    likelihood: Annotated[
        str | None, typer.Option(help="gaussian | categorical | bernoulli.", show_default="guessed from the targets")
    ] = None,
    classes: Classes = None,
    noise_std: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise of gaussian targets.", show_default="tuned")
    ] = None,
    draws: Annotated[int, typer.Option(help="Posterior draws.", min=1)] = 32,
    dataset_size: Annotated[
        int | None, typer.Option(help="Size of the whole training set, where DATA is a part of it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of draws and of --hold-out.")] = 0,
    device: Device = "cpu",
    max_memory: Annotated[
        str | None, typer.Option(help="Memory that the fit may take, such as 8GB.", show_default="what is free")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="exact | krylov | cg | kfac | ekfac | diagonal.", show_default="chosen by size")
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(help="Prior on the weights: g | isotropic | layer | normalised.", show_default="g"),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Weights that are uncertain: last-layer, or prefixes of their names, separated by commas.",
            show_default="all",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default="runs/NAME")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.", show_default="that of DATA")] = None,
    table: Annotated[str, typer.Option(help="Format of the predictions: csv | parquet.")] = "csv",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a posterior to a trained network, and write posterior, record, predictions and a report page to a folder.

    With a table and no network, small networks are trained on it; it prints what is done with each column.
    Started by torchrun, its processes share the data out.
    """
    with console.guarded(debug):
        from lapwing.app.cli import tables
        from lapwing.app.cli.fitting import Request, check_sources
        from lapwing.app.cli.models import WITHOUT_A_NETWORK

        alone = data is None and tables.is_table(model)
        if data is None and not alone:
            raise ValueError(
                f"{model!r} alone: expected a network and the data that it was trained on, such as `lapwing fit "
                f"model.py:make train.csv`; {WITHOUT_A_NETWORK}"
            )
        data = data or model
        request = Request(
            model, data, tuple(weights or ()), target, listed(inputs), validation, test, ood, hold_out, likelihood,
            noise_std, draws, dataset_size, seed, Job.here().device(device), name or Path(data.rpartition(":")[2]).stem,
            shlex.join(["lapwing", *sys.argv[1:]]), max_memory, method, prior, select, listed(classes),
        )  # fmt: skip
        folder = out or Path("runs") / (request.name or "run")
        if alone:
            _fit_table(request, folder, table, json, quiet)
            return
        check_sources(request)
        _fit(request, folder, table, json, quiet)


def _fit_table(request: Any, folder: Path, table: str, json: bool, quiet: bool) -> None:
    """Without a network."""
    import lapwing.app.report as report
    from lapwing.app.cli import fitting, folders, predicting, tables

    if table not in ("csv", "parquet"):
        raise ValueError(f"--table is csv or parquet, not {table!r}")
    writable(folder)
    clock = fitting.Clock(lambda _phase, _share: None)
    try:
        run = tables.fit(request, clock, quiet or json)
        with tables.threads_for(run.train):
            record = report.scored(tables.record(run, request, clock))
    except (ValueError, MemoryError) as error:
        _record_failure(request, folder, str(error))
        raise
    before = folders.put_aside(folder)
    tables.save(run, record, folder)
    predictions = folder / f"predictions.{table}"
    shown = run.sets.get("test", run.train)
    predicting.write(predictions, tables.predictions(run.estimator, shown.table), shown.places)
    page = report.write(folder / "report.html", [record])
    paths = {"model": folder / tables.MODEL, "record": folder / "record.json", "predictions": predictions, "page": page}
    _say_written(record, folder, paths, before, json)


def _say_written(record: Any, folder: Path, paths: dict[str, Path], before: Path | None, json: bool) -> None:
    """The verdict, what was decided, and which files there are now."""
    words = _words(record)
    words += [
        f"  {choice.what}: {choice.value}" + (f" ({choice.why})" if choice.why else "") for choice in record.choices
    ]
    words += [f"Wrote {path}" for path in paths.values()]
    if before is not None:
        words.append(f"The run that was in {folder} before, with its predictions and page, is kept in {before}")
    console.answer(words, _summary(record) | {"folder": folder, **paths, "run_before": before}, json)


def _fit(request: Any, folder: Path, table: str, json: bool, quiet: bool) -> None:
    import lapwing.app.report as report
    from lapwing.app.cli import fitting, folders, predicting, recording
    from lapwing.runtime.ranks import RankFailed

    if table not in ("csv", "parquet"):
        raise ValueError(f"--table is csv or parquet, not {table!r}")
    if not Job.here().first:  # its share of the work; the first says and writes what came of it
        clock = fitting.Clock(lambda _phase, _share: None)
        recording.record(fitting.fit(request, clock), request, clock)
        return
    writable(folder)
    with console.progress(quiet or json) as tell:
        clock = fitting.Clock(tell)
        try:
            fitted = fitting.fit(request, clock)
            record, predicted = recording.record(fitted, request, clock)
            record = report.scored(record)
        except (ValueError, MemoryError, RankFailed) as error:
            _record_failure(request, folder, str(error))
            raise
        before = folders.put_aside(folder)
        recording.save(fitted, record, request, folder)
        predictions = folder / f"predictions.{table}"
        places = recording.shown(fitted).places
        predicting.write(predictions, predicting.columns(predicted, fitted.guess.classes), places)
        page = report.write(folder / "report.html", [record])
    paths = {"posterior": folder / "posterior.safetensors", "record": folder / "record.json"}
    paths |= {"predictions": predictions, "page": page}
    _say_written(record, folder, paths, before, json)


def _record_failure(request: Any, folder: Path, error: str) -> None:
    import lapwing.app.records as records

    lost = records.Record(
        request.name, "regression", status="failed", error=error, command=request.command, seed=request.seed,
        device=request.device, data=records.Data(request.data), network=records.Network(request.model),
    )  # fmt: skip
    if not (folder / "run.json").exists():  # a posterior that is there already keeps its record
        records.save(lost, folder)


def _words(record: Record) -> list[str]:
    """The verdict and the main numbers."""
    import lapwing.app.report as report

    found = report.verdict(record)
    advice = [f"  Recommendation: {found.advice}"] if found.advice else []
    lines = [found.headline, *advice, *(f"  {reason}" for reason in found.reasons)]
    for evaluation in record.evaluations:
        for one in evaluation.predictions:
            if one.metrics:
                shown = ", ".join(f"{name} {value.value:.4g}" for name, value in one.metrics.items())
                lines.append(f"  {evaluation.name}, {report.in_words(one.method)}: {shown}")
    return lines


def _summary(record: Record) -> dict[str, Any]:
    import lapwing.app.report as report

    found = report.verdict(record)
    sets = {
        one.name: {
            method.method: {name: dataclasses.asdict(value) for name, value in method.metrics.items()}
            for method in one.predictions
        }
        for one in record.evaluations
    }
    return {
        "name": record.name, "task": record.task, "verdict": dataclasses.asdict(found), "metrics": sets,
        "choices": [dataclasses.asdict(choice) for choice in record.choices], "seconds": record.seconds,
    }  # fmt: skip


@app.command(epilog="Example: lapwing predict runs/train new.csv --out new_predictions.csv")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `lapwing fit` wrote.")],
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="New inputs, in the form of the training data; targets are not needed."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write, .csv or .parquet.", show_default="RUN/predictions-DATA.csv")
    ] = None,
    model: Model = None,
    device: Device = "cpu",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict new inputs, with intervals or class probabilities."""
    with console.guarded(debug):
        import lapwing.app.recording as recording
        from lapwing.app.cli import predicting, running, tables

        path = out or folder / f"predictions-{Path(data.rpartition(':')[2]).stem}.csv"
        if (table := tables.saved(folder)) is not None:
            rows = table.rows(data, needs_target=False)
            predicting.write(path, tables.predictions(table.estimator, rows.table))
            console.answer(
                [f"{len(rows):,} predictions. Wrote {path}"], {"count": len(rows), "predictions": path}, json
            )
            return
        loaded = running.SavedRun.load(folder, model, device)
        inputs, _ = loaded.tensors(loaded.read(data, needs_target=False), with_targets=False)
        with console.progress(json) as tell:
            found = recording.predict(loaded.posterior, inputs, lambda share: tell("predicting", share))
        predicting.write(path, predicting.columns(found, loaded.settings.classes))
        console.answer(
            [f"{len(inputs):,} predictions. Wrote {path}"], {"count": len(inputs), "predictions": path}, json
        )


@app.command(
    short_help="Rank training labels that are probably wrong.",
    epilog="Examples: lapwing labels table.csv --target kind; lapwing labels model.py:make train.csv --weights w.pt",
)
def labels(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Your network: package.module:factory or file.py:factory; or a table (.csv, .parquet) without one.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="What the network was trained on, as for `lapwing fit`.", show_default=False
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="State dict of the network: .safetensors, or .pt.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of the labels.", show_default="the last one")] = None,
    classes: Classes = None,
    count: Annotated[
        int | None, typer.Option(help="How many to list.", min=1, show_default="as many as are estimated to be wrong")
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write, .csv or .parquet.")] = Path("label_issues.csv"),
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Rank training labels by how unlikely they are, each predicted from all other examples without training again."""
    with console.guarded(debug):
        from lapwing.app.cli import labels as ranking
        from lapwing.app.cli.fitting import Request

        given = (weights,) if weights else ()
        request = Request(model, data or model, given, target=target, classes=listed(classes))
        found = ranking.ranked(request, table=data is None)
        console.answer(*ranking.written(found, count, out), json)


@app.command(
    short_help="Choose which inputs of a pool to label next.",
    epilog="Example: lapwing acquire runs/train pool.csv --count 20 --out next.csv",
)
def acquire(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `lapwing fit` wrote.")],
    data: Annotated[
        str, typer.Argument(metavar="POOL", help="Inputs without targets, in the form of the training data.")
    ],
    count: Annotated[int, typer.Option(help="How many to choose.", min=1)] = 10,
    score: Annotated[
        str | None,
        typer.Option(
            help="batchbald, bald, entropy for labels; variance, batchbald, bald, thompson(-minimum) for numbers.",
            show_default="the first",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write, .csv or .parquet.")] = Path("next.csv"),
    model: Model = None,
    device: Device = "cpu",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Choose the inputs of a pool whose labels would say most together."""
    with console.guarded(debug):
        from lapwing.app.cli import acquiring

        options = {"count": count, "score": score}
        with console.progress(json) as tell:
            found = acquiring.chosen(folder, data, (model, device), options, lambda phase: tell(phase, None))
        console.answer(*acquiring.written(found, out), json)


@app.command(
    short_help="Test the predictions of a run on new data.",
    epilog="Example: lapwing evaluate runs/train test.csv --ood other.csv",
)
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `lapwing fit` wrote.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Data with targets that were not used for the fit.")],
    ood: Annotated[str | None, typer.Option(help="Out-of-distribution data.")] = None,
    model: Model = None,
    device: Device = "cpu",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Test the predictions of a run on new data; rewrites its record and page."""
    with console.guarded(debug):
        import lapwing.app.report as report
        from lapwing.app.cli import running, tables

        if (table := tables.saved(folder)) is not None:
            record = tables.evaluated(table, data, ood)
        else:
            loaded = running.SavedRun.load(folder, model, device)
            with console.progress(json) as tell:
                record = running.evaluated(loaded, data, ood, lambda share: tell("predicting", share))
        page = report.write(folder / "report.html", [record])
        words = [*_words(record), f"Wrote {folder / 'record.json'}", f"Wrote {page}"]
        console.answer(words, _summary(record) | {"record": folder / "record.json", "page": page}, json)


@app.command(epilog="Example: lapwing report runs/one runs/two --out compared.html")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders with a record.json.")],
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html, or report.html for several.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the page of one run, or of several compared."""
    with console.guarded(debug):
        import lapwing.app.records as records
        from lapwing.app.report import write

        found = [records.load(folder) for folder in folders]
        first = folders[0] if folders[0].is_dir() else folders[0].parent
        path = write(out or (first / "report.html" if len(found) == 1 else Path("report.html")), found)
        words = [line for record in found for line in (f"{record.name}:", *_words(record)[:1])]
        console.answer([*words, f"Wrote {path}"], {"page": path, "runs": [_summary(record) for record in found]}, json)


app.command(
    short_help="Scan and reconstruct an image with error bars.",
    epilog="Example: lapwing ct --image shepp-logan --size 64 --angles 20 --noise 0.05 --out runs/ct",
)(ct)
app.command(
    short_help="Learn which rotations pictures are invariant to.",
    epilog="Example: lapwing symmetry --data digits --rotate 45 --out runs/symmetry",
)(symmetry)


@app.command()
def doctor(json: Json = False, debug: Debug = False) -> None:
    """Look at the environment and run a short self-test."""
    with console.guarded(debug):
        from lapwing.app.cli.doctor import examine

        found = examine()
        width = max(map(len, found))
        console.answer([f"{name:<{width}}  {value}" for name, value in found.items()], dict(found), json)
        if not str(found["self-test"]).startswith("passed"):
            raise SystemExit(console.FAILED)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("runs/demo"), debug: Debug = False
) -> None:
    """Three scenes on bundled data: a table, a classifier, wrong labels. Writes a report page and pictures."""
    with console.guarded(debug):
        from lapwing.app.demo import main

        writable(out)
        main(out)

"""`python -m benchmarks TASK`: compare methods on the same networks and data."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import driver
from benchmarks.about import TASKS
from lapwing.app.cli import console
from lapwing.app.cli.options import Debug, Json, Quiet, writable

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


def _tasks() -> str:
    """The end of the help of `bench`: every task, and an example."""
    width = max(map(len, TASKS)) + 4
    listed = "\n".join(
        textwrap.fill(f"  {name:<{width - 2}}{about}", 78, subsequent_indent=" " * width, break_on_hyphens=False)
        for name, about in TASKS.items()
    )
    examples = """
  python -m benchmarks toy --data small                 seconds: to see what comes out
  python -m benchmarks uci --list
  python -m benchmarks uci --data yacht,energy --methods map,ensemble --seeds 0-4"""
    return f"\b\nTasks:\n{listed}\n\n\b\nExamples:{examples}"


@app.command(short_help="Compare methods on the same networks and data.", epilog=_tasks())
def bench(
    task: Annotated[str, typer.Argument(metavar="TASK", help="One of the tasks below.")],
    contents: Annotated[bool, typer.Option("--list", help="Print the task's methods, data sets and scores.")] = False,
    methods: Annotated[str | None, typer.Option(help="Separated by commas.", show_default="all of the task's")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data sets, separated by commas.", show_default="all of the task's")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds or splits: 0,3,7 or 0-4.", show_default="the first few")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.", show_default="runs/bench-TASK")] = None,
    processes: Annotated[int, typer.Option(help="Cells to run at the same time.", min=1)] = 1,
    retry: Annotated[bool, typer.Option("--retry", help="Run cells again that failed before.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare methods on the same networks and data; run it again to go on where it stopped."""
    with console.guarded(debug):
        request = driver.Request(
            task, driver.names(methods), driver.names(data), driver.numbers(seeds), processes, retry
        )
        if contents:
            console.answer(*driver.contents(task), json)
            return
        driver.study(task)
        folder = out or Path("runs") / f"bench-{task}"
        writable(folder)
        with console.progress(quiet or json) as tell:
            found = driver.bench(request, folder, tell, driver.lines_unless_terminal(quiet or json))
        words = [found.table, *found.notes, f"{found.done} cells run, {found.before} were done before"]
        if found.failed:
            words.append(f"{found.failed} cells failed: the reasons are in the table; --retry runs them again")
        console.answer([*words, *(f"Wrote {path}" for path in found.paths)], driver.summary(found), json)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")

"""The scenes, one after another: a sentence, a table, a picture; then a page, and what to try next."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from lapwing.app import records, report
from lapwing.app.demo import classifier, table, wrong_labels


class Scene(Protocol):
    """Something found on real data."""

    @property
    def title(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def tables(self) -> list[Table]: ...
    @property
    def picture(self) -> str: ...
    @property
    def panels(self) -> tuple[int, int]: ...

    def draw(self, panels: Any) -> None: ...


def main(folder: Path = Path("runs/demo")) -> None:
    """Run the three scenes, save their pictures, write the page of the classifier."""
    console, started = Console(), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    scenes: list[Scene] = []
    for number, scene in enumerate((table, classifier, wrong_labels), 1):
        with console.status(f"scene {number} of 3 …"):
            scenes.append(scene.run())
        show(console, number, scenes[-1])
    (tested,) = (scene for scene in scenes if isinstance(scene, classifier.ClassifierScene))
    with console.status("writing the page …"):
        records.save(tested.record, folder)
        page = report.write(folder / "report.html", [tested.record])
        pictures = save_pictures(scenes, folder)
    console.print(f"\n[bold]The page and the pictures[/bold], {time.perf_counter() - started:.0f} s in all")
    for line in (str(page), *pictures):
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    console.print("\n[bold]What to try next[/bold]")
    for line in suggestions(page):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def show(console: Console, number: int, scene: Scene) -> None:
    """A scene on a terminal."""
    console.print(f"\n[bold]{number}. {scene.title}[/bold]", highlight=False)
    console.print(scene.sentence, highlight=False, markup=False)
    for shown in scene.tables:
        console.print(shown)


def save_pictures(scenes: Sequence[Scene], folder: Path) -> list[str]:
    """One picture for each scene, and where they are; without matplotlib, what brings it."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return ['pictures need matplotlib: pip install "lapwing[plot]"']
    paths = []
    for scene in scenes:
        rows, columns = scene.panels
        figure = Figure(figsize=(12, 3.6 if columns < 5 else 1.3), layout="constrained")
        scene.draw(figure.subplots(rows, columns, squeeze=False))
        path = folder / scene.picture
        figure.savefig(path, dpi=110)
        paths.append(str(path))
    return paths


def suggestions(page: Path) -> list[str]:
    """What a person could do after this."""
    ready = shutil.which("lapwing") is not None
    return [
        f"open {page} in a browser: can this classifier's confidence be trusted?",
        *([] if ready else ["source .venv/bin/activate, so that `lapwing` is a command"]),
        "lapwing fit your_table.csv --target column: intervals for a table of yours, no network needed",
        "lapwing fit --help: from your trained network and its data to such a page",
        "docs/tutorials: the same from Python",
    ]

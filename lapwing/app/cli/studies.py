"""The commands of the studies, `lapwing ct` and `lapwing symmetry`; each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lapwing.app.cli import console
from lapwing.app.cli.options import Debug, Json, Quiet, writable


def ct(
    image: Annotated[str, typer.Option(help="shepp-logan, or a file: .dcm, .npy (also in Hounsfield units) or .png.")],
    angles: Annotated[int, typer.Option(help="Angles of the scan.")] = 20,
    noise: Annotated[float, typer.Option(help="Noise as a share of the mean line integral.")] = 0.05,
    size: Annotated[int | None, typer.Option(help="Pixels along a side.", show_default="those of the image")] = None,
    beam: Annotated[str, typer.Option(help="parallel or fan.")] = "parallel",
    steps: Annotated[int, typer.Option(help="Steps of the network's fit, at most.", min=1)] = 3000,
    channels: Annotated[int, typer.Option(help="Of the network, at each of three scales.", min=1)] = 16,
    tv_weight: Annotated[float, typer.Option(help="Weight of total variation in the fit.")] = 1e-4,
    draws: Annotated[int, typer.Option(help="Posterior draws.", min=2)] = 64,
    dropout: Annotated[bool, typer.Option(help="Also fit a network with dropout, to compare.")] = True,
    seed: Annotated[int, typer.Option(help="Of noise, network and draws.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for page, scores and images.")] = Path("runs/ct"),
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Scan an image from few angles, reconstruct it, and say where the reconstruction may be wrong."""
    with console.guarded(debug):
        from lapwing.app.cli.tomography import TomographyRequest, reconstruct

        writable(out)
        request = TomographyRequest(image, angles, noise, size, beam, steps, channels, tv_weight, draws, dropout, seed)
        with console.progress(quiet or json) as tell:
            words, found = reconstruct(request, out, tell)
        console.answer(words, found, json)


def symmetry(
    data: Annotated[str, typer.Option(help="mnist, digits, or a folder of class folders with square images.")],
    rotate: Annotated[float, typer.Option(help="Turn every picture by up to so many degrees first.")] = 0.0,
    size: Annotated[int, typer.Option(help="Pictures to learn from, at most.", min=10)] = 5000,
    steps: Annotated[int, typer.Option(help="Steps of p(η | x̂); the inference of poses takes a third.", min=1)] = 1500,
    width: Annotated[int, typer.Option(help="Of the networks.", min=4)] = 256,
    ablations: Annotated[bool, typer.Option("--ablations", help="Also without each of the three conjectures.")] = False,
    seed: Annotated[int, typer.Option(help="Of rotations, networks and draws.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for page, scores and model.")] = Path("runs/symmetry"),
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Learn which rotations a set of pictures is invariant to, undo them, and write a page."""
    with console.guarded(debug):
        from lapwing.app.cli.symmetry import SymmetryRequest, learn

        writable(out)
        request = SymmetryRequest(data, rotate, size, steps, width, ablations, seed)
        with console.progress(quiet or json) as tell:
            words, found = learn(request, out, tell)
        console.answer(words, found, json)

"""What a symmetry model found, as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lapwing.app.report.markup import Html, h, picture, table
from lapwing.app.report.page import document
from lapwing.app.report.svg import Axis, Frame, axis, card, figure, legend
from lapwing.runtime.atomic import write as write_atomically
from lapwing.studies.symmetry.model import SymmetryModel
from lapwing.studies.symmetry.study import Judged, density_of_angle, half_a_turn, orbit_ratio, widths

SHOWN = 12  # pictures in a row
BROAD = 1000  # pixels across a row, about
CHOSEN = 4  # prototypes whose density is drawn, as many as there are kinds of lines


def write(
    path: Path, model: SymmetryModel, images: Tensor, labels: Tensor, found: Judged, title: str,
    others: Mapping[str, SymmetryModel] | None = None,
) -> Path:  # fmt: skip
    """Write the page of a model of rotations, judged on these pictures."""
    chosen = _one_of_each(labels)
    sections: list[tuple[str, list[Html]]] = [
        ("Pictures and their prototypes", _rows(model, images[chosen])),
        ("Poses", [_angles(found), _by_kind(model, images[chosen], labels[chosen])]),
        ("Without each conjecture", _without(model, others or {}, images, labels)),
        ("Numbers", [_numbers(found)]),
    ]
    shown = [h("section", h("h2", name), h("div", cards, class_="cards")) for name, cards in sections if cards]
    content = h("article", shown, class_="run")
    write_atomically(path, document(title, content, made=version("lapwing")).encode())
    return path


def _one_of_each(labels: Tensor) -> list[int]:
    """The first picture of each kind, then the next ones."""
    places = {kind: row for row, kind in reversed(list(enumerate(labels.tolist())))}
    first = [row for _, row in sorted(places.items())]
    return [*first, *(row for row in range(len(labels)) if row not in first)][:SHOWN]


def _strip(images: Tensor, description: str) -> Html:
    """Pictures side by side, in grey or colour."""
    pixels = (images.clamp(0, 1) * 255).round().byte()
    framed = torch.nn.functional.pad(pixels, [1] * 4, value=90)
    joined = torch.cat(list(framed), dim=-1).movedim(0, -1).numpy()  # (size, n size, channels)
    times = max(1, BROAD // joined.shape[1])
    large = joined.repeat(times, axis=0).repeat(times, axis=1)
    whole: np.ndarray = large if large.shape[-1] == 3 else large.mean(-1).round().astype(np.uint8)
    return h("div", picture(whole, description), class_="scroll")


def _rows(model: SymmetryModel, images: Tensor) -> list[Html]:
    pictures = images[:, None] if images.ndim == 3 else images
    shown = {
        "Pictures": (pictures, "As they came."),
        "Prototypes": (model.prototype(images), "The same with their inferred transformation undone."),
        "Reconstructions": (model.reconstruct(images), "Prototypes through the linear model p(x̂), put back."),
        "New poses": (model.resample(images, 1)[0], "Each with a pose drawn from p(η | x̂)."),
    }
    return [card(name, _strip(part, f"{name}. {says}"), says=says, wide=True) for name, (part, says) in shown.items()]


def _angles(found: Judged) -> Html:
    applied, inferred = found.turned.applied[:400].numpy(), found.turned.inferred[:400].numpy()
    frame = Frame(axis("rotated by, degrees", applied), axis("inferred, degrees", inferred), 330)
    tips = [f"rotated by {a:.0f}°, inferred {b:.0f}°" for a, b in zip(applied, inferred, strict=True)]
    says = (
        f"Pictures rotated once more, by any angle: correlation {found.turned.correlation:.3f}. Points half a turn off "
    )
    says += "the line are of pictures that look alike upside down."
    return figure(
        "Inferred against applied angle",
        frame,
        [frame.diagonal("exact"), frame.points(applied, inferred, 0, tips)],
        says=says,
    )


def _by_kind(model: SymmetryModel, images: Tensor, labels: Tensor) -> Html:
    """p(η | x̂) of a prototype of some kinds, of which the first pictures are one each."""
    kinds = len(set(labels.tolist()))
    places = np.linspace(0, kinds - 1, min(CHOSEN, kinds)).round().astype(int).tolist()
    angles, density = density_of_angle(model, model.prototype(images[places]))
    says = "Where an object of each prototype is found. One peak: one way up; two peaks half a turn apart: it is met "
    says += "upside down too. Which angle is zero is arbitrary."
    return _densities(angles, density, [f"kind {int(labels[place])}" for place in places], says)


def _by_model(models: Mapping[str, SymmetryModel], images: Tensor) -> Html:
    """p(η | x̂) of one picture under every model: the first that looks alike upside down, where there is one."""
    first = next(iter(models.values()))
    _, density = density_of_angle(first, first.prototype(images))
    two = [row for row, curve in enumerate(density) if half_a_turn(curve)]
    one = images[two[:1] or [0]]
    found = [density_of_angle(model, model.prototype(one)) for model in models.values()]
    says = "The same picture under each model" + (", one that looks alike upside down." if two else ".")
    return _densities(found[0][0], torch.cat([curve for _, curve in found]), list(models), says)


def _densities(angles: Tensor, density: Tensor, names: list[str], says: str) -> Html:
    frame = Frame(
        Axis("angle η, degrees", -180, 180, ticks=(-180, -90, 0, 90, 180)),
        axis("density per degree", density.numpy(), zero=True),
    )
    marks = [frame.line(angles.numpy(), curve.numpy(), place, markers=False) for place, curve in enumerate(density)]
    return figure("p(η | x̂)", frame, marks, says=says, key=legend(names))


def _without(model: SymmetryModel, others: Mapping[str, SymmetryModel], images: Tensor, labels: Tensor) -> list[Html]:
    if not others:
        return []
    models = {"the model": model, **others}
    rows = [
        (name, f"{float(widths(one, images[:200]).median()):.1f}°", f"{orbit_ratio(one, images, labels):.3f}",
         f"{float(one.log_prob(images[:200], draws=8).value.mean()):.1f}")
        for name, one in models.items()
    ]  # fmt: skip
    header = ("", "half-width of p(η | x̂)", "orbit over kinds", "bound on log p(x)")
    says = "A Gaussian cannot have two peaks, one p(η) for all prototypes is too wide for most, and a network that saw "
    says += "half the range gives one object several prototypes."
    return [
        _by_model(models, images[:200]),
        card("What each costs", table(header, rows, caption="Without each conjecture"), says=says, wide=True),
    ]


def _numbers(found: Judged) -> Html:
    says = "The half-width is of the shortest arc with 90 % of p(η | x̂), the median over prototypes; pictures rotated "
    says += "uniformly by ±ρ have 0.9 ρ, and what they were rotated by before comes on top. "
    says += "Where there are two peaks, the arc spans both."
    return card("On pictures that were held out", table(("what", "value"), found.words(), caption="Scores"), says=says)

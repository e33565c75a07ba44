"""`lapwing symmetry`: from pictures to prototypes, poses and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from torch import Tensor

Tell = Callable[[str, float | None], None]


@final
@dataclass(frozen=True)
class SymmetryRequest:
    """What the command line asked for."""

    data: str
    rotate: float
    size: int
    steps: int
    width: int
    ablations: bool
    seed: int


def learn(request: SymmetryRequest, folder: Path, tell: Tell) -> tuple[list[str], dict[str, Any]]:
    """Fit the model, write its files, and say what came out."""
    from lapwing.studies.symmetry import Affine, Settings, SymmetryModel
    from lapwing.studies.symmetry.page import write
    from lapwing.studies.symmetry.study import ablated, judged, rotated

    if not 0 <= request.rotate <= 180:
        raise ValueError(f"--rotate is {request.rotate:g}: expected degrees from 0 to 180")
    images, labels = pictures(request.data, request.size)
    images, _ = rotated(images, request.rotate, seed=request.seed)
    cut = max(10, round(0.85 * len(images)))
    first, second = Settings().inference, Settings().poses
    stages = replace(first, steps=-(-request.steps // 3)), replace(second, steps=request.steps)
    settings = Settings(request.width, *stages)

    def report(phase: str) -> None:
        tell(phase or "…", None)

    model = SymmetryModel(Affine.of(rotation=math.pi), settings).fit(
        images[:cut], seed=request.seed, checkpoint=folder / "checkpoint", progress=report
    )
    test = images[cut:], labels[cut:]
    if len(test[0]) < 2:
        raise ValueError(
            f"{request.data}: {len(images)} pictures are too few to judge what was learnt: bring 20 or more"
        )
    others = (
        ablated(model, images[:cut], request.rotate, seed=request.seed, progress=report) if request.ablations else {}
    )
    found = judged(model, *test, request.rotate, seed=request.seed)
    title = f"{Path(request.data).name}, rotated by ±{request.rotate:g}°"
    page = write(folder / "report.html", model, *test, found, title, others)
    files = {"page": page, "scores": folder / "scores.json", "model": model.save(folder / "model.safetensors")}
    files["scores"].write_text(json.dumps(found.plain(), indent=1) + "\n")
    words = [f"{name}: {value}" for name, value in found.words()]
    return words + [f"Wrote {path}" for path in files.values()], found.plain() | files


def pictures(source: str, size: int) -> tuple[Tensor, Tensor]:
    """At most so many pictures with their kinds; bundled digits get a margin, so that nothing is lost by turning."""
    import torch

    if source == "digits":
        from lapwing.studies.datasets import digits

        x, y = (torch.cat(both) for both in zip(digits().train, digits().test, strict=True))
        return torch.nn.functional.pad(x.float(), [2] * 4)[:size], y[:size]
    if source == "mnist":
        from lapwing.studies.datasets import mnist

        return mnist(train=size, test=0).train
    from lapwing.app.cli.data import read

    loaded = read(source)
    order = torch.randperm(len(loaded.inputs), generator=torch.Generator().manual_seed(0))[:size].tolist()
    kinds = sorted(set(map(str, loaded.targets if loaded.targets is not None else [])))
    labels = [kinds.index(str(loaded.targets[row])) if loaded.targets is not None else 0 for row in order]
    return torch.tensor(loaded.inputs[order]), torch.tensor(labels)

"""`lapwing ct`: from an image to a scan, a reconstruction and a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

Tell = Callable[[str, float | None], None]


@final
@dataclass(frozen=True)
class TomographyRequest:
    """What the command line asked for."""

    image: str
    angles: int
    noise: float
    size: int | None
    beam: str  # parallel or fan
    steps: int
    channels: int
    tv_weight: float
    draws: int
    dropout: bool
    seed: int


def reconstruct(request: TomographyRequest, folder: Path, tell: Tell) -> tuple[list[str], dict[str, Any]]:
    """Run the study, write its files, and say what came out."""
    from lapwing.studies.tomography import FanBeam, ParallelBeam, Settings, projector, read_image, simulate
    from lapwing.studies.tomography.page import summary, write
    from lapwing.studies.tomography.studies import Plan, study

    if request.beam not in ("parallel", "fan"):
        raise ValueError(f"--beam is parallel or fan, not {request.beam!r}")
    image = read_image(request.image, request.size)
    size = len(image)
    geometry = (ParallelBeam if request.beam == "parallel" else FanBeam).spread(request.angles, size)
    scan = simulate(image, projector(geometry, size), noise=request.noise, seed=request.seed)
    settings = Settings((request.channels,) * 3, steps=request.steps, tv_weight=request.tv_weight)
    plan = Plan(settings, dropout=request.dropout, draws=request.draws, seed=request.seed)
    found = study(scan, plan, checkpoint=folder / "network.pt", progress=lambda phase: tell(phase or "…", None))
    page = write(found, folder, f"{Path(request.image).name}, {request.angles} angles, {request.noise:.0%} noise")
    words = [f"{'':<20}{'PSNR':>8}{'SSIM':>8}  log-density"]
    for name, scores in found.scores().items():
        density = f"{scores['log_density']:13.3f}" if "log_density" in scores else ""
        words.append(f"{name:<20}{scores['psnr']:8.2f}{scores['ssim']:8.3f}{density}")
    told = summary(found)
    words.append(f"Errors over error bars, root mean square: {told['z_std']:.2f} (1 is right)")
    words += [note[:1].upper() + note[1:] for note in found.tuned.notes]
    words += [f"Wrote {path}" for path in (page, folder / "scores.json", folder / "images.npz")]
    return words, told | {"page": page, "images": folder / "images.npz"}

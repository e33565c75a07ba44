"""Draw docs/images/ct_*.png from the pictures that `LAPWING_SCRATCH=folder bench_ct_slice.py` left: `plot_slices.py folder`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PICTURES = {"shepp": "ct_shepp.png", "head": "ct_head.png"}  # by the first word of a folder


def draw(path: Path) -> None:
    """Truth and reconstructions on one grey scale; error and standard deviation on one colour scale."""
    with np.load(path / "images.npz") as file:
        shown = dict(file)
    error = abs(shown["dip"] - shown["truth"])
    top = float(np.quantile(np.concatenate([error.ravel(), shown["std"].ravel()]), 0.995))
    greys = {"truth": "truth", "fbp": "filtered back-projection", "tv": "total variation", "dip": "deep image prior"}
    figure, panels = plt.subplots(2, 3, figsize=(8.4, 5.9), layout="constrained")
    for axes, (key, name) in zip(panels.flat, greys.items(), strict=False):
        axes.imshow(shown[key], cmap="gray", vmin=0, vmax=float(shown["truth"].max()))
        axes.set_title(name, fontsize=10)
    for axes, image, name in zip(
        panels.flat[4:], (error, shown["std"]), ("|error|", "standard deviation"), strict=True
    ):
        seen = axes.imshow(image, cmap="inferno", vmin=0, vmax=top)
        axes.set_title(name, fontsize=10)
    figure.colorbar(seen, ax=panels[1, 2], shrink=0.8)
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
    figure.savefig(IMAGES / PICTURES[path.name.split("-")[0]], dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*-128-*/images.npz")):
        draw(path.parent)

"""Projection matrices of the ASTRA toolbox, by its CPU projectors: `python astra_matrices.py results.npz`."""

import sys

import numpy as np

SIZE, BINS, ANGLES = 9, 13, np.array([0.1, 0.9, 1.7, 2.6])
SPACING, SOURCE, DETECTOR = 1.4, 15.0, 7.0  # of the fan


def matrix(astra, kind: str, geometry: dict) -> np.ndarray:
    volume = astra.create_vol_geom(SIZE, SIZE)
    return astra.matrix.get(astra.projector.matrix(astra.create_projector(kind, geometry, volume))).toarray()


if __name__ == "__main__":
    import astra  # only in the peers' environment

    parallel = astra.create_proj_geom("parallel", 1.0, BINS, ANGLES)
    # theirs has the source below the image at angle 0, ours to the right
    fan = astra.create_proj_geom("fanflat", SPACING, BINS, ANGLES + np.pi / 2, SOURCE, DETECTOR)
    found = {
        "line": matrix(astra, "line", parallel), "strip": matrix(astra, "strip", parallel), "fan": matrix(astra, "line_fanflat", fan),
    }  # fmt: skip
    np.savez(sys.argv[1], **found)

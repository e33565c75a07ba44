"""Texts: reviews of fine food with two classes, and short texts about anything else."""

from __future__ import annotations

import gzip

import numpy as np

from benchmarks.data.rdata import read_rdb
from lapwing.studies.datasets.storage import find

COLLECTIONS = ("art", "education", "humorists", "law", "people")


def fine_foods() -> dict[str, tuple[list[str], np.ndarray]]:
    """Reviews and whether they give the best score, for training (4,000) and for tests (1,000), in two parts."""
    index, content = (_unpacked("modeldata", f"Rdata.{kind}") for kind in ("rdx", "rdb"))
    frames = read_rdb(index, content)
    parts = {"train": frames["training_data"], "test": frames["testing_data"]}
    return {name: (list(one["review"]), (one["score"] == "great").astype(int)) for name, one in parts.items()}


def fortunes(least: int = 20) -> list[str]:
    """Aphorisms and anecdotes of at least so many words, in the order of their files."""
    every = [_unpacked("fortunes", name).decode().split("\n%\n") for name in COLLECTIONS]
    return [" ".join(one.split()) for texts in every for one in texts if len(one.split()) >= least]


def _unpacked(package: str, file: str) -> bytes:
    brings = f"`python -m benchmarks.fetch {package}` brings it."
    return gzip.decompress(find(f"{package}/{file}.gz", what=f"{file} of {package}", brings=brings).read_bytes())

"""What a posterior knows of its data, as plain values and tensors by name: spectra, Krylov spaces, structures, losses.

Every `pack_…` returns plain values and tensors, or None where they would be too large or need the training data; the
`unpack_…` of the same name reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, final

import torch
from torch import Tensor

from lapwing.bayes import evidence
from lapwing.bayes.modes.tangent import Tangent
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.solving.structured import Approximate, AtWeights, Decomposed, Fits, Shape, Unknown
from lapwing.bayes.statistics import Ritz, Statistics
from lapwing.linalg import krylov
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.kronecker import Block, Kronecker
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.linalg.spectral import Spectrum
from lapwing.linalg.truncated import Truncated

LARGEST = 2 * 2**30  # bytes of eigenvectors, of a basis or of a design, beyond which they stay out of the file
LARGEST_MADE = 2**28  # bytes of a design that is not stored yet, so that it would have to be made for the file
NO_DATA = "this posterior was loaded from a file, which holds no training data: fit it again"
Packed = tuple[dict[str, Any], dict[str, Tensor]]
NUMBERS = ("values", "targets", "noise", "prior_noise", "density")
OF_SPACE = ("ritz", "rotation", "start", "probes", "coupling", "remainder")


@final
@dataclass(frozen=True, eq=False)
class Absent(LinearOperator):
    """Features that are not in a file: their shape is known, and every product says why there is none."""

    size: tuple[int, int]
    example: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.size

    @property
    def like(self) -> Tensor:
        return self.example

    def matmat(self, x: Tensor) -> Tensor:
        del x
        raise ValueError(NO_DATA)

    def rmatmat(self, y: Tensor) -> Tensor:
        del y
        raise ValueError(NO_DATA)


def pack_statistics(known: tuple[Statistics, ...], weights: int) -> list[Packed] | None:
    """Statistics with their eigenvectors or Krylov spaces."""
    if not known or sum(8 * len(one.values) * weights for one in known) > LARGEST:
        return None
    packed = []
    for one in known:
        plain: dict[str, Any] = {
            "remainder": one.remainder, "count": one.count, "log_weight": one.log_weight, "null": one.null,
        }  # fmt: skip
        tensors = {name: getattr(one, name) for name in NUMBERS}
        if isinstance(one.basis, Spectrum):
            tensors["vectors"] = one.basis.vectors
        else:
            told, parts = _pack_space(one.basis)
            plain["space"] = told
            tensors |= parts
        packed.append((plain, tensors))
    return packed


def unpack_statistics(plain: dict[str, Any], tensors: dict[str, Tensor], seed: int) -> Statistics:
    """Statistics from plain values and tensors of their own names."""
    found = dict(plain)
    told = found.pop("space", None)
    part: dict[str, Any] = {name: tensors[name] for name in NUMBERS}
    if told is None:
        basis: Spectrum | Ritz = Spectrum(Dense(tensors["vectors"]), part["values"])
    else:
        basis = _unpack_space(told, tensors, Noise(seed), part["noise"].shape[1])
    return Statistics(basis=basis, **part, **found)


def _pack_space(ritz: Ritz) -> Packed:
    """A space with its basis as one matrix; on the dual side that takes a product with the training data."""
    space = krylov.explicit(ritz.operator, ritz.space)
    chain = space.chain
    plain = {
        "side": space.side, "rows": ritz.operator.shape[0], "rtol": ritz.rtol, "trace": ritz.trace,
        "noise_energy": chain.noise_energy, "norm": chain.norm, "passes": chain.passes, "columns": chain.columns,
        "limited_by": space.limited_by, "steps": space.steps,
    }  # fmt: skip
    tensors = {f"space.{name}": getattr(space, name) for name in OF_SPACE}
    return plain, tensors | {"space.basis": torch.cat(chain.blocks, dim=1), "space.ahead": chain.ahead}


def _unpack_space(told: dict[str, Any], tensors: dict[str, Tensor], noise: Noise, draws: int) -> Ritz:
    basis, ahead = tensors["space.basis"], tensors["space.ahead"]
    part = {name: tensors[f"space.{name}"] for name in OF_SPACE}
    none = part["ritz"].new_zeros(0, 0)
    chain = krylov.Chain(
        (basis,), none, none, ahead, none, None, told["noise_energy"], told["norm"], told["passes"], told["columns"]
    )
    prior_noise = Noise(noise.seed, PRIOR).rows(0, len(basis), draws)
    block = krylov.Block(prior_noise, Noise(noise.seed, DATA).table(told["rows"], draws))
    side = cast(Literal["primal", "explicit"], told["side"])
    space = krylov.Space(block, chain, side, limited_by=told["limited_by"], **part)
    return Ritz(space, Absent((told["rows"], len(basis)), ahead), told["rtol"], told["trace"], grows=False)


def pack_structure(known: Approximate, weights: int) -> Packed | None:
    """A structured curvature, and the fit by which it is tuned where that needs no training data."""
    packed = _pack_curvature(known.curvature)
    if packed is None:
        return None
    curvature, tensors = packed
    plain: dict[str, Any] = {
        "curvature": curvature, "count": known.count, "log_weight": known.log_weight, "seed": known.seed,
        "draws": known.draws, "fits": None,
    }  # fmt: skip
    if isinstance(known.fits, AtWeights):
        plain["fits"] = {"kind": "weights"}
        tensors |= {f"fits.{name}": getattr(known.fits, name) for name in ("weights", "residual", "energies")}
    elif known.fits is not None:
        of = pack_statistics(known.fits.statistics, weights) if isinstance(known.fits, Decomposed) else None
        plain["fits"] = {"kind": "unknown"} if of is None else {"kind": "statistics", "parts": [part[0] for part in of]}
        for i, (_, part) in enumerate(of or []):
            tensors |= {f"fits.{i}.{name}": value for name, value in part.items()}
    return plain, tensors


def unpack_structure(plain: dict[str, Any], tensors: dict[str, Tensor], prior: DiagonalPrior) -> Approximate:
    """The structure of a file."""
    told, fits = plain["fits"], cast("Fits | None", None)
    if told is not None and told["kind"] == "weights":
        fits = AtWeights(tensors["fits.weights"], tensors["fits.residual"], tensors["fits.energies"])
    elif told is not None and told["kind"] == "statistics":
        parts = [named(tensors, f"fits.{i}.") for i in range(len(told["parts"]))]
        statistics = tuple(
            unpack_statistics(found, part, plain["seed"]) for found, part in zip(told["parts"], parts, strict=True)
        )
        fits = Decomposed(statistics, evidence.problem(statistics, prior).moments)
    elif told is not None:
        fits = Unknown()
    shape = Shape(_unpack_curvature(plain["curvature"], tensors))
    return Approximate(shape, fits, plain["count"], plain["log_weight"], plain["seed"], plain["draws"])


def _pack_curvature(curvature: Curvature) -> Packed | None:
    if isinstance(curvature, Truncated):
        tensors = {f"curvature.{name}": getattr(curvature, name) for name in ("vectors", "values", "scale")}
        plain: dict[str, Any] = {"kind": "truncated", "power": curvature.power}
    elif isinstance(curvature, Kronecker):
        plain = {"kind": "kronecker", "size": curvature.size}
        plain["blocks"] = [{"name": block.name, "kind": block.kind} for block in curvature.blocks]
        tensors = {
            f"curvature.{i}.{name}": getattr(block, name)
            for i, block in enumerate(curvature.blocks)
            for name in ("index", "values", "left", "right", "scale")
        }
    else:
        return None
    return (plain, tensors) if sum(part.nbytes for part in tensors.values()) <= LARGEST else None


def _unpack_curvature(plain: dict[str, Any], tensors: dict[str, Tensor]) -> Curvature:
    if plain["kind"] == "truncated":
        vectors, values, scale = (tensors[f"curvature.{name}"] for name in ("vectors", "values", "scale"))
        return Truncated(vectors, values, scale, plain.get("power", 1))
    blocks = tuple(_block(told, named(tensors, f"curvature.{i}.")) for i, told in enumerate(plain["blocks"]))
    return Kronecker(blocks, plain["size"])


def _block(told: dict[str, Any], part: dict[str, Any]) -> Block:
    return Block(**told, **part)


def pack_loss(tangent: Tangent | None) -> dict[str, Tensor]:
    """What the mode of a likelihood that is not Gaussian needs; nothing where that is too large, or was not there."""
    if tangent is None or tangent.lost:
        return {}
    size = 8 * tangent.design.shape[0] * tangent.design.shape[1]
    if size > (LARGEST if isinstance(tangent.design, Dense) or _is_stored(tangent) else LARGEST_MADE):
        return {}
    found = {"design": tangent.design.dense(), "start": tangent.start, "targets": tangent.model.targets}
    found["counts"] = tangent.model.weights
    if tangent.model.offset is not None:
        found["offset"] = tangent.model.offset
    if tangent.row_space is not None:
        found |= {"vectors": tangent.row_space.vectors, "values": tangent.row_space.values}
    return {f"loss.{name}": value for name, value in found.items()}


def _is_stored(tangent: Tangent) -> bool:
    return isinstance(tangent.model.features, Dense)


def named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

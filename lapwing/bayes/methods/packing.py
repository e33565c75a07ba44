"""What a posterior knows of its data, as plain values and tensors by name: spectra, Krylov spaces, structures, fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, final

import torch
from torch import Tensor

from lapwing.bayes.fits import Fit, Packed
from lapwing.bayes.noise import DATA, PRIOR, Noise
from lapwing.bayes.statistics import Eigenbasis, Ritz, Statistics
from lapwing.linalg import krylov
from lapwing.linalg.curvature import Curvature
from lapwing.linalg.kronecker import Block, Kronecker
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.linalg.spectral import Spectrum
from lapwing.linalg.truncated import Truncated

if TYPE_CHECKING:
    from lapwing.bayes.methods.interface import FileContext, WeightPosterior

LARGEST = 2 * 2**30  # bytes of eigenvectors, or of a basis, beyond which they stay out of the file
NO_DATA = "this posterior was loaded from a file, which holds no training data: fit it again"
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


def with_kind(gaussian: WeightPosterior) -> Packed:
    """What a posterior over weights packs, with its kind; draws alone where that is too large for a file."""
    packed = gaussian.pack()
    if packed is None:
        return {"kind": "draws"}, {}
    plain, tensors = packed
    return {"kind": gaussian.kind, **plain}, tensors


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with a name before each of theirs."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return type(tensors)(
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    )


def pack_statistics(
    known: tuple[Statistics, ...], weights: int, largest: float
) -> tuple[list[dict[str, Any]], dict[str, Tensor]] | None:
    """Statistics with their eigenvectors; None where these would be too large."""
    if sum(8 * len(one.values) * weights for one in known) > largest:
        return None
    plain, tensors = list[dict[str, Any]](), dict[str, Tensor]()
    for number, one in enumerate(known):
        plain.append(_plain_of(one))
        numbers = {name: getattr(one, name) for name in NUMBERS}
        tensors |= prefixed(f"statistics.{number}", {**numbers, "vectors": one.basis.spectrum().vectors})
    return plain, tensors


def unpack_statistics(plain: list[dict[str, Any]], tensors: dict[str, Tensor], seed: int) -> tuple[Statistics, ...]:
    """The statistics of a file."""
    del seed
    found = []
    for number, told in enumerate(plain):
        part: dict[str, Any] = named(tensors, f"statistics.{number}.")
        basis = Eigenbasis(Spectrum(Dense(part["vectors"]), part["values"]))
        found.append(Statistics(basis=basis, **{name: part[name] for name in NUMBERS}, **told))
    if not found:
        raise ValueError("the file lacks the statistics of its posterior")
    return tuple(found)


def _plain_of(one: Statistics) -> dict[str, Any]:
    return {"remainder": one.remainder, "count": one.count, "log_weight": one.log_weight, "null": one.null}


def pack_space(known: Statistics, ritz: Ritz) -> Packed:
    """Statistics with their space, its basis as one matrix; on the dual side a product with the training data."""
    space = krylov.explicit(ritz.operator, ritz.space)
    chain = space.chain
    plain = {
        **_plain_of(known), "side": space.side, "rows": ritz.operator.shape[0], "rtol": ritz.rtol,
        "trace": ritz.trace, "noise_energy": chain.noise_energy, "norm": chain.norm, "passes": chain.passes,
        "columns": chain.columns, "limited_by": space.limited_by, "steps": space.steps,
    }  # fmt: skip
    tensors = {name: getattr(known, name) for name in NUMBERS} | {f"space.{n}": getattr(space, n) for n in OF_SPACE}
    return plain, tensors | {"space.basis": torch.cat(chain.blocks, dim=1), "space.ahead": chain.ahead}


def unpack_space(told: dict[str, Any], tensors: dict[str, Tensor], seed: int) -> tuple[Statistics, Ritz]:
    """The space of a file, which cannot grow."""
    basis, ahead = tensors["space.basis"], tensors["space.ahead"]
    part = {name: tensors[f"space.{name}"] for name in OF_SPACE}
    numbers: dict[str, Any] = {name: tensors[name] for name in NUMBERS}
    draws = numbers["noise"].shape[1]
    none = part["ritz"].new_zeros(0, 0)
    chain = krylov.LanczosChain(
        (basis,), none, none, ahead, none, None, told["noise_energy"], told["norm"], told["passes"], told["columns"]
    )
    prior_noise = Noise(seed, PRIOR).rows(0, len(basis), draws)
    block = krylov.StartBlock(prior_noise, Noise(seed, DATA).table(told["rows"], draws))
    side = cast(Literal["primal", "explicit"], told["side"])
    space = krylov.Space(block, chain, side, limited_by=told["limited_by"], **part)
    ritz = Ritz(space, Absent((told["rows"], len(basis)), ahead), told["rtol"], told["trace"], grows=False)
    plain = {name: told[name] for name in ("remainder", "count", "log_weight", "null")}
    return Statistics(basis=ritz, **numbers, **plain), ritz


def pack_curvature(curvature: Curvature) -> Packed | None:
    """A structured curvature; None where it would be too large, or is of a kind that only its maker knows."""
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


def unpack_curvature(plain: dict[str, Any], tensors: dict[str, Tensor]) -> Curvature:
    """The structure of a file."""
    if plain["kind"] == "truncated":
        vectors, values, scale = (tensors[f"curvature.{name}"] for name in ("vectors", "values", "scale"))
        return Truncated(vectors, values, scale, plain.get("power", 1))
    blocks = tuple(_block(told, named(tensors, f"curvature.{i}.")) for i, told in enumerate(plain["blocks"]))
    return Kronecker(blocks, plain["size"])


def _block(told: dict[str, Any], part: dict[str, Any]) -> Block:
    return Block(**told, **part)


def unpack_fit(plain: dict[str, Any], tensors: dict[str, Tensor], context: FileContext) -> Fit:
    """The fit of a file."""
    for known in members(Fit):
        if plain["kind"] == known.kind and hasattr(known, "unpack"):
            return known.unpack(plain, tensors, context)
    raise ValueError(f"the file names a fit of kind {plain['kind']!r}, which this lapwing does not know")


def members(family: type) -> list[Any]:
    """The final classes of a family: those that no other is derived from."""
    below: list[type] = family.__subclasses__()
    return [family] if not below else [member for part in below for member in members(part)]

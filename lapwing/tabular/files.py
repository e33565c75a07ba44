"""Fitted estimators in files: tensors in safetensors, everything else as JSON in its header; nothing is unpickled."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from lapwing.atomic import write as write_atomically
from lapwing.linalg.journal import checksum
from lapwing.tabular.columns import Category, Encoding
from lapwing.tabular.curvature import Conditioned, RowPosterior, WeightPosterior
from lapwing.tabular.mixtures import Shape
from lapwing.tabular.networks import Jacobian, Layers
from lapwing.tabular.noise import InputNoise
from lapwing.tabular.posterior import Networks, Units

FORMAT = 1
KIND = "lapwing.tabular"


def save(estimator: Any, path: Path) -> None:
    """Write an estimator's parameters, attributes and networks."""
    tensors = _networks_packed(estimator._networks)
    encoding, known = _encoding_packed(estimator._encoding)
    tensors |= known
    names = getattr(estimator, "feature_names_in_", None)
    plain = {
        "kind": KIND, "format": FORMAT, "lapwing": version("lapwing"), "estimator": type(estimator).__name__,
        "parameters": _parameters(estimator), "encoding": encoding, "several": estimator._several,
        "members": estimator._networks.members, "features": estimator.n_features_in_,
        "feature_names": None if names is None else [str(name) for name in names],
        "iterations": estimator.n_iter_, "converged": estimator.converged_,
        "posterior": "rows" if isinstance(estimator._networks.known, RowPosterior) else "weights",
        "layers": len(estimator._networks.networks.of), "input_noise": estimator._networks.noise is not None,
    }  # fmt: skip
    header = json.dumps(plain)
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    metadata = {"lapwing": header, "checksum": checksum(header, tensors)}
    write_atomically(path, serialise(tensors, metadata=metadata))


def load(estimator: Any, path: Path) -> None:
    """Put the content of a file into a fresh estimator, or raise a ValueError that says what is wrong with it."""
    plain, tensors = _read(path)
    if plain.get("estimator") != type(estimator).__name__:
        raise ValueError(
            f"{path}: it holds a {plain.get('estimator')}, load it with that class and not {type(estimator).__name__}"
        )
    try:
        estimator.set_params(**plain["parameters"])
        estimator._encoding = _encoding_restored(plain["encoding"], tensors)
        estimator._several = bool(plain["several"])
        estimator._networks = _networks_restored(plain, tensors)
        estimator.n_features_in_ = int(plain["features"])
        estimator.n_iter_ = int(plain["iterations"])
        estimator.converged_ = bool(plain["converged"])
        if plain["feature_names"] is not None:
            estimator.feature_names_in_ = np.array(plain["feature_names"], dtype=object)
        estimator._data = None
        estimator._set_evidence()
    except (KeyError, TypeError, RuntimeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path}: the file does not hold what it should ({error})") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise ValueError(f"{path}: there is no saved estimator here")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}  # aligned as torch does, for equal bits
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a saved estimator, or a damaged one ({str(error)[:90]})") from None
    header = metadata.get("lapwing", "")
    try:
        plain = json.loads(header)
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: a file of tensors, but not a saved estimator") from None
    if not isinstance(plain, dict) or plain.get("kind") != KIND:
        raise ValueError(f"{path}: it holds no estimator of a table; lapwing.load reads saved posteriors of networks")
    if plain.get("format") != FORMAT:
        raise ValueError(
            f"{path}: format {plain.get('format')!r}, this lapwing reads {FORMAT}: use the version that wrote it"
        )
    if metadata.get("checksum") != checksum(header, tensors):
        raise ValueError(f"{path}: a damaged file, the checksum of its content differs: copy it again, or fit again")
    return plain, tensors


def _parameters(estimator: Any) -> dict[str, Any]:
    """As JSON; a random state that is no integer is not kept."""
    parameters = estimator.get_params()
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}


def _encoding_packed(encoding: Encoding) -> tuple[dict[str, Any], dict[str, Tensor]]:
    plain = {
        "names": list(encoding.names),
        "numeric": list(encoding.numeric),
        "categories": [{"position": one.position, "levels": list(one.levels)} for one in encoding.categories],
    }
    arrays = {name: getattr(encoding, name) for name in ("filled", "indicated", "mean", "scale")}
    return plain, {f"encoding.{name}": torch.from_numpy(value) for name, value in arrays.items()}


def _encoding_restored(plain: dict[str, Any], tensors: dict[str, Tensor]) -> Encoding:
    arrays = {name: tensors[f"encoding.{name}"].numpy() for name in ("filled", "indicated", "mean", "scale")}
    categories = tuple(Category(int(one["position"]), tuple(one["levels"])) for one in plain["categories"])
    return Encoding(names=tuple(plain["names"]), numeric=tuple(plain["numeric"]), categories=categories, **arrays)


def _networks_packed(found: Networks) -> dict[str, Tensor]:
    tensors = {
        "precision": found.precision, "noise_precision": found.noise_precision, "log_evidence": found.log_evidence,
        "relevance": found.relevance, "noise_std": found.noise_std, "units.mean": found.units.mean,
        "units.scale": found.units.scale, **_listed("layer", found.networks.of),
        **_listed("variances", found.known.variances),
    }  # fmt: skip
    known = found.known
    if isinstance(known, RowPosterior):
        tensors |= _listed("left", known.rows.left) | _listed("right", known.rows.right)
    if found.noise is not None:
        tensors |= {**_listed("noise.layer", found.noise.networks.of), "noise.scale": found.noise.scale}
    tensors |= {"shape.factors": found.shape.factors, "shape.shares": found.shape.shares}
    assert isinstance(known, RowPosterior | WeightPosterior)
    return tensors | {"root": known.root.mT}  # as LAPACK lays it out, so that products are summed in the same order


def _networks_restored(plain: dict[str, Any], tensors: dict[str, Tensor]) -> Networks:
    count = int(plain["layers"])

    def listed(name: str) -> tuple[Tensor, ...]:
        return tuple(tensors[f"{name}.{k}"] for k in range(count))

    layers = Layers(listed("layer"))
    variances = listed("variances")
    known: Conditioned
    if plain["posterior"] == "rows":
        known = RowPosterior(Jacobian(listed("left"), listed("right")), variances, tensors["root"].mT)
    else:
        shapes = tuple((layer.shape[1], layer.shape[2]) for layer in layers.of)
        known = WeightPosterior(variances, shapes, tensors["root"].mT)
    units = Units(tensors["units.mean"], tensors["units.scale"])
    noise = None
    if plain["input_noise"]:
        noise = InputNoise(Layers(listed("noise.layer")), tensors["noise.scale"])
    return Networks(
        int(plain["members"]), layers, tensors["precision"], tensors["noise_precision"], known, tensors["log_evidence"],
        tensors["relevance"], tensors["noise_std"], units, noise,
        Shape(tensors["shape.factors"], tensors["shape.shares"]),
    )  # fmt: skip


def _listed(name: str, parts: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"{name}.{k}": part for k, part in enumerate(parts)}

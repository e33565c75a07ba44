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

from lapwing.runtime.atomic import write as write_atomically
from lapwing.runtime.journal import checksum
from lapwing.tabular.classes import ClassNetworks
from lapwing.tabular.columns import Category, Encoding
from lapwing.tabular.curvature import Conditioned, RowPosterior, WeightMatrixPosterior
from lapwing.tabular.mixtures import Shape
from lapwing.tabular.networks import LayerJacobian, LayerMatrices
from lapwing.tabular.noise import InputNoise
from lapwing.tabular.posterior import NetworkPosteriors, Units

FORMAT = 1
KIND = "lapwing.tabular"


def save(estimator: Any, path: Path) -> None:
    """Write an estimator's parameters, attributes and networks."""
    found = estimator._networks
    encoding, arrays = _encoding_packed(estimator._encoding)
    own, tensors = _labels_packed(estimator) if isinstance(found, ClassNetworks) else _numbers_packed(estimator)
    names = getattr(estimator, "feature_names_in_", None)
    plain = {
        "kind": KIND, "format": FORMAT, "lapwing": version("lapwing"), "estimator": type(estimator).__name__,
        "parameters": _parameters(estimator), "encoding": encoding, "features": estimator.n_features_in_,
        "feature_names": None if names is None else [str(name) for name in names],
        "iterations": estimator.n_iter_, "converged": estimator.converged_,
        "posterior": "rows" if isinstance(found.known, RowPosterior) else "weights",
        "layers": len(found.networks.of), **own,
    }  # fmt: skip
    header = json.dumps(plain)
    tensors |= arrays | _listed("layer", found.networks.of) | _known_packed(found.known)
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
        if "classes" in plain:
            _restore_labels(estimator, plain, tensors)
        else:
            _restore_numbers(estimator, plain, tensors)
        estimator.n_features_in_ = int(plain["features"])
        estimator.n_iter_ = int(plain["iterations"])
        estimator.converged_ = bool(plain["converged"])
        if plain["feature_names"] is not None:
            estimator.feature_names_in_ = np.array(plain["feature_names"], dtype=object)
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


def _numbers_packed(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Of a regressor."""
    found: NetworkPosteriors = estimator._networks
    plain = {"several": estimator._several, "members": found.members, "input_noise": found.noise is not None}
    tensors = {
        "precision": found.precision, "noise_precision": found.noise_precision, "log_evidence": found.log_evidence,
        "relevance": found.relevance, "noise_std": found.noise_std, "units.mean": found.units.mean,
        "units.scale": found.units.scale,
    }  # fmt: skip
    if found.noise is not None:
        tensors |= {**_listed("noise.layer", found.noise.networks.of), "noise.scale": found.noise.scale}
    tensors |= {"shape.factors": found.shape.factors, "shape.shares": found.shape.shares}
    return plain, tensors


def _restore_numbers(estimator: Any, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    estimator._several = bool(plain["several"])
    layers, known = _known_restored(plain, tensors)
    units = Units(tensors["units.mean"], tensors["units.scale"])
    noise = None
    if plain["input_noise"]:
        noise = InputNoise(LayerMatrices(_of_layers("noise.layer", plain, tensors)), tensors["noise.scale"])
    estimator._networks = NetworkPosteriors(
        int(plain["members"]), layers, tensors["precision"], tensors["noise_precision"], known, tensors["log_evidence"],
        tensors["relevance"], tensors["noise_std"], units, noise,
        Shape(tensors["shape.factors"], tensors["shape.shares"]),
    )  # fmt: skip
    estimator._data = None


def _labels_packed(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Of a classifier; labels are kept with the type of their array."""
    found: ClassNetworks = estimator._networks
    classes = estimator.classes_
    plain = {"classes": classes.tolist(), "classes_type": classes.dtype.str if classes.dtype.kind != "O" else "O"}
    return plain, {"precision": found.precision, "bound": found.bound, "relevance": found.relevance}


def _restore_labels(estimator: Any, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    estimator.classes_ = np.array(plain["classes"], dtype=plain["classes_type"])
    layers, known = _known_restored(plain, tensors)
    estimator._networks = ClassNetworks(
        len(estimator.classes_), layers, tensors["precision"], known, tensors["bound"], tensors["relevance"]
    )


def _known_packed(known: Conditioned) -> dict[str, Tensor]:
    assert isinstance(known, RowPosterior | WeightMatrixPosterior)
    tensors = _listed("variances", known.variances)
    if isinstance(known, RowPosterior):
        tensors |= _listed("left", known.rows.left) | _listed("right", known.rows.right)
    return tensors | {"root": known.root.mT}  # as LAPACK lays it out, so that products are summed in the same order


def _known_restored(plain: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[LayerMatrices, Conditioned]:
    layers = LayerMatrices(_of_layers("layer", plain, tensors))
    variances = _of_layers("variances", plain, tensors)
    if plain["posterior"] == "rows":
        rows = LayerJacobian(_of_layers("left", plain, tensors), _of_layers("right", plain, tensors))
        return layers, RowPosterior(rows, variances, tensors["root"].mT)
    shapes = tuple((layer.shape[1], layer.shape[2]) for layer in layers.of)
    return layers, WeightMatrixPosterior(variances, shapes, tensors["root"].mT)


def _of_layers(name: str, plain: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensors[f"{name}.{k}"] for k in range(int(plain["layers"])))


def _listed(name: str, parts: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"{name}.{k}": part for k, part in enumerate(parts)}

"""Symmetry models in files: tensors in safetensors, everything else as JSON in its header; nothing is unpickled."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn

from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.inference import Poser, Training, seeded
from lapwing.studies.symmetry.model import Learnt, Settings, SymmetryModel
from lapwing.studies.symmetry.prototypes import Bound, Subspace

FORMAT = 1


def save(model: SymmetryModel, path: Path | str) -> Path:
    """Write a fitted model, whole or not at all."""
    from lapwing.runtime.atomic import write

    path, found = Path(path), model.found
    subspace = found.bound.subspace
    tensors = {f"poser.{name}": value for name, value in found.bound.poser.state_dict().items()}
    tensors |= {f"poses.{name}": value for name, value in found.bound.poses.state_dict().items()}
    tensors |= {"prototypes": found.prototypes, "mean": subspace.mean, "basis": subspace.basis}
    tensors["variance"] = subspace.variance
    plain = {
        "format": FORMAT, "group": dict(zip(model.group.names, model.group.bounds, strict=True)),
        "settings": asdict(model.settings), "noise_variance": found.bound.noise_variance, "width": found.bound.width,
        "poser_curve": found.poser_curve,
    }  # fmt: skip
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write(path, serialise(whole, {"lapwing_symmetry": json.dumps(plain)}))
    return path


def load(path: Path | str) -> SymmetryModel:
    """The model of a file."""
    path = Path(path)
    tensors, plain = _read(path)
    try:
        told = plain["settings"]
        stages: dict[str, Any] = {stage: Training(**told.pop(stage)) for stage in ("inference", "poses")}
        model = SymmetryModel(Affine.of(**plain["group"]), Settings(**told, **stages))
        prototypes = tensors["prototypes"]
        pixels = prototypes[0].numel()
        if model.settings.width not in {size for tensor in tensors.values() for size in tensor.shape}:
            raise ValueError("no tensor is as wide as its settings say")  # noqa: TRY301
        poser = seeded(0, lambda: Poser(model.group, pixels, model.settings.width))
        poses = seeded(0, lambda: model._poses(pixels))
        modules: tuple[tuple[str, nn.Module], ...] = (("poser.", poser), ("poses.", poses))
        for name, module in modules:
            module.to(prototypes.dtype).load_state_dict(_named(tensors, name))
        subspace = Subspace(tensors["mean"], tensors["basis"], tensors["variance"])
        settings = plain["noise_variance"], plain["width"], model.settings.interpolation
        bound = Bound(poser.eval(), poses.eval(), subspace, *settings)
        return SymmetryModel(model.group, model.settings, Learnt(bound, prototypes, tuple(plain["poser_curve"])))
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        words = str(error).splitlines()[0][:90] if str(error) else type(error).__name__
        raise ValueError(f"{path}: not a whole symmetry model ({words}): save it again") from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("lapwing_symmetry")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: cannot be read as safetensors: save the model again") from error
    if header is None:
        raise ValueError(f"{path}: not a symmetry model that lapwing saved")
    try:
        plain = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its header is damaged: save the model again") from error
    known = plain.get("format") if isinstance(plain, dict) else None
    if known != FORMAT:
        raise ValueError(f"{path}: format {known!r}, this lapwing reads {FORMAT}")
    return tensors, plain


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

"""Predictions as a file that runs without lapwing: a program of torch.export, or ONNX."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from lapwing.bayes.likelihoods.spread import Link
from lapwing.runtime.atomic import write

if TYPE_CHECKING:
    from lapwing.bayes.posterior.posterior import Posterior

SUFFIXES = (".pt2", ".onnx")


def module_of(posterior: Posterior, example: Any, link: Link | None) -> nn.Module:
    """The predictions as a module, checked at an example."""
    point = posterior.map.point
    if point is None or point.served is None:
        raise ValueError("export is for the posterior of a network: this one is of a linear model, whose mean and "
                         "covariance are `posterior.mean` and `posterior.covariance`")  # fmt: skip
    if not isinstance(example, Tensor) or example.ndim < 2 or len(example) == 0:
        raise ValueError(f"example is {_said(example)}, expected a tensor of inputs, one in each row")
    if link is not None:
        posterior.likelihood.checked_link(link)
    found = point.served(posterior, example, link)
    if point.outputs_at(example[:1]).ndim != 2:
        raise ValueError("export is for networks that return (n, outputs): this one has other axes")
    return found


def exported(posterior: Posterior, path: Path | str, example: Any, link: Link | None) -> Path:
    """Write the predictions; whole or not at all."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path.name} ends with {path.suffix or 'nothing'!r}, expected .pt2 or .onnx")
    if path.suffix == ".onnx":
        _check_onnx()
    module = module_of(posterior, example, link)
    rows = example if len(example) > 1 else torch.cat([example, example])  # one row would be taken for a fixed size
    program = torch.export.export(module, (rows,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
    write(path, _serialised(program, module) if path.suffix == ".onnx" else _saved(program))
    return path


def _saved(program: Any) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _serialised(program: Any, module: nn.Module) -> bytes:
    names = list(cast(tuple[str, ...], module.names))
    found = torch.onnx.export(program, dynamo=True, verbose=False, input_names=["x"], output_names=names)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "posterior.onnx"
        found.save(place)
        return place.read_bytes()


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("export to ONNX needs onnx and onnxscript: pip install 'lapwing[onnx]'") from error


def _said(example: Any) -> str:
    return f"a tensor of shape {tuple(example.shape)}" if isinstance(example, Tensor) else f"a {type(example).__name__}"

"""Posteriors in files: tensors in safetensors, everything else as JSON in its header; nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from lapwing.atomic import write as write_atomically
from lapwing.bayes import likelihoods
from lapwing.bayes.evidence import EvidenceParts
from lapwing.bayes.likelihoods import Gamma, Gaussian
from lapwing.bayes.linear_model import Centre, LinearModel
from lapwing.bayes.modes.tangent import Tangent
from lapwing.bayes.noise import PRIOR, Noise
from lapwing.bayes.posterior.files.packing import (
    named,
    pack_loss,
    pack_statistics,
    pack_structure,
    unpack_statistics,
    unpack_structure,
)
from lapwing.bayes.posterior.posterior import Posterior
from lapwing.bayes.posterior.tuning.curves import Curve
from lapwing.bayes.priors import DiagonalPrior
from lapwing.bayes.solving.iterative import Drawn
from lapwing.bayes.solving.structured import Approximate
from lapwing.bayes.statistics import Statistics, Whitened, whiten
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.journal import checksum
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.linalg.solvers import Solution
from lapwing.linalg.spectral import Spectrum

FORMAT = 2  # 1 had no checksum, and what `at` and `tune` need for Exact() alone
READABLE = (1, 2)
KINDS = (likelihoods.Categorical, likelihoods.Bernoulli, likelihoods.Poisson, likelihoods.HeteroscedasticGaussian)
CURVED = {kind.__name__: kind for kind in KINDS}


@final
@dataclass(frozen=True, eq=False)
class Stored:
    """The content of a file: tensors by name, the rest as plain values."""

    path: Path
    tensors: dict[str, Tensor]
    plain: dict[str, Any]

    def tensor(self, name: str) -> Tensor:
        """A tensor that must be there."""
        if name not in self.tensors:
            raise ValueError(f"{self.path}: the file lacks the tensor {name!r}")
        return self.tensors[name]

    def value(self, *names: str) -> Any:
        """A plain value that must be there."""
        found: Any = self.plain
        for name in names:
            if not isinstance(found, dict) or name not in found:
                raise ValueError(f"{self.path}: the file lacks {'.'.join(names)!r}")
            found = found[name]
        return found


def save(posterior: Posterior, path: Path | str) -> Path:
    """Write what predictions need and, where it fits into 2 GiB, what `at` and `tune` need; whole or not at all."""
    path, tensors = Path(path), _always(posterior)
    plain: dict[str, Any] = {
        "format": FORMAT, "lapwing": version("lapwing"), "outputs": posterior.outputs, "seed": posterior.seed,
        "link": posterior.link, "temperature": posterior.temperature, "groups": list(posterior.prior.names),
        "diagnostics": posterior.diagnostics, "evidence_parts": asdict(posterior.evidence_parts),
        "log_evidence": asdict(posterior.log_evidence), "effective_dimension": asdict(posterior.effective_dimension),
        "given": {"per_output": posterior.given.per_output, "hyperprior": _asdict(posterior.given.hyperprior)},
        "statistics": [],
    }  # fmt: skip
    if posterior.tangent is not None:
        plain["likelihood"] = _named(posterior.tangent.likelihood)
    if posterior.centre is not None:
        plain["network"] = {"names": list(posterior.centre.names), "fingerprint": posterior.centre.fingerprint()}
    known = posterior.statistics
    packed = pack_statistics(known, len(posterior.mean)) if isinstance(known, tuple) else None
    for i, (found, part) in enumerate(packed or []):
        plain["statistics"].append(found)
        tensors |= {f"statistics.{i}.{name}": value for name, value in part.items()}
    structure = pack_structure(known, len(posterior.mean)) if isinstance(known, Approximate) else None
    if structure is not None:
        plain["structure"] = structure[0]
        tensors |= {f"structure.{name}": value for name, value in structure[1].items()}
    if packed or structure:
        tensors |= pack_loss(posterior.tangent)
    if posterior.held_out_curve is not None:
        curve = posterior.held_out_curve
        plain["curve"] = {"best_precision": curve.best_precision, "best_noise": curve.best_noise}
        parts = {name: getattr(curve, name) for name in ("precision", "noise", "log_evidence", "held_out")}
        tensors |= {f"curve.{name}": value for name, value in parts.items() if value is not None}
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    header = json.dumps(plain, default=str)
    write_atomically(path, serialise(whole, {"lapwing": header, "checksum": checksum(header, whole)}))
    return path


def _always(posterior: Posterior) -> dict[str, Tensor]:
    prior, found = posterior.prior, {"mean": posterior.mean, "deviations": posterior.deviations}
    found |= {"prior.scale": prior.scale, "prior.group_of": prior.group_of, "prior.precision": prior.precision}
    found["noise_precision"] = posterior.noise_precision
    if posterior.given.noise_std is not None:
        found["noise_std"] = posterior.given.noise_std
    if posterior.centre is not None:
        found["weights"] = posterior.centre.weights
        if posterior.centre.mask is not None:
            found["mask"] = posterior.centre.mask
    return found


def _asdict(value: Gamma | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def _named(likelihood: Any) -> dict[str, Any]:
    name = type(likelihood).__name__
    if CURVED.get(name) is not type(likelihood):
        raise ValueError(
            f"a posterior with likelihood {name} cannot be saved: it can for {', '.join(CURVED)}, Gaussian"
        )
    return {"name": name, **{item.name: getattr(likelihood, item.name) for item in fields(likelihood)}}


def read(path: Path | str) -> Stored:
    """The content of a file, or a ValueError that says what is wrong with it."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no saved posterior here")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            header = metadata.get("lapwing", "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: not a saved posterior, or a damaged one ({str(error).splitlines()[0][:90]})"
        ) from None
    try:
        plain = json.loads(header)
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: a file of tensors, but not a saved posterior") from None
    number = plain.get("format") if isinstance(plain, dict) else None
    if isinstance(number, bool) or number not in READABLE:
        raise ValueError(
            f"{path}: format {number!r}, this lapwing reads formats {READABLE[0]} to {FORMAT}: use the version that "
            "wrote it"
        )
    if number > 1 and metadata.get("checksum") != checksum(header, tensors):
        raise ValueError(f"{path}: a damaged file, the checksum of its content differs: copy it again, or fit again")
    return Stored(path, tensors, plain)


def restore(stored: Stored, features_at: Callable[[Any], LinearOperator], centre: Centre | None) -> Posterior:
    """The posterior of a file over features that are made anew."""
    try:
        _check(stored)
        return _rehearsed(_restored(stored, features_at, centre))
    except (TypeError, KeyError, AttributeError, RuntimeError, IndexError, ArithmeticError, MemoryError) as error:
        raise ValueError(f"{stored.path}: the file does not hold what it should ({error})") from error


def _check(stored: Stored) -> None:
    """Refuse tensors whose shapes do not belong together, and numbers that no posterior has."""
    mean, deviations = stored.tensor("mean"), stored.tensor("deviations")
    scale, group_of = stored.tensor("prior.scale"), stored.tensor("prior.group_of")
    precision, noise = stored.tensor("prior.precision"), stored.tensor("noise_precision")
    shapes = [tuple(part.shape) for part in (mean, deviations, scale, group_of, precision, noise)]
    d, groups = mean.numel(), precision.numel()
    fits = shapes == [
        (d,),
        (d, deviations.shape[-1] if deviations.ndim else 0),
        (d,),
        (d,),
        (groups,),
        (noise.numel(),),
    ]
    if not fits or not groups >= 1 or not d:
        raise ValueError(f"{stored.path}: tensors of shapes {shapes} do not make a posterior")
    numbers = not group_of.is_floating_point() and 0 <= int(group_of.min()) <= int(group_of.max()) < groups
    positive = bool((scale > 0).all() & (precision > 0).all() & (noise > 0).all() & scale.isfinite().all())
    if not numbers or not positive or not bool(deviations.isfinite().all()) or bool(mean.isinf().any()):
        raise ValueError(f"{stored.path}: its prior, noise or draws hold numbers that no posterior has")


def _rehearsed(posterior: Posterior) -> Posterior:
    """The same posterior, once it has predicted: parts that do not belong together are noticed now, not later."""
    features = Dense(torch.ones(2, len(posterior.mean), dtype=torch.float64))
    seen = posterior.seen_at(features, torch.zeros(1, 2, dtype=torch.float64), None)
    if not bool(seen.spread.variance.isfinite().all()) or not isinstance(posterior.diagnostics, dict):
        raise ValueError("its statistics give error bars that are not finite")
    return posterior


def _restored(stored: Stored, features_at: Callable[[Any], LinearOperator], centre: Centre | None) -> Posterior:
    prior = DiagonalPrior(
        stored.tensor("prior.scale"), stored.tensor("prior.group_of"), stored.tensor("prior.precision"),
        tuple(stored.value("groups")),
    )  # fmt: skip
    noise, hyperprior = stored.tensor("noise_precision"), stored.value("given", "hyperprior")
    given = Gaussian(
        stored.tensors.get("noise_std"), per_output=stored.value("given", "per_output"),
        hyperprior=None if hyperprior is None else Gamma(**hyperprior),
    )  # fmt: skip
    known = _known(stored, prior)
    parts = EvidenceParts(**stored.value("evidence_parts"))
    mean, deviations = stored.tensor("mean"), stored.tensor("deviations")
    gamma = Estimate(**stored.value("effective_dimension"))
    belief: Whitened | Drawn
    if isinstance(known, Approximate):
        belief = known.whitened(prior, noise)
    elif known:
        normals = Noise(stored.value("seed"), PRIOR).rows(0, len(mean), deviations.shape[1])
        belief = whiten(known, prior, noise, normals)
    else:
        solved = Solution(deviations[:0], torch.zeros(0), 0, 0.0)
        belief = Drawn(prior.std, mean, deviations, parts, gamma, Estimate(-2 * parts.occam), solved, 0.0, 0.0)
    return Posterior(
        statistics=known, prior=prior, noise_precision=noise, given=given, outputs=stored.value("outputs"),
        belief=belief, mean=mean, deviations=deviations, evidence_parts=parts,
        log_evidence=Estimate(**stored.value("log_evidence")), effective_dimension=gamma, seed=stored.value("seed"),
        diagnostics=stored.value("diagnostics"), features_at=features_at, centre=centre,
        held_out_curve=_curve(stored), tangent=_tangent(stored, prior), link=stored.value("link"),
        temperature=stored.value("temperature"),
    )  # fmt: skip


def _known(stored: Stored, prior: DiagonalPrior) -> tuple[Statistics, ...] | Approximate:
    """What the file knows of the data: nothing, but for draws, is an empty tuple."""
    structure, seed = stored.plain.get("structure"), stored.value("seed")
    if structure is not None:
        return unpack_structure(structure, named(stored.tensors, "structure."), prior)
    found = []
    for i, told in enumerate(stored.value("statistics")):
        stored.tensor(f"statistics.{i}.values")
        found.append(unpack_statistics(told, named(stored.tensors, f"statistics.{i}."), seed))
    return tuple(found)


def _curve(stored: Stored) -> Curve | None:
    found = stored.plain.get("curve")
    if found is None:
        return None
    precision, noise, evidence = (stored.tensor(f"curve.{name}") for name in ("precision", "noise", "log_evidence"))
    held_out = stored.tensors.get("curve.held_out")
    return Curve(precision, noise, evidence, held_out, found["best_precision"], found["best_noise"])


def _tangent(stored: Stored, prior: DiagonalPrior) -> Tangent | None:
    """The loss of class labels; where it was not stored, one of no data that says so when its mode is asked for."""
    found = stored.plain.get("likelihood")
    if found is None:
        return None
    options = {key: value for key, value in found.items() if key != "name"}
    if found["name"] not in CURVED:
        raise ValueError(f"{stored.path}: unknown likelihood {found['name']!r}")
    likelihood = CURVED[found["name"]](**options)
    if "loss.design" not in stored.tensors:
        nothing = torch.zeros(likelihood.targets_shape(torch.Size((1, 2))))  # of one datum with two outputs
        empty = LinearModel(torch.zeros(2, 1).double(), nothing, likelihood)
        return Tangent(empty, likelihood, prior, empty.features, torch.zeros(1).double(), None, lost=True)
    design = Dense(stored.tensor("loss.design"))
    model = LinearModel(
        design, stored.tensor("loss.targets"), likelihood, weights=stored.tensor("loss.counts"),
        offset=stored.tensors.get("loss.offset"),
    )  # fmt: skip
    space = None
    if "loss.vectors" in stored.tensors:
        space = Spectrum(Dense(stored.tensor("loss.vectors")), stored.tensor("loss.values"))
    return Tangent(model, likelihood, prior, design, stored.tensor("loss.start"), space)

"""Posteriors in files: tensors in safetensors, everything else as JSON in its header; nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from lapwing.bayes.diagnostics import Diagnostics
from lapwing.bayes.evidence import EvidenceParts
from lapwing.bayes.fits import Packed
from lapwing.bayes.likelihoods import Likelihood, restored
from lapwing.bayes.linear_model import LinearisationPoint
from lapwing.bayes.methods import outputs
from lapwing.bayes.methods.interface import Evidence, FileContext, WeightPosterior
from lapwing.bayes.methods.outputs import OutputUncertainty
from lapwing.bayes.methods.packing import members, named, prefixed, with_kind
from lapwing.bayes.posterior.alternatives import Alternative, Averaged, Itself, OtherGaussian, ScaledNetwork
from lapwing.bayes.posterior.curves import PrecisionCurve
from lapwing.bayes.posterior.earlier_files import as_now
from lapwing.bayes.posterior.posterior import DataLedger, FeatureMap, Posterior
from lapwing.bayes.priors import DiagonalPrior
from lapwing.linalg.estimators import Estimate
from lapwing.linalg.operators import Dense, LinearOperator
from lapwing.runtime.atomic import write as write_atomically
from lapwing.runtime.journal import checksum

FORMAT = 3  # 1 had no checksum, 2 no methods that know their own files
MIXTURE = 4  # of several posteriors
READABLE = (1, 2, FORMAT, MIXTURE)


@final
@dataclass(frozen=True, eq=False)
class StoredDraws(WeightPosterior):
    """Mean and draws of a file that holds no more: they serve one precision."""

    context: FileContext
    known: Evidence
    gamma: Estimate
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    @property
    def prior(self) -> DiagonalPrior:  # type: ignore[override]
        """That of the file."""
        return self.context.prior

    @property
    def noise_precision(self) -> Tensor:  # type: ignore[override]
        """That of the file."""
        return self.context.noise_precision

    @property
    def seed(self) -> int:  # type: ignore[override]
        """That of the noise behind every draw."""
        return self.context.seed

    def at(self, prior: DiagonalPrior, noise_precision: Tensor) -> WeightPosterior:
        del prior, noise_precision
        raise ValueError("this posterior was loaded from a file that holds only draws of one precision: fit it again")

    @property
    def mean(self) -> Tensor:
        return self.context.mean

    @property
    def deviations(self) -> Tensor:
        return self.context.deviations

    @property
    def effective_dimension(self) -> Estimate:
        return self.gamma

    def spread(
        self, features: LinearOperator, shape: tuple[int, ...], *, full: bool, batch_size: int | None = None  # noqa: ARG002
    ) -> OutputUncertainty:  # fmt: skip
        return outputs.of_deviations(self.prior.std, features, shape, self.deviations, self.prior_noise, full=full)

    def evidence(self) -> Evidence:
        return self.known

    def pack(self) -> Packed | None:
        return None


@final
@dataclass(frozen=True, eq=False)
class StoredPosterior:
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
    return write(Path(path), *content(posterior))


def content(posterior: Posterior) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file holds of a posterior: plain values, and tensors by name."""
    gaussian = posterior.gaussian
    plain, tensors = _always(posterior)
    plain["gaussian"], packed = with_kind(gaussian)
    tensors |= prefixed("gaussian", packed)
    tensors["mean"] = _mean(posterior)
    if posterior.alternative is not None:
        plain["alternative"], packed = posterior.alternative.pack()
        tensors |= prefixed("alternative", packed)
    if posterior.held_out_curve is not None:
        curve = posterior.held_out_curve
        plain["curve"] = {"best_precision": curve.best_precision, "best_noise": curve.best_noise}
        parts = {name: getattr(curve, name) for name in ("precision", "noise", "log_evidence", "held_out")}
        tensors |= prefixed("curve", {name: value for name, value in parts.items() if value is not None})
    return plain, tensors


def write(path: Path, plain: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a file, with a checksum of all that it holds."""
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    header = json.dumps(plain, default=str)
    write_atomically(path, serialise(whole, {"lapwing": header, "checksum": checksum(header, whole)}))
    return path


def _always(posterior: Posterior) -> tuple[dict[str, Any], dict[str, Tensor]]:
    prior, gaussian, point = posterior.prior, posterior.gaussian, posterior.map.point
    likelihood = posterior.given.saved()
    tensors = {
        "deviations": gaussian.deviations, "noise_precision": gaussian.noise_precision, "prior.scale": prior.scale,
        "prior.group_of": prior.group_of, "prior.precision": prior.precision,
    }  # fmt: skip
    for name in [name for name, value in likelihood.items() if isinstance(value, Tensor)]:
        tensors[f"likelihood.{name}"] = likelihood.pop(name)
    plain: dict[str, Any] = {
        "format": FORMAT, "lapwing": version("lapwing"), "outputs": posterior.map.outputs, "seed": posterior.seed,
        "link": posterior.link, "temperature": posterior.temperature,
        "groups": list(prior.names), "diagnostics": posterior.diagnostics.plain(), "likelihood": likelihood,
        "ledger": {"rows": posterior.ledger.rows, "removed": list(posterior.ledger.removed)},
        "effective_dimension": _estimate(gaussian.effective_dimension), **_evidence(posterior),
    }  # fmt: skip
    if posterior.network_residual_rms is not None:
        tensors["network_residual_rms"] = posterior.network_residual_rms
    if point is not None:
        plain["network"] = {
            "names": list(point.names), "fingerprint": point.fingerprint(), "through_zero": point.through_zero
        }  # fmt: skip
        tensors["weights"] = point.weights
        if point.mask is not None:
            tensors["mask"] = point.mask
    return plain, tensors


def _mean(posterior: Posterior) -> Tensor:
    """The mean where it is known or predictions need it: a file of held-out tuning is not the place to look for it."""
    known = posterior.gaussian.__dict__.get("mean")
    looked_for = posterior.map.centre == "linear" or posterior.held_out_curve is None
    if known is not None or looked_for:
        return posterior.mean
    return torch.full_like(posterior.prior.scale, torch.nan)


def _evidence(posterior: Posterior) -> dict[str, Any]:
    """The evidence where it was asked for."""
    if posterior.held_out_curve is not None:
        return {}
    found = posterior.gaussian.evidence()
    return {"evidence_parts": vars(found.parts), "log_evidence": _estimate(found.log_evidence)}


def _estimate(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "standard_error": estimate.standard_error}


def read(path: Path | str) -> StoredPosterior:
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
            f"{path}: format {number!r}, this lapwing reads formats {READABLE[0]} to {READABLE[-1]}: use the version "
            "that wrote it"
        )
    if number > 1 and metadata.get("checksum") != checksum(header, tensors):
        raise ValueError(f"{path}: a damaged file, the checksum of its content differs: copy it again, or fit again")
    return StoredPosterior(path, tensors, plain)


def restore(
    stored: StoredPosterior, features_at: Callable[[Any], LinearOperator], point: LinearisationPoint | None
) -> Posterior:
    """The posterior of a file over features that are made anew."""
    try:
        stored = as_now(stored)
        _check(stored)
        if point is not None:
            point = replace(point, through_zero=bool(stored.value("network").get("through_zero", False)))
        return _rehearsed(_restored(stored, features_at, point))
    except (TypeError, KeyError, AttributeError, RuntimeError, IndexError, ArithmeticError, MemoryError) as error:
        raise ValueError(f"{stored.path}: the file does not hold what it should ({error})") from error


def _check(stored: StoredPosterior) -> None:
    """Refuse tensors whose shapes do not belong together, and numbers that no posterior has."""
    mean, deviations = stored.tensor("mean"), stored.tensor("deviations")
    scale, group_of = stored.tensor("prior.scale"), stored.tensor("prior.group_of")
    precision, noise = stored.tensor("prior.precision"), stored.tensor("noise_precision")
    shapes = [tuple(part.shape) for part in (mean, deviations, scale, group_of, precision, noise)]
    d, groups = mean.numel(), precision.numel()
    draws = deviations.shape[-1] if deviations.ndim else 0
    if shapes != [(d,), (d, draws), (d,), (d,), (groups,), (noise.numel(),)] or not groups >= 1 or not d:
        raise ValueError(f"{stored.path}: tensors of shapes {shapes} do not make a posterior")
    numbers = not group_of.is_floating_point() and 0 <= int(group_of.min()) <= int(group_of.max()) < groups
    positive = bool((scale > 0).all() & (precision > 0).all() & (noise > 0).all() & scale.isfinite().all())
    if not numbers or not positive or not bool(deviations.isfinite().all()) or bool(mean.isinf().any()):
        raise ValueError(f"{stored.path}: its prior, noise or draws hold numbers that no posterior has")


def _rehearsed(posterior: Posterior) -> Posterior:
    """The same posterior, once it has predicted: parts that do not belong together are noticed now, not later."""
    features = Dense(torch.ones(2, posterior.map.weights, dtype=torch.float64))
    found = posterior.uncertainty_at(features, torch.zeros(1, 2, dtype=torch.float64))
    if not bool(found.spread.variance.isfinite().all()):
        raise ValueError("its statistics give error bars that are not finite")
    return posterior


def _restored(
    stored: StoredPosterior, features_at: Callable[[Any], LinearOperator], point: LinearisationPoint | None
) -> Posterior:
    prior = DiagonalPrior(
        stored.tensor("prior.scale"), stored.tensor("prior.group_of"), stored.tensor("prior.precision"),
        tuple(stored.value("groups")),
    )  # fmt: skip
    likelihood = _likelihood(stored)
    context = FileContext(
        prior, stored.tensor("noise_precision"), likelihood, stored.value("seed"), stored.tensor("mean"),
        stored.tensor("deviations"), Diagnostics.of(stored.value("diagnostics")), point,
    )  # fmt: skip
    ledger = stored.value("ledger")
    return Posterior(
        gaussian=_gaussian(stored, context), given=likelihood, diagnostics=context.diagnostics,
        map=FeatureMap(features_at, point, stored.value("outputs"), len(prior.scale)),
        ledger=DataLedger(ledger["rows"], tuple(ledger["removed"])), link=stored.value("link"),
        temperature=stored.value("temperature"), held_out_curve=_curve(stored),
        alternative=_alternative(stored, context),
        network_residual_rms=stored.tensors.get("network_residual_rms"),
    )  # fmt: skip


def _likelihood(stored: StoredPosterior) -> Likelihood:
    saved = {**stored.value("likelihood"), **named(stored.tensors, "likelihood.")}
    if not isinstance(saved.get("name"), str):
        raise ValueError(f"{stored.path}: the file lacks the name of its likelihood")
    try:
        return restored(saved)
    except KeyError:
        raise ValueError(f"{stored.path}: unknown likelihood {saved['name']!r}") from None


def _gaussian(stored: StoredPosterior, context: FileContext) -> WeightPosterior:
    """By the method that wrote it; one that is not known here is loaded as draws alone."""
    told = dict(stored.value("gaussian"))
    kind = told.pop("kind")
    for method in members(WeightPosterior):
        if kind == method.kind and kind != "draws":
            return _as_saved(method.unpack(told, Tensors(named(stored.tensors, "gaussian.")), context), stored, context)
    gamma = Estimate(**stored.value("effective_dimension"))
    return StoredDraws(context, _known_evidence(stored), gamma, context.diagnostics)


def _alternative(stored: StoredPosterior, context: FileContext) -> Alternative | None:
    """What predicts labels in place of the posterior."""
    if "alternative" not in stored.plain:
        return None
    return _unpacked(
        StoredPosterior(stored.path, named(stored.tensors, "alternative."), stored.plain["alternative"]), context
    )


def _unpacked(part: StoredPosterior, context: FileContext) -> Alternative:
    match part.value("kind"):
        case Itself.kind:
            return Itself()
        case ScaledNetwork.kind:
            return ScaledNetwork(_positive(part, "temperature"))
        case Averaged.kind:
            told = list(enumerate(part.value("parts")))
            inner = [StoredPosterior(part.path, named(part.tensors, f"{number}."), plain) for number, plain in told]
            return Averaged(tuple(_unpacked(one, context) for one in inner), tuple(map(float, part.value("shares"))))
        case OtherGaussian.kind:
            prior = replace(context.prior, precision=part.tensor("precision"))
            own = replace(context, prior=prior, deviations=part.tensor("deviations"), mean=part.tensor("mean"))
            known = replace(part, plain={**part.plain, "effective_dimension": {"value": float("nan")}})
            return OtherGaussian(_gaussian(known, own), part.value("link"), part.value("centre"))
        case other:
            raise ValueError(f"{part.path}: labels are predicted by {other!r}, which is not known here")


def _positive(part: StoredPosterior, name: str) -> float:
    found = float(part.value(name))
    if not found > 0:
        raise ValueError(f"{part.path}: {name} is {found}, expected a positive number")
    return found


class Tensors(dict[str, Tensor]):
    """Tensors by name, each of which must be there."""

    def __missing__(self, name: str) -> Tensor:
        raise ValueError(f"the file lacks the tensor {name!r}")


def _known_evidence(stored: StoredPosterior) -> Evidence:
    parts = {**NOT_ASKED, **stored.plain.get("evidence_parts", {})}
    value = Estimate(**stored.plain.get("log_evidence", {"value": float("nan")}))
    return Evidence(EvidenceParts(**parts), value)


def _as_saved(gaussian: WeightPosterior, stored: StoredPosterior, context: FileContext) -> WeightPosterior:
    """With mean, draws and evidence to the bit, as they were saved: elsewhere they are worked out again."""
    gaussian.__dict__["deviations"] = context.deviations
    if bool(context.mean.isfinite().all()):
        gaussian.__dict__["mean"] = context.mean
    if "evidence_parts" in stored.plain:
        gaussian.__dict__["_evidence"] = _known_evidence(stored)
    return gaussian


NOT_ASKED = dict.fromkeys(("fit", "penalty", "occam", "normaliser", "hyperprior"), float("nan"))


def _curve(stored: StoredPosterior) -> PrecisionCurve | None:
    found = stored.plain.get("curve")
    if found is None:
        return None
    precision, noise, evidence = (stored.tensor(f"curve.{name}") for name in ("precision", "noise", "log_evidence"))
    held_out = stored.tensors.get("curve.held_out")
    return PrecisionCurve(precision, noise, evidence, held_out, found["best_precision"], found["best_noise"])

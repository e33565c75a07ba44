"""Files of formats 1 and 2, said in the words of the present one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lapwing.bayes.methods.packing import named, prefixed

if TYPE_CHECKING:
    from lapwing.bayes.posterior.files import StoredPosterior

FITS = {"weights": "weights", "statistics": "statistics", "unknown": "lost"}


def as_now(stored: StoredPosterior) -> StoredPosterior:
    """The same content as the present format names it."""
    if stored.value("format") > 2:
        return _with_alternative(stored)
    plain, tensors = dict(stored.plain), dict(stored.tensors)
    told = stored.value("diagnostics")
    labels = plain.get("likelihood")
    given = stored.value("given")
    if labels is None:
        plain["likelihood"] = {
            "name": "Gaussian", "noise_std": None, "per_output": given["per_output"], "hyperprior": given["hyperprior"],
        }  # fmt: skip
        if "noise_std" in tensors:
            tensors["likelihood.noise_std"] = tensors.pop("noise_std")
        plain["link"] = "closed form"
    kept, known = _gaussian(plain, tensors, told, labels is not None)
    plain["gaussian"] = kept
    tensors |= prefixed("gaussian", known)
    rows = told.get("observations", 0) + told.get("removed", 0)
    plain["ledger"] = {"rows": rows, "removed": told.get("removed_places", [])}
    if "network_leaves" in told:
        tensors["network_residual_rms"] = tensors["deviations"].new_tensor(told["network_leaves"])
    return replace(stored, plain=plain, tensors=tensors)


def _with_alternative(stored: StoredPosterior) -> StoredPosterior:
    """The network's temperature, as early files of format 3 have it, as what predicts in place of the posterior."""
    heat = stored.plain.get("network_temperature")
    if heat is None:
        return stored
    return replace(stored, plain={**stored.plain, "alternative": {"kind": "network", "temperature": heat}})


def _gaussian(
    plain: dict[str, Any], tensors: dict[str, Tensor], told: dict[str, Any], labels: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    loss = prefixed("fit", named(tensors, "loss."))
    fit = {"kind": ("loss" if loss else "lost") if labels else "least squares"}
    if "structure" in plain:
        return _structure(dict(plain["structure"]), named(tensors, "structure."), fit, loss)
    parts = [{**part, "count": 0.0, "log_weight": 0.0} if labels else part for part in plain["statistics"]]
    if not parts:
        return {"kind": "draws"}, {}
    if "space" in parts[0]:
        space = dict(parts[0])
        known = named(tensors, "statistics.0.")
        return {"kind": "krylov", "space": {**space.pop("space"), **space}, "fit": fit}, {**known, **loss}
    side = "svd" if "svd" in str(told.get("method")) else None
    known = {name: value for name, value in tensors.items() if name.startswith("statistics.")}
    kept = {"kind": "exact", "statistics": parts, "fit": fit, "side": side}
    if "eps" in told:
        kept["eps"] = told["eps"]
    return kept, {**known, **loss}


def _structure(
    plain: dict[str, Any], tensors: dict[str, Tensor], fit: dict[str, Any], loss: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    found = plain.pop("fits")
    known = {name: value for name, value in tensors.items() if name.startswith("curvature.")}
    kept = {"kind": "structure", "fit": fit, **plain}
    if found is None:
        return kept, {**known, **loss}
    kept["fit"] = {"kind": FITS[found["kind"]]}
    own = named(tensors, "fits.")
    if found["kind"] == "statistics":
        kept["fit"]["statistics"] = found["parts"]
        own = prefixed("statistics", own)
    return kept, {**known, **prefixed("fit", own)}

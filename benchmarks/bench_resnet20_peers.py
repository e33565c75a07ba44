"""Time and quality of the last layer and of KFAC on a trained ResNet-20, beside laplace-torch.

Both sides get the same network, the same training images, and choose their prior precision on the same held-out images (200; 60
for KFAC, since theirs makes every Jacobian anew at each point of its grid), in one process. The last three cells have a given
precision: one fits and predicts by both, and two run one side alone, for its peak memory. laplace-torch's KFAC refuses networks with BatchNorm weights, so for KFAC these are
frozen on both sides. laplace-torch cannot count an image more than once, so neither does ours here. Theirs searches a grid of
precisions (5 points for KFAC, 21 for the last layer), ours the whole curve. NLL and ECE are on the images that follow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import harness
import peer_environment
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

CELLS: dict[str, dict[str, Any]] = {
    "last layer, n = 20, small": {"n": 20, "test": 20, "structure": "last layer"},
    "last layer, n = 1,000": {"n": 1000, "test": 300, "structure": "last layer"},
    "KFAC, n = 1,000": {"n": 1000, "test": 60, "structure": "kfac", "held_out": 60},
    "KFAC, n = 1,000, not tuned": {"n": 1000, "test": 60, "structure": "kfac", "held_out": 0},
    "KFAC, ours alone": {"n": 200, "test": 20, "structure": "kfac", "held_out": 0, "who": "ours"},
    "KFAC, laplace-torch alone": {"n": 200, "test": 20, "structure": "kfac", "held_out": 0, "who": "theirs"},
}
HELD_OUT = 200  # images before those that are scored
PRECISION = 1000.0  # where it is not tuned


def measure(n: int, test: int, structure: str, held_out: int = HELD_OUT, who: str = "both") -> dict:
    import lapwing as lw
    from benchmarks import data
    from benchmarks.networks import trained_resnet20
    from lapwing import metrics

    task = data.cifar10()
    model, train = trained_resnet20(), (task.train[0][:n], task.train[1][:n])
    if structure == "kfac":
        freeze_norms(model)
    held = (task.test[0][:held_out], task.test[1][:held_out]) if held_out else None
    new = task.test[0][HELD_OUT : HELD_OUT + test], task.test[1][HELD_OUT : HELD_OUT + test]

    def ours(validation: tuple | None) -> Any:
        last, kfac = (
            {"select": lambda name: name.startswith("linear.")},
            {"method": lw.KFAC(evidence_at="weights")},
        )
        found = lw.fit(
            model, train, lw.Categorical(), prior=lw.Isotropic(None if validation else PRECISION), validation=validation,
            progress=False, curvature="network", **(last if structure == "last layer" else kfac),
        )  # fmt: skip
        return replace(found, alternative=None)

    if who == "theirs":
        la, _ = theirs(model, train, held, structure)
        return {"nll": metrics.nll(in_batches(la, new[0]).double(), new[1])}
    our_untuned, posterior = harness.timed(lambda: ours(None))
    our_seconds, posterior = harness.timed(lambda: ours(held)) if held else (our_untuned, posterior)
    our_predict, prediction = harness.timed(lambda: posterior.predict(new[0]).probs)
    if who == "ours":
        return {"nll": metrics.nll(prediction.double(), new[1])}
    their_seconds, (la, their_untuned) = harness.timed(lambda: theirs(model, train, held, structure))
    their_predict, their_probs = harness.timed(lambda: in_batches(la, new[0]))
    return {
        "our_untuned_fit_seconds": our_untuned, "their_untuned_fit_seconds": their_untuned,
        "untuned_fit_ratio": their_untuned / our_untuned,
        "our_fit_seconds": our_seconds, "their_fit_seconds": their_seconds, "fit_ratio": their_seconds / our_seconds,
        "our_predict_seconds": our_predict, "their_predict_seconds": their_predict,
        "predict_ratio": their_predict / our_predict,
        "our_nll": metrics.nll(prediction.double(), new[1]), "their_nll": metrics.nll(their_probs.double(), new[1]),
        "our_ece": metrics.ece(prediction.double(), new[1]), "their_ece": metrics.ece(their_probs.double(), new[1]),
        "our_precision": float(posterior.prior.precision[0]), "their_precision": float(la.prior_precision.mean()),
    }  # fmt: skip


def freeze_norms(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.requires_grad_(False)


def theirs(model: torch.nn.Module, train: tuple, held: tuple | None, structure: str) -> tuple[Any, float]:
    from laplace import Laplace

    weights, kind = ("last_layer", "full") if structure == "last layer" else ("all", "kron")
    la = Laplace(model, "classification", subset_of_weights=weights, hessian_structure=kind)
    untuned, _ = harness.timed(lambda: la.fit(DataLoader(TensorDataset(*train), batch_size=100)))
    if held is None:
        la.prior_precision = PRECISION
        return la, untuned
    la.optimize_prior_precision(
        method="gridsearch", pred_type="glm", link_approx="probit",
        val_loader=DataLoader(TensorDataset(*held), batch_size=20), grid_size=5 if structure == "kfac" else 21,
        log_prior_prec_min=-1, log_prior_prec_max=5,
    )  # fmt: skip
    return la, untuned


def in_batches(la: Any, x: Tensor) -> Tensor:
    return torch.cat([la(batch, pred_type="glm", link_approx="probit").detach() for batch in x.split(20)])


if __name__ == "__main__":
    peer_environment.enter()
    harness.main(__file__, CELLS, measure)

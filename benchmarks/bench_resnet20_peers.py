"""Time and quality of the last layer and of KFAC on a trained ResNet-20, beside laplace-torch.

Both sides get the same network, the same training images, and choose their prior precision on the same 200 held-out
images, in one process. laplace-torch cannot count an image more than once, so neither does ours here. Theirs searches a grid of
precisions (9 points for KFAC, 21 for the last layer), ours the whole curve. NLL and ECE are on the images that follow.
"""

from __future__ import annotations

from typing import Any

import harness
import peer_environment
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

CELLS: dict[str, dict[str, Any]] = {
    "last layer, n = 20, small": {"n": 20, "test": 20, "structure": "last layer"},
    "last layer, n = 1,000": {"n": 1000, "test": 300, "structure": "last layer"},
}
HELD_OUT = 200


def measure(n: int, test: int, structure: str) -> dict:
    import lapwing as lw
    from lapwing import metrics
    from lapwing.bench import data
    from lapwing.bench.networks import trained_resnet20

    task = data.cifar10()
    model, train = trained_resnet20(), (task.train[0][:n], task.train[1][:n])
    held = task.test[0][:HELD_OUT], task.test[1][:HELD_OUT]
    new = task.test[0][HELD_OUT : HELD_OUT + test], task.test[1][HELD_OUT : HELD_OUT + test]

    def ours() -> Any:
        last = (
            {"select": lambda name: name.startswith("linear.")} if structure == "last layer" else {"method": lw.KFAC()}
        )
        return lw.fit(model, train, lw.Categorical(), prior=lw.Isotropic(), validation=held, progress=False, **last)

    our_seconds, posterior = harness.timed(ours)
    our_predict, prediction = harness.timed(lambda: posterior.predict(new[0]).probs)
    their_seconds, la = harness.timed(lambda: theirs(model, train, held, structure))
    their_predict, their_probs = harness.timed(lambda: in_batches(la, new[0]))
    return {
        "our_fit_seconds": our_seconds, "their_fit_seconds": their_seconds, "fit_ratio": their_seconds / our_seconds,
        "our_predict_seconds": our_predict, "their_predict_seconds": their_predict,
        "predict_ratio": their_predict / our_predict,
        "our_nll": metrics.nll(prediction.double(), new[1]), "their_nll": metrics.nll(their_probs.double(), new[1]),
        "our_ece": metrics.ece(prediction.double(), new[1]), "their_ece": metrics.ece(their_probs.double(), new[1]),
        "our_precision": float(posterior.prior.precision[0]), "their_precision": float(la.prior_precision.mean()),
    }  # fmt: skip


def theirs(model: torch.nn.Module, train: tuple, held: tuple, structure: str) -> Any:
    from laplace import Laplace

    weights, kind = ("last_layer", "full") if structure == "last layer" else ("all", "kron")
    la = Laplace(model, "classification", subset_of_weights=weights, hessian_structure=kind)
    la.fit(DataLoader(TensorDataset(*train), batch_size=100))
    la.optimize_prior_precision(
        method="gridsearch", pred_type="glm", link_approx="probit",
        val_loader=DataLoader(TensorDataset(*held), batch_size=50), grid_size=9 if structure == "kfac" else 21,
        log_prior_prec_min=-1, log_prior_prec_max=5,
    )  # fmt: skip
    return la


def in_batches(la: Any, x: Tensor) -> Tensor:
    return torch.cat([la(batch, pred_type="glm", link_approx="probit").detach() for batch in x.split(50)])


if __name__ == "__main__":
    peer_environment.enter()
    harness.main(__file__, CELLS, measure)

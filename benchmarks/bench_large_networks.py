"""How far up does it go: ResNets with all their weights, a large part of it in full covariance, and cost against size?

"cost": one product JᵀJV of 4 columns, in forward passes of the same pictures, for ResNet-18s of several widths. "all": the posterior over
all weights from a few CIFAR-10 pictures, within a given memory, its g-prior tuned on held-out pictures. "part": a subnetwork of the weights
that move the outputs most, with the covariance of all of them in closed form. The convolutions are random and the head is
fitted to a few hundred pictures: this is about time, memory and whether tuning works, not about accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import harness
import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks import data
from benchmarks.networks import resnet18, resnet50
from lapwing import metrics
from lapwing.network.batches import as_batches
from lapwing.network.jacobian import Jacobian, Network, prepared

COLUMNS, CLASSES = 4, 10
MULTIPLES = (0.01, 0.1, 1.0, 10.0)  # of the precision found, at which the evidence is told


def measure(kind: str, width: int, n: int, **given: Any) -> dict:
    return {"cost": products, "all": all_weights, "part": part_of_them}[kind](width, n, **given)


def products(width: int, n: int) -> dict:
    """A product with the Gauss–Newton matrix in units of a forward pass; the nominal figure is 4k + 1."""
    model, x = resnet18(width=width).eval(), torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batches = as_batches((x, torch.zeros(n, CLASSES)))
    jacobian = prepared(Jacobian(Network.of(model), batches.inputs, CLASSES))
    block = torch.randn(jacobian.shape[1], COLUMNS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model(x)  # warm
        forward = min(spent(lambda: model(x)) for _ in range(3))
    product = min(spent(lambda: jacobian.normal(block)) for _ in range(2))
    image, back = jacobian.normal(block)
    adjoint = float((image * jacobian.matmat(block)).sum() - (back * block).sum()) / float(image.square().sum())
    return {
        "weights": jacobian.shape[1], "forward_seconds": forward, "product_seconds": product,
        "forward_passes": product / forward, "forward_passes_a_column": product / forward / COLUMNS,
        "adjoint_difference": abs(adjoint),
    }  # fmt: skip


def spent(function: Any) -> float:
    """Processor seconds of one call."""
    started = time.process_time()
    function()
    return time.process_time() - started


def classifier(width: int, pictures: int, make: Callable[..., nn.Module] = resnet18) -> tuple[nn.Module, Any]:
    """A ResNet whose head was fitted to features of random convolutions."""
    task, model = data.cifar10(), make(width=width)
    x, y = task.train[0][-pictures:], task.train[1][-pictures:]
    with torch.no_grad():
        for _ in range(3):  # statistics of the normalisations
            model(x[:100])
        model.eval()
        kept: list[Tensor] = []
        hook = model.linear.register_forward_pre_hook(lambda _module, inputs: kept.append(inputs[0].double()))
        for batch in x.split(100):
            model(batch)
        hook.remove()
        features = torch.cat(kept)
    head = nn.Linear(features.shape[1], CLASSES).double()
    scale = features.std(0).clamp_min(1e-6)
    nn.init.zeros_(head.weight)  # convex, but without a line search one start in forty ran away
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(head(features / scale), y) + 1e-3 * head.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    with torch.no_grad():
        model.linear.weight.copy_(head.weight / scale)
        model.linear.bias.copy_(head.bias)
    return model.eval(), task


def all_weights(width: int, n: int, draws: int, held_out: int, memory: str, pictures: int, layers: int = 18) -> dict:
    model, task = classifier(width, pictures, {18: resnet18, 50: resnet50}[layers])
    x, y = task.train[0][:n], task.train[1][:n]
    held = task.test[0][:held_out], task.test[1][:held_out]
    started = time.perf_counter()
    posterior = lw.fit(
        model, (x, y), lw.Categorical(), prior=lw.GPrior(), validation=held, draws=draws, dataset_size=pictures, max_memory=memory,
        progress=False,
    )  # fmt: skip
    fit_seconds = time.perf_counter() - started
    found = told(model, task, posterior, held_out, fit_seconds)
    curve, best, started = posterior.curve, float(posterior.prior.precision[0]), time.perf_counter()
    assert curve.held_out is not None
    evidence = {f"{best * often:.4g}": posterior.at(precision=best * often).log_evidence.value for often in MULTIPLES}
    return {
        **found, "log_evidence": evidence, "evidence_seconds": time.perf_counter() - started,
        "held_out_curve": {
            f"{at:.4g}": value for at, value in zip(curve.precision.tolist(), curve.held_out.tolist(), strict=True)
        },
    }  # fmt: skip


def part_of_them(width: int, n: int, size: int, held_out: int, pictures: int) -> dict:
    model, task = classifier(width, pictures)
    x, y = task.train[0][:n], task.train[1][:n]
    held = task.test[0][:held_out], task.test[1][:held_out]
    started = time.perf_counter()
    mask = lw.subnetwork(model, (x, y), lw.Categorical(), size, score="predictive")
    chosen_seconds, started = time.perf_counter() - started, time.perf_counter()
    posterior = lw.fit(
        model, (x, y), lw.Categorical(), prior=lw.GPrior(), select=mask, method=lw.Exact(), validation=held,
        dataset_size=pictures, progress=False,
    )  # fmt: skip
    fit_seconds = time.perf_counter() - started
    return {"choice_seconds": chosen_seconds, **told(model, task, posterior, held_out, fit_seconds)}


def told(model: nn.Module, task: Any, posterior: lw.Posterior, held_out: int, fit_seconds: float) -> dict:
    """Costs, and scores on as many other pictures as were held out."""
    x, y = (part[held_out : 2 * held_out] for part in task.test)
    started = time.perf_counter()
    found = posterior.predict(x)
    seconds = (time.perf_counter() - started) / len(x)
    with torch.no_grad():
        plain = model(x).double().softmax(1)
        forward = min(harness.timed(lambda: model(x))[0] for _ in range(2)) / len(x)
    d = posterior.diagnostics
    gap = metrics.paired(metrics.nll_each(found.probs.double(), y), metrics.nll_each(plain, y))
    return {
        "weights": posterior.map.weights, "method": d.method, "why": d.why, "data_passes": d.data_passes,
        "converged": d.converged, "prior_precision": float(posterior.prior.precision[0]),
        "effective_dimension": posterior.effective_dimension.value, "held_out": d.held_out,
        "fit_seconds": fit_seconds, "predict_seconds_a_picture": seconds, "forward_seconds_a_picture": forward,
        "nll": metrics.nll(found.probs.double(), y), "nll_of_the_network": metrics.nll(plain, y),
        "nll_over_the_network": gap.mean, "standard_error": gap.standard_error,
        "free_bytes": d.memory["free"], "exact_bytes": d.memory["exact"],
    }  # fmt: skip


WIDTHS = {2: "1e4", 6: "1e5", 19: "1e6", 60: "1e7"}
CELLS: dict[str, dict[str, Any]] = {
    "cost, d = 1e4, n = 4": {"kind": "cost", "width": 2, "n": 4},
    **{f"cost, d = {d}, n = 16": {"kind": "cost", "width": width, "n": 16} for width, d in WIDTHS.items()},
    **{f"cost, d = 1e6, n = {n}": {"kind": "cost", "width": 19, "n": n} for n in (4, 64)},
    "all weights, width 8": {
        "kind": "all", "width": 8, "n": 16, "draws": 2, "held_out": 12, "memory": "300MB", "pictures": 100,
    },
    "all weights": {
        "kind": "all", "width": 64, "n": 16, "draws": 2, "held_out": 16, "memory": "9GB", "pictures": 500,
    },
    "42,000 weights": {"kind": "part", "width": 64, "n": 32, "size": 42_000, "held_out": 24, "pictures": 500},
    "ResNet-50, all weights, width 8": {
        "kind": "all", "width": 8, "n": 16, "draws": 2, "held_out": 12, "memory": "600MB", "pictures": 100, "layers": 50,
    },
}  # fmt: skip

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

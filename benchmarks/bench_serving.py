"""How fast are exported predictions, and are they those of `predict`?

Digits (scikit-learn's 1,797), 64-50-10 with ReLU, trained on 1,200. The posterior is of the last layer; predictions by
the probit link, in closed form. It is exported to ONNX and with torch.export, and timed on batches of 1 and of 500 beside `predict`, beside the
same module called eagerly, and beside the network alone in onnxruntime: medians of repeated calls after three for warming up. One thread each.

`difference` is the largest from `predict` in any probability. Sizes are of files, in bytes; the network's own ONNX file is `network_bytes`.
`compiled` is torch.compile of the same module. Needs lapwing[onnx].
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import peer_environment
import torch
from torch import Tensor, nn

SEEN, BATCHES = 1200, (1, 500)
CELLS: dict[str, dict[str, Any]] = {"last layer": {"weights": "last layer"}}


def data() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order].float() / 16, y[order]


def session(path: Path | str) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    found = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    output = found.get_outputs()[0].name
    return lambda x: torch.from_numpy(found.run([output], {found.get_inputs()[0].name: x.numpy()})[0])


def network_alone(network: nn.Module, x: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    torch.onnx.export(
        network, (x,), path, dynamo=True, dynamic_shapes=({0: "rows"},), external_data=False, verbose=False
    )
    return session(path)


def milliseconds(call: Callable[[Tensor], Any], x: Tensor) -> float:
    repeats = 200 if len(x) < 10 else 20
    for _ in range(3):
        call(x)
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        call(x)
        found.append(time.perf_counter() - started)
    return 1000 * statistics.median(found)


def measure(weights: str) -> dict[str, Any]:
    import warnings

    import lapwing as lw
    from lapwing.training import adam, train

    warnings.simplefilter("ignore")  # torch's own, of its exporter
    torch.set_num_threads(1)
    x, y = data()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    network = train(network, (x[:SEEN], y[:SEEN]), lw.Categorical(), optimiser=adam(1e-2), epochs=30, progress=False)
    select = lw.last_layer(network) if weights == "last layer" else None
    posterior = lw.fit(network, (x[:SEEN], y[:SEEN]), lw.Categorical(), select=select, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        return compared(posterior, network, x[SEEN:], Path(folder))


def compared(posterior: Any, network: nn.Module, x: Tensor, folder: Path) -> dict[str, Any]:
    onnx, pt2 = (posterior.export(folder / f"posterior.{kind}", x, link="probit") for kind in ("onnx", "pt2"))
    module = posterior.as_module(x, link="probit")
    exported = torch.export.load(pt2).module()
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "predict": lambda x: posterior.predict(x, link="probit").probs,
        "onnxruntime": session(onnx),
        "torch.export": lambda x: exported(x)["probs"],
        "eager module": lambda x: module(x)["probs"],
        "compiled": lambda x: compiled(x)["probs"],
        "network alone, onnxruntime": network_alone(network, x, folder / "network.onnx"),
    }
    wanted = calls["predict"](x)
    with torch.no_grad():
        return {
            "onnx_bytes": Path(onnx).stat().st_size,
            "pt2_bytes": Path(pt2).stat().st_size,
            "network_bytes": (folder / "network.onnx").stat().st_size,
            "difference": {name: float((call(x) - wanted).abs().max()) for name, call in list(calls.items())[1:-1]},
            "milliseconds": {
                name: {str(count): milliseconds(call, x[:count]) for count in BATCHES} for name, call in calls.items()
            },
        }


if __name__ == "__main__":
    peer_environment.enter("onnxruntime")
    harness.main(__file__, CELLS, measure)

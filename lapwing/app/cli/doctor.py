"""Is everything there, and does it compute the right thing?"""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version


def examine() -> dict[str, str]:
    """Versions, torch's build, threads, memory, and a self-test against a closed form."""
    import torch

    from lapwing.runtime.memory import available_bytes

    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in ("lapwing", "torch", "numpy", "scipy", "scikit-learn", "safetensors", "typer", "rich"):
        found[package] = _version(package)
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none that torch can use"
    found |= {
        "torch build": f"{torch.version.cuda or 'CPU'}, {'MKL' if torch.backends.mkl.is_available() else 'no MKL'}",
        "accelerator": gpu,
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "memory": f"{available_bytes() / 2**30:.1f} GiB available",
        "self-test": _self_test(),
    }
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _self_test() -> str:
    """The variances of a small network's posterior beside those of a dense inverse."""
    import torch

    import lapwing as lw

    started, generator = time.perf_counter(), torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        model = torch.nn.Linear(3, 2).double().eval()
    y = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    posterior = lw.fit(model, (x, y), lw.Gaussian(0.5), prior=lw.Isotropic(2.0), progress=False)
    design = torch.cat([x, torch.ones(60, 1, dtype=torch.float64)], dim=1)
    covariance = torch.linalg.inv(design.mT @ design / 0.25 + 2.0 * torch.eye(4, dtype=torch.float64))
    truth = ((design @ covariance) * design).sum(1)[:, None].expand(-1, 2)
    error = float((posterior.predict(x).epistemic_variance / truth - 1).abs().max())
    seconds = time.perf_counter() - started
    verdict = "passed" if error < 1e-6 else "FAILED"
    return f"{verdict}: variances agree with a dense inverse to {error:.0e}, {seconds:.1f} s"

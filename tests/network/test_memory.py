"""A fit keeps to the memory that it was given, or says beforehand that it cannot."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lapwing as lw
from lapwing.runtime.memory import as_bytes, available_bytes, within
from tests.network.networks import normal

MEASURED = """
import gc, torch, lapwing as lw
from pathlib import Path
torch.set_num_threads(1)

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def fit(n, width, **given):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, width), torch.nn.Tanh(), torch.nn.Linear(width, 4)).eval()
    return lw.fit(model, (torch.randn(n, 30), torch.randn(n, 4)), lw.Gaussian(1.0), prior=lw.Isotropic(100.0), draws=4, progress=False, **given)

fit(20, 8); fit(20, 8, method=lw.Krylov())  # what the first calls ever allocate
gc.collect()
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
posterior = fit(200, 300, max_memory={memory!r})
print(posterior.diagnostics.method.split(",")[0].split()[0].lower(), resident("VmHWM") - before)
"""


def measured(memory: str | None) -> tuple[str, int]:
    found = subprocess.run(
        [sys.executable, "-c", MEASURED.replace("{memory!r}", repr(memory))], capture_output=True, text=True,
        check=True, cwd=Path(__file__).parent.parent.parent,
    ).stdout.split()  # fmt: skip
    return found[0], int(found[1])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are measured on Linux")
@pytest.mark.slow
def test_a_fit_keeps_to_its_memory():
    """10,504 weights, 800 observed outputs: the Jacobian in double precision takes 67 MB."""
    exact, most = measured(None)
    space, least = measured("40MB")
    assert (exact, space) == ("exact", "shared")
    assert least <= 40e6 < 67e6 <= most


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(4, 90), torch.nn.Tanh(), torch.nn.Linear(90, 3)).double().eval()


def fit(**given):
    return lw.fit(network(), (normal(50, 4, seed=1), normal(50, 3, seed=2)), lw.Gaussian(0.5), draws=2, **given)


def test_the_choice_follows_the_memory_and_says_so():
    assert fit().diagnostics.method.startswith("exact")
    little = fit(max_memory="3MB")
    assert not little.diagnostics.method.startswith("exact")
    assert "an exact posterior would take" in little.diagnostics.why
    assert little.diagnostics.memory["free"] == 3_000_000
    assert available_bytes() > 1e7  # as before


@pytest.mark.parametrize("method", [None, lw.Krylov(), lw.CG(), lw.Exact()], ids=str)
def test_what_cannot_fit_is_refused_before_any_work(method):
    with pytest.raises(MemoryError, match=r"needs .* and 20 kB are available"):
        fit(max_memory="20kB", method=method)


@pytest.mark.parametrize("method", [lw.Krylov(rtol=1e-6), lw.Exact()], ids=str)
def test_a_projection_keeps_to_its_memory(method, monkeypatch):
    """Directions of a Krylov space, or rows, a few at a time: 723 weights, three of them in double for 3 × 52 kB."""
    posterior = fit(method=method, prior=lw.Isotropic(1.0))
    known, features = posterior.gaussian.whitened, posterior.map.features_at(normal(20, 4, seed=5))
    expected = features.dense() @ (
        known.std[:, None] * known.statistics.basis.expand(torch.eye(len(known.values)).double())
    )
    seen, product = [], type(features).matmat
    monkeypatch.setattr(type(features), "matmat", lambda self, x: seen.append(x.shape[1]) or product(self, x))
    with within(3 * 3 * 24 * 723):
        found = known.project(features)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    assert all(columns <= 3 for columns in seen)
    assert bool(seen) == isinstance(method, lw.Krylov)


def test_memory_in_words():
    assert as_bytes("2 GiB") == 2 * 2**30
    for wrong in ("lots", "8 gb", "-1GB", "0MB", "", -5.0, float("nan"), "8"):
        with pytest.raises(ValueError, match="expected a number of bytes"):
            as_bytes(wrong)
    with within("1kB"), within(None):
        assert available_bytes() == 1000
    with within(1e30):
        assert available_bytes() < 1e15

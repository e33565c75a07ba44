"""The page for users of laplace-torch: their code runs with their release, and every difference that it states is there."""

import json
import os
import subprocess

import pytest
import torch
from torch import nn

import lapwing as lw
from tests.peers.migration import PAGE, blocks
from tests.peers.test_laplace_torch import PYTHON, ROOT

NEEDS_PEERS = [
    pytest.mark.peers,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment in benchmarks/peers, none in LAPWING_PEERS_PYTHON"),
]
pytestmark = NEEDS_PEERS


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("peers") / "found.json"
    command = [str(PYTHON), "-m", "tests.peers.migration", str(path)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(path.read_text())


def test_their_blocks_run_with_their_release(theirs):
    assert theirs["page"] == {"shape of probabilities": [5, 3], "blocks": len(blocks("theirs"))}


DIFFERENCES = {
    "your model after fitting": lambda d: d["training mode after fit"] is False,
    "`log_marginal_likelihood(prior_precision=…)`": lambda d: d["prior after asking for evidence at 7"] == 7,
    "noise of a regression": lambda d: d["noise after tuning"] == 1,
    "variance of a regression's prediction": lambda d: d["largest variance at noise 10"] < 100,
    "shape of that variance": lambda d: d["shapes"] == [[5, 2, 2], [5, 2]],
    "held-out tuning of a regression": lambda d: (
        d["regression metric"] is True and d["regression mean moves with the precision"] is False
    ),
    "a grid search with the default score": lambda d: (
        d["grid search"] == pytest.approx(d["best of running means"]) != pytest.approx(d["best afresh"], rel=0.3)
    ),
    '`generator=` in `la(x, link_approx="mc")`': lambda d: d["generator repeats"] is False,
    "function samples at several inputs": lambda d: abs(d["z of the covariance between inputs"]) > 8,
    "`drop_last=True` in the loader": lambda d: d["data counted of 35 seen"] == 40,
    "targets of shape (n,) for one output": lambda d: d["targets (n,) refused"] is True,
    "saved last-layer state": lambda d: d["last layer keeps data"] is True,
    "loading into another network": lambda d: d["another network refused"] is False,
    "more data": lambda d: d["last layer override refused"] is True,
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_theirs_does_what_the_page_says(theirs, difference):
    assert DIFFERENCES[difference](theirs["differences"]), theirs["differences"]


def test_every_row_of_the_page_is_tested():
    table = PAGE.read_text().split("| | laplace-torch 0.3 | lapwing |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()] == list(DIFFERENCES)


def test_what_is_as_good_there(theirs):
    """With 50 × 50 entries of a covariance the largest of 1,275 z-scores is below 5 but once in a thousand times."""
    found = theirs["differences"]
    assert found["weights_only"]
    assert all(found[f"z of {structure} samples"] < 5 for structure in ("full", "kron", "diag"))


def test_ours_does_what_the_page_says(tmp_path):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0].sin(), x[:, 1]], 1) + 0.3 * torch.randn(60, 2, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        other = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double().eval()
        one = nn.Linear(3, 1).double().eval()
    with pytest.raises(ValueError, match="eval"):
        lw.fit(model.train(), (x[:40], y[:40]), lw.Gaussian())
    model.eval()
    posterior = lw.fit(model, (x[:40], y[:40]), lw.Gaussian(), prior=lw.Isotropic(1.0))
    posterior.at(precision=7.0)
    assert float(posterior.prior.precision) == 1
    assert float(posterior.likelihood.noise_std) != 1
    # a noise that was given: one that evidence finds for a network without training is widened to what it leaves of its data
    prediction = lw.fit(model, (x[:40], y[:40]), lw.Gaussian(0.3), prior=lw.Isotropic(1.0)).predict(x[:5])
    torch.testing.assert_close(prediction.variance, prediction.epistemic_variance + 0.3**2)
    assert prediction.variance.shape == (5, 2)
    assert 1e-3 < float(posterior.tune((x[40:], y[40:])).prior.precision) < 1e3
    assert torch.equal(posterior.predict(x[:5]).samples, posterior.predict(x[:5]).samples)
    with torch.random.fork_rng():
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x[:40], y[:40]), batch_size=7, drop_last=True
        )
        with pytest.warns(UserWarning, match="leaves 5 of 40 data out at every pass; lapwing reads all"):
            seen = lw.fit(model, loader, lw.Gaussian(), prior=lw.Isotropic(1.0))
    assert seen.diagnostics.observations == 80
    assert lw.fit(one, (x, y[:, 0]), lw.Gaussian()).predict(x).mean.shape == (60, 1)
    with pytest.raises(ValueError, match="another network"):
        lw.load(posterior.save(tmp_path / "p"), other)
    last = lw.fit(model, (x[:20], y[:20]), lw.Gaussian(0.3), prior=lw.Isotropic(1.0), select=lw.last_layer(model))
    whole = lw.fit(model, (x, y), lw.Gaussian(0.3), prior=lw.Isotropic(1.0), select=lw.last_layer(model))
    torch.testing.assert_close(last.update((x[20:], y[20:])).draws, whole.draws, rtol=1e-7, atol=1e-9)

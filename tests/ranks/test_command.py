"""`lapwing fit` started by torchrun: one result, from the first rank, and an end for all where one is lost."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lapwing.app.cli.commands import app
from lapwing.app.cli.jobs import Job
from tests.ranks.test_ranks import LAUNCH, environment

MODEL = """
import os, torch

class Breaking(torch.nn.Linear):
    def forward(self, x):
        if len(x) == 12 and os.environ.get("RANK") == "1":  # its share of 23
            os._exit(5)
        return super().forward(x)

def make(layer=torch.nn.Linear):
    torch.manual_seed(3)
    return torch.nn.Sequential(layer(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)).double()

def breaks():
    return make(Breaking)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("ranks")
    (where / "model.py").write_text(MODEL)
    random = np.random.default_rng(0)
    np.savez(where / "train.npz", x=random.normal(size=(23, 4)), y=random.normal(size=(23, 3)))
    np.savez(where / "test.npz", x=random.normal(size=(6, 4)), y=random.normal(size=(6, 3)))
    return where


def launched(folder: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", *LAUNCH, "--nproc-per-node=2", "-m", "lapwing.app.cli", *words]
    given = environment(XDG_CONFIG_HOME=str(folder / "config"))
    return subprocess.run(command, env=given, cwd=folder, timeout=120, capture_output=True, text=True, check=False)


def test_two_ranks_give_one_result_which_is_that_of_one_process(folder, monkeypatch):
    words = ("fit", "model.py:make", "train.npz", "--test", "test.npz", "--draws", "5", "--json", "--out")
    finished = launched(folder, *words, "two")
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)  # one object: the second rank printed nothing
    assert {"what": "processes", "value": "2", "why": "each with a share of the data, by torchrun"} in found["choices"]
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    assert CliRunner().invoke(app, [*words, "one"]).exit_code == 0
    several, one = (np.genfromtxt(folder / name / "predictions.csv", delimiter=",")[1:] for name in ("two", "one"))
    assert several.shape == one.shape
    assert several.shape[0] == 6
    np.testing.assert_allclose(several, one, rtol=1e-9, atol=1e-9)  # sums in another order
    there = [sorted(path.name.partition("-")[0] for path in (folder / name).iterdir()) for name in ("two", "one")]
    assert there[0] == there[1]  # without the marks of their contents


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_command_with_a_message(folder):
    finished = launched(folder, "fit", "model.py:breaks", "train.npz", "--noise-std", "0.1", "--out", "lost")
    assert finished.returncode != 0
    assert finished.stdout == ""
    said = [line for line in finished.stderr.splitlines() if line.startswith("lapwing: ")]
    assert len(said) == 1, finished.stderr
    assert said[0].startswith("lapwing: rank 0 of 2: ")
    assert "lost another rank" in said[0] or "another rank has ended" in said[0]
    assert not (folder / "lost" / "posterior.safetensors").exists()


def test_a_rank_that_is_told_to_end_says_why(capsys):
    with pytest.raises(SystemExit) as stopped, Job(0, 2).ending_together():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err.startswith("lapwing: rank 0 of 2: stopped, because another rank has ended")


def test_only_fit_is_shared_out(folder, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    finished = CliRunner().invoke(app, ["doctor"])
    assert finished.exit_code == 1
    assert "rank 1 of 2: `lapwing doctor` is no work for several processes" in finished.stderr
    assert Job.here() == Job(1, 2, 1)
    assert torch.device(Job.here().device("cuda")).index == 1

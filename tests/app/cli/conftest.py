"""A stranger's folder: a module file, its weights, tables."""

import csv

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

MODEL = """
from torch import nn

def regression():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

def classifier():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))

def binary():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))

def pictures():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 2))

def wrong():
    return 3

def breaks():
    raise RuntimeError("no such luck")

number = 7
"""
NAMES = ("a", "b", "c")


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def trained(build, x, y, loss, steps=150):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
        optimiser = torch.optim.Adam(model.parameters(), 0.03, weight_decay=0.01)
        for _ in range(steps):
            optimiser.zero_grad()
            loss(model(x), y).backward()
            optimiser.step()
    return model


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """The files; commands are run from here."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "model.py").write_text(MODEL)
    rng, scope = np.random.default_rng(0), {}
    exec(MODEL, scope)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.2 * rng.normal(size=300)
    label = (x[:, 0] + 0.4 * rng.normal(size=300) > 0).astype(int) + 2 * (x[:, 1] + 0.4 * rng.normal(size=300) > 0)
    parts = {"train": slice(0, 150), "validation": slice(150, 220), "test": slice(220, 300)}
    words = np.array(["ant", "bee", "cat", "dog"])
    for name, rows in parts.items():
        write(folder / f"{name}.csv", [*NAMES, "height"], np.column_stack([x, y])[rows])
        write(
            folder / f"{name}_words.csv",
            ["kind", *NAMES],
            [[words[k], *r] for k, r in zip(label[rows], x[rows], strict=True)],
        )
        np.savez(folder / f"{name}.npz", x=x[rows], y=label[rows])
        np.savez(folder / f"{name}_binary.npz", x=x[rows], y=label[rows] % 2)
    write(folder / "new.csv", ["c", "extra", "b", "a"], [[r[2], "text", r[1], r[0]] for r in x[:7]])
    write(folder / "far.csv", NAMES, 6 + x[:40])
    train, t = parts["train"], torch.from_numpy
    regression = trained(scope["regression"], t(x[train]), t(y[train]).float()[:, None], torch.nn.functional.mse_loss)
    classifier = trained(scope["classifier"], t(x[train]), t(label[train]), torch.nn.functional.cross_entropy)
    binary = trained(
        scope["binary"],
        t(x[train]),
        t(label[train] % 2).float()[:, None],
        torch.nn.functional.binary_cross_entropy_with_logits,
    )
    torch.save(regression.state_dict(), folder / "regression.pt")
    torch.save({"state_dict": classifier.state_dict()}, folder / "classifier.pt")
    torch.save(binary.state_dict(), folder / "binary.pt")
    return folder


@pytest.fixture
def lapwing(stranger, monkeypatch):
    """Run a command in the stranger's folder: its exit code, what it printed, what it complained."""
    from lapwing.app.cli.commands import app

    monkeypatch.chdir(stranger)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(stranger / "config"))

    def run(*arguments):
        result = CliRunner().invoke(app, [str(part) for part in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run

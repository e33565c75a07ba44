import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lapwing.app.cli.commands import app

QUICK = ["--steps", "12", "--width", "12", "--size", "60", "--quiet"]


def run(*words: str):
    return CliRunner().invoke(app, ["symmetry", *words])


def test_symmetry_writes_a_page_that_holds_everything(tmp_path):
    finished = run("--data", "digits", "--rotate", "45", "--out", str(tmp_path), "--ablations", *QUICK)
    assert finished.exit_code == 0, finished.output
    page = (tmp_path / "report.html").read_text()
    assert "Prototypes" in page
    assert "Inferred against applied angle" in page
    assert "Without each conjecture" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["applied_half_range"] == 45
    assert scores["published_half_width"] == 52.9
    assert (tmp_path / "model.safetensors").exists()
    again = run("--data", "digits", "--rotate", "45", "--out", str(tmp_path), "--json", *QUICK)
    assert json.loads(again.output)["orbit_ratio"] == scores["orbit_ratio"]  # from the checkpoint


def test_symmetry_reads_folders_of_pictures(tmp_path):
    generator = np.random.default_rng(0)
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        for number in range(15):
            pixels = np.zeros((9, 9), np.uint8)
            pixels[2:7, 3:6] = generator.integers(50, 255, (5, 3))
            Image.fromarray(pixels).save(tmp_path / kind / f"{number}.png")
    finished = run("--data", str(tmp_path), "--out", str(tmp_path / "out"), *QUICK)
    assert finished.exit_code == 0, finished.output


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--data", "nothing"], "no such file"), (["--data", "digits", "--rotate", "200"], "degrees from 0 to 180")],
)
def test_symmetry_says_what_is_wrong(words, said, tmp_path):
    finished = run(*words, "--out", str(tmp_path))
    assert finished.exit_code == 1
    assert said in finished.stderr

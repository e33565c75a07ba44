"""The smallest cell of every benchmark runs and keeps its claims; committed results and their page belong together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("bench_*.py"))
PEERS = FOLDER / "peers" / ".venv" / "bin" / "python"
# scripts whose smallest cell takes long, and the shorter tests that hold what it shows
LONG = {
    "bench_averaged": "tests/bayes/fits/test_averaged.py",
    "bench_bandit": "tests/benchmarks/test_regressors.py",
    "bench_acquire": "tests/decisions/test_acquisition.py",
    "bench_batch_size": "tests/linalg/test_stochastic.py",
    "bench_botorch": "tests/integrations/test_botorch.py",
    "bench_cold_posterior": "tests/benchmarks/test_temperature.py",
    "bench_corrupted_cifar": "tests/benchmarks/test_studies.py",
    "bench_ct_angles": "tests/studies/tomography/test_angles.py",
    "bench_ct_digits": "tests/studies/tomography/test_study.py",
    "bench_ct_slice": "tests/studies/tomography/test_study.py",
    "bench_evidence_kfac": "tests/network/test_structured_fit.py",
    "bench_evidence_table": "tests/benchmarks/test_evidence_table.py",
    "bench_evidence_training": "tests/families/test_evidence_training.py",
    "bench_fashion_table": "tests/benchmarks/test_networks.py",
    "bench_few_digits": "tests/network/test_best_gaussian_held_out.py",
    "bench_fit_memory": "tests/network/test_memory.py",
    "bench_glm": "tests/linear/test_glm.py",
    "bench_gradient_variance": "tests/linalg/test_stochastic.py",
    "bench_influence": "tests/bayes/posterior/test_leave_one_out.py",
    "bench_kills": "tests/runtime/test_journal.py",
    "bench_label_errors": "tests/bayes/posterior/test_leave_one_out.py",
    "bench_label_issues": "tests/decisions/test_labels.py",
    "bench_large_networks": "tests/network/test_pixels.py",
    "bench_lenet_fit": "tests/bayes/methods/test_matrix_free.py",
    "bench_lenet_sgd": "tests/bayes/methods/test_em.py",
    "bench_last_layer": "tests/network/test_last_layer.py",
    "bench_links": "tests/bayes/test_likelihood_protocol.py",
    "bench_logistic": "tests/linear/test_logistic.py",
    "bench_members": "tests/test_members.py",
    "bench_natural_gradient": "tests/families/variational/test_methods.py",
    "bench_one_sample": "tests/bayes/methods/test_em.py",
    "bench_ood_scores": "tests/decisions/test_ood.py",
    "bench_part": "tests/network/test_rest.py",
    "bench_passes": "tests/bayes/methods/test_matrix_free.py",
    "bench_pixels": "tests/network/test_pixels.py",
    "bench_ranks": "tests/ranks/test_ranks.py",
    "bench_reviews": "tests/integrations/test_huggingface.py",
    "bench_rotated_mnist": "tests/benchmarks/test_corruptions.py",
    "bench_scaling": "tests/benchmarks/test_studies.py",
    "bench_serving": "tests/integrations/test_serving.py",
    "bench_sparse": "tests/linear/test_ridge.py",
    "bench_symmetry_conjectures": "tests/studies/symmetry/test_joint.py",
    "bench_symmetry_data": "tests/studies/symmetry/test_model.py",
    "bench_tabular_classes": "tests/tabular/test_classifier.py",
    "bench_tabular_seconds": "tests/tabular/test_regressor.py",
    "bench_toy": "tests/benchmarks/test_regressors.py",
    "bench_variance": "tests/network/test_laws.py",
    "bench_variational": "tests/families/variational/test_fit.py",
    "bench_variational_speed": "tests/families/variational/test_mean_field.py",
}


def marks(path: Path) -> list[pytest.MarkDecorator]:
    if "peer_environment" not in path.read_text():
        return []
    return [pytest.mark.peers, pytest.mark.skipif(not PEERS.exists(), reason="run `make peers` first")]


RUNNABLE = [pytest.param(path, id=path.stem, marks=marks(path)) for path in SCRIPTS]
RUN = [
    pytest.param(path, id=path.stem, marks=[*marks(path), *([pytest.mark.slow] if path.stem in LONG else [])])
    for path in SCRIPTS
]


@pytest.fixture(scope="module")
def cells():
    """The cells of every script, by its name: one process reads them all."""
    names = ", ".join(path.stem for path in SCRIPTS)
    code = f"import json, sys; sys.path.insert(0, {str(FOLDER)!r}); import {names}\n"
    code += f"print(json.dumps({{s.__name__: s.CELLS for s in ({names})}}))"
    finished = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(finished.stdout)


@pytest.mark.parametrize("script", RUN)
def test_the_smallest_cell_runs_and_agrees(script, cells):
    finished = processes.run(script, "--cell", next(iter(cells[script.stem])))
    missing = "LAPWING_DATA" in finished.stderr or "LAPWING_GLM_PEERS" in finished.stderr
    if finished.returncode and "FileNotFoundError" in finished.stderr and missing:
        pytest.skip(f"needs what is not here: {finished.stderr.splitlines()[-1]}")
    assert finished.returncode == 0, finished.stderr
    cell = json.loads(finished.stdout.splitlines()[-1])
    assert {"commit", "command", "versions", "seconds", "peak_memory_bytes", "arguments"} <= cell.keys()
    differences = {key: value for key, value in cell["result"].items() if key.endswith("_difference")}
    assert all(value <= 0.01 for value in differences.values()), differences


@pytest.mark.parametrize("script", RUNNABLE)
def test_committed_results_were_written_by_the_script_and_are_complete(script, cells):
    lines = (FOLDER / "results" / f"{script.stem.removeprefix('bench_')}.jsonl").read_text().splitlines()
    assert {cell["cell"]: cell["arguments"] for cell in map(json.loads, lines)} == cells[script.stem]


def test_what_a_long_script_shows_is_held_by_shorter_tests():
    scripts = {path.stem for path in SCRIPTS}
    assert LONG.keys() <= scripts
    assert all((FOLDER.parent / path).exists() for path in LONG.values())


def test_the_page_says_what_the_results_say():
    finished = subprocess.run(
        [sys.executable, FOLDER / "table.py", "--check"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    script = FOLDER / "bench_ridge_agreement.py"
    assert processes.run(script, "--smallest", "--out", str(tmp_path)).returncode == 0
    (path,) = tmp_path.glob("*.jsonl")
    whole = path.read_text()
    path.write_text(whole + '{"cell": "boston", "resu')  # killed while writing the next line
    again = processes.run(script, "--smallest", "--out", str(tmp_path))
    assert again.returncode == 0
    assert "done before, kept" in again.stderr
    assert json.loads(path.read_text().splitlines()[0]) == json.loads(whole)

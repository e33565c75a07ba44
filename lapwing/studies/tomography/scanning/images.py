"""Images to scan: a phantom, or a slice from a file, as attenuations between 0 and 1."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lapwing.runtime.arrays import check_picture, read_npy
from lapwing.runtime.memory import available_bytes
from lapwing.studies.tomography.scanning.projector import square_image

PHANTOM = "shepp-logan"
WATER, AIR = 0.0, -1000.0  # Hounsfield units
DEFLATED = "1.2.840.10008.1.2.1.99"
KINDS = (".dcm", ".npy", ".png")


def read(source: str | Path, size: int | None = None) -> Tensor:  # (size, size)
    """The image of "shepp-logan", or of a .dcm, .npy or .png file, scaled to [0, 1], at `size` pixels where given.

    A .dcm file is in Hounsfield units after its rescaling; an .npy array counts as such where it has values below −100,
    and must not be negative otherwise. Hounsfield units become attenuations relative to water, air at zero.

    Parameters
    ----------
    source : str or path
        "shepp-logan", or a file.
    size : int, optional
        Pixels along a side; those of the image by default.

    Returns
    -------
    Tensor
        (size, size), in [0, 1].

    Raises
    ------
    ValueError
        If there is no such file, or it is not a square image.

    Examples
    --------
    >>> read("shepp-logan", size=32).shape
    torch.Size([32, 32])
    """
    path = Path(source)
    if str(source) == PHANTOM:
        values = _phantom()
    elif path.suffix.lower() not in KINDS:
        raise ValueError(f"cannot read {source}: expected {PHANTOM!r} or a file ending in {', '.join(KINDS)}")
    elif not path.is_file():
        raise ValueError(f"there is no file {path}")
    else:
        values = {".dcm": _dicom, ".npy": _array, ".png": _picture}[path.suffix.lower()](path)
    return resized(normalised(values), size)


def normalised(values: Any) -> Tensor:  # (size, size)
    """A square image scaled to [0, 1]; values below −100 mean Hounsfield units."""
    image = square_image(torch.as_tensor(np.array(values, dtype=np.float64)))
    if float(image.min()) < -100:
        image = ((image - AIR) / (WATER - AIR)).clamp_min(0)
    if float(image.min()) < 0:
        raise ValueError(
            f"the image has values down to {float(image.min()):g}: expected attenuations, none negative, or Hounsfield "
            "units, which reach −1000 in air"
        )
    if float(image.max()) == 0:
        raise ValueError("the image is zero everywhere: there is nothing to reconstruct")
    return image / image.max()


def resized(image: Tensor, size: int | None) -> Tensor:
    """The image at another number of pixels, by averaging and interpolation; never enlarged."""
    if size is None or size == len(image):
        return image
    if not 2 <= size <= len(image):
        raise ValueError(f"size is {size}, and the image has {len(image)} pixels: expected 2 to {len(image)}")
    return interpolate(image[None, None], (size, size), mode="bilinear", antialias=True)[0, 0]


def _phantom() -> np.ndarray:
    try:
        from skimage.data import shepp_logan_phantom
    except ModuleNotFoundError as error:
        raise ValueError(_needs("scikit-image", "the phantom")) from error
    return shepp_logan_phantom()


def _array(path: Path) -> np.ndarray:
    try:
        values = read_npy(path, limit=available_bytes() / 2)
    except ValueError as error:
        raise ValueError(f"{path} is no array that can be read: {error}") from error
    if values.dtype.kind not in "fiu":
        raise ValueError(f"{path} holds {values.dtype} values, expected numbers")
    return values


def _picture(path: Path) -> np.ndarray:
    try:
        from skimage.io import imread
    except ModuleNotFoundError as error:
        raise ValueError(_needs("scikit-image", "pictures")) from error
    try:
        check_picture(path, limit=available_bytes() / 4)
        values = np.asarray(imread(path), dtype=np.float64)
    except Exception as error:  # readers of pictures raise many kinds
        raise ValueError(f"{path} is no picture that can be read: {error}") from error
    return values if values.ndim == 2 else values[..., :3].mean(-1)


def _dicom(path: Path) -> np.ndarray:
    try:
        import pydicom
        from pydicom.pixels.processing import apply_rescale
    except ModuleNotFoundError as error:
        raise ValueError(_needs("pydicom", "DICOM files")) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pydicom on values that do not follow the standard
        found = _headed(path, pydicom)
        try:
            pixels = found.pixel_array
        except Exception as error:  # decoders raise many kinds
            encoding = getattr(found.file_meta.get("TransferSyntaxUID"), "name", "unknown")
            raise ValueError(
                f"the pixels of {path} are encoded as {encoding!r}, which cannot be read here: install a decoder "
                "(pip install pylibjpeg pylibjpeg-libjpeg), or save the slice as .npy in Hounsfield units"
            ) from error
        if pixels.ndim != 2:
            raise ValueError(f"{path} holds an array of shape {pixels.shape}, expected one grey slice")
        try:
            return apply_rescale(pixels, found)
        except Exception as error:
            raise ValueError(f"the rescaling that {path} asks for cannot be done: {error}") from error


def _headed(path: Path, pydicom: Any) -> Any:
    """A DICOM file whose pixels are there and take no more than half of the memory, none of them decoded yet."""
    try:
        _check_not_deflated(pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID"))
        found = pydicom.dcmread(path)
        there = "PixelData" in found
        counts = [int(found.get(name) or 1) for name in ("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames")]
        modality = str(found.get("Modality", "DICOM"))
    except Exception as error:  # whatever pydicom meets in a file that is none
        raise ValueError(f"{path} is not a DICOM file that can be read: {str(error)[:120]}") from error
    if not there:
        raise ValueError(f"{path} has no pixel data (it is a {modality} file without an image)")
    if 8.0 * math.prod(counts) > available_bytes() / 2 or min(counts) < 0:
        raise ValueError(f"{path} holds {' × '.join(map(str, counts))} values, more than there is room for")
    return found


def _check_not_deflated(syntax: str | None) -> None:
    if syntax == DEFLATED:
        raise ValueError("it is deflated, and could unpack to any size: save it uncompressed")


def _needs(package: str, what: str) -> str:
    return f"{what} need {package}: pip install 'lapwing[ct]'"

"""Images to explain: the bundled digits, an ``.npz`` file, or a folder of image files."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from faithcheck.models.data import DataError
from faithcheck.models.data.handwritten_digits import load_digits, read_arrays
from faithcheck.models.data.stored import OnDemand


@dataclass(frozen=True)
class Images:
    """Images in the order of their source."""

    name: str  # "digits", or the file or folder
    images: Sequence[Tensor]  # each float32 (channels, height, width) in [0, 1], with 1 channel or 3 (RGB)
    labels: list[int] | None  # from 0 up; None if the source has none
    fingerprint: str  # SHA-256 of images and labels: the identity of the data in caches and reports


class DecodedImages(OnDemand[Tensor]):
    """Images that are decoded each time they are asked for, so that memory holds one of them."""

    def __init__(self, size: int, decode: Callable[[int], Tensor]) -> None:
        self._length, self._decode = size, decode

    def _item(self, index: int) -> Tensor:
        return self._decode(index)


def load_images(source: str = "digits", limit: int | None = None) -> Images:
    """Load the first ``limit`` images (at least 1) of a source, or all of them without a limit.

    A source is "digits" (the dev images of `load_digits`); an ``.npz`` file with uint8 ``images`` (n, h, w) or
    (n, h, w, 3) and integer ``labels`` (n,); or a folder of image files, whose subfolders, if any, are the classes.
    Folders need the optional `datasets` library; one called digits is given as ``./digits``. A source that cannot be
    read raises `DataError`, as does an image of a folder that is gone when it is read again.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if source == "digits":
        return _from_digits(limit)
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_folder(path, limit)
    if path.suffix != ".npz" or not path.is_file():
        raise DataError(f"no images at {path}: give digits, an .npz file, or a folder of image files")
    return _from_npz(path, limit)


def _images(name: str, images: Sequence[Tensor], labels: list[int] | None) -> Images:
    hashed = hashlib.sha256()
    for i, image in enumerate(images):
        label = labels[i] if labels else None
        hashed.update(f"{tuple(image.shape)} {label} ".encode() + image.numpy().tobytes())
    return Images(name, images, labels, hashed.hexdigest())


def _from_digits(limit: int | None) -> Images:
    digits = load_digits()
    side = math.isqrt(digits.pixels)
    return _images(
        "digits", [*digits.dev_images[:limit].float().view(-1, 1, side, side)], digits.dev_labels[:limit].tolist()
    )


def _from_npz(file: Path, limit: int | None) -> Images:
    """The file's bytes are in memory, a byte for each value of a pixel."""
    images, labels = read_arrays(file)
    if images.dtype != numpy.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise DataError(f"{file}: images must be uint8 (n, h, w) or (n, h, w, 3), got {images.dtype} {images.shape}")
    few = images[:limit]
    return _images(str(file), DecodedImages(len(few), lambda i: _tensor(few[i])), labels[:limit].tolist())


def _from_folder(folder: Path, limit: int | None) -> Images:
    """The files stay on the disk."""
    try:
        import datasets
        import PIL  # noqa: F401 (datasets decodes with it)
    except ImportError as error:
        raise DataError(
            f'{folder}: a folder of images needs the datasets library: pip install "faithcheck[datasets]", or give an '
            ".npz file"
        ) from error
    try:
        table = datasets.load_dataset("imagefolder", data_dir=str(folder), split="all")
    except Exception as error:  # raised by datasets: its message is kept
        raise DataError(f"{folder}: cannot be read as a folder of images: {error}") from error
    rows = table.select(range(len(table) if limit is None else min(limit, len(table))))

    def decode(i: int) -> Tensor:
        try:
            return _tensor(numpy.asarray(rows[i]["image"].convert("RGB")))
        except Exception as error:  # raised by datasets or by a file format: its message is kept
            raise DataError(f"{folder}: image {i} cannot be read: {error}") from error

    labels = [*rows["label"]] if "label" in rows.column_names else None
    return _images(str(folder), DecodedImages(len(rows), decode), labels)


def _tensor(image: numpy.ndarray) -> Tensor:
    """``(h, w)`` or ``(h, w, 3)`` uint8 to ``(channels, h, w)`` in [0, 1]."""
    pixels = torch.from_numpy(image.copy()).float() / 255
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()

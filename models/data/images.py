"""Images to explain: the bundled digits, an ``.npz`` file, or a folder of image files."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from faithcheck.models.data.errors import DataError
from faithcheck.models.data.handwritten_digits import load_digits, read_arrays

Row = tuple[Tensor, int | None]


@dataclass(frozen=True)
class Images:
    """Images in the order of their source.

    Attributes:
        name: the source: "digits", or the file or folder.
        images: one tensor per example, float32 ``(channels, height, width)`` in [0, 1]; 1 channel or 3 (RGB).
        labels: the class of each image, from 0 up; None if the source has no labels.
        fingerprint: SHA-256 of images and labels, the identity of the data in caches and reports.
    """

    name: str
    images: list[Tensor]
    labels: list[int] | None
    fingerprint: str


def load_images(source: str = "digits", limit: int | None = None) -> Images:
    """Load the first ``limit`` images of a source, or all of them without a limit.

    Args:
        source: "digits" (the dev images of `load_digits`); or a path: a file ``.npz`` with uint8 ``images``
            (n, h, w) or (n, h, w, 3) and integer ``labels`` (n,); or a folder of image files, read through the optional
            `datasets` library, its subfolders, if it has any, are the classes. A folder called digits is
            given as ``./digits``.
        limit: at least 1.

    Raises:
        ValueError: the limit is below 1.
        DataError: the file or folder is missing, damaged, empty or differs from the above; `datasets` is not installed.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if source == "digits":
        return _images(source, _from_digits()[:limit])
    path = Path(source).expanduser()
    if path.is_dir():
        return _images(str(path), _from_folder(path, limit))
    if path.suffix != ".npz" or not path.is_file():
        raise DataError(f"no images at {path}: give digits, an .npz file, or a folder of image files")
    return _images(str(path), _from_npz(path, limit))


def _images(name: str, rows: list[Row]) -> Images:
    hashed = hashlib.sha256()
    for image, label in rows:
        hashed.update(f"{tuple(image.shape)} {label} ".encode() + image.numpy().tobytes())
    labels = [label for _, label in rows if label is not None]
    return Images(name, [image for image, _ in rows], labels or None, hashed.hexdigest())


def _from_digits() -> list[Row]:
    digits = load_digits()
    side = math.isqrt(digits.pixels)
    images = digits.dev_images.float().view(-1, 1, side, side)
    return list(zip(images, digits.dev_labels.tolist(), strict=True))


def _from_npz(file: Path, limit: int | None) -> list[Row]:
    images, labels = read_arrays(file)
    if images.dtype != numpy.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise DataError(f"{file}: images must be uint8 (n, h, w) or (n, h, w, 3), got {images.dtype} {images.shape}")
    return [(_tensor(image), label) for image, label in zip(images[:limit], labels[:limit].tolist(), strict=True)]


def _from_folder(folder: Path, limit: int | None) -> list[Row]:
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
        rows = table.select(range(len(table) if limit is None else min(limit, len(table))))
        labels = rows["label"] if "label" in rows.column_names else [None] * len(rows)
        return [
            (_tensor(numpy.asarray(image.convert("RGB"))), label)
            for image, label in zip(rows["image"], labels, strict=True)
        ]
    except Exception as error:  # raised by datasets or by a file format: its message is kept
        raise DataError(f"{folder}: cannot be read as a folder of images: {error}") from error


def _tensor(image: numpy.ndarray) -> Tensor:
    """``(h, w)`` or ``(h, w, 3)`` uint8 to ``(channels, h, w)`` in [0, 1]."""
    pixels = torch.from_numpy(image.copy()).float() / 255
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()

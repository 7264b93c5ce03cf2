"""Images of handwritten digits: scikit-learn's bundled 8×8 set by default, or MNIST from a folder."""

import hashlib
import importlib.util
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from faithcheck.models.data import DataError

Array = NDArray[Any]
DEV_IMAGES = 360  # of scikit-learn's 1797 digits, chosen by the seed below
SPLIT_SEED = 0

_folder: Path | None = None


@dataclass(frozen=True)
class Digits:
    """Images with pixels in [0, 1], where 0 is the background, and the digits that they show."""

    train_images: Tensor  # float64 (n, pixels)
    train_labels: Tensor  # int64 (n,), 0 to 9
    dev_images: Tensor  # float64 (m, pixels)
    dev_labels: Tensor  # int64 (m,)
    fingerprint: str  # SHA-256 of all four: the identity of the data in the cache of trained weights

    @property
    def pixels(self) -> int:
        """The number of pixels of one image."""
        return self.train_images.shape[1]


def use_folder(path: str | Path | None) -> None:
    """Choose the digits of this process: those of a folder that holds ``mnist/``, or the bundled set if None.

    The folder is read at once, so that a missing or damaged file raises `DataError` before the run.
    """
    global _folder
    folder = None if path is None else Path(path).expanduser().resolve()
    if folder is not None:
        _mnist(folder)
    _folder = folder


def folder() -> Path | None:
    """The folder that `use_folder` chose in this process; None for the bundled set."""
    return _folder


def source() -> str:
    """The source of digits in this process, in words."""
    if _folder is None:
        return "scikit-learn digits, 8×8 = 64 pixels"
    return f"MNIST in {_folder / 'mnist'}, 28×28 mean-pooled to 14×14 = 196 pixels"


def load_digits() -> Digits:
    """The digits of the chosen source (see `use_folder`).

    scikit-learn's set is split by a fixed seed into 1437 training and 360 dev images. MNIST keeps its own split, and
    its 28×28 pixels are reduced to 14×14 by the mean over 2×2 blocks.
    """
    return _bundled() if _folder is None else _mnist(_folder)


@lru_cache(maxsize=1)
def _bundled() -> Digits:
    # The file of sklearn.datasets.load_digits, of which a test checks each number: importing it takes a second.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("scikit-learn, which has the digits, is not installed: pip install scikit-learn")
    table = numpy.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1] / 16, table[:, -1].astype(int)
    order = numpy.random.default_rng(SPLIT_SEED).permutation(len(labels))
    dev, train = order[:DEV_IMAGES], order[DEV_IMAGES:]
    return _digits(images[train], labels[train], images[dev], labels[dev])


@lru_cache(maxsize=4)
def _mnist(folder: Path) -> Digits:
    if not folder.is_dir():
        raise DataError(f"no data folder {folder}: give a folder that holds mnist/train.npz and mnist/dev.npz")
    train, train_labels = read_mnist(folder / "mnist" / "train.npz")
    dev, dev_labels = read_mnist(folder / "mnist" / "dev.npz")
    return _digits(_pooled(train), train_labels, _pooled(dev), dev_labels)


def read_arrays(file: Path) -> tuple[Array, Array]:
    """Read ``images`` (n, …) and integer ``labels`` (n,), n ≥ 1, of an ``.npz`` file; `DataError` if it differs."""
    if not file.is_file():
        raise DataError(f"no file {file}: expected an .npz with 'images' and 'labels'")
    try:
        # Opened here, as numpy does not close a file that it opened itself and cannot read.
        with file.open("rb") as stream, numpy.load(stream, allow_pickle=False) as archive:
            missing = {"images", "labels"} - set(archive.files)
            arrays = {} if missing else {key: archive[key] for key in ("images", "labels")}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} is damaged or not an .npz: {error}") from error
    if missing:
        raise DataError(f"{file} lacks {sorted(missing)}: expected 'images' and 'labels'")
    images, labels = arrays["images"], arrays["labels"]
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{file}: labels must be integers (n,), got {labels.dtype} {labels.shape}")
    if images.ndim == 0:
        raise DataError(f"{file}: images must be (n, …), got a single {images.dtype}")
    if len(images) != len(labels):
        raise DataError(f"{file}: {len(images)} images but {len(labels)} labels")
    if len(images) == 0:
        raise DataError(f"{file} is empty")
    return images, labels


def read_mnist(file: Path) -> tuple[Array, Array]:
    """Read a file of MNIST: uint8 ``images`` (n, 28, 28) and ``labels`` from 0 to 9; `DataError` if it differs."""
    images, labels = read_arrays(file)
    if images.dtype != numpy.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
        raise DataError(f"{file}: images must be uint8 (n, 28, 28), got {images.dtype} {images.shape}")
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{file}: labels must lie in 0–9, got {labels.min()} to {labels.max()}")
    return images, labels


def _pooled(images: Array) -> Array:
    """uint8 ``(n, 28, 28)`` to float64 ``(n, 196)`` in [0, 1]: the mean over blocks of 2×2."""
    blocks = images.reshape(-1, 14, 2, 14, 2).astype(numpy.float64)
    pooled: Array = blocks.mean(axis=(2, 4)).reshape(-1, 196) / 255
    return pooled


def _digits(train: Array, train_labels: Array, dev: Array, dev_labels: Array) -> Digits:
    arrays = [train, train_labels.astype(numpy.int64), dev, dev_labels.astype(numpy.int64)]
    fingerprint = hashlib.sha256()
    for array in arrays:
        fingerprint.update(f"{array.dtype} {array.shape}".encode())
        fingerprint.update(numpy.ascontiguousarray(array).tobytes())
    images, labels, dev_images, dev_label_tensor = (torch.from_numpy(numpy.ascontiguousarray(a)) for a in arrays)
    return Digits(images, labels, dev_images, dev_label_tensor, fingerprint.hexdigest())

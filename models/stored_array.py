"""Arrays in temporary files, so that what is known of each example of a data set need not fit into memory."""

from __future__ import annotations

import math
import tempfile

import numpy as np
from numpy.typing import DTypeLike

BLOCK = 2**20  # bytes that are written at once


def stored_array(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Zeros in a temporary file, which is removed with the array.

    Its pages are those of the file: the operating system writes them to the disk and takes their memory where another
    needs it. The file lies where `tempfile` puts it: ``TMPDIR`` chooses another disk.

    Args:
        shape: of the array.
        dtype: any whose zero is zero bytes.

    Raises:
        OSError: the disk is full.
    """
    kind = np.dtype(dtype)
    size = kind.itemsize * (shape if isinstance(shape, int) else math.prod(shape))
    if not size:
        return np.zeros(shape, kind)  # an empty file cannot be mapped
    with tempfile.TemporaryFile() as file:
        for start in range(0, size, BLOCK):  # a file with holes would end the process where the disk is full
            file.write(bytes(min(BLOCK, size - start)))
        file.flush()
        return np.asarray(np.memmap(file, kind, "r+", shape=shape))

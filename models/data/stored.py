"""Numbers, texts and arrays in temporary files, so that a data set need not fit into memory."""

import math
import struct
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike

Item = TypeVar("Item")
NUMBER = struct.Struct("<q")


class OnDemand(Sequence[Item]):
    """A sequence whose items are read each time they are asked for; memory holds none."""

    _length: int

    @abstractmethod
    def _item(self, index: int) -> Item: ...

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, chosen: int) -> Item: ...

    @overload
    def __getitem__(self, chosen: slice) -> list[Item]: ...

    def __getitem__(self, chosen: int | slice) -> Item | list[Item]:
        if isinstance(chosen, slice):
            return [self[i] for i in range(*chosen.indices(len(self)))]
        return self._item(range(len(self))[chosen])


class StoredNumbers(OnDemand[int]):
    """Whole numbers of 64 bits in a temporary file (see `tempfile`), which is removed with this object."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        weakref.finalize(self, self._file.close)
        self._length = 0

    def append(self, number: int) -> None:
        """Write one more; `OverflowError` if it has more than 64 bits."""
        try:
            content = NUMBER.pack(number)
        except struct.error as error:
            raise OverflowError(f"{number} has more than 64 bits") from error
        self._file.seek(self._length * NUMBER.size)
        self._file.write(content)
        self._length += 1

    def _item(self, index: int) -> int:
        self._file.seek(index * NUMBER.size)
        (number,) = NUMBER.unpack(self._file.read(NUMBER.size))
        return int(number)


class StoredTexts(OnDemand[str]):
    """Texts, read once and written to temporary files (see `tempfile`), which are removed with this object."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        weakref.finalize(self, self._file.close)
        self._ends = StoredNumbers()
        end = 0
        self._ends.append(end)
        for text in texts:
            end += self._file.write(text.encode("utf-8", "surrogatepass"))
            self._ends.append(end)
        self._file.flush()
        self._length = len(self._ends) - 1

    def _item(self, index: int) -> str:
        start, end = self._ends[index : index + 2]
        self._file.seek(start)
        return self._file.read(end - start).decode("utf-8", "surrogatepass")


class StoredPairs(OnDemand[tuple[str, str]]):
    """Pairs of the texts of `StoredTexts`: the first two, the next two, and so on."""

    def __init__(self, texts: StoredTexts) -> None:
        self._texts, self._length = texts, len(texts) // 2

    def _item(self, index: int) -> tuple[str, str]:
        first, second = self._texts[2 * index : 2 * index + 2]
        return first, second


BLOCK = 2**20  # bytes that are written at once


def stored_array(shape: int | tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Zeros in a temporary file (see `tempfile`), which is removed with the array.

    The operating system writes its pages to the disk and takes their memory where another process needs it. The zero of
    ``dtype`` must be zero bytes.
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

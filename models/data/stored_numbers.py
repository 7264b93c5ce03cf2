"""Whole numbers on the disk, for a data set whose size is not known before it is read."""

from __future__ import annotations

import struct
import tempfile
import weakref
from collections.abc import Sequence
from typing import overload

NUMBER = struct.Struct("<q")


class StoredNumbers(Sequence[int]):
    """Whole numbers of 64 bits in a temporary file, each read when it is asked for; memory holds none.

    The file is removed with this object. It lies where `tempfile` puts it: ``TMPDIR`` chooses another disk.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        weakref.finalize(self, self._file.close)
        self._length = 0

    def append(self, number: int) -> None:
        """Write one more.

        Raises:
            OverflowError: it has more than 64 bits.
            OSError: the disk is full.
        """
        try:
            content = NUMBER.pack(number)
        except struct.error as error:
            raise OverflowError(f"{number} has more than 64 bits") from error
        self._file.seek(self._length * NUMBER.size)
        self._file.write(content)
        self._length += 1

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, chosen: int) -> int: ...

    @overload
    def __getitem__(self, chosen: slice) -> list[int]: ...

    def __getitem__(self, chosen: int | slice) -> int | list[int]:
        if isinstance(chosen, slice):
            return [self[i] for i in range(*chosen.indices(len(self)))]
        self._file.seek(range(len(self))[chosen] * NUMBER.size)
        (number,) = NUMBER.unpack(self._file.read(NUMBER.size))
        return int(number)

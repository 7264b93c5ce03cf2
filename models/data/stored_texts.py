"""Texts on the disk, so that a data set need not fit into memory."""

from __future__ import annotations

import tempfile
import weakref
from array import array
from collections.abc import Iterable, Sequence
from typing import overload


class StoredTexts(Sequence[str]):
    """Texts in a temporary file, each read when it is asked for; memory holds 8 bytes of each, where it ends.

    The file is removed with this object. It lies where `tempfile` puts it: ``TMPDIR`` chooses another disk.

    Args:
        texts: read once, one after the other.

    Raises:
        OSError: the disk is full.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])
        for text in texts:
            written = self._file.write(text.encode("utf-8", "surrogatepass"))
            self._ends.append(self._ends[-1] + written)
        self._file.flush()

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, chosen: int) -> str: ...

    @overload
    def __getitem__(self, chosen: slice) -> list[str]: ...

    def __getitem__(self, chosen: int | slice) -> str | list[str]:
        if isinstance(chosen, slice):
            return [self[i] for i in range(*chosen.indices(len(self)))]
        i = range(len(self))[chosen]
        self._file.seek(self._ends[i])
        return self._file.read(self._ends[i + 1] - self._ends[i]).decode("utf-8", "surrogatepass")

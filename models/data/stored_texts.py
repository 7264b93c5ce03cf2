"""Texts on the disk, so that a data set need not fit into memory."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import overload

from faithcheck.models.data.stored_numbers import StoredNumbers


class StoredTexts(Sequence[str]):
    """Texts in a temporary file, each read when it is asked for; where each ends is in a file, too.

    The file is removed with this object. It lies where `tempfile` puts it: ``TMPDIR`` chooses another disk.

    Args:
        texts: read once, one after the other.

    Raises:
        OSError: the disk is full.
    """

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
        start, end = self._ends[i : i + 2]
        self._file.seek(start)
        return self._file.read(end - start).decode("utf-8", "surrogatepass")

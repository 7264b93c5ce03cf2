"""The store: measurements in an SQLite database, written batch by batch as they are made, so that a run can resume."""

import hashlib
import json
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import convert

from faithcheck.alignment.batch_result import BatchResult, MeasuredExample
from faithcheck.alignment.batches import Batches
from faithcheck.alignment.run_key import StoreError, plain_json

T = TypeVar("T")
log = logging.getLogger(__name__)

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
PAUSE = 0.1  # seconds between two looks at a file that another run has open
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS run (key TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY, content TEXT NOT NULL, sha256 TEXT NOT NULL)",
)


class _Damaged(StoreError):
    """The file is no database, or holds the numbers of another run."""


class _Locked(Exception):
    """Another run has the file open."""


class Store(Mapping[int, Any]):
    """The measurements of one run key: a database file that maps the number of a batch to its content, read on demand.

    Inside the context no other process can open the file; another one waits, and logs it. Each batch is on disk when
    `append` returns. A damaged file or row is dropped with a warning, and measured anew. Afterwards the content can
    still be read; no lock is held between batches, so that runs that read several stores never wait for each other.

    The ``file`` in ``folder``, which is created, is named ``name`` and the SHA-256 of ``key``, everything that
    determines the numbers (`faithcheck.alignment.run_key`). `StoreError`: it cannot be opened or written.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, Any]) -> None:
        self.key = plain_json(key)
        start = re.sub(r"[^\w.+-]+", "_", name)  # a name with a slash stays in the folder
        self.file = folder / f"{start}-{hashlib.sha256(self.key.encode()).hexdigest()[:32]}.sqlite"
        self._holds = bytearray()  # of each number, whether the file has this batch
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._when_free(self._open)
        except _Damaged as damage:
            log.warning("%s: everything in it is measured anew", damage)
            self.file.unlink()
            self._when_free(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __len__(self) -> int:
        return sum(self._holds)

    def __iter__(self) -> Iterator[int]:
        return (batch for batch, held in enumerate(self._holds) if held)

    def __getitem__(self, batch: int) -> Any:
        """The content of a batch, also after the context; `StoreError` if the file has changed since it was opened."""
        if not (0 <= batch < len(self._holds) and self._holds[batch]):
            raise KeyError(batch)
        return json.loads(self._when_free(lambda: self._content(batch)))

    def append(self, batch: int, content: Any) -> None:
        """Store a batch; it is on the disk when this returns."""
        assert self._connection is not None
        text = plain_json(content)
        try:
            self._connection.execute("INSERT INTO batches VALUES (?, ?, ?)", (batch, text, _sha256(text)))
        except sqlite3.Error as error:
            raise StoreError(f"{self.file} cannot be written: {error}") from error
        self._add(batch)

    def _add(self, batch: int) -> None:
        self._holds.extend(bytes(max(0, batch + 1 - len(self._holds))))
        self._holds[batch] = True

    def _open(self) -> None:
        """Lock the file for this connection, create the tables, and read the rows."""
        try:
            with self._named_errors():
                self._connection = sqlite3.connect(self.file, timeout=0, isolation_level=None)
                self._check(self._connection)
        except BaseException:
            self._close()
            raise

    def _check(self, connection: sqlite3.Connection) -> None:
        # Exclusive mode holds the lock of the first transaction until the connection is closed.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        for statement in SCHEMA:
            connection.execute(statement)
        keys = [key for (key,) in connection.execute("SELECT key FROM run")]
        if not keys:
            connection.execute("INSERT INTO run VALUES (?)", (self.key,))
        (intact,) = connection.execute("PRAGMA quick_check").fetchone()
        if intact != "ok":
            raise self._damaged(intact)
        if keys not in ([], [self.key]):
            raise self._damaged("it holds the numbers of another run")
        rows = connection.execute("SELECT batch, content, sha256 FROM batches ORDER BY batch")
        self._holds.clear()
        damaged = []
        for batch, content, checksum in rows:
            if _sha256(content) == checksum:
                self._add(batch)
            else:
                damaged.append(batch)
        connection.executemany("DELETE FROM batches WHERE batch = ?", [(batch,) for batch in damaged])
        connection.execute("COMMIT")
        if damaged:
            log.warning("%s: damaged batches %s are measured anew", self.file, ", ".join(map(str, damaged)))

    def _content(self, batch: int) -> str:
        """The text of a batch."""
        with self._named_errors(), ExitStack() as opened:
            connection = self._connection or opened.enter_context(closing(sqlite3.connect(self.file, timeout=0)))
            rows = connection.execute("SELECT content, sha256 FROM batches WHERE batch = ?", (batch,)).fetchall()
        for content, checksum in rows:
            if _sha256(content) == checksum:
                return str(content)
        raise self._damaged(f"batch {batch} has changed")

    def _when_free(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, once no other run has the file open."""
        waiting = False
        while True:
            try:
                return work()
            except _Locked:
                if not waiting:
                    log.warning("%s: another run is measuring the same: waiting for it to end", self.file)
                waiting = True
                time.sleep(PAUSE)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """An error of SQLite as `_Locked`, `_Damaged` or `StoreError`."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
            if code in LOCKED:
                raise _Locked from error
            if code in DAMAGED or not isinstance(error, sqlite3.OperationalError):
                raise self._damaged(str(error)) from error
            raise StoreError(f"{self.file} cannot be opened or written: {error}") from error

    def _damaged(self, why: str) -> _Damaged:
        return _Damaged(f"{self.file} is damaged ({why})")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class StoredRecords(Mapping[int, MeasuredExample]):
    """The records of a store by example, without left-out batches; iteration reads each batch once."""

    def __init__(self, store: Store, batches: Batches, left_out: Collection[int] = ()) -> None:
        self._store, self._batches, self._left_out = store, batches, frozenset(left_out)
        self._length = sum(1 for _ in self)
        self._read: tuple[int, dict[int, MeasuredExample]] = -1, {}

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        measured = (batch for number, batch in enumerate(self._batches) if number not in self._left_out)
        return chain.from_iterable(measured)

    def __getitem__(self, example: int) -> MeasuredExample:
        number = self._batches.number_of(example)
        if number is None or number in self._left_out:
            raise KeyError(example)
        if self._read[0] != number:
            examples = convert(self._store[number], BatchResult).examples
            self._read = number, dict(zip(self._batches[number], examples, strict=True))
        return self._read[1][example]


def _sha256(content: object) -> str:
    return hashlib.sha256(str(content).encode()).hexdigest()

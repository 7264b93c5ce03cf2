"""The store: measurements in an SQLite database, written batch by batch as they are made, so that a run can resume."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faithcheck.axioms.alignment.run_key import StoreError, plain_json

log = logging.getLogger(__name__)

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
PAUSE = 0.1  # seconds between two looks at a file that another run has open
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS run (key TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY, content TEXT NOT NULL, sha256 TEXT NOT NULL)",
)


class _Damaged(Exception):
    """The file is no database, or holds the numbers of another run."""


class _Locked(Exception):
    """Another run has the file open."""


class Store:
    """The measurements of one run key: a database file with the key and one row per batch.

    Use it as a context manager: inside, no other process can open the file; another one waits, and says so in the log.
    Each batch is on the disk when `append` returns. A file or row that is damaged is dropped with a warning in the log,
    and is measured anew.

    Attributes:
        file: the database file.
        batches: the content of every batch that the file holds, by its number.

    Args:
        folder: created if it does not exist.
        name: the start of the file's name; the rest is the SHA-256 of ``key``.
        key: everything that determines the numbers, in plain values; see `faithcheck.axioms.alignment.run_key`.

    Raises:
        StoreError: it cannot be opened or written.
        OSError: the folder cannot be created.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, Any]) -> None:
        self.key = plain_json(key)
        start = re.sub(r"[^\w.+-]+", "_", name)  # a name with a slash stays in the folder
        self.file = folder / f"{start}-{hashlib.sha256(self.key.encode()).hexdigest()[:32]}.sqlite"
        self.batches: dict[int, Any] = {}
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        for tried in count():
            try:
                self._open()
                break
            except _Damaged as damage:
                log.warning("%s is damaged (%s): everything in it is measured anew", self.file, damage)
                self.file.unlink()
            except _Locked:
                if not tried:
                    log.warning("%s: another run is measuring the same: waiting for it to end", self.file)
                time.sleep(PAUSE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def append(self, batch: int, content: Any) -> None:
        """Store a batch; it is on the disk when this returns.

        Raises:
            StoreError: it cannot be written.
        """
        assert self._connection is not None
        text = plain_json(content)
        try:
            self._connection.execute("INSERT INTO batches VALUES (?, ?, ?)", (batch, text, _sha256(text)))
        except sqlite3.Error as error:
            raise StoreError(f"{self.file} cannot be written: {error}") from error
        self.batches[batch] = content

    def _open(self) -> None:
        """Lock the file for this connection, create the tables, and read the rows.

        Raises:
            _Damaged, _Locked: see there.
            StoreError: see the class.
        """
        try:
            self._connection = sqlite3.connect(self.file, timeout=0, isolation_level=None)
            self._read(self._connection)
        except BaseException as error:
            self._close()
            if not isinstance(error, sqlite3.DatabaseError):
                raise
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
            if code in LOCKED:
                raise _Locked from error
            if code in DAMAGED or not isinstance(error, sqlite3.OperationalError):
                raise _Damaged(str(error)) from error
            raise StoreError(f"{self.file} cannot be opened or written: {error}") from error

    def _read(self, connection: sqlite3.Connection) -> None:
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
            raise _Damaged(intact)
        if keys not in ([], [self.key]):
            raise _Damaged("it holds the numbers of another run")
        rows = connection.execute("SELECT batch, content, sha256 FROM batches ORDER BY batch").fetchall()
        damaged = [batch for batch, content, checksum in rows if _sha256(content) != checksum]
        connection.executemany("DELETE FROM batches WHERE batch = ?", [(batch,) for batch in damaged])
        connection.execute("COMMIT")
        if damaged:
            log.warning("%s: damaged batches %s are measured anew", self.file, ", ".join(map(str, damaged)))
        self.batches = {batch: json.loads(content) for batch, content, _ in rows if batch not in damaged}

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _sha256(content: object) -> str:
    return hashlib.sha256(str(content).encode()).hexdigest()

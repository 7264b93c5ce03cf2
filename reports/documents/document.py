"""How a document is read and saved, and what documents of every kind share.

A document is a `msgspec.Struct`. A field without a default is always written, and reading a document without it fails;
a field with a default is written only if its value is another one. Keys that a struct does not have are ignored.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from faithcheck.axioms.measure.record import Number as Number  # documents of every kind find both here
from faithcheck.axioms.measure.record import to_json as to_json
from faithcheck.models.files import write_atomically

Environment: TypeAlias = dict[str, str | None]
"""The versions by package, and the commits ``user_commit`` and ``faithcheck_commit``; None for what is not there."""

COMMITS = ("user_commit", "faithcheck_commit", "commit")
"""The keys of an environment that name a commit; ``commit`` is that of faithcheck, in documents of older versions."""

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class DocumentError(ValueError):
    """The file is not a document that this version can read. The message names the file, the place and the reason."""


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the work of a run was shared between workers. All times are in seconds."""

    engine: str  # such as ``ray 2.40``
    workers: int
    tasks: int
    retried: int  # tasks that were started again because their worker ended
    left_out: int  # tasks that were given up
    seconds: Number
    started: Number | None = None  # after its begin, when the first worker had loaded everything
    ended: Number | None = None  # after its begin, when the last task was done
    busy: Number | None = None  # what all workers took for their tasks
    estimated: Number | None = None  # what the plan estimated


class Document(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What documents of every kind hold. A subclass is one kind; its ``tag`` is the ``kind`` in the file."""

    NAME: ClassVar[str]  # of a document of this kind, in messages
    WRITER: ClassVar[str]  # the command that writes it
    VERSION: ClassVar[int]  # of its schema

    schema_version: int
    faithcheck: str  # the version that wrote the document
    environment: Environment

    @property
    def user_commit(self) -> str | None:
        """The commit of the user's code; None if it is in no git clone, or the document is of an older version."""
        return self.environment.get("user_commit")

    @property
    def faithcheck_commit(self) -> str | None:
        """The commit of faithcheck, which documents of older versions call ``commit``; None for an installed wheel."""
        return self.environment.get("faithcheck_commit", self.environment.get("commit"))


Kind = TypeVar("Kind", bound=Document)
Plain = TypeVar("Plain")


# --- files -----------------------------------------------------------------------------------------------------------


def load(path: Path, *kinds: type[Kind]) -> Kind:
    """Read a document of one of these kinds; raises `DocumentError` if the file has none that this version can read."""
    content = _read(path)
    kind = next((one for one in kinds if one.__struct_config__.tag == content.get("kind")), None)
    if kind is None:
        of = f"of kind {content['kind']!r}" if content.get("kind") is not None else "of results"
        readable = ", ".join(one.WRITER for one in kinds)
        raise DocumentError(f"{path}: a document {of}: give one that was written by {readable}")
    if content["schema_version"] != kind.VERSION:
        raise DocumentError(
            f"{path}: {kind.NAME} schema version {content['schema_version']!r}, this faithcheck reads {kind.VERSION}: "
            f"run {kind.WRITER} again"
        )
    try:
        return from_json(content, kind)
    except ValueError as error:
        raise DocumentError(f"{path}: damaged {kind.NAME} document: {error}") from error


def save(document: Document, path: Path) -> None:
    """Write the document as JSON. If that raises `OSError`, the file stays as it was."""
    write_atomically(path, json.dumps(to_json(document), indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
        document = to_json(document) if "\\ud" in text.lower() else document  # msgspec refuses lone surrogates
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise DocumentError(f"{path}: not a document of faithcheck: nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise DocumentError(f"{path}: not a document of faithcheck: write one with faithcheck check --json")
    return document


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > 300:  # it could not be compared with a float
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


# --- from and to the types of JSON -----------------------------------------------------------------------------------


def from_json(content: object, kind: type[Plain]) -> Plain:
    """A struct, or a list or mapping of structs, from the types of JSON.

    Raises `ValueError`, which names the first place where something is missing or of another type.
    """
    try:
        return msgspec.convert(content, kind, dec_hook=_converted)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the second: half a character where a word is due
        raise ValueError(_with_place(error)) from error


def _converted(kind: type, value: object) -> object:
    """A value of a type that msgspec does not know: `Number`, or ``object``, which is any value."""
    if kind is object:
        return value
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    return value


def _with_place(error: Exception) -> str:
    """msgspec's error with its place first, such as ``records[2].gap: Expected `float | null`, got `array` ``."""
    reason, _, path = str(error).partition(" - at `$")
    place = path.strip(".`")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return f"{place}.{missing[1]} is missing".removeprefix(".")
    return f"{place}: {reason}" if place else reason

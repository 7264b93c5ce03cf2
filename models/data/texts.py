"""Texts to explain: the project's own sentences, SST-2 or IMDB through the `datasets` library, or a local file."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from faithcheck.models.data.errors import DataError
from faithcheck.models.pretrained import SENTIMENT

OWN = SENTIMENT / "sentences.tsv"
HUB = {  # name: data set on the Hugging Face hub, labelled split that is not for training, column of texts
    "sst2": ("stanfordnlp/sst2", "validation", "sentence"),
    "imdb": ("stanfordnlp/imdb", "test", "text"),
}
DEV = ("dev.tsv", "dev.jsonl", "dev.jsonl.gz")  # a folder holds exactly one of these
Row = tuple[str, int | None]


@dataclass(frozen=True)
class Texts:
    """Texts in the order of their source, unchanged: nothing is cleaned, empty texts are kept.

    Attributes:
        name: the source: "own", "sst2", "imdb" or the file.
        texts: one string per example.
        labels: the class of each text, from 0 up (1 = positive in all sources named here); None if the
            source has no labels.
        fingerprint: SHA-256 of texts and labels, the identity of the data in caches and reports.
    """

    name: str
    texts: list[str]
    labels: list[int] | None
    fingerprint: str


def load_texts(source: str = "own", limit: int | None = None) -> Texts:
    """Load the first ``limit`` texts of a source, or all of them without a limit.

    Args:
        source: "own" (sentences written for this project, balanced); "sst2" (validation split) or "imdb" (test split;
            its first half is negative) through the optional `datasets` library, which downloads and caches them;
            or a path: a file ``.tsv`` (text TAB label), ``.jsonl`` or ``.jsonl.gz`` ({"text": …, "label": …}, the label
            optional), or a folder that holds one such file named dev. A folder called sst2 is given as ``./sst2``.
        limit: at least 1.

    Raises:
        ValueError: the limit is below 1.
        DataError: `datasets` is not installed or cannot get the data; the file is missing; a line is damaged (the
            message names file and line); the source holds no texts; some texts have a label and some do not.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    file = file_of(source)
    if file is None:
        return _texts(source, _from_hub(source, limit))
    return _texts("own" if source == "own" else str(file), list(islice(_rows(file), limit)))


def file_of(source: str) -> Path | None:
    """The file of a source of texts, see `load_texts`; None if it is on the hub.

    Raises:
        DataError: there is no such file, or the folder has none or several.
    """
    if source in HUB:
        return None
    return OWN if source == "own" else _file(Path(source).expanduser())


def _texts(name: str, rows: list[Row]) -> Texts:
    if not rows:
        raise DataError(f"{name} holds no texts")
    texts = [text for text, _ in rows]
    labels = [label for _, label in rows if label is not None]
    if labels and len(labels) != len(texts):
        raise DataError(f"{name}: {len(labels)} of {len(texts)} texts have a label; give one to all or to none")
    fingerprint = hashlib.sha256(json.dumps([texts, labels]).encode()).hexdigest()
    return Texts(name, texts, labels or None, fingerprint)


def _from_hub(name: str, limit: int | None) -> list[Row]:
    """The rows of a data set on the hub, or in the cache of `datasets`."""
    local = "or give a local file (.tsv, .jsonl, .jsonl.gz) or a folder with a dev file in it instead of the name"
    try:
        import datasets
    except ImportError as error:
        raise DataError(f'{name} needs the datasets library: pip install "faithcheck[datasets]", {local}') from error
    path, split, column = HUB[name]
    try:
        table = datasets.load_dataset(path, split=split)
    except Exception as error:  # raised by datasets, its HTTP client or a file format: its message is kept
        raise DataError(f"{name}: {path} cannot be loaded ({error}): connect to the network, {local}") from error
    if limit is not None:
        table = table.select(range(min(limit, len(table))))
    return [(str(text), int(label)) for text, label in zip(table[column], table["label"], strict=True)]


def _file(path: Path) -> Path:
    """The path itself if it is a file, the one dev file if it is a folder."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"no texts at {path}: give one of {['own', *HUB]}, a file, or a folder with one of {DEV}")
        return path
    files = [path / name for name in DEV if (path / name).is_file()]
    if len(files) != 1:
        raise DataError(f"{path} holds {[f.name for f in files]}, expected exactly one of {DEV}: name the file itself")
    return files[0]


def _rows(file: Path) -> Iterator[Row]:
    """Text and label of each line of a file."""
    parse = {".tsv": _from_tsv, ".jsonl": _from_json, ".jsonl.gz": _from_json}
    kind = next((suffix for suffix in parse if file.name.endswith(suffix)), None)
    if kind is None:
        raise DataError(f"{file}: expected a file of type {', '.join(parse)}")
    number = 0
    try:
        with _open(file) as stream:
            for number, line in enumerate(stream, start=1):  # noqa: B007 (named by the error below)
                yield parse[kind](line.decode("utf-8").rstrip("\r\n"))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} is damaged after line {number}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}, line {number}: {error}") from error


def _open(file: Path) -> io.BufferedIOBase:
    """Opened in bytes: a line ends at a line feed only, not at the rarer separators that texts contain."""
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def _from_tsv(line: str) -> Row:
    text, tab, label = line.rpartition("\t")
    if not tab or not label.isascii() or not label.isdigit():
        raise ValueError(f"expected text TAB label, a whole number from 0, got {line[:60]!r}")
    return text, int(label)


def _from_json(line: str) -> Row:
    row = json.loads(line)
    text, label = (row.get("text"), row.get("label")) if isinstance(row, dict) else (None, None)
    if not isinstance(text, str) or not (label is None or (type(label) is int and label >= 0)):
        raise ValueError(f'expected {{"text": "…", "label": a whole number from 0}}, got {line[:60]!r}')
    return text, label

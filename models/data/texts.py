"""Texts to explain: the project's own sentences, SST-2 or IMDB through the `datasets` library, or local files.

A source is read once, row by row, and kept on the disk: memory does not grow with the texts.
"""

import csv
import gzip
import hashlib
import importlib.util
import io
import json
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from faithcheck.models.data import DataError, has_half_a_character
from faithcheck.models.data.stored import StoredNumbers, StoredPairs, StoredTexts
from faithcheck.models.pretrained import SENTIMENT

OWN = SENTIMENT / "sentences.tsv"
HUB = {  # name: data set on the Hugging Face hub, labelled split that is not for training, column of texts
    "sst2": ("stanfordnlp/sst2", "validation", "sentence"),
    "imdb": ("stanfordnlp/imdb", "test", "text"),
}
PARQUET = ".parquet"
DEV = ("dev.tsv", "dev.csv", "dev.jsonl", "dev.jsonl.gz", "dev.parquet")
"""A folder holds exactly one of these, or Parquet files alone."""
TEXT_COLUMNS = ("sentence", "text")
"""The names of the column of texts in a header; GLUE's is ``sentence``."""
PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    *(("question", name) for name in ("sentence", "passage", "context")),
    ("text", "text_pair"),
)
"""The names of the two columns of pairs of texts; the first of them that a header has are taken."""
LOCAL = "or give a local file (.tsv, .csv, .jsonl, .jsonl.gz, .json, .parquet) or a folder with a dev file in it"
ROWS = 1024  # of a Parquet file that are decoded at once
Item = str | tuple[str, str]
"""A text, or a pair of texts that a model reads together."""
Row = tuple[Item, int | None]


@dataclass(frozen=True)
class Texts:
    """Texts in the order of their source, unchanged: nothing is cleaned, empty texts are kept."""

    name: str  # "own", "sst2", "imdb" or the file
    texts: Sequence[Item]  # all texts or all pairs; those of a file are read when they are asked for
    labels: Sequence[int] | None  # from 0 up (1 = positive in "own", "sst2", "imdb"); None if there are none
    fingerprint: str  # SHA-256 of texts and labels: the identity of the data in caches and reports


def load_texts(source: str = "own", limit: int | None = None) -> Texts:
    """Load the first ``limit`` texts (at least 1) of a source, or all of them without a limit.

    A source is "own" (sentences written for this project, balanced); "sst2" (validation split) or "imdb" (test split;
    its first half is negative), which the optional `datasets` library downloads and caches; or a path:

    * a ``.tsv`` file (text TAB label, or GLUE's header ``sentence`` TAB ``label``), ``.csv`` with such a header,
      ``.jsonl``, ``.jsonl.gz`` or ``.json`` (a line is {"text": …, "label": …}), or ``.parquet`` with such columns. The
      label is optional where columns have names. Two columns of `PAIR_COLUMNS` in place of one are pairs of texts;
    * a folder that holds one such file named dev, or Parquet files alone, read in the order of their names. A folder
      called sst2 is given as ``./sst2``.

    A source that cannot be read, is empty, or mixes texts with pairs or labelled texts with others raises `DataError`;
    the message names file and line.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if source in HUB:
        return _texts(source, _from_hub(source, limit))
    files = [OWN] if source == "own" else _files(Path(source).expanduser())
    name = "own" if source == "own" else str(files[0] if len(files) == 1 else files[0].parent)
    return _texts(name, islice(chain.from_iterable(map(_rows, files)), limit))


def refuse_wrong_source(source: str, limit: int | None, of_texts: bool) -> None:
    """Raise `DataError` for texts or images that cannot be read, before a model is loaded.

    ``of_texts``: whether the source must hold texts; else the model decides.
    """
    if source in HUB:
        if importlib.util.find_spec("datasets") is None:
            raise _missing_library(source)
    elif source != "digits" or of_texts:
        path = Path(source).expanduser()
        if of_texts or path.name.endswith((*KINDS, PARQUET)):
            load_texts(source, limit)
        elif source != "own" and not path.exists():
            raise DataError(f"no data at {path}: give one of {['own', *HUB, 'digits']}, a file or a folder")


def _texts(name: str, rows: Iterable[Row]) -> Texts:
    labels = StoredNumbers()
    hashed = hashlib.sha256(b"[[")  # of the JSON of texts and labels

    kinds = set[type]()

    def texts_of_rows() -> Iterator[str]:
        for number, (text, label) in enumerate(rows):
            kinds.add(type(text))
            if len(kinds) > 1:
                raise DataError(f"{name}: text {number + 1} is one text where others are pairs: give all two texts")
            hashed.update(f"{', ' if number else ''}{json.dumps(text)}".encode())
            if label is not None:
                labels.append(label)
            yield from (text,) if isinstance(text, str) else text

    try:
        texts = StoredTexts(texts_of_rows())
    except OverflowError as error:
        raise DataError(f"{name}: the label {error}: number the classes from 0") from error
    if not texts:
        raise DataError(f"{name} holds no texts")
    items = StoredPairs(texts) if tuple in kinds else texts
    if labels and len(labels) != len(items):
        raise DataError(f"{name}: {len(labels)} of {len(items)} texts have a label; give one to all or to none")
    hashed.update(b"], [")
    for number, label in enumerate(labels):
        hashed.update(f"{', ' if number else ''}{label}".encode())
    hashed.update(b"]]")
    return Texts(name, items, labels or None, hashed.hexdigest())


def _missing_library(name: str) -> DataError:
    return DataError(f'{name} needs the datasets library: pip install "faithcheck[datasets]", {LOCAL}')


def _from_hub(name: str, limit: int | None) -> Iterator[Row]:
    """The rows of a data set on the hub, or in the cache of `datasets`, which maps them into memory."""
    try:
        import datasets
    except ImportError as error:
        raise _missing_library(name) from error
    path, split, column = HUB[name]
    try:
        table = datasets.load_dataset(path, split=split)
    except Exception as error:  # raised by datasets, its HTTP client or a file format: its message is kept
        raise DataError(f"{name}: {path} cannot be loaded ({error}): connect to the network, {LOCAL}") from error
    if limit is not None:
        table = table.select(range(min(limit, len(table))))
    yield from ((str(text), int(label)) for text, label in zip(table[column], table["label"], strict=True))


def _files(path: Path) -> list[Path]:
    """The path itself if it is a file; of a folder the one dev file, or all its files if they are Parquet."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"no texts at {path}: give one of {['own', *HUB]}, a file, or a folder with one of {DEV}")
        return [path]
    files = [path / name for name in DEV if (path / name).is_file()]
    if not files and (shards := sorted(path.glob(f"*{PARQUET}"))):
        return shards
    if len(files) != 1:
        raise DataError(f"{path} holds {[f.name for f in files]}, expected exactly one of {DEV}: name the file itself")
    return files


def _rows(file: Path) -> Iterator[Row]:
    """Text and label of each line of a file."""
    if file.name.endswith(PARQUET):
        yield from _from_parquet(file)
        return
    parse = next((parse for suffix, parse in KINDS.items() if file.name.endswith(suffix)), None)
    if parse is None:
        raise DataError(f"{file}: expected a file of type {', '.join((*KINDS, PARQUET))}")
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        with _open(file) as stream:
            for number, line in enumerate(stream, start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")

    try:
        yield from parse(lines())
    except UnicodeDecodeError as error:
        converted = shlex.quote(str(file.with_name(f"utf8_{file.name}")))
        raise DataError(
            f"{file}, line {number} is not UTF-8: if it is Latin-1, convert it: "
            f"iconv -f latin1 -t utf-8 {shlex.quote(str(file))} > {converted}"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} is damaged after line {number}: {error}") from error
    except (ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{file}, line {number}: {error}") from error


def _from_parquet(file: Path) -> Iterator[Row]:
    """Text and label of each row of a Parquet file, one group of rows after the other."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f'{file} needs pyarrow: pip install "faithcheck[datasets]"') from error
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            columns = table.schema_arrow.names
            texts = text_columns(columns)
            if not texts:
                raise DataError(f"{file}: expected a column {' or '.join(TEXT_COLUMNS)}, got {', '.join(columns)}")
            groups = table.iter_batches(batch_size=ROWS, columns=[n for n in (*texts, "label") if n in columns])
            for row in chain.from_iterable(group.to_pylist() for group in groups):
                number += 1
                yield _checked([row[name] for name in texts], row.get("label"))
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{file} is damaged after row {number}: {error}") from error
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{file}, row {number}: {error}") from error


def text_columns(names: Iterable[str]) -> tuple[str, ...]:
    """The name of the column of texts among these, or the names of the two of pairs; none if there is neither."""
    choices = (*PAIR_COLUMNS, *((name,) for name in TEXT_COLUMNS))
    return next((columns for columns in choices if {*columns} <= {*names}), ())


def item_of(texts: Sequence[str]) -> Item:
    """The text, or the pair of two texts; `ValueError` if one of the two is empty."""
    if len(texts) == 1:
        return texts[0]
    first, second = texts
    if not (first.strip() and second.strip()):
        raise ValueError("one text of the pair is empty: give both, or leave the pair out")
    return first, second


def _checked(texts: Sequence[object], label: object) -> Row:
    """Text and label of a row."""
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) < len(texts):
        raise ValueError(f"expected a text, got {next(text for text in texts if not isinstance(text, str))!r:.60}")
    if label is not None and (type(label) is not int or label < 0):
        raise ValueError(f"expected a label that is a whole number from 0, or none, got {label!r:.60}")
    return item_of(strings), label


def _open(file: Path) -> io.BufferedIOBase:
    """Opened in bytes: a line ends at a line feed only, not at the rarer separators that texts contain."""
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def _from_tsv(lines: Iterable[str]) -> Iterator[Row]:
    """With a header the columns that it names; without one each line is text TAB label."""
    rows = (line.rstrip("\r\n") for line in lines)
    first = next(rows, None)
    if first is None:
        return
    if header := _header(first.split("\t")):
        yield from _from_columns(header, (line.split("\t") for line in rows))
        return
    for line in chain([first], rows):
        text, tab, label = line.rpartition("\t")
        if not tab or not _is_label(label):
            raise ValueError(f"expected text TAB label, a whole number from 0, got {line[:60]!r}")
        yield text, int(label)


def _from_csv(lines: Iterable[str]) -> Iterator[Row]:
    rows = csv.reader(lines, strict=True)
    first = next(rows, [])
    header = _header(first)
    if header is None:
        raise ValueError(f"expected a header such as sentence,label, got {','.join(first)[:60]!r}")
    yield from _from_columns(header, rows)


@dataclass(frozen=True)
class _Header:
    """The columns of a table: how many, which has the texts, or which two the pairs, and which the labels, if any."""

    width: int
    texts: list[int]
    label: int | None


def _header(cells: Sequence[str]) -> _Header | None:
    """The header, if a first line is one: it names a column of texts, and has no number, as a line of data has."""
    texts = [cells.index(name) for name in text_columns(cells)]
    if not texts or any(map(_is_label, cells)):
        return None
    return _Header(len(cells), texts, cells.index("label") if "label" in cells else None)


def _from_columns(header: _Header, rows: Iterable[Sequence[str]]) -> Iterator[Row]:
    for cells in rows:
        if len(cells) != header.width:
            raise ValueError(f"expected {header.width} columns as in the header, got {len(cells)}")
        label = None if header.label is None else cells[header.label]
        if label is not None and not _is_label(label):
            raise ValueError(f"expected a label that is a whole number from 0, got {label[:60]!r}")
        yield item_of([cells[i] for i in header.texts]), None if label is None else int(label)


def _is_label(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _from_json(lines: Iterable[str]) -> Iterator[Row]:
    for line in lines:
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f'no JSON: {error}; each line is an object, {{"text": "…"}}: mend this one or leave it out'
            ) from error
        row = row if isinstance(row, dict) else {}
        names, label = text_columns(row) if len(text_columns(row)) == 2 else ("text",), row.get("label")
        texts = [row[name] for name in names if isinstance(row.get(name), str)]
        if len(texts) < len(names) or not (label is None or (type(label) is int and label >= 0)):
            raise ValueError(f'expected {{"text": "…", "label": a whole number from 0}}, got {line.rstrip()[:60]!r}')
        if any(map(has_half_a_character, texts)):
            raise ValueError("its text has half of a surrogate pair, which is no character: mend it or leave it out")
        yield item_of(texts), label


KINDS: dict[str, Callable[[Iterable[str]], Iterator[Row]]] = {
    ".tsv": _from_tsv,
    ".csv": _from_csv,
    ".jsonl": _from_json,
    ".jsonl.gz": _from_json,
    ".json": _from_json,  # as the datasets library writes it: an object a line
}
"""How each kind of file is read, by the end of its name."""

"""Texts: loading from every source in its order, and a clear error for every kind of damage."""

import gzip
import importlib
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from faithcheck.models.data import DataError, texts
from faithcheck.models.data.stored import StoredTexts
from faithcheck.models.data.texts import HUB, load_texts

ROWS = [("a fine film", 1), ("dull . <br />", 0), ("", 1), ("a tab\tinside, a\u2028separator and a\x85third", 0)]


def write_tsv(file, rows=ROWS):
    file.write_bytes("".join(f"{text}\t{label}\n" for text, label in rows).encode())
    return file


def json_lines(rows):
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows).encode()


def rows_of(loaded):
    return list(zip(loaded.texts, loaded.labels, strict=True))


def test_own_sentences_are_enough_balanced_and_distinct():
    own = load_texts()
    assert own.name == "own"
    assert len(own.texts) >= 64
    assert sum(own.labels) * 2 == len(own.labels)
    assert len(set(own.texts)) == len(own.texts)
    assert all(text.strip() == text != "" for text in own.texts)


def test_tsv_gives_texts_and_labels(tmp_path):
    loaded = load_texts(str(write_tsv(tmp_path / "some.tsv")))
    assert rows_of(loaded) == ROWS
    assert loaded.name == str(tmp_path / "some.tsv")


def test_windows_line_ends_are_not_part_of_a_label(tmp_path):
    (tmp_path / "some.tsv").write_bytes(b"good\t1\r\nbad\t0\r\n")
    assert rows_of(load_texts(str(tmp_path / "some.tsv"))) == [("good", 1), ("bad", 0)]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("glue.tsv", "sentence\tlabel\na fine film\t1\ndull\t0\n", [("a fine film", 1), ("dull", 0)]),
        ("other.tsv", "index\tsentence\tlabel\n0\ta\t1\n", [("a", 1)]),
        ("sst2.csv", 'sentence,label\n"fine, and\n""new""",1\r\n', [('fine, and\n"new"', 1)]),
        ("turned.csv", "label,text\n1,a\n", [("a", 1)]),
        ("marked.csv", "\ufefftext,label\na,1\n", [("a", 1)]),
        ("no_header.tsv", "sentence\t1\n", [("sentence", 1)]),
    ],
)
def test_a_header_names_the_columns(tmp_path, name, content, rows):
    (tmp_path / name).write_bytes(content.encode())
    assert rows_of(load_texts(str(tmp_path / name))) == rows


def test_a_header_without_labels(tmp_path):
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\ta\n1\tb\n")
    loaded = load_texts(str(tmp_path / "test.tsv"))
    assert (list(loaded.texts), loaded.labels) == (["a", "b"], None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a fine film,1\n", "line 1: expected a header such as sentence,label, got 'a fine film,1'"),
        ("a.csv", "sentence,label\na,b,1\n", "line 2: expected 2 columns as in the header, got 3"),
        ("a.tsv", "sentence\tlabel\na\n", "line 2: expected 2 columns as in the header, got 1"),
        ("a.csv", "sentence,label\na,good\n", "line 2: expected a label that is a whole number from 0, got 'good'"),
        ("a.csv", 'sentence,label\n"a,1\n', "line 2: unexpected end of data"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / name}, {message}")):
        load_texts(str(tmp_path / name))


def test_the_conversion_of_a_latin_1_file_is_named_and_works(tmp_path):
    file = tmp_path / "le film.tsv"
    file.write_bytes("bon\t1\nraté\t0\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"line 2 is not UTF-8") as refused:
        load_texts(str(file))
    command = str(refused.value).partition("convert it: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert rows_of(load_texts(str(tmp_path / "utf8_le film.tsv"))) == [("bon", 1), ("raté", 0)]


@pytest.mark.parametrize(
    ("name", "pack"), [("some.jsonl", bytes), ("some.json", bytes), ("some.jsonl.gz", gzip.compress)]
)
def test_json_lines_give_texts_and_labels(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(json_lines(ROWS)))
    assert rows_of(load_texts(str(tmp_path / name))) == ROWS


def test_json_lines_without_labels(tmp_path):
    (tmp_path / "some.jsonl").write_text('{"text": "a"}\n{"text": "b", "label": null}\n')
    loaded = load_texts(str(tmp_path / "some.jsonl"))
    assert list(loaded.texts) == ["a", "b"]
    assert loaded.labels is None


def write_parquet(file, **columns):
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs the optional library pyarrow")
    parquet.write_table(importlib.import_module("pyarrow").table(columns), file)
    return file


def test_parquet_gives_texts_and_labels(tmp_path):
    labels = [label for _, label in ROWS]
    file = write_parquet(tmp_path / "some.parquet", index=[5, 6, 7, 8], text=[text for text, _ in ROWS], label=labels)
    loaded = load_texts(str(file))
    assert rows_of(loaded) == ROWS
    assert rows_of(load_texts(str(file), 2)) == ROWS[:2]
    assert loaded.fingerprint == load_texts(str(write_tsv(tmp_path / "some.tsv"))).fingerprint
    assert load_texts(str(write_parquet(tmp_path / "bare.parquet", sentence=["a"]))).labels is None


def test_a_folder_of_parquet_files_is_read_in_the_order_of_their_names(tmp_path):
    for number in (2, 0, 1):
        write_parquet(tmp_path / f"test-0000{number}-of-00003.parquet", text=[f"text {number}"], label=[number])
    loaded = load_texts(str(tmp_path))
    assert rows_of(loaded) == [("text 0", 0), ("text 1", 1), ("text 2", 2)]
    assert loaded.name == str(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None], "label": [1, 0]}, ", row 2: expected a text, got None"),
        ({"text": ["a", "b"], "label": [1, -1]}, ", row 2: expected a label that is a whole number from 0"),
        ({"text": ["a"], "label": [True]}, ", row 1: expected a label"),
        ({"words": ["a"], "label": [1]}, ": expected a column sentence or text, got words, label"),
    ],
)
def test_a_wrong_row_of_parquet_is_named(tmp_path, columns, message):
    file = write_parquet(tmp_path / "some.parquet", **columns)
    with pytest.raises(DataError, match=re.escape(f"{file}{message}")):
        load_texts(str(file))


def test_a_damaged_parquet_file_is_named(tmp_path):
    file = write_parquet(tmp_path / "some.parquet", text=["a", "b"])
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=re.escape(f"{file} is damaged after row 0: ")):
        load_texts(str(file))


def test_without_pyarrow_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "some.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'some\.parquet needs pyarrow: pip install "faithcheck\[datasets\]"'):
        load_texts(str(tmp_path / "some.parquet"))


def test_texts_stay_on_the_disk_and_are_read_by_index():
    stored = StoredTexts(iter(["a fine film", "", "été \ud800", "dull"]))
    assert list(stored) == ["a fine film", "", "été \ud800", "dull"]
    assert (stored[-1], stored[1:3]) == ("dull", ["", "été \ud800"])
    with pytest.raises(IndexError):
        stored[4]


def test_a_label_of_more_than_64_bits_is_refused(tmp_path):
    assert rows_of(load_texts(str(write_tsv(tmp_path / "large.tsv", [("a", 2**63 - 1)])))) == [("a", 2**63 - 1)]
    with pytest.raises(DataError, match=rf"larger\.tsv: the label {2**63} has more than 64 bits: number the classes"):
        load_texts(str(write_tsv(tmp_path / "larger.tsv", [("a", 2**63)])))


@pytest.mark.parametrize("name", [name for name in texts.DEV if not name.endswith(".parquet")])
def test_a_folder_is_read_from_its_dev_file(tmp_path, name):
    content = json_lines(ROWS) if "jsonl" in name else write_tsv(tmp_path / "rows").read_bytes()
    if name == "dev.csv":
        content = "\n".join(["text,label", *(f'"{text}",{label}' for text, label in ROWS)]).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert rows_of(load_texts(str(tmp_path))) == ROWS


@pytest.mark.parametrize("files", [(), ("train.tsv",), ("dev.tsv", "dev.jsonl.gz")])
def test_a_folder_without_exactly_one_dev_file_is_refused(tmp_path, files):
    for name in files:
        write_tsv(tmp_path / name)
    with pytest.raises(DataError, match=r"expected exactly one of .*name the file itself"):
        load_texts(str(tmp_path))


def test_limit_takes_the_first(tmp_path):
    file = str(write_tsv(tmp_path / "some.tsv"))
    assert rows_of(load_texts(file, 2)) == ROWS[:2]
    assert rows_of(load_texts(file, 99)) == ROWS
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"at least 1, got {limit}"):
            load_texts(file, limit)


def test_fingerprint_follows_texts_labels_and_order(tmp_path):
    same = [load_texts(str(write_tsv(tmp_path / name))).fingerprint for name in ("a.tsv", "b.tsv")]
    (tmp_path / "a.jsonl").write_bytes(json_lines(ROWS))
    same.append(load_texts(str(tmp_path / "a.jsonl")).fingerprint)
    assert len(set(same)) == 1
    variants = [ROWS[:3], ROWS[::-1], [(text, 1 - label) for text, label in ROWS], [("A fine film", 1), *ROWS[1:]]]
    fingerprints = {load_texts(str(write_tsv(tmp_path / "c.tsv", rows))).fingerprint for rows in variants}
    assert len(fingerprints | set(same)) == 5


DAMAGED_TSV = [b"no label", b"", b"text\tone", b"text\t-1", b"text\t", "text\t²".encode(), b"\xff\t1"]
DAMAGED_JSON = ["", "{", "[]", "3", '{"label": 1}', '{"text": 3}', '{"text": "a", "label": "1"}']
DAMAGED_JSON += [f'{{"text": "a", "label": {label}}}' for label in ("true", "-1", "0.5")]


@pytest.mark.parametrize("line", DAMAGED_TSV)
def test_a_damaged_tsv_line_is_named(tmp_path, line):
    (tmp_path / "some.tsv").write_bytes(b"good\t1\n" + line + b"\nbad\t0\n")
    with pytest.raises(DataError, match=r"some\.tsv, line 2(: | is not UTF-8)"):
        load_texts(str(tmp_path / "some.tsv"))


@pytest.mark.parametrize("line", [*DAMAGED_JSON, pytest.param("[" * 100_000, id="deep")])
def test_a_damaged_json_line_is_named(tmp_path, line):
    (tmp_path / "some.jsonl").write_text('{"text": "good", "label": 1}\n' + line + "\n")
    with pytest.raises(DataError, match=r"some\.jsonl, line 2: "):
        load_texts(str(tmp_path / "some.jsonl"))


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("{", r"no JSON: .*; each line is an object, \{.text.: .*\}: mend this one or leave it out$"),
        ('{"text": "a \\ud800"}', r"half of a surrogate pair, which is no character: mend it or leave it out$"),
    ],
)
def test_a_json_line_that_cannot_be_read_has_a_way_out(tmp_path, line, way_out):
    (tmp_path / "some.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=way_out):
        load_texts(str(tmp_path / "some.jsonl"))


def test_a_text_without_a_label_among_others_is_refused(tmp_path):
    (tmp_path / "some.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b"}\n')
    with pytest.raises(DataError, match="1 of 2 texts have a label"):
        load_texts(str(tmp_path / "some.jsonl"))


def test_a_damaged_archive_is_named(tmp_path):
    file = tmp_path / "some.jsonl.gz"
    whole = gzip.compress(json_lines(ROWS * 1000))
    for content in (b"not an archive", whole[: len(whole) // 2], whole[:40] + b"\0\0\0\0" + whole[44:]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"some\.jsonl\.gz"):
            load_texts(str(file))


@pytest.mark.parametrize("name", ["some.xlsx", "some.gz", "some"])
def test_an_unknown_type_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"expected a file of type \.tsv, \.csv, \.jsonl, \.jsonl\.gz"):
        load_texts(str(write_tsv(tmp_path / name)))


def test_a_missing_or_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no texts at .*'own', 'sst2', 'imdb'"):
        load_texts(str(tmp_path / "absent.tsv"))
    with pytest.raises(DataError, match="holds no texts"):
        load_texts(str(write_tsv(tmp_path / "empty.tsv", [])))


class Table:
    """A stand-in for the result of load_dataset: columns by name, rows by select."""

    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, name):
        return self.columns[name]

    def select(self, rows):
        return Table(**{name: [column[row] for row in rows] for name, column in self.columns.items()})


@pytest.mark.parametrize("name", HUB)
def test_a_data_set_of_the_hub(monkeypatch, name):
    path, split, column = HUB[name]
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        return Table(**{column: [text for text, _ in ROWS], "label": [label for _, label in ROWS]})

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert rows_of(load_texts(name)) == ROWS
    assert rows_of(load_texts(name, 3)) == ROWS[:3]
    assert calls == [((path,), {"split": split})] * 2
    assert load_texts(name).name == name


def test_without_the_library_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # makes the import fail
    with pytest.raises(DataError, match=r'pip install "faithcheck\[datasets\]", or give a local file'):
        load_texts("sst2")


def test_without_network_the_message_names_the_alternatives(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach 'stanfordnlp/imdb' on the Hub")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DataError, match=r"imdb: stanfordnlp/imdb cannot be loaded \(Couldn't reach .* local file"):
        load_texts("imdb", 3)


def test_the_real_library_on_a_local_data_set(monkeypatch, tmp_path):
    """The stand-in above could differ from the library, so the same code runs on the library itself, offline."""
    datasets = pytest.importorskip("datasets", reason="the optional datasets library is not installed")
    folder = tmp_path / "sst2"
    folder.mkdir()
    columns = {"idx": [0, 1], "sentence": ["a fine film", "dull ."], "label": [1, 0]}
    (folder / "validation.jsonl").write_text(
        "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in zip(*columns.values(), strict=True))
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setitem(HUB, "sst2", (str(folder), "validation", "sentence"))
    assert rows_of(load_texts("sst2")) == [("a fine film", 1), ("dull .", 0)]
    assert rows_of(load_texts("sst2", 1)) == [("a fine film", 1)]

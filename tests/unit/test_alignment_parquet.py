"""Data that does not fit into memory: records read from the store, Parquet of every example, documents without them."""

import importlib
import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs, to_builtins

from faithcheck.alignment import parquet, summary
from faithcheck.alignment.batch_result import BatchResult, MeasuredExample
from faithcheck.alignment.batches import Batches
from faithcheck.alignment.document import digest_of
from faithcheck.alignment.measurement import measure
from faithcheck.alignment.preparation import prepare
from faithcheck.alignment.run_key import StoreError
from faithcheck.alignment.settings import AlignRequest
from faithcheck.alignment.store import Store, StoredRecords
from faithcheck.cli.main import main
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.reports.documents.document import save, to_json
from faithcheck.reports.pages import alignment as pages
from faithcheck.tests.helpers import small_models

LENGTHS = (3, 5, 4, 1, 0, 6, 7, 5)  # words of each text
MEASURED = [0, 1, 2, 3, 5, 6, 7]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A request of several batches, whose measurements are in its cache."""
    folder = tmp_path_factory.mktemp("parquet")
    lines = [" ".join(small_models.WORDS[5 + (3 * i + j) % 10] for j in range(n)) for i, n in enumerate(LENGTHS)]
    (folder / "texts.tsv").write_text("".join(f"{line}\t0\n" for line in lines))
    return AlignRequest(
        model=str(small_models.save("bert", folder / "bert")),
        data=str(folder / "texts.tsv"),
        cache=folder / "cache",
        parquet=folder / "parquet",
        max_tokens=150,
        explainer=("gradient_x_input",),
    )


@pytest.fixture(scope="module")
def written(asked):
    """The document, and the files by explainer; none has more than three examples."""
    pytest.importorskip("pyarrow", reason="Parquet needs the optional library pyarrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "SHARD", 3)
        patch.setattr(parquet, "VALUES", 20)  # a file has several groups of rows
        document = measure(asked)
    folder = Path(document.parquet.folder)
    return document, {name: [folder / file for file in of] for name, of in document.parquet.files.items()}


def read(file):
    return importlib.import_module("pyarrow.parquet").read_table(file)


def test_parquet_has_the_figures_of_the_document_and_the_records_of_the_store(asked, written):
    document, files = written
    data = prepare(asked).data
    for explainer in document.explainers:
        rows = {row["example"]: row for file in files[explainer.name] for row in read(file).to_pylist()}
        assert sorted(rows) == document.examples.index == MEASURED
        for name, values in explainer.examples.items():
            assert [rows[i][name] for i in MEASURED] == values
        for i, row in rows.items():
            assert row["digest"] == digest_of(data, i)
            assert len(row["map"]) == LENGTHS[i] + 2
            assert np.mean(row["lerf_curve"]) - np.mean(row["morf_curve"]) == pytest.approx(row["delta"])
        assert rows[3]["undefined_no_special"] == "fewer than two features"
        assert (rows[3]["pearson_no_special"], rows[3]["undefined_all"]) == (None, None)
        shown = {one.index: one_map for one in document.shown for one_map in one.maps}
        assert all(len(rows[i]["map"]) == len(one.values) for i, one in shown.items())


def test_a_file_says_what_made_it(written):
    document, files = written
    assert [len(of) for of in files.values()] == [3, 3]
    assert [read(file).num_rows for file in files["loo"]] == [3, 3, 1]
    for name, of in files.items():
        for number, file in enumerate(of):
            assert file.name.startswith(f"{name}-")
            assert file.name.endswith(f"-0000{number}-of-00003.parquet")
            about = json.loads(read(file).schema.metadata[b"faithcheck"])
            assert about["explainer"] == name
            assert {key: about[key] for key in ("model", "data", "settings")} == {
                key: to_json(getattr(document, key)) for key in ("model", "data", "settings")
            }
            assert about["key"]["model"] == document.model.fingerprint
            assert about["key"]["explainer"]
            assert about["catalogue"].keys() == {"version", "hash"}


def test_equal_measurements_give_equal_files_and_no_other_ones(asked, written, monkeypatch):
    before = {file: file.read_bytes() for of in written[1].values() for file in of}
    monkeypatch.setattr(parquet, "SHARD", 3)
    monkeypatch.setattr(parquet, "VALUES", 20)
    assert measure(asked) == written[0]
    assert {file: file.read_bytes() for file in asked.parquet.iterdir()} == before


def test_a_document_of_many_examples_has_their_means_alone_and_says_so(asked, written, monkeypatch, tmp_path, capsys):
    whole = written[0]
    monkeypatch.setattr(summary, "EACH", len(MEASURED) - 1)
    document = measure(asked)
    assert document.examples is None
    for one, other in zip(document.explainers, whole.explainers, strict=True):
        assert one == structs.replace(other, examples={})
    assert document.shown == whole.shown
    said = "This document does not hold the figures of each text; faithcheck align --parquet writes them."
    where = f"The map, the curves and the figures of every text are in {asked.parquet}, as Parquet files."
    for page in (pages.to_markdown(document).replace("\\", ""), pages.to_html(document)):
        assert said in page
        assert where in page
    assert said not in pages.to_html(whole)
    save(document, tmp_path / "many.json")
    assert main(["compare", str(tmp_path / "many.json"), str(tmp_path / "many.json")]) == 0
    assert "no example is paired: the documents do not hold their examples" in " ".join(capsys.readouterr().out.split())


def test_what_parquet_needs_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    assert main(["align", "--parquet", str(tmp_path / "file")]) == 2
    assert "is a file: name another folder" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["align", "--parquet", str(tmp_path / "folder")]) == 2
    error = capsys.readouterr().err
    assert error == 'faithcheck: --parquet needs pyarrow: pip install "faithcheck[datasets]"\n'


def test_records_are_read_from_the_store_batch_by_batch(tmp_path, monkeypatch):
    with Store(tmp_path, "name", {}) as store:
        for number, targets in ((0, [10, 11]), (2, [12])):
            examples = [MeasuredExample(target=target, map=[], morf=[], lerf=[]) for target in targets]
            store.append(number, to_builtins(BatchResult(examples=examples)))
    asked, content = [], Store._content
    monkeypatch.setattr(Store, "_content", lambda store, batch: asked.append(batch) or content(store, batch))
    batches = Batches(np.array([4, 1, 2, 7]), np.array([0, 2, 3, 4]))
    records = StoredRecords(store, batches, left_out=[1])
    assert {i: record.target for i, record in records.items()} == {4: 10, 1: 11, 7: 12}
    assert asked == [0, 2], "each batch once"
    assert len(records) == 3
    assert not any(i in records for i in (-1, 0, 2, 3, 8)), "2 was left out"
    assert len(StoredRecords(store, batches, left_out=[0, 1, 2])) == 0


def test_a_store_that_another_run_changed_is_named(tmp_path):
    with Store(tmp_path, "name", {}) as store:
        store.append(0, "before")
    store.file.write_bytes(store.file.read_bytes().replace(b"before", b"behind"))
    with pytest.raises(StoreError, match="batch 0 has changed"):
        store[0]


def test_a_store_is_read_once_another_run_has_closed_it(tmp_path):
    with Store(tmp_path, "name", {}) as store:
        store.append(0, "read later")
    other = Store(tmp_path, "name", {})
    other.__enter__()

    def close(record):
        assert "another run is measuring the same" in record.getMessage()
        other.__exit__(None, None, None)
        return True

    log = logging.getLogger(Store.__module__)
    log.addFilter(close)
    try:
        assert store[0] == "read later"
    finally:
        log.removeFilter(close)


def test_examples_are_made_when_they_are_asked_for_and_only_their_sizes_are_held():
    made = []

    def make(text):
        made.append(text)
        special = torch.tensor([True, *[False] * len(text)])
        return Example(torch.arange(1 + len(text)), special, ("", *text), truncated=text == "abc")

    examples = Examples(["ab", "", "abc"], make)
    assert examples.features.tolist() == [3, 1, 4]
    assert examples.non_special.tolist() == [2, 0, 3]
    assert examples.truncated.tolist() == [False, False, True]
    assert made == ["ab", "", "abc"]
    assert len(examples[2]) == 4
    assert made[3:] == ["abc"]
    assert examples.digest == Examples(["ab", "", "abc"], make).digest
    digests = {Examples(texts, make).digest for texts in (["ab", "abc"], ["ab", "abc", ""], ["ab", "", "abcd"])}
    assert examples.digest not in digests
    assert examples[1:].features.tolist() == [1, 4]

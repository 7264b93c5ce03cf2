"""The exit codes 0, 1 and 2 never mean a crash, and a damaged document is refused with a line that names the place."""

import copy
import json
import signal

import pytest

from faithcheck.cli import compare
from faithcheck.cli.main import main
from faithcheck.options import OptionError
from faithcheck.options.output_path import check_writable
from faithcheck.reports.documents.document import DocumentError, to_json
from faithcheck.tests.helpers.documents import alignment, document, record

MISSING = object()
WRONG = (MISSING, None, "\ud800\x1b[31m")
SUITE = document(
    [record("inconclusive", detail={"control gap": 0.5, "symbolic gap": "x"})],
    failures=[{"id": "test", "message": "message"}],
)
DOCUMENTS = {
    "suite": to_json(SUITE),
    "alignment": alignment(loo=(1.0, 0.8), attnlrp=(0.5, 0.4), mine="no rule"),
}


def places(content, path=()):
    """The path of every value in a document, of lists only of their first items."""
    yield path
    listed = (
        content.items() if isinstance(content, dict) else enumerate(content[:1] if isinstance(content, list) else ())
    )
    for key, value in listed:
        yield from places(value, (*path, key))


def changed(content, path, value):
    if not path:
        return value
    damaged = at = copy.deepcopy(content)
    for key in path[:-1]:
        at = at[key]
    if value is MISSING:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return damaged


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: "missing" if value is MISSING else ascii(value))
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_damaged_document_is_refused_or_shown(kind, wrong, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(DOCUMENTS[kind]))
    messages = []
    for path in places(DOCUMENTS[kind]):
        if not path and wrong is MISSING:
            continue
        bad.write_text(json.dumps(changed(DOCUMENTS[kind], path, wrong)))
        try:
            compare.load(bad)
        except DocumentError as error:
            messages.append(str(error))
        else:
            assert main(["compare", str(bad), str(good)]) in (0, 1), path
            assert main(["report", str(bad)]) == 0, path
    assert len(messages) > 5
    assert all(message.startswith(f"{bad}: ") and "\n" not in message for message in messages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("\x00\x01", "not JSON"),
        ("[1]", "not a document of faithcheck"),
        ('{"records": []}', "not a document of faithcheck"),
        ('{"schema_version": 2}', "damaged results document: faithcheck is missing"),
        ('{"schema_version": 2', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema_version": NaN}', "NaN is no finite number"),
        ('{"schema_version": 1e999}', "1e999 is no finite number"),
        ('{"schema_version": ' + "9" * 5000 + "}", "a whole number of 5000 digits"),
        ('{"schema_version": {}, "kind": []}', "a document of kind []"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_what_is_no_document_is_a_usage_error(text, message, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(text)
    for command in (["compare", str(path), str(path)], ["report", str(path)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.startswith(f"faithcheck: {path}: ")
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("records", 0, "gap"), [], "records[0].gap: not a number"),
        (("records", 0, "status"), None, "records[0].status: Expected `str`, got `null`"),
        (("counts", "ran"), MISSING, "counts.ran is missing"),
        (("tables", 0, "rows"), [["LOO"]], "tables[0]: table 'Table 1': rows[0] has 1 cells, not 2"),
        (("settings", "seed"), True, "settings.seed: Expected `int`, got `bool`"),
        (("records",), "none", "records: Expected `array`, got `str`"),
    ],
)
def test_the_damaged_place_is_named(place, value, message, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(changed(DOCUMENTS["suite"], place, value)))
    assert main(["report", str(path)]) == 2
    assert f"damaged results document: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ZeroDivisionError("by\x1b[2J zero"), 70, "unexpected ZeroDivisionError: by\\x1b[2J zero: this is a defect of"),
        (SystemExit(0), 70, "called sys.exit(0)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_unexpected_error_has_its_own_exit_code(error, code, message, tmp_path, monkeypatch, capfd):
    def fail(*_):
        raise error

    monkeypatch.setattr(compare, "load", fail)
    path = tmp_path / "a.json"
    assert main(["compare", str(path), str(path)]) == code
    said = capfd.readouterr().err
    assert message in said
    assert ("Traceback" in said) == (code == 70)


def test_the_help_lists_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(f"\n  {code} " in said for code in (0, 1, 2, 3, 70, 130, 141))


LEFT_BEHIND = alignment(loo=(1.0, 0.8))
LEFT_BEHIND["explainers"][0]["left_behind"] = "weights"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (document([record("holds")]), 0),
        (document([record("holds"), record("error")]), 1),
        (document([record("error"), record("not run")]), 3),
        (alignment(loo=(1.0, 0.8), mine="no rule"), 0),
        (LEFT_BEHIND, 1),
    ],
    ids=["green", "red", "not run", "alignment", "left behind"],
)
def test_report_ends_with_what_the_document_says(content, code, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(to_json(content)))
    assert main(["report", str(path), "--exit-code"]) == code
    assert main(["report", str(path)]) == 0


def test_output_that_nobody_reads_is_no_success(monkeypatch):
    def unread(argv):
        raise BrokenPipeError

    monkeypatch.setattr("faithcheck.cli.main._run", unread)
    monkeypatch.setattr("os.dup2", lambda *_: None)  # it would end pytest's capture
    assert main(["pairs"]) == 128 + signal.SIGPIPE


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(OptionError, match=rf"--json={tmp_path} is a folder: name a file in it"):
        check_writable(tmp_path, "--json")

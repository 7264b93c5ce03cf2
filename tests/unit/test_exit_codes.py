"""The exit codes 0, 1 and 2 never mean a crash, and a damaged document is refused with a line that names the place."""

import copy
import json
import random
import signal
from pathlib import Path

import pytest

from faithcheck.cli import compare
from faithcheck.cli.main import main
from faithcheck.options import OptionError
from faithcheck.options.output_path import check_writable
from faithcheck.reports.documents.document import DocumentError, to_json
from faithcheck.tests.helpers.documents import EVIDENCE, alignment, document, explanation, figure_content, record, shown

MISSING = object()
WRONG = (MISSING, None, "\ud800\x1b[31m")
DRAWS = 10
"""Of damage to each document; some 800 were tried once, with more kinds of damage."""
SUITE = document(
    [
        record("inconclusive", detail={"control gap": 0.5, "symbolic gap": "x"}),
        *(record("broken claim", id=name, evidence=kept) for name, kept in EVIDENCE.items()),
    ],
    failures=[{"id": "test", "message": "message"}],
    figures=[figure_content()],
)
ALIGNMENT = alignment(loo=(1.0, 0.8), attnlrp=(0.5, 0.4), mine="no rule")
for of in ALIGNMENT["explainers"][:2]:
    of |= {"cost": 2.5, "memory": {"predicted": 2**20, "measured": 2**21}}
    of |= {"mean_curves": {"removed": [0.0, 0.5, 1.0], "lerf": [1.0, 0.9, 0.1], "morf": [1.0, None, 0.1]}}
    of |= {"examples": {"pearson_no_special": [0.1, None], "delta": [0.3, 0.1]}}
DOCUMENTS = {
    "suite": to_json(SUITE),
    "alignment": {**ALIGNMENT, **shown("loo", "attnlrp"), "examples": {"index": [0, 1], "digests": ["a", "b"]}},
    "explanation": explanation(),
}


def places(content, path=(), all_items=False):
    """The path of every value in a document, of lists only of their first items if not of all."""
    yield path
    items = content[: None if all_items else 1] if isinstance(content, list) else ()
    for key, value in content.items() if isinstance(content, dict) else enumerate(items):
        yield from places(value, (*path, key), all_items)


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
            assert kind == "explanation" or main(["compare", str(bad), str(good)]) in (0, 1), path
            assert main(["report", str(bad)]) == 0, path
    assert len(messages) > 5
    assert all(message.startswith(f"{bad}: ") and "\n" not in message for message in messages)


WRONG_VALUES = (
    *(None, True, 0, -1, 0.5, 1e308, -1e308, 1e-320, 2**63, 10**299, float("nan"), float("inf")),
    *("", "x", "nan", "inf", "-inf", "9" * 400, "@me fixes #1", "<script>alert(1)</script>", "a\nb", "\ud800"),
    *([], {}, [None], [1, 2, 3], [[1, 2], [3]], {"a": 1}, ["nan", "inf", 0.1]),
    *("error", "trace", "loo", "UNCLAIMED", "VIOLATES", "broken claim", "inconclusive", "not a pair"),
)


def damaged(content, random):
    """The text of the document with up to three values removed, repeated, cut, moved or replaced; or its beginning."""
    for _ in range(random.choice((1, 1, 2, 3))):
        *path, key = random.choice([path for path in places(content, all_items=True) if path])
        content = at = copy.deepcopy(content)
        for step in path:
            at = at[step]
        match random.randrange(8):
            case 0:
                del at[key]
            case 1 if isinstance(at[key], list) and at[key]:
                at[key].append(random.choice(at[key]))
            case 2 if isinstance(at[key], list) and at[key]:
                del at[key][random.randrange(len(at[key])) :]
            case 3:
                at[random.choice(list(at)) if isinstance(at, dict) else random.randrange(len(at))] = at[key]
            case _:
                at[key] = random.choice(WRONG_VALUES)
    text = json.dumps(content)
    return text[: random.randrange(len(text))] if random.random() < 0.05 else text


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_document_with_drawn_damage_is_refused_in_a_line_or_shown(kind, seed, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.json").write_text(json.dumps(DOCUMENTS[kind]))
    Path("bad.json").write_text(damaged(DOCUMENTS[kind], random.Random(seed)))
    comparable = kind != "explanation"
    for arguments in (
        ["report", "bad.json", "--exit-code"],
        ["report", "bad.json", "--md", "--html"],
        *([["compare", "bad.json", "good.json", "--md=c.md"], ["compare", "good.json", "bad.json"]] * comparable),
        *([["badge", "bad.json", "bad.svg"]] * (kind == "suite")),
    ):
        code = main(arguments)
        errors = capsys.readouterr().err
        assert code in (0, 1, 2, 3), (arguments, errors)
        assert code != 2 or errors.count("\n") == 1, (arguments, errors)


def test_an_explanation_without_a_map_is_refused_or_says_why(tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**DOCUMENTS["explanation"], "maps": []}))
    with pytest.raises(DocumentError, match="damaged explanation document: maps and refused are empty"):
        compare.load(path)
    refused = [{"explainer": "mine", "why": "no rule"}]
    path.write_text(json.dumps({**DOCUMENTS["explanation"], "maps": [], "refused": refused}))
    assert main(["report", str(path)]) == 0
    assert "no map: no rule" in capsys.readouterr().out


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

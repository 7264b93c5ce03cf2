"""The results document and the views made from it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from faithcheck.reports import render, results, terminal, words
from faithcheck.reports.cli import main
from faithcheck.reports.results import Json, ResultsError

ALL = [*results.PASSING, *results.RED, *results.SKIPPED]


def record(status: str, **changed: object) -> Json:
    explainer = f"by_{status.replace(' ', '_')}"
    return {
        "id": f"invariance/{explainer}-family.pair",
        "axiom": "invariance",
        "explainer": explainer,
        "subject": "family.pair",
        "gap": None if status in ("error", "unsupported") else 0.31,
        "tol": 1e-9,
        "predicted": 0.62,
        "prediction_error": 0.5,
        "floor": None,
        "expected": "HOLDS",
        "status": status,
        "why": f"why of {status}",
        "cite": "Someone 2025, Eq. 1",
        "seed": 7,
        "detail": {},
        "traceback": None,
        **changed,
    }


def document(records: list[Json], **changed: object) -> Json:
    red = sum(r["status"] in results.RED for r in records)
    skipped = sum(r["status"] in results.SKIPPED for r in records)
    passed = len(records) - red - skipped
    counts = {"planned": len(records), "ran": passed + red, "passed": passed, "failed": red}
    return {
        "schema_version": results.SCHEMA_VERSION,
        "faithcheck": "0.1.0",
        "created": "2026-01-01T00:00:00+00:00",
        "environment": {"python": "3.11", "commit": None},
        "settings": {
            "seed": 7,
            "dtype": "float64",
            "device": "cpu",
            "data": "digits",
            "threads": 2,
            "arguments": ["-m", "x"],
        },
        "axioms": {"invariance": "two implementations get one attribution"},
        "counts": {**counts, "skipped": skipped, "deselected": 3},
        "skips": results.skips_by_reason([("a::b[c]", "no rule for mul")] * skipped),
        "failures": [],
        "records": records,
        "tables": [
            {"title": "Table 1", "note": "five seeds", "columns": ["explainer", "r"], "rows": [["LOO", 0.73521]]}
        ],
        **changed,
    }


@pytest.fixture
def everything() -> Json:
    """One record of each status."""
    return document([record(status) for status in ALL])


VIEWS = [render.to_html, render.to_markdown, terminal.render]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_the_verdict_every_red_record_and_the_table(view, everything):
    page = view(everything)
    # A terminal breaks lines.
    flat = " ".join(page.replace("\\_", "_").split())
    assert "2 checks as expected, 4 red, 1 recorded without a claim, 1 skipped" in flat
    assert "0.7352" in flat
    assert "no rule for mul" in flat
    assert all(f"why of {status}" in flat for status in results.RED)
    assert all(record["explainer"] in flat for record in everything["records"])


@pytest.mark.parametrize("view", [render.to_html, render.to_markdown])
def test_a_page_shows_every_status_by_symbol_and_word(view, everything):
    page = view(everything)
    for status in ALL:
        assert status in page
        assert words.SYMBOLS[status] in page
        assert words.cell(next(r for r in everything["records"] if r["status"] == status)) in page


@pytest.mark.parametrize("view", [render.to_html, render.to_markdown])
def test_red_comes_before_the_matrices(view, everything):
    page = view(everything)
    assert page.index("why of broken claim") < page.index("family.pair", page.index("two implementations"))
    assert page.index("Red") < page.index("two implementations")


def test_html_escapes_and_loads_nothing(everything):
    everything["records"][0]["why"] = "<script>alert(1)</script>"
    everything["tables"][0]["note"] = "a < b & c"
    page = render.to_html(everything)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "a &lt; b &amp; c" in page
    assert "http" not in page
    assert " src=" not in page


def test_markdown_cells_stay_in_their_cells(everything):
    everything["records"][0]["why"] = "a | b\n<b>c</b>"
    assert "a \\| b &lt;b&gt;c&lt;/b&gt;" in render.to_markdown(everything)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_keeps_to_its_width(width, everything):
    everything["records"][3]["why"] = "word " * 60
    everything["records"][3]["explainer"] = "a_rather_long_name_for_an_explainer"
    lines = terminal.render(everything, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in terminal.render(everything, width)


def test_a_run_that_was_stopped_says_so(everything):
    everything["counts"]["planned"] += 5
    assert "5 not run" in words.headline(everything)


def test_a_failure_without_a_record_is_red():
    green = document([record("holds")])
    assert not results.is_red(green)
    failed = green | {"failures": [{"id": "tests/meta/test_x.py::test_y", "message": "AssertionError: no"}]}
    assert results.is_red(failed)
    for view in VIEWS:
        page = view(failed).replace("\\_", "_")
        assert "test_y" in page
        assert "1 red" in page


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "violated, gap 0.31, but 0.5 away from what theory predicts (up to 0.62)"),
        ({"predicted": None, "floor": 0.4}, "the gap 0.31 is below the least violation that theory allows, 0.4"),
        ({"detail": {"control gap": 0.2}}, "a model and its own copy differ by 0.2"),
        ({"detail": {"control gap": 1e-16}}, "0.5 away from what theory predicts"),
    ],
)
def test_an_inconclusive_record_says_why(changed, said):
    assert said in words.sentence(record("inconclusive", **changed))


def test_correlations_have_their_table():
    figures = {
        "pearson": 0.5,
        "pearson_sum_to_one": -0.25,
        "spearman": None,
        "kendall": 0.125,
        "examples": 8,
        "undefined": 1,
    }
    page = render.to_markdown(document([record("recorded", axiom="loo", gap=None, detail=figures)]))
    assert "| family.pair | by\\_recorded | +0.500 | -0.250 | – | +0.125 | 8 | 1 |" in page
    assert "no special" not in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (2.22e-16, "2e-16"),
        (0.31234, "0.31"),
        (12.3, "12"),
        (123.4, "123"),
        (1e5, "1e5"),
        (3, "3"),
        ("inf", "inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert words.number(value) == text


def test_plain_keeps_what_json_can_say():
    value = {
        "a": np.float64(0.5),
        "b": (1, np.int64(2), True),
        "c": math.nan,
        "d": -math.inf,
        "e": Path("x"),
        "f": None,
    }
    kept = results.plain(value)
    assert kept == {"a": 0.5, "b": [1, 2, True], "c": "nan", "d": "-inf", "e": "x", "f": None}
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept


def test_save_and_load(tmp_path, everything):
    path = tmp_path / "results.json"
    results.save(everything, path)
    assert results.load(path) == everything
    with pytest.raises(ValueError, match="JSON compliant"):
        results.save(everything | {"counts": {"planned": math.nan}}, path)
    assert results.load(path) == everything
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("\x00\x01", "not JSON"),
        ("[1]", "not a results document"),
        ('{"records": []}', "not a results document"),
        ('{"schema_version": 99}', "schema version 99"),
        (f'{{"schema_version": {results.SCHEMA_VERSION}}}', "damaged results document, without axioms, counts"),
    ],
)
def test_bad_files_are_refused(tmp_path, capsys, text, reason):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=reason):
        results.load(path)
    assert main(["report", str(path), "--html"]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "bad.html").exists()


def test_the_command_writes_pages_beside_the_json(tmp_path, capsys, everything):
    path = tmp_path / "run.json"
    results.save(everything, path)
    assert main(["report", str(path), "--md", "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"written: {tmp_path / 'run.md'}",
        f"written: {tmp_path / 'page.html'}",
    ]
    assert (tmp_path / "run.md").read_text() == render.to_markdown(everything)
    assert (tmp_path / "page.html").read_text() == render.to_html(everything)
    assert main(["report", str(path)]) == 0
    assert "as expected" in capsys.readouterr().out


def test_the_command_refuses_what_it_cannot_do(tmp_path, capsys, everything):
    assert main(["report", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read: No such file" in capsys.readouterr().err
    path = tmp_path / "run.json"
    results.save(everything, path)
    assert main(["report", str(path), "--md", str(path)]) == 2
    assert results.load(path) == everything
    assert main(["report", str(path), "--md", str(tmp_path / "no" / "run.md")]) == 2


def test_symbolic_gaps_are_shown_where_they_are_not_zero():
    gaps = {"attnlrp": "x1*x2*x3 · (-1/4, 0, 1/4)", "cplrp": "x1*x2*x3 · (-1/4, 0, 1/4)", "loo": "0"}
    records = [
        record("holds", axiom="symbolic", explainer=who, detail={"symbolic gap": gap}) for who, gap in gaps.items()
    ]
    content = document(records)
    for text in (terminal.render(content, 100), render.to_markdown(content), render.to_html(content)):
        assert "attnlrp, cplrp" in text
        assert "(-1/4, 0, 1/4)" in text
        assert "Proved to be 0: loo." in text
    assert words.symbolic_gaps([record("holds")]) == []

"""The results document and the views made from it."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from faithcheck.reports import results
from faithcheck.reports.commands.main import main
from faithcheck.reports.pages import figures, report, terminal, wording
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


def drawn(**changed: object) -> Json:
    """A figure of two panels: plain lines with a gap, and a dashed one on logarithmic axes."""
    lines = [
        {"label": "AttnLRP", "x": [1, 2, 4], "y": [0.5, "nan", 0.25]},
        {"label": "a < b $", "x": [2], "y": [0.125]},
    ]
    rough = {"label": "AttnLRP", "x": [0.01, 100], "y": [1e-5, 10.0], "dashed": True}
    panels = [
        {"title": "agreement", "x": "layers & $k$", "y": "r", "lines": lines},
        {"title": "size", "x": "s", "y": "share", "log": "xy", "lines": [rough]},
    ]
    return {"title": "Figure 2", "note": "60 sentences", "panels": panels, **changed}


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
        "figures": [drawn()],
        **changed,
    }


@pytest.fixture
def everything() -> Json:
    """One record of each status."""
    return document([record(status) for status in ALL])


VIEWS = [report.to_html, report.to_markdown, terminal.render]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_the_verdict_every_red_record_and_the_table(view, everything):
    page = view(everything)
    # A terminal breaks lines.
    flat = " ".join(page.replace("\\_", "_").split())
    assert "3 checks as expected, 4 red, 1 recorded without a claim, 1 skipped" in flat
    assert "0.7352" in flat
    assert "no rule for mul" in flat
    assert all(f"why of {status}" in flat for status in results.RED)
    assert all(record["explainer"] in flat for record in everything["records"])


@pytest.mark.parametrize("view", [report.to_html, report.to_markdown])
def test_a_page_shows_every_status_by_symbol_and_word(view, everything):
    page = view(everything)
    for status in ALL:
        assert status in page
        assert wording.SYMBOLS[status] in page
        assert wording.cell(next(r for r in everything["records"] if r["status"] == status)) in page


@pytest.mark.parametrize("view", [report.to_html, report.to_markdown])
def test_red_comes_before_the_matrices(view, everything):
    page = view(everything)
    assert page.index("why of broken claim") < page.index("family.pair", page.index("two implementations"))
    assert page.index("Red") < page.index("two implementations")


def test_html_escapes_and_loads_nothing(everything):
    everything["records"][0]["why"] = "<script>alert(1)</script>"
    everything["tables"][0]["note"] = "a < b & c"
    page = report.to_html(everything)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "a &lt; b &amp; c" in page
    # Names of XML namespaces, which nothing loads.
    assert set(re.findall(r"http[^\"]*", page)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"\bsrc=|href=\"[^#]|@import|url\([^#]", page)


def test_markdown_cells_stay_in_their_cells(everything):
    everything["records"][0]["why"] = "a | b\n<b>c</b>"
    assert "a \\| b &lt;b&gt;c&lt;/b&gt;" in report.to_markdown(everything)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_keeps_to_its_width(width, everything):
    everything["records"][3]["why"] = "word " * 60
    everything["records"][3]["explainer"] = "a_rather_long_name_for_an_explainer"
    lines = terminal.render(everything, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in terminal.render(everything, width)


def test_a_run_that_was_stopped_says_so(everything):
    everything["counts"]["planned"] += 5
    assert "5 not run" in wording.headline(everything)


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
    assert said in wording.sentence(record("inconclusive", **changed))


def test_correlations_have_their_table():
    figures = {
        "pearson": 0.5,
        "pearson_sum_to_one": -0.25,
        "spearman": None,
        "kendall": 0.125,
        "examples": 8,
        "undefined": 1,
    }
    page = report.to_markdown(document([record("recorded", axiom="loo", gap=None, detail=figures)]))
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
    assert wording.number(value) == text


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
        ('{"schema_version": 1}', "schema version 1, this faithcheck reads 2: run the suite again"),
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
    assert (tmp_path / "run.md").read_text() == report.to_markdown(everything)
    assert (tmp_path / "page.html").read_text() == report.to_html(everything)
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
    for text in (terminal.render(content, 100), report.to_markdown(content), report.to_html(content)):
        assert "attnlrp, cplrp" in text
        assert "(-1/4, 0, 1/4)" in text
        assert "Proved to be 0 on every pair: loo." in text
    assert wording.symbolic_gaps([record("holds")]) == []


def elements(svg, name):
    return [element for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}" + name)]


def strokes(svg):
    """How each line of data is drawn: (stroke, dashed, sub-paths)."""
    styles = [(path.get("style", ""), path.get("d", "")) for path in elements(svg, "path") if path.get("clip-path")]
    found = [(re.search(r"stroke: (#\w+)", style), style, d) for style, d in styles]
    return [(stroke[1], "dasharray" in style, d.count("M")) for stroke, style, d in found if stroke]


def test_a_figure_is_drawn_the_same_each_time_and_whatever_the_users_style():
    import matplotlib

    first = figures.to_svg(drawn())
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.marker": "x"}):
        assert figures.to_svg(drawn()) == first
    texts = [element.text for element in elements(first, "text")]
    said = ["agreement", "layers & $k$", "r", "size", "s", "share", "AttnLRP", "a < b $"]
    assert sorted(text for text in texts if text in said) == sorted(said)  # each label once in the legend


def test_lines_keep_their_colour_and_differ_by_marker_too():
    svg = figures.to_svg(drawn())
    attnlrp, other, rough = (stroke for stroke in strokes(svg) if stroke[0] != "#000000")
    assert attnlrp[0] == rough[0] != other[0]
    assert (attnlrp[1], other[1], rough[1]) == (False, False, True)
    assert attnlrp[2] == 2, "the gap splits the line"
    # Markers are defined once, in their line's colour; the ticks are in ink.
    markers = [path for path in elements(svg, "path") if path.get("id") and "stroke: #" in path.get("style", "")]
    assert len({path.get("d") for path in markers}) == 2


def test_panels_go_on_in_a_second_row():
    panels = [{**drawn()["panels"][0], "title": f"panel {i}"} for i in range(4)]
    svg = figures.to_svg(drawn(panels=panels))
    titles = [element.text for element in elements(svg, "text") if str(element.text).startswith("panel")]
    assert titles == [f"panel {i}" for i in range(4)]
    assert len(strokes(svg)) == len(strokes(figures.to_svg(drawn(panels=panels[:1])))) * 4


def test_figures_of_one_page_share_no_names_and_no_ink():
    first, second = figures.to_svg(drawn()), figures.to_svg(drawn(title="another"))
    names = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (first, second)]
    assert names[0]
    assert not names[0] & names[1]
    for svg in (first, second):
        assert "#000000" not in svg, "ink that does not follow the page's"
        assert "currentColor" in svg
        assert "fill: #ffffff" not in svg


def test_a_page_draws_the_figure_and_gives_its_numbers(everything):
    markdown, html = report.to_markdown(everything), report.to_html(everything)
    assert "<svg" not in markdown
    assert "| layers &amp; $k$ | AttnLRP | a &lt; b $ |" in markdown
    assert "| 1 | 0.5 | – |" in markdown
    assert "| 2 | nan | 0.125 |" in markdown
    assert "size: share\n\n| s | AttnLRP (dashed) |" in markdown
    assert figures.to_svg(everything["figures"][0]) in html
    assert '<th scope="row">2</th><td>nan</td><td>0.125</td>' in html
    for page in (markdown, html):
        assert page.count("Figure 2") >= 1
        assert "60 sentences" in page


def bad(panel=None, **line):
    panel = panel or {}
    good = {"label": "a", "x": [1, 2], "y": [3, 4], **line}
    return drawn(panels=[{"title": "p", "x": "k", "y": "r", "lines": [good], **panel}])


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ({"title": "T"}, "'T': a figure has note, panels, title; got title"),
        (drawn(extra=1), "'Figure 2': a figure has note, panels, title; got title, note, panels, extra"),
        (drawn(panels=[]), "has no panel"),
        (bad({"lines": []}), "panel 'p' has no line"),
        (bad({"log": "z"}), "log names the axes x, y or xy, got 'z'"),
        (bad({"legend": 1}), "a panel has lines, title, x, y, maybe log; got"),
        (bad(colour="red"), "line 'a': a line has label, x, y, maybe dashed; got"),
        (bad(x=[1]), "line 'a': 1 x and 2 y"),
        (bad(x=[2, 1]), "the x must be finite and increase"),
        (bad(x=[1, "nan"]), "the x must be finite and increase"),
        (bad({"log": "y"}, y=[0, 1]), "a logarithmic axis has no place for a y ≤ 0"),
        (bad(y=["a", 1]), "could not convert string to float"),
    ],
)
def test_what_is_no_figure_is_refused(figure, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        figures.check(figure)

"""The results document, its pages and its text for a terminal."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from faithcheck import outcomes
from faithcheck.axioms.measure.statuses import BY_LABEL, RED, Group
from faithcheck.cli.main import main
from faithcheck.reports.documents import results
from faithcheck.reports.documents.document import from_json, save, to_json
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.documents.results import Results
from faithcheck.reports.pages import colours, columns, figures, report, terminal, wording
from faithcheck.tests.helpers.documents import document, figure, figure_content, record


@pytest.fixture
def everything() -> Results:
    """One record of each status."""
    return document([record(status) for status in BY_LABEL])


VIEWS = [report.to_html, report.to_markdown, partial(terminal.render, width=160)]  # wide: names are not broken


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_the_headline_every_red_record_and_the_table(view, everything):
    page = view(everything)
    # A terminal still breaks lines.
    flat = " ".join(page.replace("\\_", "_").split())
    assert "6 red, 3 checks as expected, 1 recorded without a claim, 1 skipped" in flat
    assert "0.7352" in flat
    assert "no rule for mul" in flat
    assert all(f"why of {status}" in flat for status in RED)
    assert all(record.explainer in flat for record in everything.records)


@pytest.mark.parametrize("view", [report.to_html, report.to_markdown])
def test_a_page_shows_the_symbol_and_the_label_of_every_status(view, everything):
    page = view(everything)
    for status in BY_LABEL:
        assert status in page
        assert wording.symbol(status) in page
        assert wording.cell(next(r for r in everything.records if r.status == status)) in page


@pytest.mark.parametrize("view", [report.to_html, report.to_markdown])
def test_red_records_come_before_the_matrices(view, everything):
    page = view(everything)
    assert page.index("why of broken claim") < page.index("family.pair", page.index("two implementations"))
    assert page.index("Red") < page.index("two implementations")


def test_the_html_page_escapes_text_and_loads_nothing(everything):
    everything.records[0] = record("holds", why="<script>alert(1)</script>")
    everything.tables[0] = replace(everything.tables[0], note="a < b & c")
    everything.figures.append(figure())
    page = report.to_html(everything)
    assert page.count("<script") == 2, "the page's own"
    assert "&lt;script&gt;alert(1)" in page
    assert "a &lt; b &amp; c" in page
    # Names of XML namespaces, which nothing loads.
    assert set(re.findall(r"http[^\"]*", page)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"\bsrc=|href=\"[^#]|@import|url\([^#]", page)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_text_fits_its_width(width, everything):
    explainer = "a_rather_long_name_for_an_explainer"
    everything.records[3] = replace(everything.records[3], why="word " * 60, explainer=explainer)
    lines = terminal.render(everything, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in terminal.render(everything, width)


def test_the_headline_counts_tests_that_did_not_run(everything):
    counts = replace(everything.counts, planned=everything.counts.planned + 5)
    assert "6 not run" in wording.headline(replace(everything, counts=counts))  # one has a record


def test_a_failure_without_a_record_is_red():
    green = document([record("holds")])
    assert not results.is_red(green)
    failure = {"id": "tests/meta/test_x.py::test_y", "message": "AssertionError: no"}
    failed = document([record("holds")], failures=[failure])
    assert results.is_red(failed)
    for view in VIEWS:
        page = view(failed).replace("\\_", "_")
        assert "test_y" in page
        assert "1 red" in page


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "violated, gap 0.31, but 0.5 away from what theory predicts (up to 0.62)"),
        ({"predicted": None, "floor": 0.4}, "the gap 0.31 is below the least violation that theory allows, 0.4"),
        (
            {"predicted": None, "floor": 0.1, "ceiling": 0.3},
            "the gap 0.31 is above the largest violation that theory allows, 0.3",
        ),
        ({"detail": {"control gap": 0.2}}, "a model and its own copy differ by 0.2"),
        ({"detail": {"control gap": 1e-16}}, "0.5 away from what theory predicts"),
    ],
)
def test_the_sentence_of_an_inconclusive_record_gives_the_reason(changed, text):
    assert text in wording.sentence(record("inconclusive", **changed))


def test_correlations_have_a_table():
    detail = {
        "pearson": 0.5,
        "pearson_sum_to_one": -0.25,
        "spearman": None,
        "kendall": 0.125,
        "examples": 8,
        "undefined": 1,
    }
    (table,) = columns.correlations([record("recorded", axiom="loo", gap=None, detail=detail)])
    (row,) = [dict(zip(table.titles, cells, strict=True)) for cells in table.rows]
    assert row == row | {
        "subject": "family.pair",
        "explainer": "by_recorded",
        "pearson": "+0.500",
        "pearson sum to one": "-0.250",
        "spearman": "–",
        "kendall": "+0.125",
        "examples": "8",
        "undefined": "1",
    }
    assert not any("no special" in column for column in row), "a column without a value is left out"
    page = report.to_markdown(document([record("recorded", axiom="loo", gap=None, detail=detail)]))
    assert "| family.pair | by\\_recorded | +0.500 |" in page


# --- the summary: one description of its columns for the terminal and both pages -------------------------------------


def test_the_summary_counts_the_records_of_each_group(everything):
    records = [
        record("holds", explainer="loo", gap=1e-16),
        record("holds", explainer="loo", gap=0.25),
        record("broken claim", explainer="loo", gap=None),
        record("unsupported", explainer="ig"),
    ]
    table = columns.summary(records)
    rows = {cells[1]: dict(zip(table.titles, cells, strict=True)) for cells in table.rows}
    assert rows["loo"] == rows["loo"] | {"axiom": "invariance", "✓": "2", "✗": "1", "–": "", "largest gap": "0.25"}
    assert rows["ig"] == rows["ig"] | {"✓": "", "✗": "", "–": "1", "largest gap": "–"}
    assert "≠" not in table.titles, "a column without a value is left out"


def test_the_slowest_checks_are_listed_on_the_pages():
    taken = [record("holds", id=f"invariance/{seconds}", seconds=seconds) for seconds in range(12)]
    unmeasured = record("not run", seconds=None)
    content = outcomes.of_records([*taken, unmeasured], 13, document([]).settings, {})
    assert [row.seconds for row in content.slowest] == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert not [record for record in to_json(content)["records"] if "seconds" in record]
    (table,) = columns.slowest(content)
    assert table.rows[0] == ("invariance/11", "11")
    assert "Slowest checks" in report.to_html(content)
    assert columns.slowest(document([record("holds")])) == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_new_column_of_the_summary_is_in_every_view(view, everything, monkeypatch):
    new = columns.Column("least gap", lambda records: f"least of {len(records)}")
    monkeypatch.setattr(columns, "SUMMARY", (*columns.SUMMARY, new))
    page = view(everything, 120) if view is terminal.render else view(everything)
    assert "least gap" in page
    assert "least of 1" in page


def test_every_group_has_its_colours_on_pages_and_terminals(everything):
    assert set(colours.PAGE) == set(colours.TERMINAL) == set(Group)
    page = report.to_html(everything)
    for group in Group:
        assert f"--{group.label}: {colours.PAGE[group].text.light};" in page
        assert f"--{group.label}: {colours.PAGE[group].text.dark};" in page
        assert f"td.{group.label} {{ color: var(--{group.label});" in page


def test_an_unknown_status_counts_as_red():
    unknown = document([record("of a later version")])
    assert results.is_red(unknown)
    assert all("of a later version" in view(unknown) for view in VIEWS)


# --- skips and what does not apply -----------------------------------------------------------------------------------


def skipped(*reasons):
    """A document of an explainer `mine` that was skipped for these reasons, once for each."""
    skips = results.skips_by_reason((f"id {i}", reason) for i, reason in enumerate(reasons))
    return document([record("holds")], skips=skips, settings={"explainers": ["mine"]})


def test_skips_of_one_explainer_and_reason_share_a_line():
    lines = wording.skip_lines(
        skipped(
            "mine: matmul in the model (Attention): no rule for this operation",
            "mine: mul in layer.0 (Norm): no rule for this operation",
            "mine: no softmax",
            "other: mul in layer.0 (Norm): no rule",
        )
    )
    assert lines == [
        ("2 ×", "mine: no rule for this operation"),
        ("1 ×", "mine: no softmax"),
        ("1 ×", "other: mul in layer.0 (Norm): no rule"),
    ]


def test_the_terminal_lists_skips_in_ten_lines_and_the_pages_list_all():
    content = skipped(*(f"mine: reason {i} " + "long " * 30 for i in range(30)))
    lines = terminal.render(content).splitlines()
    first = lines.index("skipped") + 1
    assert lines[first + 9].split() == "21 × and 21 more reasons in the report".split()
    assert not lines[first + 10].strip()
    for page in (report.to_html(content), report.to_markdown(content)):
        assert all(f"reason {i} " in page for i in range(30))


@pytest.mark.parametrize("view", VIEWS)
def test_an_axiom_that_does_not_apply_is_named_once(view):
    reason = {"axiom": "conservation", "reason": "propagates no relevance"}
    rows = [{**reason, "explainer": name} for name in ("loo", "ig")]
    page = view(document([record("holds")], settings={"not_applicable": rows}))
    assert page.count("conservation does not apply to loo, ig: propagates no relevance") == 1
    assert "not_applicable" not in page.replace("\\_", "_")
    assert "does not apply" not in view(document([record("holds")])), "documents of older versions"


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
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_written_in_few_characters(value, text):
    assert wording.number(value) == text


def test_plain_gives_values_of_json_types():
    value = {
        "a": np.float64(0.5),
        "b": (1, np.int64(2), True),
        "c": math.nan,
        "d": -math.inf,
        "e": Path("x"),
        "f": None,
    }
    converted = to_json(value)
    assert converted == {"a": 0.5, "b": [1, 2, True], "c": "nan", "d": "-inf", "e": "x", "f": None}
    assert json.loads(json.dumps(converted, allow_nan=False)) == converted


def test_save_and_load(tmp_path, everything):
    path = tmp_path / "results.json"
    everything.records[0] = replace(everything.records[0], gap=-math.inf, detail={"of": "nan"})
    save(everything, path)
    assert to_json(results.load(path)) == to_json(everything) == json.loads(path.read_text())
    assert results.load(path).records[0].gap == -math.inf
    assert results.load(path).records[0].detail == {"of": "nan"}, "a text stays a text"
    with pytest.raises(OSError, match="No such file"):
        save(everything, tmp_path / "none" / "results.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_the_command_writes_pages_beside_the_json(tmp_path, capsys, everything):
    path = tmp_path / "run.json"
    save(everything, path)
    assert main(["report", str(path), "--md", "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"written: {tmp_path / 'run.md'}",
        f"written: {tmp_path / 'page.html'}",
    ]
    assert (tmp_path / "run.md").read_text() == report.to_markdown(everything)
    assert (tmp_path / "page.html").read_text() == report.to_html(everything)
    assert main(["report", str(path)]) == 0
    assert "as expected" in capsys.readouterr().out


def test_symbolic_gaps_that_are_not_zero_are_listed():
    gaps = {"attnlrp": "x1*x2*x3 · (-1/4, 0, 1/4)", "cplrp": "x1*x2*x3 · (-1/4, 0, 1/4)", "loo": "0"}
    records = [
        record("holds", axiom="symbolic", explainer=who, detail={"symbolic gap": gap}) for who, gap in gaps.items()
    ]
    content = document(records)
    for text in (terminal.render(content, 100), report.to_markdown(content), report.to_html(content)):
        assert "attnlrp, cplrp" in text
        assert "(-1/4, 0, 1/4)" in text
        assert "Proved to be 0 on every pair: loo." in text
    assert columns.symbolic_gaps([record("holds")]) == []


def elements(svg, name):
    return [element for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}" + name)]


def strokes(svg):
    """The colour, whether it is dashed, and the number of sub-paths of each line of data."""
    styles = [(path.get("style", ""), path.get("d", "")) for path in elements(svg, "path") if path.get("clip-path")]
    strokes = [(re.search(r"stroke: (#\w+)", style), style, d) for style, d in styles]
    return [(stroke[1], "dasharray" in style, d.count("M")) for stroke, style, d in strokes if stroke]


def test_a_figure_is_the_same_each_time_and_for_any_matplotlib_style():
    import matplotlib

    first = figures.to_svg(figure())
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.marker": "x"}):
        assert figures.to_svg(figure()) == first
    texts = [element.text for element in elements(first, "text")]
    labels = ["agreement", "layers & $k$", "r", "size", "s", "share", "AttnLRP", "a < b $"]
    assert sorted(text for text in texts if text in labels) == sorted(labels)  # each label once in the legend


@pytest.mark.parametrize(("x", "whole"), [([1, 2], True), ([1, 2.5], False)])
def test_an_axis_of_whole_numbers_has_no_tick_between_them(x, whole):
    panel = {"title": "", "x": "run", "y": "checks", "lines": [{"label": "a", "x": x, "y": [18.0, None]}]}
    texts = [element.text for element in elements(figures.to_svg(figure(panels=[panel])), "text")]
    ticks = [float(text) for text in texts if text and re.fullmatch(r"[\d.]+", text)]
    assert all(tick.is_integer() for tick in ticks) == whole


def test_lines_of_one_label_share_a_colour_and_labels_differ_by_marker_too():
    svg = figures.to_svg(figure())
    attnlrp, other, dashed = (stroke for stroke in strokes(svg) if stroke[0] != "#000000")
    assert attnlrp[0] == dashed[0] != other[0]
    assert (attnlrp[1], other[1], dashed[1]) == (False, False, True)
    assert attnlrp[2] == 2, "the gap splits the line"
    # Markers are defined once, in their line's colour; the ticks are in ink.
    markers = [path for path in elements(svg, "path") if path.get("id") and "stroke: #" in path.get("style", "")]
    assert len({path.get("d") for path in markers}) == 2


def test_the_fourth_panel_begins_a_second_row():
    panels = [{**figure_content()["panels"][0], "title": f"panel {i}"} for i in range(4)]
    svg = figures.to_svg(figure(panels=panels))
    titles = [element.text for element in elements(svg, "text") if str(element.text).startswith("panel")]
    assert titles == [f"panel {i}" for i in range(4)]
    assert len(strokes(svg)) == len(strokes(figures.to_svg(figure(panels=panels[:1])))) * 4


def test_a_forest_plot_is_drawn_and_listed():
    estimates = [
        {"label": "a $ b", "value": 0.5, "low": 0.25, "high": 0.75},
        {"label": "few", "value": 1.0, "low": None, "high": None},
    ]
    panel = {"title": "", "x": "r", "y": "explainer", "estimates": estimates}
    forest = figure(panels=[panel])
    svg = figures.to_svg(forest)
    assert [text for text in ("a $ b", "few") if f">{text}<" in svg] == ["a $ b", "few"]
    (table,) = figures.to_tables(forest)
    assert table.titles == ["explainer", "r", "low", "high"]
    assert table.rows == [("a $ b", "0.5", "0.25", "0.75"), ("few", "1", "–", "–")]
    both = {**panel, "lines": figure_content()["panels"][0]["lines"]}
    for malformed, message in ((both, "both lines and estimates"), ({**both, "lines": [], "estimates": []}, "no line")):
        with pytest.raises(ValueError, match=message):
            figure(panels=[malformed])
    with pytest.raises(ValueError, match="value is missing"):
        figure(panels=[{**panel, "estimates": [{"label": "a"}]}])


def test_figures_of_one_page_share_no_ids_and_take_the_ink_of_the_page():
    first, second = figures.to_svg(figure()), figures.to_svg(figure(title="another"))
    names = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (first, second)]
    assert names[0]
    assert not names[0] & names[1]
    for svg in (first, second):
        assert "#000000" not in svg, "ink that does not follow the page's"
        assert "currentColor" in svg
        assert "fill: #ffffff" not in svg


def test_html_draws_a_figure_and_both_pages_list_its_numbers(everything):
    everything.figures.append(figure())
    markdown, html = report.to_markdown(everything), report.to_html(everything)
    assert "<svg" not in markdown
    assert r"| layers &amp; \$k\$ | AttnLRP | a &lt; b \$ |" in markdown
    assert "| 1 | 0.5 | – |" in markdown
    assert "| 2 | nan | 0.125 |" in markdown
    assert "size: share\n\n| s | AttnLRP (dashed) |" in markdown
    assert figures.to_svg(everything.figures[0]) in html
    assert '<th scope="row">2</th><td>nan</td><td>0.125</td>' in html
    for page in (markdown, html):
        assert page.count("Figure 2") >= 1
        assert "60 sentences" in page


def bad(panel=None, **line):
    panel = panel or {}
    good = {"label": "a", "x": [1, 2], "y": [3, 4], **line}
    return figure_content(panels=[{"title": "p", "x": "k", "y": "r", "lines": [good], **panel}])


@pytest.mark.parametrize(
    ("malformed", "message"),
    [
        ({"title": "T"}, "note is missing"),
        (figure_content(extra=1), "Object contains unknown field `extra`"),
        (figure_content(panels=[]), "figure 'Figure 2' has no panel"),
        (bad({"lines": []}), "panel 'p' has no line"),
        (bad({"log": "z"}), "panels[0].log: Invalid enum value 'z'"),
        (bad({"legend": 1}), "panels[0]: Object contains unknown field `legend`"),
        (bad(colour="red"), "panels[0].lines[0]: Object contains unknown field `colour`"),
        (bad(x=[1]), "line 'a': 1 x and 2 y"),
        (bad(x=[2, 1]), "the x must be finite and increase"),
        (bad(x=[1, "nan"]), "the x must be finite and increase"),
        (bad({"log": "y"}, y=[0, 1]), "a logarithmic axis cannot show y ≤ 0"),
        (bad(y=["a", 1]), "panels[0].lines[0].y[0]: not a number"),
    ],
)
def test_a_malformed_figure_is_refused(malformed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_json(malformed, Figure)

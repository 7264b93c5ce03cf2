"""``faithcheck trend``: the order of runs, what is counted, and what is named and left out."""

import json

import pytest

from faithcheck.axioms.measure.statuses import Group
from faithcheck.cli.main import main
from faithcheck.reports.documents.document import to_json
from faithcheck.reports.pages import trend as pages
from faithcheck.reports.trend import outcome, trend
from faithcheck.tests.helpers.documents import alignment, document, explanation, record, typed


def run(day, *statuses, catalogue=None, **changed):
    """A document of this day of January with a record of `mine` for each status."""
    records = [
        record(status, id=f"invariance/mine-{i}", explainer="mine", subject=f"{i}", gap=day / 100)
        for i, status in enumerate(statuses)
    ]
    named = None
    if catalogue:
        named = {
            "version": catalogue,
            "hash": catalogue * 8,
            "tolerances": {},
            "axioms": {"invariance": "a"},
            "pairs": {},
        }
    changed = {"environment": {"user_commit": f"{day:040}"}, "catalogue": named, **changed}
    return document(records, **{"created": f"2026-01-{day:02}T12:00:00+00:00", "tables": [], **changed})


RUNS = {
    "z.json": run(1, "holds", "holds"),
    "a.json": run(3, "holds", "broken claim"),
    "m.json": run(2, "holds", "recorded", seconds=2.5),
}


def test_runs_are_in_the_order_of_their_dates():
    found = trend(RUNS, {})
    assert [one.file for one in found.runs] == ["z.json", "m.json", "a.json"]
    assert [one.verdict.label for one in found.runs] == ["pass", "pass", "red"]
    assert [one.total.get(Group.RED, 0) for one in found.runs] == [0, 0, 1]
    assert [one.seconds for one in found.runs] == [None, 2.5, None]
    assert found.runs[2].gaps == {"invariance": {"mine": 0.03}}
    assert found.runs[1].counts == {"mine": {Group.PASS: 1, Group.RECORDED: 1}}


def test_dates_are_compared_in_their_zones():
    later = run(1, "holds", created="2026-01-01T13:00:00+00:00")
    earlier = run(1, "holds", created="2026-01-01T14:30:00+02:00")
    plain = run(1, "holds", created="2026-01-01T12:45:00")
    found = trend({"later": later, "earlier": earlier, "plain": plain}, {})
    assert [one.file for one in found.runs] == ["earlier", "plain", "later"]


def test_the_page_names_every_run_and_says_what_the_last_one_is():
    content = trend(RUNS, {"bad.json": "not JSON"})
    for page in (pages.to_markdown(content), pages.to_html(content), pages.to_terminal(content, 120)):
        assert "3 runs from 2026-01-01 to 2026-01-03; the last: red: 1 red, 1 check as expected" in page
        assert page.index("z.json") < page.index("m.json") < page.index("a.json")
        assert "1 file left out" in page
        assert "bad.json" in page.replace("<wbr>", "")
        assert "not JSON" in page
        assert "00000000" in page, "the commit"
    html = pages.to_html(content)
    assert 'class="bad"' in html
    assert html.count("<svg") == 3, "verdicts, gaps, seconds"
    assert 'role="img" aria-label="Verdicts' in html


def test_runs_of_another_catalogue_are_shown_as_such():
    """The lines are interrupted there, each number stays in the table, and the note names both."""
    runs = {str(day): run(day, "holds", catalogue="2026.12" if day < 3 else "2027.03") for day in (1, 2, 3, 4)}
    content = trend(runs, {})
    (verdicts, *_) = pages._figures(content)
    assert [line.x for line in verdicts.panels[0].lines] == [[1, 2], [3, 4]]
    assert pages.BREAK in verdicts.note
    for page in (pages.to_markdown(content), pages.to_html(content), pages.to_terminal(content, 120)):
        assert "The runs are of 2 catalogues" in " ".join(page.split())
        assert "2026.12 (" in page
        assert "2027.03 (" in page
    assert pages.to_html(content).count('<th scope="col">mine</th>') == 1 + 1, "one column of an explainer in a table"


@pytest.mark.parametrize(
    ("last", "label"),
    [
        (run(9, "holds"), "pass"),
        (run(9, "predicted violation"), "pass"),
        (run(9, "broken claim"), "red"),
        (run(9, "not run"), "red"),
        (document([record("recorded", expected="UNCLAIMED")]), "recorded"),
        (document([record("unsupported")]), "recorded"),
        (document([record("holds", explainer=None)]), "recorded"),
        (document([]), "recorded"),
    ],
)
def test_nothing_is_green_that_was_not_measured(last, label):
    assert outcome(last).label == label


def test_alignments_of_one_model_and_data_set_share_a_panel():
    runs = {f"run{i}.json": alignment(loo=(1.0, 0.8), attnlrp=(0.5, 0.4)) for i in (2, 10, 1)}
    runs["run2.json"]["model"]["fingerprint"] = "other"
    runs["run1.json"]["explainers"][1]["cost"] = 1.5
    runs["run10.json"]["explainers"][1] |= {"refused": "no rule", "name": "cplrp"}
    content = trend({name: typed(one) for name, one in runs.items()}, {})
    assert [one.file for one in content.alignments] == ["run1.json", "run2.json", "run10.json"]
    agreement, cost = pages._figures(content)
    assert [panel.title for panel in agreement.panels] == ["bert, own", "bert, own"]
    lines = {line.label: (line.x, line.y) for line in agreement.panels[0].lines if line.x == [1]}
    assert lines == {"attnlrp": ([1], [0.25]), "loo": ([1], [0.25])}
    assert [line.y for line in cost.panels[0].lines] == [[1.5]]
    assert "no date" in pages.to_markdown(content)


def test_hostile_names_are_shown_and_not_run():
    content = trend({"<script>.json": run(1, "holds")}, {"<b>": "<script>alert(1)</script>\x1b[31m"})
    html = pages.to_html(content)
    assert html.count("<script>") == 1, "the page's own"
    assert "\x1b" not in html
    assert "&lt;script&gt;.json" in html.replace("<wbr>", "")
    assert "\\x1b" in pages.to_terminal(content)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_reads_a_folder_and_leaves_out_what_it_cannot_read(tmp_path, capsys):
    (tmp_path / "nested").mkdir()
    contents = {
        "nested/good.json": json.dumps(to_json(run(1, "holds"))),
        "alignment.json": json.dumps(alignment(loo=(1.0, 1.0))),
        "map.json": json.dumps(explanation()),
        "old.json": json.dumps(to_json(run(2, "holds", schema_version=1))),
        "undated.json": json.dumps(to_json(run(2, "holds", created="yesterday"))),
        "package.json": '{"name": "x"}',
        "broken.json": "{",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    assert main(["trend", str(tmp_path), "--html", "--md"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("✓ 1 run from 2026-01-01 to 2026-01-01;")
    assert "1 alignment; 5 files left out" in printed
    page = (tmp_path / "trend.md").read_text()
    for name, reason in {
        "map.json": "a document of faithcheck explain",
        "old.json": "schema version 1",
        "undated.json": "its date 'yesterday' cannot be read",
        "package.json": "not a document of faithcheck",
        "broken.json": "not JSON",
    }.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {name} "))
        assert reason in row
    assert (tmp_path / "trend.html").is_file()


def test_a_folder_without_documents_is_refused(tmp_path, capsys):
    assert main(["trend", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["trend", str(tmp_path)]) == 2
    assert "no JSON file" in capsys.readouterr().err

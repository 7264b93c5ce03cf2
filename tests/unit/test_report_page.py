"""The parts of the report's HTML page: overview, matrices, reasons, and the links between them."""

import re

from faithcheck.axioms.measure.statuses import BY_LABEL
from faithcheck.reports.causes import command
from faithcheck.reports.pages import columns, matrices, report
from faithcheck.reports.pages.report import reasons
from faithcheck.reports.pages.visible import anchor, record_anchor
from faithcheck.tests.helpers.documents import document, record


def of(status, axiom, explainer, subject, **changed):
    names = {"id": f"{axiom}/{explainer}-{subject}", "axiom": axiom, "explainer": explainer, "subject": subject}
    return record(status, **names, **changed)


RECORDS = [
    of("holds", "equivalence", None, "a.one"),
    of("holds", "invariance", "loo", "a.one", why="definition"),
    of("holds", "invariance", "loo", "a.two", why="definition", gap=0.5),
    of("broken claim", "invariance", "mine", "a.one"),
    of("unsupported", "invariance", "mine", "b.one"),
    of("predicted violation", "dummy", "mine", "b.one"),
]


def test_the_overview_counts_by_axiom_and_by_family():
    by_axiom, by_family = matrices.overview(RECORDS, ["invariance", "dummy", "equivalence"])
    assert by_axiom.columns == by_family.columns == ["loo", "mine", "models alone"]
    assert [row.name for row in by_axiom.rows] == ["invariance", "dummy", "equivalence"]
    assert [row.name for row in by_family.rows] == ["a", "b"]
    loo, mine, alone = by_axiom.rows[0].cells
    assert loo == matrices.TallyCell("pass", [("✓", "pass", 2)])
    assert mine.group == "red"
    assert mine.counts == [("✗", "red", 1), ("–", "skip", 1)]
    assert alone == matrices.TallyCell("", [])
    counted = [count for row in by_family.rows for cell in row.cells for *_, count in cell.counts]
    assert sum(counted) == len(RECORDS)


def test_a_family_leads_from_the_overview_to_where_it_is_reddest():
    _, by_family = matrices.overview(RECORDS, ["invariance", "dummy", "equivalence"])
    assert [row.link for row in by_family.rows] == ["axiom-invariance-a", "axiom-dummy-b"]
    page = report.to_html(document(RECORDS))
    for row in by_family.rows:
        assert page.count(f'id="{row.link}"') == 1


def test_equivalence_is_last_and_only_what_is_red_is_open():
    page = report.to_html(document(RECORDS, axioms={"equivalence": "e", "invariance": "i", "dummy": "d"}))
    parts = re.findall(r'<details class="(axiom|family)" id="([^"]*)"( open)?>', page)
    assert [(name, bool(is_open)) for _, name, is_open in parts] == [
        ("axiom-invariance", True),
        ("axiom-invariance-a", True),
        ("axiom-invariance-b", False),
        ("axiom-dummy", False),
        ("axiom-dummy-b", False),
        ("axiom-equivalence", False),
        ("axiom-equivalence-a", False),
    ]
    unmeasured = matrices.of_axiom("dummy", "", [(0, of("not run", "dummy", "mine", "b.one"))])
    assert unmeasured.open, "what was not measured is not folded away as green"


def test_every_record_has_a_cell_of_its_own_and_a_row_among_the_reasons():
    records = [*RECORDS, *(record(status) for status in BY_LABEL)]
    page = report.to_html(document(records))
    for number, content in enumerate(records):
        cell = rf'<td id="{re.escape(record_anchor(content.id))}"[^>]*><a href="#measured-{number}">'
        assert len(re.findall(cell, page)) == 1
        assert page.count(f'<tr id="measured-{number}">') == 1
        assert command(document(records), content) in page
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_different_records_have_different_addresses():
    names = ["a b", "a_b", "a~20~b", 'a"b', "ä", "a\u202eb", "a%20b"]
    assert len({anchor(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[\w./~-]+", anchor(name)) for name in names)


def test_what_records_of_one_expectation_share_stands_once():
    content = document(RECORDS)
    (reason,) = [found for found in reasons(content) if ("why", "definition") in found.facts]
    facts = dict(reason.facts)
    assert facts == facts | {"axiom": "invariance", "explainer": "loo", "tolerance": "1e-9", "verdict": "✓ holds"}
    assert reason.columns == ["gap", "reproduce"]
    assert [(row.number, row.subject, row.cells[0]) for row in reason.rows] == [
        (1, "a.one", "0.31"),
        (2, "a.two", "0.5"),
    ]
    assert report.to_html(content).count("<dd>definition</dd>") == 1


def test_a_new_column_of_what_was_measured_is_on_the_page(monkeypatch):
    new = columns.Column("length of the name", lambda record: str(len(record.subject)))
    monkeypatch.setattr(columns, "MEASURED", (*columns.MEASURED, new))
    assert "length of the name" in report.to_html(document(RECORDS))


def test_the_worst_example_of_a_red_record_is_named():
    evidence = {"example": 2, "examples": 8, "features": 1, "maps": [{"of": "the map", "values": [0.5]}]}
    worst = of("broken claim", "dummy", "mine", "b.one", evidence=evidence)
    (found,) = [dict(found.facts) for found in reasons(document([worst]))]
    assert found["worst example"] == "3 of 8"

"""The results document as a Markdown page, as an HTML page, and, short, as the output of a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.causes import Cause, causes, command, command_of_test
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.documents.results import Results, not_run, red_records, verdict
from faithcheck.reports.pages import columns, evidence, matrices, terminal, wording
from faithcheck.reports.pages.rendering import View, to_page
from faithcheck.reports.pages.tables import Table, natural, plain_table
from faithcheck.reports.pages.visible import record_anchor

REDS = 10
"""The number of red records in a notebook; a last line counts the others."""


# --- the pages -------------------------------------------------------------------------------------------------------


def to_markdown(results: Results) -> str:
    """The report as Markdown (tables and ``<details>`` as GitHub renders them)."""
    axioms = [
        (axiom, results.axioms.get(axiom, ""), matrices.matrix(numbered))
        for axiom, numbered in _by_axiom(results).items()
    ]
    expectations = columns.expectations(results.records) if results.records else None
    return to_page("report.md.j2", {**_view(results), "axioms": axioms, "expectations": expectations})


def to_html(results: Results) -> str:
    """The report as one self-contained HTML page: complete without its script, and nothing is loaded."""
    by_axiom = _by_axiom(results)
    parts = {
        "overview": matrices.overview(results.records, [*by_axiom]),
        "axioms": [
            matrices.of_axiom(axiom, results.axioms.get(axiom, ""), numbered) for axiom, numbered in by_axiom.items()
        ],
        "reasons": reasons(results),
    }
    return to_page("report.html.j2", {**_view(results), **parts})


def to_terminal(results: Results, width: int = 80, color: bool = False) -> str:
    """The report as text for a terminal or a pipe."""
    return terminal.render(results, width, color)


def to_notebook(results: Results) -> str:
    """The headline, the summary by axiom, and what is red: HTML for a notebook's cell, without scripts and styles."""
    red = red_records(results)
    view = {
        "headline": wording.headline(results),
        "verdict": verdict(results).label,
        "summary": columns.summary(results.records),
        "reds": [(wording.sentence(record), wording.details(record)) for record in red[:REDS]],
        "more": len(red) - len(red[:REDS]),
    }
    return to_page("notebook.html.j2", view)


def exported(results: Results) -> tuple[list[Table], list[Figure]]:
    """The tables of the page, a matrix for each axiom among them, and its figures."""
    records = results.records
    of_axioms = [_matrix_table(axiom, matrices.matrix(numbered)) for axiom, numbered in _by_axiom(results).items()]
    of_records = [columns.summary(records), *of_axioms, columns.expectations(records)] if records else []
    return [*of_records, *_tables(results)], results.figures


def _matrix_table(axiom: str, matrix: matrices.Matrix) -> Table:
    cells = [[row.subject, *(cell.text if cell else "" for cell in row.cells)] for row in matrix.rows]
    return plain_table(f"{axiom}: pairs by explainers", "", ["pair", *matrix.columns], cells)


def _view(results: Results) -> View:
    """What both pages show."""
    return {
        "results": results,
        "counts": {**msgspec.structs.asdict(results.counts), "not run": not_run(results)},
        "verdict": verdict(results),
        "headline": wording.headline(results),
        "not_run_by_reason": wording.not_run_by_reason(results),
        "left_behind": wording.left_behind(results),
        "degenerate": wording.degenerate(results),
        "not_applicable": wording.not_applicable(results),
        "origins": wording.origins(results),
        "settings": _settings(results),
        "tiles": matrices.tally(results.records),
        "causes": cards(results),
        "summary": columns.summary(results.records) if results.records else None,
        "tables": _tables(results),
    }


def _tables(results: Results) -> list[Table]:
    return [
        *columns.correlations([record for record in results.records if record.axiom == "loo"]),
        *columns.symbolic_gaps(results.records),
        *columns.digits(results),
        *columns.rules(results),
        *columns.slowest(results),
        *columns.measured_tables(results),
    ]


def _by_axiom(results: Results) -> dict[str, list[tuple[int, Record]]]:
    """The records of each axiom that has some, each with its place in the document."""
    of = matrices.grouped(enumerate(results.records), lambda row: row[1].axiom)
    return {name: of[name] for name in matrices.in_order([*results.axioms, *sorted(of)]) if name in of}


def _settings(results: Results) -> dict[str, object]:
    """The settings that fit a line each; origins and what is not applicable are shown in tables and sentences."""
    settings = msgspec.structs.asdict(results.settings)
    lines = {key: value for key, value in settings.items() if not isinstance(value, dict) and key != "not_applicable"}
    lines |= {"run": wording.sharing(results.run)} if results.run else {}
    catalogue = {"catalogue": wording.catalogue(results)} if results.catalogue else {}
    joined = {key: " ".join(value) if isinstance(value, list) else value for key, value in lines.items()}
    return {**catalogue, **{key: value for key, value in joined.items() if value is not None}}


# --- what is red, by cause -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affected:
    """A record or a test that a cause made red: its id, the id of its cell (empty for a test), and what it says."""

    id: str
    cell: str
    text: str


@dataclass(frozen=True)
class Card:
    """A cause of what is red, with its worst record or test."""

    id: str  # of the card's element
    cause: Cause
    symbol: str  # of the worst record's status
    sentence: str  # what the worst record says
    command: str  # what measures it again
    details: list[tuple[str, str]]  # of the worst record, as labels and texts
    affected: list[Affected]  # every record and test of the cause, the worst first
    evidence: evidence.Shown | None = None  # of the worst record
    traceback: str | None = None


def cards(results: Results) -> list[Card]:
    """A card for each cause of what is red, see `causes`."""
    return [_card(results, f"cause-{number}", cause) for number, cause in enumerate(causes(results), 1)]


def _card(results: Results, name: str, cause: Cause) -> Card:
    if not cause.records:
        worst = cause.failures[0]
        affected = [Affected(failure.id, "", failure.message) for failure in cause.failures]
        again = command_of_test(worst.id)
        return Card(name, cause, Group.RED.symbol, worst.message, again, [("id", worst.id)], affected)
    record = cause.records[0]
    return Card(
        name,
        cause,
        wording.symbol(record.status),
        wording.sentence(record),
        command(results, record),
        wording.details(record),
        [Affected(one.id, record_anchor(one.id), wording.cell(one)) for one in cause.records],
        evidence.shown(record),
        record.traceback,
    )


# --- what was expected and why, each reason once ---------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredRow:
    """A record of a reason: its place in the document, its subject, and what differs from other records."""

    number: int
    subject: str
    cells: list[str]


@dataclass(frozen=True)
class Reason:
    """What was expected and why."""

    facts: list[tuple[str, str]]  # labels and texts that all of its records share
    columns: list[str]  # the labels of what differs between them
    rows: list[MeasuredRow]  # one for each record


def reasons(results: Results) -> list[Reason]:
    """What was expected and why, each reason once, with its records and what was measured in them."""
    numbered = matrices.grouped(enumerate(results.records), lambda row: columns.expectation_of(row[1]))
    return [_reason(results, numbered[key]) for key in sorted(numbered)]


def _reason(results: Results, numbered: Sequence[tuple[int, Record]]) -> Reason:
    ordered = sorted(numbered, key=lambda row: natural(row[1].subject))
    records = [record for _, record in ordered]
    texts = {column.title: [column.text(record) for record in records] for column in columns.measured(results, records)}
    differ = [title for title, cells in texts.items() if len(set(cells)) > 1]
    facts = [(column.title, column.text(records[0])) for column in columns.EXPECTATIONS]
    facts += [(title, cells[0]) for title, cells in texts.items() if title not in differ]
    rows = [
        MeasuredRow(number, record.subject, [texts[title][i] for title in differ])
        for i, (number, record) in enumerate(ordered)
    ]
    return Reason([(title, text) for title, text in facts if text], differ, rows)

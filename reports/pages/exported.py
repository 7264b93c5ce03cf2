"""The tables and figures of a document of any kind, as its page shows them, for `faithcheck.reports.pages.export`."""

from __future__ import annotations

from collections.abc import Iterator

from faithcheck.reports import results
from faithcheck.reports.pages import alignment, benchmark, columns, explanation, figures, report
from faithcheck.reports.results import Json

VIEWS = {
    None: report.exported,
    results.ALIGNMENT: alignment.exported,
    results.BENCHMARK: benchmark.exported,
    results.EXPLANATION: explanation.exported,
}
"""What gives the tables and the figures of each kind of document."""


def exported(document: Json) -> tuple[list[Json], list[Json]]:
    """The tables of the page, with the numbers of its figures; and the figures."""
    tables, drawn = VIEWS[document.get("kind")](document)
    return [*tables, *(table for figure in drawn for table in _numbers(figure))], drawn


def _numbers(figure: Json) -> Iterator[Json]:
    for table in figures.to_tables(figure):
        title = ": ".join(filter(None, [figure["title"], table["title"]]))
        yield columns.plain_table(title, "", table["columns"], table["rows"])

"""The results document as the output of a notebook's cell, short: a pure function of the JSON."""

from __future__ import annotations

from faithcheck.reports.pages import columns, wording
from faithcheck.reports.pages.rendering import to_page
from faithcheck.reports.results import Json, red_records, verdict

REDS = 10
"""The number of red records that are shown; a last line counts the others."""


def to_html(results: Json) -> str:
    """The headline, the summary by axiom, and what is red: HTML for a cell, without scripts and style sheets."""
    red = red_records(results)
    return to_page(
        "notebook.html.j2",
        {
            "headline": wording.headline(results),
            "verdict": verdict(results).label,
            "summary": columns.summary(results["records"]),
            "reds": [
                {"sentence": wording.sentence(record), "details": wording.details(record)} for record in red[:REDS]
            ],
            "more": len(red) - len(red[:REDS]),
        },
    )

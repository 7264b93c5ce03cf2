"""The report's table of rules: how many of each LRP method's rules the checks met, and which they did not."""

from __future__ import annotations

from faithcheck.reports.pages import columns
from faithcheck.reports.results import Json

NOTE = "A rule that no check of this run met could be wrong and nothing would show it."
SHOWN = 20


def tables(results: Json) -> list[Json]:
    """The table of rules; none in a document without LRP explainers, or of an older version."""
    rows = [
        [explainer, f"{row['met']} of {row['of']}", _names(row["unmet"])]
        for explainer, row in sorted(results.get("rules", {}).items())
    ]
    return [columns.plain_table("Rules met", NOTE, ["explainer", "rules met", "not met"], rows)] if rows else []


def _names(unmet: list[str]) -> str:
    """The first names, and how many more the results document lists."""
    more = f", and {len(unmet) - SHOWN} more in the results document" if len(unmet) > SHOWN else ""
    return ", ".join(unmet[:SHOWN]) + more

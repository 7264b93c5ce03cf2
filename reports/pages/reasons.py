"""The reasons of the report: each expectation once, with the records that it settled and what was measured in them."""

from __future__ import annotations

from collections.abc import Sequence

from faithcheck.reports.pages import columns
from faithcheck.reports.pages.matrices import grouped
from faithcheck.reports.results import Json


def reasons(results: Json) -> list[Json]:
    """What was expected and why, each reason once, with its records.

    Returns:
        For each reason ``facts``, labels and texts that all of its records share; ``columns``, the labels of what
        differs between them; and ``rows``, one for each record: its ``number``, which is its place in the document,
        its ``subject`` and its ``cells``.
    """
    numbered = grouped(enumerate(results["records"]), lambda row: columns.expectation_of(row[1]))
    return [_reason(results, numbered[key]) for key in sorted(numbered)]


def _reason(results: Json, numbered: Sequence[tuple[int, Json]]) -> Json:
    ordered = sorted(numbered, key=lambda row: columns.natural(row[1]["subject"]))
    records = [record for _, record in ordered]
    texts = {column.title: [column.text(record) for record in records] for column in columns.measured(results, records)}
    differ = [title for title, cells in texts.items() if len(set(cells)) > 1]
    facts = [(column.title, column.text(records[0])) for column in columns.EXPECTATIONS]
    facts += [(title, cells[0]) for title, cells in texts.items() if title not in differ]
    return {
        "facts": [(title, text) for title, text in facts if text],
        "columns": differ,
        "rows": [
            {"number": number, "subject": record["subject"], "cells": [texts[title][i] for title in differ]}
            for i, (number, record) in enumerate(ordered)
        ],
    }

"""The rows of a comparison put together by kind: 39 regressions of one cause are one line, with a count and the worst.

What is red has the kind of its cause, see `faithcheck.reports.causes`; another record that of explainer and axiom.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports import results
from faithcheck.reports.causes import causes
from faithcheck.reports.results import Json

Row = tuple[str, str, str, str]
"""``(change, id, before, now)``."""


@dataclass(frozen=True)
class Described:
    """A record in words.

    Attributes:
        what: what it has in common with the others of its kind.
        likely: the likely cause, if it is red; else empty.
        gap: by which the worst comes first.
    """

    what: str = ""
    likely: str = ""
    gap: float = 0.0


def kinds(name: str, rows: Sequence[Row], old: Json, new: Json) -> list[Json]:
    """The rows of a list by kind: ``change``, ``what``, ``likely`` and ``rows``, the worst first.

    What is red comes before what is missing or skipped, and then the kind of the most rows.

    Args:
        name: that of the list; what is no longer red has the kind that it had in the old document.
        rows: of the list.
        old: the document before.
        new: the document now.
    """
    documents = (old, new) if name == "mended" else (new, old)
    described = _described(documents[1]) | _described(documents[0])
    found: dict[tuple[str, str, str], list[tuple[float, Row]]] = {}
    for row in rows:
        about = described.get(row[1]) or described.get(re.sub(r" \(\d+\)$", "", row[1])) or Described(row[1])
        found.setdefault((row[0], about.what, about.likely), []).append((about.gap, row))
    grouped = [
        {"change": change, "what": what, "likely": likely, "rows": [row for _, row in _worst_first(members)]}
        for (change, what, likely), members in found.items()
    ]
    return sorted(grouped, key=lambda kind: (not kind["likely"], -len(kind["rows"])))


def _worst_first(members: Iterable[tuple[float, Row]]) -> list[tuple[float, Row]]:
    return sorted(members, key=lambda member: -member[0])


def _described(document: Json) -> dict[str, Described]:
    """Each record and failed test in words, by id; of an alignment, whose explainers are few, none."""
    if document.get("kind"):
        return {row["name"]: Described() for row in document.get("explainers", [])}
    described = {
        record["id"]: Described(", ".join(filter(None, (record["explainer"], record["axiom"]))), gap=_size(record))
        for record in document["records"]
    }
    for cause in causes(document):
        for red in (*cause.records, *cause.failures):
            described[red["id"]] = Described(cause.title, cause.likely, _size(red))
    return described


def _size(record: Json) -> float:
    """The gap of a record; infinite where a red record has none."""
    gap = record.get("gap")
    if isinstance(gap, int | float):
        return gap
    return math.inf if results.group_of(record.get("status", "")) is Group.RED else 0.0

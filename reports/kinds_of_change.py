"""The rows of a comparison put together by kind: 39 regressions of one cause are one line, with a count and the worst.

What is red has the kind of its cause, see `faithcheck.reports.causes`; another record that of explainer and axiom.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from faithcheck.reports.causes import causes, size
from faithcheck.reports.documents.alignment import Alignment
from faithcheck.reports.documents.document import Document
from faithcheck.reports.documents.results import Results


class Change(NamedTuple):
    """A change of one record, or of a ratio, in words."""

    change: str
    id: str  # of the record, or the name of the ratio
    before: str
    now: str


@dataclass(frozen=True)
class KindOfChange:
    """Changes of one kind."""

    change: str  # what changed in all of them
    what: str  # what their records have in common
    likely: str  # the likely cause, if they are red; else empty
    rows: list[Change]  # the worst first


@dataclass(frozen=True)
class _Described:
    """What a record has in common with the others of its kind, its likely cause, and by how much it is violated."""

    what: str = ""
    likely: str = ""
    size: float = 0.0


def kinds(changes: Sequence[Change], documents: Sequence[Document]) -> list[KindOfChange]:
    """The changes by kind: what is red before what is missing or skipped, and then the kind of the most changes.

    Args:
        changes: of one list of a comparison.
        documents: the two documents; a record has the kind that it has in the first one that has it.
    """
    described: dict[str, _Described] = {}
    for document in documents:
        described = _described(document) | described
    found: dict[tuple[str, str, str], list[tuple[float, Change]]] = {}
    for row in changes:
        about = described.get(row.id) or described.get(re.sub(r" \(\d+\)$", "", row.id)) or _Described(row.id)
        found.setdefault((row.change, about.what, about.likely), []).append((about.size, row))
    grouped = [
        KindOfChange(*key, [row for _, row in sorted(members, key=lambda member: -member[0])])
        for key, members in found.items()
    ]
    return sorted(grouped, key=lambda kind: (not kind.likely, -len(kind.rows)))


def _described(document: Document) -> dict[str, _Described]:
    """Each record and failed test by its id; an alignment has few explainers, which are of one kind."""
    if isinstance(document, Alignment):
        return {row.name: _Described() for row in document.explainers}
    if not isinstance(document, Results):
        return {}
    described = {
        record.id: _Described(", ".join(filter(None, (record.explainer, record.axiom))), size=size(record))
        for record in document.records
    }
    for cause in causes(document):
        described |= {record.id: _Described(cause.title, cause.likely, size(record)) for record in cause.records}
        described |= {failure.id: _Described(cause.title, cause.likely) for failure in cause.failures}
    return described

"""The matrices of the report: explainers by axiom, explainers by family, and the pairs of each family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.pages import wording
from faithcheck.reports.pages.anchors import anchor, of_record
from faithcheck.reports.pages.columns import natural
from faithcheck.reports.results import Json, group_of

Item = TypeVar("Item")
Key = TypeVar("Key")

MODELS_ALONE = "models alone"
"""The column of records in which no explainer takes part."""
LAST = "equivalence"
"""The axiom that measures the pairs themselves, and no explainer, comes last."""
_WORST_FIRST = (Group.RED, Group.UNMEASURED, Group.PREDICTED, Group.PASS, Group.RECORDED, Group.SKIP)


def family_of(record: Json) -> str:
    """The part of the subject's name before the first dot: ``product`` of ``product.x1x2x3``."""
    return str(record["subject"]).partition(".")[0]


def in_order(axioms: Iterable[str]) -> list[str]:
    """The axioms in their order, each once, `LAST` at the end."""
    return sorted(dict.fromkeys(axioms), key=lambda axiom: axiom == LAST)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def overview(records: Sequence[Json], axioms: Sequence[str]) -> list[Json]:
    """Two matrices with a column for each explainer: a row for each axiom, and a row for each family."""

    def family_link(rows: Sequence[Json]) -> str:
        return _family_id(min(rows, key=lambda record: _WORST_FIRST.index(group_of(record["status"]))))

    of_axiom, of_family = grouped(records, lambda record: str(record["axiom"])), grouped(records, family_of)
    by_axiom = {axiom: of_axiom[axiom] for axiom in axioms}
    by_family = {family: of_family[family] for family in sorted(of_family, key=natural)}
    return [
        _tallied("Explainers by axiom", "axiom", by_axiom, lambda rows: _axiom_id(rows[0]["axiom"])),
        _tallied("Explainers by family of pairs", "family", by_family, family_link),
    ]


def of_axiom(axiom: str, meaning: str, numbered: Sequence[tuple[int, Json]]) -> Json:
    """The records of one axiom, family by family. Families, and the axiom, are open if something in them is red.

    Args:
        axiom: its name.
        meaning: its summary, maybe empty.
        numbered: its records, each with its place in the document.
    """
    records = [record for _, record in numbered]
    families = grouped(numbered, lambda row: family_of(row[1]))
    return {
        "name": axiom,
        "id": _axiom_id(axiom),
        "meaning": meaning,
        "tally": tally(records),
        "open": _is_red(records),
        "families": [_family(families[name]) for name in sorted(families, key=natural)],
    }


def tally(records: Sequence[Json]) -> list[Json]:
    """How many records have each status, with what a page says of the status."""
    return [{"count": count, **of_status(status)} for status, count in wording.tally_of([*records]).items()]


def of_status(status: str) -> Json:
    """What a page shows of a status: its symbol, its meaning, and the group that gives it its colour."""
    return {
        "status": status,
        "symbol": wording.symbol(status),
        "meaning": wording.meaning(status),
        "group": group_of(status).label,
    }


def matrix(numbered: Sequence[tuple[int, Json]]) -> Json:
    """Subjects as rows, explainers as columns; a cell is None where no record exists."""
    cells = {(record["subject"], _column(record)): _cell(i, record) for i, record in numbered}
    explainers = _explainers([record for _, record in numbered])
    return {
        "columns": explainers,
        "rows": [
            {"subject": subject, "cells": [cells.get((subject, explainer)) for explainer in explainers]}
            for subject in sorted({subject for subject, _ in cells}, key=natural)
        ],
    }


def _family(numbered: Sequence[tuple[int, Json]]) -> Json:
    records = [record for _, record in numbered]
    return {
        "name": family_of(records[0]),
        "id": _family_id(records[0]),
        "tally": tally(records),
        "open": _is_red(records),
        **matrix(numbered),
    }


def _cell(i: int, record: Json) -> Json:
    return {
        "id": of_record(record),
        "number": i,
        "status": record["status"],
        "group": group_of(record["status"]).label,
        "text": wording.cell(record),
    }


def _tallied(
    title: str, heading: str, named: Mapping[str, Sequence[Json]], link: Callable[[Sequence[Json]], str]
) -> Json:
    """A matrix of tallies: a row for each name and its records, a column for each explainer."""
    explainers = _explainers([record for records in named.values() for record in records])
    rows = [(name, records, grouped(records, _column)) for name, records in named.items()]
    return {
        "title": title,
        "heading": heading,
        "columns": explainers,
        "rows": [
            {"name": name, "link": link(records), "cells": [_groups(of.get(column, [])) for column in explainers]}
            for name, records, of in rows
        ],
    }


def _groups(records: Sequence[Json]) -> Json:
    """How many records each group has, the worst group first; the cell has the colour of the worst."""
    groups = [group_of(record["status"]) for record in records]
    met = [group for group in _WORST_FIRST if group in groups]
    return {
        "group": met[0].label if met else "",
        "counts": [{"symbol": group.symbol, "label": group.label, "count": groups.count(group)} for group in met],
    }


def _explainers(records: Sequence[Json]) -> list[str]:
    """The columns: the explainers by name, at the end the models alone."""
    return sorted({_column(record) for record in records}, key=lambda name: (name == MODELS_ALONE, name))


def _column(record: Json) -> str:
    return str(record["explainer"] or MODELS_ALONE)


def _is_red(records: Sequence[Json]) -> bool:
    return any(group_of(record["status"]) in (Group.RED, Group.UNMEASURED) for record in records)


def _axiom_id(axiom: str) -> str:
    return f"axiom-{anchor(axiom)}"


def _family_id(record: Json) -> str:
    return f"{_axiom_id(record['axiom'])}-{anchor(family_of(record))}"

"""The matrices of the report: explainers by axiom, explainers by family, and the pairs of each family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group, group_of
from faithcheck.reports.pages import wording
from faithcheck.reports.pages.tables import natural
from faithcheck.reports.pages.visible import anchor, record_anchor

Item = TypeVar("Item")
Key = TypeVar("Key")
Numbered = Sequence[tuple[int, Record]]
"""Records, each with its place in the document."""

MODELS_ALONE = "models alone"
"""The column of records in which no explainer takes part."""
LAST = "equivalence"
"""The axiom that measures the pairs themselves, and no explainer, comes last."""
_WORST_FIRST = (Group.RED, Group.UNMEASURED, Group.PREDICTED, Group.PASS, Group.RECORDED, Group.SKIP)


@dataclass(frozen=True)
class Tile:
    """How many records have a status, and what a page says of the status."""

    status: str
    count: int
    symbol: str
    meaning: str
    group: str


@dataclass(frozen=True)
class Cell:
    """A record in a matrix: the id of the cell, the record's place in the document, its status, and its text."""

    id: str
    number: int
    status: str
    group: str
    text: str


@dataclass(frozen=True)
class Row:
    """A subject with a cell for each explainer; None where no record exists."""

    subject: str
    cells: list[Cell | None]


@dataclass(frozen=True)
class Matrix:
    """Subjects as rows, explainers as columns."""

    columns: list[str]
    rows: list[Row]


@dataclass(frozen=True)
class Part:
    """An axiom, or a family of pairs in it; ``open`` if something in it is red."""

    id: str  # of its element
    name: str
    tally: list[Tile]  # how many of its records have each status
    open: bool
    meaning: str = ""  # the summary of an axiom
    families: Sequence[Part] = ()  # of an axiom
    matrix: Matrix | None = None  # of a family


@dataclass(frozen=True)
class TallyCell:
    """How many records have each group, ``(symbol, label, count)``, the worst first, in the colour of the worst."""

    group: str
    counts: list[tuple[str, str, int]]


@dataclass(frozen=True)
class TallyRow:
    """The tallies of an axiom or a family for each explainer, and the id of the element that its name leads to."""

    name: str
    link: str
    cells: list[TallyCell]


@dataclass(frozen=True)
class TallyMatrix:
    """A matrix of tallies: a row for each axiom or family, a column for each explainer."""

    title: str
    heading: str
    columns: list[str]
    rows: list[TallyRow]


def in_order(axioms: Iterable[str]) -> list[str]:
    """The axioms in their order, each once, `LAST` at the end."""
    return sorted(dict.fromkeys(axioms), key=lambda axiom: axiom == LAST)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by their key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def overview(records: Sequence[Record], axioms: Sequence[str]) -> list[TallyMatrix]:
    """Two matrices with a column for each explainer: a row for each axiom, and a row for each family."""

    def family_link(rows: Sequence[Record]) -> str:
        return _family_id(min(rows, key=lambda record: _WORST_FIRST.index(record.group)))

    of_axiom = grouped(records, lambda record: record.axiom)
    of_family = grouped(records, lambda record: record.family)
    by_axiom = {axiom: of_axiom[axiom] for axiom in axioms}
    by_family = {family: of_family[family] for family in sorted(of_family, key=natural)}
    return [
        _tallied("Explainers by axiom", "axiom", by_axiom, lambda rows: _axiom_id(rows[0].axiom)),
        _tallied("Explainers by family of pairs", "family", by_family, family_link),
    ]


def of_axiom(axiom: str, meaning: str, numbered: Numbered) -> Part:
    """The records of one axiom, family by family."""
    records = [record for _, record in numbered]
    by_family = grouped(numbered, lambda row: row[1].family)
    families = [_family(name, by_family[name]) for name in sorted(by_family, key=natural)]
    return Part(_axiom_id(axiom), axiom, tally(records), _is_red(records), meaning, families)


def tally(records: Sequence[Record]) -> list[Tile]:
    """How many records have each status, with what a page says of the status."""
    return [
        Tile(status, count, wording.symbol(status), wording.meaning(status), group_of(status).label)
        for status, count in wording.tally_of(records).items()
    ]


def matrix(numbered: Numbered) -> Matrix:
    """The matrix of these records."""
    cells = {
        (record.subject, _column(record)): Cell(
            record_anchor(record.id), i, record.status, record.group.label, wording.cell(record)
        )
        for i, record in numbered
    }
    explainers = _explainers([record for _, record in numbered])
    subjects = sorted({subject for subject, _ in cells}, key=natural)
    return Matrix(explainers, [Row(one, [cells.get((one, explainer)) for explainer in explainers]) for one in subjects])


def _family(name: str, numbered: Numbered) -> Part:
    records = [record for _, record in numbered]
    return Part(_family_id(records[0]), name, tally(records), _is_red(records), matrix=matrix(numbered))


def _tallied(
    title: str, heading: str, named: Mapping[str, Sequence[Record]], link: Callable[[Sequence[Record]], str]
) -> TallyMatrix:
    explainers = _explainers([record for records in named.values() for record in records])
    rows = []
    for name, records in named.items():
        by_explainer = grouped(records, _column)
        cells = [_groups(by_explainer.get(column, [])) for column in explainers]
        rows.append(TallyRow(name, link(records), cells))
    return TallyMatrix(title, heading, explainers, rows)


def _groups(records: Sequence[Record]) -> TallyCell:
    groups = [record.group for record in records]
    met = [group for group in _WORST_FIRST if group in groups]
    counts = [(group.symbol, group.label, groups.count(group)) for group in met]
    return TallyCell(met[0].label if met else "", counts)


def _explainers(records: Sequence[Record]) -> list[str]:
    """The columns: the explainers by name, at the end the models alone."""
    return sorted({_column(record) for record in records}, key=lambda name: (name == MODELS_ALONE, name))


def _column(record: Record) -> str:
    return record.explainer or MODELS_ALONE


def _is_red(records: Sequence[Record]) -> bool:
    return any(record.group in (Group.RED, Group.UNMEASURED) for record in records)


def _axiom_id(axiom: str) -> str:
    return f"axiom-{anchor(axiom)}"


def _family_id(record: Record) -> str:
    return f"{_axiom_id(record.axiom)}-{anchor(record.family)}"

"""A table: columns of texts that know their title, their alignment and their colour, shown in one way on all pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.pages import wording

Item = TypeVar("Item")


@dataclass(frozen=True)
class Column(Generic[Item]):
    """What a column of a table shows."""

    title: str
    text: Callable[[Item], str]  # a row's cell; a column with nothing but empty cells is left out
    group: Group | None = None  # in whose colour it is shown


@dataclass(frozen=True)
class ShownColumn:
    """A column with its cells."""

    title: str
    cells: Sequence[str]  # a text for each row
    group: str = ""  # the label of the group in whose colour it is shown; empty for none

    @cached_property
    def words(self) -> bool:
        """Whether it holds words, which are aligned on the left; numbers are aligned on the right."""
        return any(re.search(r"[^\W\d]{2}", cell) and cell not in ("nan", "inf", "-inf") for cell in self.cells)


@dataclass(frozen=True)
class Table:
    """A table as it is shown."""

    title: str
    note: str  # a sentence below the table, maybe empty
    columns: Sequence[ShownColumn]  # each with as many cells as there are rows

    @property
    def titles(self) -> list[str]:
        """The headings."""
        return [column.title for column in self.columns]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells, row by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))

    def only(self, titles: Sequence[str]) -> Table:
        """The table with the columns of these titles alone, in this order."""
        by_title = {column.title: column for column in self.columns}
        return Table(self.title, self.note, [by_title[title] for title in titles if title in by_title])


def table(title: str, note: str, columns: Sequence[Column[Item]], items: Iterable[Item]) -> Table:
    """A table with a row for each item. A column without any text is left out."""
    rows = list(items)
    shown = [
        ShownColumn(column.title, [column.text(item) for item in rows], column.group.label if column.group else "")
        for column in columns
    ]
    return Table(title, note, [column for column in shown if any(column.cells)])


def plain_table(title: str, note: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of cells, strings or numbers."""
    cells = [[wording.number(cell, 4) for cell in row] for row in rows]
    return Table(title, note, [ShownColumn(str(name), [row[i] for row in cells]) for i, name in enumerate(columns)])


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key in which ``x2`` comes before ``x10``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]

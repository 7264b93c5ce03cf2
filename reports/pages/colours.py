"""The colours: of a page, of a verdict by the group of its status, on a terminal too, and of relevance in a map.

Every text on a page has a contrast of at least `CONTRAST` with what it stands on; a unit test computes it.
"""

from dataclasses import dataclass

from faithcheck.axioms.measure.statuses import Group

CONTRAST = 4.5
"""The least contrast of text that WCAG 2 AA asks for."""


@dataclass(frozen=True)
class Colour:
    """A colour as CSS writes it, on a light page and on a dark one."""

    light: str
    dark: str


SURFACES = {
    "page": Colour("#f8f9fa", "#121519"),
    "card": Colour("#ffffff", "#1a1e23"),
    "stripe": Colour("#f0f2f4", "#22272e"),
}
"""What text stands on: the page, cards and tables, headings of tables and code."""
TEXTS = {
    "ink": Colour("#1b1f24", "#e6e9ed"),
    "soft": Colour("#57606a", "#a3adb8"),
    "link": Colour("#0b57a4", "#86b6f6"),
}
"""The colours of text: plain, of less weight, and of links. The ring around what has the focus is a link's, too."""
LINES = {"line": Colour("#dde1e6", "#323941")}
"""Borders, which hold no text."""


@dataclass(frozen=True)
class PageColours:
    """The colours of a group on an HTML page."""

    text: Colour  # of its symbol and name, on any of the `SURFACES` and in a cell, and of the line of a tile or a card
    cell: Colour  # the background of a table's cell


TERMINAL: dict[Group, str] = {
    Group.PASS: "green",
    Group.PREDICTED: "cyan",
    Group.RECORDED: "",
    Group.RED: "bold red",
    Group.SKIP: "dim",
    Group.UNMEASURED: "bold red",
}
"""The style of each group for Rich."""

_PLAIN_CELL = SURFACES["card"]
_RED = PageColours(Colour("#b3202a", "#ff9a94"), Colour("#fde8e8", "#471a1d"))

PAGE: dict[Group, PageColours] = {
    Group.PASS: PageColours(Colour("#126b3d", "#6ccf9d"), Colour("#eaf6ef", "#142a20")),
    Group.PREDICTED: PageColours(Colour("#2150ac", "#93baf9"), Colour("#e6eefc", "#1a2a45")),
    Group.RECORDED: PageColours(TEXTS["ink"], _PLAIN_CELL),
    Group.RED: _RED,
    Group.SKIP: PageColours(TEXTS["soft"], _PLAIN_CELL),
    Group.UNMEASURED: _RED,
}
"""The colours of each group on an HTML page."""

POSITIVE_RELEVANCE, NEGATIVE_RELEVANCE = (200, 30, 45), (30, 90, 200)
"""Red, green and blue, 0 to 255, of the largest relevance for and against the output; smaller ones are paler."""
UNSIGNED_RELEVANCE = (105, 45, 170)
"""The same in a map that has no negative value."""


def variables(dark: bool) -> list[tuple[str, str]]:
    """The colours as names and values of CSS variables, for a dark or for a light page."""
    named = {**SURFACES, **TEXTS, **LINES}
    for group, colours in PAGE.items():
        named |= {group.label: colours.text, f"{group.label}-cell": colours.cell}
    return [(name, colour.dark if dark else colour.light) for name, colour in named.items()]

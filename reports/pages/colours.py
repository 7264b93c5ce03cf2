"""The colours: of a verdict, by the group of its status, on a terminal and on a page; and of relevance in a map."""

from __future__ import annotations

from dataclasses import dataclass

from faithcheck.axioms.engine.statuses import Group


@dataclass(frozen=True)
class PageColours:
    """The colours of a group on an HTML page, as CSS writes them: on a light page and on a dark one.

    Attributes:
        light: the text on a light page.
        dark: the text on a dark page.
        light_cell: the background of a table's cell on a light page.
        dark_cell: the background of a table's cell on a dark page.
    """

    light: str
    dark: str
    light_cell: str = "transparent"
    dark_cell: str = "transparent"


TERMINAL: dict[Group, str] = {
    Group.PASS: "green",
    Group.PREDICTED: "cyan",
    Group.RECORDED: "",
    Group.RED: "bold red",
    Group.SKIP: "dim",
    Group.UNMEASURED: "bold red",
}
"""The style of each group for Rich."""

PAGE: dict[Group, PageColours] = {
    Group.PASS: PageColours("#1a7f4b", "#62c894"),
    Group.PREDICTED: PageColours("#2456b8", "#8ab4f8", "#e8effc", "#1a2942"),
    Group.RECORDED: PageColours("currentColor", "currentColor"),
    Group.RED: PageColours("#c0272d", "#ff8a84", "#fdeaea", "#43191b"),
    Group.SKIP: PageColours("#8b929a", "#7b848d"),
    Group.UNMEASURED: PageColours("#c0272d", "#ff8a84", "#fdeaea", "#43191b"),
}
"""The colours of each group on an HTML page."""

POSITIVE_RELEVANCE, NEGATIVE_RELEVANCE = (200, 30, 45), (30, 90, 200)
"""Red, green and blue, 0 to 255, of the largest relevance for and against the output; smaller ones are paler."""

"""One explainer's map of one text as an HTML page and as coloured text for a terminal: pure functions of its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.color import Color
from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from faithcheck.reports.pages import wording
from faithcheck.reports.pages.colours import NEGATIVE_RELEVANCE, POSITIVE_RELEVANCE
from faithcheck.reports.pages.rendering import to_page
from faithcheck.reports.pages.visible import visible
from faithcheck.reports.results import Json

ROWS = 40  # of the table on a terminal; the page has all rows


def facts(view: Json) -> list[tuple[str, str]]:
    """How the map was measured, and its sum: labels and text."""
    gap = view["sum"] - view["change"]
    origin = f", {view['origin']}" if view["origin"] else ""
    what = "next token" if view["decoder"] else "class"
    return [
        ("model", f"{view['model']}: {view['architecture']}"),
        ("explainer", f"{view['explainer']}{origin}: {view['how']}"),
        ("explained", f"the logit of the {what} {view['explained']}; relevance is read at the word embeddings"),
        ("sum of the map", f"{wording.number(view['sum'], 4)}, special tokens included"),
        ("f(x) − f(baseline)", f"{wording.number(view['change'], 4)}, the baseline being word embeddings of 0"),
        ("difference", wording.number(gap, 4)),
        ("colours", colours(view)),
    ]


def colours(view: Json) -> str:
    """The meaning of the colours."""
    if not view["largest"]:
        return "none: every token that is not special has relevance 0"
    return (
        f"red for, blue against; full at ±{wording.number(view['largest'], 3)}, the largest of the tokens that are not "
        "special; a special token may exceed it"
    )


def to_html(view: Json) -> str:
    """The map as one self-contained HTML page: no scripts, no network."""
    return to_page(
        "explanation.html.j2",
        {"view": view, "facts": facts(view), "positive": POSITIVE_RELEVANCE, "negative": NEGATIVE_RELEVANCE},
    )


def print_to(console: Console, view: Json) -> None:
    """Print the map: the tokens in colour, the classes, the numbers and the settings."""
    for part in _parts(visible(view)):
        console.print(part)


def _parts(view: Json) -> Iterator[RenderableType]:
    yield coloured(view["tokens"])
    for note in view["notes"]:
        yield Text(f"\n{note}", style="yellow")
    yield _classes_table(view["classes"])
    yield from _tokens_table(view["tokens"])
    grid = Table.grid(padding=(0, 2))
    for label, text in facts(view):
        grid.add_row(Text(label, style="dim"), Text(text))
    yield grid


def coloured(tokens: Sequence[Json]) -> Text:
    """The text, each token on its colour; special tokens are underlined."""
    line = Text()
    for token in tokens:
        if line and not token["glued"]:
            line.append(" ")
        line.append(token["text"], _style(token))
    return line


def _style(token: Json) -> Style:
    red, green, blue = (
        round(255 + abs(token["strength"]) * (full - 255))
        for full in (POSITIVE_RELEVANCE if token["strength"] > 0 else NEGATIVE_RELEVANCE)
    )
    # Black or white ink, whichever contrasts more (relative luminance, roughly).
    ink = 0 if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else 255
    if not token["strength"]:
        return Style(underline=token["special"])
    back, front = Color.from_rgb(red, green, blue), Color.from_rgb(ink, ink, ink)
    return Style(color=front, bgcolor=back, underline=token["special"])


def _classes_table(classes: Sequence[Json]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "output", "logit"):
        table.add_column(column, justify="right" if column == "logit" else "left")
    for row in classes:
        cells = ("→" if row["explained"] else "", f"{row['number']} {row['name']}", wording.number(row["logit"], 4))
        table.add_row(*map(Text, cells), style="bold" if row["explained"] else "")
    return table


def _tokens_table(tokens: Sequence[Json]) -> Iterator[RenderableType]:
    order = sorted(range(len(tokens)), key=lambda i: -abs(tokens[i]["value"]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, right in (("#", True), ("token", False), ("relevance", True), ("", False)):
        table.add_column(column, justify="right" if right else "left")
    for i in sorted(order[:ROWS]):
        token = tokens[i]
        value = wording.number(token["value"], 3)
        cells = (Text(str(i)), Text(token["text"], _style(token)), Text(value))
        table.add_row(*cells, Text("special" if token["special"] else "", style="dim"))
    yield table
    if len(tokens) > ROWS:
        yield Text(f"the {ROWS} largest of {len(tokens)} tokens; --html has all\n", style="dim")

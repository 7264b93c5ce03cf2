"""From a view to text: a template filled in for a page, Rich's output for a terminal."""

import io
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.pages import colours, figures, tables
from faithcheck.reports.pages.visible import anchor, visible
from faithcheck.reports.pages.wording import number

View: TypeAlias = Mapping[str, object]
"""What a template shows, by the names that it has there."""
Content = TypeVar("Content")


def to_page(template: str, view: View) -> str:
    """Fill in a template. Its name ends in ``.html.j2``, ``.svg.j2`` or ``.md.j2``: all text is escaped for that."""
    html = not template.endswith(".md.j2")
    text = _environment(html).get_template(template).render(visible(view))
    return text if html else re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def to_terminal(
    parts: Callable[[Content], Iterable[RenderableType]],
    content: Content,
    width: int,
    color: bool,
    colors: Literal["standard", "auto"] = "standard",
) -> str:
    """Print the parts of the content with Rich, one below the other, and return the text.

    A string in a part is text, never Rich's markup. The colours are the 16 standard ones, or as many as the terminal
    says that it has.
    """
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=color,
        color_system=colors if color else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts(visible(content)):
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def views_of(
    name: str,
    view: Callable[[Content], View],
    parts: Callable[[Content], Iterable[RenderableType]],
    colors: Literal["standard", "auto"] = "standard",
) -> tuple[Callable[[Content], str], Callable[[Content], str], Callable[..., str]]:
    """How content is shown: as a page of Markdown, as one self-contained HTML page, and as text for a terminal.

    The templates of this name show what ``view`` makes of the content, a terminal its ``parts``, see `to_terminal`. The
    function for a terminal takes its ``width`` and whether to use ``color``.
    """

    def markdown(content: Content) -> str:
        return to_page(f"{name}.md.j2", view(content))

    def html(content: Content) -> str:
        return to_page(f"{name}.html.j2", view(content))

    def terminal(content: Content, width: int = 80, color: bool = False) -> str:
        return to_terminal(parts, content, width, color, colors)

    return markdown, html, terminal


def terminal_table(table: tables.Table) -> Table:
    """A table for Rich: words on the left, numbers on the right, columns of a group in its colour."""
    styles = {group.label: style for group, style in colours.TERMINAL.items()}
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in table.columns:
        justify: Literal["left", "right"] = "left" if column.words else "right"
        drawn.add_column(column.title, justify=justify, style=styles.get(column.group, ""), overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def markdown(value: object) -> Markup:
    """Text without Markdown of its own, on one line: safe in a paragraph and in a cell of a table."""
    if isinstance(value, Markup):  # a macro's output, or text that is escaped already
        return value
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\|*_`\[\]~$#])", r"\\\1", text)
    # GitHub finds mentions and issues (@name, #1, GH-1) in the text as shown, where an escape is a plain character.
    text = re.sub(r"(?i)([@#]|\bgh-)(?=\w)", r"\1<!-- -->", text)
    text = re.sub(r"(?i):(?=//)|(?<=www)\.", lambda found: f"&#{ord(found[0])};", text)  # GitHub links bare addresses
    # A line that starts so would be a list, a heading or a rule.
    return Markup(re.sub(r"^(\d*)([-+=.)])(?=\s|$|[-=])", r"\1\\\2", text))


def fenced(text: str) -> Markup:
    """Text as a block of code in Markdown, in a fence that is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return Markup(f"{fence}text\n{text.rstrip()}\n{fence}")


def breakable(name: str) -> Markup:
    """A name that may be broken after a dot, a slash or an underline, and so not between any two letters."""
    return Markup(re.sub(r"(?<=[\w.])([._/])(?=\w)", r"\1<wbr>", str(escape(name))))


def sections(page: str) -> list[tuple[Markup, Markup]]:
    """The id and the heading of each section of a page that has both, in their order."""
    found = re.findall(r'<section id="([^"]*)"[^>]*>\s*<h2>(.*?)\s*(?:<small|</h2>)', page, flags=re.DOTALL)
    return [(Markup(name), Markup(heading)) for name, heading in found]


def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,  # what is Markup stays as it is; in Markdown `finalize` makes Markup of everything
        finalize=None if html else markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        number=lambda value: number(value, 4),
        fenced=fenced,
        breakable=breakable,
        svg=lambda figure: Markup(figures.to_svg(figure)),
        numbers=lambda figure: list(figures.to_tables(figure)),
        anchor=lambda heading: anchor(heading.replace(" ", "-")),
        in_html=lambda text: Markup(escape(" ".join(text.split()))),
        sections=sections,
    )
    environment.globals.update(
        colours=colours.variables, groups=[group.label for group in Group], red_symbol=Group.RED.symbol
    )
    return environment

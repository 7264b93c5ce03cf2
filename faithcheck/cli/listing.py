"""``faithcheck pairs``, ``explainers``, ``axioms``, ``catalogue``: a table, or tab-separated lines for a pipe."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from faithcheck import catalogue as content
from faithcheck.cli import output
from faithcheck.explainers.names import GROUP, installed, provider
from faithcheck.options import OptionError, names
from faithcheck.reports.documents.results import DIGITS
from faithcheck.reports.pages.visible import visible

if TYPE_CHECKING:
    from rich.table import Table

BUILT_IN = "built-in"
Row = tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the argument of the command."""
    parser.add_argument("glob", nargs="?", help="only the names with this part, or that match a glob such as 'batch*'")


def pairs() -> list[Row]:
    """Every registered pair, its name and why its two models are one function; and the pairs that packages offer."""
    from faithcheck.models.pair import registered_pairs  # not at the top: torch takes seconds to import

    offered = installed(names.PAIRS).items()
    return [
        *((pair.name, " ".join(pair.why.split())) for pair in registered_pairs().values()),
        *((name, f"offered by {provider(point)}; --pairs={name} takes them") for name, point in offered),
    ]


def explainers() -> list[Row]:
    """Every explainer: its name, its origin and its summary; for an entry point the object, which is not imported."""
    from faithcheck.explainers.registry import builtin_explainers

    return [
        *((name, BUILT_IN, getattr(explainer, "summary", "")) for name, explainer in builtin_explainers().items()),
        *((name, provider(point), point.value) for name, point in installed(GROUP).items()),
    ]


def axioms() -> list[Row]:
    """Every axiom: its name, whether it is measured on pairs or on single models, and its summary."""
    from faithcheck.axioms.measure.registry import AXIOMS

    return [(name, axiom.measured_on, axiom.summary) for name, axiom in AXIOMS.items()]


def catalogue() -> list[Row]:
    """The catalogue of this version and its hash; then each tolerance, axiom and pair, with its digest and content."""
    saved = content.saved()
    digests = content.summary(saved)
    size = f"{len(saved['axioms'])} axioms, {len(saved['pairs'])} pairs"
    return [
        (f"faithcheck {saved['version']}", "catalogue", saved["hash"][:DIGITS], size),
        *((dtype, "tolerance", "", f"{tolerance:g}") for dtype, tolerance in saved["tolerances"].items()),
        *(
            (name, part.removesuffix("s"), digests[part][name], content.in_words(entry))
            for part in ("axioms", "pairs")
            for name, entry in saved[part].items()
        ),
    ]


class Listed(NamedTuple):
    """A command that lists names: what makes its rows, their columns, and an example of its use."""

    rows: Callable[[], list[Row]]
    columns: tuple[str, ...]
    example: str


LISTS = {
    "pairs": Listed(pairs, ("pair", "why its two models are one function"), "faithcheck pairs 'linear_attention.*'"),
    "explainers": Listed(explainers, ("explainer", "from", "summary"), "faithcheck explainers | cut -f1"),
    "axioms": Listed(axioms, ("axiom", "of", "summary"), "faithcheck axioms"),
    "catalogue": Listed(
        catalogue, ("name", "part", "digest", "what is measured and expected"), "faithcheck catalogue 'product.*'"
    ),
}


def main(arguments: argparse.Namespace) -> int:
    """Print the list of this name, or the rows whose name matches the glob. Returns the exit code, 0."""
    list_rows, columns, _ = LISTS[arguments.command]
    glob = names.as_glob(arguments.command, arguments.glob)
    try:
        if glob is not None and arguments.command in names.KNOWN:  # before torch is imported, for the rows
            names.refuse_unmatched(arguments.command, glob)
        with output.doing("importing torch and transformers"):
            rows = list_rows()
    except ValueError as error:
        raise OptionError(str(error)) from error
    chosen = [row for row in rows if glob is None or fnmatchcase(row[0], glob)]
    if not chosen:
        raise OptionError(names.unmatched(arguments.command, str(glob), [row[0] for row in rows]))
    print(as_text(columns, chosen, shutil.get_terminal_size().columns, sys.stdout.isatty()), end="")
    return 0


def as_text(columns: Sequence[str], rows: Sequence[Row], width: int, tty: bool) -> str:
    """The rows as a table for a terminal, or as lines for a pipe."""
    if tty:
        from faithcheck.reports.pages import rendering

        return rendering.to_terminal(lambda rows: [_table(columns, rows)], rows, width, color=True)
    return "".join("\t".join(row) + "\n" for row in visible(rows))


def _table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """A line for each row; text of the last column that does not fit ends in an ellipsis."""
    from rich import box  # not at the top: help is printed without Rich
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    *short, last = columns
    for i, column in enumerate(short):
        # Never cut: users copy names, and these columns are short.
        width = max(len(row[i]) for row in rows)
        table.add_column(column, style="dim" if i else "bold", no_wrap=True, min_width=width)
    table.add_column(last, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    return table

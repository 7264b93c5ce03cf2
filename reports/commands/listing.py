"""``faithcheck pairs``, ``explainers`` and ``axioms``: what there is, a line each, names first.

On a terminal a table, in a pipe lines of columns separated by tabs, for ``cut -f1`` and ``grep``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase

from rich import box
from rich.table import Table
from rich.text import Text

from faithcheck.reports.pages import terminal

BUILT_IN = "built-in"
WHAT = {
    "loo": "Leave-One-Out: how the output changes without a feature; the reference",
    "gradient_x_input": "x ⊙ ∂f(x); Shrikumar et al. 2016",
    "integrated_gradients": "gradients on the way from a baseline, integrated; Sundararajan, Taly & Yan 2017",
    "attention_rollout": "attention weights, multiplied layer by layer; Abnar & Zuidema 2020",
    "epsilon_lrp": "LRP's ε-rule; refuses products of data; Bach et al. 2015",
    "attnlrp": "LRP with rules for products and softmax; Achtibat et al. 2024",
    "cplrp": "LRP in which attention weights are constants; Ali et al. 2022",
    "deeplift_rescale": "DeepLIFT's rescale rule from the baseline; Shrikumar et al. 2017",
    "blockwise_lrp": "LRP whose products are shared by degree: every association gets one map; ours",
    "mask_gate": "how the output moves as a token is taken out of the attention, first order; ours",
    "finite_mask_gate": "the same, each row of attention renormalised exactly; ours",
    "readout_gate": "the same, and what a token gives the row that is read, exact; ours",
    "grouped_mask_gate": "the same, some tokens halfway at a time, in a few passes; ours",
    "budgeted_loo": "Leave-One-Out where it matters, gates elsewhere, within a budget; ours",
}
Row = tuple[str, ...]


class NothingFound(ValueError):
    """The glob matches no name. The message says which ones there are."""


def pairs() -> list[Row]:
    """Every registered pair: its name, and why its two models are one function; and those that packages offer.

    Raises:
        ValueError: two packages offer something under one name.
    """
    from faithcheck.explainers.registry import installed, provider  # when used: torch takes seconds to import
    from faithcheck.models.pair import registered_pairs
    from faithcheck.reports.selection import PAIRS

    offered = installed(PAIRS).items()
    return [
        *((pair.name, " ".join(pair.why.split())) for pair in registered_pairs().values()),
        *((name, f"offered by {provider(point)}; --pairs={name} takes them") for name, point in offered),
    ]


def explainers() -> list[Row]:
    """Every explainer at hand: its name, where it comes from, and what it is; entry points are not imported.

    Raises:
        ValueError: two packages offer something under one name.
    """
    from faithcheck.explainers.registry import GROUP, builtin_explainers, installed, provider

    return [
        *((name, BUILT_IN, WHAT[name]) for name in builtin_explainers()),
        *((name, provider(point), point.value) for name, point in installed(GROUP).items()),
    ]


def axioms() -> list[Row]:
    """Every axiom: its name, what it is measured on, and what it says."""
    from faithcheck.axioms.engine.registry import AXIOMS

    return [(name, axiom.measured_on, axiom.summary) for name, axiom in AXIOMS.items()]


COMMANDS = {
    "pairs": (pairs, ("pair", "why the two are one function")),
    "explainers": (explainers, ("explainer", "from", "what it is")),
    "axioms": (axioms, ("axiom", "of", "what it says")),
}


def main(what: str, glob: str | None) -> int:
    """Print what there is, of these names alone if a glob is given.

    Raises:
        NothingFound: no name matches the glob.
        ValueError: two packages offer something under one name.
    """
    make, columns = COMMANDS[what]
    rows = make()
    chosen = [row for row in rows if glob is None or fnmatchcase(row[0], glob)]
    if not chosen:
        families = dict.fromkeys(row[0].split(".")[0] + (".*" if "." in row[0] else "") for row in rows)
        raise NothingFound(f"{glob!r} matches none of the {len(rows)} {what}; there are: {', '.join(families)}")
    print(shown(columns, chosen, shutil.get_terminal_size().columns, sys.stdout.isatty()), end="")
    return 0


def shown(columns: Sequence[str], rows: Sequence[Row], width: int, tty: bool) -> str:
    """The rows as a table for a terminal, or as lines for a pipe."""
    if tty:
        return terminal.printed([_table(columns, rows)], width, color=True)
    return "".join("\t".join(row) + "\n" for row in rows)


def _table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """One line a row: a last column that does not fit ends in an ellipsis."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    *short, last = columns
    for i, column in enumerate(short):
        # Never cut: names are copied, and the rest is short.
        width = max(len(row[i]) for row in rows)
        table.add_column(column, style="dim" if i else "bold", no_wrap=True, min_width=width)
    table.add_column(last, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    return table

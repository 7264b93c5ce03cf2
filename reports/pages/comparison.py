"""The comparison of two documents as pages and as text for a terminal: pure functions of `comparison.compare`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.causes import Change, KindOfChange
from faithcheck.reports.comparison import LISTS, Comparison
from faithcheck.reports.pages import alignment_wording, colours, rendering, wording
from faithcheck.reports.pages.tables import Table, plain_table

LIMIT = 65_536
"""The bytes of a comment on GitHub."""
MOST = (40, 20, 10, 5, 2, 1, 0)
"""The rows of a table, and the kinds of a list, on the Markdown page: the first of these that fits a comment."""
CELL = 200
"""The characters of a cell on that page."""


# --- the outcome in words --------------------------------------------------------------------------------------------


def verdict(comparison: Comparison) -> str:
    """The outcome in a sentence, with the numbers of the worst change: ``39 regressions of one kind, …``."""
    if regressions := comparison.regressions:
        return _of_regressions(regressions, comparison.kinds["regressions"])
    if is_empty(comparison):
        return "no verdict: nothing that both documents measured"
    mended = len(comparison.listed("mended"))
    better = f", and {mended} no longer red" if mended else ""
    still_red = f", but {comparison.still_red} still red" if comparison.still_red else ""
    magnitudes = comparison.listed("magnitudes")
    changed = f"; {_with_numbers(magnitudes[0])}" if magnitudes else ""
    more = f", and {len(magnitudes) - 1} more changed" if magnitudes[1:] else ""
    return f"no regression{better}{still_red}{changed}{more}"


def _with_numbers(row: Change) -> str:
    return f"{row.id}: {row.change}: {row.before} → {row.now}"


def _of_regressions(regressions: Sequence[Change], kinds: Sequence[KindOfChange]) -> str:
    if len(regressions) == 1:
        return f"1 regression: {_with_numbers(regressions[0])}"
    worst = f"the worst: {kinds[0].rows[0].before} → {kinds[0].rows[0].now}"
    if len(kinds) == 1:
        return f"{len(regressions)} regressions of one kind, {kinds[0].change}: {kinds[0].what}; {worst}"
    largest = f"{len(kinds[0].rows)} × {kinds[0].change}: {kinds[0].what}"
    return f"{len(regressions)} regressions of {len(kinds)} kinds; {largest}; {worst}"


def is_empty(comparison: Comparison) -> bool:
    """Whether there is nothing that the two documents could be compared in."""
    both = ("mended", "verdicts", "magnitudes", "vanished")
    return not (comparison.unchanged or comparison.still_red or any(map(comparison.listed, both)))


def headline(comparison: Comparison) -> str:
    """The other counts in one line: ``1 no longer red, 3 magnitudes changed, 90 unchanged``."""
    magnitudes = len(comparison.listed("magnitudes"))
    labels = {
        "mended": "no longer red",
        "verdicts": "with another verdict",
        "appeared": "new",
        "vanished": "missing",
        "magnitudes": "magnitude changed" if magnitudes == 1 else "magnitudes changed",
    }
    parts = [f"{len(rows)} {label}" for name, label in labels.items() if (rows := comparison.listed(name))]
    parts += [f"{comparison.unchanged} unchanged"]
    parts += [f"{comparison.still_red} still red"] if comparison.still_red else []
    return ", ".join(parts)


def _group(comparison: Comparison) -> Group:
    """The group that the outcome has the symbol and the colour of; nothing to compare is not green."""
    if comparison.regressions:
        return Group.RED
    return Group.RECORDED if is_empty(comparison) else Group.PASS


# --- pages -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownKind:
    """A kind of change, with the table of its changes, of which ``more`` are cut."""

    kind: KindOfChange
    table: Table
    more: int


@dataclass(frozen=True)
class ShownList:
    """A list of changes: a table of the kinds with a single change, and each other kind. What is cut is counted."""

    name: str  # that of `LISTS`
    title: str
    count: int
    singles: Table
    more: int  # how many changes are cut from the table
    kinds: list[ShownKind]
    more_kinds: int  # how many kinds are cut


def to_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown that fits a comment on a pull request: rows that do not fit are cut and counted."""
    for most in MOST:
        page = rendering.to_page("comparison.md.j2", _view(comparison, most))
        if len(page.encode()) <= LIMIT:
            return page
    return page


def to_html(comparison: Comparison) -> str:
    """The comparison in full as one self-contained HTML page."""
    return rendering.to_page("comparison.html.j2", _view(comparison))


def to_terminal(comparison: Comparison, width: int = 80, color: bool = False) -> str:
    """The comparison: the verdict first, a kind of change with its count and the worst record."""
    return rendering.to_terminal(_parts, comparison, width, color)


def _view(comparison: Comparison, most: int | None = None) -> rendering.View:
    """The content of the pages; ``most`` kinds of each list and rows of each kind, None for all."""
    return {
        "comparison": comparison,
        "outcome": _group(comparison),
        "verdict": verdict(comparison),
        "headline": headline(comparison),
        "lists": [_list(name, kinds, most) for name in LISTS if (kinds := comparison.kinds.get(name))],
        "differences": plain_table(
            "The two runs differ",
            "Other changes may come from it.",
            ("", "before", "now"),
            _short(comparison.differences, most),
        ),
        "paired": _paired(comparison),
        "threshold": f"{comparison.threshold:g}",
    }


def _list(name: str, kinds: Sequence[KindOfChange], most: int | None) -> ShownList:
    singles = [kind.rows[0] for kind in kinds if len(kind.rows) == 1]
    several = [kind for kind in kinds if len(kind.rows) > 1]
    return ShownList(
        name,
        LISTS[name],
        sum(len(kind.rows) for kind in kinds),
        *_cut(singles, most),
        [ShownKind(kind, *_cut(kind.rows, most)) for kind in several[:most]],
        len(several) - len(several[:most]),
    )


def _cut(rows: Sequence[Change], most: int | None) -> tuple[Table, int]:
    table = plain_table("", "", ("change", "of", "before", "now"), _short(rows[:most], most))
    return table, len(rows) - len(rows[:most])


def _short(rows: Sequence[Sequence[str]], most: int | None) -> list[list[str]]:
    """The rows, with an ellipsis at the end of cells that are too long for a page whose rows are cut."""
    return [[cell if most is None or len(cell) <= CELL else f"{cell[: CELL - 1]}…" for cell in row] for row in rows]


def _paired(comparison: Comparison) -> Table | None:
    """The paired differences of two alignments as a table; None for other documents."""
    if comparison.paired is None:
        return None
    rows = [
        [
            row.explainer,
            alignment_wording.FIGURES[row.figure],
            row.n,
            alignment_wording.number(row.difference),
            alignment_wording.interval(row.low, row.high),
            wording.number(row.p),
        ]
        for row in comparison.paired.differences
    ]
    heading = ("explainer", "figure", "pairs", "now − before", "95 % interval", "p")
    return plain_table("Paired differences", comparison.paired.sentence, heading, rows)


# --- the terminal ----------------------------------------------------------------------------------------------------


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    group = _group(comparison)
    yield Text(f"{group.symbol} {verdict(comparison)}", style=f"bold {colours.TERMINAL[group]}")
    yield Text(headline(comparison))
    yield Text(f"before: {comparison.before}; now: {comparison.now}", style="dim")
    yield Text()
    for line in comparison.catalogues:
        yield Text(line, style="bold yellow")
    if comparison.differences:
        yield Text("The two runs differ, which may explain the changes below", style="bold yellow")
        for name, before, now in comparison.differences:
            yield Padding(Text(f"{name}: {before} → {now}"), (0, 0, 0, 2))
        yield Text()
    if paired := _paired(comparison):
        yield Text(paired.title, style="bold")
        if paired.rows:
            yield rendering.terminal_table(paired)
        yield Text(paired.note, style="dim")
        yield Text()
    for name, title in LISTS.items():
        if rows := comparison.listed(name):
            is_red = name == "regressions"
            yield Text(f"{title}: {len(rows)}", style=colours.TERMINAL[Group.RED] if is_red else "bold")
            for kind in comparison.kinds[name]:
                yield from _kind(kind, "red" if is_red else "dim")
            yield Text()
    yield Text(f"magnitudes: changed by more than {comparison.threshold:g}", style="dim")


def _kind(kind: KindOfChange, style: str) -> Iterator[RenderableType]:
    """Two lines on the one change of a kind; or their number, the likely cause and the worst of several."""
    worst, count = kind.rows[0], len(kind.rows)
    if count > 1:
        yield Padding(Text.assemble((f"{worst.change}: ", style), f"{count} × ", kind.what), (0, 0, 0, 2))
        if kind.likely:
            yield Padding(Text(f"likely: {kind.likely}"), (0, 0, 0, 6))
        yield Padding(Text(f"the worst: {worst.id}: {worst.before} → {worst.now}"), (0, 0, 0, 6))
    else:
        yield Padding(Text.assemble((f"{worst.change}: ", style), worst.id), (0, 0, 0, 2))
        yield Padding(Text(f"{worst.before} → {worst.now}"), (0, 0, 0, 6))

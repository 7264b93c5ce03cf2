"""The comparison of two documents as pages and as text for a terminal: pure functions of `comparison.compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports import results
from faithcheck.reports.comparison import LISTS, is_regression
from faithcheck.reports.pages import alignment_wording, colours, columns, rendering, wording
from faithcheck.reports.results import Json

LIMIT = 65_536
"""The bytes of a comment on GitHub."""
MOST = (40, 20, 10, 5, 2, 1, 0)
"""The rows of a table, and the kinds of a list, on the Markdown page: the first of these that fits a comment."""
CELL = 200
"""The characters of a cell on that page."""
COLUMNS = ("change", "of", "before", "now")


# --- the outcome in words --------------------------------------------------------------------------------------------


def verdict(comparison: Json) -> str:
    """The outcome in a sentence: ``39 regressions of one kind: mine: invariance: …``."""
    regressions, kinds = comparison["regressions"], comparison["kinds"]["regressions"]
    if len(regressions) == 1:
        ((change, name, _, _),) = regressions
        return f"1 regression: {name}: {change}"
    if regressions and len(kinds) == 1:
        return f"{len(regressions)} regressions of one kind, {kinds[0]['change']}: {kinds[0]['what']}"
    if regressions:
        largest = f"{len(kinds[0]['rows'])} × {kinds[0]['change']}: {kinds[0]['what']}"
        return f"{len(regressions)} regressions of {len(kinds)} kinds; {largest}"
    if comparison["kind"] == results.BENCHMARK:
        return "no verdict: benchmarks inform"
    if is_empty(comparison):
        return "no verdict: nothing that both documents measured"
    red, mended = comparison["still_red"], len(comparison["mended"])
    better = f", and {mended} no longer red" if mended else ""
    return f"no regression{better}" + (f", but {red} still red" if red else "")


def is_empty(comparison: Json) -> bool:
    """Whether there is nothing that the two documents could be compared in."""
    both = ("mended", "verdicts", "magnitudes", "vanished")
    return not (comparison["unchanged"] or comparison["still_red"] or any(comparison[name] for name in both))


def headline(comparison: Json) -> str:
    """The other counts in one line: ``1 no longer red, 3 magnitudes changed, 90 unchanged``."""
    magnitudes = len(comparison["magnitudes"])
    labels = {"mended": "no longer red", "verdicts": "with another verdict", "appeared": "new", "vanished": "missing"}
    parts = [f"{len(comparison[name])} {label}" for name, label in labels.items() if comparison[name]]
    parts += [f"{magnitudes} magnitude{'s' if magnitudes != 1 else ''} changed"] if magnitudes else []
    parts += [f"{len(comparison[name])} {name}" for name in ("slower", "faster") if comparison[name]]
    parts += [f"{comparison['unchanged']} unchanged"]
    parts += [f"{comparison['still_red']} still red"] if comparison["still_red"] else []
    return ", ".join(parts)


def _group(comparison: Json) -> Group:
    """The group that the outcome has the symbol and the colour of; nothing to compare is not green."""
    if is_regression(comparison):
        return Group.RED
    unjudged = is_empty(comparison) or comparison["kind"] == results.BENCHMARK
    return Group.RECORDED if unjudged else Group.PASS


# --- pages -----------------------------------------------------------------------------------------------------------


def to_markdown(comparison: Json) -> str:
    """The comparison as Markdown that fits a comment on a pull request: rows that do not fit are cut and counted."""
    for most in MOST:
        page = rendering.to_page("comparison.md.j2", _view(comparison, most))
        if len(page.encode()) <= LIMIT:
            return page
    return page


def to_html(comparison: Json) -> str:
    """The comparison in full as one self-contained HTML page."""
    return rendering.to_page("comparison.html.j2", _view(comparison))


def to_terminal(comparison: Json, width: int = 80, color: bool = False) -> str:
    """The comparison: the verdict first, a kind of change with its count and the worst record."""
    return rendering.to_terminal(_parts, comparison, width, color)


def _view(comparison: Json, most: int | None = None) -> Json:
    """The content of the pages; ``most`` kinds of each list and rows of each kind, None for all."""
    return {
        "comparison": comparison,
        "outcome": _group(comparison),
        "verdict": verdict(comparison),
        "headline": headline(comparison),
        "lists": [_list(name, comparison["kinds"][name], most) for name in LISTS if comparison["kinds"][name]],
        "differences": columns.plain_table(
            "The two runs differ",
            "Other changes may come from it.",
            ("", "before", "now"),
            _short(comparison["differences"], most),
        ),
        "paired": _paired(comparison),
        "threshold": f"{comparison['threshold']:g}",
    }


def _list(name: str, kinds: list[Json], most: int | None) -> Json:
    """A list as a table of the kinds of one record each, and a table for each other kind; what is cut is counted."""
    singles = [kind["rows"][0] for kind in kinds if len(kind["rows"]) == 1]
    several = [kind for kind in kinds if len(kind["rows"]) > 1]
    return {
        "name": name,
        "title": LISTS[name],
        "count": sum(len(kind["rows"]) for kind in kinds),
        "singles": _cut(singles, most),
        "kinds": [
            {**kind, "count": len(kind["rows"]), "worst": kind["rows"][0], **_cut(kind["rows"], most)}
            for kind in several[:most]
        ],
        "more_kinds": len(several[most:]) if most is not None else 0,
    }


def _cut(rows: list[tuple[str, str, str, str]], most: int | None) -> Json:
    return {
        "table": columns.plain_table("", "", COLUMNS, _short(rows[:most], most)),
        "more": len(rows) - len(rows[:most]),
    }


def _short(rows: Sequence[Sequence[str]], most: int | None) -> list[list[str]]:
    """The rows with long cells cut where rows are: an ellipsis says so."""
    return [[cell if most is None or len(cell) <= CELL else f"{cell[: CELL - 1]}…" for cell in row] for row in rows]


def _paired(comparison: Json) -> Json | None:
    """The paired differences of two alignments as a table; None of other documents."""
    if not comparison["pairing"]:
        return None
    rows = [
        [
            row["explainer"],
            alignment_wording.FIGURES[row["figure"]],
            row["n"],
            alignment_wording.number(row["difference"]),
            alignment_wording.interval(row),
            wording.number(row["p"]),
        ]
        for row in comparison["paired"]
    ]
    heading = ("explainer", "figure", "pairs", "now − before", "95 % interval", "p")
    return columns.plain_table("Paired differences", comparison["pairing"], heading, rows)


# --- the terminal ----------------------------------------------------------------------------------------------------


def _parts(comparison: Json) -> Iterator[RenderableType]:
    view = _view(comparison)
    group: Group = view["outcome"]
    yield Text(f"{group.symbol} {view['verdict']}", style=f"bold {colours.TERMINAL[group]}")
    yield Text(view["headline"])
    yield Text(f"before: {comparison['before']}; now: {comparison['now']}", style="dim")
    yield Text()
    for line in comparison["catalogues"]:
        yield Text(line, style="bold yellow")
    if comparison["differences"]:
        yield Text("The two runs differ, which may explain the changes below", style="bold yellow")
        for name, before, now in comparison["differences"]:
            yield Padding(Text(f"{name}: {before} → {now}"), (0, 0, 0, 2))
        yield Text()
    if view["paired"]:
        yield Text("Paired differences", style="bold")
        if comparison["paired"]:
            yield rendering.terminal_table(view["paired"])
        yield Text(view["paired"]["note"], style="dim")
        yield Text()
    for part in view["lists"]:
        is_red = part["name"] == "regressions"
        yield Text(f"{part['title']}: {part['count']}", style=colours.TERMINAL[Group.RED] if is_red else "bold")
        for kind in comparison["kinds"][part["name"]]:
            yield from _kind(kind, "red" if is_red else "dim")
        yield Text()
    yield Text(f"magnitudes: changed by more than {view['threshold']}", style="dim")


def _kind(kind: Json, style: str) -> Iterator[RenderableType]:
    """Two lines of the one record of a kind; of several the count, the likely cause and the worst."""
    (change, name, before, now), count = kind["rows"][0], len(kind["rows"])
    if count > 1:
        yield Padding(Text.assemble((f"{change}: ", style), f"{count} × ", kind["what"]), (0, 0, 0, 2))
        if kind["likely"]:
            yield Padding(Text(f"likely: {kind['likely']}"), (0, 0, 0, 6))
        yield Padding(Text(f"the worst: {name}: {before} → {now}"), (0, 0, 0, 6))
    else:
        yield Padding(Text.assemble((f"{change}: ", style), name), (0, 0, 0, 2))
        yield Padding(Text(f"{before} → {now}"), (0, 0, 0, 6))

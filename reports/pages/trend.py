"""A trend over the documents of a folder as pages: pure functions of `faithcheck.reports.trend.trend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import RenderableType
from rich.text import Text

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.pages import colours, columns, rendering
from faithcheck.reports.results import Json

GROUPS = {group.label: group for group in Group}
COUNTED = [label for label, group in GROUPS.items() if group is not Group.UNMEASURED]
"""The groups that the table of the runs counts; what did not run has a column of its own, tests included."""
IN_TERMINAL = ("run", "date", "commit", "verdict", "pass", "red", "skip", "file")
"""The columns of that table in a terminal."""
RUNS = "Runs"
BREAK = "A line is interrupted where the catalogue changes: verdicts of two catalogues are not the same measure."


def headline(trend: Json) -> str:
    """The runs in a sentence: ``7 runs from 2026-01-01 to 2026-02-01; the last: 90 checks as expected, 0 red, …``."""
    runs, alignments, left_out = trend["runs"], trend["alignments"], trend["left_out"]
    parts = []
    if runs:
        first, last = (run["created"][:10] for run in (runs[0], runs[-1]))
        parts.append(f"{_counted(len(runs), 'run')} from {first} to {last}; the last: {runs[-1]['headline']}")
    if alignments:
        parts.append(_counted(len(alignments), "alignment"))
    if left_out:
        parts.append(f"{_counted(len(left_out), 'file')} left out")
    return "; ".join(parts)


def to_markdown(trend: Json) -> str:
    """The trend as Markdown: its tables."""
    return rendering.to_page("trend.md.j2", _view(trend))


def to_html(trend: Json) -> str:
    """The trend as one self-contained HTML page: figures, and tables with their numbers."""
    return rendering.to_page("trend.html.j2", {**_view(trend), "figures": list(_figures(trend))})


def to_terminal(trend: Json, width: int = 80, color: bool = False) -> str:
    """The verdict of the last run and the tables."""
    return rendering.to_terminal(_parts, trend, width, color)


def _view(trend: Json) -> Json:
    last = GROUPS[trend["runs"][-1]["verdict"]] if trend["runs"] else Group.RECORDED
    return {"headline": headline(trend), "outcome": last, "tables": list(_tables(trend))}


def _parts(trend: Json) -> Iterator[RenderableType]:
    view = _view(trend)
    yield Text(f"{view['outcome'].symbol} {view['headline']}", style=f"bold {colours.TERMINAL[view['outcome']]}")
    for table in map(_narrow, view["tables"]):
        yield Text()
        yield Text(table["title"], style="bold")
        yield rendering.terminal_table(table)
        if table["note"]:
            yield Text(table["note"], style="dim")


def _narrow(table: Json) -> Json:
    """The table of the runs with the columns that fit a terminal; another one as it is."""
    if table["title"] != RUNS:
        return table
    shown = [table["columns"].index(column) for column in IN_TERMINAL]
    return {
        **table,
        **{key: [table[key][i] for i in shown] for key in ("columns", "groups")},
        "rows": [[row[i] for i in shown] for row in table["rows"]],
        "words": [place for place, i in enumerate(shown) if i in table["words"]],
    }


# --- tables ----------------------------------------------------------------------------------------------------------


def _tables(trend: Json) -> Iterator[Json]:
    if runs := trend["runs"]:
        catalogues = list(dict.fromkeys(run["catalogue"] or "not named" for run in runs))
        note = f"The runs are of {len(catalogues)} catalogues: {', '.join(catalogues)}." if len(catalogues) > 1 else ""
        yield columns.plain_table(RUNS, note, *_runs(runs), groups=_run_groups())
    if alignments := trend["alignments"]:
        note = "These documents hold no date: they stand in the order of the names of their files."
        heading = ("run", "of", "commit", "faithcheck", "explainers", "refused", "file")
        rows = [
            (i, run["of"], _commit(run), run["faithcheck"], len(run["agreement"]), run["refused"], run["file"])
            for i, run in enumerate(alignments, 1)
        ]
        yield columns.plain_table("Alignments", note, heading, rows)
    if trend["left_out"]:
        rows = list(trend["left_out"].items())
        yield columns.plain_table(f"Left out: {_counted(len(rows), 'file')}", "", ("file", "why"), rows)


def _runs(runs: Sequence[Json]) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    heading = (
        "run",
        "date",
        "commit",
        "faithcheck",
        "catalogue",
        "verdict",
        *COUNTED,
        "failed",
        "not run",
        "s",
        "file",
    )
    rows = [
        (
            i,
            run["created"][:10],
            _commit(run),
            run["faithcheck"],
            run["catalogue"].removeprefix("faithcheck ") or "not named",
            GROUPS[run["verdict"]].symbol,
            *(run["total"][label] for label in COUNTED),
            run["failures"],
            run["not_run"],
            run["seconds"],
            run["file"],
        )
        for i, run in enumerate(runs, 1)
    ]
    return heading, rows


def _run_groups() -> list[Group | None]:
    """The group that each column of the runs has the colour of."""
    return [*([None] * 6), *(GROUPS[label] for label in COUNTED), *([None] * 4)]


def _commit(run: Json) -> str:
    name, _, changed = run["commit"].partition("-")
    return f"{name[:8]}{'-' if changed else ''}{changed}" if name else "–"


# --- figures ---------------------------------------------------------------------------------------------------------


def _figures(trend: Json) -> Iterator[Json]:
    """Small multiples over the runs: counts of verdicts, largest gaps, seconds; and of alignments r and cost."""
    runs, alignments = trend["runs"], trend["alignments"]
    catalogues = [run["catalogue"] for run in runs]
    note = f"x: the run, as numbered in the table. {BREAK if len(set(catalogues)) > 1 else ''}"
    explainers = sorted({explainer for run in runs for explainer in run["counts"]})
    groups = [label for label in GROUPS if any(run["total"][label] for run in runs)]
    axioms = sorted({axiom for run in runs for axiom in run["gaps"]})

    def panels(
        titles: Sequence[str], y: str, value: Callable[[Json, str, str], object], names: Sequence[str] = explainers
    ) -> list[Json]:
        return [
            panel(title, y, {name: [value(run, title, name) for run in runs] for name in names}, catalogues)
            for title in titles
        ]

    def count(run: Json, label: str, explainer: str) -> object:
        return run["counts"][explainer].get(label, 0) if explainer in run["counts"] else None

    yield from _figure("Verdicts", note, panels(groups, "checks", count))
    yield from _figure(
        "Gaps",
        f"The largest gap of each axiom. {note}",
        panels(axioms, "largest gap", lambda r, a, e: r["gaps"].get(a, {}).get(e)),
    )
    seconds = {"all checks": [run["seconds"] for run in runs]}
    yield from _figure(
        "Seconds",
        f"What the checks took, on the machine of the run. {note}",
        [panel("", "seconds", seconds, catalogues)],
    )
    note = "x: the alignment, as numbered in the table; only those of one model and one data set share a panel."
    yield from _figure("Agreement with LOO", note, _by_content(alignments, "agreement", "mean r"))
    yield from _figure("Cost", note, _by_content(alignments, "cost", "plain forward passes"))


def _figure(title: str, note: str, panels: Sequence[Json]) -> Iterator[Json]:
    """The figure with the panels that have a line; none without any."""
    drawn = [panel for panel in panels if panel["lines"]]
    if drawn:
        yield {"title": title, "note": note.strip(), "panels": drawn}


def _by_content(alignments: Sequence[Json], key: str, y: str) -> list[Json]:
    """A panel for each model and data set, with a line for each explainer."""
    found = []
    for content in dict.fromkeys(run["content"] for run in alignments):
        same = [run if run["content"] == content else None for run in alignments]
        names = sorted({name for run in same if run for name in run[key]})
        title = next(run["of"] for run in same if run)
        values = {name: [run[key].get(name) if run else None for run in same] for name in names}
        found.append(panel(title, y, values, [content if run else None for run in same]))
    return found


def panel(title: str, y: str, values: Mapping[str, Sequence[object]], parts: Sequence[object]) -> Json:
    """A panel over the runs 1, 2, …: a line for each name, interrupted where the part of the run changes.

    A name without any number has no line.
    """
    starts = [0, *(i for i, (before, now) in enumerate(pairwise(parts), 1) if before != now), len(parts)]
    lines = [
        {"label": name, "x": list(range(start + 1, end + 1)), "y": list(of_one[start:end])}
        for name, of_one in values.items()
        for start, end in pairwise(starts)
        if any(isinstance(value, int | float) for value in of_one[start:end])
    ]
    return {"title": title, "x": "run", "y": y, "lines": lines}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

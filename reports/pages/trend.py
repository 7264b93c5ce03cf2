"""A trend over the documents of a folder as pages: pure functions of `faithcheck.reports.trend.trend`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import RenderableType
from rich.text import Text

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.documents.figure import Figure, Line, Panel
from faithcheck.reports.pages import colours, rendering, wording
from faithcheck.reports.pages.tables import Column, Table, plain_table, table
from faithcheck.reports.trend import AlignmentRun, SuiteRun, Trend

COUNTED = [group for group in Group if group is not Group.UNMEASURED]
"""The groups that the table of the runs counts; what did not run has a column of its own, tests included."""
BREAK = "A line is interrupted where the catalogue changes: verdicts of two catalogues are not the same measure."


def headline(trend: Trend) -> str:
    """The runs in a sentence: ``7 runs from 2026-01-01 to 2026-02-01; the last: 90 checks as expected, 0 red, …``."""
    parts = []
    if runs := trend.runs:
        first, last = (run.created[:10] for run in (runs[0], runs[-1]))
        parts.append(f"{wording.counted(len(runs), 'run')} from {first} to {last}; the last: {runs[-1].headline}")
    if trend.alignments:
        parts.append(wording.counted(len(trend.alignments), "alignment"))
    if trend.left_out:
        parts.append(f"{wording.counted(len(trend.left_out), 'file')} left out")
    return "; ".join(parts)


def _view(trend: Trend) -> rendering.View:
    tables, figures = list(_tables(trend)), list(_figures(trend))
    return {"headline": headline(trend), "outcome": _outcome(trend), "tables": tables, "figures": figures}


def _outcome(trend: Trend) -> Group:
    return trend.runs[-1].verdict if trend.runs else Group.RECORDED


def _parts(trend: Trend) -> Iterator[RenderableType]:
    outcome = _outcome(trend)
    yield Text(f"{outcome.symbol} {headline(trend)}", style=f"bold {colours.TERMINAL[outcome]}")
    for shown in _tables(trend):
        yield Text()
        yield Text(shown.title, style="bold")
        yield rendering.terminal_table(shown.only(IN_TERMINAL) if shown.title == RUNS_TITLE else shown)
        if shown.note:
            yield Text(shown.note, style="dim")


to_markdown, to_html, to_terminal = rendering.views_of("trend", _view, _parts)


# --- tables ----------------------------------------------------------------------------------------------------------

RUNS_TITLE = "Runs"
RUNS: Sequence[Column[tuple[int, SuiteRun]]] = (
    Column("run", lambda row: str(row[0])),
    Column("date", lambda row: row[1].created[:10]),
    Column("commit", lambda row: _commit(row[1].commit)),
    Column("faithcheck", lambda row: row[1].faithcheck),
    Column("catalogue", lambda row: row[1].catalogue.removeprefix("faithcheck ") or "not named"),
    Column("verdict", lambda row: row[1].verdict.symbol),
    *(Column(group.label, lambda row, group=group: str(row[1].total.get(group, 0)), group) for group in COUNTED),  # type: ignore[misc]
    Column("failed", lambda row: str(row[1].failures)),
    Column("not run", lambda row: str(row[1].not_run)),
    Column("s", lambda row: wording.number(row[1].seconds, 4)),
    Column("file", lambda row: row[1].file),
)
IN_TERMINAL = ("run", "date", "commit", "verdict", "pass", "red", "skip", "file")
"""The columns of that table in a terminal."""
ALIGNMENTS: Sequence[Column[tuple[int, AlignmentRun]]] = (
    Column("run", lambda row: str(row[0])),
    Column("of", lambda row: row[1].of),
    Column("commit", lambda row: _commit(row[1].commit)),
    Column("faithcheck", lambda row: row[1].faithcheck),
    Column("explainers", lambda row: str(len(row[1].agreement))),
    Column("refused", lambda row: str(row[1].refused)),
    Column("file", lambda row: row[1].file),
)


def _tables(trend: Trend) -> Iterator[Table]:
    if trend.runs:
        catalogues = list(dict.fromkeys(run.catalogue or "not named" for run in trend.runs))
        note = f"The runs are of {len(catalogues)} catalogues: {', '.join(catalogues)}." if len(catalogues) > 1 else ""
        yield table(RUNS_TITLE, note, RUNS, enumerate(trend.runs, 1))
    if trend.alignments:
        note = "These documents hold no date: they stand in the order of the names of their files."
        yield table("Alignments", note, ALIGNMENTS, enumerate(trend.alignments, 1))
    if trend.left_out:
        rows = list(trend.left_out.items())
        yield plain_table(f"Left out: {wording.counted(len(rows), 'file')}", "", ("file", "why"), rows)


def _commit(commit: str) -> str:
    name, _, changed = commit.partition("-")
    return f"{name[:8]}{'-' if changed else ''}{changed}" if name else "–"


# --- figures ---------------------------------------------------------------------------------------------------------


def _figures(trend: Trend) -> Iterator[Figure]:
    """Small multiples over the runs: counts of verdicts, largest gaps, seconds; and of alignments r and cost."""
    runs = trend.runs
    catalogues = [run.catalogue for run in runs]
    note = f"x: the run, as numbered in the table. {BREAK if len(set(catalogues)) > 1 else ''}"
    explainers = sorted({explainer for run in runs for explainer in run.counts})
    groups = [group for group in Group if any(run.total.get(group) for run in runs)]
    axioms = sorted({axiom for run in runs for axiom in run.gaps})

    def over_runs(title: str, y: str, value: Callable[[SuiteRun, str], float | None]) -> list[Panel]:
        return panel(title, y, {name: [value(run, name) for run in runs] for name in explainers}, catalogues)

    def count(group: Group) -> Callable[[SuiteRun, str], float | None]:
        return lambda run, explainer: run.counts[explainer].get(group, 0) if explainer in run.counts else None

    def gap(axiom: str) -> Callable[[SuiteRun, str], float | None]:
        return lambda run, explainer: run.gaps.get(axiom, {}).get(explainer)

    counts = [one for group in groups for one in over_runs(group.label, "checks", count(group))]
    yield from _figure("Verdicts", note, counts)
    gaps = [one for axiom in axioms for one in over_runs(axiom, "largest gap", gap(axiom))]
    yield from _figure("Gaps", f"The largest gap of each axiom. {note}", gaps)
    seconds = panel("", "seconds", {"all checks": [run.seconds for run in runs]}, catalogues)
    yield from _figure("Seconds", f"What the checks took, on the machine of the run. {note}", seconds)
    note = "x: the alignment, as numbered in the table; only those of one model and one data set share a panel."
    agreement = _by_content(trend.alignments, lambda run: run.agreement, "mean r")
    yield from _figure("Agreement with LOO", note, agreement)
    yield from _figure("Cost", note, _by_content(trend.alignments, lambda run: run.cost, "plain forward passes"))


def _figure(title: str, note: str, panels: Sequence[Panel]) -> Iterator[Figure]:
    """The figure; none without any panel."""
    if panels:
        yield Figure(title=title, note=note.strip(), panels=list(panels))


def _by_content(
    alignments: Sequence[AlignmentRun], values_of: Callable[[AlignmentRun], Mapping[str, float | None]], y: str
) -> list[Panel]:
    """A panel for each model and data set, with a line for each explainer."""
    found: list[Panel] = []
    for content in dict.fromkeys(run.content for run in alignments):
        same = [run if run.content == content else None for run in alignments]
        names = sorted({name for run in same if run for name in values_of(run)})
        title = next(run.of for run in same if run)
        values = {name: [values_of(run).get(name) if run else None for run in same] for name in names}
        found += panel(title, y, values, [content if run else None for run in same])
    return found


def panel(title: str, y: str, values: Mapping[str, Sequence[float | None]], parts: Sequence[object]) -> list[Panel]:
    """A panel over the runs: a line for each name that has numbers, broken where the part changes; [] without lines."""
    starts = [0, *(i for i, (before, now) in enumerate(pairwise(parts), 1) if before != now), len(parts)]
    lines = [
        Line(label=name, x=list(range(start + 1, end + 1)), y=list(of_one[start:end]))
        for name, of_one in values.items()
        for start, end in pairwise(starts)
        if any(value is not None for value in of_one[start:end])
    ]
    return [Panel(title=title, x="run", y=y, lines=lines)] if lines else []

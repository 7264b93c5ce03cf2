"""The results document as text for a terminal, 80 columns wide, or for a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.documents.results import Results, not_run, red_records, verdict
from faithcheck.reports.pages import colours, columns, rendering, wording
from faithcheck.reports.pages.tables import Table

_RED = colours.TERMINAL[Group.RED]
VERDICT = {Group.RED: _RED, Group.RECORDED: "bold yellow", Group.PASS: "bold green"}


def render(results: Results, width: int = 80, color: bool = False) -> str:
    """The report as text: the summary, the tables, every red record in full, skips in a few lines, counts, seeds."""
    return rendering.to_terminal(_parts, results, width, color)


def _parts(results: Results) -> Iterator[RenderableType]:
    if results.records:
        yield from _summary(columns.summary(results.records))
    for table in (*columns.symbolic_gaps(results.records), *columns.measured_tables(results)):
        yield Text(f"\n{table.title}", style="bold")
        yield rendering.terminal_table(table)
        yield Text(table.note)
    for record in red_records(results):
        yield Text()
        yield from _red(record)
    for failure in results.failures:
        yield Text.assemble((f"\n{Group.RED.symbol} failed: ", _RED), failure.id)
        yield _hanging([("", failure.message)])
    if missing := wording.not_run_by_reason(results):
        yield Text("\nnot run", style=_RED)
        yield _hanging((str(row.count), row.reason) for row in missing)
    for line in wording.not_applicable(results):
        yield Text(f"\n{line}")
    if results.skips:
        yield Text("\nskipped", style="bold")
        yield _hanging(wording.skip_lines(results), cut=True)
    if sentence := wording.left_behind(results):
        yield Text(f"\n{sentence}", style=_RED)
    for line in wording.degenerate(results):
        yield Text(f"\n{line}", style=VERDICT[Group.RECORDED])
    if foreign := [row for row in wording.origins(results) if not row[0].startswith("built in")]:
        yield Text("\nnot built in", style="bold")
        yield _hanging((names, origin) for origin, names in foreign)
    yield Text(f"\n{wording.headline(results)}", style=VERDICT[verdict(results)])
    yield from footer(results)


def _summary(table: Table) -> Iterator[RenderableType]:
    """The summary with each axiom named once, and its legend."""
    drawn, axiom = RichTable(box=box.SIMPLE_HEAD, pad_edge=False), ""
    styles = {group.label: style for group, style in colours.TERMINAL.items()}
    for i, column in enumerate(table.columns):
        if i == 0:
            drawn.add_column(column.title, style="bold", no_wrap=True)
        elif i == 1:
            drawn.add_column(column.title, overflow="fold", min_width=20)
        else:
            drawn.add_column(column.title, justify="right", style=styles.get(column.group, ""))
    for name, *cells in table.rows:
        if name != axiom and axiom:
            drawn.add_section()
        drawn.add_row(name if name != axiom else "", *cells)
        axiom = name
    yield drawn
    yield Text(table.note, style="dim")


def _red(record: Record) -> Iterator[RenderableType]:
    status = record.status
    yield Text.assemble((f"{wording.symbol(status)} {status}: ", _RED), wording.sentence(record))
    yield _hanging(wording.details(record))
    if record.traceback:
        yield Text(record.traceback.rstrip())


def _hanging(lines: Iterable[tuple[str, str]], cut: bool = False) -> RichTable:
    """Text behind labels. A text that does not fit its line is folded, or ends in an ellipsis if ``cut``."""
    grid = RichTable.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, min_width=6)
    grid.add_column(overflow="ellipsis" if cut else "fold", no_wrap=cut)
    for label, text in lines:
        grid.add_row(Text(label, style="dim"), Text(text))
    return grid


def footer(results: Results) -> Iterator[Text]:
    """The counts of the tests, and the settings that a run with the same figures needs."""
    settings, counts = results.settings, msgspec.structs.asdict(results.counts).items()
    seeds = sorted({record.seed for record in results.records} | {settings.seed})
    yield Text("tests: " + ", ".join(f"{value} {key}" for key, value in counts) + f", {not_run(results)} not run")
    yield Text(
        f"seed {', '.join(map(str, seeds))}; {settings.dtype} on {settings.device}; "
        f"data: {settings.data}; {settings.threads} threads"
    )
    if results.run:
        yield Text(wording.sharing(results.run))

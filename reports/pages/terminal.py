"""The results document as text for a terminal: all of it, and the end of a run on one screen."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from rich import box
from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.causes import causes, command, size
from faithcheck.reports.documents.results import Results, Skips, not_run, red_records, verdict
from faithcheck.reports.pages import colours, columns, rendering, wording
from faithcheck.reports.pages.tables import Table

_RED = colours.TERMINAL[Group.RED]
WORST, CAUSES, EXPLAINERS = 3, 3, 5
"""The most checks, causes and explainers of which the screen says something; a line counts the others."""
FOLDED = 2
"""The most lines of one sentence; an ellipsis marks what is cut."""
FOREIGN = "explainers and pairs from outside faithcheck"
VERDICT = {Group.RED: _RED, Group.RECORDED: "bold yellow", Group.PASS: "bold green"}


def render(results: Results, width: int = 80, color: bool = False) -> str:
    """The report as text: the summary, the tables, every red record in full, skips in a few lines, counts, seeds."""
    return rendering.to_terminal(_parts, results, width, color)


def _parts(results: Results) -> Iterator[RenderableType]:
    yield Text(f"{wording.headline(results)}\n", style=VERDICT[verdict(results)])
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
        yield Text(f"\n{FOREIGN}", style="bold")
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


# --- the end of a run on one screen ----------------------------------------------------------------------------------


def render_screen(results: Results, width: int = 80, color: bool = False) -> str:
    """The end of a run, in at most 40 lines of 100 columns where it has records."""
    return rendering.to_terminal(lambda content: _parts_of_screen(content, width), results, width, color)


def _parts_of_screen(results: Results, width: int) -> Iterator[RenderableType]:
    yield Text(f"\n{wording.headline(results)}", style=VERDICT[verdict(results)])
    if results.records:
        yield _by_axiom(results.records)
    for table in [] if results.records else columns.measured_tables(results):
        yield Text(f"\n{table.title}", style="bold")
        yield rendering.terminal_table(table)
        yield Text(table.note)
    yield from _worst(results, width)
    yield from _causes(results, width)
    yield from _section("not run", _counted(wording.not_run_by_reason(results)), width)
    by_explainer = [(f"{name}:", what) for name, what in wording.unmeasured_by_explainer(results)]
    yield from _section("skipped, or not applicable", by_explainer, width, EXPLAINERS)
    yield from _section(FOREIGN, _foreign(results), width)
    if sentence := wording.left_behind(results):
        yield Text("\n" + _cut(sentence, width, FOLDED), style=_RED)
    for line in wording.degenerate(results)[:EXPLAINERS]:
        yield Text("\n" + _cut(line, width, FOLDED), style=VERDICT[Group.RECORDED])
    red = verdict(results) is Group.RED
    yield from footer(results) if red else (Text(), *footer(results))
    if red:  # the causes may have scrolled the first line away
        yield Text(wording.headline(results), style=_RED)


def _by_axiom(records: Sequence[Record]) -> Columns:
    """How many records of each axiom each group has: ``completeness ✓ 38 ✗ 2``."""
    rows = []
    for axiom in sorted({record.axiom for record in records}):
        tally = wording.groups_of([record for record in records if record.axiom == axiom])
        counts = [(f" {group.symbol} {count}", colours.TERMINAL[group]) for group, count in tally.items()]
        rows.append(Text.assemble(axiom, *counts))
    return Columns(rows, padding=(0, 3), equal=True, column_first=True)


def _worst(results: Results, width: int) -> Iterator[Text]:
    """The red checks with the largest gaps, errors first, and the command that measures the worst one again."""
    red = sorted(red_records(results), key=size, reverse=True)
    failed = [f"{Group.RED.symbol} failed: {one.id}: {one.message}" for one in results.failures]
    lines = [f"{wording.symbol(one.status)} {one.status}: {wording.sentence(one)}" for one in red] + failed
    if not lines:
        return
    yield Text(f"\nthe worst of {len(lines)}" if len(lines) > WORST else "\nred", style=_RED)
    for line in lines[:WORST]:
        yield Text(_cut(line, width, FOLDED))
    if red:
        yield Text(f"  again: {command(results, red[0])}", style="dim")


def _causes(results: Results, width: int) -> Iterator[Text]:
    """The causes with the most records, each with its likely cause."""
    found = causes(results)
    if not found:
        return
    yield Text(f"\n{wording.counted(len(found), 'cause')}", style="bold")
    for cause in found[:CAUSES]:
        yield Text(_cut(f"{cause.count} × {cause.title}", width, 1))
        yield Text(textwrap.indent(_cut(cause.likely, width - 4, FOLDED), "    "), style="dim")
    if rest := found[CAUSES:]:
        yield Text(f"and {len(rest)} more causes of {sum(cause.count for cause in rest)} red checks")


def _counted(rows: Iterable[Skips]) -> list[tuple[str, str]]:
    return [(f"{row.count} ×", row.reason) for row in rows]


def _foreign(results: Results) -> list[tuple[str, str]]:
    """The explainers and pairs that are not built in, each with its origin."""
    return [(f"{names}:", origin) for origin, names in wording.origins(results) if not origin.startswith("built in")]


def _section(title: str, rows: list[tuple[str, str]], width: int, most: int = WORST) -> Iterator[Text]:
    """A title, and a line for each row, cut at the width."""
    if not rows:
        return
    yield Text(f"\n{title}", style="bold")
    for label, text in rows[:most]:
        yield Text(_cut(f"{label} {text}", width, 1))
    if rest := rows[most:]:
        yield Text(f"and {len(rest)} more: see the report")


def _cut(text: str, width: int, lines: int) -> str:
    """A text, cut to a number of lines; an ellipsis marks what is left out."""
    width = max(width, 20)
    wrapped = textwrap.wrap(" ".join(text.split()), width)
    if len(wrapped) > lines:
        wrapped[lines - 1] = f"{wrapped[lines - 1][: width - 2].rstrip()} …"
    return "\n".join(wrapped[:lines])

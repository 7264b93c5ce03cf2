"""The results document as tables for a terminal, 80 columns wide or in a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from faithcheck.reports.pages import wording
from faithcheck.reports.results import Json, is_red, not_run, red_records

# Groups of statuses: five narrow columns fit where eight would not. The red rows follow in full.
GROUPS = {
    "pass": ("✓", "green"),
    "predicted": ("≠", "cyan"),
    "recorded": ("·", ""),
    "red": ("✗", "bold red"),
    "skip": ("–", "dim"),
}


def render(results: Json, width: int = 80, color: bool = False) -> str:
    """The whole report as text: counts by axiom and explainer, every red record in full, skips, counts and seeds."""
    return printed(_parts(results), width, color)


def printed(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """What Rich prints of the parts, one after the other, as text."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _parts(results: Json) -> Iterator[RenderableType]:
    if results["records"]:
        yield _summary(results["records"])
        yield Text("✓ holds   ≠ violated as predicted   · recorded   ✗ red   – no rule", style="dim")
    for table in [*wording.symbolic_gaps(results["records"]), *results["tables"]]:
        yield from _table(table)
    for record in red_records(results):
        yield Text()
        yield from _red(record)
    for failure in results["failures"]:
        yield Text.assemble(("\n✗ failed: ", "bold red"), failure["id"])
        yield _hanging([("", failure["message"])])
    if results["skips"]:
        yield Text("\nskipped", style="bold")
        yield _hanging((f"{skip['count']} ×", skip["reason"]) for skip in results["skips"])
    if left := wording.left_behind(results):
        yield Text(f"\n{left}", style="bold red")
    if given := [row for row in wording.origins(results) if not row[0].startswith("built in")]:
        yield Text("\nnot built in", style="bold")
        yield _hanging((names, origin) for origin, names in given)
    yield Text(f"\n{wording.headline(results)}", style="bold red" if is_red(results) else "bold green")
    yield from _footer(results)


def _summary(records: list[Json]) -> Table:
    """One row for each axiom and explainer: how many records of each group, and the largest gap."""
    shown = [kind for kind in GROUPS if any(wording.kind(record["status"]) == kind for record in records)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("axiom", style="bold", no_wrap=True)
    table.add_column("explainer", overflow="fold", min_width=20)
    for kind in shown:
        table.add_column(GROUPS[kind][0], justify="right", style=GROUPS[kind][1])
    table.add_column("largest gap", justify="right")
    rows: dict[tuple[str, str], list[Json]] = {}
    for record in records:
        rows.setdefault((record["axiom"], record["explainer"] or "(the models)"), []).append(record)
    axiom = ""
    for key in sorted(rows):
        if key[0] != axiom and axiom:
            table.add_section()
        kinds = [wording.kind(record["status"]) for record in rows[key]]
        gaps = [record["gap"] for record in rows[key] if isinstance(record["gap"], int | float)]
        counts = [str(kinds.count(kind) or "") for kind in shown]
        table.add_row(key[0] if key[0] != axiom else "", key[1], *counts, wording.number(max(gaps, default=None)))
        axiom = key[0]
    return table


def _table(content: Json) -> Iterator[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in content["columns"]:
        table.add_column(str(column), overflow="fold")
    for row in content["rows"]:
        table.add_row(*(Text(wording.number(value, 4)) for value in row))
    yield Text(f"\n{content['title']}", style="bold")
    yield table
    yield Text(content["note"])


def _red(record: Json) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"{wording.SYMBOLS.get(record['status'], '✗')} {record['status']}: ", "bold red"), wording.sentence(record)
    )
    yield _hanging(wording.details(record))
    if record["traceback"]:
        yield Text(record["traceback"].rstrip())


def _hanging(lines: Iterable[tuple[str, str]]) -> Table:
    """Labelled text whose further lines stay behind the label."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, min_width=6)
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(Text(label, style="dim"), Text(text))
    return grid


def _footer(results: Json) -> Iterator[Text]:
    counts, settings = results["counts"], results["settings"]
    seeds = sorted({record["seed"] for record in results["records"]} | {settings["seed"]})
    yield Text(
        "tests: " + ", ".join(f"{value} {key}" for key, value in counts.items()) + f", {not_run(results)} not run"
    )
    yield Text(
        f"seed {', '.join(map(str, seeds))}; {settings['dtype']} on {settings['device']}; "
        f"data: {settings['data']}; {settings['threads']} threads"
    )

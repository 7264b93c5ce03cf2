"""The comparison of two documents as Markdown and as text for a terminal: pure functions of `comparison.compare`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from faithcheck.axioms.engine.statuses import Group
from faithcheck.reports.comparison import LISTS, is_regression
from faithcheck.reports.pages import colours, rendering
from faithcheck.reports.results import Json

ROWS = 40  # of a list on the Markdown page: a comment on GitHub has room for 65,536 characters


def headline(comparison: Json) -> str:
    """The outcome in one line: ``2 regressions, 1 no longer red, 3 magnitudes changed, 90 unchanged``."""
    regressions, magnitudes = len(comparison["regressions"]), len(comparison["magnitudes"])
    parts = [f"{regressions or 'no'} regression{'s' if regressions != 1 else ''}"]
    labels = {"mended": "no longer red", "verdicts": "with another verdict", "appeared": "new", "vanished": "missing"}
    parts += [f"{len(comparison[name])} {label}" for name, label in labels.items() if comparison[name]]
    parts += [f"{magnitudes} magnitude{'s' if magnitudes != 1 else ''} changed"] if magnitudes else []
    parts += [f"{len(comparison[name])} {name}" for name in ("slower", "faster") if comparison[name]]
    parts += [f"{comparison['unchanged']} unchanged"]
    parts += [f"{comparison['still_red']} still red"] if comparison["still_red"] else []
    return ", ".join(parts)


def to_markdown(comparison: Json) -> str:
    """The comparison as Markdown for a comment on a pull request: the verdict first, long lists folded and cut."""
    return rendering.to_page("comparison.md.j2", {**_view(comparison), "rows": ROWS})


def to_terminal(comparison: Json, width: int = 80, color: bool = False) -> str:
    """The comparison in full: two lines a row, the change with the id, then before → now."""
    return rendering.to_terminal(_parts, comparison, width, color)


def _view(comparison: Json) -> Json:
    lists = [{"title": title, "name": name, "rows": comparison[name]} for name, title in LISTS.items()]
    return {
        "comparison": comparison,
        "worse": is_regression(comparison),
        "headline": headline(comparison),
        "lists": [row for row in lists if row["rows"]],
        "threshold": f"{comparison['threshold']:g}",
    }


def _parts(comparison: Json) -> Iterator[RenderableType]:
    view, bold_red = _view(comparison), colours.TERMINAL[Group.RED]
    if comparison["differences"]:
        yield Text("The two runs differ, which may explain the changes below", style="bold yellow")
        for name, before, now in comparison["differences"]:
            yield Padding(Text(f"{name}: {before} → {now}"), (0, 0, 0, 2))
        yield Text()
    for part in view["lists"]:
        is_red = part["name"] == "regressions"
        yield Text(f"{part['title']}: {len(part['rows'])}", style=bold_red if is_red else "bold")
        for change, name, before, now in part["rows"]:
            yield Padding(Text.assemble((f"{change}: ", "red" if is_red else "dim"), name), (0, 0, 0, 2))
            yield Padding(Text(f"{before} → {now}"), (0, 0, 0, 6))
        yield Text()
    yield Text(f"before: {comparison['before']}; now: {comparison['now']}", style="dim")
    yield Text(f"magnitudes: changed by more than {view['threshold']}", style="dim")
    symbol = Group.RED.symbol if view["worse"] else Group.PASS.symbol
    yield Text(f"{symbol} {view['headline']}", style=bold_red if view["worse"] else "bold green")

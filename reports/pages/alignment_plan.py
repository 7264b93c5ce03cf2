"""The plan of ``faithcheck align --plan`` as text for a terminal: a pure function of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from faithcheck.reports.memory_units import in_words
from faithcheck.reports.pages import columns, rendering
from faithcheck.reports.results import Json

TITLES = ("explainer", "batches", "rows", "tokens", "passes", "peak memory", "probed", "time")


def in_time(seconds: float) -> str:
    """A duration in words, such as "2.5 min"."""
    unit, name = next(((unit, name) for unit, name in ((3600, "h"), (60, "min")) if seconds >= unit), (1, "s"))
    return f"{seconds / unit:.3g} {name}"


def to_terminal(plan: Json, width: int = 80, color: bool = False) -> str:
    """The work of each explainer that is left, and the time on one worker and on all."""
    return rendering.to_terminal(_parts, plan, width, color)


def _parts(plan: Json) -> Iterator[RenderableType]:
    rows = [
        [
            row["name"],
            *(f"{row[key]:,}" for key in ("batches", "rows", "tokens", "passes")),
            "unknown" if row["peak"] is None else in_words(row["peak"]),
            str(row["probed"]),
            in_time(row["seconds"]),
        ]
        for row in plan["explainers"]
    ]
    yield rendering.terminal_table(columns.plain_table("plan", "", TITLES, rows))
    yield Text(
        "What is left after the probe, whose batches are stored: rows and tokens of forward passes, maps and curves; "
        "passes, if all are full; the peak memory over the model's own, predicted for the batch that takes most; the "
        "time of one worker.",
        style="dim",
    )
    alone = sum(row["seconds"] for row in plan["explainers"])
    yield Text(
        f"\nabout {in_time(plan['seconds'])} on {plan['workers']} worker{'s' * (plan['workers'] != 1)}"
        f" ({in_time(alone)} of work), without the loading and the statistics; the probe took {in_time(plan['probe'])}"
    )

"""The checks of a run, measured one by one, and what is said meanwhile.

A terminal and a notebook get a bar with the number of red checks. Elsewhere a command may print lines.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.progress import Progress

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group
from faithcheck.check import Check
from faithcheck.cli import output
from faithcheck.reports import results
from faithcheck.reports.pages import wording
from faithcheck.reports.pages.visible import visible
from faithcheck.reports.results import group_of
from faithcheck.request import Settings

EVERY = 30.0
"""Seconds between two lines."""


def measured(
    checks: Sequence[Check],
    settings: Settings,
    *,
    bar: bool = True,
    lines: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Record]:
    """The records of the checks, one by one.

    Args:
        checks: the checks, in the order in which they run.
        settings: how they are measured.
        bar: in a terminal or a notebook, show a bar: which check runs, how many have run, how many are red.
        lines: print on stderr the first red check at once; where it is no terminal, also the counts, now and then.
        clock: the seconds that have passed.
    """
    with output.progress_bar(shown=bar) as drawn:
        task = drawn.add_task("", total=len(checks))
        draw = _in_notebook(drawn) if bar and drawn.console.is_jupyter else lambda: None
        red, said = 0, clock()
        for done, check in enumerate(checks, 1):
            drawn.update(task, description=f"{check.axiom} {check.subject}" + (f", {red} red" if red else ""))
            draw()
            record = check.run(settings)
            drawn.advance(task)
            if group_of(record.status) is Group.RED:
                red += 1
                if lines and red == 1:
                    _say(drawn, f"the first red check: {wording.sentence(results.plain(record.to_json()))}")
            if lines and drawn.disable and clock() - said >= EVERY:
                said = clock()
                _say(drawn, f"{done} of {len(checks)} checks, {red} red")
            yield record
        draw()


def _say(drawn: Progress, line: str) -> None:
    """Print a line on stderr, above the bar if there is one."""
    text = visible(f"faithcheck: {' '.join(line.split())}")
    if drawn.disable:
        print(text, file=sys.stderr, flush=True)
    else:
        drawn.console.print(text, markup=False, highlight=False, emoji=False)


def _in_notebook(drawn: Progress) -> Callable[[], None]:
    """A function that draws the bar as it is now, in one place; Rich alone would need ipywidgets for that."""
    handle: Any = importlib.import_module("IPython.display").DisplayHandle()
    handle.display(drawn.make_tasks_table(drawn.tasks))
    return lambda: handle.update(drawn.make_tasks_table(drawn.tasks))

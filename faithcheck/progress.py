"""What a run says while it measures: a bar in a terminal or a notebook; elsewhere lines now and then."""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.console import Group as Rendered
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TimeRemainingColumn
from rich.text import Text

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.memory_units import in_words
from faithcheck.reports.pages import wording
from faithcheck.reports.pages.visible import visible

if TYPE_CHECKING:
    from faithcheck.axioms.measure.record import Record
    from faithcheck.check_job import CheckJob
    from faithcheck.executors.executor import Executor
    from faithcheck.executors.ray.on_ray import State

LINES_EVERY = 30.0
"""The seconds between two lines of `measured`."""
MINUTE = 60.0
"""The seconds between two lines of `ProgressByExplainer`."""


def measured(
    jobs: Sequence[CheckJob],
    executor: Executor,
    *,
    bar: bool = True,
    lines: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Record]:
    """The records as the executor runs the checks, with a ``bar`` in a terminal or a notebook.

    ``lines`` go to stderr: the first red check at once, and counts now and then where stderr is no terminal.
    """
    with progress_bar(shown=bar) as drawn:
        task = drawn.add_task("", total=len(jobs))
        draw = _in_notebook(drawn) if bar and drawn.console.is_jupyter else lambda: None
        red, said = 0, clock()

        def starting() -> Iterator[CheckJob]:
            for job in jobs:
                check = job.check
                drawn.update(task, description=f"{check.axiom} {check.subject}" + (f", {red} red" if red else ""))
                draw()
                yield job

        for done, (_, record) in enumerate(executor.run(starting()), 1):
            drawn.advance(task)
            if record.group is Group.RED:
                red += 1
                if lines and red == 1:
                    _say(drawn, f"the first red check: {wording.sentence(record)}")
            if lines and drawn.disable and clock() - said >= LINES_EVERY:
                said = clock()
                _say(drawn, f"{done} of {len(jobs)} checks, {red} red")
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


class ProgressByExplainer:
    """A bar for each explainer, and a line on the workers; where stderr is no terminal, a line a minute."""

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._clock = unit, clock
        self._done: Counter[str] = Counter()
        self._totals: dict[str, int] = {}
        self._workers = ""
        self._begun = self._said = clock()
        self._progress = progress_bar(unit=unit)
        self._bars: dict[str, TaskID] = {}
        self._text = Text("loading …")
        self.shown = Rendered(self._progress, self._text)
        live = Live(self.shown, console=self._progress.console, transient=True)
        self._live = None if self._progress.disable else live

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def advance(self, explainer: str, done: int, total: int) -> None:
        """Show that ``done`` more of the ``total`` of an explainer are done; ``""``: of the pairs themselves."""
        name = explainer or "pairs"
        self._done[name] += done
        self._totals[name] = total
        if self._live is None:
            self._say_now_and_then()
            return
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total)
        self._progress.advance(self._bars[name], done)
        self._text.plain = self._workers

    def watch(self, state: State) -> None:
        """Show the state of the cluster."""
        self._workers = in_one_line(state)
        self._text.plain = self._workers
        if self._live is None:
            self._say_now_and_then()

    def _say_now_and_then(self) -> None:
        now = self._clock()
        if now - self._said < MINUTE:
            return
        self._said = now
        parts = [f"{name} {count} of {self._totals[name]} {self._unit}" for name, count in self._done.items()]
        parts.append(f"{self._done.total() / (now - self._begun):.3g} {self._unit} a second")
        text = "; ".join([", ".join(parts), *filter(None, [self._workers])])
        print(visible(f"faithcheck: {text}"), file=sys.stderr, flush=True)


def in_one_line(state: State) -> str:
    """The state of a run on a cluster."""
    parts = [f"{state.workers} worker{'s' * (state.workers != 1)}"]
    counts = ((state.retried, "retried"), (state.left_out, "left out"))
    parts += [f"{number} task{'s' * (number != 1)} {what}" for number, what in counts if number]
    if state.gpu_memory is not None:
        used, total = state.gpu_memory
        parts.append(f"GPU memory {in_words(used)} of {in_words(total)}")
    if state.dashboard:
        parts.append(f"dashboard http://{state.dashboard}")
    return ", ".join(parts)


def progress_bar(shown: bool = True, unit: str = "") -> Progress:
    """A progress bar on stderr, hidden if that is no terminal; with a ``unit`` it shows how many a second."""

    class Description(ProgressColumn):
        """What runs, as plain text: Rich would read a part of some names as markup."""

        def render(self, task: Task) -> Text:
            return Text(f"{visible(task.description):<18}")

    class Rate(ProgressColumn):
        """How many a second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.3g} {unit}/s")

    console = Console(stderr=True)
    rate = (Rate(),) if unit else ()
    columns = (Description(), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not (shown and console.is_terminal), transient=True)

"""What a long run says of itself: how far each explainer is, how fast, and what happens on the workers of a cluster."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.progress import TaskID
from rich.text import Text

from faithcheck.cli import output
from faithcheck.reports.memory_units import in_words
from faithcheck.reports.pages.alignment_plan import in_time
from faithcheck.reports.pages.visible import visible

if TYPE_CHECKING:
    from faithcheck.executors.ray.dispatch import State

EVERY = 60.0
"""The seconds between two lines, where there is no terminal."""


class ProgressByExplainer:
    """A bar for each explainer, and a line on the workers; where stderr is no terminal, a line a minute.

    Use it as a context manager.

    Attributes:
        shown: what the terminal shows.

    Args:
        unit: what is counted: ``examples`` or ``checks``.
        clock: the seconds that have passed.
    """

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._clock = unit, clock
        self._done: Counter[str] = Counter()
        self._totals: dict[str, int] = {}
        self._workers = ""
        self._begun = self._said = clock()
        self._progress = output.progress_bar(unit=unit)
        self._bars: dict[str, TaskID] = {}
        self._text = Text("loading …")
        self.shown = Group(self._progress, self._text)
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
        """So many more of an explainer's are done."""
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
        """This is how the cluster is getting on."""
        self._workers = in_one_line(state)
        self._text.plain = self._workers
        if self._live is None:
            self._say_now_and_then()

    def _say_now_and_then(self) -> None:
        now = self._clock()
        if now - self._said < EVERY:
            return
        self._said = now
        parts = [f"{name} {count} of {self._totals[name]} {self._unit}" for name, count in self._done.items()]
        parts.append(f"{self._done.total() / (now - self._begun):.3g} {self._unit} a second")
        text = "; ".join([", ".join(parts), *filter(None, [self._workers])])
        print(visible(f"faithcheck: {text}"), file=sys.stderr, flush=True)


def in_one_line(state: State) -> str:
    """How a run on a cluster is getting on."""
    parts = [f"{state.workers} worker{'s' * (state.workers != 1)}"]
    if state.seconds_left is not None:
        parts.append(f"about {in_time(state.seconds_left)} left")
    counts = ((state.retried, "retried"), (state.run_twice, "run twice"), (state.left_out, "left out"))
    parts += [f"{number} task{'s' * (number != 1)} {what}" for number, what in counts if number]
    if state.gpu_memory is not None:
        used, total = state.gpu_memory
        parts.append(f"GPU memory {in_words(used)} of {in_words(total)}")
    if state.dashboard:
        parts.append(f"dashboard http://{state.dashboard}")
    return ", ".join(parts)

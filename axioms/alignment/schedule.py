"""Which worker does which task next: the policy of an alignment, or of checks, on many workers.

It knows no processes and no clock: it is told what happened and when, and says what to start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

MOST_ENDED = 3
"""A task is left out after it has ended so many workers."""
MOST_COPIES = 2
"""So many workers run a task at once, at most."""
SLOW = 0.5
"""A worker is slow if it takes 1.5 times as long as estimated, and another one less than this share of its time."""

Worker: TypeAlias = Hashable


class Task(NamedTuple):
    """What a worker does at a time: one explainer on one batch of the data, or on neighbouring subjects."""

    explainer: str
    number: int


@dataclass(frozen=True)
class Running:
    """What a worker does, and since when in seconds."""

    task: Task
    since: float


class Schedule:
    """Tasks that are to be done, and the workers that do them.

    The longest task comes first, so that the last ones are short. How long a task takes is estimated from its cost, and
    from the seconds per cost that its explainer took so far. When no task is left, a free worker runs a task a second
    time if it is expected to be done sooner than the worker that has it; the first answer counts.

    Attributes:
        left_out: the tasks that ended `MOST_ENDED` workers.
        retried: how often a task was started again because its worker ended.
        run_twice: how often a second worker got a task that another one was running.

    Args:
        costs: of each task, in any unit; above 0.
    """

    def __init__(self, costs: Mapping[Task, float]) -> None:
        self._costs = dict(costs)
        self._pending: dict[str, list[Task]] = defaultdict(list)  # of each explainer, the costliest last
        for task in sorted(costs, key=lambda task: (costs[task], -task.number)):
            self._pending[task.explainer].append(task)
        self._open = set(costs)  # neither answered nor left out
        self._free: dict[Worker, None] = {}
        self._running: dict[Worker, Running] = {}
        self._copies: Counter[Task] = Counter()
        self._ended: Counter[Task] = Counter()
        self._pending_cost = {name: sum(costs[task] for task in of) for name, of in self._pending.items()}
        self._begun: set[str] = set()
        self._seconds: dict[str, float] = defaultdict(float)  # of the answers, by explainer
        self._answered_cost: dict[str, float] = defaultdict(float)
        self._took: dict[Worker, float] = defaultdict(float)  # the seconds of its answers
        self._expected: dict[Worker, float] = defaultdict(float)  # and as estimated, at each answer
        self.left_out: list[Task] = []
        self.retried = 0
        self.run_twice = 0

    @property
    def finished(self) -> bool:
        """Whether every task is answered, left out or dropped."""
        return not self._open

    @property
    def open(self) -> int:
        """How many tasks need an answer."""
        return len(self._open)

    def seconds_left(self, now: float) -> float | None:
        """The seconds until all is done, if the workers share evenly; None before the first answer."""
        workers = len(self._running) + len(self._free)
        if not self._seconds or not workers:
            return None
        running = {one.task: self._remaining(worker, now) for worker, one in self._running.items()}
        pending = sum(cost * self._rate(name) for name, cost in self._pending_cost.items())
        return (pending + sum(seconds for task, seconds in running.items() if task in self._open)) / workers

    def task_of(self, worker: Worker) -> Task:
        """What a worker does."""
        return self._running[worker].task

    def joined(self, worker: Worker) -> None:
        """A worker is there, and free."""
        self._free[worker] = None

    def answered(self, worker: Worker, now: float) -> bool:
        """A worker has done its task, and is free. Returns whether this answer is the first, which counts."""
        done = self._running.pop(worker)
        self._copies[done.task] -= 1
        self._free[worker] = None
        seconds = now - done.since
        self._seconds[done.task.explainer] += seconds
        self._answered_cost[done.task.explainer] += self._costs[done.task]
        self._took[worker] += seconds
        self._expected[worker] += self._estimate(done.task)
        first = done.task in self._open
        self._open.discard(done.task)
        return first

    def ended(self, worker: Worker) -> Task | None:
        """A worker is gone. Returns its task if that is left out from now on."""
        self._free.pop(worker, None)
        if (was := self._running.pop(worker, None)) is None:
            return None
        task = was.task
        self._copies[task] -= 1
        self._ended[task] += 1
        if task not in self._open:
            return None
        if self._ended[task] >= MOST_ENDED:
            self._open.discard(task)
            self.left_out.append(task)
            return task
        if not self._copies[task]:
            self.retried += 1
            self._pending[task.explainer].append(task)
            self._pending_cost[task.explainer] += self._costs[task]
        return None

    def is_pending(self, task: Task) -> bool:
        """Whether it is to be done, and no worker has it."""
        return task in self._pending[task.explainer]

    def split(self, task: Task, parts: Mapping[Task, float]) -> None:
        """Do these tasks, with their costs, in place of one that is pending. They are small, and come last."""
        pending = self._pending[task.explainer]
        pending.remove(task)
        self._open.remove(task)
        self._pending_cost[task.explainer] += sum(parts.values()) - self._costs[task]
        del self._ended[task]  # each of its parts may end workers itself
        self._costs.update(parts)
        self._open.update(parts)
        pending[:0] = reversed([*parts])

    def drop(self, explainer: str, after: int) -> None:
        """The tasks of this explainer beyond this one need no answer any more."""
        kept = [task for task in self._pending[explainer] if task.number <= after]
        self._pending[explainer] = kept
        self._pending_cost[explainer] = sum(self._costs[task] for task in kept)
        self._open = {task for task in self._open if task.explainer != explainer or task.number <= after}

    def assign(self, now: float) -> dict[Worker, Task]:
        """What free workers start now."""
        started: dict[Worker, Task] = {}
        for worker in sorted(self._free, key=self._slowness):
            task = self._next(worker, now)
            if task is None:
                break  # the others are slower
            del self._free[worker]
            self._running[worker] = Running(task, now)
            self._copies[task] += 1
            started[worker] = task
        return started

    def _next(self, worker: Worker, now: float) -> Task | None:
        heads = [tasks[-1] for tasks in self._pending.values() if tasks]
        if not heads:
            return self._second(worker, now)
        # An explainer that has not begun comes first, so that its tasks can be estimated.
        task = max(heads, key=lambda task: (task.explainer not in self._begun, self._estimate(task), -task.number))
        if self._others_are_sooner(worker, self._estimate(task)):
            return None
        self._begun.add(task.explainer)
        self._pending[task.explainer].pop()
        self._pending_cost[task.explainer] -= self._costs[task]
        return task

    def _second(self, worker: Worker, now: float) -> Task | None:
        """The running task that is expected to end last, if this worker is expected to be done with it sooner.

        A slow worker gets none: another one may soon be free.
        """
        if self._is_slow(worker):
            return None
        alone = (
            (self._remaining(other, now), one.task)
            for other, one in self._running.items()
            if one.task in self._open and self._copies[one.task] < MOST_COPIES
        )
        remaining, task = max(alone, default=(0.0, None), key=lambda one: one[0])
        if task is None or self._estimate(task) * self._slowness(worker) >= remaining:
            return None
        self.run_twice += 1
        return task

    def _remaining(self, worker: Worker, now: float) -> float:
        """The seconds that a worker still needs; beyond the estimate, as long again as it has run."""
        one = self._running[worker]
        elapsed = now - one.since
        expected = self._estimate(one.task) * self._slowness(worker)
        return expected - elapsed if expected > elapsed else elapsed

    def _others_are_sooner(self, worker: Worker, estimate: float) -> bool:
        """Whether the other workers would be done with all that is pending before this one with a single task."""
        if not self._is_slow(worker):
            return False
        others = [self._slowness(other) for other in (*self._running, *self._free) if other != worker]
        pending = sum(cost * self._rate(name) for name, cost in self._pending_cost.items())
        sooner = pending / sum(1 / other for other in others) + estimate * min(others)
        return estimate * self._slowness(worker) > sooner

    def _is_slow(self, worker: Worker) -> bool:
        """See `SLOW`."""
        slowness = self._slowness(worker)
        return slowness > 1.5 and min(map(self._slowness, (*self._running, *self._free))) < SLOW * slowness

    def _estimate(self, task: Task) -> float:
        return self._costs[task] * self._rate(task.explainer)

    def _rate(self, explainer: str) -> float:
        """Seconds per cost; of an explainer without an answer that of all together."""
        if explainer in self._seconds:
            return self._seconds[explainer] / self._answered_cost[explainer]
        total = sum(self._answered_cost.values())
        return sum(self._seconds.values()) / total if total else 1.0

    def _slowness(self, worker: Worker) -> float:
        """How many times as long as estimated a worker took for what it did; 1 if it did nothing."""
        return self._took[worker] / self._expected[worker] if worker in self._expected else 1.0

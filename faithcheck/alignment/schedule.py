"""Which worker does which task next: the policy of an alignment, or of checks, on many workers.

It knows no processes and no clock: it is told what happened and when, and says what to start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from faithcheck.alignment.pending import Pending

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
    """What a worker does, what it costs, and since when in seconds."""

    task: Task
    cost: float
    since: float


class Schedule:
    """Tasks that are to be done, and the workers that do them.

    The longest task comes first, so that the last ones are short. How long a task takes is estimated from its cost, and
    from the seconds per cost that its explainer took so far. When no task is left, a free worker runs a task a second
    time if it is expected to be done sooner than the worker that has it; the first answer counts.

    What waits is in temporary files: memory holds what workers run, and the few tasks that ended one.

    Attributes:
        left_out: the tasks that ended `MOST_ENDED` workers.
        retried: how often a task was started again because its worker ended.
        run_twice: how often a second worker got a task that another one was running.

    Args:
        costs: of each task, in any unit; above 0. It is read here alone.
    """

    def __init__(self, costs: Mapping[Task, float]) -> None:
        lengths = Counter(task.explainer for task in costs)
        self._pending = {name: Pending(_of_explainer(costs, name), length) for name, length in lengths.items()}
        self._open = lengths.total()  # tasks that are neither answered nor left out
        self._closed: set[Task] = set()  # the others, as long as a worker runs them
        self._free: dict[Worker, None] = {}
        self._running: dict[Worker, Running] = {}
        self._copies: Counter[Task] = Counter()
        self._ended: Counter[Task] = Counter()
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
        return self._open

    def seconds_left(self, now: float) -> float | None:
        """The seconds until all is done, if the workers share evenly; None before the first answer."""
        workers = len(self._running) + len(self._free)
        if not self._seconds or not workers:
            return None
        running = {one.task: self._remaining(worker, now) for worker, one in self._running.items()}
        left = sum(seconds for task, seconds in running.items() if task not in self._closed)
        return (self._seconds_pending() + left) / workers

    def task_of(self, worker: Worker) -> Task:
        """What a worker does."""
        return self._running[worker].task

    def joined(self, worker: Worker) -> None:
        """A worker is there, and free."""
        self._free[worker] = None

    def answered(self, worker: Worker, now: float) -> bool:
        """A worker has done its task, and is free. Returns whether this answer is the first, which counts."""
        done = self._running.pop(worker)
        self._free[worker] = None
        seconds = now - done.since
        self._seconds[done.task.explainer] += seconds
        self._answered_cost[done.task.explainer] += done.cost
        self._took[worker] += seconds
        self._expected[worker] += self._estimate(done.task, done.cost)
        first = self._close(done.task)
        self._one_copy_less(done.task)
        return first

    def ended(self, worker: Worker) -> Task | None:
        """A worker is gone. Returns its task if that is left out from now on."""
        self._free.pop(worker, None)
        if (was := self._running.pop(worker, None)) is None:
            return None
        task = was.task
        self._ended[task] += 1
        is_open, alone = task not in self._closed, self._copies[task] == 1
        is_left_out = self._ended[task] >= MOST_ENDED and self._close(task)
        if is_left_out:
            self.left_out.append(task)
        elif is_open and alone:
            self.retried += 1
            self._pending[task.explainer].put_back(task.number, was.cost)
        self._one_copy_less(task)
        return task if is_left_out else None

    def _close(self, task: Task) -> bool:
        """A task that workers run needs no answer any more. Returns whether it needed one."""
        if task in self._closed:
            return False
        self._closed.add(task)
        self._open -= 1
        return True

    def _one_copy_less(self, task: Task) -> None:
        self._copies[task] -= 1
        if not self._copies[task]:
            del self._copies[task]
            self._closed.discard(task)

    def is_pending(self, task: Task) -> bool:
        """Whether it is to be done, and no worker has it."""
        return task.number in self._pending[task.explainer]

    def split(self, task: Task, parts: Mapping[Task, float]) -> None:
        """Do these tasks, with their costs, in place of one that ended a worker. They are small, and come last."""
        self._pending[task.explainer].split(task.number, {part.number: cost for part, cost in parts.items()})
        self._open += len(parts) - 1
        del self._ended[task]  # each of its parts may end workers itself

    def drop(self, explainer: str, after: int) -> None:
        """The tasks of this explainer beyond this one need no answer any more."""
        self._open -= self._pending[explainer].drop(after)
        for task in {one.task for one in self._running.values()}:
            if task.explainer == explainer and task.number > after:
                self._close(task)

    def assign(self, now: float) -> dict[Worker, Task]:
        """What free workers start now."""
        started: dict[Worker, Task] = {}
        for worker in sorted(self._free, key=self._slowness):
            found = self._next(worker, now)
            if found is None:
                break  # the others are slower
            task, cost = found
            del self._free[worker]
            self._running[worker] = Running(task, cost, now)
            self._copies[task] += 1
            started[worker] = task
        return started

    def _next(self, worker: Worker, now: float) -> tuple[Task, float] | None:
        """A task and its cost."""
        heads = {name: pending.first() for name, pending in self._pending.items() if len(pending)}
        if not heads:
            return self._second(worker, now)
        estimates = {name: cost * self._rate(name) for name, (_, cost) in heads.items()}
        # An explainer that has not begun comes first, so that its tasks can be estimated.
        name = max(heads, key=lambda name: (name not in self._begun, estimates[name], -heads[name][0]))
        if self._others_are_sooner(worker, estimates[name]):
            return None
        self._begun.add(name)
        self._pending[name].take_first()
        number, cost = heads[name]
        return Task(name, number), cost

    def _second(self, worker: Worker, now: float) -> tuple[Task, float] | None:
        """The running task that is expected to end last, if this worker is expected to be done with it sooner.

        A slow worker gets none: another one may soon be free.
        """
        if self._is_slow(worker):
            return None
        alone = (
            (self._remaining(other, now), one)
            for other, one in self._running.items()
            if one.task not in self._closed and self._copies[one.task] < MOST_COPIES
        )
        remaining, one = max(alone, default=(0.0, None), key=lambda one: one[0])
        if one is None or self._estimate(one.task, one.cost) * self._slowness(worker) >= remaining:
            return None
        self.run_twice += 1
        return one.task, one.cost

    def _remaining(self, worker: Worker, now: float) -> float:
        """The seconds that a worker still needs; beyond the estimate, as long again as it has run."""
        one = self._running[worker]
        elapsed = now - one.since
        expected = self._estimate(one.task, one.cost) * self._slowness(worker)
        return expected - elapsed if expected > elapsed else elapsed

    def _others_are_sooner(self, worker: Worker, estimate: float) -> bool:
        """Whether the other workers would be done with all that is pending before this one with a single task."""
        if not self._is_slow(worker):
            return False
        others = [self._slowness(other) for other in (*self._running, *self._free) if other != worker]
        sooner = self._seconds_pending() / sum(1 / other for other in others) + estimate * min(others)
        return estimate * self._slowness(worker) > sooner

    def _is_slow(self, worker: Worker) -> bool:
        """See `SLOW`."""
        slowness = self._slowness(worker)
        return slowness > 1.5 and min(map(self._slowness, (*self._running, *self._free))) < SLOW * slowness

    def _seconds_pending(self) -> float:
        """What no worker has, on one worker of full speed."""
        return sum(pending.cost * self._rate(name) for name, pending in self._pending.items())

    def _estimate(self, task: Task, cost: float) -> float:
        return cost * self._rate(task.explainer)

    def _rate(self, explainer: str) -> float:
        """Seconds per cost; of an explainer without an answer that of all together."""
        if explainer in self._seconds:
            return self._seconds[explainer] / self._answered_cost[explainer]
        total = sum(self._answered_cost.values())
        return sum(self._seconds.values()) / total if total else 1.0

    def _slowness(self, worker: Worker) -> float:
        """How many times as long as estimated a worker took for what it did; 1 if it did nothing."""
        return self._took[worker] / self._expected[worker] if worker in self._expected else 1.0


def _of_explainer(costs: Mapping[Task, float], explainer: str) -> Iterator[tuple[int, float]]:
    return ((task.number, costs[task]) for task in costs if task.explainer == explainer)

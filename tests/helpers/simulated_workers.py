"""Workers that are simulated: what a schedule makes of task times, failures and stragglers, without processes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from faithcheck.alignment.schedule import Schedule, Task


@dataclass(frozen=True)
class SimulatedWorker:
    """How a worker does.

    Attributes:
        slowness: it takes so many times the seconds of a task.
        ends_at: the moment at which it ends, and another one of full speed takes its place; None: never.
    """

    slowness: float = 1.0
    ends_at: float | None = None


@dataclass
class Simulation:
    """What happened.

    Attributes:
        makespan: the moment at which all was done.
        first_answers: how many answers of each task counted.
        ended: how many workers ended while they ran each task.
        lost: the seconds of full speed that ended workers had spent on tasks.
    """

    makespan: float = 0.0
    first_answers: Counter[Task] = field(default_factory=Counter)
    ended: Counter[Task] = field(default_factory=Counter)
    lost: float = 0.0


def simulate(
    costs: Mapping[Task, float],
    seconds: Mapping[Task, float],
    workers: Sequence[SimulatedWorker],
    deadly: frozenset[Task] = frozenset(),
) -> tuple[Schedule, Simulation]:
    """Run a schedule to its end.

    Args:
        costs: what the schedule knows.
        seconds: what each task takes at full speed.
        workers: at the start.
        deadly: the tasks that end each worker that runs them, halfway.
    """
    schedule, result = Schedule(costs), Simulation()
    slowness: dict[int, float] = {}
    running: dict[int, tuple[Task, float]] = {}
    events: list[tuple[float, int, str, int]] = []
    numbers, names = count(), count()

    def push(moment: float, kind: str, worker: int) -> None:
        heapq.heappush(events, (moment, next(numbers), kind, worker))

    def join(worker: SimulatedWorker) -> None:
        name = next(names)
        slowness[name] = worker.slowness
        schedule.joined(name)
        if worker.ends_at is not None:
            push(worker.ends_at, "ends", name)

    def assign(now: float) -> None:
        for name, task in schedule.assign(now).items():
            assert isinstance(name, int)
            running[name] = task, now
            takes = seconds[task] * slowness[name]
            push(now + (takes / 2 if task in deadly else takes), "ends" if task in deadly else "answers", name)

    for worker in workers:
        join(worker)
    mean = sum(seconds.values()) / len(seconds)
    assign(0.0)
    push(mean, "looks", -1)  # as the engine does once a second
    while not schedule.finished:
        now, _, kind, name = heapq.heappop(events)
        if kind == "looks":
            push(now + mean / 4, "looks", -1)
        elif name not in slowness:
            continue  # ended before
        elif kind == "answers":
            task, _ = running.pop(name)
            result.first_answers[task] += schedule.answered(name, now)
        else:
            if name in running:
                task, since = running.pop(name)
                result.ended[task] += 1
                result.lost += (now - since) / slowness[name]
            del slowness[name]
            schedule.ended(name)
            join(SimulatedWorker())
        assign(now)
        result.makespan = now
    return schedule, result


def bound(seconds: Mapping[Task, float], workers: Sequence[SimulatedWorker], lost: float) -> float:
    """The least time in which any schedule could do this work, and the work that was lost, with these workers.

    The work is done at the speed of all workers together, and the longest task by one of full speed.
    """
    work = sum(seconds.values()) + lost
    now, speed = 0.0, sum(1 / worker.slowness for worker in workers)
    for worker in sorted((w for w in workers if w.ends_at is not None), key=lambda w: w.ends_at or 0.0):
        ends_at = worker.ends_at or 0.0
        if (ends_at - now) * speed >= work:
            break
        work -= (ends_at - now) * speed
        now, speed = ends_at, speed - 1 / worker.slowness + 1
    return max(now + work / speed, max(seconds.values()))

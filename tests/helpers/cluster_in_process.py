"""A cluster without processes: one worker, here, that does the tasks of a schedule one after the other."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from faithcheck.alignment.schedule import Schedule, Task
from faithcheck.executors.ray.dispatch import Job, Recipe, State, Watch
from faithcheck.executors.ray.worker import versions
from faithcheck.json_object import Json
from faithcheck.options import OptionError


@contextmanager
def logging_restored() -> Iterator[None]:
    """A worker keeps what is logged in its process, which here is that of the tests."""
    logger = logging.getLogger("faithcheck")
    handlers = [*logger.handlers]
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, True


def distribute(
    job: Job,
    costs: Mapping[Task, float],
    address: str,
    recipe: Recipe,
    watch: Watch = lambda state: None,
    ends: Callable[..., bool] = lambda *arguments: False,
) -> Json:
    """As `faithcheck.executors.ray.dispatch.distribute`, which it is put in place of.

    Args:
        job: see there.
        costs: see there.
        address: see there.
        recipe: see there.
        watch: see there.
        ends: whether a task with these arguments ends its worker.
    """
    schedule, tasks = Schedule(costs), len(costs)
    with logging_restored():
        worker: Any = recipe.worker(*recipe.arguments, os.getcwd(), recipe.wanted.cpus)
    if refusal := worker.ready({"versions": versions(), **recipe.expected}):
        raise OptionError(refusal)
    schedule.joined(worker)
    while not schedule.finished:
        ((_, task),) = schedule.assign(0.0).items()
        arguments = job.arguments(task)
        if ends(*arguments):
            if schedule.ended(worker):
                job.leave_out(task, "it ended 3 workers: here")
            elif parts := job.parts(task):
                schedule.split(task, parts)
            schedule.joined(worker)
            continue
        content = worker.answer(*arguments)["content"]
        schedule.answered(worker, 1.0)
        if not job.keep(task, content):
            schedule.drop(task.explainer, task.number)
        watch(State(1, schedule.retried))
    counts = {"retried": schedule.retried, "run_twice": 0, "left_out": len(schedule.left_out)}
    return {"engine": "here", "workers": 1, "tasks": tasks, **counts, "seconds": 0.0}

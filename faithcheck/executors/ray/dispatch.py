"""Sharing tasks between the workers of a Ray cluster, whatever the tasks are."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from faithcheck.alignment.schedule import MOST_ENDED, Schedule, Task
from faithcheck.executors.ray.cluster import Workers, connected
from faithcheck.executors.ray.worker import Worker, difference, versions
from faithcheck.json_object import Json
from faithcheck.options import OptionError

LOOK = 1.0  # seconds after which the schedule is asked again, if nothing happens
log = logging.getLogger(__name__)


class Job(Protocol):
    """What is shared: its tasks, and what becomes of their answers."""

    def arguments(self, task: Task) -> tuple[Any, ...]:
        """Those of the worker's `measure`."""
        ...

    def keep(self, task: Task, content: Any) -> bool:
        """Keep what `measure` returned. Returns whether the explainer's later tasks need an answer."""
        ...

    def parts(self, task: Task) -> Mapping[Task, float]:
        """Smaller tasks, with their costs, that are done in place of one that ended a worker; none if it has none."""
        ...

    def leave_out(self, task: Task, why: str) -> None:
        """Keep in mind that the task ended several workers, and is not measured."""
        ...


@dataclass(frozen=True)
class State:
    """How a run on a cluster is getting on.

    Attributes:
        workers: how many have loaded everything.
        retried: how often a task was started again because its worker ended.
        run_twice: how often a second worker got a task that another one was running.
        left_out: how many tasks ended several workers, and are not measured.
        seconds_left: until all tasks are done, as far as that can be estimated; None before the first answer.
        gpu_memory: the bytes in use and all bytes, of all GPUs of the workers; None without GPUs.
        dashboard: the address of Ray's dashboard; empty without one.
    """

    workers: int
    retried: int = 0
    run_twice: int = 0
    left_out: int = 0
    seconds_left: float | None = None
    gpu_memory: tuple[int, int] | None = None
    dashboard: str = ""


Advance = Callable[[str, int, int], None]
"""Called with an explainer's name, what is done of it since the last call, and the number of all."""
Watch = Callable[[State], None]
"""Called whenever something happened."""


@dataclass(frozen=True)
class Recipe:
    """How workers are made.

    Attributes:
        wanted: how many, with which resources.
        worker: the class.
        arguments: of the class, before the folder and the threads.
        expected: what a worker must have, besides the versions: see `Worker.load`.
    """

    wanted: Workers
    worker: type[Worker]
    arguments: tuple[Any, ...]
    expected: Json = field(default_factory=dict)


def distribute(
    job: Job, costs: Mapping[Task, float], address: str, recipe: Recipe, watch: Watch = lambda state: None
) -> Json:
    """Have all tasks done on a cluster. Without a task, no cluster is started.

    Args:
        job: what the tasks are, and what becomes of their answers.
        costs: of each task, in any unit; above 0. They are read before the first task is done.
        address: of the cluster, see `connected`.
        recipe: of the workers.
        watch: called whenever something happened, and once in `LOOK` seconds.

    Returns:
        The record of the run.

    Raises:
        OptionError: the cluster cannot be reached, or a worker has other versions, other code or no files.
        Exception: what `Job.keep` raises.
    """
    begun = time.monotonic()
    schedule = Schedule(costs)
    workers, dispatch = 0, None
    if schedule.open:
        with connected(address, recipe.wanted) as cluster:
            workers = min(cluster.workers, schedule.open)
            dispatch = _Dispatch(job, schedule, recipe)
            for _ in range(workers):
                dispatch.add_worker()
            while not schedule.finished:
                dispatch.assign()
                dispatch.receive()
                watch(dispatch.state(cluster.dashboard))
            dispatch.ended = time.monotonic()
    return {
        "engine": f"Ray {versions()['ray']}",
        "workers": workers,
        "tasks": dispatch.kept if dispatch else 0,
        "retried": schedule.retried,
        "run_twice": schedule.run_twice,
        "left_out": len(schedule.left_out),
        "seconds": time.monotonic() - begun,
        "started": dispatch.started - begun if dispatch else 0.0,
        "ended": dispatch.ended - begun if dispatch else 0.0,
        "busy": dispatch.busy if dispatch else 0.0,
    }


class _Dispatch:
    """Sends tasks to workers as the schedule says, and has kept what comes back.

    Attributes:
        started: the moment at which the first worker had loaded everything.
        ended: the moment at which all tasks were done.
        kept: how many tasks have an answer that counts; one in which an explainer refuses counts for nothing.
        busy: the seconds that workers took for the answers that count.
    """

    def __init__(self, job: Job, schedule: Schedule, recipe: Recipe) -> None:
        import ray

        self._job, self._schedule, self._recipe = job, schedule, recipe
        wanted = recipe.wanted
        self._class: Any = ray.remote(recipe.worker).options(num_cpus=wanted.cpus, num_gpus=wanted.gpus)
        self._expected = {"versions": versions(), **recipe.expected}
        self._starting: dict[Any, Any] = {}  # the worker, by what will be there
        self._working: dict[Any, Any] = {}
        self._there: set[Any] = set()
        self._gpu_memory: dict[str, tuple[int, int]] = {}  # of each GPU
        self._ended_at_start = 0
        self.started = self.ended = time.monotonic()
        self.busy = 0.0
        self.kept = 0

    def add_worker(self) -> None:
        """Start one."""
        actor = self._class.remote(*self._recipe.arguments, os.getcwd(), self._recipe.wanted.cpus)
        self._starting[actor.ready.remote(self._expected)] = actor

    def assign(self) -> None:
        """Send the free workers what the schedule says."""
        actor: Any
        for actor, task in self._schedule.assign(time.monotonic()).items():
            self._working[actor.answer.remote(*self._job.arguments(task))] = actor

    def receive(self) -> None:
        """Wait for the next answer or the next end of a worker, at most `LOOK` seconds, and have the answer kept.

        Raises:
            OptionError: a worker cannot be used, or workers end while they start.
        """
        import ray

        there, _ = ray.wait([*self._starting, *self._working], num_returns=1, timeout=LOOK)
        for reference in there:
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                self._ended(reference, _reason(error))
                continue
            if reference in self._starting:
                self._join(self._starting.pop(reference), refusal=answer)
                continue
            actor = self._working.pop(reference)
            task = self._schedule.task_of(actor)
            self._gpu_memory |= answer["gpu_memory"]
            if self._schedule.answered(actor, time.monotonic()):
                self.assign()  # the worker is at work again while the answer is written
                self._keep(task, answer)

    def state(self, dashboard: str) -> State:
        """How it is getting on."""
        gpus = self._gpu_memory.values()
        memory = (sum(used for used, _ in gpus), sum(total for _, total in gpus)) if gpus else None
        schedule, left = self._schedule, self._schedule.seconds_left(time.monotonic())
        counts = schedule.retried, schedule.run_twice, len(schedule.left_out)
        return State(len(self._there), *counts, left, memory, dashboard)

    def _join(self, actor: Any, refusal: str) -> None:
        if refusal:
            raise OptionError(refusal)
        if not self._there:
            self.started = time.monotonic()
        self._there.add(actor)
        self._ended_at_start = 0
        self._schedule.joined(actor)

    def _ended(self, reference: Any, why: str) -> None:
        if self._starting.pop(reference, None) is not None:
            self._ended_at_start += 1
            if self._ended_at_start == 1 and (other := self._other_versions()):
                raise OptionError(other)
            if self._ended_at_start >= MOST_ENDED:
                raise OptionError(f"--ray: {MOST_ENDED} workers in turn ended while they started: {why}")
        else:
            actor = self._working.pop(reference)
            self._there.discard(actor)
            task = self._schedule.task_of(actor)
            if self._schedule.ended(actor):
                self._job.leave_out(task, f"it ended {MOST_ENDED} workers: {why}")
            elif self._schedule.is_pending(task) and (parts := self._job.parts(task)):
                self._schedule.split(task, parts)
        if len(self._starting) + len(self._there) < self._schedule.open:
            self.add_worker()

    def _other_versions(self) -> str:
        """What the cluster has otherwise than this process: a worker of other code may end before it can say so."""
        import ray

        with suppress(ray.exceptions.RayError):
            there: dict[str, str] = ray.get(ray.remote(versions).remote())
            return difference(self._expected["versions"], there, "the cluster")
        return ""

    def _keep(self, task: Task, answer: Json) -> None:
        for level, message in answer["messages"]:
            log.log(level, "%s", message)
        self.busy += answer["seconds"]
        if self._job.keep(task, answer["content"]):
            self.kept += 1
        else:
            self._schedule.drop(task.explainer, task.number)


def _reason(error: BaseException) -> str:
    """The first sentence of Ray's account of how a worker ended."""
    text = " ".join(str(error).split())
    return text.partition(" The ")[0][:200] or type(error).__name__

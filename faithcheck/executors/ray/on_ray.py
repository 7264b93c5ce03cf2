"""The executor that shares jobs between the workers of a Ray cluster.

It asks Ray itself: an `ActorPool` does not say which job has ended a worker, nor how often a job was started again.
"""

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from faithcheck.executors.executor import AnyJob, Executor, Job
from faithcheck.executors.ray.cluster import connected
from faithcheck.executors.ray.worker import Answer, Readiness, Worker, difference, versions
from faithcheck.options import OptionError
from faithcheck.reports.documents.document import Run
from faithcheck.request import Place

MOST_ENDED = 3
"""A job that has ended this many workers is left out."""
LOOK = 1.0
"""The seconds after which `Watch` is called again, if nothing happens."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """How a run on a cluster is getting on."""

    workers: int  # how many have loaded everything
    retried: int = 0  # how often a job was started again because its worker ended
    left_out: int = 0  # how many jobs ended several workers, and are not measured
    # The bytes in use and all bytes, of all GPUs of the workers; None without GPUs
    gpu_memory: tuple[int, int] | None = None
    dashboard: str = ""  # the address of Ray's dashboard; empty without one


Watch = Callable[[State], None]
"""Called whenever something happened."""


class OnRay(Executor):
    """Runs jobs on a Ray cluster. Each worker runs one at a time, after it has confirmed the ``readiness``.

    A job whose worker ends is the next to be run, and after `MOST_ENDED` ends it is left out.
    """

    def __init__(self, place: Place, readiness: Readiness, watch: Watch = lambda state: None) -> None:
        self._place, self._readiness, self._watch = place, readiness, watch
        self._starting: dict[Any, Any] = {}  # the worker, by the reference to what it answers
        self._free: list[Any] = []
        self._running: dict[Any, tuple[Any, Job[Any]]] = {}
        self._again: list[Job[Any]] = []
        self._ends: Counter[int] = Counter()  # of workers, by the id of the job, which is held
        self._ended_at_start = 0
        self._gpu_memory: dict[str, tuple[int, int]] = {}
        self._most = self._answered = self._retried = self._left_out = 0
        self._started = self._busy = 0.0

    def run(self, jobs: Iterable[AnyJob]) -> Iterator[tuple[AnyJob, Any]]:
        """See `Executor.run`; `OptionError` if the cluster cannot be used. Without a job, no cluster is started."""
        import ray

        self._ray: Any = ray
        begun = ended = time.monotonic()
        jobs = iter(jobs)
        first = next(jobs, None)
        if first is not None:
            with connected(self._place) as cluster:
                for found in self._share(chain([first], jobs), cluster.workers):
                    self._watch(self._state(cluster.dashboard))
                    if found is not None:
                        yield found
                ended = time.monotonic()
        self.record = Run(
            engine=f"Ray {versions()['ray']}",
            workers=self._most,
            tasks=self._answered,
            retried=self._retried,
            left_out=self._left_out,
            seconds=time.monotonic() - begun,
            started=self._started - begun if self._answered else 0.0,
            ended=ended - begun,
            busy=self._busy,
        )

    def _share(self, jobs: Iterator[Any], workers: int) -> Iterator[tuple[Any, Any] | None]:
        """Each job with its result; None whenever something else happened."""
        exhausted = False
        while not exhausted or self._running or self._again:
            while self._free and not (exhausted and not self._again):
                job = self._again.pop() if self._again else next(jobs, None)
                if job is None:
                    exhausted = True
                else:
                    actor = self._free.pop()
                    self._running[actor.run.remote(job.remote())] = actor, job
            # No more workers are started than there are jobs for them, as far as that is known.
            while len(self._starting) + len(self._free) + len(self._running) < workers:
                if exhausted and len(self._again) <= len(self._starting) + len(self._free):
                    break
                self._start()
            if self._running or (self._starting and (self._again or not exhausted)):
                yield self._next()

    def _state(self, dashboard: str) -> State:
        gpus = self._gpu_memory.values()
        memory = (sum(used for used, _ in gpus), sum(total for _, total in gpus)) if gpus else None
        return State(len(self._free) + len(self._running), self._retried, self._left_out, memory, dashboard)

    def _start(self) -> None:
        cpus, gpus = self._place.cpus_per_worker, self._place.gpus_per_worker
        actor = self._ray.remote(Worker).options(num_cpus=cpus, num_gpus=gpus).remote(os.getcwd(), cpus)
        self._starting[actor.ready.remote(versions(), self._readiness)] = actor

    def _next(self) -> tuple[Job[Any], Any] | None:
        """Wait for the next result or the next end of a worker, at most `LOOK` seconds."""
        there, _ = self._ray.wait([*self._starting, *self._running], num_returns=1, timeout=LOOK)
        for reference in there:
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayActorError as error:
                return self._worker_ended(reference, _reason(error))
            if reference in self._starting:
                if answer:
                    raise OptionError(answer)
                self._free.append(self._starting.pop(reference))
                self._ended_at_start = 0
                self._started = self._started or time.monotonic()
                self._most = max(self._most, len(self._free) + len(self._running))
                return None
            actor, job = self._running.pop(reference)
            self._free.append(actor)
            return job, self._answer(job, answer)
        return None

    def _answer(self, job: Job[Any], answer: Answer) -> Any:
        for level, message in answer.messages:
            log.log(level, "%s", message)
        self._gpu_memory |= answer.gpu_memory
        self._ends.pop(id(job), None)
        self._answered += 1
        self._busy += answer.seconds
        if not answer.content:
            return job.failed(answer.error, answer.traceback)
        try:
            return job.result(json.loads(answer.content))
        except ValueError as error:
            return job.failed(str(error))

    def _worker_ended(self, reference: Any, why: str) -> tuple[Job[Any], Any] | None:
        if self._starting.pop(reference, None) is not None:
            self._ended_at_start += 1
            if self._ended_at_start == 1 and (other := self._other_versions()):
                raise OptionError(other)
            if self._ended_at_start >= MOST_ENDED:
                raise OptionError(f"--ray: {MOST_ENDED} workers in turn ended while they started: {why}")
            return None
        _, job = self._running.pop(reference)
        self._ends[id(job)] += 1
        if self._ends[id(job)] < MOST_ENDED:
            self._retried += 1
            self._again.append(job)
            return None
        self._left_out += 1
        return job, job.left_out(f"it ended {MOST_ENDED} workers: {why}")

    def _other_versions(self) -> str:
        """What the cluster has otherwise than this process: a worker of other code may end before it can say so."""
        with suppress(self._ray.exceptions.RayError):
            there: dict[str, str] = self._ray.get(self._ray.remote(versions).remote())
            return difference(versions(), there, "the cluster")
        return ""


def _reason(error: BaseException) -> str:
    """The first sentence of Ray's account of how a worker ended."""
    text = " ".join(str(error).split())
    return text.partition(" The ")[0][:200] or type(error).__name__

"""Jobs, such as a check or a batch of an alignment, and the executor in this process, from which others are derived."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self, TypeVar

from faithcheck.reports.documents.document import Run

Result = TypeVar("Result", covariant=True)


class Remote(Protocol):
    """A job as another process gets it: it is pickled there, and what it returns comes back as JSON."""

    def prepare(self) -> None:
        """Load the explainer and the models: this time does not count toward the time limit."""

    def run(self) -> object:
        """The result of the job in plain values."""


class Job(Protocol[Result]):
    """A piece of work. `run` raises nothing but the user's Ctrl-C: the result says what an explainer raised."""

    @property
    def explainer(self) -> str:
        """The name of the explainer whose code runs; empty if none does."""

    @property
    def timeout(self) -> float | None:
        """The user's time limit in seconds; None: there is none."""

    def run(self) -> Result:
        """Run it in this process, in the sandbox."""

    def remote(self) -> Remote:
        """The same job for another process."""

    def result(self, content: object) -> Result:
        """The result that `Remote.run` returned in another process; `ValueError` if it is no result of this job."""

    def failed(self, why: str, printed: str | None = None) -> Result:
        """The result where the job could not be run; ``printed`` is a traceback, or what the process printed last."""

    def not_run(self, why: str) -> Result:
        """The result where the explainer has ended so many processes that the job was not tried."""

    def left_out(self, why: str) -> Result:
        """The result where the job has ended several workers of a cluster. Other jobs of its explainer go on."""


AnyJob = TypeVar("AnyJob", bound=Job[Any])


class Executor:
    """Runs jobs one by one in this process; its context ends all processes. ``record`` is None until all are done."""

    record: Run | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, jobs: Iterable[AnyJob]) -> Iterator[tuple[AnyJob, Any]]:
        """Each job with its result, in order of arrival. A job is asked for when it can start."""
        begun, done = time.monotonic(), 0
        for job in jobs:
            yield job, self._result(job)
            done += 1  # the record counts jobs that are done
        seconds = time.monotonic() - begun
        self.record = Run(
            engine="one process", workers=1, tasks=done, retried=0, left_out=0, seconds=seconds, started=0.0
        )

    def close(self) -> None:
        """End all processes that were started."""

    def _result(self, job: Job[Any]) -> Any:
        return job.run()

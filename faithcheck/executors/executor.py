"""What all executors share, and the one that runs jobs in this process."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from faithcheck.job import Job
from faithcheck.reports.documents.document import Run

AnyJob = TypeVar("AnyJob", bound=Job[Any])


class Executor(ABC):
    """Runs jobs. Use it as a context manager: at the end, all processes that it has started end.

    Attributes:
        record: how the run went; None until all jobs are done.
    """

    def __init__(self) -> None:
        self.record: Run | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def run(self, jobs: Iterable[AnyJob]) -> Iterator[tuple[AnyJob, Any]]:
        """Each job with its result, in order of arrival. A job is asked for when it can start."""

    @abstractmethod
    def close(self) -> None:
        """End all processes that were started."""


class InThisProcess(Executor):
    """Runs one job after the other in this process."""

    def run(self, jobs: Iterable[AnyJob]) -> Iterator[tuple[AnyJob, Any]]:
        """See `Executor.run`."""
        begun, done = time.monotonic(), 0
        for job in jobs:
            yield job, self._result(job)
            done += 1  # the record counts jobs that are done
        seconds = time.monotonic() - begun
        self.record = Run(
            engine="one process", workers=1, tasks=done, retried=0, left_out=0, seconds=seconds, started=0.0
        )

    def close(self) -> None:
        """Nothing was started."""

    def _result(self, job: Job[Any]) -> Any:
        return job.run()

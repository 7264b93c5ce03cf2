"""Each explainer in a process of its own: what ends that process costs the explainer one job."""

import time
from collections import Counter
from typing import Any

from msgspec import structs

from faithcheck.check_job import RemoteExplainer
from faithcheck.executors.executor import Executor, Job
from faithcheck.executors.process import JobFailed, Process, ProcessEnded
from faithcheck.executors.supervisor import Limits

MOST_ENDED = 3
"""The remaining jobs of an explainer that has ended this many processes are not run."""
WITHOUT_LIMIT = 3600.0
"""The seconds after which a process is killed where the user sets no time limit."""
BEYOND_LIMIT = 5.0
"""The seconds that a process has beyond twice the user's limit, at which the job stops itself, with a traceback."""


class OwnProcesses(Executor):
    """Runs one job after the other, those of each explainer in a process of its own, all others in this process.

    A job whose process ends has failed; the next starts another. ``most`` limits the processes that live at a time.
    """

    def __init__(self, limits: Limits | None = None, most: int | None = None) -> None:
        super().__init__()
        self._limits, self._most = limits or Limits(), most
        self._processes: dict[str, Process] = {}
        self._ended: Counter[str] = Counter()

    def close(self) -> None:
        """End all processes."""
        while self._processes:
            self._processes.popitem()[1].close()

    def _result(self, job: Job[Any]) -> Any:
        name = job.explainer
        if not name:
            return job.run()
        if self._ended[name] >= MOST_ENDED:
            return job.not_run(f"{name} has ended {MOST_ENDED} processes before this check")
        try:
            return job.result(self._process_of(name).run(job.remote(), killed_after(job.timeout)))
        except ProcessEnded as end:
            self._ended[name] += 1
            return job.failed(f"{name}: {end}", _without_libraries(end.printed) or None)
        except JobFailed as error:
            return job.failed(str(error), error.traceback)
        except ValueError as error:
            return job.failed(str(error))

    def _process_of(self, name: str) -> Process:
        if name not in self._processes or self._processes[name].closed:
            while self._most is not None and len(self._processes) >= self._most:
                self._processes.popitem()[1].close()
            self._processes[name] = Process(self._limits)
        return self._processes[name]


def killed_after(timeout: float | None) -> float:
    """The seconds after which a process that does not answer is killed."""
    return WITHOUT_LIMIT if timeout is None else 2 * timeout + BEYOND_LIMIT


def _without_libraries(printed: str) -> str:
    """The end of what a process printed, without Python's list of the C libraries that were loaded in a crash."""
    return "\n".join(line for line in printed.splitlines() if not line.startswith("Extension modules:")).strip()


class LocalChecks(OwnProcesses):
    """Runs the checks of each isolated explainer in a process of its own, and all other checks in this process."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self._isolated: set[str] = set()

    def isolate(self, spec: str) -> None:
        """Load an explainer in its process. Call it before this process loads the explainer, which could end it.

        `ProcessEnded`: loading ends the process. `JobFailed`: it cannot be loaded. `OSError`: no process starts here.
        """
        process = Process(self._limits)
        name = str(process.run(RemoteExplainer(spec), WITHOUT_LIMIT))
        self._processes[name] = process
        self._isolated.add(name)

    def _result(self, job: Job[Any]) -> Any:
        if job.explainer not in self._isolated:
            return job.run()
        started = time.perf_counter()
        record = super()._result(job)
        return structs.replace(record, seconds=time.perf_counter() - started)  # also where the process has ended

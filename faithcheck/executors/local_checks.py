"""Checks on this machine; `faithcheck.executors.ray.checks` runs them on a cluster."""

from __future__ import annotations

import time
from typing import Any

from msgspec import structs

from faithcheck.check_job import RemoteExplainer
from faithcheck.executors.own_processes import WITHOUT_LIMIT, OwnProcesses
from faithcheck.executors.process import Process
from faithcheck.executors.supervisor import Limits
from faithcheck.job import Job


class LocalChecks(OwnProcesses):
    """Runs the checks of each isolated explainer in a process of its own, and all other checks in this process.

    Args:
        limits: what a process may take; by default half of the machine's memory.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self._isolated: set[str] = set()

    def isolate(self, spec: str) -> None:
        """Load an explainer in its process. Call it before this process loads the explainer, which could end it.

        Args:
            spec: the text by which the process loads the explainer, see `CheckJob`.

        Raises:
            ProcessEnded: loading the explainer ends the process.
            JobFailed: the explainer cannot be loaded.
            OSError: no process can be started here.
        """
        process = Process(self._limits)
        name = str(process.run(RemoteExplainer(spec), WITHOUT_LIMIT)["name"])
        self._processes[name] = process
        self._isolated.add(name)

    def _result(self, job: Job[Any]) -> Any:
        if job.explainer not in self._isolated:
            return job.run()
        started = time.perf_counter()
        record = super()._result(job)
        return structs.replace(record, seconds=time.perf_counter() - started)  # also where the process has ended

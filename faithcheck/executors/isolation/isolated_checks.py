"""Until the front doors enter an executor: `OwnProcesses` as the field ``isolation`` of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from faithcheck.axioms.measure.record import Record
from faithcheck.check import Check
from faithcheck.check_job import CheckJob
from faithcheck.executors.own_processes import OwnProcesses
from faithcheck.executors.supervisor import Limits
from faithcheck.request import Settings


class Isolation:
    """Runs checks of the explainers that were added."""

    def __init__(self, checkpoint: Sequence[str] = (), limits: Limits | None = None) -> None:
        self.checkpoint, self._executor, self._specs = checkpoint, OwnProcesses(limits), dict[str, str]()

    def add(self, spec: str) -> None:
        """Load an explainer in its process, see `OwnProcesses.load`."""
        self._specs[self._executor.load(spec)] = spec

    def covers(self, check: Check) -> bool:
        """Whether the explainer of the check was added."""
        return check.explainer is not None and check.explainer.name in self._specs

    def run(self, check: Check, settings: Settings) -> Record:
        """The record of the check."""
        assert check.explainer is not None
        spec = self._specs[check.explainer.name]
        job = CheckJob(check, replace(settings, isolation=None), spec, self.checkpoint)
        record: Record
        ((_, record),) = self._executor.run([job])
        return record

    def close(self) -> None:
        """End the processes."""
        self._executor.close()

"""The checks of each explainer in a process of its own: what ends that process costs the explainer one check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from faithcheck.axioms.measure.record import Record
from faithcheck.executors.isolation.requested_check import check_of, explainer_of, request_of
from faithcheck.executors.isolation.worker import Limits, TaskFailed, Worker, WorkerEnded
from faithcheck.json_object import Json
from faithcheck.models.random_numbers import seed_torch
from faithcheck.reports.documents.document import from_json, to_json

if TYPE_CHECKING:
    from faithcheck.check import Check
    from faithcheck.request import Settings

MOST_ENDED = 3
"""After so many processes that an explainer has ended, its remaining checks are not run."""
WITHOUT_LIMIT = 3600.0
"""The seconds after which a check is killed where the user sets no time limit."""
BEYOND_LIMIT = 5.0
"""The seconds that a check has beyond twice the user's limit, under which it stops itself, with a traceback."""


@dataclass(eq=False)
class Isolation:
    """Checks that run in processes of their own, one process an explainer; `add` says of which explainers.

    Attributes:
        checkpoint: the paths of ``--checkpoint``, whose pairs a process registers.
        limits: what a process may take.
    """

    checkpoint: list[str] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    _specs: dict[str, str] = field(default_factory=dict, init=False)
    _workers: dict[str, Worker] = field(default_factory=dict, init=False)
    _ended: Counter[str] = field(default_factory=Counter, init=False)

    def add(self, spec: str) -> None:
        """Isolate the explainer that has this built-in name, entry point or ``module:Object``.

        Raises:
            WorkerEnded: loading it ends the process that loads it.
            TaskFailed: it cannot be loaded.
        """
        worker = Worker(self.limits)
        name = worker.call(load, {"explainer": spec}, WITHOUT_LIMIT)["name"]
        self._specs[name], self._workers[name] = spec, worker

    def covers(self, check: Check) -> bool:
        """Whether the explainer of the check is isolated."""
        return check.explainer is not None and check.explainer.name in self._specs

    def run(self, check: Check, settings: Settings) -> Record:
        """The record of the check: that of `Check.run` in the explainer's process.

        If the process ends, the record is an error that says how, and the next check starts another. After
        `MOST_ENDED` such ends the record says that the check was not run.
        """
        assert check.explainer is not None
        name = check.explainer.name
        if self._ended[name] >= MOST_ENDED:
            return check.not_run(settings, f"{name} has ended {MOST_ENDED} processes before this check")
        try:
            if name not in self._workers or self._workers[name].closed:
                self._workers[name] = Worker(self.limits)
            request = request_of(check, settings, self._specs[name], self.checkpoint)
            answer = self._workers[name].call(run_check, request, killed_after(settings.timeout))
            record = from_json(answer, Record)
        except WorkerEnded as end:
            self._ended[name] += 1
            return check.failed(settings, f"{name}: {end}", _without_libraries(end.log) or None)
        except TaskFailed as error:
            return check.failed(settings, str(error), error.traceback)
        if record.id != f"{check.axiom}/{check.id}":
            return check.failed(settings, f"its process measured {record.id} in place of this check")
        return record

    def close(self) -> None:
        """End the processes."""
        while self._workers:
            self._workers.popitem()[1].close()


def killed_after(timeout: float | None) -> float:
    """The seconds after which a process that does not answer is killed; ``timeout``: the user's limit, if any."""
    return WITHOUT_LIMIT if timeout is None else 2 * timeout + BEYOND_LIMIT


def _without_libraries(log: str) -> str:
    """The end of what a process printed, without Python's list of the C libraries that were loaded in a crash."""
    return "\n".join(line for line in log.splitlines() if not line.startswith("Extension modules:")).strip()


# --- in the worker ---------------------------------------------------------------------------------------------------


def run_check(request: Json, started: Callable[[], None]) -> Json:
    """Run one check, and return its record in plain values.

    Raises:
        ValueError: see `check_of`.
    """
    from faithcheck.built_pairs import built

    check, settings = check_of(request)
    with suppress(Exception), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        seed_torch(settings.seed)  # as in `Check.run`, which reports an error of the pair
        built(check.pair, settings.seed, check.type_of_models(settings), settings.device)
    started()
    record = check.run(settings)
    content: Json = to_json(record)
    return content


def load(request: Json, started: Callable[[], None]) -> Json:
    """Load an explainer, only to see whether that ends the process."""
    return {"name": explainer_of(request["explainer"]).name}

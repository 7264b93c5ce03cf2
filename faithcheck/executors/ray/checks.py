"""``faithcheck check --ray``: the checks of a run on the workers of a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from faithcheck.alignment.run_key import StoreError, state_of
from faithcheck.alignment.schedule import Task
from faithcheck.alignment.store import Store
from faithcheck.axioms.measure.record import Record
from faithcheck.check import Check
from faithcheck.executors.isolation.requested_check import check_of, explainer_of, request_of
from faithcheck.executors.ray.cluster import Workers
from faithcheck.executors.ray.dispatch import Advance, Recipe, Watch, distribute
from faithcheck.executors.ray.worker import Worker, refuse_other_explainers, states_of, versions
from faithcheck.json_object import Json
from faithcheck.models.files import cache_folder
from faithcheck.models.pair import is_builtin
from faithcheck.options import OptionError
from faithcheck.plan import base_of
from faithcheck.reports.documents.document import Run, from_json, to_json
from faithcheck.request import Settings


class RayChecks:
    """The checks of a run, measured on a Ray cluster.

    A task is the checks of one explainer on the pairs of one f, so that a worker builds a model once. Records are
    stored as they come. If the driver is killed, the same command continues from them; at the end they are removed.

    Attributes:
        run: how the work was shared; None before the run came to its end.

    Args:
        checks: in the order of the plan.
        settings: how they are measured.
        specs: what loads each explainer, by its name.
        address: of the cluster.
        wanted: the workers.
    """

    def __init__(
        self,
        checks: Sequence[Check],
        settings: Settings,
        specs: Mapping[str, str],
        address: str,
        wanted: Workers,
    ) -> None:
        self._checks, self._settings, self._specs = checks, settings, specs
        self._address, self._wanted = address, wanted
        self._advance: Advance = lambda explainer, done, total: None
        self._totals = Counter(_name(check) for check in checks)
        self._requests = [request_of(check, settings, specs.get(_name(check), "")) for check in checks]
        self._numbers: dict[Task, list[int]] = {}  # of the checks of a task
        self._records: dict[int, Record] = {}
        self._store: Store | None = None
        self.run: Run | None = None

    @property
    def records(self) -> list[Record]:
        """Those that are there, in the order of the plan."""
        return [self._records[number] for number in sorted(self._records)]

    def measure(self, advance: Advance, watch: Watch) -> None:
        """Measure what is missing.

        Args:
            advance: called with an explainer's name, the checks done since the last call, and the number of its checks.
            watch: see `distribute`.

        Raises:
            OptionError: the cluster cannot be reached, a worker has other versions, code or no files, or the records
                cannot be stored.
            KeyboardInterrupt: Ctrl-C was pressed; `records` has those that are there.
        """
        self._advance = advance
        explainers = {name: explainer_of(spec) for name, spec in self._specs.items()}
        states = states_of(explainers)
        recipe = Recipe(self._wanted, CheckWorker, (self._requests, self._specs), {"explainers": states})
        with self._stored(states):
            costs = {task: float(len(numbers)) for task, numbers in self._tasks().items()}
            self.run = from_json(distribute(self, costs, self._address, recipe, watch), Run)

    def _tasks(self) -> Mapping[Task, Sequence[int]]:
        """What is missing: the numbers of the checks of each task."""
        neighbours: dict[object, list[int]] = {}
        for number, check in enumerate(self._checks):
            if number not in self._records:
                neighbours.setdefault((_name(check), base_of(check.pair)), []).append(number)
        self._numbers = {Task(_name(self._checks[of[0]]), of[0]): of for of in neighbours.values()}
        return self._numbers

    @contextmanager
    def _stored(self, states: Mapping[str, str | None]) -> Iterator[None]:
        """Take the records of the same run that was killed; inside, store others; at the end, remove them.

        The name of the store has all that determines the records. Where that cannot be written down, none is stored.
        """
        try:
            own = {check.pair.name: check.pair for check in self._checks if not is_builtin(check.pair)}
            pairs = {name: state_of([pair.build, pair.case]) for name, pair in own.items()}
            key = {"requests": self._requests, "explainers": states, "pairs": pairs, "versions": versions()}
            store = None if None in states.values() else Store(cache_folder() / "checks", "check", key)
        except (StoreError, ValueError):
            store = None
        if store is None:
            yield
            return
        try:
            with store:
                for records in store.values():
                    self._take(records)
                self._store = store
                yield
        except StoreError as error:
            raise OptionError(str(error)) from error
        store.file.unlink(missing_ok=True)

    def _take(self, records: Sequence[tuple[int, Json]]) -> None:
        for number, record in records:
            self._records[number] = from_json(record, Record)
            name = _name(self._checks[number])
            self._advance(name, 1, self._totals[name])

    # What becomes of a task, see `faithcheck.executors.ray.dispatch.Job`.

    def arguments(self, task: Task) -> tuple[Any, ...]:
        """Those of `CheckWorker.measure`."""
        return (self._numbers[task],)

    def keep(self, task: Task, content: Sequence[tuple[int, Json]]) -> bool:
        """Store records. Returns True: what a check says of an explainer is one record."""
        if self._store is not None:
            self._store.append(task.number, content)
        self._take(content)
        return True

    def parts(self, task: Task) -> Mapping[Task, float]:
        """Its checks one by one: one of them ended a worker, and the others are measured all the same."""
        numbers = self._numbers[task]
        if len(numbers) == 1:
            return {}
        alone = {Task(task.explainer, number): [number] for number in numbers}
        self._numbers |= alone
        return dict.fromkeys(alone, 1.0)

    def leave_out(self, task: Task, why: str) -> None:
        """The records of these checks say why there is no measurement: they are red."""
        failed = [(n, to_json(self._checks[n].failed(self._settings, why))) for n in self._numbers[task]]
        self.keep(task, failed)


def _name(check: Check) -> str:
    """The name of the explainer; "" where the pair itself is measured."""
    return check.explainer.name if check.explainer else ""


# --- in the worker ---------------------------------------------------------------------------------------------------


class CheckWorker(Worker):
    """Holds the explainers and all checks, and runs some of them at a time.

    Args:
        requests: of the checks, in the order of the plan.
        specs: what loads each explainer, by its name.
        folder, threads: see `Worker`.
    """

    REFUSALS = (*Worker.REFUSALS, ImportError)

    def __init__(self, requests: Sequence[Json], specs: Mapping[str, str], folder: str, threads: int) -> None:
        super().__init__(folder, threads)
        self._requests, self._specs = requests, specs

    def load(self, expected: Json) -> None:
        """See `Worker.load`: ``explainers`` are the `states_of` them."""
        explainers = {name: explainer_of(spec) for name, spec in self._specs.items()}
        refuse_other_explainers(expected["explainers"], explainers)
        self._checks = [check_of(request) for request in self._requests]

    def measure(self, numbers: Sequence[int]) -> list[tuple[int, Json]]:
        """The records of these checks in plain values, each with its number."""
        checks = ((number, *self._checks[number]) for number in numbers)
        return [(number, to_json(check.run(settings))) for number, check, settings in checks]

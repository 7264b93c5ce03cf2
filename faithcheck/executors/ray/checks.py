"""``faithcheck check --ray``: the checks of a run on the workers of a Ray cluster."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faithcheck.alignment.run_key import StoreError, state_of, states_of
from faithcheck.alignment.store import Store
from faithcheck.check_job import CheckJob, RemoteCheck, loaded_explainer
from faithcheck.executors.executor import AnyJob, Executor
from faithcheck.executors.ray.on_ray import OnRay, Watch
from faithcheck.executors.ray.worker import refuse_other_explainers, versions
from faithcheck.models.files import cache_folder
from faithcheck.models.pair import is_builtin
from faithcheck.options import OptionError
from faithcheck.reports.documents.document import to_json
from faithcheck.request import Place


@dataclass(frozen=True)
class ChecksReadiness:
    """The worker has the explainers of the driver, and can make all checks."""

    checks: Sequence[RemoteCheck]
    specs: Mapping[str, str]  # what loads each explainer, by its name
    states: Mapping[str, str | None]  # `states_of` the driver's explainers

    def confirm(self) -> None:
        """Load the explainers and the pairs.

        Raises:
            OptionError: an explainer is another than that of the driver.
            ValueError, ImportError: an explainer or a pair cannot be loaded.
        """
        refuse_other_explainers(self.states, {name: loaded_explainer(spec) for name, spec in self.specs.items()})
        for check in self.checks:
            check.check()


class ChecksOnRay(Executor):
    """Runs checks on a Ray cluster, and stores each record as it comes.

    If the driver is killed, the same checks continue from the records that are stored; at the end of a run they are
    removed.

    ``specs`` has what loads each explainer, by its name.
    """

    def __init__(self, place: Place, specs: Mapping[str, str], watch: Watch = lambda state: None) -> None:
        super().__init__()
        self._place, self._specs, self._watch = place, specs, watch

    def close(self) -> None:
        """See `OnRay.close`."""

    def run(self, jobs: Iterable[AnyJob]) -> Iterator[tuple[AnyJob, Any]]:
        """See `Executor.run`; records that are stored come first."""
        planned: list[Any] = [*jobs]
        states = states_of({name: loaded_explainer(spec) for name, spec in self._specs.items()})
        readiness = ChecksReadiness([job.remote() for job in planned], self._specs, states)
        executor = OnRay(self._place, readiness, self._watch)
        store = _store(planned, readiness)
        if store is None:
            yield from executor.run(planned)
            self.record = executor.record
            return
        try:
            with store:
                for number, content in store.items():
                    yield planned[number], planned[number].result(content)
                missing = {id(job): number for number, job in enumerate(planned) if number not in store}
                for job, record in executor.run(planned[number] for number in missing.values()):
                    store.append(missing[id(job)], to_json(record))
                    yield job, record
        except StoreError as error:
            raise OptionError(str(error)) from error
        self.record = executor.record
        store.file.unlink(missing_ok=True)


def _store(jobs: Sequence[CheckJob], readiness: ChecksReadiness) -> Store | None:
    """Where the records of these checks are stored; None if what determines them cannot be written down.

    The name of the store has all that determines the records.
    """
    if None in readiness.states.values():
        return None
    own = {job.check.pair.name: job.check.pair for job in jobs if not is_builtin(job.check.pair)}
    try:
        pairs = {name: state_of([pair.build, pair.case]) for name, pair in own.items()}
        checks = state_of([*readiness.checks])
        key = {"requests": checks, "explainers": readiness.states, "pairs": pairs, "versions": versions()}
        return Store(cache_folder() / "checks", "check", key)
    except (StoreError, ValueError):
        return None

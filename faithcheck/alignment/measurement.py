"""The measurement of an alignment: from its request to the alignment document."""

from collections.abc import Callable, Sequence

from faithcheck.alignment import evaluate
from faithcheck.alignment.batch import BatchJob
from faithcheck.alignment.batches import longest, measurable
from faithcheck.alignment.defaults import TABLE_2
from faithcheck.alignment.document import document_of
from faithcheck.alignment.preparation import Advance, Prepared, prepare
from faithcheck.alignment.remote_batch import AlignmentReadiness, RemoteBatch, RemoteModel
from faithcheck.alignment.run_key import fingerprint, states_of
from faithcheck.alignment.settings import AlignRequest, specs_of, table_2
from faithcheck.executors.executor import Executor, Remote
from faithcheck.executors.own_processes import OwnProcesses
from faithcheck.executors.ray.cluster import with_threads
from faithcheck.executors.ray.on_ray import OnRay, Watch
from faithcheck.executors.supervisor import Limits
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.pretrained.loading import ALL_GPUS
from faithcheck.options.explainers import choose_explainers, refuse_what_ends_a_process
from faithcheck.reports.documents.alignment import Alignment


def measure(
    request: AlignRequest,
    advance: Advance = lambda explainer, done, of: None,
    watch: Watch = lambda state: None,
) -> Alignment:
    """Measure the alignment of the explainers and return the alignment document; it raises `EXPECTED` errors.

    ``advance`` is called with an explainer's name, the examples done since the last call, and the number of all
    examples of one explainer; ``watch`` as by `OnRay`.
    """
    place, device = request.place, request.settings.device
    with with_threads(place):
        prepared = prepare(request, advance)
        examples, setup = prepared.examples, prepared.setup
        if place.isolate:
            refuse_what_ends_a_process([name for name in request.explainer if name not in TABLE_2])
        chosen = choose_explainers(specs_of(request.explainer), table_2(setup))
        total = len(measurable(examples))
        executor, elsewhere = _executor(request, prepared, chosen, watch)
        with executor:
            outcomes = evaluate.align(
                prepared.model,
                examples,
                chosen,
                setup,
                prepared.folder,
                lambda name, done: advance(name, done, total),
                executor,
                elsewhere,
                device.type,
            )
        return document_of(request, prepared, outcomes, executor.record)


def _executor(
    request: AlignRequest, prepared: Prepared, chosen: Sequence[Explainer], watch: Watch
) -> tuple[Executor, Callable[[BatchJob], Remote] | None]:
    """What runs the batches, and what makes the job for another process of each."""
    setup, last, place = prepared.setup, longest(prepared.examples), request.place
    specs = dict(zip((one.name for one in chosen), specs_of(request.explainer), strict=True))
    if place.cluster is not None:
        device = ALL_GPUS if place.gpus_per_worker > 1 else request.settings.device
        model = RemoteModel(request, device, setup, last)
        states = states_of({one.name: one for one in chosen})
        readiness = AlignmentReadiness(model, specs, fingerprint(prepared.model), states)
        executor: Executor = OnRay(place, readiness, watch)
    elif place.isolate:
        limits = Limits()
        model = RemoteModel(request, request.settings.device, setup, last, limits.memory)
        executor = OwnProcesses(limits, most=1)
    else:
        return Executor(), None
    return executor, lambda job: RemoteBatch(model, specs[job.explainer], job.number, job.examples)

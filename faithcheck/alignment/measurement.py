"""The measurement of an alignment: from its request to the alignment document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from faithcheck.alignment import evaluate
from faithcheck.alignment.batch import BatchJob
from faithcheck.alignment.batches import longest, measurable
from faithcheck.alignment.defaults import TABLE_2
from faithcheck.alignment.document import document_of
from faithcheck.alignment.preparation import Advance, Prepared, choose_explainers, prepare, specs_of
from faithcheck.alignment.remote_batch import RemoteBatch, RemoteModel
from faithcheck.alignment.request import AlignRequest
from faithcheck.executors.executor import Executor, InThisProcess
from faithcheck.executors.own_processes import OwnProcesses
from faithcheck.executors.ray.alignment import alignment_on_ray
from faithcheck.executors.ray.cluster import Workers, with_threads, workers_of
from faithcheck.executors.ray.on_ray import Watch
from faithcheck.executors.supervisor import Limits
from faithcheck.explainers.protocol import Explainer
from faithcheck.job import Remote
from faithcheck.models.pretrained.loading import ALL_GPUS
from faithcheck.options.explainers import refuse_what_ends_a_process
from faithcheck.reports.documents.alignment import Alignment


def measure(
    request: AlignRequest,
    advance: Advance = lambda explainer, done, of: None,
    watch: Watch = lambda state: None,
) -> Alignment:
    """Measure the alignment of the explainers and return the alignment document.

    Args:
        request: the options.
        advance: called with an explainer's name, the examples done since the last call, and the number of all examples
            of one explainer.
        watch: with a cluster, see `faithcheck.executors.ray.on_ray.OnRay`.

    Raises:
        ModelError, DataError, OptionError, AlignmentError, StoreError: a file or a name is missing, an option does not
            fit the model, or nothing can be measured.
    """
    wanted = workers_of(request)
    with with_threads(wanted):
        return _measure(request, wanted, advance, watch)


def _measure(request: AlignRequest, wanted: Workers | None, advance: Advance, watch: Watch) -> Alignment:
    # Where the workers have GPUs, this process may have none.
    prepared = prepare(replace(request, device="cpu") if request.gpus_per_worker else request, advance)
    examples, setup = prepared.examples, prepared.setup
    if request.isolate:
        refuse_what_ends_a_process([name for name in request.explainer if name not in TABLE_2])
    chosen = choose_explainers(request.explainer, setup)
    total = len(measurable(examples))
    executor, elsewhere = _executor(request, wanted, prepared, chosen, watch)
    device = None if wanted is None else "cuda" if wanted.gpus else torch.device(request.device).type
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
            device,
        )
    return document_of(request, prepared, outcomes, executor.record, shared=wanted is not None)


def _executor(
    request: AlignRequest, wanted: Workers | None, prepared: Prepared, chosen: Sequence[Explainer], watch: Watch
) -> tuple[Executor, Callable[[BatchJob], Remote] | None]:
    """What runs the batches, and what makes the job for another process of each."""
    specs, setup, last = specs_of(request.explainer, chosen), prepared.setup, longest(prepared.examples)
    if wanted is not None:
        gpus = request.gpus_per_worker
        device = ALL_GPUS if gpus > 1 else "cuda" if gpus else request.device
        model = RemoteModel(replace(request, device=device), setup, last)
        executor: Executor = alignment_on_ray(model, prepared.model, chosen, specs, str(request.ray), wanted, watch)
    elif request.isolate:
        limits = Limits()
        model = RemoteModel(request, setup, last, limits.memory)
        executor = OwnProcesses(limits, most=1)
    else:
        return InThisProcess(), None
    return executor, lambda job: RemoteBatch(model, specs[job.explainer], job.number, job.examples)

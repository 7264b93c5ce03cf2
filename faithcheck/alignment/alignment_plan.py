"""``faithcheck align --plan``: what an alignment will take, from a probe of at most a minute, before it begins."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from faithcheck.alignment import evaluate
from faithcheck.alignment.batch import BatchJob, LoadedModel
from faithcheck.alignment.batches import longest
from faithcheck.alignment.document import heading, plan_file
from faithcheck.alignment.explainer_pass import ExplainerPass
from faithcheck.alignment.preparation import Prepared, prepare
from faithcheck.alignment.settings import AlignRequest, specs_of, table_2
from faithcheck.executors.ray.cluster import connected, with_threads
from faithcheck.models.files import write_atomically
from faithcheck.options.explainers import choose_explainers
from faithcheck.reports.documents.alignment import Plan, PlannedExplainer

PROBE = 60.0
"""The seconds in which batches of all explainers are measured. What is measured is stored, and not lost."""
LEAST = 3
"""The fewest batches of each explainer that are measured, if there are as many."""

PASSES = 20
"""Rows of each example that an explainer other than LOO is taken to need: the steps of IG, which needs most."""


class Work(NamedTuple):
    """Work that is to be done."""

    rows: int  # of forward passes
    tokens: int  # of these rows


def work_of(lengths: Iterable[int], explainer: str, chunk: int) -> Work:
    """The work of an explainer on so many features: its map, and both perturbation curves.

    Special tokens count as if they were removed. A map of another explainer than LOO is taken to need `PASSES` rows.
    """
    rows = [(2 * -(-n // chunk) + (n + 1 if explainer == "loo" else PASSES), n) for n in lengths]
    return Work(sum(of_one for of_one, _ in rows), sum(of_one * n for of_one, n in rows))


def plan(request: AlignRequest) -> Plan:
    """Measure some batches of each explainer, and estimate the rest."""
    begun = time.monotonic()
    with with_threads(request.place):
        prepared = prepare(request)
        chosen = choose_explainers(specs_of(request.explainer), table_2(prepared.setup))
        passes = evaluate.passes_of(prepared.model, prepared.examples, chosen, prepared.setup, prepared.folder)
        loaded = LoadedModel(prepared.model, longest(prepared.examples))
        rows = [_estimate(one, prepared, loaded, PROBE / len(passes)) for one in passes]
    workers = 1
    if request.place.cluster is not None:
        with connected(request.place) as there:
            workers = there.workers
    estimates = Plan(
        explainers=rows,
        workers=workers,
        tasks=sum(row.batches for row in rows),
        seconds=max(sum(row.seconds for row in rows) / workers, *(row.longest for row in rows)),
        probe=time.monotonic() - begun,
    )
    path = plan_file(prepared.folder, heading(request, prepared), [one.name for one in chosen])
    write_atomically(path, msgspec.json.encode(estimates).decode())
    return estimates


def _estimate(one: ExplainerPass, prepared: Prepared, loaded: LoadedModel, seconds: float) -> PlannedExplainer:
    """Measure batches of all lengths in turn, until the time is over, and estimate the others from their tokens."""
    examples, setup = prepared.examples, prepared.setup
    name = one.explainer.name

    def work(number: int) -> Work:
        return work_of(examples.features[one.plan[number]].tolist(), name, setup.chunk)

    measured: list[tuple[int, float]] = []
    begun = time.monotonic()
    with one:
        for number in _spread([*one.missing()]):
            rate = _rate(measured)
            time_left = seconds - (time.monotonic() - begun)
            if len(measured) > LEAST and rate * work(number).tokens > time_left:
                break
            if not one.is_missing(number):  # the explainer was refused
                break
            before = time.monotonic()
            job = BatchJob(one.explainer, number, [examples[i] for i in one.plan[number]], setup, lambda: loaded)
            one.keep(number, job.run())
            measured.append((work(number).tokens, time.monotonic() - before))
        missing = [*one.missing()]
    rate = _rate(measured)
    left = [work(number) for number in missing]
    tokens = sum(one.tokens for one in left)
    return PlannedExplainer(
        name=name,
        batches=len(missing),
        rows=sum(one.rows for one in left),
        tokens=tokens,
        passes=math.ceil(tokens / setup.max_tokens),
        probed=len(measured),
        seconds=rate * tokens,
        longest=rate * max((one.tokens for one in left), default=0),
        peak=_peak(one, prepared, loaded),
    )


def _rate(measured: Sequence[tuple[int, float]]) -> float:
    """Seconds per token; the first batch, which warms up and is run for the memory too, counts if it is alone."""
    counted = measured[1:] or measured
    return sum(took for _, took in counted) / sum(tokens for tokens, _ in counted) if counted else 0.0


def _spread(numbers: Sequence[int]) -> Iterator[int]:
    """The numbers in an order whose first ones are always spread over all: by halves, by quarters and so on."""
    said: set[int] = set()
    bits = max(1, len(numbers)).bit_length()
    for k in range(2**bits):
        place = int(f"{k:0{bits}b}"[::-1], 2) * len(numbers) // 2**bits
        if place < len(numbers) and place not in said:
            said.add(place)
            yield numbers[place]


def _peak(one: ExplainerPass, prepared: Prepared, loaded: LoadedModel) -> int | None:
    """The bytes, over the model, of the batch of the longest examples, as predicted."""
    examples, setup = prepared.examples, prepared.setup
    batch = max(one.plan, key=lambda batch: len(batch) * examples.features[batch[-1]])
    if one.state is None:
        return None
    features = int(examples.features[batch[-1]])
    predicted = loaded.memory.predict(
        one.explainer, setup, len(batch), features, lambda: prepared.model.case([examples[batch[0]]])
    )
    return None if predicted is None else predicted.peak

"""``faithcheck align --isolate``: each explainer's pass over the examples in a process of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from faithcheck.alignment import evaluate
from faithcheck.alignment.alignment_request import AlignRequest, Prepared, choose_explainers, prepare
from faithcheck.alignment.batches import batches, longest
from faithcheck.executors.isolation.isolated_checks import killed_after
from faithcheck.executors.isolation.worker import Limits, TaskFailed, Worker, WorkerEnded
from faithcheck.explainers.protocol import Explainer
from faithcheck.json_object import Json
from faithcheck.memory.memory_limit import SHARE, resident_memory
from faithcheck.models.pretrained.example import Example


class IsolatedPasses:
    """Measures batches as `evaluate.measure` does, in a process that loads the model and one explainer.

    Args:
        request: the options, from which the process loads the same model and the same examples.
        specs: the name of ``--explainer`` of each explainer, by the explainer's name.
    """

    def __init__(self, request: AlignRequest, specs: Mapping[str, str]) -> None:
        self._options = {**asdict(request), "cache": str(request.cache) if request.cache else None, "parquet": None}
        self._specs = specs
        self._current = ""
        self._worker: Worker | None = None

    def measure(
        self,
        loaded: evaluate.LoadedModel,
        examples: Sequence[Example],
        explainer: Explainer,
        settings: evaluate.AlignmentSettings,
        number: int,
    ) -> Json:
        """One batch, by its number: see `evaluate.measure`. A process that ends is a failure of the explainer."""
        if self._worker is None or self._current != explainer.name:
            self.close()
            self._worker, self._current = Worker(Limits()), explainer.name
        arguments = {"request": self._options, "explainer": self._specs[explainer.name], "number": number}
        try:
            return self._worker.call(measure_batch, arguments, killed_after(settings.timeout))
        except WorkerEnded as end:
            self._worker, reason = None, str(end)
        except TaskFailed as error:
            reason = f"in its process, {error}"
        return {"refused": reason, "failed": True, "warnings": [], "left_behind": []}

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


# --- in the worker ---------------------------------------------------------------------------------------------------


def measure_batch(arguments: Json, started: Callable[[], None]) -> Json:
    """Measure one batch, in plain values; the model and the explainer are loaded for the first."""
    options = {**arguments["request"], "explainer": (arguments["explainer"],)}
    cache = options.pop("cache")
    prepared, loaded, explainer = _loaded(AlignRequest(**options, cache=Path(cache) if cache else None))
    examples, setup = prepared.examples, prepared.setup
    batch = batches(examples, setup.max_tokens)[arguments["number"]]
    started()
    content = evaluate.measure(loaded, [examples[i] for i in batch], explainer, setup, arguments["number"])
    return content if loaded.unchanged() else {**content, "refused": evaluate.CHANGED, "failed": True}


@functools.cache
def _loaded(request: AlignRequest) -> tuple[Prepared, evaluate.LoadedModel, Explainer]:
    """The model, and the last explainer of the request: the first is always LOO."""
    prepared = prepare(replace(request, isolate=False))
    loaded = evaluate.LoadedModel(prepared.model, longest(prepared.examples))
    left = max(1, int(SHARE * (Limits().memory - resident_memory())))  # the process is killed if it takes more
    setup = replace(prepared.setup, max_memory=min(left, request.max_memory or left))
    return replace(prepared, setup=setup), loaded, choose_explainers(request.explainer, setup)[-1]

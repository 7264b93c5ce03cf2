"""``faithcheck align --ray``: the batches of an alignment on the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import torch

from faithcheck.alignment import evaluate
from faithcheck.alignment.alignment_request import EXPECTED, AlignRequest, choose_explainers, load_model
from faithcheck.alignment.batches import longest
from faithcheck.alignment.run_key import fingerprint
from faithcheck.alignment.schedule import Task
from faithcheck.alignment.work import work_of
from faithcheck.executors.ray.cluster import Workers
from faithcheck.executors.ray.dispatch import Recipe, Watch, distribute
from faithcheck.executors.ray.worker import Worker, refuse_other_explainers, states_of
from faithcheck.json_object import Json
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.models.pretrained.loading import ALL_GPUS
from faithcheck.options import OptionError


class Costs(Mapping[Task, float]):
    """The tokens of each batch that is missing at the moment, counted when they are asked for.

    Args:
        passes: by the name of the explainer.
        examples: the data.
        chunk: of the perturbation curves.
    """

    def __init__(self, passes: Mapping[str, evaluate.ExplainerPass], examples: Examples, chunk: int) -> None:
        self._passes, self._examples, self._chunk = passes, examples, chunk

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Task]:
        return (Task(name, number) for name, one in self._passes.items() for number in one.missing())

    def __getitem__(self, task: Task) -> float:
        batch = self._passes[task.explainer].plan[task.number]
        return work_of(self._examples.features[batch].tolist(), task.explainer, self._chunk).tokens


class RayEngine:
    """Measures what is missing in all passes on a Ray cluster.

    This process alone opens the stores. It sends each task with its examples to a worker, which holds the model and the
    explainers, and stores each answer as it comes.

    Attributes:
        record: of the run: plain values for the document.
        device: the type of the device that measures.

    Args:
        request: the options, from which workers load the same model and explainers.
        specs: the name of ``--explainer`` of each explainer, by the explainer's name.
        model: as loaded here; the workers must have the same.
        examples: the data.
        setup: how alignment is measured.
        wanted: the workers.
        watch: see `distribute`.
    """

    def __init__(
        self,
        request: AlignRequest,
        specs: Mapping[str, str],
        model: torch.nn.Module,
        examples: Examples,
        setup: evaluate.AlignmentSettings,
        wanted: Workers,
        watch: Watch,
    ) -> None:
        self._request, self._specs, self._examples, self._setup = request, specs, examples, setup
        self._model, self._wanted, self._watch = model, wanted, watch
        self._passes: dict[str, evaluate.ExplainerPass] = {}
        self.device = "cuda" if wanted.gpus else torch.device(request.device).type
        self.record: Json = {}

    def __call__(self, passes: Sequence[evaluate.ExplainerPass]) -> None:
        """Measure what is missing.

        Raises:
            OptionError: the cluster cannot be reached, or a worker has other versions, another model or no files.
            StoreError: a store cannot be opened or written.
        """
        self._passes = {one.explainer.name: one for one in passes}
        with ExitStack() as stores:
            # In the order of their names, so that two runs never wait for each other.
            for name in sorted(self._passes):
                stores.enter_context(self._passes[name])
            costs = Costs(self._passes, self._examples, self._setup.chunk)
            self.record = distribute(self, costs, str(self._request.ray), self._recipe(), self._watch)

    def _recipe(self) -> Recipe:
        explainers = {name: one.explainer for name, one in self._passes.items() if one.state is not None}
        options, specs = {**asdict(self._request), "cache": None}, {name: self._specs[name] for name in explainers}
        arguments = (options, specs, self._setup, longest(self._examples))
        expected = {"model": fingerprint(self._model), "explainers": states_of(explainers)}
        return Recipe(self._wanted, AlignmentWorker, arguments, expected)

    # What becomes of a task, see `faithcheck.executors.ray.dispatch.Job`.

    def arguments(self, task: Task) -> tuple[Any, ...]:
        """Those of `AlignmentWorker.measure`."""
        examples = [self._examples[i] for i in self._passes[task.explainer].plan[task.number]]
        return task.explainer, task.number, examples

    def keep(self, task: Task, content: Json) -> bool:
        """Store a batch. Returns whether the explainer is still measured."""
        self._passes[task.explainer].keep(task.number, content)
        return "refused" not in content

    def parts(self, task: Task) -> Mapping[Task, float]:
        """None: the batches are those of one process."""
        return {}

    def leave_out(self, task: Task, why: str) -> None:
        """The examples of this batch have no figures of this explainer."""
        self._passes[task.explainer].leave_out(task.number, f"batch {task.number}: {why}")


# --- in the worker ---------------------------------------------------------------------------------------------------


class AlignmentWorker(Worker):
    """Holds the model and the explainers, and measures batches.

    Args:
        options: those of the request, as plain values.
        specs: the name of ``--explainer`` of each explainer, by its name.
        setup: how alignment is measured.
        longest: of the data, see `longest`.
        folder, threads: see `Worker`.
    """

    REFUSALS = EXPECTED

    def __init__(
        self,
        options: Json,
        specs: Mapping[str, str],
        setup: evaluate.AlignmentSettings,
        longest: tuple[int, int],
        folder: str,
        threads: int,
    ) -> None:
        super().__init__(folder, threads)
        self._request = AlignRequest(**options)
        self._specs, self._setup, self._longest = specs, setup, longest
        self._loaded: evaluate.LoadedModel | None = None

    def load(self, expected: Json) -> None:
        """See `Worker.load`: ``model`` is the fingerprint of the model, ``explainers`` are the `states_of` them."""
        chosen = choose_explainers([*self._specs.values()], self._setup)
        self._explainers = {one.name: one for one in chosen if one.name in self._specs}
        self._loaded = self._load_model()
        if fingerprint(self._loaded.model) != expected["model"]:
            raise OptionError(f"it has another model at {self._request.model}: give it the same files")
        refuse_other_explainers(expected["explainers"], self._explainers)

    def measure(self, explainer: str, number: int, examples: Sequence[Example]) -> Json:
        """One batch: see `evaluate.measure`. A model that the explainer changed is loaded again."""
        if self._loaded is None:
            self._loaded = self._load_model()
        content = evaluate.measure(self._loaded, examples, self._explainers[explainer], self._setup, number)
        if not self._loaded.unchanged():
            content |= {"refused": evaluate.CHANGED, "failed": True}
            self._loaded = None
        return content

    def _load_model(self) -> evaluate.LoadedModel:
        gpus = self._request.gpus_per_worker
        device = ALL_GPUS if gpus > 1 else "cuda" if gpus else self._request.device
        return evaluate.LoadedModel(load_model(replace(self._request, device=device)), self._longest)

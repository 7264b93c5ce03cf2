"""A batch of an alignment for another process, which loads the model and the explainer itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import psutil
import torch
from msgspec import to_builtins

from faithcheck.alignment.batch import CHANGED, LoadedModel, measure_batch
from faithcheck.alignment.preparation import load_model
from faithcheck.alignment.run_key import fingerprint
from faithcheck.alignment.settings import AlignmentSettings, AlignRequest, table_2
from faithcheck.executors.ray.worker import refuse_other_explainers
from faithcheck.explainers.protocol import Explainer
from faithcheck.memory.memory_limit import SHARE
from faithcheck.models.pretrained.example import Example
from faithcheck.options import OptionError
from faithcheck.options.explainers import choose_explainers


@dataclass(frozen=True, eq=False)
class RemoteModel:
    """The model of an alignment for another process, which loads it once for all batches."""

    request: AlignRequest  # from which the model is loaded
    device: torch.device | str  # on which it is loaded, see `load_model`
    settings: AlignmentSettings
    longest: tuple[int, int]  # of the data, see `faithcheck.alignment.batches.longest`
    memory: int | None = None  # the bytes above which the process is killed; None: it is not
    key: str = field(default_factory=lambda: uuid4().hex)  # by which a process knows what it has loaded

    def load(self) -> LoadedModel:
        """The model, loaded once."""
        if self.key not in _models:
            _models[self.key] = LoadedModel(load_model(self.request, self.device), self.longest)
        return _models[self.key]

    def load_again(self) -> None:
        """At the next batch: an explainer has changed it."""
        del _models[self.key]

    def explainer(self, spec: str) -> Explainer:
        """The explainer of this name of ``--explainer``, loaded once."""
        if (self.key, spec) not in _explainers:
            (_explainers[self.key, spec],) = choose_explainers([spec], table_2(self.settings))
        return _explainers[self.key, spec]

    def within_memory(self) -> AlignmentSettings:
        """The settings with a limit of memory at which the process is not killed."""
        if self.memory is None:
            return self.settings
        left = max(1, int(SHARE * (self.memory - psutil.Process().memory_info().rss)))
        return replace(self.settings, max_memory=min(left, self.settings.max_memory or left))


_models: dict[str, LoadedModel] = {}
_explainers: dict[tuple[str, str], Explainer] = {}


@dataclass(frozen=True)
class RemoteBatch:
    """One explainer on one batch."""

    model: RemoteModel
    spec: str  # the text by which the explainer is chosen
    number: int
    examples: Sequence[Example]

    def prepare(self) -> None:
        """Load the model and the explainer."""
        self.model.load()
        self.model.explainer(self.spec)

    def run(self) -> object:
        """The result in plain values, see `faithcheck.alignment.batch.measure_batch`."""
        loaded, explainer = self.model.load(), self.model.explainer(self.spec)
        result = measure_batch(loaded, self.examples, explainer, self.model.within_memory(), self.number)
        if result.refused == CHANGED:
            self.model.load_again()
        return to_builtins(result)


@dataclass(frozen=True)
class AlignmentReadiness:
    """The worker has the model and the explainers of the driver."""

    model: RemoteModel
    specs: Mapping[str, str]  # the name of ``--explainer`` of each explainer, by the explainer's name
    fingerprint: str  # of the driver's model
    states: Mapping[str, str | None]  # `states_of` the driver's explainers

    def confirm(self) -> None:
        """Load the model and the explainers; `OptionError` if one is another than that of the driver."""
        explainers = {name: self.model.explainer(spec) for name, spec in self.specs.items()}
        if fingerprint(self.model.load().model) != self.fingerprint:
            raise OptionError(f"it has another model at {self.model.request.model}: give it the same files")
        refuse_other_explainers(self.states, explainers)

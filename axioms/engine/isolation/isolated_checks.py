"""The checks of each explainer in a process of its own: what ends that process costs the explainer one check."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch

from faithcheck.axioms.engine.isolation.channel import Json
from faithcheck.axioms.engine.isolation.worker import Limits, TaskFailed, Worker, WorkerEnded
from faithcheck.axioms.engine.record import Record
from faithcheck.models.data import handwritten_digits
from faithcheck.models.random_numbers import seed_torch

if TYPE_CHECKING:
    from faithcheck.axioms.engine.check import Check, Settings
    from faithcheck.explainers.protocol import Explainer
    from faithcheck.models.pair import Pair

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
            answer = self._workers[name].call(run_check, self._request(check, settings), killed_after(settings.timeout))
            record = Record(**answer | {"rules": tuple(answer["rules"])})  # JSON has lists in place of tuples
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

    def _request(self, check: Check, settings: Settings) -> Json:
        assert check.explainer is not None
        name = check.explainer.name
        supplied = [one for one in check.supplied if one.matches(check.axiom, name, check.subject)]
        return {
            "axiom": check.axiom,
            "explainer": self._specs[name],
            "like": getattr(check.explainer, "like", ""),
            "pair": check.pair.name,
            "pair_modules": _modules(check.pair),
            "side": check.side,
            "supplied": [asdict(one) for one in supplied],
            "seed": settings.seed,
            "dtype": str(settings.dtype).removeprefix("torch."),
            "device": str(settings.device),
            "timeout": settings.timeout,
            "reuse": settings.reuse,
            "checkpoint": self.checkpoint,
            "data": None if (folder := handwritten_digits.folder()) is None else str(folder),
        }


def killed_after(timeout: float | None) -> float:
    """The seconds after which a process that does not answer is killed; ``timeout``: the user's limit, if any."""
    return WITHOUT_LIMIT if timeout is None else 2 * timeout + BEYOND_LIMIT


def _without_libraries(log: str) -> str:
    """The end of what a process printed, without Python's list of the C libraries that were loaded in a crash."""
    return "\n".join(line for line in log.splitlines() if not line.startswith("Extension modules:")).strip()


def _modules(pair: Pair) -> list[str]:
    """The modules whose import registers the pair."""
    functions = (getattr(make, "func", make) for make in (pair.build, pair.case))
    return sorted({function.__module__ for function in functions})


# --- in the worker ---------------------------------------------------------------------------------------------------


def run_check(request: Json, started: Callable[[], None]) -> Json:
    """Run one check, and return its record in plain values.

    Raises:
        ValueError: the pair is not registered by its module, or the explainer cannot be loaded.
    """
    from faithcheck.axioms.engine.built_pairs import built
    from faithcheck.axioms.engine.check import Check, Settings
    from faithcheck.axioms.engine.expectations import SuppliedExpectation, held_like
    from faithcheck.models.expectation import Expectation

    explainer, pair = _explainer(request["explainer"]), _pair(request)
    if request["like"]:
        explainer = held_like(explainer, request["like"])
    supplied = [
        SuppliedExpectation(**{**one, "expectation": Expectation(**one["expectation"])}) for one in request["supplied"]
    ]
    dtype, device = getattr(torch, request["dtype"]), torch.device(request["device"])
    settings = Settings(request["seed"], dtype, device, request["timeout"], request["reuse"])
    with suppress(Exception), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        seed_torch(settings.seed)  # as in `Check.run`, which reports an error of the pair
        built(pair, settings.seed, settings.dtype, settings.device)
    started()
    record = Check(request["axiom"], explainer, pair, request["side"], supplied).run(settings)
    return {**record.to_json(), "detail": {key: _plain(value) for key, value in record.detail.items()}}


def load(request: Json, started: Callable[[], None]) -> Json:
    """Load an explainer, only to see whether that ends the process."""
    return {"name": _explainer(request["explainer"]).name}


@functools.cache
def _explainer(spec: str) -> Explainer:
    from faithcheck.explainers.registry import load_explainer

    return load_explainer(spec)


@functools.cache
def _use_data(folder: str | None) -> None:
    handwritten_digits.use_folder(folder)


def _pair(request: Json) -> Pair:
    from faithcheck.models.pair import registered_pairs

    _use_data(request["data"])
    for module in request["pair_modules"]:
        importlib.import_module(module)
    pairs = registered_pairs()
    if request["pair"] not in pairs and request["checkpoint"]:
        from faithcheck.models.transform import register_checkpoint

        register_checkpoint(*request["checkpoint"])
        pairs = registered_pairs()
    if request["pair"] not in pairs:
        raise ValueError(
            f"the pair {request['pair']} is not registered by importing {', '.join(request['pair_modules'])}, which "
            "a process of its own needs: register it there, or run without isolation"
        )
    return pairs[request["pair"]]


def _plain(value: object) -> object:
    """A figure as JSON's types; any other object than a number as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.item() if hasattr(value, "item") else str(value)

"""A check as a job, and the description by which another process makes the same check."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from faithcheck.alignment.run_key import states_of
from faithcheck.axioms.measure.expectations import SuppliedExpectation, held_like
from faithcheck.axioms.measure.record import Record
from faithcheck.built_pairs import built
from faithcheck.check import Check
from faithcheck.claims import claiming
from faithcheck.executors.ray.worker import refuse_other_explainers
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import load_explainer
from faithcheck.models.data import handwritten_digits
from faithcheck.models.pair import Pair, registered_pairs, seed_torch
from faithcheck.reports.documents.document import from_json, to_json
from faithcheck.request import Request, Settings


@dataclass(frozen=True)
class CheckJob:
    """A check and how it is measured; its result is a `Record`."""

    check: Check
    settings: Settings
    # The text by which another process loads the explainer: a built-in name, an entry point or ``module:Object``; empty
    # without an explainer
    spec: str = ""
    checkpoint: Sequence[str] = ()  # the user's own model, whose pairs another process must register

    @classmethod
    def of(cls, check: Check, request: Request) -> CheckJob:
        """The job of a check of a request."""
        name = check.explainer.name if check.explainer else ""
        return cls(check, request.settings, request.specs.get(name, name), request.checkpoint)

    @property
    def explainer(self) -> str:
        """The name of the explainer; empty where the pair itself is measured."""
        return self.check.explainer.name if self.check.explainer else ""

    @property
    def timeout(self) -> float | None:
        """The time limit of a check of an explainer."""
        return self.settings.timeout

    def run(self) -> Record:
        """See `Check.run`."""
        return self.check.run(self.settings)

    def remote(self) -> RemoteCheck:
        """The check by the names of its pair and explainer."""
        check, explainer = self.check, self.check.explainer
        matching = [one for one in check.supplied if one.matches(check.axiom, self.explainer, check.subject)]
        return RemoteCheck(
            check.axiom,
            self.spec,
            getattr(explainer, "like", ""),
            tuple(sorted(getattr(explainer, "claims", ()))),
            check.pair.name,
            _modules(check.pair),
            check.side,
            tuple(matching) if explainer else (),
            self.settings,
            tuple(self.checkpoint),
            None if (folder := handwritten_digits.folder()) is None else str(folder),
        )

    def result(self, content: object) -> Record:
        """The record that came back as JSON; `ValueError` if it is that of another check, or none."""
        record = from_json(content, Record)
        if record.id != self.check.record_id:
            raise ValueError(f"its process measured {record.id} in place of this check")
        return record

    def failed(self, why: str, printed: str | None = None) -> Record:
        """A record that is an error."""
        return self.check.failed(self.settings, why, printed)

    def not_run(self, why: str) -> Record:
        """A record of status ``not run``."""
        return self.check.not_run(self.settings, why)

    def left_out(self, why: str) -> Record:
        """A record that is an error: the check is red."""
        return self.failed(why)


def _modules(pair: Pair) -> tuple[str, ...]:
    """The modules whose import registers the pair."""
    functions = (getattr(make, "func", make) for make in (pair.build, pair.case))
    return tuple(sorted({function.__module__ for function in functions}))


@dataclass(frozen=True)
class RemoteCheck:
    """A check for another process, which looks pair and explainer up by their names."""

    axiom: str
    spec: str  # see `CheckJob`
    like: str  # the built-in explainer to which the explainer is held; empty: none
    claims: tuple[str, ...]  # the axioms that the explainer claims
    pair: str
    modules: tuple[str, ...]  # those whose import registers the pair
    side: str
    supplied: tuple[SuppliedExpectation, ...]  # the user's expectations that are about this check
    settings: Settings
    checkpoint: tuple[str, ...]  # see `CheckJob`
    data: str | None  # the folder that the handwritten digits come from; None for the bundled ones

    def prepare(self) -> None:
        """Load the explainer and build the models of the pair."""
        check, settings = self.check(), self.settings
        with suppress(Exception), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            seed_torch(settings.seed)  # as in `Check.run`, which reports an error of the pair
            built(check.pair, settings.seed, check.type_of_models(settings), settings.device)

    def run(self) -> object:
        """The record in plain values."""
        return to_json(self.check().run(self.settings))

    def check(self) -> Check:
        """The check; `ValueError` if its pair or its explainer cannot be found."""
        explainer = _held(self.spec, self.like, self.claims) if self.spec else None
        return Check(self.axiom, explainer, self._pair(), self.side, self.supplied)

    def _pair(self) -> Pair:
        _use_data(self.data)
        for module in self.modules:
            importlib.import_module(module)
        pairs = registered_pairs()
        if self.pair not in pairs and self.checkpoint:
            from faithcheck.models.transform import register_checkpoint  # not at the top: few runs have a checkpoint

            register_checkpoint(*self.checkpoint)
            pairs = registered_pairs()
        if self.pair not in pairs:
            raise ValueError(
                f"the pair {self.pair} is not registered by importing {', '.join(self.modules)}, which a process of "
                "its own needs: register it there, or leave out --isolate or --ray"
            )
        return pairs[self.pair]


@dataclass(frozen=True)
class RemoteExplainer:
    """Loads an explainer in another process, to see whether that ends the process."""

    spec: str  # see `CheckJob`

    def prepare(self) -> None:
        """Nothing: loading the explainer is the job."""

    def run(self) -> str:
        """The name of the explainer."""
        return loaded_explainer(self.spec).name


@dataclass(frozen=True)
class ChecksReadiness:
    """A worker of a cluster has the explainers of the driver, and can make all checks."""

    checks: Sequence[RemoteCheck]
    specs: Mapping[str, str]  # what loads each explainer, by its name
    states: Mapping[str, str | None]  # `states_of` the driver's explainers

    @classmethod
    def of(cls, jobs: Sequence[CheckJob], specs: Mapping[str, str]) -> ChecksReadiness:
        """What a worker confirms before it runs these checks."""
        states = states_of({name: loaded_explainer(spec) for name, spec in specs.items()})
        return cls([job.remote() for job in jobs], specs, states)

    def confirm(self) -> None:
        """Load the explainers and the pairs; `OptionError` if an explainer is another than that of the driver."""
        refuse_other_explainers(self.states, {name: loaded_explainer(spec) for name, spec in self.specs.items()})
        for check in self.checks:
            check.check()


@functools.cache
def _held(spec: str, like: str, claims: tuple[str, ...]) -> Explainer:
    """One object for all checks, so that what was measured of it once is used again."""
    explainer = loaded_explainer(spec)
    return claiming(held_like(explainer, like) if like else explainer, claims)


@functools.cache
def loaded_explainer(spec: str) -> Explainer:
    """The explainer that the spec names, loaded once in a process."""
    return load_explainer(spec)


@functools.cache
def _use_data(folder: str | None) -> None:
    handwritten_digits.use_folder(folder)

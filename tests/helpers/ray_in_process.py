"""A Ray without processes: a worker is an object of this process, and what it answers is there at once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest

from faithcheck.executors.ray import on_ray
from faithcheck.executors.ray.cluster import Cluster
from faithcheck.executors.ray.worker import versions

DIES = object()
"""In place of an answer: the worker ends."""


@contextmanager
def logging_restored() -> Iterator[None]:
    """A worker keeps what is logged in its process, which here is that of the tests."""
    logger = logging.getLogger("faithcheck")
    handlers = [*logger.handlers]
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, True


class RayInProcess:
    """What `OnRay` uses of Ray. The first of several references is there first."""

    __spec__ = ModuleSpec("ray", None)  # it is installed

    class RayActorError(Exception):
        """A worker has ended."""

    def __init__(
        self,
        ends: Callable[[Any], bool] = lambda remote: False,
        starts: tuple[object, ...] = (),
        there: Callable[[], dict[str, str]] = versions,
    ) -> None:
        self.exceptions = SimpleNamespace(RayActorError=self.RayActorError, RayError=self.RayActorError)
        self.started = 0
        self._ends, self._starts, self._there = ends, [*starts], there

    def use(self, monkeypatch: pytest.MonkeyPatch, workers: int = 1) -> None:
        """Put it in place of Ray, with room for this many workers."""
        cluster = nullcontext(Cluster(workers, "127.0.0.1:8265"))
        monkeypatch.setattr(on_ray, "connected", lambda place: cluster)
        monkeypatch.setitem(sys.modules, "ray", self)

    def remote(self, what: Any) -> Any:
        """A class of workers; or a function that runs on the cluster, of which there is one alone."""
        if not isinstance(what, type):
            return SimpleNamespace(remote=self._there)
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *of: self._worker(what(*of))))

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        """The first."""
        return references[:1], references[1:]

    def get(self, reference: Any) -> Any:
        """What is there."""
        answer = reference.answer if isinstance(reference, _Reference) else reference
        if answer is DIES:
            raise self.RayActorError("The actor died. The worker of it, too.")
        return answer

    def _worker(self, worker: Any) -> Any:
        self.started += 1

        def ready(*expected: Any) -> _Reference:
            return _Reference(self._starts.pop(0) if self._starts else worker.ready(*expected))

        def run(remote: Any) -> _Reference:
            return _Reference(DIES if self._ends(remote) else worker.run(remote))

        return SimpleNamespace(ready=SimpleNamespace(remote=ready), run=SimpleNamespace(remote=run))


class _Reference:
    """To an answer; each is another one, whatever it refers to."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

"""A worker of a Ray cluster: it confirms that it is like the driver, and runs jobs one by one."""

import importlib
import importlib.metadata
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Protocol

import torch

from faithcheck.alignment.run_key import sources, states_of
from faithcheck.axioms.measure.error_text import error_text, traceback_text
from faithcheck.executors.executor import Remote
from faithcheck.explainers.protocol import Explainer
from faithcheck.options import OptionError

KEPT = 10_000  # messages of a job
SAME = ("torch", "transformers", "ray")
"""Packages that must have one version on all machines of a cluster, besides faithcheck, whose code must be the same."""
PACKAGES = ("faithcheck", *(f"faithcheck.{folder}" for folder in ("axioms", "explainers", "models", "reports")))


def versions() -> dict[str, str]:
    """Versions of Python, `SAME` and faithcheck, and a digest of its code: a clone's version covers many commits."""
    code = sources(*(importlib.import_module(name) for name in PACKAGES))
    own = f"{importlib.metadata.version('faithcheck')} (code {code[:8]})"
    return {"python": platform.python_version(), "faithcheck": own, **{n: importlib.metadata.version(n) for n in SAME}}


def difference(here: Mapping[str, str], there: Mapping[str, str], node: str) -> str:
    """A sentence on what a worker has otherwise than this process; empty if nothing."""
    other = [
        f"{name} {there.get(name)} in place of {value}" for name, value in here.items() if there.get(name) != value
    ]
    return f"--ray: the worker on {node} has {', '.join(other)}: install the same there" if other else ""


class Readiness(Protocol):
    """What a worker confirms before its first job."""

    def confirm(self) -> None:
        """Load what the jobs need, and compare it with the driver's; an error says why this worker cannot be used."""
        ...


@dataclass(frozen=True)
class Answer:
    """What a worker sends back of a job."""

    content: str  # the result as JSON; empty if the job raised an error
    error: str
    traceback: str
    messages: Sequence[tuple[int, str]]  # the level and the text of what was logged
    seconds: float
    gpu_memory: Mapping[str, tuple[int, int]]  # the bytes in use and all bytes of each GPU of the worker, by its name


class Worker:
    """Runs jobs in a process of the cluster, in the ``folder`` of the command, with so many ``threads`` of torch."""

    def __init__(self, folder: str, threads: int) -> None:
        self._folder, self._threads = folder, threads
        self._kept = BufferingHandler(KEPT)
        self._kept.setLevel(logging.WARNING)
        logging.getLogger("faithcheck").addHandler(self._kept)
        logging.getLogger("faithcheck").propagate = False

    def ready(self, expected: Mapping[str, str], readiness: Readiness) -> str:
        """Load everything. Returns why this worker cannot be used, in one line; empty if it can."""
        node = os.uname().nodename
        if other := difference(expected, versions(), node):
            return other
        torch.set_num_threads(self._threads)
        if Path(self._folder).is_dir():
            os.chdir(self._folder)
            sys.path.insert(0, self._folder)
        importlib.import_module("transformers").utils.logging.disable_progress_bar()
        try:
            readiness.confirm()
        except Exception as error:
            return f"--ray: the worker on {node}: {' '.join(str(error).split()) or type(error).__name__}"
        return ""

    def run(self, remote: Remote) -> Answer:
        """Run a job."""
        self._kept.flush()
        begun = time.monotonic()
        content = message = trace = ""
        try:
            remote.prepare()
            content = json.dumps(remote.run())
        except Exception as error:
            message, trace = error_text(error), traceback_text(error)
        seconds = time.monotonic() - begun
        messages = [(record.levelno, record.getMessage()) for record in self._kept.buffer]
        return Answer(content, message, trace, messages, seconds, _gpu_memory())


def _gpu_memory() -> dict[str, tuple[int, int]]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    found = {}
    for device in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(device)
        found[str(torch.cuda.get_device_properties(device).uuid)] = total - free, total
    return found


def refuse_other_explainers(expected: Mapping[str, str | None], explainers: Mapping[str, Explainer]) -> None:
    """Refuse explainers whose states are not those ``expected``, of the driver's."""
    for name, state in states_of(explainers).items():
        if expected[name] != state:
            raise OptionError(f"it has other code or settings of {name}: install the same there")

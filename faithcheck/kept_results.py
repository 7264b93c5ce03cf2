"""``--kept-results``: results of checks in an earlier run, used again where nothing that they depend on has changed.

A result depends on

* the files of faithcheck's packages, every Python file that a process of the run loaded, data from a folder and trained
  weights: all by their content;
* the conditions of the run: the versions of Python and of every installed distribution, the machine and what torch uses
  of its processor, the number of threads, the folder, the environment variables, the seed and the other settings.

If one of them is another, every check is measured anew. Red checks are never kept, nor are the unit tests; and nothing
is kept of a run in which a file changed, or of explainers, pairs and devices whose dependencies cannot be listed here.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import torch

from faithcheck.axioms.measure.statuses import Group
from faithcheck.check import Settings
from faithcheck.models.data import handwritten_digits
from faithcheck.models.files import cache_folder, write_atomically
from faithcheck.reports import STARTED
from faithcheck.reports.results import Json, group_of

PACKAGES = ("faithcheck", *(f"faithcheck.{name}" for name in ("axioms", "explainers", "models", "reports")))
NO_CONDITION = {"_", "OLDPWD", "SHLVL", "COLUMNS", "LINES"}
"""Environment variables that change no number: a shell sets them for each command, pytest-xdist for its workers."""
OF_TOOLS = ("MAKE", "MFLAGS", "PYTEST_")
"""How the names of the variables begin by which make and pytest speak to their own processes."""
DIGITS = 8


@dataclass
class KeptResults:
    """The results that a run may use again, and what it keeps itself.

    Attributes:
        path: the file.
        conditions: those of this run.
        why_not: why none is used again; ``""`` if they are.
        files: the digests of the files that the kept results depend on.
        records: the kept results by their ids, each with the time at which its run ended, ``measured``.
    """

    path: Path
    conditions: Json
    why_not: str = ""
    files: dict[str, str] = field(default_factory=dict)
    records: dict[str, Json] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Of all that the results depend on: the first digits of a SHA-256."""
        content = json.dumps([self.conditions, self.files], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]

    def __str__(self) -> str:
        """What the head of a run says of it."""
        return self.why_not or f"{len(self.records)} results are used again, nothing has changed (key {self.key})"

    def keep(self, records: Iterable[Json], measured: str, loaded: Iterable[Path], of_workers: dict[str, str]) -> str:
        """Keep the records that are not red, for the next run; with those that this run could have used again.

        Args:
            records: of the checks of this run; those that it used again have their ``measured``.
            measured: when this run ended.
            loaded: `loaded_files`.
            of_workers: the digests of those of the workers of the run.

        Returns:
            Why nothing is kept; ``""`` if the results are.
        """
        code, trained = self.files | of_workers | digests(inputs(loaded)), digests(weights())
        if any(code[name] != digest for name, digest in of_workers.items()):
            return "a file changed while the workers ran"
        if changed := next((name for name in code.keys() - trained.keys() if _is_new(name)), None):
            return f"{changed} has changed since the run began"
        self.files = code | trained
        for record in records:
            if group_of(record["status"]) not in (Group.RED, Group.UNMEASURED):
                self.records[record["id"]] = {"measured": measured, **record, "seconds": None, "reused": False}
        content = {"conditions": self.conditions, "files": self.files, "records": self.records}
        try:
            write_atomically(self.path, json.dumps(content))
        except OSError as error:
            return f"{self.path} cannot be written: {error.strerror}"
        return ""


def kept_results(path: Path, settings: Settings, loaded: Iterable[Path]) -> KeptResults:
    """The results in a file, as far as nothing that they depend on has changed; none if the file does not exist.

    Args:
        path: the file.
        settings: of the run.
        loaded: `loaded_files`, when the explainers and pairs of the run are loaded.
    """
    now = conditions(settings)
    try:
        kept = KeptResults(path, **json.loads(path.read_bytes()))
        difference = _changed(kept, now, loaded)
    except FileNotFoundError:
        return KeptResults(path, now, "none yet")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return KeptResults(path, now, f"none is used again: {path} cannot be read ({error})")
    return KeptResults(path, now, f"none is used again: {difference}") if difference else kept


def _changed(kept: KeptResults, now: Json, loaded: Iterable[Path]) -> str:
    """The first thing that is not as it was when the kept results were measured; ``""`` if all is."""
    if other := [name for name in now if kept.conditions.get(name) != now[name]]:
        return f"{other[0]} changed"
    if added := sorted({str(file) for file in inputs(loaded)} - kept.files.keys()):
        return f"{added[0]} is new"
    before = kept.files.items()
    return next((f"{name} changed" for name, digest in before if digests([Path(name)]) != {name: digest}), "")


def conditions(settings: Settings) -> Json:
    """What the numbers of a run depend on besides files, in words; of the environment variables the digest."""
    variables = {
        name: value for name, value in os.environ.items() if name not in NO_CONDITION and not name.startswith(OF_TOOLS)
    }
    return {
        "Python": sys.version,
        "the machine": [*platform.uname(), torch.backends.cpu.get_cpu_capability()],
        "the number of threads": torch.get_num_threads(),
        "the working folder": os.getcwd(),
        "an environment variable": hashlib.sha256(repr(sorted(variables.items())).encode()).hexdigest(),
        "an installed version": sorted({f"{one.name} {one.version}" for one in distributions()}),
        "a setting": [settings.seed, str(settings.dtype), str(settings.device), settings.timeout, settings.reuse],
        "the data": handwritten_digits.source(),
    }


def inputs(loaded: Iterable[Path]) -> Iterator[Path]:
    """The files that a result depends on and that are there before the run: the code, and data from a folder."""
    data = handwritten_digits.folder()
    return chain(_own_files(), loaded, (data / "mnist").glob("*.npz") if data else ())


def weights() -> Iterator[Path]:
    """The trained weights of this user, some of which the run may have made."""
    return cache_folder().glob("*.safetensors")


def loaded_files(plugins: Iterable[object]) -> list[Path]:
    """The Python files that this process has loaded.

    Args:
        plugins: those of pytest; of several files ``conftest.py``, `sys.modules` has the last one alone.
    """
    modules = chain(list(sys.modules.values()), plugins)
    files = {Path(file) for module in modules if isinstance(file := getattr(module, "__file__", None), str)}
    return [file for file in files if file.suffix == ".py" and file.is_absolute() and file.is_file()]


@cache
def _own_files() -> tuple[Path, ...]:
    """All files of faithcheck's packages, whether they are loaded or not: weights and texts are among them."""
    specs = [find_spec(package) for package in PACKAGES]
    folders = {Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or ()}
    files = {file for folder in folders for file in folder.rglob("*")}
    return tuple(file for file in files if file.is_file() and "__pycache__" not in file.parts)


def digests(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of the content of each file; ``""`` for one that cannot be read."""
    return {str(file): _digest(file) for file in files}


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _is_new(name: str) -> bool:
    """Whether a file, by its path, was written or replaced after this process began, or is no longer there.

    The system sets this time (ctime) at every change, to some ms, and no program can set it back.
    """
    try:
        return os.stat(name).st_ctime > STARTED - 0.02
    except OSError:
        return True

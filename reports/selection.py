"""What a run was asked for: explainers, pairs, a device, a report path. All of it is checked before the run."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import math
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from faithcheck.axioms.engine.check import Settings
from faithcheck.axioms.engine.expectations import SuppliedExpectation, refuse_stale_expectations
from faithcheck.axioms.engine.time_limit import time_limit
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import builtin_explainers, installed, load_explainer, origin, provider, unknown_name
from faithcheck.models.data import handwritten_digits
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.reports import expectations_file

T = TypeVar("T")

PAIRS = "faithcheck.pairs"
"""The group of entry points under which a package offers pairs: ``their_name = "their.module"``."""


class SelectionError(ValueError):
    """Something that the run was asked for is not there. The message names it and the way out."""


def choose_explainers(specs: Sequence[str]) -> list[Explainer]:
    """The explainers named, each as `load_explainer` takes it; all built-in ones where none is named.

    What other packages offer as entry points is loaded only when it is named: a run measures the same wherever it runs.

    Raises:
        SelectionError: an unknown name, or a module that cannot be imported (with its traceback).
    """
    if not specs:
        return list(builtin_explainers().values())
    explainers = [_imported(f"--explainer={spec}", lambda spec=spec: load_explainer(spec)) for spec in specs]  # type: ignore[misc]
    names = [explainer.name for explainer in explainers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SelectionError(f"two explainers are named {', '.join(twice)}: name each once, and give each its own name")
    return explainers


def origins(specs: Sequence[str], explainers: Sequence[Explainer]) -> dict[str, str]:
    """Where each explainer that `choose_explainers` gave for these names comes from."""
    names = specs or [explainer.name for explainer in explainers]
    return {explainer.name: origin(spec, explainer) for spec, explainer in zip(names, explainers, strict=True)}


def described(
    settings: Settings,
    specs: Sequence[str],
    explainers: Sequence[Explainer],
    pairs: Sequence[Pair],
    given: Sequence[SuppliedExpectation],
    arguments: Sequence[str],
) -> dict[str, Any]:
    """The settings of a run, for the results document.

    Args:
        settings: seed, dtype and device.
        specs: the names by which explainers were asked for; none for the built-in ones.
        explainers: who is checked.
        pairs: on what.
        given: the expectations from a file.
        arguments: the command line.
    """
    return {
        "seed": settings.seed,
        "dtype": str(settings.dtype).removeprefix("torch."),
        "device": str(settings.device),
        "data": handwritten_digits.source(),
        "explainers": [explainer.name for explainer in explainers],
        "origins": origins(specs, explainers),
        "pairs": len(pairs),
        "pair_origins": pair_origins(pairs),
        "expectations": len(given),
        "threads": torch.get_num_threads(),
        "arguments": [str(argument) for argument in arguments],
    }


def pair_origins(pairs: Iterable[Pair]) -> dict[str, str]:
    """The modules of the pairs that are not built in, with the package that offers them."""
    offered = {point.module: f", entry point {name} of {provider(point)}" for name, point in installed(PAIRS).items()}
    modules = {pair.name: pair.build.__module__ for pair in pairs}
    return {
        name: module + next((by for root, by in offered.items() if _within(module, root)), "")
        for name, module in modules.items()
        if not _within(module, "faithcheck")
    }


def choose_pairs(specs: Sequence[str]) -> list[Pair]:
    """The pairs named, each a registered name, a glob, an entry point or a module of pairs; all registered for none.

    Raises:
        SelectionError: an unknown name, a glob that matches nothing, a module that cannot be imported or has no pairs.
    """
    chosen = {name for spec in specs for name in _names(spec)}
    return [pair for name, pair in registered_pairs().items() if not specs or name in chosen]


def choose_checkpoint(paths: Sequence[str]) -> list[str]:
    """Register the pairs that changes of a checkpoint make, and say which there are: their names, none without a path.

    Raises:
        SelectionError: more than one path, or an empty one; a model that cannot be loaded, run in float64, or changed.
    """
    if not paths:
        return []
    if len(paths) > 1 or not paths[0]:
        given = " and ".join(paths) or "none"
        raise SelectionError(f"--checkpoint takes one path, that of a folder, or one hub name; got {given}")
    from faithcheck.models import transform  # when used: transformers takes seconds to import
    from faithcheck.models.pretrained.errors import ModelError

    try:
        return [pair.name for pair in transform.register_checkpoint(paths[0])]
    except ModelError as error:
        raise SelectionError(f"--checkpoint: {error}") from error


def describe_checkpoint(made: Sequence[str]) -> str:
    """The number of a checkpoint's pairs, and the transforms that do not apply to it, each with what it needs."""
    from faithcheck.models import transform

    transforms = [t for t in transform.registered_transforms().values() if f"{t.name}_checkpoint" not in made]
    needs = [f"\n  {t.name} needs {' and '.join(each.description for each in t.requires)}" for t in transforms]
    return f"checkpoint: {len(made)} pairs; {len(transforms)} transforms do not apply to it:{''.join(needs)}"


def choose_expectations(path: str | None) -> list[SuppliedExpectation]:
    """The expectations in a file; none without one.

    Raises:
        SelectionError: see `expectations_file.load`.
    """
    try:
        return [] if path is None else expectations_file.load(Path(path))
    except expectations_file.ExpectationsError as error:
        raise SelectionError(f"--expectations: {error}") from error


def choose_timeout(seconds: float | None) -> float | None:
    """The seconds that one check of an explainer may take.

    Raises:
        SelectionError: not above 0, or no such limit can be set here.
    """
    try:
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"the seconds are above 0 and finite, got {seconds:g}")
        with time_limit(None if seconds is None else 3600.0):  # whether it can be set at all
            return seconds
    except ValueError as error:
        raise SelectionError(f"--explainer-timeout: {error}") from error


def refuse_stale(
    explainers: Sequence[Explainer], pairs: Sequence[Pair], given: Sequence[SuppliedExpectation] = ()
) -> None:
    """Refuse expectations that match no check.

    Raises:
        SelectionError: names the expectation.
    """
    try:
        refuse_stale_expectations(explainers, pairs, given)
    except ValueError as error:
        raise SelectionError(str(error)) from error


def choose_device(name: str) -> torch.device:
    """The device named, after one number was kept on it.

    Raises:
        SelectionError: it is not there, or cannot hold float64.
    """
    try:
        torch.ones(1, dtype=torch.float64, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SelectionError(f"--device={name} cannot be used: {reason}; the default is --device=cpu") from error
    return torch.device(name)


def check_markers(expression: str, registered: Iterable[str]) -> None:
    """Refuse an ``-m`` expression with a name that is no registered marker: pytest would silently select nothing.

    Raises:
        SelectionError: names the marker.
    """
    known = set(registered)
    for name in marker_names(expression):
        if name not in known:
            raise SelectionError(f"-m {expression!r}: {unknown_name('marker', name, known)}")


def marker_names(expression: str) -> list[str]:
    """The marker names in an ``-m`` expression; the arguments of ``marker(key=value)`` are none."""
    bare = re.sub(r"\([^()]*=[^()]*\)", "", expression)
    return [
        name
        for name in re.findall(r"[A-Za-z_][\w.\-]*", bare)
        if name not in {"and", "or", "not", "True", "False", "None"}
    ]


def check_writable(path: Path, option: str) -> None:
    """Refuse a report path that could not be written at the end of the run.

    Raises:
        SelectionError: its folder is missing or cannot be written, or it is a folder itself.
    """
    if path.is_dir():
        raise SelectionError(f"{option}={path} is a folder: name a file in it, {path / 'results.json'}")
    if not path.parent.is_dir():
        raise SelectionError(
            f"{option}={path}: the folder {path.parent} does not exist: make it first (mkdir -p {path.parent})"
        )
    try:
        # Only writing tells: permission bits say nothing to root and on read-only or full file systems.
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(b"faithcheck")
    except OSError as error:
        raise SelectionError(f"{option}={path} cannot be written: {error.strerror}") from error
    if path.exists() and not os.access(path, os.W_OK):
        raise SelectionError(f"{option}={path} cannot be written: permission denied")


def import_from_here() -> None:
    """Make the current folder importable, as ``python -m pytest`` does: plain ``pytest`` in importlib mode does not."""
    here = os.getcwd()
    if not any(os.path.abspath(entry) == here for entry in sys.path):
        sys.path.insert(0, here)


def _names(spec: str) -> list[str]:
    known = registered_pairs()
    matches = fnmatch.filter(known, spec)
    if matches:
        return matches
    if re.search(r"[*?\[]", spec):
        raise SelectionError(f"--pairs={spec} matches no pair; known: {', '.join(known)}")
    offered = installed(PAIRS)
    module = offered[spec].module if spec in offered else spec
    if not _is_module(module):
        near = unknown_name("pair", spec, {*known, *offered})
        raise SelectionError(f"--pairs={spec}: {near} (nor is there a module of that name)")
    _imported(f"--pairs={spec}", lambda: importlib.import_module(module))
    found = [
        name for name, pair in registered_pairs().items() if name not in known or _within(pair.build.__module__, module)
    ]
    if not found:
        raise SelectionError(f"--pairs={spec}: the module registers no pair: decorate a function with @equivalent_pair")
    return found


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _imported(option: str, load: Callable[[], T]) -> T:
    """Run ``load``; what fails inside their module is shown as their traceback, anything else as its message."""
    try:
        return load()
    except (Exception, SystemExit) as error:
        theirs = _their_frames(error)
        if not theirs and isinstance(error, SyntaxError):
            said = "".join(traceback.format_exception_only(error)).rstrip()
            raise SelectionError(f"{option}: it cannot be parsed:\n{said}") from error
        if not theirs:
            raise SelectionError(f"{option}: {error}") from error
        lines = [*traceback.format_list(theirs[-3:]), *traceback.format_exception_only(_root(error))]
        raise SelectionError(f"{option}: it failed while it was loaded:\n{''.join(lines).rstrip()}") from error


def _root(error: BaseException) -> BaseException:
    return _root(error.__cause__) if error.__cause__ is not None else error


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames outside faithcheck and the import machinery."""
    ours = [
        str(Path(__file__).resolve().parent),
        str(Path(sys.modules[load_explainer.__module__].__file__ or "").resolve().parent),
    ]
    frames = traceback.extract_tb(_root(error).__traceback__)
    return [
        f for f in frames if "importlib" not in f.filename and not any(f.filename.startswith(folder) for folder in ours)
    ]
